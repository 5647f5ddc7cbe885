//! examples/shop, as a user meets it: everything becomes ready, the allowed paths work, the denied one is explained.

use crate::{
    harness::{PATIENCE, TestMesh, load, shown},
    who::Who,
};
use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/shop")
}

#[test]
fn the_shop_works_and_its_failures_are_explained() {
    if let Some(mesh) = TestMesh::up_with("shop", &[&example().display().to_string()], None) {
        shop(&mesh);
    }
}

#[test]
fn the_shop_works_without_root() {
    let files = fs::read_dir(example()).expect("the example").flatten().map(|entry| entry.path());
    let mut manifests: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|kind| kind == "yaml")).collect();
    manifests.sort();
    assert!(!manifests.is_empty());
    // The user may have no way into the folder.
    let texts = manifests.iter().map(|path| fs::read_to_string(path).expect("a manifest"));
    let yaml = texts.collect::<Vec<_>>().join("\n---\n");
    if let Some(mesh) = TestMesh::up_as(Who::Ordinary, "shop-user", &yaml) {
        shop(&mesh);
    }
}

fn shop(mesh: &TestMesh) {
    // The job has filled the store through the mesh, and the whole chain answers.
    mesh.until(&["logs", "job/import"], |output, _| output.status.success());
    let page = mesh.until(
        &load("shop", "deploy/load", "http://web:8080/", &["--requests", "20", "--strict"]),
        |output, _| output.status.success(),
    );
    assert!(page.contains("20 ok, 0 failed"), "{page}");

    // Allowed: seen to work, with both identities.
    let allowed = mesh.until(&["explain", "deploy/web", "svc/catalogue", "-n", "shop"], |output, text| {
        output.status.success() && text.contains("mTLS")
    });
    assert!(allowed.contains("web.shop.serviceaccount"), "{allowed}");

    // Denied on purpose: the policy, the identity presented, and what would allow it.
    let denied = mesh.weft(&["explain", "deploy/snoop", "svc/store", "-n", "shop"]);
    let text = shown(&denied);
    assert_eq!(denied.status.code(), Some(1), "{text}");
    assert!(text.contains("POL-001"), "{text}");
    assert!(text.contains("snoop.shop.serviceaccount.identity.linkerd.cluster.local"), "{text}");
    assert!(text.contains("server/shop/store"), "{text}");
    assert!(text.contains("catalogue.shop.serviceaccount"), "what would be allowed: {text}");

    // The same from a line of the log, as somebody would paste it.
    let store = mesh.until(&["logs", "-n", "shop", "deploy/store", "-c", "linkerd-proxy"], |_, text| {
        text.contains("POL-001")
    });
    let line = store.lines().find(|line| line.contains("POL-001")).expect("a line");
    let pasted = explain_pasted(mesh, line);
    let text = shown(&pasted);
    assert_eq!(pasted.status.code(), Some(1), "{text}");
    for word in ["POL-001", "Both ends are there", "snoop.shop.serviceaccount", "server/shop/store"] {
        assert!(text.contains(word), "{word}: {text}");
    }

    // And when the caller is gone: the journal still knows of it.
    runtime().block_on(async {
        let deployments: kube::Api<k8s_openapi::api::apps::v1::Deployment> =
            kube::Api::namespaced(mesh.client().await, "shop");
        deployments.delete("snoop", &kube::api::DeleteParams::default()).await.expect("snoop goes");
    });
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = shown(&explain_pasted(mesh, line));
        if text.contains("journal kept") && text.contains("POL-001") && text.contains("shop/store-") {
            break;
        }
        assert!(Instant::now() < deadline, "{text}");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }

    // Who talks to whom, as whom.
    mesh.until(&["stat", "-n", "shop", "--window", "2"], |_, text| {
        text.lines()
            .any(|row| ["shop/web", "shop/catalogue", "catalogue.shop"].iter().all(|word| row.contains(word)))
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// `weft explain -` with that on standard input.
fn explain_pasted(mesh: &TestMesh, text: &str) -> std::process::Output {
    let mut explain = mesh.command(&["explain", "-"]);
    explain.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut explain = explain.spawn().expect("weft runs");
    explain.stdin.take().expect("its input").write_all(text.as_bytes()).expect("it reads");
    explain.wait_with_output().expect("it ends")
}

#[test]
fn an_application_that_is_down_is_named() {
    let yaml = r#"
apiVersion: v1
kind: Namespace
metadata: {name: down, annotations: {linkerd.io/inject: enabled}}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: down}
spec: {selector: {app: server}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: down, labels: {app: server}}
spec: {containers: [{name: app, image: "none:1", command: [sleep, "3600"], ports: [{containerPort: 8080}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: down}
spec: {containers: [{name: app, image: "none:1", command: [sleep, "3600"]}]}
"#;
    let Some(mesh) = TestMesh::up("down", yaml) else { return };
    mesh.weft(&load("down", "client", "http://server/", &["--requests", "3"]));
    let text = mesh.until(&["explain", "client", "svc/server", "-n", "down"], |output, text| {
        output.status.code() == Some(1) && text.contains("UPS-010")
    });
    assert!(text.contains(":8080"), "the endpoint: {text}");
    assert!(text.contains("since"), "since when: {text}");
}
