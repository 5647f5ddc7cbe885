//! Who may read the proxies' admin port: by default everybody, also where the default is to deny; with a Server, whom it lets.

use crate::{
    harness::{TestMesh, load, shown},
    who::Who,
};

const YAML: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: guarded, annotations: {linkerd.io/inject: enabled, config.linkerd.io/default-inbound-policy: deny}}
---
apiVersion: v1
kind: Pod
metadata: {name: open, namespace: guarded}
spec: {containers: [{name: app, image: "none:1", command: [sleep, "3600"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: closed, namespace: guarded, labels: {app: closed}}
spec: {containers: [{name: app, image: "none:1", command: [sleep, "3600"]}]}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: admin, namespace: guarded}
spec: {podSelector: {matchLabels: {app: closed}}, port: linkerd-admin, proxyProtocol: HTTP/1}
"#;

#[test]
fn a_server_closes_the_admin_port_and_a_default_does_not() {
    if let Some(mesh) = TestMesh::up("admin", YAML) {
        read_admin_ports(&mesh);
    }
}

#[test]
fn a_server_closes_the_admin_port_and_a_default_does_not_without_root() {
    if let Some(mesh) = TestMesh::up_as(Who::Ordinary, "admin-user", YAML) {
        read_admin_ports(&mesh);
    }
}

/// Both pods have become ready: their proxies' probes pass.
fn read_admin_ports(mesh: &TestMesh) {
    let ask = |from: &str, to: &str| {
        let pod = mesh.get(&format!("/api/v1/namespaces/guarded/pods/{to}"));
        let url = format!("http://{}:4191/metrics", pod["status"]["podIP"].as_str().expect("an address"));
        mesh.weft(&load("guarded", from, &url, &["--requests", "1", "--strict"]))
    };
    let open = ask("closed", "open");
    assert!(open.status.success(), "{}", shown(&open));
    let closed = ask("open", "closed");
    assert!(shown(&closed).contains("403 POL-001"), "{}", shown(&closed));
    // The command line comes without an identity. It shows what others know of the pod, and says that it could not ask it.
    mesh.until(&["stat", "-n", "guarded"], |stat, _| {
        let text = shown(stat);
        stat.status.success()
            && text.contains("guarded/open  guarded/closed")
            && text.contains("forbid it: guarded/closed\n")
    });
}
