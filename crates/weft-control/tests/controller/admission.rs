//! The webhooks as the API server calls them.

use super::*;

const SECRET: &str = "secrets/linkerd-proxy-injector-k8s-tls";
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/linkerd-proxy-injector-webhook-config";

fn pod(mesh: &Mesh, name: &str, more: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": mesh.shop, "ownerReferences": [{"apiVersion": "apps/v1",
            "kind": "ReplicaSet", "name": "store-1", "uid": "1", "controller": true}]},
        "spec": {"serviceAccountName": "store", "schedulerName": "nobody", "containers": [{"name": "store", "image": "store", "command": ["store"]}]}});
    if let (Some(spec), Some(more)) = (pod["spec"].as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    pod
}

impl Mesh {
    async fn event(&self, reason: &str) -> Value {
        let mut found = Value::Null;
        let events = timeout(LIMIT, async {
            loop {
                let list: Value = api::get(&self.client, &self.path("v1", "events")).await.unwrap();
                let items = list["items"].as_array().unwrap();
                if let Some(event) = items.iter().find(|e| e["reason"] == reason) {
                    found = event.clone();
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        assert!(events.await.is_ok(), "no event {reason}");
        found
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn injection_and_its_refusal_are_told_on_the_owner() {
    let mesh = Mesh::start().await;
    mesh.shop().await;
    let injected = mesh.create(pod(&mesh, "meshed", json!({}))).await;
    assert_eq!(injected["spec"]["initContainers"][1]["name"], "linkerd-proxy");
    assert_eq!(mesh.event("Injected").await["involvedObject"]["name"], "store-1");

    let host = mesh.create(pod(&mesh, "host", json!({"hostNetwork": true}))).await;
    assert!(host["spec"].get("initContainers").is_none(), "{host:#}");
    let skipped = mesh.event("InjectionSkipped").await;
    assert!(skipped["message"].as_str().unwrap().contains("network"), "{skipped:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_and_unmeshed_pods_say_which_ports_are_opaque() {
    let mesh = Mesh::start().await;
    let plain = mesh.cluster.namespace("plain", json!({})).await;
    let service = mesh
        .create(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": plain},
            "spec": {"ports": [{"name": "db", "port": 3306}, {"name": "web", "port": 80}]}}))
        .await;
    assert_eq!(service["metadata"]["annotations"]["config.linkerd.io/opaque-ports"], "3306");
    let mut unmeshed = pod(&mesh, "db", json!({}));
    unmeshed["metadata"]["namespace"] = json!(plain);
    unmeshed["spec"]["containers"][0]["ports"] = json!([{"containerPort": 5432}]);
    unmeshed["spec"]["serviceAccountName"] = json!("default");
    let unmeshed = mesh.create(unmeshed).await;
    assert_eq!(unmeshed["metadata"]["annotations"]["config.linkerd.io/opaque-ports"], "5432");
    assert!(unmeshed["spec"].get("initContainers").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhook_certificates_are_shared_and_told() {
    let mesh = Mesh::start().await;
    let secret: Value = api::get(&mesh.client, &mesh.control(SECRET)).await.unwrap();
    let hooks: Value = api::get(&mesh.client, HOOKS).await.unwrap();
    for hook in hooks["webhooks"].as_array().unwrap() {
        assert_eq!(hook["clientConfig"]["caBundle"], secret["data"]["ca.crt"], "{}", hook["name"]);
    }
    // A second replica finds what the first one made, and serves it as well.
    let mut config = mesh.config.clone();
    config.ports = Ports { destination: 0, policy: 0, identity: 0, webhook: 0, admin: 0 };
    let second = Controller::bind(config, mesh.second().await).await.unwrap();
    timeout(LIMIT, second.ready()).await.unwrap();
    let same: Value = api::get(&mesh.client, &mesh.control(SECRET)).await.unwrap();
    assert_eq!(same["metadata"]["resourceVersion"], secret["metadata"]["resourceVersion"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_certificate_that_nobody_can_use_is_made_anew() {
    let mesh = Mesh::start().await;
    mesh.shop().await;
    let before: Value = api::get(&mesh.client, &mesh.control(SECRET)).await.unwrap();
    mesh.patch(&mesh.control(SECRET), json!({"data": {"tls.crt": "eA==", "tls.key": "eA=="}})).await;
    // The next controller does not wait for its turn to look again.
    let mut config = mesh.config.clone();
    config.ports = Ports { destination: 0, policy: 0, identity: 0, webhook: 0, admin: 0 };
    let second = Controller::bind(config, mesh.second().await).await.unwrap();
    timeout(LIMIT, second.ready()).await.unwrap();
    let after: Value = api::get(&mesh.client, &mesh.control(SECRET)).await.unwrap();
    assert_ne!(after["data"]["ca.crt"], before["data"]["ca.crt"]);
    // The first one still serves the old certificate, whose CA is still known.
    let injected = mesh.create(pod(&mesh, "meshed", json!({}))).await;
    assert_eq!(injected["spec"]["initContainers"][1]["name"], "linkerd-proxy");
}
