//! What the controller is told when it starts.

use crate::ports::PortSet;
use ipnet::IpNet;
use std::{net::IpAddr, time::Duration};
use weft_kube::policy::{access::Access, authorization::IdentityDomain};
use weft_model::outbound::{Http2Client, Http2KeepAlive};

/// The ports that Linkerd opens to nobody's policy: proxies' tap and admin servers.
pub const CONTROL_PORT: u16 = 4190;
pub const ADMIN_PORT: u16 = 4191;
/// Opaque unless an annotation says otherwise, as in Linkerd.
pub const DEFAULT_OPAQUE_PORTS: &str = "25,587,3306,4444,5432,6379,9300,11211";

#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The address on which every server listens.
    pub bind: IpAddr,
    pub ports: Ports,
    /// Where the control plane's objects live; also part of every identity.
    pub control_namespace: String,
    pub cluster_domain: String,
    pub trust_domain: String,
    /// Addresses of pods and services. What lies outside is egress.
    pub cluster_networks: Vec<IpNet>,
    /// Where probes come from.
    pub probe_networks: Vec<IpNet>,
    /// For pods without an annotation of their own.
    pub default_policy: Access,
    pub default_opaque_ports: PortSet,
    /// Where EgressNetworks are that apply to namespaces without any of their own.
    pub global_egress_namespace: String,
    /// Requests may set their own timeouts and retries, by `l5d-` headers.
    pub allow_request_headers: bool,
    /// Meshed endpoints are dialled on their proxy's own port, with a transport header, whatever the protocol;
    /// otherwise only opaque ones are.
    pub transport_header: bool,
    pub ipv6: bool,
    /// Endpoints in the client's own zone get ten times the weight.
    pub zone_weights: bool,
    /// How clients speak HTTP/2 to meshed endpoints.
    pub http2: Http2Client,
    pub identity: IdentityConfig,
    pub injection: InjectionConfig,
    /// For each webhook, in the order of `install::webhooks::SERVICES`: somebody else keeps the Secret with its
    /// certificate, and somebody else tells the API server its CA.
    pub external_webhook_secrets: [bool; 3],
    pub external_webhook_cas: [bool; 3],
    /// Also answer plaintext HTTP/2 on the gRPC ports: for tests on loopback, never elsewhere.
    pub plaintext: bool,
    /// How often the Kubernetes API is asked whether it is there.
    pub heartbeat: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    pub destination: u16,
    pub policy: u16,
    pub identity: u16,
    pub webhook: u16,
    pub admin: u16,
}

#[derive(Clone, Debug)]
pub struct IdentityConfig {
    pub issuance_lifetime: Duration,
    /// By how much clocks may differ: certificates are valid from so long before they were made, and so much longer.
    pub clock_skew: Duration,
    /// The audience that workload tokens must have.
    pub audience: String,
}

/// An image and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub name: String,
    pub version: String,
    pub pull_policy: String,
}

impl Image {
    fn of(name: &str) -> Self {
        Image {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
        }
    }

    /// As a container names it.
    pub fn full(&self) -> String {
        format!("{}:{}", self.name, self.version)
    }
}

/// How many workers proxies have.
#[derive(Clone, Debug, PartialEq)]
pub struct Workers {
    pub minimum: u16,
    pub maximum: Option<u32>,
    /// Share of the machine's cores.
    pub ratio: Option<f64>,
}

/// Where spans go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracing {
    pub endpoint: String,
    /// Name and namespace of the collector's account, if it is meshed.
    pub service_account: Option<(String, String)>,
    pub service_name: String,
    pub labels: Vec<(String, String)>,
}

/// What the injector puts into pods unless annotations say otherwise.
#[derive(Clone, Debug)]
pub struct InjectionConfig {
    pub proxy_image: Image,
    pub init_image: Image,
    pub debug_image: Image,
    pub log_level: String,
    pub log_format: String,
    pub access_log: String,
    /// Ports never redirected to the inbound proxy, besides the proxy's own.
    pub skip_inbound_ports: String,
    pub skip_outbound_ports: String,
    pub skip_subnets: String,
    pub require_identity_ports: String,
    pub require_tls_ports: String,
    /// `requests` and `limits` of the proxy container, as Kubernetes writes them.
    pub resources: Option<serde_json::Value>,
    pub proxy_uid: u32,
    pub proxy_gid: Option<u32>,
    pub inbound_port: u16,
    pub outbound_port: u16,
    pub admin_port: u16,
    pub control_port: u16,
    pub native_sidecar: bool,
    pub await_proxy: bool,
    /// The program that waits for a proxy that is no native sidecar, within the proxy's container.
    pub await_command: Vec<String>,
    pub wait_before_exit: u32,
    pub shutdown_grace_period: Option<String>,
    pub shutdown_endpoint: bool,
    pub external_profiles: bool,
    pub hostname_labels: bool,
    pub inbound_connect_timeout: String,
    pub outbound_connect_timeout: String,
    pub inbound_discovery_idle: String,
    pub outbound_discovery_idle: String,
    pub inbound_detect_for_ever: bool,
    pub outbound_detect_for_ever: bool,
    pub stream_initial_timeout: String,
    pub stream_idle_timeout: String,
    pub stream_lifetime: String,
    pub workers: Workers,
    /// `{name, value}` of more variables.
    pub extra_env: Vec<serde_json::Value>,
    pub tracing: Option<Tracing>,
    /// Seconds, and how often, of the proxy's probes.
    pub live_delay: u16,
    pub live_timeout: u16,
    pub ready_delay: u16,
    pub ready_timeout: u16,
    pub startup_delay: u16,
    pub startup_period: u16,
    pub startup_failures: u16,
    /// A CNI plugin redirects: there is no linkerd-init.
    pub cni: bool,
    pub init_as_root: bool,
    pub init_uid: u32,
    pub init_gid: u32,
    pub init_privileged: bool,
    pub close_wait_seconds: Option<u32>,
    pub validator_connect: Option<String>,
    pub validator_listen: Option<String>,
    pub validator_timeout: String,
}

