//! Nobody notices a replica that restarts, a policy that changes, or a controller that is killed.

use crate::harness::{PATIENCE, TestMesh, load};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

pub(crate) const YAML: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: busy, annotations: {linkerd.io/inject: enabled}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: caller, namespace: busy}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: busy}
spec: {selector: {app: web}, ports: [{port: 8025}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: busy}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: app
        image: "none:1"
        command: [weft, sample, mail, --listen, "0.0.0.0:8025"]
        ports: [{containerPort: 8025}]
        readinessProbe: {tcpSocket: {port: 8025}, periodSeconds: 1}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web, namespace: busy}
spec: {podSelector: {matchLabels: {app: web}}, port: 8025, proxyProtocol: HTTP/1}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: web, namespace: busy}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: web}
  requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: callers}]
---
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {name: callers, namespace: busy}
spec: {identityRefs: [{kind: ServiceAccount, name: caller}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: busy}
spec: {serviceAccountName: caller, containers: [{name: app, image: "none:1", command: [sleep, "3600"]}]}
"#;

#[test]
fn ten_thousand_requests_survive_a_restart_and_policy_changes() {
    let Some(mesh) = TestMesh::up("restarts", YAML) else { return };
    let more = ["--rate", "1000", "--connections", "50", "--requests", "10000", "--strict"];
    let loading = mesh
        .command(&load("busy", "client", "http://web:8025/healthz", &more))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the load");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(disturb(&mesh));
    let output = loading.wait_with_output().expect("the load ends");
    let text = crate::harness::shown(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("10000 ok, 0 failed"), "{text}");
}

/// Deletes one replica, and rewrites the policies meanwhile.
async fn disturb(mesh: &TestMesh) {
    use k8s_openapi::api::core::v1::Pod;
    use kube::{
        Api, Client, Config, ResourceExt,
        api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
        config::{KubeConfigOptions, Kubeconfig},
    };
    let kubeconfig = Kubeconfig::read_from(mesh.state().join("kubeconfig")).expect("the kubeconfig");
    let config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a config");
    let client = Client::try_from(config).expect("a client");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "busy");
    let replicas = pods.list(&ListParams::default().labels("app=web")).await.expect("the replicas");
    pods.delete(&replicas.items[0].name_any(), &DeleteParams::default()).await.expect("the deletion");

    let kind = GroupVersionKind::gvk("policy.linkerd.io", "v1alpha1", "MeshTLSAuthentication");
    let resource = ApiResource::from_gvk_with_plural(&kind, "meshtlsauthentications");
    let authentications: Api<DynamicObject> = Api::namespaced_with(client, "busy", &resource);
    for round in 0..20 {
        // The caller stays allowed; everything else about the policy changes.
        let other = format!("other{round}.busy.serviceaccount.identity.linkerd.cluster.local");
        let patch = serde_json::json!({"spec": {"identities": [other]}});
        authentications
            .patch("callers", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("the change");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

#[test]
fn no_request_fails_while_controllers_and_node_agents_are_killed() {
    let Some(mesh) = TestMesh::up("killed-keepers", YAML) else { return };
    const ISSUER: &str = "/api/v1/namespaces/linkerd/secrets/linkerd-identity-issuer";
    let issuer = mesh.get(ISSUER)["data"].clone();
    assert!(issuer["key.pem"].is_string(), "{issuer}");
    // What the first request would wait for is there: where there is no controller, nobody learns of a new destination.
    let target = "http://web:8025/healthz";
    let first = load("busy", "client", target, &["--requests", "1", "--strict"]);
    mesh.until(&first, |output, _| output.status.success());
    // What takes long is no failure here: the machine may have other work.
    let more = ["--rate", "100", "--connections", "8", "--requests", "2000", "--timeout", "60s", "--strict"];
    let loading = mesh
        .command(&load("busy", "client", target, &more))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the load");
    for round in 0..3 {
        let roles = ["__controller", "__agent"];
        let before = roles.map(|role| kept(&mesh, role, None));
        for process in before {
            kill_process(process, Signal::KILL).expect("kill -9");
        }
        for (role, process) in roles.into_iter().zip(before) {
            let _next = kept(&mesh, role, Some(process));
        }
        until(&format!("controller {round} never answered"), || mesh.ready().is_some());
    }
    let output = loading.wait_with_output().expect("the load ends");
    let text = crate::harness::shown(&output);
    assert!(output.status.success() && text.contains("2000 ok, 0 failed"), "{text}");

    // The new one is the same authority, and admits and certifies new pods.
    assert_eq!(mesh.get(ISSUER)["data"], issuer);
    let late = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "late", "namespace": "busy"},
        "spec": {"serviceAccountName": "caller", "containers": [{"name": "app", "image": "none:1", "command": ["sleep", "3600"]}]}}"#;
    mesh.create("/api/v1/namespaces/busy/pods", late);
    mesh.until(
        &load("busy", "late", "http://web:8025/healthz", &["--requests", "10", "--strict"]),
        |output, text| output.status.success() && text.contains("10 ok, 0 failed"),
    );
}

/// The process that plays a role in the mesh, once it is another than `than`.
pub(crate) fn kept(mesh: &TestMesh, role: &str, than: Option<Pid>) -> Pid {
    let wanted = format!("{role}\0{}\0", mesh.name);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let mut named = pids.filter(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).ends_with(&wanted)
        });
        if let Some(found) = named.find_map(|pid| Pid::from_raw(pid).filter(|pid| Some(*pid) != than)) {
            return found;
        }
        assert!(Instant::now() < deadline, "there is no {role}");
        sleep(Duration::from_millis(50));
    }
}

fn until(what: &str, fine: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !fine() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(100));
    }
}
