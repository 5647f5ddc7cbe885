//! Events about injection, on the workload that a pod belongs to: where people look with `kubectl describe`.

use kube::Client;
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{sync::Semaphore, time::timeout};
use weft_kube::{api, meta::Meta};

/// Events on their way. More than these are left out: admission does not wait for them.
const IN_FLIGHT: usize = 32;
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Injected,
    InjectionSkipped,
}

/// Sends events, a bounded number at a time.
#[derive(Clone)]
pub struct Events {
    client: Client,
    permits: Arc<Semaphore>,
}

impl Events {
    pub fn new(client: Client) -> Self {
        Events { client, permits: Arc::new(Semaphore::new(IN_FLIGHT)) }
    }

    /// Tells about a pod, on the object that controls it; a pod that nobody controls has no object yet.
    pub fn tell(&self, pod: &Meta, namespace: &str, reason: Reason, message: String) {
        let Some(event) = event(pod, namespace, reason, &message) else { return };
        let Ok(permit) = self.permits.clone().try_acquire_owned() else { return };
        let (client, path) = (self.client.clone(), format!("/api/v1/namespaces/{namespace}/events"));
        tokio::spawn(async move {
            let _permit = permit;
            match timeout(DEADLINE, api::create(&client, &path, &event)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::debug!(%error, "an event could not be written"),
                Err(_) => tracing::debug!("an event was not written in time"),
            }
        });
    }
}

fn event(pod: &Meta, namespace: &str, reason: Reason, message: &str) -> Option<Value> {
    let owner = pod.controller()?;
    let now = jiff::Timestamp::try_from(SystemTime::now()).ok()?.to_string();
    Some(json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"generateName": format!("{}.", owner.name), "namespace": namespace},
        "involvedObject": {"apiVersion": owner.api_version, "kind": owner.kind, "namespace": namespace,
            "name": owner.name, "uid": owner.uid},
        "reason": format!("{reason:?}"),
        "message": message,
        "type": if reason == Reason::Injected { "Normal" } else { "Warning" },
        "source": {"component": "linkerd-proxy-injector"},
        "firstTimestamp": now, "lastTimestamp": now, "count": 1,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    #[test]
    fn events_are_about_the_owner() {
        let pod: Meta = from_value(json!({"generateName": "web-1-", "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u", "controller": true}]}))
        .unwrap();
        let event = event(&pod, "shop", Reason::InjectionSkipped, "why").unwrap();
        assert_eq!(event["involvedObject"]["name"], "web-1");
        assert_eq!(event["involvedObject"]["uid"], "u");
        assert_eq!((&event["reason"], &event["type"]), (&json!("InjectionSkipped"), &json!("Warning")));
        assert!(super::event(&Meta::default(), "shop", Reason::Injected, "").is_none());
    }
}
