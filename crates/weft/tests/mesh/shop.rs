//! examples/shop, as a user meets it: everything becomes ready, the allowed paths work, the denied one is explained.

use crate::{
    harness::{TestMesh, load, shown},
    who::Who,
};
use std::{
    fs,
    path::{Path, PathBuf},
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

    // Who talks to whom, as whom.
    mesh.until(&["stat", "-n", "shop", "--window", "2"], |_, text| {
        text.lines()
            .any(|row| ["shop/web", "shop/catalogue", "catalogue.shop"].iter().all(|word| row.contains(word)))
    });
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
