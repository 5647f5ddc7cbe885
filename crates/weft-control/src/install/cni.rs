//! What `weft install-cni` prints: the DaemonSet that keeps the CNI plugin on every node, and what it needs.

use serde_json::{Value, json};

pub const NAMESPACE: &str = "linkerd-cni";
const NAME: &str = "linkerd-cni";
const REPAIR: &str = "repair-controller";
/// The ConfigMap's key, and the file's name.
const SETTINGS: &str = "settings.json";
const SETTINGS_DIR: &str = "/etc/linkerd-cni";

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct Cni {
    pub namespace: String,
    pub image: String,
    pub pull_policy: String,
    /// The plugin's settings, as they stand under `linkerd` in a node's configuration.
    pub settings: Value,
    /// The runtime's directories on the node.
    pub bin_dir: String,
    pub net_dir: String,
    pub priority_class: Option<String>,
    /// Pods that started without their redirect are deleted.
    pub repair: bool,
}

/// Every object, in the order in which it must be applied.
pub fn objects(cni: &Cni) -> Vec<Value> {
    let group = "rbac.authorization.k8s.io";
    let api = format!("{group}/v1");
    let meta = || json!({"name": NAME, "namespace": cni.namespace, "labels": labels()});
    let wide = || json!({"name": NAME, "labels": labels()});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": cni.namespace, "labels": {
            "linkerd.io/cni-resource": "true",
            "config.linkerd.io/admission-webhooks": "disabled",
            // The installer writes into directories of the node.
            "pod-security.kubernetes.io/enforce": "privileged",
        }}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta()}),
        json!({"apiVersion": api, "kind": "ClusterRole", "metadata": wide(), "rules": rules(cni.repair)}),
        json!({"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": wide(),
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": cni.namespace}]}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
                "name": format!("{NAME}-config"), "namespace": cni.namespace, "labels": labels()},
            "data": {(SETTINGS): format!("{:#}", cni.settings)}}),
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta(), "spec": {
            "selector": {"matchLabels": {"k8s-app": NAME}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": labels(), "annotations": {"linkerd.io/inject": "disabled"}},
                "spec": pod(cni),
            },
        }}),
    ]
}

fn labels() -> Value {
    json!({"k8s-app": NAME, "linkerd.io/cni-resource": "true"})
}

/// The plugin reads a pod and its namespace; only the repair controller writes.
fn rules(repair: bool) -> Value {
    let rule = |resources: &[&str], verbs: &[&str]| json!({"apiGroups": [""], "resources": resources, "verbs": verbs});
    let mut rules = vec![rule(&["pods", "namespaces"], &["get"])];
    if repair {
        rules.push(rule(&["pods"], &["list", "delete"]));
        rules.push(rule(&["events"], &["create"]));
    }
    json!(rules)
}

fn pod(cni: &Cni) -> Value {
    let mut containers = vec![installer(cni)];
    if cni.repair {
        containers.push(repair(cni));
    }
    json!({
        "serviceAccountName": NAME,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        // A node without the plugin starts pods without their redirect: it comes before everything, everywhere.
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": cni.priority_class.as_deref().unwrap_or("system-node-critical"),
        // Pods on the host's network need no CNI plugin to start.
        "hostNetwork": true,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 30,
        "containers": containers,
        "volumes": [
            {"name": "bin", "hostPath": {"path": cni.bin_dir, "type": "DirectoryOrCreate"}},
            {"name": "net", "hostPath": {"path": cni.net_dir, "type": "DirectoryOrCreate"}},
            {"name": "settings", "configMap": {"name": format!("{NAME}-config")}},
        ],
    })
}

fn installer(cni: &Cni) -> Value {
    let host = |dir: &str| format!("/host{dir}");
    json!({
        "name": "install-cni",
        "image": cni.image,
        "imagePullPolicy": cni.pull_policy,
        "args": ["install", "--host-root=/host", format!("--bin-dir={}", cni.bin_dir), format!("--net-dir={}", cni.net_dir),
            format!("--settings={SETTINGS_DIR}/{SETTINGS}")],
        "volumeMounts": [
            {"name": "bin", "mountPath": host(&cni.bin_dir)},
            {"name": "net", "mountPath": host(&cni.net_dir)},
            {"name": "settings", "mountPath": SETTINGS_DIR, "readOnly": true},
        ],
        // The node's directories belong to root; nothing else is needed of it.
        "securityContext": secured(json!({"runAsUser": 0, "runAsNonRoot": false})),
        "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

fn repair(cni: &Cni) -> Value {
    json!({
        "name": REPAIR,
        "image": cni.image,
        "imagePullPolicy": cni.pull_policy,
        "args": ["repair"],
        "env": [{"name": "LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME",
            "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": secured(json!({"runAsUser": 65534, "runAsNonRoot": true})),
        "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

fn secured(mut who: Value) -> Value {
    who["allowPrivilegeEscalation"] = json!(false);
    who["readOnlyRootFilesystem"] = json!(true);
    who["capabilities"] = json!({"drop": ["ALL"]});
    who
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cni(repair: bool) -> Cni {
        Cni {
            namespace: NAMESPACE.into(),
            image: "i:1".into(),
            pull_policy: "Always".into(),
            settings: json!({"proxy-uid": 2102}),
            bin_dir: "/opt/cni/bin".into(),
            net_dir: "/etc/cni/net.d".into(),
            priority_class: None,
            repair,
        }
    }

    fn of<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
        objects.iter().find(|o| o["kind"] == kind).unwrap()
    }

    #[test]
    fn what_the_containers_name_is_there() {
        let objects = objects(&cni(true));
        let pod = &of(&objects, "DaemonSet")["spec"]["template"]["spec"];
        let volumes: Vec<&Value> = pod["volumes"].as_array().unwrap().iter().map(|v| &v["name"]).collect();
        for mount in pod["containers"][0]["volumeMounts"].as_array().unwrap() {
            assert!(volumes.contains(&&mount["name"]), "{mount}");
        }
        let map = of(&objects, "ConfigMap");
        assert_eq!(pod["volumes"][2]["configMap"]["name"], map["metadata"]["name"]);
        let settings: Value = serde_json::from_str(map["data"][SETTINGS].as_str().unwrap()).unwrap();
        assert_eq!(settings["proxy-uid"], 2102);
        assert_eq!(pod["serviceAccountName"], of(&objects, "ServiceAccount")["metadata"]["name"]);
    }

    #[test]
    fn nothing_is_written_in_the_cluster_without_the_repair_controller() {
        for repair in [false, true] {
            let objects = objects(&cni(repair));
            let rules = of(&objects, "ClusterRole")["rules"].to_string();
            assert_eq!(rules.contains("delete"), repair);
            let containers = &of(&objects, "DaemonSet")["spec"]["template"]["spec"]["containers"];
            assert_eq!(containers.as_array().unwrap().len(), if repair { 2 } else { 1 });
        }
    }
}
