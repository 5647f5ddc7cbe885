//! `weft-cni repair`: restarts pods of this node that started without their redirect.
//!
//! A pod that starts before the plugin is in the node's configuration (a new node, an upgrade) has no rules, and its
//! network validator ends with 95. Starting the container again cannot help, for the pod's network exists; making the
//! pod anew can.

use crate::told_to_end;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};
use weft_fault::{Code, Fault};
use weft_kube::api::{self, ApiError};

const EVERY: Duration = Duration::from_secs(5);
const VALIDATOR: &str = "linkerd-network-validator";
/// `weft-proxy validate-network` ends with it.
const NOT_REDIRECTED: i32 = 95;

/// Delete this node's pods that started without their redirect
#[derive(clap::Args, Debug)]
pub(crate) struct Repair {
    /// This node's name.
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME", value_name = "NAME")]
    node_name: String,
}

impl Repair {
    pub(crate) async fn run(self) -> Result<(), Fault> {
        let client = api::connect(None).await?;
        let mut told = BTreeSet::new();
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let end = told_to_end();
        tokio::pin!(end);
        loop {
            tokio::select! {
                ended = &mut end => return ended,
                _ = tick.tick() => match pass(&client, &self.node_name, &mut told).await {
                    Ok(done) => done.iter().for_each(|line| println!("{line}")),
                    // The next pass asks anew.
                    Err(error) => eprintln!("{:?}", Fault::from(error)),
                },
            }
        }
    }
}

#[derive(Deserialize)]
struct Pods {
    #[serde(default)]
    items: Vec<Pod>,
}

#[derive(Clone, Debug, Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    deletion_timestamp: Option<String>,
    owner_references: Vec<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: String,
    state: State,
    last_state: State,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminated {
    #[serde(default)]
    exit_code: i32,
}

/// Whether the pod's network validator found no redirect. One that waits to be started again did so before.
fn not_redirected(pod: &Pod) -> bool {
    let ended = |state: &State| state.terminated.as_ref().map(|t| t.exit_code);
    pod.metadata.deletion_timestamp.is_none()
        && pod.status.init_container_statuses.iter().filter(|c| c.name == VALIDATOR).any(|c| {
            // What it ended with last: it may have found the redirect since.
            ended(&c.state).or(ended(&c.last_state)) == Some(NOT_REDIRECTED)
        })
}

