//! ReplicaSets: as many pods as asked for.

use std::cmp::Reverse;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::store::Change;
use crate::api::{Api, meta};

use super::client::Client;
use super::drive::{Controller, Key, Outcome, controller_keys, drive, own_key};
use super::pods;

const RESOURCE: &str = "replicasets.apps";

/// How many pods one run may create or delete.
const BURST: usize = 500;

pub(super) async fn run(api: Arc<Api>) {
    drive(&ReplicaSets { client: Client::new(&api, "replicaset-controller") }).await;
}

struct ReplicaSets {
    client: Client,
}

impl Controller for ReplicaSets {
    const RESOURCES: &[&str] = &[RESOURCE, "pods"];

    fn client(&self) -> &Client {
        &self.client
    }

    fn keys(&self, change: &Change) -> Vec<Key> {
        match &*change.resource {
            RESOURCE => vec![own_key(change)],
            _ => controller_keys(change, "ReplicaSet"),
        }
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        reconcile(&self.client, key).await
    }
}

async fn reconcile(client: &Client, (namespace, name): &Key) -> Outcome {
    let Some(set) = client.get(RESOURCE, namespace, name) else { return Ok(None) };
    let owned = client.controlled("pods", &set);
    let wanted = usize::try_from(meta::int(&set, "/spec/replicas").unwrap_or(1)).unwrap_or(0);
    let mut active: Vec<_> = owned.iter().filter(|pod| pods::is_active(pod)).cloned().collect();
    let mut trouble = None;
    if !meta::deleting(&set) {
        for _ in active.len()..wanted.min(active.len() + BURST) {
            match client.create("pods", namespace, pods::from_template(&set)).await {
                Ok(pod) => {
                    let message = format!("Created pod: {}", meta::name(&pod));
                    client.event(&set, false, "SuccessfulCreate", &message).await;
                }
                Err(error) => {
                    client.event(&set, true, "FailedCreate", &format!("Error creating: {error}")).await;
                    trouble = Some(error);
                    break;
                }
            }
        }
        if active.len() > wanted {
            active.sort_by_key(worth);
            let excess = active.len() - wanted;
            for pod in active.iter().take(excess.min(BURST)) {
                client.delete("pods", pod).await?;
                let message = format!("Deleted pod: {}", meta::name(pod));
                client.event(&set, false, "SuccessfulDelete", &message).await;
            }
        }
    }
    let again = write_status(client, namespace, name, trouble.as_ref().map(ToString::to_string)).await?;
    match trouble {
        Some(error) => Err(error),
        None => Ok(again),
    }
}

/// What is deleted first when there are too many: unready pods, then the youngest.
fn worth(pod: &Arc<Value>) -> (bool, bool, Reverse<String>) {
    let running = meta::text(pod, "/status/phase") == "Running";
    let made = meta::text(pod, "/metadata/creationTimestamp").to_owned();
    (running, pods::is_ready(pod), Reverse(made))
}

async fn write_status(client: &Client, namespace: &str, name: &str, trouble: Option<String>) -> Outcome {
    let Some(set) = client.get(RESOURCE, namespace, name) else { return Ok(None) };
    let owned = client.controlled("pods", &set);
    let min_ready = meta::int(&set, "/spec/minReadySeconds").unwrap_or(0);
    let now = jiff::Timestamp::now();
    let (mut replicas, mut ready, mut available, mut again) = (0, 0, 0, None);
    for pod in owned.iter().filter(|pod| pods::is_active(pod)) {
        replicas += 1;
        ready += i64::from(pods::is_ready(pod));
        match pods::is_available(pod, min_ready, now) {
            Ok(()) => available += 1,
            Err(Some(left)) => {
                again = Some(again.map_or(left, |soonest: std::time::Duration| soonest.min(left)))
            }
            Err(None) => {}
        }
    }
    let terminating = owned.iter().filter(|pod| meta::deleting(pod) && !pods::is_finished(pod)).count();
    let mut status = json!({ "replicas": replicas });
    if replicas > 0 {
        status["fullyLabeledReplicas"] = json!(replicas);
    }
    if ready > 0 {
        status["readyReplicas"] = json!(ready);
    }
    if available > 0 {
        status["availableReplicas"] = json!(available);
    }
    status["terminatingReplicas"] = json!(terminating);
    status["observedGeneration"] = set["metadata"]["generation"].clone();
    if let Some(why) = trouble {
        let mut conditions = meta::items(&set, "/status/conditions").to_vec();
        pods::set_condition(&mut conditions, "ReplicaFailure", true, "FailedCreate", &why);
        for condition in &mut conditions {
            // This kind's conditions have no update time.
            meta::object_mut_self(condition).remove("lastUpdateTime");
        }
        status["conditions"] = json!(conditions);
    }
    client.set_status(RESOURCE, &set, status).await?;
    Ok(again)
}
