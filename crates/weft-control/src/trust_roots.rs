//! The trust roots in every namespace with meshed pods, as a ConfigMap that their proxies mount.
//!
//! A proxy whose roots have expired cannot fetch others over a connection that it must verify first: they come to it by
//! kubelet. A pod can mount ConfigMaps of its own namespace only, so each gets a copy.

use crate::{
    authority::{Authorities, ROOTS_KEY},
    index::store::Store,
    view::workload::is_meshed,
};
use kube::Client;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, time::Instant};
use weft_kube::{api, core::node::ConfigMap, kind::Kind};
use weft_tls::bundle::{TrustBundle, foreign_key};

/// The copies' name. The original, in the control plane's namespace, is [`crate::authority::ROOTS_CONFIG_MAP`].
pub const NAMESPACE_ROOTS: &str = "weft-identity-trust-roots";
/// How soon a namespace gets its copy. Its first pod's proxy begins with the roots that came by its environment.
const LOOK: Duration = Duration::from_secs(5);
/// Copies that somebody else changed or deleted are put right after this.
const AGAIN: Duration = Duration::from_secs(300);

/// What was written where, and when.
type Written = BTreeMap<String, (TrustBundle, Instant)>;

/// Keeps the copies in step. Runs until dropped.
pub async fn publish(
    client: Client,
    store: Arc<Store>,
    mut authorities: Authorities,
    mut synced: watch::Receiver<bool>,
) {
    if synced.wait_for(|synced| *synced).await.is_err() {
        return;
    }
    let mut written = Written::new();
    loop {
        if let Some(authority) = authorities.current() {
            let wanted = meshed_namespaces(&store);
            written.retain(|namespace, _| wanted.contains(namespace));
            for namespace in due(&wanted, &written, &authority.roots) {
                let path = format!("{}/{NAMESPACE_ROOTS}", ConfigMap::path(Some(&namespace)));
                let object = config_map(&namespace, &store.config.control_namespace, &authority.roots);
                match api::apply(&client, &path, "weft-controller", &object).await {
                    Ok(_) => drop(written.insert(namespace, (authority.roots.clone(), Instant::now()))),
                    // It is going, or gone: so are its pods.
                    Err(error)
                        if error.code() == Some(404) || error.to_string().contains("being terminated") =>
                    {
                        tracing::debug!(namespace, %error, "no trust roots for this namespace");
                    }
                    Err(error) => {
                        tracing::warn!(namespace, %error, "the trust roots could not be written");
                        // Whatever the reason, the next one would meet it too.
                        break;
                    }
                }
            }
        }
        tokio::select! {
            () = authorities.changed() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

fn meshed_namespaces(store: &Store) -> BTreeSet<String> {
    store.look(|reader, config| {
        let mut namespaces = BTreeSet::new();
        for pod in reader.all_pods().filter(|pod| is_meshed(pod, config)) {
            if !namespaces.contains(&pod.metadata.namespace) {
                namespaces.insert(pod.metadata.namespace.clone());
            }
        }
        namespaces
    })
}

/// The namespaces that have not got these roots, or not lately.
fn due(wanted: &BTreeSet<String>, written: &Written, roots: &TrustBundle) -> Vec<String> {
    let good = |namespace: &&String| match written.get(*namespace) {
        Some((was, at)) => was == roots && at.elapsed() < AGAIN,
        None => false,
    };
    wanted.iter().filter(|namespace| !good(namespace)).cloned().collect()
}

fn config_map(namespace: &str, control_namespace: &str, roots: &TrustBundle) -> Value {
    let foreign = roots.foreign().map(|(domain, bundle)| (foreign_key(domain), bundle.to_pem()));
    let data: BTreeMap<String, String> = foreign.chain([(ROOTS_KEY.to_owned(), roots.to_pem())]).collect();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAMESPACE_ROOTS, "namespace": namespace,
            "labels": {"linkerd.io/control-plane-ns": control_namespace}},
        "data": data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_tls::authority::Ca;

    fn bundle(name: &str) -> TrustBundle {
        TrustBundle::parse(&Ca::root(name, Duration::from_secs(3_600)).unwrap().certificate_pem()).unwrap()
    }

    #[test]
    fn a_copy_is_written_when_it_is_missing_or_old_and_has_the_foreign_roots_too() {
        let (old, new) = (bundle("a.example"), bundle("b.example"));
        let wanted = BTreeSet::from(["gone".to_owned(), "new".to_owned(), "same".to_owned()]);
        let mut written = Written::new();
        written.insert("same".into(), (new.clone(), Instant::now()));
        written.insert("gone".into(), (old, Instant::now()));
        assert_eq!(due(&wanted, &written, &new), ["gone", "new"]);

        let with = new.clone().with_foreign("east.example", bundle("east.example")).unwrap();
        assert_eq!(due(&wanted, &written, &with).len(), 3);
        let copy = config_map("shop", "linkerd", &with);
        assert_eq!(copy["data"][ROOTS_KEY], new.to_pem());
        assert!(copy["data"]["foreign.east.example.crt"].as_str().unwrap().contains("BEGIN CERTIFICATE"));
    }
}
