//! A machine outside the cluster joins the mesh: `weft external-workload`, `weft proxy-init` and `weft proxy`, as docs/vm.md has it.
//!
//! The machine is a pod that nobody injects: processes in a network namespace of their own, which know the cluster's names.

use crate::harness::TestMesh;
use serde_json::{Value, json};
use std::process::{Child, Stdio};
use weft_kube::api;

const YAML: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: fleet, annotations: {linkerd.io/inject: enabled}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: vm, namespace: fleet}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: client, namespace: fleet}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: fleet}
spec: {selector: {app: server}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: machine, namespace: fleet}
spec: {selector: {app: machine}, ports: [{port: 80, targetPort: web}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: fleet, labels: {app: server}}
spec: {containers: [{name: app, image: "none:1", command: [weft, sample, bench-server, --listen, "0.0.0.0:8080"], ports: [{containerPort: 8080}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: fleet}
spec: {serviceAccountName: client, containers: [{name: app, image: "none:1", command: [sleep, "3600"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, namespace: fleet}
spec: {containers: [{name: app, image: "none:1", command: [sleep, "3600"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: vm, namespace: fleet, annotations: {linkerd.io/inject: disabled}}
spec:
  containers:
  - name: app
    # Only what runs weft itself may set up a redirect.
    image: "weft.dev/weft:machine"
    command: [weft, sample, bench-server, --listen, "0.0.0.0:9000"]
    ports: [{containerPort: 9000}]
    securityContext: {capabilities: {add: [NET_ADMIN, NET_RAW]}}
    volumeMounts: [{name: files, mountPath: /etc/weft-vm}]
  volumes: [{name: files, emptyDir: {}}]
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: machine, namespace: fleet}
spec: {externalWorkloadSelector: {matchLabels: {app: machine}}, port: web}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: machine, namespace: fleet}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: machine}
  requiredAuthenticationRefs: [{kind: ServiceAccount, name: client}]
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: server, namespace: fleet}
spec: {podSelector: {matchLabels: {app: server}}, port: 8080}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: server, namespace: fleet}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: server}
  requiredAuthenticationRefs: [{kind: ServiceAccount, name: vm}]
"#;

fn workload(ip: &Value) -> Value {
    json!({"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
        "metadata": {"name": "vm", "namespace": "fleet", "labels": {"app": "machine"}},
        "spec": {"meshTLS": {"identity": "vm.fleet.serviceaccount.identity.linkerd.cluster.local",
                "serverName": "vm.fleet.serviceaccount.identity.linkerd.cluster.local"},
            "ports": [{"name": "web", "port": 9000}], "workloadIPs": [{"ip": ip}]}})
}

/// Ends with the mesh at the latest.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn load(mesh: &TestMesh, from: &str, to: &str) {
    let target = format!("http://{to}/");
    let command = [
        "exec",
        "-n",
        "fleet",
        from,
        "--",
        "weft",
        "sample",
        "load",
        "--target",
        &target,
        "--requests",
        "5",
        "--strict",
    ];
    mesh.until(&command, |output, _| output.status.success());
}

#[test]
fn a_machine_joins_by_a_token_and_is_held_to_policy() {
    let Some(mesh) = TestMesh::up("machine", YAML) else { return };
    let collection = "/apis/workload.linkerd.io/v1beta1/namespaces/fleet/externalworkloads";
    let ip = mesh.get("/api/v1/namespaces/fleet/pods/vm")["status"]["podIP"].clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = mesh.client().await;
        api::create(&client, collection, &workload(&ip)).await.expect("an ExternalWorkload");
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Up",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        api::merge(&client, &format!("{collection}/vm/status"), &ready).await.expect("its status");
    });

    // As an operator does it: the settings, the token, the redirect, the proxy.
    let env = mesh.ok(&["external-workload", "env", "vm", "-n", "fleet", "--dir", "/etc/weft-vm"]);
    let token = mesh.ok(&["external-workload", "token", "vm", "-n", "fleet"]);
    let redirect =
        env.lines().find_map(|line| line.strip_prefix("# First, as root: ")).expect("the redirect");
    // Without root there is no other user; the mark in its environment tells the proxy's connections apart.
    let own_user = match mesh.user.is_rootless() {
        true => "exec",
        false => "exec setpriv --reuid 2102 --regid 2102 --clear-groups",
    };
    let script = format!(
        "set -e\n{redirect}\nprintf '%s\\n' '{}' > /etc/weft-vm/token\nset -a\n{env}\nset +a\n\
         {own_user} weft proxy",
        token.trim()
    );
    let mut command = mesh.command(&["exec", "-n", "fleet", "vm", "--", "sh", "-c", &script]);
    let _proxy = Proxy(command.stdout(Stdio::null()).spawn().expect("weft runs"));

    // Both ways by name, each let in by the identity that the other proved.
    load(&mesh, "vm", "server");
    load(&mesh, "client", "machine");

    // Whoever is meshed and not allowed is refused, by the machine's own proxy.
    let call = [
        "exec",
        "-n",
        "fleet",
        "stranger",
        "--",
        "weft",
        "sample",
        "load",
        "--target",
        "http://machine/",
        "--requests",
        "3",
    ];
    let said = mesh.until(&call, |_, text| text.contains("403"));
    assert!(said.contains("0 ok, 3 failed"), "{said}");
}
