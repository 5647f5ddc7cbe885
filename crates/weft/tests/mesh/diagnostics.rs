//! What the control plane and the proxies know, asked of themselves by `weft diagnostics`.

use crate::{
    harness::{TestMesh, load, shown},
    restarts,
};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::process::Stdio;

const YAML: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: asked, annotations: {linkerd.io/inject: enabled}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: asked}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: asked}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8025}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: asked}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      serviceAccountName: web
      containers:
      - name: app
        image: "none:1"
        command: [weft, sample, bench-server, --listen, "0.0.0.0:8025"]
        ports: [{containerPort: 8025}]
        readinessProbe: {tcpSocket: {port: 8025}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: asked, labels: {app: client}}
spec: {containers: [{name: app, image: "none:1", command: [sleep, "3600"]}]}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web, namespace: asked}
spec: {podSelector: {matchLabels: {app: web}}, port: 8025, proxyProtocol: HTTP/1}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: web-clients, namespace: asked}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: web}
  requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: web-clients}]
---
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {name: web-clients, namespace: asked}
spec: {identityRefs: [{kind: ServiceAccount, name: default}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [pods, services, configmaps], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: reader}]
"#;

const IDENTITY: &str = "web.asked.serviceaccount.identity.linkerd.cluster.local";

#[test]
fn the_controller_and_the_proxies_are_asked_what_they_know() {
    let Some(mesh) = TestMesh::up("diagnostics", YAML) else { return };
    let pod = endpoints_are_shown(&mesh);
    answers_are_shown_as_they_are(&mesh, &pod);
    metrics_are_printed(&mesh);
    authorizations_are_shown(&mesh);
    log_levels_change_for_a_while(&mesh, pod["pod"].as_str().expect("a name"));
    what_is_missing_is_named(&mesh);
}

fn authorizations_are_shown(mesh: &TestMesh) {
    let table = mesh.ok(&["authz", "-n", "asked", "deploy/web"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..4], ["ROUTE", "SERVER", "AUTHORIZATION_POLICY", "SERVER_AUTHORIZATION"], "{table}");
    let client = "default.asked.serviceaccount.identity.linkerd.cluster.local";
    assert_eq!(rows[1][..6], ["*", "web", "web-clients", "-", "8025", client], "{table}");
    // One that requires what does not exist is not in force, and another Server has come too late.
    mesh.create("/apis/policy.linkerd.io/v1alpha1/namespaces/asked/authorizationpolicies", r#"{
        "apiVersion": "policy.linkerd.io/v1alpha1", "kind": "AuthorizationPolicy", "metadata": {"name": "dangling"},
        "spec": {"targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": "web"}, "requiredAuthenticationRefs": [
            {"group": "policy.linkerd.io", "kind": "MeshTLSAuthentication", "name": "absent"}]}}"#);
    mesh.until(&["authz", "-n", "asked", "deploy/web", "-o", "json"], |shown, text| {
        shown.status.code() == Some(1) && text.contains("authorizationpolicy/asked/dangling is not in force")
    });
}

fn log_levels_change_for_a_while(mesh: &TestMesh, pod: &str) {
    let name = format!("asked/po/{pod}");
    let before = mesh.ok(&["log-level", &name, "--show"]);
    let changed = mesh.ok(&["log-level", &name, "debug", "--for", "10m"]);
    let ends = format!("is debug (back to {} in ", before.trim());
    assert!(changed.contains(&ends), "{changed}");
    // The command is gone, and the proxy keeps the time.
    mesh.ok(&["log-level", &name, "info", "--for", "1s"]);
    mesh.until(&["log-level", &name, "--show"], |_, shown| shown == before);
    let refused = mesh.weft(&["log-level", &name, "=["]);
    assert!(shown(&refused).contains("takes no"), "{}", shown(&refused));
}

/// Allows its pods nothing.
const CUT_OFF: &str = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "cut-off"},
    "spec": {"podSelector": {"matchLabels": {"app": "client"}}, "policyTypes": ["Egress"]}}"#;