impl Default for Ports {
    fn default() -> Self {
        Ports { destination: 8086, policy: 8090, identity: 8080, webhook: 8443, admin: 9990 }
    }
}

impl Default for IdentityConfig {
    fn default() -> Self {
        IdentityConfig {
            issuance_lifetime: Duration::from_secs(24 * 3600),
            clock_skew: Duration::from_secs(20),
            audience: "identity.l5d.io".to_owned(),
        }
    }
}

impl Default for InjectionConfig {
    /// What `weft up` uses: one image for everything, and root in a user namespace of its own.
    fn default() -> Self {
        let text = str::to_owned;
        InjectionConfig {
            proxy_image: Image::of("weft.dev/weft"),
            init_image: Image::of("weft.dev/weft"),
            debug_image: Image::of("weft.dev/weft-debug"),
            log_level: text("warn,linkerd=info,weft=info"),
            log_format: text("plain"),
            access_log: String::new(),
            skip_inbound_ports: String::new(),
            skip_outbound_ports: String::new(),
            skip_subnets: String::new(),
            require_identity_ports: String::new(),
            require_tls_ports: String::new(),
            resources: None,
            proxy_uid: 2102,
            proxy_gid: None,
            inbound_port: 4143,
            outbound_port: 4140,
            admin_port: ADMIN_PORT,
            control_port: CONTROL_PORT,
            native_sidecar: true,
            await_proxy: true,
            await_command: vec![text("weft-proxy"), text("await")],
            wait_before_exit: 0,
            shutdown_grace_period: None,
            shutdown_endpoint: false,
            external_profiles: false,
            hostname_labels: false,
            inbound_connect_timeout: text("100ms"),
            outbound_connect_timeout: text("1000ms"),
            inbound_discovery_idle: text("90s"),
            outbound_discovery_idle: text("5s"),
            inbound_detect_for_ever: false,
            outbound_detect_for_ever: false,
            stream_initial_timeout: text("3s"),
            stream_idle_timeout: text("5m"),
            stream_lifetime: text("1h"),
            workers: Workers { minimum: 1, maximum: None, ratio: None },
            extra_env: Vec::new(),
            tracing: None,
            live_delay: 10,
            live_timeout: 1,
            ready_delay: 2,
            ready_timeout: 1,
            startup_delay: 0,
            startup_period: 1,
            startup_failures: 120,
            cni: false,
            init_as_root: true,
            init_uid: 0,
            init_gid: 0,
            init_privileged: false,
            close_wait_seconds: None,
            validator_connect: None,
            validator_listen: None,
            validator_timeout: text("10s"),
        }
    }
}

impl ControllerConfig {
    /// Linkerd's defaults, listening on `bind`, for a cluster with these networks.
    pub fn new(bind: IpAddr, cluster_networks: Vec<IpNet>) -> Self {
        ControllerConfig {
            bind,
            ports: Ports::default(),
            control_namespace: "linkerd".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            cluster_networks,
            probe_networks: all_networks(),
            default_policy: Access::Allow { authenticated: false, cluster_only: false },
            default_opaque_ports: PortSet::parse(DEFAULT_OPAQUE_PORTS),
            global_egress_namespace: "linkerd-egress".to_owned(),
            allow_request_headers: false,
            transport_header: true,
            ipv6: false,
            zone_weights: false,
            http2: Http2Client {
                keep_alive: Some(Http2KeepAlive {
                    interval: Duration::from_secs(10),
                    timeout: Some(Duration::from_secs(3)),
                    while_idle: true,
                }),
                ..Http2Client::default()
            },
            identity: IdentityConfig::default(),
            injection: InjectionConfig::default(),
            external_webhook_secrets: [false; 3],
            external_webhook_cas: [false; 3],
            plaintext: false,
            heartbeat: Duration::from_secs(5),
        }
    }

    pub fn identities(&self) -> IdentityDomain<'_> {
        IdentityDomain { control_namespace: &self.control_namespace, trust_domain: &self.trust_domain }
    }

    pub fn in_cluster(&self, ip: IpAddr) -> bool {
        self.cluster_networks.iter().any(|net| net.contains(&ip))
    }

    /// `store.shop.svc.cluster.local`
    pub fn service_name(&self, namespace: &str, name: &str) -> String {
        format!("{name}.{namespace}.svc.{}", self.cluster_domain)
    }
}

/// Every address of both families.
pub fn all_networks() -> Vec<IpNet> {
    vec![IpNet::V4(ipnet::Ipv4Net::default()), IpNet::V6(ipnet::Ipv6Net::default())]
}
