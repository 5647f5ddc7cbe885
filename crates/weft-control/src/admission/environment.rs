//! The proxy's environment, in Linkerd's variables.

use super::{
    decide::{ADDITIONAL_ENV, INJECT},
    settings::Settings,
};
use crate::{
    authority::ROOTS_KEY,
    config::Tracing,
    view::beside::{DEFAULT_POLICY, OPAQUE_PORTS},
};
use serde_json::{Value, json};

const TOKEN_DIR: &str = "/var/run/secrets/tokens";
pub(super) const TOKEN_FILE: &str = "linkerd-identity-token";
pub(super) const ROOTS_DIR: &str = "/var/run/linkerd/identity/trust-roots";
pub(super) const IDENTITY_DIR: &str = "/var/run/linkerd/identity/end-entity";
pub(super) const PODINFO_DIR: &str = "/var/run/linkerd/podinfo";
/// A protocol detection that never gives up, in Linkerd's words.
const FOR_EVER: &str = "365d";

pub(super) fn token_dir() -> &'static str {
    TOKEN_DIR
}

/// `inbound_ports` are the declared container ports, `roots` the trust anchors in PEM.
pub(super) fn environment(settings: &Settings<'_>, inbound_ports: &[u16], roots: &str) -> Vec<Value> {
    let mut env = Env {
        list: vec![
            field("_pod_name", "metadata.name"),
            field("_pod_ns", "metadata.namespace"),
            field("_pod_nodeName", "spec.nodeName"),
            field("_pod_sa", "spec.serviceAccountName"),
        ],
    };
    logs(settings, &mut env);
    control_plane(settings, &mut env);
    listeners(settings, &mut env);
    inbound(settings, &mut env, inbound_ports);
    timeouts(settings, &mut env);
    workers(settings, &mut env);
    identity(settings, &mut env, roots);
    modes(settings, &mut env);
    tracing(settings, &mut env);
    env.list.push(field("LINKERD2_PROXY_INBOUND_IPS", "status.podIPs"));
    for extra in extra(settings) {
        env.list.retain(|known| known["name"] != extra["name"]);
        env.list.push(extra);
    }
    env.list
}

struct Env {
    list: Vec<Value>,
}

impl Env {
    fn put(&mut self, name: &str, value: impl AsRef<str>) {
        self.list.push(json!({"name": format!("LINKERD2_PROXY_{name}"), "value": value.as_ref()}));
    }
}

fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

/// The name of a control-plane account's identity.
fn account(settings: &Settings<'_>, name: &str) -> String {
    let ns = &settings.config.control_namespace;
    format!("{name}.{ns}.serviceaccount.identity.{ns}.{}", settings.config.trust_domain)
}

fn logs(settings: &Settings<'_>, env: &mut Env) {
    let inject = &settings.config.injection;
    env.put("LOG", settings.text("proxy-log-level", &inject.log_level));
    env.put("LOG_FORMAT", settings.one_of("proxy-log-format", &["plain", "json"], &inject.log_format));
    let access_log = settings.one_of("access-log", &["apache", "json"], &inject.access_log);
    if !access_log.is_empty() {
        env.put("ACCESS_LOG", access_log);
    }
    if settings.annotation("proxy-log-http-headers").is_some_and(|mode| mode != "off") {
        settings
            .warn("config.linkerd.io/proxy-log-http-headers: weft's proxies never log headers".to_owned());
    }
}

