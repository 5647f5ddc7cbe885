//! Namespaces: furnished when they begin, emptied before they end.

use std::sync::Arc;

use serde_json::json;

use crate::api::store::Change;
use crate::api::update::Part;
use crate::api::{Api, meta};

use super::client::Client;
use super::drive::{Controller, Key, Outcome, drive};

pub(super) async fn run(api: Arc<Api>) {
    drive(&Namespaces { client: Client::new(&api, "namespace-controller") }).await;
}

struct Namespaces {
    client: Client,
}

impl Controller for Namespaces {
    const RESOURCES: &[&str] = &[];

    fn client(&self) -> &Client {
        &self.client
    }

    fn keys(&self, change: &Change) -> Vec<Key> {
        match &*change.resource {
            "namespaces" => vec![(meta::name(&change.object).to_owned(), String::new())],
            _ => match meta::namespace(&change.object) {
                // Anything that goes may have been the last thing in a namespace, or part of its furniture.
                namespace
                    if change.happened == crate::api::store::Happened::Deleted && !namespace.is_empty() =>
                {
                    vec![(namespace.to_owned(), String::new())]
                }
                _ => Vec::new(),
            },
        }
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        reconcile(&self.client, &key.0).await
    }
}

async fn reconcile(client: &Client, name: &str) -> Outcome {
    let Some(namespace) = client.get("namespaces", "", name) else { return Ok(None) };
    if !meta::deleting(&namespace) {
        client.api.furnish_namespace(name);
        return Ok(None);
    }
    let mut left = false;
    for resource in client.api.store.resources() {
        if &*resource == "namespaces" {
            continue;
        }
        for object in client.list(&resource, name) {
            left = true;
            if !meta::deleting(&object) {
                client.delete(&resource, &object).await?;
            }
        }
    }
    // Deletions come back as changes; what has to wait for a finalizer or a grace period comes back then.
    let empty = client.api.store.resources().iter().all(|resource| client.list(resource, name).is_empty());
    if !left || empty {
        let finalize = |namespace: &mut serde_json::Value| namespace["spec"]["finalizers"] = json!([]);
        client.update("namespaces", &namespace, Part::Finalize, finalize).await?;
    }
    Ok(None)
}
