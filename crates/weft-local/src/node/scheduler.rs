//! Binding pods to this node, on an API whose only node it is: there, nobody else would run them.
//!
//! A cluster with other nodes has a scheduler, which knows of this node like of any other.

use super::NODE_NAME;
use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use std::time::Duration;

/// The scheduler for whose work this stands in; pods of others wait for those.
const DEFAULT: &str = "default-scheduler";
/// Until what could not be bound is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// Binds what is not bound, for ever.
pub(crate) async fn run(client: Client) {
    let pods: Api<Pod> = Api::all(client.clone());
    let config = watcher::Config::default().fields("spec.nodeName=");
    let events = watcher(pods, config).default_backoff().applied_objects();
    futures_util::pin_mut!(events);
    loop {
        match events.try_next().await {
            Ok(Some(pod)) if wants_a_node(&pod) => {
                while let Err(error) = bind(&client, &pod).await {
                    // Gone, or bound by somebody else.
                    if matches!(&error, kube::Error::Api(status) if [404, 409].contains(&status.code)) {
                        break;
                    }
                    tracing::warn!(pod = pod.name_any(), %error, "the pod could not be bound; trying again");
                    tokio::time::sleep(AGAIN).await;
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "the watch on unbound pods was lost; it is taken up again"),
        }
    }
}

fn wants_a_node(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|spec| {
        spec.node_name.as_deref().unwrap_or_default().is_empty()
            && spec.scheduler_name.as_deref().is_none_or(|name| name == DEFAULT)
            && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
    }) && pod.metadata.deletion_timestamp.is_none()
}

async fn bind(client: &Client, pod: &Pod) -> kube::Result<()> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    if nodes.iter().any(|node| node.name_any() != NODE_NAME) {
        return Ok(());
    }
    let path =
        format!("/api/v1/namespaces/{}/pods/{}/binding", pod.namespace().unwrap_or_default(), pod.name_any());
    let binding = json!({"apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": pod.name_any(), "namespace": pod.namespace(), "uid": pod.uid()},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE_NAME}});
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(binding.to_string().into_bytes())
        .map_err(kube::Error::HttpError)?;
    client.request::<serde_json::Value>(request).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_are_ours_to_bind() {
        let pod =
            |spec| serde_json::from_value::<Pod>(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
        let with = |field: &str, value| {
            let mut spec = json!({"containers": []});
            spec[field] = value;
            pod(spec)
        };
        assert!(wants_a_node(&pod(json!({"containers": []}))));
        assert!(wants_a_node(&with("schedulerName", json!(DEFAULT))));
        assert!(!wants_a_node(&with("schedulerName", json!("own"))));
        assert!(!wants_a_node(&with("nodeName", json!("other"))));
        assert!(!wants_a_node(&with("schedulingGates", json!([{"name": "quota"}]))));
    }
}
