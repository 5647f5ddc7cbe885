//! Marks namespaces that opted in with a label, since webhook selectors see labels and users write annotations.
//!
//! With the label, the API server refuses pods of such a namespace while the injector is down, instead of starting them
//! without a proxy; pods of other namespaces are none of the injector's business.

use super::decide::INJECT;
use crate::{authority::every, index::store::Store};
use kube::Client;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use weft_kube::{api, core::node::Namespace, kind::Kind};

/// `enabled` on namespaces whose annotation says so, in either mode.
pub const OPT_IN_LABEL: &str = "weft.dev/inject";

/// Keeps the labels in step. Runs until dropped.
pub async fn mark(client: Client, store: Arc<Store>) {
    let mut timer = every(Duration::from_millis(500));
    loop {
        timer.tick().await;
        for (name, wanted) in store.look(|reader, _| wrong(reader.namespaces())) {
            let patch = json!({"metadata": {"labels": {OPT_IN_LABEL: wanted}}});
            let path = format!("{}/{name}", Namespace::path(None));
            if let Err(error) = api::merge(&client, &path, &patch).await {
                tracing::warn!(name, %error, "the namespace could not be marked as opted in");
                // The next tick would meet the same.
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
    }
}

/// Namespaces whose label does not say what the annotation says, and what it should be.
fn wrong<'n>(namespaces: impl Iterator<Item = &'n Arc<Namespace>>) -> Vec<(String, Option<&'static str>)> {
    namespaces
        .filter_map(|namespace| {
            let meta = &namespace.metadata;
            let wanted = matches!(meta.annotation(INJECT), Some("enabled" | "ingress")).then_some("enabled");
            (meta.label(OPT_IN_LABEL) != wanted && meta.deletion_timestamp.is_none())
                .then(|| (meta.name.clone(), wanted))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_follow_annotations() {
        let namespace = |name: &str, annotation: &str, label: Option<&str>| -> Arc<Namespace> {
            Arc::new(
                serde_json::from_value(json!({"metadata": {"name": name,
                    "annotations": {INJECT: annotation}, "labels": label.map(|l| json!({OPT_IN_LABEL: l}))}}))
                .unwrap(),
            )
        };
        let all = [
            namespace("a", "enabled", None),
            namespace("b", "enabled", Some("enabled")),
            namespace("c", "disabled", Some("enabled")),
            namespace("d", "disabled", None),
        ];
        assert_eq!(wrong(all.iter()), [("a".to_owned(), Some("enabled")), ("c".to_owned(), None)]);
    }
}
