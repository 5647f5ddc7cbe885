//! `weft check` finds nothing in a mesh in which nothing is wrong, and names what is.

use crate::{
    harness::{TestMesh, load, shown},
    rotation::proxy_of,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use std::time::Duration;
use weft_kube::api;
use weft_tls::authority::Ca;

const YAML: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: checked, annotations: {linkerd.io/inject: enabled}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: checked}
---
apiVersion: v1
kind: Service
metadata: {name: store, namespace: checked}
spec: {selector: {app: store}, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: kv, namespace: checked, annotations: {config.linkerd.io/opaque-ports: "9000"}}
spec: {selector: {app: kv}, ports: [{name: kv, port: 9000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: store, namespace: checked, labels: {app: store}}
spec:
  containers:
  - name: app
    image: "none:1"
    command: [weft, sample, bench-server, --listen, "0.0.0.0:8080"]
    ports: [{name: http, containerPort: 8080}]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: kv, namespace: checked, labels: {app: kv}, annotations: {config.linkerd.io/opaque-ports: "9000"}}
spec:
  containers:
  - name: app
    image: "none:1"
    command: [weft, sample, bench-server, --listen, "0.0.0.0:9000"]
    ports: [{name: kv, containerPort: 9000}]
    readinessProbe: {tcpSocket: {port: 9000}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: checked}
spec: {serviceAccountName: web, containers: [{name: app, image: "none:1", command: [sleep, "3600"]}]}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: store, namespace: checked}
spec: {podSelector: {matchLabels: {app: store}}, port: http}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: store, namespace: checked}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: store}
  requiredAuthenticationRefs: [{kind: ServiceAccount, name: web}]
"#;

/// Depends on how busy this machine is.
const OF_THE_MACHINE: [&str; 1] = ["no proxy stood still in the last minutes"];
/// What `weft check` does not look up.
const NEWEST: [&str; 4] = [
    "can determine the latest version",
    "cli is up-to-date",
    "control plane is up-to-date",
    "data plane is up-to-date",
];

/// Description, result and text of whatever is not good.
fn findings(json: &str) -> Vec<(String, String, String)> {
    let results: Value = serde_json::from_str(json).expect("JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let sections = results["categories"].as_array().expect("categories");
    let checks = sections.iter().flat_map(|section| section["checks"].as_array().expect("checks"));
    checks
        .filter(|check| check["result"] != "success")
        .map(|check| (text(&check["description"]), text(&check["result"]), text(&check["error"])))
        .filter(|(says, ..)| !OF_THE_MACHINE.contains(&says.as_str()) && !NEWEST.contains(&says.as_str()))
        .collect()
}

/// `weft check` until it finds this.
fn finds(mesh: &TestMesh, says: &str, result: &str, texts: &[&str]) {
    mesh.until(&["check", "-o", "json", "--wait", "0s"], |output, json| {
        let found = findings(json).into_iter().find(|finding| finding.0 == says);
        found.is_some_and(|(_, how, text)| {
            let exits = result != "error" || output.status.code() == Some(1);
            how == result && exits && texts.iter().all(|part| text.contains(part))
        })
    });
}

#[test]
fn a_healthy_mesh_is_all_green_and_what_is_broken_is_named() {
    let Some(mesh) = TestMesh::up("check", YAML) else { return };
    for url in ["http://store/", "http://kv:9000/"] {
        let more = ["--requests", "5", "--strict"];
        mesh.until(&load("checked", "web", url, &more), |output, _| output.status.success());
    }

    // 1. Nothing is wrong, nothing is unknown but what is newest.
    let scopes: [&[&str]; 2] = [&[], &["--proxy", "-n", "checked"]];
    for scope in scopes {
        let arguments = [&["check", "-o", "json", "--wait", "0s"], scope].concat();
        let said = mesh.until(&arguments, |_, json| findings(json).is_empty());
        let results: Value = serde_json::from_str(&said).expect("JSON");
        let sections = results["categories"].as_array().expect("categories");
        for wanted in
            ["linkerd-identity", "weft-certificates", "weft-clock", "weft-discovery", "weft-network-policy"]
        {
            assert!(sections.iter().any(|section| section["categoryName"] == wanted), "{wanted}: {said}");
        }
    }
    let table = mesh.ok(&["check", "--wait", "0s"]);
    for line in [
        "√ every proxy answers",
        "√ no port is selected by several Servers",
        "? cli is up-to-date",
        "Status check results are √",
    ] {
        assert!(table.contains(line), "{table}");
    }
    assert!(!table.contains('\x1b') && !table.contains('×'), "{table}");
    let explained = mesh.ok(&["explain", "weft-leaf-valid"]);
    assert!(explained.contains("remedy"), "{explained}");

    // 2. Two Servers for one port: the older one decides.
    let server = json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
        "metadata": {"name": "late", "namespace": "checked"},
        "spec": {"podSelector": {"matchLabels": {"app": "store"}}, "port": 8080, "accessPolicy": "all-unauthenticated"}});
    mesh.create("/apis/policy.linkerd.io/v1beta3/namespaces/checked/servers", &server.to_string());
    let overlap = ["Server checked/store decides", "Server checked/late does not"];
    finds(&mesh, "no port is selected by several Servers", "warning", &overlap);

    // 3. A NetworkPolicy permits the application's port, and traffic goes to the proxy's.
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "only-kv", "namespace": "checked"},
        "spec": {"podSelector": {"matchLabels": {"app": "kv"}}, "ingress": [{"ports": [{"port": 9000}]}]}});
    mesh.create("/apis/networking.k8s.io/v1/namespaces/checked/networkpolicies", &policy.to_string());
    let blocked = ["checked/web → checked/kv: port 9000 is permitted, 4143 is not", "checked/only-kv"];
    finds(&mesh, "NetworkPolicies that permit opaque ports permit the proxies' port", "error", &blocked);

    // 4. A proxy that is stopped.
    let proxy = proxy_of("store");
    kill_process(proxy, Signal::STOP).expect("the proxy stops");
    finds(&mesh, "every proxy answers", "warning", &["checked/store: "]);
    kill_process(proxy, Signal::CONT).expect("the proxy goes on");

    // 5. An issuer that leads to no root that anybody trusts.
    let hour = Duration::from_secs(3_600);
    let foreign = Ca::root("foreign", hour).and_then(|root| root.issuer("issuer", hour)).expect("an issuer");
    let encoded = |text: String| STANDARD.encode(text);
    let patch = json!({"data": {"crt.pem": encoded(foreign.certificate_pem()), "key.pem": encoded(foreign.key_pem())}});
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = mesh.client().await;
        let path = "/api/v1/namespaces/linkerd/secrets/linkerd-identity-issuer";
        api::merge(&client, path, &patch).await.expect("the issuer is replaced");
    });
    finds(&mesh, "issuer cert is issued by the trust anchor", "error", &["CN=issuer"]);
}

#[test]
fn without_a_mesh_the_first_check_says_so() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["check", "--name", "there-is-no-such-mesh", "--wait", "0s"])
        .output()
        .expect("weft runs");
    let text = shown(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("× can initialize the client") && text.contains("docs/checks.md#k8s-api"),
        "{text}"
    );
    assert!(!text.contains("can query"), "{text}");
}
