//! NetworkPolicies are enforced, between pods, towards names and on the way to services.

use super::{
    lab::{DEADLINE, api_of, apply, condition, ready, until},
    tests::{exec, tool_command},
};
use kube::{Client, api::DeleteParams};
use serde_json::json;
use std::time::Instant;
use weft_local::up::Mesh;

const SERVER: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server}
spec:
  podSelector: {matchLabels: {app: np-server}}
  ingress:
  - from: [{podSelector: {matchLabels: {role: friend}}}]
    ports: [{port: http}]
";

const NOTHING_OUT: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friend}
spec: {podSelector: {matchLabels: {role: friend}}, policyTypes: [Egress]}
";

const SERVER_AND_NAMES_OUT: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friend}
spec:
  podSelector: {matchLabels: {role: friend}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: np-server}}}]
    ports: [{port: 8080, endPort: 8081}]
  - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}]
    ports: [{port: 53, protocol: UDP}, {port: 53}]
";

pub(crate) async fn network_policies_are_enforced(client: &Client, _mesh: &Mesh) {
    let serve = tool_command(&["serve", "8080", "hello"]);
    apply(
        client,
        &format!(
            r#"
apiVersion: v1
kind: Service
metadata: {{name: np}}
spec: {{selector: {{app: np-server}}, ports: [{{port: 80, targetPort: http}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: np-server, labels: {{app: np-server}}}}
spec:
  containers:
  - {{name: c, image: none, command: {serve}, ports: [{{name: http, containerPort: 8080}}],
     readinessProbe: {{httpGet: {{port: http}}, periodSeconds: 1}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: np-friend, labels: {{role: friend}}}}
spec: {{containers: [{{name: c, image: none, command: [sleep, "3600"]}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: np-other, labels: {{role: other}}}}
spec: {{containers: [{{name: c, image: none, command: [sleep, "3600"]}}]}}
"#
        ),
    )
    .await;
    let server = ready(client, "np-server").await;
    let server_ip = server["status"]["podIP"].as_str().unwrap().to_owned();
    let address = format!("{server_ip}:8080");
    let other = ready(client, "np-other").await;
    let other_ip = other["status"]["podIP"].as_str().unwrap().to_owned();
    ready(client, "np-friend").await;

    // Each row: who, to where, and whether it answers; asked again until it is so.
    let rows = async |when: &str, rows: &[(&str, &str, bool)]| {
        for (pod, to, expected) in rows {
            let deadline = Instant::now() + DEADLINE;
            while reaches(client, pod, to).await != *expected {
                assert!(Instant::now() < deadline, "{when}: {pod} to {to} is never {expected}");
            }
        }
    };
    let open = [("np-friend", &*address, true), ("np-friend", "np:80", true), ("np-other", &*address, true)];
    rows("without policies", &open).await;

    apply(client, SERVER).await;
    let served =
        [("np-other", &*address, false), ("np-friend", &*address, true), ("np-friend", "np:80", true)];
    rows("one may reach the server", &served).await;
    rows("others may reach others", &[("np-other", "np:80", false)]).await;

    apply(client, NOTHING_OUT).await;
    // By address, and by a name that cannot be asked for any more.
    rows(
        "nothing goes out",
        &[("np-friend", &*address, false), ("np-friend", "np.default.svc.cluster.local.:80", false)],
    )
    .await;

    apply(client, SERVER_AND_NAMES_OUT).await;
    rows("the server and names", &[("np-friend", "np:80", true), ("np-friend", &*address, true)]).await;
    // Refused by egress alone: nothing isolates the one that is asked, which would answer with a reset.
    assert!(!reaches(client, "np-friend", &format!("{other_ip}:8080")).await);

    // The node's probes were let through all the time.
    until(client, "np-server", "ready", |pod| condition(pod, "Ready")).await;
    for name in ["server", "friend"] {
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {}});
        api_of(client, &object).delete(name, &DeleteParams::default()).await.unwrap();
    }
    rows("without policies again", &open).await;
}

pub(crate) async fn reaches(client: &Client, pod: &str, to: &str) -> bool {
    let (_, status) = exec(client, pod, &["sh", "-c", &format!("exec {}", shell(&["try", to]))]).await;
    status == "Success"
}

fn shell(words: &[&str]) -> String {
    let command: Vec<String> = serde_json::from_str(&tool_command(words)).expect("a command");
    command.join(" ")
}
