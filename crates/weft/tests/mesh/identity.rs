//! Certificates come from the trust anchors and the issuer that the user gave.

use crate::harness::TestMesh;
use std::{fs, time::Duration};
use weft_tls::authority::Ca;

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: meshed, namespace: default, annotations: {linkerd.io/inject: enabled}}
spec: {containers: [{name: app, image: "none:1", command: [sleep, "3600"]}]}
"#;

#[test]
fn a_given_issuer_signs_for_the_proxies() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let root = Ca::root("root.example", DAY).expect("a root");
    let issuer = root.issuer("issuer.example", DAY).expect("an issuer");
    fs::write(at("pod.yaml"), POD).expect("the manifest");
    fs::write(at("ca.pem"), root.certificate_pem()).expect("the anchor");
    fs::write(at("issuer.pem"), issuer.certificate_pem() + &issuer.key_pem()).expect("the issuer");

    let args = [at("pod.yaml"), "--trust-anchor".into(), at("ca.pem"), "--issuer".into(), at("issuer.pem")];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some(mesh) = TestMesh::up_with("identity", &args, None) else { return };

    // The pod is ready, so its proxy got a certificate and verified it against the anchors it was given: these.
    let roots = mesh.get("/api/v1/namespaces/linkerd/configmaps/linkerd-identity-trust-roots");
    assert_eq!(roots["data"]["ca-bundle.crt"].as_str().map(str::trim), Some(root.certificate_pem().trim()));
    let pod = mesh.get("/api/v1/namespaces/default/pods/meshed");
    let proxy =
        pod["spec"]["initContainers"].as_array().into_iter().flatten().find(|c| c["name"] == "linkerd-proxy");
    let env = proxy.expect("a proxy")["env"].to_string();
    let line = root.certificate_pem().lines().nth(1).expect("base64").to_string();
    assert!(env.contains(&line) || env.contains("linkerd-identity-trust-roots"), "{env}");
    let logs = mesh.ok(&["logs", "meshed", "-c", "linkerd-proxy", "-n", "default"]);
    assert!(!logs.contains("IDN-"), "{logs}");
}

#[test]
fn half_an_identity_is_refused() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["up", "--issuer", "issuer.pem", "pod.yaml"])
        .output()
        .expect("weft runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--trust-anchor"));
}