/// A proxy that is cut off from the controller keeps what it knows. Where that is out of date, it is found and named.
#[test]
fn a_proxy_that_holds_a_stale_answer_is_named_and_asks_anew() {
    let Some(mesh) = TestMesh::up("stale", YAML) else { return };
    let call = || mesh.weft(&load("asked", "client", "http://web/", &["--requests", "1", "--strict"]));
    assert!(call().status.success(), "{}", shown(&call()));
    let held = mesh.ok(&[
        "diagnostics",
        "discovery",
        "-n",
        "asked",
        "client",
        "--subject",
        "web.asked",
        "-o",
        "json",
    ]);
    let held: Value = serde_json::from_str(&held).expect("JSON");
    let (name, addr) = (&held["answers"][0]["subject"], &held["answers"][0]["endpoints"][0]["addr"]);
    assert_eq!(
        (name, &held["answers"][0]["endpoints"][0]["identity"]),
        (&"web.asked.svc.cluster.local:80".into(), &IDENTITY.into())
    );
    let addr = addr.as_str().expect("an address").to_owned();

    // What is known and right is asked for anew, and stays.
    let renewed = mesh.ok(&["diagnostics", "discovery", "-n", "asked", "client", "--refresh", &addr]);
    assert!(
        renewed.contains("endpoints web.asked.svc.cluster.local:80: asked anew, and as before"),
        "{renewed}"
    );
    let unknown =
        mesh.weft(&["diagnostics", "discovery", "-n", "asked", "client", "--refresh", "10.1.2.3:4"]);
    assert_eq!(unknown.status.code(), Some(1), "{}", shown(&unknown));
    let several = shown(&mesh.weft(&["diagnostics", "discovery", "-n", "asked", "deploy/web"]));
    assert!(several.contains("has several pods: say which of po/web-"), "{several}");

    // Asked for all the time: what nobody asks for is forgotten after five seconds, sooner than a busy machine gets to look. By
    // address, since names are out of reach, too, for whoever is cut off.
    let service = mesh.get("/api/v1/namespaces/asked/services/web");
    let target = format!("http://{}/", service["spec"]["clusterIP"].as_str().expect("an address"));
    let busy = load("asked", "client", &target, &["--rate", "4", "--requests", "100000"]);
    let mut busy = mesh.command(&busy).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the load");

    // Streams end with the controller. Its successor cannot be reached any more, and does not know the pod that goes.
    mesh.create("/apis/networking.k8s.io/v1/namespaces/asked/networkpolicies", CUT_OFF);
    let controller = mesh.get("/api/v1/namespaces/linkerd/pods/weft-controller");
    let page = format!("http://{}:9990/live", controller["status"]["podIP"].as_str().expect("an address"));
    let past_the_proxy =
        ["exec", "-n", "asked", "client", "-c", "linkerd-proxy", "--", "weft", "sample", "load"];
    let once = ["--target", &page, "--requests", "1", "--strict"];
    mesh.until(&[&past_the_proxy[..], &once].concat(), |asked, _| !asked.status.success());
    kill_process(restarts::kept(&mesh, "__controller", None), Signal::KILL).expect("kill -9");
    mesh.delete(&format!("/api/v1/namespaces/asked/pods/{}", pod_at(&mesh, &addr)));
    let told = mesh.until(&["diagnostics", "endpoints", "web.asked:80"], |asked, _| {
        shown(asked).contains(&format!("asked/client still holds {addr} ({IDENTITY})"))
    });
    assert!(!told.contains(&format!(" {} ", addr.split_once(':').unwrap().0)), "{told}");

    mesh.delete("/apis/networking.k8s.io/v1/namespaces/asked/networkpolicies/cut-off");
    mesh.until(&["diagnostics", "endpoints", "web.asked:80"], |asked, _| asked.status.success());
    busy.kill().and_then(|()| busy.wait()).expect("the load ends");
}

fn pod_at(mesh: &TestMesh, addr: &str) -> String {
    let pods = mesh.get("/api/v1/namespaces/asked/pods");
    let mut pods = pods["items"].as_array().expect("a list").iter();
    let ip = addr.split_once(':').expect("a port").0;
    let pod = pods.find(|pod| pod["status"]["podIP"] == ip).expect("a pod");
    pod["metadata"]["name"].as_str().expect("a name").to_owned()
}

