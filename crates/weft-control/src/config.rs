//! What the controller is told when it starts.

use crate::ports::PortSet;
use ipnet::IpNet;
use std::{net::IpAddr, time::Duration};
use weft_kube::policy::{access::Access, authorization::IdentityDomain};

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
    pub identity: IdentityConfig,
    pub injection: InjectionConfig,
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
    /// The audience that workload tokens must have.
    pub audience: String,
}

/// What the injector puts into pods unless annotations say otherwise.
#[derive(Clone, Debug)]
pub struct InjectionConfig {
    /// Image of both containers.
    pub image: String,
    pub log_level: String,
    pub log_format: String,
    /// Ports never redirected to the inbound proxy, besides the proxy's own.
    pub skip_inbound_ports: String,
    pub skip_outbound_ports: String,
    /// `requests` and `limits` of the proxy container, as Kubernetes writes them.
    pub resources: Option<serde_json::Value>,
    pub proxy_uid: u32,
    pub inbound_port: u16,
    pub outbound_port: u16,
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
            audience: "identity.l5d.io".to_owned(),
        }
    }
}

impl Default for InjectionConfig {
    fn default() -> Self {
        InjectionConfig {
            image: format!("weft.dev/weft:{}", env!("CARGO_PKG_VERSION")),
            log_level: "warn,linkerd=info,weft=info".to_owned(),
            log_format: "plain".to_owned(),
            skip_inbound_ports: String::new(),
            skip_outbound_ports: String::new(),
            resources: None,
            proxy_uid: 2102,
            inbound_port: 4143,
            outbound_port: 4140,
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
            identity: IdentityConfig::default(),
            injection: InjectionConfig::default(),
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
