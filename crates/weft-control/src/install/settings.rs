//! From values to what the controller is told.

use super::values::Values;
use crate::{
    config::{ControllerConfig, IdentityConfig, Image, InjectionConfig, Tracing, Workers},
    ports::PortSet,
};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weft_kube::policy::access::Access;

/// The configuration of a controller in `namespace`.
pub fn controller_config(values: &Values, namespace: &str) -> ControllerConfig {
    let ipv6 = !values.flag("disableIPv6");
    let bind = if ipv6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    let mut config = ControllerConfig::new(bind, values.networks("clusterNetworks"));
    namespace.clone_into(&mut config.control_namespace);
    config.cluster_domain = values.text("clusterDomain");
    config.trust_domain = values.some("identityTrustDomain").unwrap_or_else(|| config.cluster_domain.clone());
    config.probe_networks = values.networks("policyController.probeNetworks");
    config.default_policy =
        Access::parse(&values.text("proxy.defaultInboundPolicy")).unwrap_or(config.default_policy);
    config.default_opaque_ports = PortSet::parse(&values.text("proxy.opaquePorts"));
    config.global_egress_namespace = values.text("egress.globalEgressNetworkNamespace");
    config.allow_request_headers = values.flag("policyController.allowL5dRequestHeaders");
    config.transport_header = values.text("proxy.outboundTransportMode") != "transparent";
    config.ipv6 = ipv6;
    config.identity = IdentityConfig {
        issuance_lifetime: values.duration("identity.issuer.issuanceLifetime"),
        clock_skew: values.duration("identity.issuer.clockSkewAllowance"),
        ..config.identity
    };
    config.injection = injection(values);
    config.external_webhook_secrets =
        super::webhooks::VALUES.map(|name| values.flag(&format!("{name}.externalSecret")));
    config.external_webhook_cas = super::webhooks::VALUES.map(|name| {
        ["caBundle", "injectCaFrom", "injectCaFromSecret"]
            .iter()
            .any(|from| values.some(&format!("{name}.{from}")).is_some())
    });
    config
}

fn injection(values: &Values) -> InjectionConfig {
    let u16_at = |path: &str, default: u16| u16::try_from(values.number(path)).unwrap_or(default);
    let u32_at = |path: &str| u32::try_from(values.number(path)).ok();
    let text = |path: &str| values.text(path);
    let defaults = InjectionConfig::default();
    InjectionConfig {
        proxy_image: image(values, "proxy.image"),
        init_image: image(values, "proxyInit.image"),
        debug_image: image(values, "debugContainer.image"),
        log_level: text("proxy.logLevel"),
        log_format: text("proxy.logFormat"),
        access_log: text("proxy.accessLog"),
        skip_inbound_ports: text("proxyInit.ignoreInboundPorts"),
        skip_outbound_ports: text("proxyInit.ignoreOutboundPorts"),
        skip_subnets: text("proxyInit.skipSubnets"),
        require_identity_ports: text("proxy.requireIdentityOnInboundPorts"),
        require_tls_ports: text("proxy.requireTLSOnInboundPorts"),
        resources: resources(values),
        proxy_uid: u32_at("proxy.uid").unwrap_or(defaults.proxy_uid),
        proxy_gid: u32_at("proxy.gid"),
        inbound_port: u16_at("proxy.ports.inbound", defaults.inbound_port),
        outbound_port: u16_at("proxy.ports.outbound", defaults.outbound_port),
        admin_port: u16_at("proxy.ports.admin", defaults.admin_port),
        control_port: u16_at("proxy.ports.control", defaults.control_port),
        native_sidecar: values.flag("proxy.nativeSidecar"),
        await_command: defaults.await_command,
        await_proxy: values.flag("proxy.await"),
        wait_before_exit: u32_at("proxy.waitBeforeExitSeconds").unwrap_or_default(),
        shutdown_grace_period: values.some("proxy.shutdownGracePeriod"),
        shutdown_endpoint: values.flag("proxy.enableShutdownEndpoint"),
        external_profiles: values.flag("proxy.enableExternalProfiles"),
        hostname_labels: values.flag("proxy.metrics.hostnameLabels"),
        inbound_connect_timeout: text("proxy.inboundConnectTimeout"),
        outbound_connect_timeout: text("proxy.outboundConnectTimeout"),
        inbound_discovery_idle: text("proxy.inboundDiscoveryCacheUnusedTimeout"),
        outbound_discovery_idle: text("proxy.outboundDiscoveryCacheUnusedTimeout"),
        inbound_detect_for_ever: values.flag("proxy.disableInboundProtocolDetectTimeout"),
        outbound_detect_for_ever: values.flag("proxy.disableOutboundProtocolDetectTimeout"),
        stream_initial_timeout: text("proxy.control.streams.initialTimeout"),
        stream_idle_timeout: text("proxy.control.streams.idleTimeout"),
        stream_lifetime: text("proxy.control.streams.lifetime"),
        workers: Workers {
            minimum: u16_at("proxy.runtime.workers.minimum", 1),
            maximum: u32_at("proxy.runtime.workers.maximum").filter(|n| *n > 0),
            ratio: values.get("proxy.runtime.workers.maximumCPURatio").as_f64().filter(|r| *r > 0.0),
        },
        extra_env: ["proxy.additionalEnv", "proxy.experimentalEnv"]
            .iter()
            .filter_map(|path| values.get(path).as_array())
            .flatten()
            .cloned()
            .collect(),
        tracing: tracing(values),
        live_delay: u16_at("proxy.livenessProbe.initialDelaySeconds", 10),
        live_timeout: u16_at("proxy.livenessProbe.timeoutSeconds", 1),
        ready_delay: u16_at("proxy.readinessProbe.initialDelaySeconds", 2),
        ready_timeout: u16_at("proxy.readinessProbe.timeoutSeconds", 1),
        startup_delay: u16_at("proxy.startupProbe.initialDelaySeconds", 0),
        startup_period: u16_at("proxy.startupProbe.periodSeconds", 1),
        startup_failures: u16_at("proxy.startupProbe.failureThreshold", 120),
        cni: values.flag("cniEnabled"),
        init_as_root: values.flag("proxyInit.runAsRoot"),
        init_uid: u32_at("proxyInit.runAsUser").unwrap_or_default(),
        init_gid: u32_at("proxyInit.runAsGroup").unwrap_or_default(),
        init_privileged: values.flag("proxyInit.privileged"),
        close_wait_seconds: u32_at("proxyInit.closeWaitTimeoutSecs").filter(|s| *s > 0),
        validator_connect: values.some("networkValidator.connectAddr"),
        validator_listen: values.some("networkValidator.listenAddr"),
        validator_timeout: text("networkValidator.timeout"),
    }
}

