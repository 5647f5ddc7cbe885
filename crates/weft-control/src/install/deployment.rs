//! The controller's Deployment, and what keeps its replicas apart and alive.

use super::{
    objects::{COMPONENT, CONTROLLER, meta, selector},
    template::{checksum, first, merged, namespace, text, value, when},
};
use crate::config::Ports;
use serde_json::{Value, json};

pub fn objects() -> Vec<Value> {
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta(CONTROLLER),
        "spec": {"maxUnavailable": value("controller.podDisruptionBudget.maxUnavailable"),
            "selector": {"matchLabels": selector()}},
    });
    vec![deployment(), when("enablePodDisruptionBudget", budget, Value::Null)]
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(CONTROLLER),
        "spec": {
            "replicas": value("controllerReplicas"),
            "revisionHistoryLimit": value("revisionHistoryLimit"),
            "strategy": value("deploymentStrategy"),
            "selector": {"matchLabels": selector()},
            "template": {
                "metadata": {
                    // Without the label linkerd.io/control-plane-ns: it would say that the pod has a proxy.
                    "labels": merged(json!({(COMPONENT): "controller"}), "podLabels"),
                    "annotations": merged(json!({
                        "linkerd.io/inject": "disabled",
                        // New settings start new pods.
                        "weft.dev/values-sha256": checksum(),
                        "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
                    }), "podAnnotations"),
                },
                "spec": pod(),
            },
        },
    })
}

fn pod() -> Value {
    json!({
        "serviceAccountName": CONTROLLER,
        "nodeSelector": value("nodeSelector"),
        "affinity": affinity(),
        "tolerations": when("tolerations", value("tolerations"), Value::Null),
        "priorityClassName": when("priorityClassName", value("priorityClassName"), Value::Null),
        "runtimeClassName": when("runtimeClassName", value("runtimeClassName"), Value::Null),
        "imagePullSecrets": when("imagePullSecrets", value("imagePullSecrets"), Value::Null),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 30,
        "containers": [container()],
    })
}

fn container() -> Value {
    let ports = Ports::default();
    let port = |name: &str, port: u16| json!({"name": name, "containerPort": port, "protocol": "TCP"});
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "admin-http"}});
    let mut live = probe("/live");
    live["initialDelaySeconds"] = json!(10);
    let mut ready = probe("/ready");
    ready["failureThreshold"] = json!(7);
    json!({
        "name": "controller",
        "image": text(&[value("controllerImage"), json!(":"), first(&["controllerImageVersion", "linkerdVersion"])]),
        "imagePullPolicy": value("imagePullPolicy"),
        "args": ["controller", text(&[json!("--linkerd-namespace="), namespace()]),
            text(&[json!("--log-level="), value("controllerLogLevel")]),
            text(&[json!("--log-format="), value("controllerLogFormat")])],
        "ports": [
            port("destination", ports.destination),
            port("policy", ports.policy),
            port("identity", ports.identity),
            port("webhook", ports.webhook),
            port("admin-http", ports.admin),
        ],
        "livenessProbe": live,
        "readinessProbe": ready,
        "resources": value("controllerResources"),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": value("controllerUID"),
            "runAsGroup": value("controllerGID"),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

/// Replicas on different machines for sure, in different zones if possible.
fn affinity() -> Value {
    let apart =
        |topology: &str| json!({"labelSelector": {"matchLabels": selector()}, "topologyKey": topology});
    json!({
        "nodeAffinity": when("nodeAffinity", value("nodeAffinity"), Value::Null),
        "podAntiAffinity": when("enablePodAntiAffinity", json!({
            "requiredDuringSchedulingIgnoredDuringExecution": [apart("kubernetes.io/hostname")],
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": apart("topology.kubernetes.io/zone")}],
        }), Value::Null),
    })
}
