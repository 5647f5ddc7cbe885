//! A pod with its proxy. The patch is the difference to the pod without.

use super::{
    containers,
    decide::Annotations,
    environment::{PODINFO_DIR, TOKEN_FILE},
    opaque,
    settings::Settings,
};
use crate::{
    config::ControllerConfig,
    trust_roots::NAMESPACE_ROOTS,
    view::{beside::DEFAULT_POLICY, workload::CONTROL_NS_LABEL},
};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

pub(super) const IDENTITY_VOLUME: &str = "linkerd-identity-end-entity";
pub(super) const TOKEN_VOLUME: &str = "linkerd-identity-token";
pub(super) const ROOTS_VOLUME: &str = "weft-identity-trust-roots";
pub(super) const PODINFO_VOLUME: &str = "linkerd-podinfo";
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
    /// `proxy-injector` or `cli`.
    pub by: &'a str,
}

/// What injection made, and what it ignored.
#[derive(Clone, Debug)]
pub struct Injected {
    pub pod: Value,
    pub warnings: Vec<String>,
}

/// The pod as it runs in the mesh. `annotations` are those that apply, the namespace's included.
pub fn inject(
    pod: &Value,
    config: &ControllerConfig,
    annotations: &Annotations,
    about: &About<'_>,
) -> Injected {
    let mut pod = pod.clone();
    let settings = Settings::new(config, annotations);
    let ports = declared_ports(&pod);
    let proxy = containers::proxy(&settings, &ports, about.roots);
    let init = containers::init(&settings);
    let debug = settings.flag("enable-debug-sidecar", false).then(|| containers::debug(&settings));
    let volumes = volumes(&settings);
    let native = containers::native(&settings);
    let policy = settings.access(DEFAULT_POLICY, config.default_policy).as_str();

    let opaque_ports = opaque::for_pod(&pod, annotations, config);
    let notes = object(&mut pod["metadata"], "annotations");
    for (key, value) in annotations {
        notes.entry(key.clone()).or_insert_with(|| json!(value));
    }
    if let Some(ports) = opaque_ports {
        notes.entry(crate::view::beside::OPAQUE_PORTS).or_insert_with(|| json!(ports));
    }
    // What cannot be read would be read differently by whoever reads it next.
    if notes.contains_key(DEFAULT_POLICY) {
        notes.insert(DEFAULT_POLICY.to_owned(), json!(policy));
    }
    let version = env!("CARGO_PKG_VERSION");
    let proxy_version = settings.text("proxy-version", &config.injection.proxy_image.version);
    notes.insert("linkerd.io/created-by".to_owned(), json!(format!("weft/{} {version}", about.by)));
    notes.insert("linkerd.io/proxy-version".to_owned(), json!(proxy_version));
    notes.insert("linkerd.io/trust-root-sha256".to_owned(), json!(about.roots_sha256));

    let labels = object(&mut pod["metadata"], "labels");
    labels.insert(CONTROL_NS_LABEL.to_owned(), json!(config.control_namespace));
    labels.insert("linkerd.io/workload-ns".to_owned(), json!(about.namespace));
    if let Some((kind, name)) = &about.owner {
        labels.insert(format!("linkerd.io/proxy-{kind}"), json!(name));
    }

    let spec = &mut pod["spec"];
    list(spec, "volumes").extend(volumes);
    match native {
        // First, so that the pod's own init containers already speak through the mesh.
        true => {
            list(spec, "initContainers").splice(0..0, [init, proxy]);
        }
        // After the pod's own: whatever they say would find no proxy yet.
        false => {
            list(spec, "initContainers").push(init);
            list(spec, "containers").insert(0, proxy);
        }
    }
    list(spec, "containers").extend(debug);
    Injected { pod, warnings: settings.into_warnings() }
}

pub(super) fn object<'v>(parent: &'v mut Value, key: &str) -> &'v mut Map<String, Value> {
    if !parent.is_object() {
        *parent = json!({});
    }
    if !parent[key].is_object() {
        parent[key] = json!({});
    }
    parent[key].as_object_mut().expect("it was just made an object")
}

fn list<'v>(parent: &'v mut Value, key: &str) -> &'v mut Vec<Value> {
    if !parent.is_object() {
        *parent = json!({});
    }
    if !parent[key].is_array() {
        parent[key] = json!([]);
    }
    parent[key].as_array_mut().expect("it was just made an array")
}

/// The TCP ports that the pod's containers declare.
pub(super) fn declared_ports(pod: &Value) -> Vec<u16> {
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

fn volumes(settings: &Settings<'_>) -> Vec<Value> {
    let mut volumes = vec![
        json!({"name": IDENTITY_VOLUME, "emptyDir": {"medium": "Memory"}}),
        json!({"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": {
            "path": TOKEN_FILE,
            "expirationSeconds": TOKEN_SECONDS,
            "audience": settings.config.identity.audience,
        }}]}}),
        // Optional: a namespace's first pod may come before it.
        json!({"name": ROOTS_VOLUME, "configMap": {"name": NAMESPACE_ROOTS, "optional": true}}),
    ];
    if settings.config.injection.tracing.is_some() {
        volumes.push(json!({"name": PODINFO_VOLUME, "downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}));
    }
    volumes
}

/// The mount of the pod's labels, where spans carry them.
pub(super) fn podinfo_mount() -> Value {
    json!({"name": PODINFO_VOLUME, "mountPath": PODINFO_DIR})
}