fn image(values: &Values, path: &str) -> Image {
    let at = |name: &str| values.some(&format!("{path}.{name}"));
    Image {
        name: at("name").unwrap_or_default(),
        version: at("version").unwrap_or_else(|| values.text("linkerdVersion")),
        pull_policy: at("pullPolicy").unwrap_or_else(|| values.text("imagePullPolicy")),
    }
}

/// `requests` and `limits` as Kubernetes writes them; Linkerd's values have it the other way round.
fn resources(values: &Values) -> Option<Value> {
    let mut resources = json!({});
    for kind in ["cpu", "memory", "ephemeral-storage"] {
        for (key, list) in [("request", "requests"), ("limit", "limits")] {
            if let Some(amount) = values.some(&format!("proxy.resources.{kind}.{key}")) {
                resources[list][kind] = json!(amount);
            }
        }
    }
    (resources != json!({})).then_some(resources)
}

fn tracing(values: &Values) -> Option<Tracing> {
    let endpoint = values.some("proxy.tracing.collector.endpoint")?;
    values.flag("proxy.tracing.enabled").then(|| {
        let at = |name: &str| values.some(&format!("proxy.tracing.collector.meshIdentity.{name}"));
        Tracing {
            endpoint,
            service_account: at("serviceAccountName").zip(at("namespace")),
            service_name: values.text("proxy.tracing.traceServiceName"),
            labels: values
                .get("proxy.tracing.labels")
                .as_object()
                .into_iter()
                .flatten()
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_settings() {
        let overrides = json!({"clusterDomain": "east.local", "disableIPv6": false,
            "proxy": {"image": {"version": "v7"}, "resources": {"cpu": {"limit": "2"}, "memory": {"request": "1Mi"}},
                "gid": 5, "defaultInboundPolicy": "deny", "outboundTransportMode": "transparent"},
            "identity": {"issuer": {"issuanceLifetime": "1h", "clockSkewAllowance": "90s"}}});
        let config = controller_config(&Values::with(&overrides, true).unwrap(), "mesh");
        assert_eq!(config.control_namespace, "mesh");
        assert_eq!(config.trust_domain, "east.local");
        assert!(config.bind.is_ipv6() && !config.transport_header);
        assert_eq!(config.default_policy, Access::Deny);
        assert_eq!(config.identity.issuance_lifetime.as_secs(), 3600);
        assert_eq!(config.identity.clock_skew.as_secs(), 90);
        assert_eq!(config.injection.proxy_image.full(), "weft.dev/weft-proxy:v7");
        assert_eq!(config.injection.proxy_gid, Some(5));
        assert_eq!(
            config.injection.resources,
            Some(
                json!({"requests": {"cpu": "100m", "memory": "1Mi"}, "limits": {"cpu": "2", "memory": "250Mi"}})
            )
        );
    }

    #[test]
    fn the_defaults_are_those_of_one_machine() {
        let config = controller_config(&Values::defaults(false), "linkerd");
        let local = ControllerConfig::new(config.bind, vec![]);
        assert_eq!(config.default_policy, local.default_policy);
        assert_eq!(config.default_opaque_ports, local.default_opaque_ports);
        assert_eq!(config.injection.startup_failures, local.injection.startup_failures);
        assert_eq!(config.injection.inbound_connect_timeout, local.injection.inbound_connect_timeout);
    }
}