/// Looks at this node's meshed pods once; says what was done. `told` holds the pods that have their event.
async fn pass(client: &Client, node: &str, told: &mut BTreeSet<String>) -> Result<Vec<String>, ApiError> {
    // From the API server's own cache: a pod seen five seconds later is early enough.
    let path = format!(
        "/api/v1/pods?fieldSelector=spec.nodeName%3D{node}&labelSelector=linkerd.io%2Fcontrol-plane-ns&resourceVersion=0"
    );
    let pods: Pods = api::get(client, &path).await?;
    let broken: Vec<Pod> = pods.items.into_iter().filter(not_redirected).collect();
    told.retain(|uid| broken.iter().any(|p| p.metadata.uid == *uid));
    let mut done = Vec::new();
    for pod in broken {
        let Metadata { name, namespace, uid, owner_references, .. } = &pod.metadata;
        // Nobody would make it anew.
        let deleted = !owner_references.is_empty();
        if told.insert(uid.clone()) {
            let events = format!("/api/v1/namespaces/{namespace}/events");
            // The deletion counts more than its record: an event that is refused is told here.
            if let Err(error) = api::create(client, &events, &event(&pod, deleted)).await {
                eprintln!("no event for {namespace}/{name}: {:?}", Fault::from(error));
            }
            if !deleted {
                done.push(format!(
                    "{namespace}/{name} has no redirect, and no owner that would make it anew"
                ));
            }
        }
        if deleted {
            let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
            match api::json::<Value>(client, http::Method::DELETE, &path, "application/json", &options).await
            {
                Ok(_) => done.push(format!("deleted {namespace}/{name}: it had no redirect")),
                // Gone, or another one of the same name.
                Err(e) if matches!(e.code(), Some(404 | 409)) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(done)
}

fn event(pod: &Pod, deleted: bool) -> Value {
    let Metadata { name, namespace, uid, .. } = &pod.metadata;
    let code = Code::NetworkNotRedirected;
    let then = if deleted { "the pod is deleted so that it is made anew" } else { "delete the pod by hand" };
    let now = jiff::Timestamp::now().to_string();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": format!("{name}."), "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace, "uid": uid},
        "reason": "LinkerdCNINotConfigured",
        "message": format!("{} {}; {then}", code.id(), code.says()),
        "type": "Warning",
        "source": {"component": "linkerd-cni-repair-controller"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: Value, deleted: bool) -> Pod {
        let mut metadata = json!({"name": "web", "namespace": "shop", "uid": "1"});
        if deleted {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(json!({"metadata": metadata, "status": {"initContainerStatuses": [status]}}))
            .unwrap()
    }

    #[test]
    fn a_validator_that_ended_with_95() {
        let ended = |code: i32| json!({"terminated": {"exitCode": code}});
        let now = pod(json!({"name": VALIDATOR, "state": ended(95)}), false);
        assert!(not_redirected(&now));
        let waits = json!({"name": VALIDATOR, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended(95)});
        assert!(not_redirected(&pod(waits, false)));
        // On its way already, another end, another container, and one that succeeded since.
        assert!(!not_redirected(&pod(json!({"name": VALIDATOR, "state": ended(95)}), true)));
        assert!(!not_redirected(&pod(json!({"name": VALIDATOR, "state": ended(1)}), false)));
        assert!(!not_redirected(&pod(json!({"name": "migrate", "state": ended(95)}), false)));
        let healed = json!({"name": VALIDATOR, "state": ended(0), "lastState": ended(95)});
        assert!(!not_redirected(&pod(healed, false)));
    }

    #[test]
    fn the_event_names_pod_and_code() {
        let event = event(&pod(json!({"name": VALIDATOR}), false), true);
        assert_eq!(event["reason"], "LinkerdCNINotConfigured");
        assert_eq!(event["involvedObject"]["uid"], "1");
        assert!(event["message"].as_str().unwrap().starts_with("NOD-009"));
    }

    /// Answers the list with `pods` and everything else with an empty object; the requests' first lines come back.
    fn api_with(pods: Vec<Value>) -> (std::net::SocketAddr, std::sync::mpsc::Receiver<String>) {
        use std::io::{BufRead as _, BufReader, Read as _, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, requests) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut first, mut length) = (String::new(), 0);
                reader.read_line(&mut first).unwrap();
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                }
                reader.read_exact(&mut vec![0; length]).unwrap();
                let list = first.starts_with("GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1&");
                let body = if list { json!({"items": pods}) } else { json!({}) }.to_string();
                // The test may have ended.
                let _ = asked.send(first.split(' ').take(2).collect::<Vec<_>>().join(" "));
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        (address, requests)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn broken_pods_get_one_event_and_those_with_an_owner_are_deleted() {
        let broken = |name: &str, owners: Value| {
            json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "ownerReferences": owners},
                "status": {"initContainerStatuses": [{"name": VALIDATOR, "state": {"terminated": {"exitCode": 95}}}]}})
        };
        let whole = json!({"metadata": {"name": "whole", "namespace": "shop", "uid": "whole"}});
        let owner = json!([{"kind": "ReplicaSet", "name": "web"}]);
        let (server, requests) = api_with(vec![broken("web", owner), broken("bare", json!([])), whole]);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{server}")}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        let client = api::connect(Some(&file)).await.unwrap();
        let mut told = BTreeSet::new();
        for _ in 0..2 {
            pass(&client, "n1", &mut told).await.unwrap();
        }
        let made: Vec<String> = requests.try_iter().filter(|r| !r.starts_with("GET ")).collect();
        assert_eq!(
            made,
            [
                "POST /api/v1/namespaces/shop/events",
                "DELETE /api/v1/namespaces/shop/pods/web",
                "POST /api/v1/namespaces/shop/events",
                // Still there at the second pass; its event is not said again.
                "DELETE /api/v1/namespaces/shop/pods/web",
            ]
        );
    }
}
