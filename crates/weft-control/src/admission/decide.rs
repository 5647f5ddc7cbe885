//! Whether a pod is injected, and with which annotations.

use super::environment::merge_env;
use serde_json::Value;
use std::{collections::BTreeMap, fmt};

pub const INJECT: &str = "linkerd.io/inject";
pub const CONFIG_PREFIX: &str = "config.linkerd.io/";
pub const ADDITIONAL_ENV: &str = "config.linkerd.io/proxy-additional-env";
/// Annotations that mean something to the injector.
const PREFIXES: [&str; 4] =
    [CONFIG_PREFIX, "config.alpha.linkerd.io/", "config.beta.linkerd.io/", "resource.opentelemetry.io/"];
/// Said about single pods only.
const NOT_INHERITED: [&str; 8] = [
    "config.linkerd.io/proxy-cpu-ratio-limit",
    "config.linkerd.io/enable-gateway",
    "config.linkerd.io/close-wait-timeout",
    "config.linkerd.io/debug-image",
    "config.linkerd.io/debug-image-version",
    "config.linkerd.io/debug-image-pull-policy",
    "config.beta.linkerd.io/proxy-enable-native-sidecar",
    "config.alpha.linkerd.io/proxy-enable-native-sidecar",
];

pub type Annotations = BTreeMap<String, String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// With the configuration that applies: the pod's own annotations, completed by the namespace's.
    Inject(Annotations),
    /// Nobody asked for a proxy.
    Leave(Why),
    /// Somebody did, and it cannot be.
    Refuse(Why),
}

/// Why there is no proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// For metrics; Linkerd's, where it has one.
    pub word: &'static str,
    pub text: String,
}

impl Why {
    fn new(word: &'static str, text: impl Into<String>) -> Self {
        Why { word, text: text.into() }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

pub fn decide(pod: &Value, namespace: &Annotations) -> Decision {
    let own = annotations(pod);
    let ingress = match own.get(INJECT).or_else(|| namespace.get(INJECT)).map(|mode| mode.trim()) {
        Some("enabled") => false,
        Some("ingress") => true,
        Some("disabled") => {
            let text = "injection is disabled by annotation";
            return Decision::Leave(Why::new("injection_disable_annotation_present", text));
        }
        Some(other) => {
            let text = format!("{INJECT}: {other:?} is none of enabled, ingress and disabled");
            return Decision::Refuse(Why::new("injection_annotation_unknown", text));
        }
        None => {
            let text = "neither the pod nor its namespace asks for injection";
            return Decision::Leave(Why::new("injection_enable_annotation_absent", text));
        }
    };
    if pod["metadata"]["labels"].get("linkerd.io/control-plane-component").is_some() {
        return Decision::Leave(Why::new("control_plane_component", "the pod belongs to the control plane"));
    }
    if let Some(why) = obstacle(pod) {
        return Decision::Refuse(why);
    }
    Decision::Inject(effective(own, namespace, ingress))
}

/// Why no proxy can be put into this pod, whoever asks for it.
pub fn obstacle(pod: &Value) -> Option<Why> {
    if pod["spec"]["hostNetwork"] == true {
        let text = "the pod uses its machine's network, which a proxy must not redirect";
        return Some(Why::new("host_network_enabled", text));
    }
    let text = format!("the pod has a sidecar already: container {}", sidecar(pod)?);
    Some(Why::new("sidecar_already_exists", text))
}

/// The pod's own annotations, completed by those of its namespace that are inherited.
pub(super) fn effective(own: Annotations, namespace: &Annotations, ingress: bool) -> Annotations {
    let mut effective: Annotations = namespace
        .iter()
        .filter(|(key, _)| PREFIXES.iter().any(|prefix| key.starts_with(prefix)))
        .filter(|(key, _)| !NOT_INHERITED.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    // Lists of variables are joined, not replaced.
    let env = match (namespace.get(ADDITIONAL_ENV), own.get(ADDITIONAL_ENV)) {
        (Some(namespace), Some(own)) => merge_env(namespace, own),
        _ => None,
    };
    effective.extend(own);
    effective.extend(env.map(|env| (ADDITIONAL_ENV.to_owned(), env)));
    if ingress {
        effective.insert(INJECT.to_owned(), "ingress".to_owned());
    }
    effective
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
