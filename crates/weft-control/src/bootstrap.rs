//! The objects of the control plane itself, as `weft up` applies them before anything else.

pub mod crds;

use crate::{
    authority::{ISSUER_SECRET, ROOTS_CONFIG_MAP, ROOTS_KEY},
    config::ControllerConfig,
    install::{
        services::{ControlService, services},
        template::Fill,
        values::Values,
        webhooks,
    },
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::time::Duration;
use weft_fault::Fault;
use weft_tls::authority::Ca;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What identities rest on, in PEM.
#[derive(Clone)]
pub struct IdentityFiles {
    pub trust_roots: String,
    pub issuer_certificate: String,
    pub issuer_key: String,
}

impl std::fmt::Debug for IdentityFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdentityFiles")
    }
}

impl IdentityFiles {
    /// A root, whose key is forgotten at once, and an issuer below it, both for a year.
    pub fn generate(config: &ControllerConfig) -> Result<Self, Fault> {
        let domain = format!("{}.{}", config.control_namespace, config.trust_domain);
        let root = Ca::root(&format!("root.{domain}"), YEAR)?;
        let issuer = root.issuer(&format!("identity.{domain}"), YEAR)?;
        Ok(IdentityFiles {
            trust_roots: root.certificate_pem(),
            issuer_certificate: issuer.certificate_pem(),
            issuer_key: issuer.key_pem(),
        })
    }
}

/// Everything the controller needs to find, in the order in which it must be applied.
pub fn bootstrap_objects(config: &ControllerConfig, identity: &IdentityFiles) -> Vec<Value> {
    let ns = config.control_namespace.as_str();
    let mut objects = vec![namespace(ns)];
    objects.extend(crds::all());
    objects.extend(
        ["linkerd-destination", "linkerd-identity", "linkerd-proxy-injector"]
            .map(|name| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(ns, name)})),
    );
    objects.push(issuer_secret(ns, identity));
    objects.push(config_map(ns, ROOTS_CONFIG_MAP, ROOTS_KEY, &identity.trust_roots));
    objects.push(config_map(ns, "linkerd-config", "values", &values(config)));
    let values = Values::defaults(false);
    let fill = Fill { values: &values, namespace: ns };
    for service in services(config.ports) {
        objects.push(fill.fill(&service.object(false)));
        objects.push(slice(&service, config, ns));
    }
    // Pods that opted in wait for the injector: nothing here could be deadlocked by that.
    objects.extend(webhooks::objects(&json!("Fail"), &json!(10)).iter().map(|object| fill.fill(object)));
    objects
}

fn meta(ns: &str, name: &str) -> Value {
    json!({"name": name, "namespace": ns, "labels": {"linkerd.io/control-plane-ns": ns},
        "annotations": {"linkerd.io/created-by": format!("weft/up {}", env!("CARGO_PKG_VERSION"))}})
}

fn namespace(ns: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": ns,
            "annotations": {"linkerd.io/inject": "disabled"},
            "labels": {"linkerd.io/is-control-plane": "true", "linkerd.io/control-plane-ns": ns,
                "config.linkerd.io/admission-webhooks": "disabled"},
        },
    })
}

fn issuer_secret(ns: &str, identity: &IdentityFiles) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "linkerd.io/tls", "metadata": meta(ns, ISSUER_SECRET),
        "data": {
            "crt.pem": STANDARD.encode(&identity.issuer_certificate),
            "key.pem": STANDARD.encode(&identity.issuer_key),
        },
    })
}

fn config_map(ns: &str, name: &str, key: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(ns, name), "data": {key: text}})
}

/// The part of Linkerd's values that other tools look at.
fn values(config: &ControllerConfig) -> String {
    let networks: Vec<String> = config.cluster_networks.iter().map(ToString::to_string).collect();
    format!(
        "clusterDomain: {}\nclusterNetworks: {}\nidentityTrustDomain: {}\nproxy:\n  defaultInboundPolicy: {}\n  opaquePorts: {}\n",
        config.cluster_domain,
        networks.join(","),
        config.trust_domain,
        config.default_policy.as_str(),
        config.default_opaque_ports,
    )
}

/// The endpoints of a Service without a selector, which nobody else writes.
fn slice(service: &ControlService, config: &ControllerConfig, ns: &str) -> Value {
    let ports: Vec<Value> = service
        .ports
        .iter()
        .map(|(name, _, target)| json!({"name": name, "port": target, "protocol": "TCP"}))
        .collect();
    let mut meta = meta(ns, &format!("{}-weft", service.name));
    meta["labels"]["kubernetes.io/service-name"] = json!(service.name);
    meta["labels"]["endpointslice.kubernetes.io/managed-by"] = json!("weft");
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta,
        "addressType": if config.bind.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [config.bind.to_string()],
            "conditions": {"ready": true, "serving": true, "terminating": false}}],
        "ports": ports,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_tls::bundle::TrustBundle;

    #[test]
    fn objects_are_whole_and_in_order() {
        let config = ControllerConfig::new("10.77.0.1".parse().unwrap(), vec![]);
        let identity = IdentityFiles::generate(&config).unwrap();
        let objects = bootstrap_objects(&config, &identity);
        assert_eq!(objects[0]["kind"], "Namespace");
        for object in &objects {
            assert!(object["apiVersion"].is_string() && object["metadata"]["name"].is_string(), "{object}");
        }
        let slices = objects.iter().filter(|o| o["kind"] == "EndpointSlice").count();
        assert_eq!(slices, objects.iter().filter(|o| o["kind"] == "Service").count());
        let roots = TrustBundle::parse(&identity.trust_roots).unwrap();
        let issuer = Ca::from_pem(&identity.issuer_certificate, &identity.issuer_key).unwrap();
        issuer.check(&roots, std::time::SystemTime::now()).unwrap();
        assert!(!format!("{identity:?}").contains("PRIVATE"));
    }
}
