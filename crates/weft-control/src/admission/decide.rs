//! Whether a pod is injected, and with which annotations.

use serde_json::Value;
use std::collections::BTreeMap;

pub const INJECT: &str = "linkerd.io/inject";
pub const CONFIG_PREFIX: &str = "config.linkerd.io/";
/// Said about single pods only.
const NOT_INHERITED: [&str; 5] = [
    "config.linkerd.io/proxy-cpu-ratio-limit",
    "config.linkerd.io/enable-gateway",
    "config.linkerd.io/close-wait-timeout",
    "config.linkerd.io/debug-image",
    "config.linkerd.io/debug-image-version",
];

pub type Annotations = BTreeMap<String, String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// With the configuration that applies: the pod's own annotations, completed by the namespace's.
    Inject(Annotations),
    Skip(String),
}

pub fn decide(pod: &Value, namespace: &Annotations) -> Decision {
    let skip = |why: &str| Decision::Skip(why.to_owned());
    let own = annotations(pod);
    match own.get(INJECT).or_else(|| namespace.get(INJECT)).map(String::as_str) {
        Some("enabled") => {}
        Some("ingress") => return skip("ingress mode is not supported yet"),
        Some("disabled") => return skip("injection is disabled by annotation"),
        Some(other) => return Decision::Skip(format!("{INJECT}: {other:?} is neither enabled nor disabled")),
        None => return skip("neither the pod nor its namespace asks for injection"),
    }
    if pod["metadata"]["labels"].get("linkerd.io/control-plane-component").is_some() {
        return skip("the pod belongs to the control plane");
    }
    if pod["spec"]["hostNetwork"] == true {
        return skip("the pod uses its machine's network, which a proxy must not redirect");
    }
    if let Some(name) = sidecar(pod) {
        return Decision::Skip(format!("the pod has a sidecar already: container {name}"));
    }
    let mut effective: Annotations = namespace
        .iter()
        .filter(|(key, _)| key.starts_with(CONFIG_PREFIX) && !NOT_INHERITED.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    effective.extend(own);
    Decision::Inject(effective)
}

/// A proxy of this or another mesh, by name or image.
fn sidecar(pod: &Value) -> Option<&str> {
    let all = ["initContainers", "containers"].into_iter().filter_map(|list| pod["spec"][list].as_array());
    all.flatten().find_map(|container| {
        let name = container["name"].as_str().unwrap_or_default();
        let image = container["image"].as_str().unwrap_or_default();
        let foreign = ["istio/proxyv2", "gcr.io/heptio-images/contour", "envoyproxy/envoy-istio"];
        let known = matches!(name, "linkerd-proxy" | "linkerd-init" | "istio-proxy" | "istio-init")
            || image.contains("linkerd/proxy:")
            || foreign.iter().any(|f| image.contains(f));
        known.then_some(name)
    })
}

pub fn annotations(object: &Value) -> Annotations {
    object["metadata"]["annotations"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}
