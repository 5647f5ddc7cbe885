//! The annotation that names opaque ports, on pods without a proxy and on Services.
//!
//! Meshed clients of an unmeshed server must know, too, that its port carries no HTTP.

use super::{
    decide::{Annotations, annotations},
    inject::{declared_ports, object},
};
use crate::{config::ControllerConfig, view::beside::OPAQUE_PORTS};
use serde_json::{Value, json};

/// What the annotation of a pod should say; `None` if it says it already or nothing need be said.
pub(super) fn for_pod(pod: &Value, namespace: &Annotations, config: &ControllerConfig) -> Option<String> {
    missing(pod, namespace, config, &declared_ports(pod))
}

/// The same for a Service.
pub(super) fn for_service(
    service: &Value,
    namespace: &Annotations,
    config: &ControllerConfig,
) -> Option<String> {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let ports: Vec<u16> = ports.filter_map(|port| port["port"].as_u64()?.try_into().ok()).collect();
    missing(service, namespace, config, &ports)
}

/// The namespace's value, else those of the default ports that the object declares.
fn missing(
    object: &Value,
    namespace: &Annotations,
    config: &ControllerConfig,
    declared: &[u16],
) -> Option<String> {
    if annotations(object).contains_key(OPAQUE_PORTS) {
        return None;
    }
    if let Some(ports) = namespace.get(OPAQUE_PORTS) {
        return Some(ports.clone());
    }
    let ports: Vec<String> = declared
        .iter()
        .filter(|port| config.default_opaque_ports.contains_number(**port))
        .map(ToString::to_string)
        .collect();
    (!ports.is_empty()).then(|| ports.join(","))
}

/// The object with the annotation.
pub(super) fn annotated(target: &Value, ports: &str) -> Value {
    let mut annotated = target.clone();
    object(&mut annotated["metadata"], "annotations").insert(OPAQUE_PORTS.to_owned(), json!(ports));
    annotated
}
