//! The objects of the control plane itself, as `weft up` applies them before anything else.

pub mod crds;

use crate::{
    admission::opt_in::OPT_IN_LABEL,
    authority::{ISSUER_SECRET, ROOTS_CONFIG_MAP, ROOTS_KEY},
    config::ControllerConfig,
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
    for service in services(config) {
        objects.push(service.object(ns));
        objects.push(service.slice(config, ns));
    }
    objects.push(webhooks(config, &identity.trust_roots));
    objects
}

fn meta(ns: &str, name: &str) -> Value {
    json!({"name": name, "namespace": ns, "labels": {"linkerd.io/control-plane-ns": ns}})
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

/// A Service whose only endpoint is the controller.
struct ControlService {
    name: &'static str,
    headless: bool,
    /// Name, Service port, port of the controller.
    ports: Vec<(&'static str, u16, u16)>,
}

fn services(config: &ControllerConfig) -> Vec<ControlService> {
    let ports = config.ports;
    let grpc = ("grpc", ports.destination, ports.destination);
    let identity = ("grpc", ports.identity, ports.identity);
    let admin = ("admin-http", ports.admin, ports.admin);
    let service = |name, headless, ports: &[(&'static str, u16, u16)]| ControlService {
        name,
        headless,
        ports: ports.to_vec(),
    };
    vec![
        service("linkerd-dst", false, &[grpc, admin]),
        service("linkerd-dst-headless", true, &[grpc]),
        service("linkerd-policy", true, &[("grpc", ports.policy, ports.policy)]),
        service("linkerd-identity", false, &[identity]),
        service("linkerd-identity-headless", true, &[identity]),
        service("linkerd-proxy-injector", false, &[("proxy-injector", 443, ports.webhook)]),
    ]
}

impl ControlService {
    fn object(&self, ns: &str) -> Value {
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|(name, port, target)| {
                json!({"name": name, "port": port, "targetPort": target, "protocol": "TCP"})
            })
            .collect();
        let mut spec = json!({"type": "ClusterIP", "ports": ports});
        if self.headless {
            spec["clusterIP"] = json!("None");
        }
        json!({"apiVersion": "v1", "kind": "Service", "metadata": meta(ns, self.name), "spec": spec})
    }

    /// The Service has no selector, so nobody else writes its endpoints.
    fn slice(&self, config: &ControllerConfig, ns: &str) -> Value {
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|(name, _, target)| json!({"name": name, "port": target, "protocol": "TCP"}))
            .collect();
        let mut meta = meta(ns, &format!("{}-weft", self.name));
        meta["labels"]["kubernetes.io/service-name"] = json!(self.name);
        meta["labels"]["endpointslice.kubernetes.io/managed-by"] = json!("weft");
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta,
            "addressType": if config.bind.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": [{"addresses": [config.bind.to_string()],
                "conditions": {"ready": true, "serving": true, "terminating": false}}],
            "ports": ports,
        })
    }
}

/// Three entries for one webhook. Pods that opted in, by namespace or by themselves, are refused while it is down; all
/// others, of namespaces that may have opted in a moment ago, are asked about if it is there.
fn webhooks(config: &ControllerConfig, roots: &str) -> Value {
    let ns = config.control_namespace.as_str();
    let foreign = json!([
        {"key": "config.linkerd.io/admission-webhooks", "operator": "NotIn", "values": ["disabled"]},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "cert-manager", ns]},
    ]);
    let with = |requirement: Value| {
        let mut all = foreign.clone();
        if let Some(all) = all.as_array_mut() {
            all.push(requirement);
        }
        json!({"matchExpressions": all})
    };
    let pods = json!({"matchExpressions": [
        {"key": "linkerd.io/control-plane-component", "operator": "DoesNotExist"},
        {"key": "linkerd.io/cni-resource", "operator": "DoesNotExist"},
    ]});
    let entry = |name: &str, namespaces: Value, policy: &str, conditions: Option<Value>| {
        let mut entry = json!({
            "name": name,
            "admissionReviewVersions": ["v1", "v1beta1"],
            "clientConfig": {
                "service": {"name": "linkerd-proxy-injector", "namespace": ns, "path": "/", "port": 443},
                "caBundle": STANDARD.encode(roots),
            },
            "failurePolicy": policy,
            "matchPolicy": "Equivalent",
            "namespaceSelector": namespaces,
            "objectSelector": pods,
            "reinvocationPolicy": "IfNeeded",
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["pods"], "scope": "Namespaced"}],
            "sideEffects": "None",
            "timeoutSeconds": 10,
        });
        if let Some(conditions) = conditions {
            entry["matchConditions"] = conditions;
        }
        entry
    };
    let opted_in = json!({"key": OPT_IN_LABEL, "operator": "In", "values": ["enabled"]});
    let others = json!({"key": OPT_IN_LABEL, "operator": "NotIn", "values": ["enabled"]});
    let said = |expression: &str| json!([{"name": "opted-in", "expression": expression}]);
    let annotation = "object.metadata.?annotations[?'linkerd.io/inject'].orValue('')";
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "linkerd-proxy-injector-webhook-config",
            "labels": {"linkerd.io/control-plane-component": "proxy-injector", "linkerd.io/control-plane-ns": ns}},
        "webhooks": [
            entry("linkerd-proxy-injector.linkerd.io", with(opted_in), "Fail",
                Some(said(&format!("{annotation} != 'disabled'")))),
            entry("pods.linkerd-proxy-injector.linkerd.io", with(others.clone()), "Fail",
                Some(said(&format!("{annotation} == 'enabled'")))),
            entry("others.linkerd-proxy-injector.linkerd.io", with(others), "Ignore",
                Some(said(&format!("{annotation} == ''")))),
        ],
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
