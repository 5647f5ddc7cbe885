use crate::harness::{Cluster, documents, named, shown};
use serde_json::json;

#[test]
fn a_control_plane_is_installed_upgraded_and_removed() {
    let cluster = Cluster::start();
    if !cluster.apply(&cluster.ok(&["install", "--crds"])) {
        return;
    }
    // No controller runs here: only who opted in is refused.
    let first = cluster.ok(&["install", "--ha", "--set", "proxy.logLevel=debug"]);
    cluster.apply(&first);
    let deployment = cluster.get(&["-n", &cluster.control, "deploy/weft-controller"]);
    assert_eq!(deployment["spec"]["replicas"], 3);
    assert_eq!(cluster.get(&["-n", &cluster.control, "pdb/weft-controller"])["spec"]["maxUnavailable"], 1);

    // A second installation is told what to use instead.
    let again = cluster.weft(&["install"], "");
    assert_eq!(again.status.code(), Some(1), "{}", shown(&again));
    assert!(shown(&again).contains("CFG-008") && shown(&again).contains("weft upgrade"), "{}", shown(&again));

    // An upgrade keeps settings and identity.
    let second = cluster.ok(&["upgrade", "--set", "controllerReplicas=2"]);
    let (before, after) = (documents(&first), documents(&second));
    for (kind, name) in [("Secret", "linkerd-identity-issuer"), ("ConfigMap", "linkerd-identity-trust-roots")]
    {
        assert_eq!(named(&before, kind, name), named(&after, kind, name));
    }
    assert_eq!(named(&after, "Deployment", "weft-controller")["spec"]["replicas"], 2);
    let config = named(&after, "ConfigMap", "linkerd-config")["data"]["values"].as_str().unwrap();
    assert!(config.contains("logLevel: debug") && !config.contains("PRIVATE KEY"), "{config}");
    cluster.apply(&second);
    // The same without a cluster, from what was printed.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &second).unwrap();
    assert_eq!(cluster.ok(&["upgrade", "--from-manifests", &file.path().display().to_string()]), second);
    assert_eq!(cluster.ok(&["prune"]), "");

    let left = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "old", "namespace": cluster.control,
        "labels": {"linkerd.io/control-plane-ns": cluster.control}}});
    cluster.apply(&left.to_string());
    let pruned = documents(&cluster.ok(&["prune"]));
    assert_eq!(pruned.len(), 1);
    named(&pruned, "ConfigMap", "old");

    let versions = cluster.ok(&["version"]);
    assert!(versions.contains(&format!("Server version: {}", env!("CARGO_PKG_VERSION"))), "{versions}");

    // Pods of the mesh hold the removal up.
    cluster.apply(
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "meshed", "namespace": cluster.apps,
            "labels": {"linkerd.io/control-plane-ns": cluster.control}},
            "spec": {"containers": [{"name": "a", "image": "a"}]}})
        .to_string(),
    );
    let held = cluster.weft(&["uninstall"], "");
    assert_eq!(held.status.code(), Some(1), "{}", shown(&held));
    let named = format!("{}/meshed", cluster.apps);
    assert!(shown(&held).contains("CFG-011") && shown(&held).contains(&named), "{}", shown(&held));
    let removed = cluster.ok(&["uninstall", "--force"]);
    let kinds: Vec<_> = documents(&removed).iter().map(|d| d["kind"].as_str().unwrap().to_owned()).collect();
    assert!(!kinds.iter().any(|k| k == "Namespace" || k == "CustomResourceDefinition"), "{kinds:?}");
    let deleted = cluster.kubectl(&["delete", "-f", "-"], &removed).unwrap();
    assert!(deleted.status.success(), "{}", shown(&deleted));
    let nothing = cluster.weft(&["uninstall"], "");
    assert_eq!(nothing.status.code(), Some(1), "{}", shown(&nothing));
    assert!(
        shown(&nothing).contains("CFG-010") && shown(&nothing).contains("install"),
        "{}",
        shown(&nothing)
    );
    cluster.get(&["ns", &cluster.control]);
}