/// The address of one of them.
fn endpoints_are_shown(mesh: &TestMesh) -> Value {
    let json = mesh.ok(&["diagnostics", "endpoints", "web.asked:80", "-o", "json"]);
    let rows: Vec<Value> = serde_json::from_str(&json).expect("JSON");
    assert_eq!(rows.len(), 2, "{json}");
    for row in &rows {
        assert_eq!(
            (&row["namespace"], &row["service"], &row["port"]),
            (&"asked".into(), &"web.asked".into(), &8025.into())
        );
        assert_eq!((&row["identity"], &row["state"]), (&IDENTITY.into(), &"meshed".into()));
        assert_eq!(row["replicas"], serde_json::json!(["linkerd/weft-controller"]));
        assert!(
            row["ageSeconds"].is_u64() && row["pod"].as_str().is_some_and(|pod| pod.starts_with("web-")),
            "{row}"
        );
    }
    let table = mesh.ok(&["dg", "endpoints", "web.asked.svc.cluster.local:80"]);
    assert!(table.starts_with("NAMESPACE  IP") && table.contains(" web.asked "), "{table}");
    rows[0].clone()
}

fn answers_are_shown_as_they_are(mesh: &TestMesh, row: &Value) {
    let addr = format!("{}:8025", row["ip"].as_str().expect("an address"));
    let profile: Value = serde_json::from_str(&mesh.ok(&["diagnostics", "profile", &addr])).expect("JSON");
    let strategy = &profile["endpoint"]["tls_identity"]["strategy"];
    assert_eq!(strategy["DnsLikeIdentity"]["name"], IDENTITY, "{profile}");

    let pod = format!("asked/po/{}", row["pod"].as_str().expect("a name"));
    let inbound = mesh.ok(&["diagnostics", "policy", &pod, "8025"]);
    assert!(inbound.contains("name: web") && inbound.contains("Http1:"), "{inbound}");
    let outbound: Value =
        serde_json::from_str(&mesh.ok(&["diagnostics", "policy", "asked/svc/web", "80", "-o", "json"]))
            .expect("JSON");
    assert_eq!(outbound["metadata"]["kind"]["Resource"]["name"], "web", "{outbound}");
}

fn metrics_are_printed(mesh: &TestMesh) {
    let pages = mesh.ok(&["diagnostics", "proxy-metrics", "-n", "asked", "deploy/web"]);
    assert!(pages.contains("(1 of 2)") && pages.contains("(2 of 2)"), "{pages}");
    assert!(pages.contains("process_start_time_seconds"), "{pages}");
    let hidden = mesh.ok(&["diagnostics", "proxy-metrics", "-n", "asked", "deploy/web", "--obfuscate"]);
    let lines = hidden.lines().filter(|line| !line.starts_with('#'));
    assert!(!lines.clone().any(|line| line.contains("asked")) && lines.count() > 10, "{hidden}");
    let controller = mesh.ok(&["diagnostics", "controller-metrics"]);
    assert!(controller.contains("POD weft-controller (1 of 1), container controller"), "{controller}");
}

fn what_is_missing_is_named(mesh: &TestMesh) {
    let asked = mesh.weft(&["diagnostics", "endpoints", "absent.asked:80"]);
    assert!(shown(&asked).contains("No endpoints found"), "{}", shown(&asked));
    let forbidden = mesh.weft(&["diagnostics", "endpoints", "web.asked:80", "--as", "reader"]);
    let text = shown(&forbidden);
    assert_eq!(forbidden.status.code(), Some(2), "{text}");
    assert!(text.contains("create pods/portforward in namespace linkerd"), "{text}");
    let address = mesh.weft(&["diagnostics", "endpoints", "10.0.0.1:80"]);
    assert!(shown(&address).contains("weft diagnostics profile 10.0.0.1:80"), "{}", shown(&address));
    let neither = mesh.weft(&["diagnostics", "policy", "-n", "asked", "deploy/web", "8025"]);
    assert!(shown(&neither).contains("neither po/NAME nor svc/NAME"), "{}", shown(&neither));
}
