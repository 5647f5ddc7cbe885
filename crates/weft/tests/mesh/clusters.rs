//! Two meshes on one machine whose pods reach each other, as docs/clusters.md has it.

use crate::{
    harness::{TestMesh, shown},
    who::Who,
};
use std::process::Output;

const YAML: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {linkerd.io/inject: enabled}}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: shop}
spec: {containers: [{name: app, image: "none:1", command: [weft, sample, bench-server, --listen, "0.0.0.0:8080"], ports: [{containerPort: 8080}]}]}
"#;

/// The second mesh, which ends with the test.
struct Second<'m> {
    first: &'m TestMesh,
    name: String,
}

impl Second<'_> {
    /// By the flag's older name.
    fn weft(&self, args: &[&str]) -> Output {
        let split = args.iter().position(|a| *a == "--").unwrap_or(args.len());
        let mut command = self.first.user.command(None);
        command.args(&args[..split]).args(["--mesh", &self.name]).args(&args[split..]);
        command.output().expect("weft runs")
    }
}

impl Drop for Second<'_> {
    fn drop(&mut self) {
        self.weft(&["down"]);
    }
}

#[test]
fn meshed_pods_of_peers_reach_each_other() {
    let Some(mut first) = TestMesh::prepare(Who::Tester, "peers") else { return };
    if first.user.is_rootless() {
        eprintln!("SKIPPED: peers: routes between meshes need root");
        return;
    }
    let file = first.file("mesh.yaml", YAML);
    let second_name = format!("{}-b", first.name);
    let itself = first.weft(&["up", "--peer", &first.name.clone(), &file]);
    assert!(!itself.status.success() && shown(&itself).contains("this mesh itself"), "{}", shown(&itself));
    let narrow = first.weft(&["up", "--pod-cidr", "10.9.0.0/20", &file]);
    assert!(!narrow.status.success() && shown(&narrow).contains("CFG-005"), "{}", shown(&narrow));

    let first = first.start(&["--peer", &second_name, "--pod-cidr", "172.31.0.0/16", &file]);
    let second = Second { first: &first, name: second_name };
    let up = second.weft(&["up", "--detach", &file]);
    assert!(up.status.success(), "{}", shown(&up));
    let server = first.get("/api/v1/namespaces/shop/pods/server")["status"]["podIP"].clone();
    let server = server.as_str().expect("an address");
    assert!(server.starts_with("172.31."), "{server}");

    // From the second to the first, through both proxies.
    let target = format!("http://{server}:8080/");
    let load = [
        "exec",
        "-n",
        "shop",
        "server",
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
    let deadline = std::time::Instant::now() + crate::harness::PATIENCE;
    loop {
        let reached = second.weft(&load);
        if reached.status.success() {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{}", shown(&reached));
    }
}