#[test]
fn another_control_plane_is_recognised_and_taken_over() {
    let cluster = Cluster::start();
    let issuer = documents(&cluster.ok(&["install", "--ignore-cluster"]));
    let secret = named(&issuer, "Secret", "linkerd-identity-issuer");
    let roots = named(&issuer, "ConfigMap", "linkerd-identity-trust-roots");
    let overrides = "clusterDomain: east.local\nproxy:\n  image:\n    name: cr.l5d.io/linkerd/proxy\n  logLevel: trace\nnew: {a: 1}\n";
    let object = |kind: &str, name: &str| {
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": cluster.control,
            "labels": {"linkerd.io/control-plane-ns": cluster.control}}})
    };
    let mut config = object("ConfigMap", "linkerd-config");
    config["data"] = json!({"values": "clusterDomain: east.local\n"});
    let mut stored = object("Secret", "linkerd-config-overrides");
    stored["stringData"] = json!({"linkerd-config-overrides": overrides});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "linkerd-destination", "namespace": cluster.control,
            "labels": {"linkerd.io/control-plane-ns": cluster.control}},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "x", "image": "x"}]}}}});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": cluster.control}});
    let all = json!({"apiVersion": "v1", "kind": "List",
        "items": [namespace, secret, roots, config, stored, deployment]});
    if !cluster.apply(&all.to_string()) {
        return;
    }
    let stopped = cluster.weft(&["install"], "");
    assert_eq!(stopped.status.code(), Some(1), "{}", shown(&stopped));
    assert!(
        ["CFG-009", "--replace", "linkerd-destination"].iter().all(|text| shown(&stopped).contains(text)),
        "{}",
        shown(&stopped)
    );

    let replaced = cluster.weft(&["install", "--replace"], "");
    assert!(replaced.status.success(), "{}", shown(&replaced));
    let told = String::from_utf8_lossy(&replaced.stderr);
    assert!(
        told.contains(&format!("kubectl -n {} delete deploy linkerd-destination", cluster.control)),
        "{told}"
    );
    assert!(told.contains("new: no such value"), "{told}");
    let printed = documents(&String::from_utf8_lossy(&replaced.stdout));
    assert_eq!(named(&printed, "Secret", "linkerd-identity-issuer")["data"], secret["data"]);
    let values = named(&printed, "ConfigMap", "linkerd-config")["data"]["values"].as_str().unwrap();
    assert!(values.contains("clusterDomain: east.local") && values.contains("logLevel: trace"), "{values}");
    assert!(values.contains("weft.dev/weft-proxy") && !values.contains("cr.l5d.io"), "{values}");
    cluster.apply(&String::from_utf8_lossy(&replaced.stdout));
    let pruned = documents(&cluster.ok(&["prune"]));
    assert_eq!(pruned.len(), 1, "{pruned:?}");
    named(&pruned, "Deployment", "linkerd-destination");
}

#[test]
fn mistakes_end_with_two_and_name_the_value() {
    let cluster = Cluster::start();
    let said = |args: &[&str]| {
        let output = cluster.weft(&[&["install", "--ignore-cluster"], args].concat(), "");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", shown(&output));
        assert!(output.stdout.is_empty(), "{args:?}: {}", shown(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let unknown = said(&["--set", "proxy.loglevel=x,controllerReplicas=many"]);
    assert!(unknown.contains("proxy.logLevel") && unknown.contains("controllerReplicas"), "{unknown}");
    assert!(said(&["--set", "a"]).contains("no = after it"));
    assert!(said(&["-f", "/no/such/file"]).contains("/no/such/file"));
    assert!(said(&["--identity-trust-anchors-file", "/no/such/file"]).contains("/no/such/file"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a: [").unwrap();
    assert!(said(&["-f", &file.path().display().to_string()]).contains(&file.path().display().to_string()));
    // An anchor alone: the issuer is missing, not made up.
    std::fs::write(file.path(), "x").unwrap();
    assert!(said(&["--identity-trust-anchors-file", &file.path().display().to_string()]).contains("issuer"));
}

#[test]
fn an_issuer_that_running_pods_do_not_trust_is_refused() {
    let cluster = Cluster::start();
    if !cluster.apply(&cluster.ok(&["install", "--crds"])) {
        return;
    }
    let installed = cluster.ok(&["install"]);
    cluster.apply(&installed);
    let roots =
        named(&documents(&installed), "ConfigMap", "linkerd-identity-trust-roots")["data"]["ca-bundle.crt"]
            .clone();
    cluster.apply(
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "meshed", "namespace": cluster.apps,
            "labels": {"linkerd.io/control-plane-ns": cluster.control}}, "spec": {"containers": [{"name": "a", "image": "a",
            "env": [{"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": roots}]}]}})
        .to_string(),
    );
    let other = documents(&cluster.ok(&["install", "--ignore-cluster"]));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let secret = named(&other, "Secret", "linkerd-identity-issuer");
    let decoded = |key: &str| {
        String::from_utf8(STANDARD.decode(secret["data"][key].as_str().unwrap()).unwrap()).unwrap()
    };
    let (crt, key) = (write("crt", &decoded("crt.pem")), write("key", &decoded("key.pem")));
    let new_roots =
        named(&other, "ConfigMap", "linkerd-identity-trust-roots")["data"]["ca-bundle.crt"].clone();
    let ca = write("ca", new_roots.as_str().unwrap());
    let args = [
        "upgrade",
        "--identity-trust-anchors-file",
        &ca,
        "--identity-issuer-certificate-file",
        &crt,
        "--identity-issuer-key-file",
        &key,
    ];
    let refused = cluster.weft(&args, "");
    assert_eq!(refused.status.code(), Some(1), "{}", shown(&refused));
    assert!(shown(&refused).contains(&format!("{}/meshed", cluster.apps)), "{}", shown(&refused));
    let forced = cluster.weft(&[&args[..], &["--force"]].concat(), "");
    assert!(forced.status.success(), "{}", shown(&forced));
}

#[test]
fn completion_covers_every_command() {
    let cluster = Cluster::start();
    for shell in ["bash", "zsh", "fish"] {
        let script = cluster.ok(&["completion", shell]);
        assert!(script.contains("uninject") && script.contains("linkerd-namespace"), "{shell}");
    }
}
