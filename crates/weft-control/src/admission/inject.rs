//! A pod with its proxy. The patch is the difference to the pod without.

use super::{
    decide::Annotations,
    environment::{IDENTITY_DIR, ROOTS_DIR, TOKEN_FILE, environment, setting, token_dir},
};
use crate::{
    config::{ADMIN_PORT, CONTROL_PORT, ControllerConfig},
    trust_roots::NAMESPACE_ROOTS,
    view::workload::CONTROL_NS_LABEL,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const IDENTITY_VOLUME: &str = "linkerd-identity-end-entity";
const TOKEN_VOLUME: &str = "linkerd-identity-token";
const ROOTS_VOLUME: &str = "weft-identity-trust-roots";
const TOKEN_SECONDS: u32 = 86_400;

/// What a pod's own object does not say.
#[derive(Clone, Debug)]
pub struct About<'a> {
    pub namespace: &'a str,
    /// Kind in lower case and name of the workload that the pod belongs to.
    pub owner: Option<(String, String)>,
    /// Trust anchors, in PEM, and the SHA-256 of that text.
    pub roots: &'a str,
    pub roots_sha256: &'a str,
}

/// The pod as it runs in the mesh. `annotations` are those that apply, the namespace's included.
pub fn inject(pod: &Value, config: &ControllerConfig, annotations: &Annotations, about: &About<'_>) -> Value {
    let mut pod = pod.clone();
    let proxy = proxy_container(config, annotations, &declared_ports(&pod), about.roots);
    let init = init_container(config, annotations);

    let notes = object(&mut pod["metadata"], "annotations");
    for (key, value) in annotations {
        notes.entry(key.clone()).or_insert_with(|| json!(value));
    }
    let version = env!("CARGO_PKG_VERSION");
    notes.insert("linkerd.io/created-by".to_owned(), json!(format!("weft/proxy-injector {version}")));
    notes.insert("linkerd.io/proxy-version".to_owned(), json!(version));
    notes.insert("linkerd.io/trust-root-sha256".to_owned(), json!(about.roots_sha256));

    let labels = object(&mut pod["metadata"], "labels");
    labels.insert(CONTROL_NS_LABEL.to_owned(), json!(config.control_namespace));
    labels.insert("linkerd.io/workload-ns".to_owned(), json!(about.namespace));
    if let Some((kind, name)) = &about.owner {
        labels.insert(format!("linkerd.io/proxy-{kind}"), json!(name));
    }

    let spec = &mut pod["spec"];
    list(spec, "volumes").extend(volumes(config));
    // First, so that the pod's own init containers already speak through the mesh.
    list(spec, "initContainers").splice(0..0, [init, proxy]);
    pod
}

fn object<'v>(parent: &'v mut Value, key: &str) -> &'v mut Map<String, Value> {
    if !parent.is_object() {
        *parent = json!({});
    }
    if !parent[key].is_object() {
        parent[key] = json!({});
    }
    parent[key].as_object_mut().expect("it was just made an object")
}

fn list<'v>(parent: &'v mut Value, key: &str) -> &'v mut Vec<Value> {
    if !parent[key].is_array() {
        parent[key] = json!([]);
    }
    parent[key].as_array_mut().expect("it was just made an array")
}

/// The TCP ports that the pod's containers declare.
fn declared_ports(pod: &Value) -> Vec<u16> {
    let containers =
        ["initContainers", "containers"].into_iter().filter_map(|l| pod["spec"][l].as_array()).flatten();
    let ports: BTreeSet<u16> = containers
        .filter_map(|c| c["ports"].as_array())
        .flatten()
        .filter(|p| p["protocol"].as_str().is_none_or(|p| p == "TCP"))
        .filter_map(|p| p["containerPort"].as_u64()?.try_into().ok())
        .collect();
    ports.into_iter().collect()
}

fn volumes(config: &ControllerConfig) -> [Value; 3] {
    [
        json!({"name": IDENTITY_VOLUME, "emptyDir": {"medium": "Memory"}}),
        json!({"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": {
            "path": TOKEN_FILE,
            "expirationSeconds": TOKEN_SECONDS,
            "audience": config.identity.audience,
        }}]}}),
        // Optional: a namespace's first pod may come before it.
        json!({"name": ROOTS_VOLUME, "configMap": {"name": NAMESPACE_ROOTS, "optional": true}}),
    ]
}

/// Sets up the redirect and ends. It needs the two capabilities, which only count for root without file capabilities.
fn init_container(config: &ControllerConfig, annotations: &Annotations) -> Value {
    let inject = &config.injection;
    let join = |own: &str, name: &str, always: &str| {
        let skipped = setting(annotations, name).unwrap_or(own);
        [always, skipped].into_iter().filter(|t| !t.is_empty()).collect::<Vec<_>>().join(",")
    };
    let mut args = vec![
        "proxy-init".to_owned(),
        "--incoming-proxy-port".to_owned(),
        inject.inbound_port.to_string(),
        "--outgoing-proxy-port".to_owned(),
        inject.outbound_port.to_string(),
        "--proxy-uid".to_owned(),
        inject.proxy_uid.to_string(),
        "--inbound-ports-to-ignore".to_owned(),
        join(&inject.skip_inbound_ports, "skip-inbound-ports", &format!("{CONTROL_PORT},{ADMIN_PORT}")),
    ];
    let outbound = join(&inject.skip_outbound_ports, "skip-outbound-ports", "");
    if !outbound.is_empty() {
        args.extend(["--outbound-ports-to-ignore".to_owned(), outbound]);
    }
    json!({
        "name": "linkerd-init",
        "image": inject.image,
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]},
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": false,
            "runAsUser": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

/// The proxy as a native sidecar: started before everything else of the pod, ended after it.
fn proxy_container(
    config: &ControllerConfig,
    annotations: &Annotations,
    inbound_ports: &[u16],
    roots: &str,
) -> Value {
    let inject = &config.injection;
    let probe = |path: &str, extra: Value| {
        let mut probe = json!({"httpGet": {"path": path, "port": ADMIN_PORT}});
        if let (Some(probe), Some(extra)) = (probe.as_object_mut(), extra.as_object()) {
            probe.extend(extra.clone());
        }
        probe
    };
    let mut container = json!({
        "name": "linkerd-proxy",
        "image": inject.image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["proxy"],
        "restartPolicy": "Always",
        "env": environment(config, annotations, inbound_ports, roots),
        "ports": [
            {"name": "linkerd-proxy", "containerPort": inject.inbound_port, "protocol": "TCP"},
            {"name": "linkerd-admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        "livenessProbe": probe("/live", json!({"initialDelaySeconds": 10, "timeoutSeconds": 1})),
        "readinessProbe": probe("/ready", json!({"initialDelaySeconds": 2, "timeoutSeconds": 1})),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": inject.proxy_uid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": IDENTITY_VOLUME, "mountPath": IDENTITY_DIR},
            {"name": TOKEN_VOLUME, "mountPath": token_dir()},
            {"name": ROOTS_VOLUME, "mountPath": ROOTS_DIR, "readOnly": true},
        ],
    });
    // The pod's other containers wait until the proxy forwards.
    if setting(annotations, "proxy-await") != Some("disabled") {
        container["startupProbe"] = probe("/ready", json!({"periodSeconds": 1, "failureThreshold": 120}));
    }
    if let Some(resources) = &inject.resources {
        container["resources"] = resources.clone();
    }
    container
}
