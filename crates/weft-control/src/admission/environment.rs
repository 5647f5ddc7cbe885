//! The proxy's environment, in Linkerd's variables.

use super::decide::{Annotations, CONFIG_PREFIX};
use crate::{
    authority::ROOTS_KEY,
    config::{ADMIN_PORT, CONTROL_PORT, ControllerConfig},
    view::{inbound::DEFAULT_POLICY, workload::OPAQUE_PORTS},
};
use serde_json::{Value, json};

const TOKEN_DIR: &str = "/var/run/secrets/tokens";
pub(super) const TOKEN_FILE: &str = "linkerd-identity-token";
pub(super) const ROOTS_DIR: &str = "/var/run/linkerd/identity/trust-roots";
pub(super) const IDENTITY_DIR: &str = "/var/run/linkerd/identity/end-entity";

pub(super) fn token_dir() -> &'static str {
    TOKEN_DIR
}

/// `config.linkerd.io/NAME`, if the pod or its namespace sets it.
pub(super) fn setting<'a>(annotations: &'a Annotations, name: &str) -> Option<&'a str> {
    annotations.get(&format!("{CONFIG_PREFIX}{name}")).map(|v| v.trim()).filter(|v| !v.is_empty())
}

/// `inbound_ports` are the declared container ports, `roots` the trust anchors in PEM.
pub(super) fn environment(
    config: &ControllerConfig,
    annotations: &Annotations,
    inbound_ports: &[u16],
    roots: &str,
) -> Vec<Value> {
    let (ns, domain) = (&config.control_namespace, &config.cluster_domain);
    let inject = &config.injection;
    let account = |name: &str| format!("{name}.{ns}.serviceaccount.identity.{ns}.{}", config.trust_domain);
    let service = |name: &str, port: u16| format!("{name}.{ns}.svc.{domain}.:{port}");
    let networks: Vec<String> = config.cluster_networks.iter().map(ToString::to_string).collect();
    let networks = networks.join(",");
    let ports: Vec<String> = inbound_ports.iter().map(ToString::to_string).collect();
    let opaque =
        annotations.get(OPAQUE_PORTS).cloned().unwrap_or_else(|| config.default_opaque_ports.to_string());
    let default_policy =
        annotations.get(DEFAULT_POLICY).map_or(config.default_policy.as_str(), String::as_str);
    let mut env = vec![
        field("_pod_name", "metadata.name"),
        field("_pod_ns", "metadata.namespace"),
        field("_pod_nodeName", "spec.nodeName"),
        field("_pod_sa", "spec.serviceAccountName"),
    ];
    let mut put = |name: &str, value: &str| {
        env.push(json!({"name": format!("LINKERD2_PROXY_{name}"), "value": value}));
    };
    put("LOG", setting(annotations, "proxy-log-level").unwrap_or(&inject.log_level));
    put("LOG_FORMAT", setting(annotations, "proxy-log-format").unwrap_or(&inject.log_format));
    put("DESTINATION_SVC_ADDR", &service("linkerd-dst-headless", config.ports.destination));
    put("DESTINATION_SVC_NAME", &account("linkerd-destination"));
    put("DESTINATION_PROFILE_NETWORKS", &networks);
    put("DESTINATION_PROFILE_SUFFIXES", &format!("svc.{domain}."));
    put("DESTINATION_CONTEXT", r#"{"ns":"$(_pod_ns)","nodeName":"$(_pod_nodeName)","pod":"$(_pod_name)"}"#);
    put("POLICY_SVC_ADDR", &service("linkerd-policy", config.ports.policy));
    put("POLICY_SVC_NAME", &account("linkerd-destination"));
    put("POLICY_WORKLOAD", r#"{"ns":"$(_pod_ns)","pod":"$(_pod_name)"}"#);
    put("POLICY_CLUSTER_NETWORKS", &networks);
    put("INBOUND_DEFAULT_POLICY", default_policy);
    put("CONTROL_STREAM_INITIAL_TIMEOUT", "3s");
    put("CONTROL_STREAM_IDLE_TIMEOUT", "5m");
    put("CONTROL_STREAM_LIFETIME", "1h");
    put("INBOUND_CONNECT_TIMEOUT", "100ms");
    put("OUTBOUND_CONNECT_TIMEOUT", "1000ms");
    put("OUTBOUND_DISCOVERY_IDLE_TIMEOUT", "5s");
    put("INBOUND_DISCOVERY_IDLE_TIMEOUT", "90s");
    put("CONTROL_LISTEN_ADDR", &format!("0.0.0.0:{CONTROL_PORT}"));
    put("ADMIN_LISTEN_ADDR", &format!("0.0.0.0:{ADMIN_PORT}"));
    put("OUTBOUND_LISTEN_ADDRS", &format!("127.0.0.1:{}", inject.outbound_port));
    put("INBOUND_LISTEN_ADDR", &format!("0.0.0.0:{}", inject.inbound_port));
    put("INBOUND_PORTS", &ports.join(","));
    put("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", &opaque);
    for side in ["INBOUND_ACCEPT", "OUTBOUND_CONNECT"] {
        put(&format!("{side}_KEEPALIVE"), "10000ms");
        put(&format!("{side}_USER_TIMEOUT"), "30s");
    }
    put("IDENTITY_DIR", IDENTITY_DIR);
    // The text holds until the file is there, and for proxies that know no file.
    put("IDENTITY_TRUST_ANCHORS", roots);
    put("WEFT_IDENTITY_TRUST_ANCHORS_FILE", &format!("{ROOTS_DIR}/{ROOTS_KEY}"));
    put("IDENTITY_TOKEN_FILE", &format!("{TOKEN_DIR}/{TOKEN_FILE}"));
    put("IDENTITY_SVC_ADDR", &service("linkerd-identity-headless", config.ports.identity));
    put("IDENTITY_SVC_NAME", &account("linkerd-identity"));
    let local = format!("$(_pod_sa).$(_pod_ns).serviceaccount.identity.{ns}.{}", config.trust_domain);
    put("IDENTITY_LOCAL_NAME", &local);
    let shutdown = setting(annotations, "proxy-admin-shutdown") == Some("enabled");
    put("SHUTDOWN_ENDPOINT_ENABLED", if shutdown { "true" } else { "false" });
    if let Some(grace) = setting(annotations, "shutdown-grace-period") {
        put("SHUTDOWN_GRACE_PERIOD", grace);
    }
    env.push(field("LINKERD2_PROXY_INBOUND_IPS", "status.podIPs"));
    env
}

fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}