fn control_plane(settings: &Settings<'_>, env: &mut Env) {
    let config = settings.config;
    let (ns, domain) = (&config.control_namespace, &config.cluster_domain);
    let service = |name: &str, port: u16| format!("{name}.{ns}.svc.{domain}.:{port}");
    let networks: Vec<String> = config.cluster_networks.iter().map(ToString::to_string).collect();
    let networks = networks.join(",");
    let external = settings.flag("enable-external-profiles", config.injection.external_profiles);
    let suffixes = if external { ".".to_owned() } else { format!("svc.{domain}.") };
    env.put("DESTINATION_SVC_ADDR", service("linkerd-dst-headless", config.ports.destination));
    env.put("DESTINATION_SVC_NAME", account(settings, "linkerd-destination"));
    env.put("DESTINATION_PROFILE_NETWORKS", &networks);
    env.put("DESTINATION_PROFILE_SUFFIXES", suffixes);
    env.put(
        "DESTINATION_CONTEXT",
        r#"{"ns":"$(_pod_ns)","nodeName":"$(_pod_nodeName)","pod":"$(_pod_name)"}"#,
    );
    env.put("POLICY_SVC_ADDR", service("linkerd-policy", config.ports.policy));
    env.put("POLICY_SVC_NAME", account(settings, "linkerd-destination"));
    env.put("POLICY_WORKLOAD", r#"{"ns":"$(_pod_ns)","pod":"$(_pod_name)"}"#);
    env.put("POLICY_CLUSTER_NETWORKS", &networks);
    env.put("IDENTITY_SVC_ADDR", service("linkerd-identity-headless", config.ports.identity));
    env.put("IDENTITY_SVC_NAME", account(settings, "linkerd-identity"));
    let inject = &config.injection;
    env.put("CONTROL_STREAM_INITIAL_TIMEOUT", &inject.stream_initial_timeout);
    env.put("CONTROL_STREAM_IDLE_TIMEOUT", &inject.stream_idle_timeout);
    env.put("CONTROL_STREAM_LIFETIME", &inject.stream_lifetime);
}

fn listeners(settings: &Settings<'_>, env: &mut Env) {
    let inject = &settings.config.injection;
    let (any, local) = if settings.config.ipv6 { ("[::]", "[::1]") } else { ("0.0.0.0", "127.0.0.1") };
    let outbound = settings.port("outbound-port", inject.outbound_port);
    env.put("CONTROL_LISTEN_ADDR", format!("{any}:{}", settings.port("control-port", inject.control_port)));
    env.put("ADMIN_LISTEN_ADDR", format!("{any}:{}", settings.port("admin-port", inject.admin_port)));
    // Redirects of IPv4 arrive at an IPv4 listener.
    match settings.config.ipv6 {
        true => env.put("OUTBOUND_LISTEN_ADDRS", format!("127.0.0.1:{outbound},{local}:{outbound}")),
        false => env.put("OUTBOUND_LISTEN_ADDRS", format!("{local}:{outbound}")),
    }
    env.put("INBOUND_LISTEN_ADDR", format!("{any}:{}", settings.port("inbound-port", inject.inbound_port)));
}

fn inbound(settings: &Settings<'_>, env: &mut Env, ports: &[u16]) {
    let config = settings.config;
    let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
    let ports = ports.join(",");
    env.put("INBOUND_DEFAULT_POLICY", settings.access(DEFAULT_POLICY, config.default_policy).as_str());
    env.put("INBOUND_PORTS", ports);
    env.put(
        "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION",
        settings.ports(OPAQUE_PORTS, &config.default_opaque_ports.to_string()),
    );
    let inject = &config.injection;
    let identity = settings.ports("proxy-require-identity-inbound-ports", &inject.require_identity_ports);
    for (name, ports) in [
        ("INBOUND_PORTS_REQUIRE_IDENTITY", identity),
        ("INBOUND_PORTS_REQUIRE_TLS", inject.require_tls_ports.clone()),
    ] {
        if !ports.is_empty() {
            env.put(name, ports);
        }
    }
    if settings.flag("enable-gateway", false) {
        env.put("INBOUND_GATEWAY_SUFFIXES", format!("svc.{}.", config.cluster_domain));
    }
}

fn timeouts(settings: &Settings<'_>, env: &mut Env) {
    let inject = &settings.config.injection;
    for (name, annotation, default) in [
        ("INBOUND_CONNECT_TIMEOUT", "proxy-inbound-connect-timeout", &inject.inbound_connect_timeout),
        ("OUTBOUND_CONNECT_TIMEOUT", "proxy-outbound-connect-timeout", &inject.outbound_connect_timeout),
        (
            "OUTBOUND_DISCOVERY_IDLE_TIMEOUT",
            "proxy-outbound-discovery-cache-unused-timeout",
            &inject.outbound_discovery_idle,
        ),
        (
            "INBOUND_DISCOVERY_IDLE_TIMEOUT",
            "proxy-inbound-discovery-cache-unused-timeout",
            &inject.inbound_discovery_idle,
        ),
    ] {
        env.put(name, settings.duration(annotation, default));
    }
    for (side, annotation, default) in [
        ("INBOUND", "proxy-disable-inbound-protocol-detect-timeout", inject.inbound_detect_for_ever),
        ("OUTBOUND", "proxy-disable-outbound-protocol-detect-timeout", inject.outbound_detect_for_ever),
    ] {
        if settings.flag(annotation, default) {
            env.put(&format!("{side}_DETECT_TIMEOUT"), FOR_EVER);
        }
    }
    for side in ["INBOUND_ACCEPT", "OUTBOUND_CONNECT"] {
        env.put(&format!("{side}_KEEPALIVE"), "10000ms");
        env.put(&format!("{side}_USER_TIMEOUT"), "30s");
    }
    let grace = settings
        .duration("shutdown-grace-period", inject.shutdown_grace_period.as_deref().unwrap_or_default());
    if !grace.is_empty() {
        env.put("SHUTDOWN_GRACE_PERIOD", grace);
    }
}

fn workers(settings: &Settings<'_>, env: &mut Env) {
    let workers = &settings.config.injection.workers;
    let limit = settings.checked("proxy-cpu-limit", "an amount of CPU such as 500m or 2", cores);
    let of_config = || {
        let limit = settings.config.injection.resources.as_ref()?["limits"]["cpu"].as_str()?;
        cores(limit)
    };
    if workers.minimum > 1 {
        env.put("CORES_MIN", workers.minimum.to_string());
    }
    if let Some(cores) = limit.or_else(of_config) {
        env.put("CORES", cores.to_string());
    }
    if let Some(maximum) = workers.maximum {
        env.put("CORES_MAX", maximum.to_string());
    }
    let share = settings.checked("proxy-cpu-ratio-limit", "a number from 0 to 1", |text| {
        text.parse::<f64>().ok().filter(|ratio| (0.0..=1.0).contains(ratio))
    });
    if let Some(ratio) = share.or(workers.ratio) {
        env.put("CORES_MAX_RATIO", ratio.to_string());
    }
}

/// `500m`, `2`, `1.5`: cores, rounded up.
fn cores(text: &str) -> Option<u32> {
    let amount = match text.strip_suffix('m') {
        Some(thousandths) => thousandths.parse::<f64>().ok()? / 1000.0,
        None => text.parse::<f64>().ok()?,
    };
    // In range: checked just before.
    (amount > 0.0 && amount <= 4096.0).then_some(amount.ceil() as u32)
}

fn identity(settings: &Settings<'_>, env: &mut Env, roots: &str) {
    let config = settings.config;
    env.put("IDENTITY_DIR", IDENTITY_DIR);
    // The text holds until the file is there, and for proxies that know no file.
    env.put("IDENTITY_TRUST_ANCHORS", roots);
    env.put("WEFT_IDENTITY_TRUST_ANCHORS_FILE", format!("{ROOTS_DIR}/{ROOTS_KEY}"));
    env.put("IDENTITY_TOKEN_FILE", format!("{TOKEN_DIR}/{TOKEN_FILE}"));
    let (ns, domain) = (&config.control_namespace, &config.trust_domain);
    env.put("IDENTITY_LOCAL_NAME", format!("$(_pod_sa).$(_pod_ns).serviceaccount.identity.{ns}.{domain}"));
}

fn modes(settings: &Settings<'_>, env: &mut Env) {
    let inject = &settings.config.injection;
    let shutdown = settings.flag("proxy-admin-shutdown", inject.shutdown_endpoint);
    env.put("SHUTDOWN_ENDPOINT_ENABLED", if shutdown { "true" } else { "false" });
    if settings.annotation(INJECT) == Some("ingress") {
        env.put("INGRESS_MODE", "true");
    }
    if settings.flag("proxy-metrics-hostname-labels", inject.hostname_labels) {
        env.put("OUTBOUND_METRICS_HOSTNAME_LABELS", "true");
    }
}

fn tracing(settings: &Settings<'_>, env: &mut Env) {
    let Some(Tracing { endpoint, service_account, service_name, labels }) =
        &settings.config.injection.tracing
    else {
        return;
    };
    env.put("TRACE_COLLECTOR_SVC_ADDR", endpoint);
    if let Some((name, namespace)) = service_account {
        let ns = &settings.config.control_namespace;
        let id = format!("{name}.{namespace}.serviceaccount.identity.{ns}.{}", settings.config.trust_domain);
        env.put("TRACE_COLLECTOR_SVC_NAME", id);
    }
    env.put("TRACE_SERVICE_NAME", service_name);
    env.put("TRACE_ATTRIBUTES_PATH", format!("{PODINFO_DIR}/labels"));
    let own = settings.with_prefix("resource.opentelemetry.io/");
    let lines: Vec<String> = labels
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .chain(own)
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if !lines.is_empty() {
        env.put("TRACE_EXTRA_ATTRIBUTES", lines.join("\n"));
    }
}

/// Variables that the installation or annotations add; the more particular one wins.
fn extra(settings: &Settings<'_>) -> Vec<Value> {
    let mut all = settings.config.injection.extra_env.clone();
    let own =
        settings.checked(ADDITIONAL_ENV, "a JSON list of variables, each with a name and a value", env_list);
    for variable in own.unwrap_or_default() {
        all.retain(|known| known["name"] != variable["name"]);
        all.push(variable);
    }
    all
}

/// The most variables that annotations may add.
const MOST_VARIABLES: usize = 256;

fn env_list(text: &str) -> Option<Vec<Value>> {
    let list: Vec<Value> = serde_json::from_str(text).ok()?;
    let named = list.iter().all(|variable| variable["name"].as_str().is_some_and(|name| !name.is_empty()));
    (named && list.len() <= MOST_VARIABLES).then_some(list)
}

/// A namespace's variables and a pod's; the pod's win. `None` if the pod's own text must be looked at as it is.
pub(super) fn merge_env(namespace: &str, own: &str) -> Option<String> {
    let (mut all, own) = (env_list(namespace)?, env_list(own)?);
    for variable in own {
        all.retain(|known| known["name"] != variable["name"]);
        all.push(variable);
    }
    serde_json::to_string(&all).ok()
}
