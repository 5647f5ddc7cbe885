//! Pods behave as on Kubernetes: environment, volumes, probes, init containers, logs, exec, names and addresses.

use crate::{
    harness::{TestMesh, load, shown},
    who::Who,
};

const YAML: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: kinds, annotations: {linkerd.io/inject: enabled}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: kinds}
data: {greeting: hello, file.txt: "from a file"}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden, namespace: kinds}
stringData: {password: open-sesame}
---
apiVersion: v1
kind: Service
metadata: {name: peers, namespace: kinds}
spec: {clusterIP: None, selector: {app: server}, ports: [{port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: kinds}
spec: {selector: {app: server}, ports: [{port: 80, targetPort: web}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: kinds, labels: {app: server}}
spec:
  hostname: first
  subdomain: peers
  containers:
  - name: app
    image: "none:1"
    command: [weft, sample, bench-server, --listen, "0.0.0.0:8080"]
    ports: [{name: web, containerPort: 8080}]
    readinessProbe: {httpGet: {path: /, port: web}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: kinds, annotations: {linkerd.io/inject: disabled}}
spec:
  containers: [{name: app, image: "none:1", command: [weft, sample, bench-server, --listen, "0.0.0.0:8080"], ports: [{containerPort: 8080}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: all, namespace: kinds, labels: {app: all}}
spec:
  initContainers:
  - name: first
    image: "none:1"
    command: [sh, -c, "echo prepared > /shared/note"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  containers:
  - name: app
    image: "none:1"
    command: [sh, -c, "echo started $GREETING; echo oops >&2; exec sleep 3600"]
    workingDir: /shared
    env:
    - {name: GREETING, valueFrom: {configMapKeyRef: {name: settings, key: greeting}}}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: hidden, key: password}}}
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: BOTH, value: "$(GREETING) $(POD)"}
    volumeMounts:
    - {name: shared, mountPath: /shared}
    - {name: settings, mountPath: /etc/settings}
    - {name: hidden, mountPath: /etc/hidden, readOnly: true}
    readinessProbe: {exec: {command: [test, -f, /shared/note]}, periodSeconds: 1}
  volumes:
  - {name: shared, emptyDir: {}}
  - {name: settings, configMap: {name: settings}}
  - {name: hidden, secret: {secretName: hidden}}
"#;

#[test]
fn pods_behave_as_on_kubernetes() {
    if let Some(mesh) = TestMesh::up("pods", YAML) {
        behave(&mesh);
    }
}

#[test]
fn pods_behave_as_on_kubernetes_without_root() {
    if let Some(mesh) = TestMesh::up_as(Who::Ordinary, "pods-user", YAML) {
        behave(&mesh);
    }
}

fn behave(mesh: &TestMesh) {
    let sh = |script: &str| mesh.ok(&["exec", "-n", "kinds", "all", "--", "sh", "-c", script]);

    // Environment and volumes.
    assert_eq!(sh("echo $GREETING,$PASSWORD,$POD,$BOTH"), "hello,open-sesame,all,hello all\n");
    assert!(sh("echo $IP").starts_with("10."));
    assert_eq!(
        sh("pwd; cat note /etc/settings/file.txt; cat /etc/hidden/password"),
        "/shared\nprepared\nfrom a fileopen-sesame"
    );
    assert!(sh("ls /var/run/secrets/kubernetes.io/serviceaccount").contains("token"));
    assert!(sh("touch /etc/hidden/x 2>&1 || true").to_lowercase().contains("read-only"));

    // Logs, and the exit code of exec.
    let logs = mesh.ok(&["logs", "-n", "kinds", "all"]);
    assert!(logs.contains("started hello") && logs.contains("oops"), "{logs}");
    assert_eq!(mesh.weft(&["exec", "-n", "kinds", "all", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));

    // Names: short, full, headless, hostname.subdomain; an unknown one fails at once.
    let ip = mesh.ok(&["exec", "-n", "kinds", "server", "--", "sh", "-c", "hostname -i 2>/dev/null || true"]);
    let lookup = |name: &str| mesh.weft(&["exec", "-n", "kinds", "all", "--", "getent", "ahostsv4", name]);
    for name in ["server", "server.kinds", "server.kinds.svc.cluster.local", "peers", "first.peers"] {
        let found = lookup(name);
        assert!(found.status.success(), "{name}: {}", shown(&found));
    }
    let headless = shown(&lookup("first.peers.kinds.svc.cluster.local"));
    if !ip.trim().is_empty() {
        assert!(headless.contains(ip.trim()), "{headless} {ip}");
    }
    assert!(!lookup("nobody.kinds.svc.cluster.local").status.success());

    // Meshed to meshed by service and by name, meshed to plain, plain to meshed.
    let call = |from: &str, url: &str| {
        let output = mesh.weft(&load("kinds", from, url, &["--requests", "5", "--strict"]));
        assert!(output.status.success(), "{from} → {url}: {}", shown(&output));
    };
    let plain_ip = mesh.ok(&[
        "exec",
        "-n",
        "kinds",
        "plain",
        "--",
        "sh",
        "-c",
        "ip -4 -o addr show eth0 | awk '{print $4}' | cut -d/ -f1",
    ]);
    call("all", "http://server/");
    call("all", "http://first.peers:8080/");
    call("all", &format!("http://{}:8080/", plain_ip.trim()));
    call("plain", "http://server/");

    // The host calls a meshed pod by its service's address, if root has made a way there.
    if mesh.user.is_rootless() {
        return;
    }
    let cluster_ip = mesh.ok(&["exec", "-n", "kinds", "all", "--", "getent", "ahostsv4", "server"]);
    let cluster_ip = cluster_ip.split_whitespace().next().expect("an address").to_string();
    let host = std::process::Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["sample", "load", "--target", &format!("http://{cluster_ip}/"), "--requests", "5", "--strict"])
        .output()
        .expect("weft sample");
    assert!(host.status.success(), "from the host: {}", shown(&host));
}
