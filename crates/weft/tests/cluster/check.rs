//! `weft check` on a cluster: before an installation, with a control plane that does not run, and for somebody who may not ask much.

use crate::harness::{Cluster, create, documents, shown};
use serde_json::Value;
use std::process::{Command, Output};

/// Each check's result and text, by category and description.
fn results(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", shown(output)))
}

fn of<'r>(results: &'r Value, category: &str) -> Vec<&'r Value> {
    let sections = results["categories"].as_array().expect("categories");
    let own = sections.iter().filter(|section| section["categoryName"] == category);
    own.flat_map(|section| section["checks"].as_array().expect("checks")).collect()
}

const NOW: [&str; 5] = ["check", "-o", "json", "--wait", "0s"];

#[test]
fn what_is_missing_and_what_may_not_be_asked_is_named() {
    let cluster = Cluster::in_memory();

    // 1. Nothing is installed: an administrator may, and a check of the mesh ends where there is none.
    let pre = cluster.weft(&[&NOW[..], &["--pre"]].concat(), "");
    let rights = results(&pre);
    assert_eq!(pre.status.code(), Some(0), "{}", shown(&pre));
    assert!(
        of(&rights, "pre-kubernetes-setup").iter().all(|check| check["result"] == "success"),
        "{rights:#}"
    );
    let none = cluster.weft(&NOW, "");
    assert_eq!(none.status.code(), Some(1), "{}", shown(&none));

    // 2. Everything is there, and nothing runs.
    for flag in [&["install", "--crds"][..], &["install"]] {
        for object in documents(&cluster.ok(flag)) {
            cluster.runtime.block_on(create(&cluster.api.client, &object));
        }
    }
    let idle = cluster.weft(&NOW, "");
    let found = results(&idle);
    assert_eq!(idle.status.code(), Some(1), "{}", shown(&idle));
    for check in of(&found, "linkerd-config") {
        assert_eq!(check["result"], "success", "{check:#}");
    }
    let existence = of(&found, "linkerd-existence");
    let last = existence.last().expect("a check");
    let (hint, why) = (last["hint"].as_str().unwrap_or_default(), last["error"].as_str().unwrap_or_default());
    assert_eq!(hint, "docs/checks.md#l5d-existence-replicasets");
    assert!(why.contains("Deployment weft-controller: 0 of 1 pods are ready"), "{why}");
    assert!(of(&found, "linkerd-identity").is_empty(), "that was fatal: {found:#}");

    // 3. The controller's own account may not list ClusterRoles: that is told with the commands that would grant it.
    let account = (cluster.control.as_str(), "weft-controller");
    let kubeconfig =
        cluster.runtime.block_on(cluster.api.kubeconfig_for(cluster.api.address(), Some(account), "default"));
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(NOW)
        .args(["--linkerd-namespace", &cluster.control, "--kubeconfig"])
        .arg(kubeconfig.path())
        .output()
        .expect("weft runs");
    let found = results(&output);
    let roles = of(&found, "linkerd-config")
        .into_iter()
        .find(|check| check["hint"] == "docs/checks.md#l5d-existence-cr")
        .unwrap_or_else(|| panic!("{found:#}"));
    assert_eq!((&roles["result"], &roles["unknown"]), (&Value::from("error"), &Value::from(true)));
    let why = roles["error"].as_str().unwrap_or_default();
    for command in [
        "kubectl create clusterrole weft-check-clusterroles --verb=get,list --resource=clusterroles.rbac.authorization.k8s.io",
        &format!(
            "--clusterrole=weft-check-clusterroles --serviceaccount={}:weft-controller",
            cluster.control
        ),
    ] {
        assert!(why.contains(command), "{why}");
    }
}
