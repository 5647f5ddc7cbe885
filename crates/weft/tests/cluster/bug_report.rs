//! A bug report holds what helps, and none of the secrets that were planted where people leave them.

use crate::harness::{Cluster, create, shown};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::{fs, io::Read as _};

/// Planted: each stands in one place, and in the archive nowhere.
const PLANTED: [&str; 7] = [
    "planted-in-a-secret",
    "planted-in-an-environment",
    "planted-in-an-annotation",
    "planted-in-arguments",
    "planted-in-a-config-map",
    "planted-in-a-template",
    "planted-in-an-event",
];

fn objects(control: &str, apps: &str) -> Vec<Value> {
    let meta = |name: &str, namespace: &str| {
        json!({"name": name, "namespace": namespace, "labels": {"linkerd.io/control-plane-ns": control},
            "annotations": {"example.com/note": "planted-in-an-annotation", "config.linkerd.io/opaque-ports": "3306",
                "kubectl.kubernetes.io/last-applied-configuration": "{\"x\": \"planted-in-an-annotation\"}"}})
    };
    let container = |name: &str, planted: &str| {
        json!({"name": name, "image": "none:1", "args": ["--x", "planted-in-arguments"],
            "env": [{"name": "DB_PASSWORD", "value": planted}, {"name": "LINKERD2_PROXY_LOG", "value": "warn"}]})
    };
    let spec = |planted: &str| json!({"containers": [container("app", planted)]});
    let template = json!({"metadata": {"labels": {"app": "dst"}, "annotations": {"x": "planted-in-an-annotation"}},
        "spec": spec("planted-in-a-template")});
    vec![
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta("credentials", control),
            "stringData": {"key.pem": "planted-in-a-secret"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("app", control),
            "data": {"app.ini": "password = planted-in-a-config-map"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("linkerd-config", control),
            "data": {"values": "clusterDomain: cluster.local\n"}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta("web", apps), "spec": spec("planted-in-an-environment")}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("linkerd-destination", control),
            "spec": {"selector": {"matchLabels": {"app": "dst"}}, "template": template}}),
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": control},
            "involvedObject": {"kind": "Pod", "name": "web", "namespace": control}, "type": "Warning", "reason": "Failed",
            "message": "cannot log in with token=planted-in-an-event or planted-in-a-secret"}),
    ]
}

#[test]
fn a_bug_report_holds_no_secret_that_was_planted() {
    let cluster = Cluster::start();
    let (control, apps) = (cluster.control.clone(), cluster.apps.clone());
    cluster.runtime.block_on(async {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": control}});
        create(&cluster.api.client, &namespace).await;
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": control}});
        for object in [vec![account], objects(&control, &apps)].concat() {
            create_unless_there(&cluster.api.client, &object).await;
        }
    });
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("report.tar.gz");
    let output = cluster.weft(&["bug-report", "-n", &apps, "-o", &path.display().to_string()], "");
    let text = shown(&output);
    // There is no node here whose logs could be read.
    assert!(path.exists() && output.status.code().is_some_and(|code| code < 2), "{text}");

    let mut whole = Vec::new();
    GzDecoder::new(fs::File::open(&path).expect("the archive")).read_to_end(&mut whole).expect("gzip");
    let archive = String::from_utf8_lossy(&whole);
    let kubeconfig = fs::read_to_string(cluster.kubeconfig()).expect("the kubeconfig");
    let in_kubeconfig = kubeconfig.lines().filter_map(|line| {
        let line = line.trim();
        let secret = line.strip_prefix("token:").or(line.strip_prefix("client-key-data:"))?;
        Some(secret.trim().trim_matches(['"', '\'']).to_owned())
    });
    let secrets: Vec<String> = PLANTED.map(str::to_owned).into_iter().chain(in_kubeconfig).collect();
    for secret in secrets.iter().filter(|secret| secret.len() > 8) {
        assert!(!archive.contains(secret.as_str()), "{secret} is in the archive");
        assert!(!text.contains(secret.as_str()), "{secret} is printed");
    }
    // What is known to be harmless is there, and what is gone has left its name.
    for kept in [
        "versions.json",
        "clusterDomain",
        "config.linkerd.io/opaque-ports",
        "key.pem",
        "app.ini",
        "DB_PASSWORD",
        "cannot log in",
        "missing.txt",
    ] {
        assert!(archive.contains(kept), "{kept} is not in the archive: {text}");
    }
}

/// Some servers make accounts and configuration by themselves.
async fn create_unless_there(client: &kube::Client, object: &Value) {
    let (namespace, name) = (&object["metadata"]["namespace"], &object["metadata"]["name"]);
    if object["kind"] == "ServiceAccount" {
        let path = format!(
            "/api/v1/namespaces/{}/serviceaccounts/{}",
            namespace.as_str().unwrap_or_default(),
            name.as_str().unwrap_or_default()
        );
        let there: Result<Value, _> = weft_kube::api::get(client, &path).await;
        if there.is_ok() {
            return;
        }
    }
    create(client, object).await;
}
