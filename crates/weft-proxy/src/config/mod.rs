//! Boot settings, from the environment: Linkerd's own `LINKERD2_PROXY_*` variables.
//!
//! Every variable is read once, and every mistake is reported, each with the variable, its value and the form that was
//! expected. Live policy is not here: it comes from the controller and may change while the proxy runs.

pub(crate) mod cores;
mod env;
pub(crate) mod parse;
mod policy;
mod table;
mod telemetry;
#[cfg(test)]
mod tests;

pub use table::page;

use crate::{control::lookup::Limits, http::server};
use ipnet::IpNet;
use std::{collections::BTreeSet, net::IpAddr, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use weft_fault::Fault;
use weft_model::{identity::Identity, inbound::ServerPolicy, outbound::Backoff};

/// Every setting of the process, checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub inbound: Inbound,
    pub outbound: Outbound,
    pub admin: SocketAddr,
    pub tap: Option<Tap>,
    pub shutdown_endpoint: bool,
    pub shutdown_grace: Duration,
    pub control: Control,
    pub identity: IdentitySettings,
    /// `GetProfile` is asked for addresses in these only.
    pub profile_networks: Vec<IpNet>,
    /// Lower case, without the trailing dot.
    pub profile_suffixes: Vec<String>,
    pub cluster_networks: Vec<IpNet>,
    pub workers: usize,
    pub log: LogSettings,
    pub access_log: Option<AccessLog>,
    pub trace: Option<Trace>,
    pub metrics_retain_idle: Duration,
    /// What this proxy's own connections carry where redirect rules cannot know them by their user.
    pub socket_mark: Option<u32>,
    /// The largest head of a message and the largest header list, of either version and at either end.
    pub max_head: usize,
    /// What whoever set the variables should know; told once, when there is a log.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Inbound {
    pub listen: SocketAddr,
    pub sockets: Sockets,
    pub detect_timeout: Duration,
    pub connect_timeout: Duration,
    pub connect_backoff: Backoff,
    pub queue_capacity: usize,
    pub failfast_timeout: Duration,
    /// Of one worker: its share of what the variable says.
    pub max_in_flight: usize,
    pub pool_idle_timeout: Duration,
    pub max_idle_per_endpoint: usize,
    /// How long a request waits for the profile of its name.
    pub profile_timeout: Duration,
    /// A port's policy is dropped when nothing used it for so long.
    pub discovery_idle: Duration,
    /// What applies until the controller answers, and where it never does.
    pub default_policy: Arc<ServerPolicy>,
    /// The same, for ports that require an identity.
    pub identity_policy: Arc<ServerPolicy>,
    pub identity_ports: BTreeSet<u16>,
    /// Watched from the start and for good.
    pub ports: BTreeSet<u16>,
    /// Opaque until the controller says otherwise.
    pub opaque_ports: BTreeSet<u16>,
    /// This pod's addresses; empty: any.
    pub ips: BTreeSet<IpAddr>,
    /// Lower case, without the trailing dot.
    pub gateway_suffixes: Vec<String>,
    /// Metrics carry the authority that clients send.
    pub authority_labels: bool,
    pub h2: Http2,
}

#[derive(Clone, Debug)]
pub struct Outbound {
    pub listen: Vec<SocketAddr>,
    pub sockets: Sockets,
    pub detect_timeout: Duration,
    /// TCP, TLS and the transport header together.
    pub connect_timeout: Duration,
    pub connect_backoff: Backoff,
    pub queue_capacity: usize,
    /// How long a request waits for an endpoint, and a connection for discovery.
    pub failfast_timeout: Duration,
    /// Opaque connections that may wait for an endpoint, and how long.
    pub tcp_queue_capacity: usize,
    pub tcp_failfast_timeout: Duration,
    /// Of one worker: its share of what the variable says.
    pub max_in_flight: usize,
    pub pool_idle_timeout: Duration,
    pub max_idle_per_endpoint: usize,
    pub discovery_idle: Duration,
    /// An answer that is older is asked for anew, however busy its destination is.
    pub discovery_max_age: Option<Duration>,
    pub ingress_mode: bool,
    /// Endpoints on loopback are dialled: what answers there is this pod itself, so it is for tests.
    pub loopback: bool,
    /// HTTP/1 goes to another weft proxy as it is.
    pub weft_http1: bool,
    /// Requests that were sent are sent again where that is certain to do no harm.
    pub resend: bool,
    pub informational_headers: bool,
    /// Metrics carry the host name of requests.
    pub hostname_labels: bool,
    pub h2: Http2,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    pub accept_keepalive: Option<Duration>,
    pub connect_keepalive: Option<Duration>,
    pub accept_user_timeout: Option<Duration>,
    pub connect_user_timeout: Option<Duration>,
    pub backlog: Option<u32>,
}

/// HTTP/2 settings of one side's server; `None` leaves the choice to the code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http2 {
    pub initial_stream_window: Option<u32>,
    pub initial_connection_window: Option<u32>,
    pub adaptive_flow_control: bool,
    pub keep_alive_interval: Option<Duration>,
    pub keep_alive_timeout: Option<Duration>,
    pub max_concurrent_streams: Option<u32>,
    pub max_frame_size: Option<u32>,
    pub max_header_list_size: Option<u32>,
    pub max_pending_accept_reset_streams: Option<usize>,
    pub max_send_buf_size: Option<usize>,
    /// How long a client, of either version, may take nothing of an answer that waits for it.
    pub client_stall: Option<Duration>,
}

/// Where the control plane is and how this proxy introduces itself.
#[derive(Clone, Debug)]
pub struct Control {
    pub destination: ControlAddr,
    pub policy: ControlAddr,
    /// `None`: SPIRE issues the certificates.
    pub identity: Option<ControlAddr>,
    /// Opaque to the proxy.
    pub workload: String,
    /// Opaque to the proxy.
    pub context: String,
    /// Limits of a stream, for controllers that are not on loopback.
    pub initial_timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub lifetime: Option<Duration>,
    /// Bounds of how long an answer of the DNS is used.
    pub min_ttl: Option<Duration>,
    pub max_ttl: Option<Duration>,
}

/// Who may tap, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    pub listen: SocketAddr,
    pub client: Identity,
}

/// Where spans go, and what describes this process in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub collector: ControlAddr,
    pub attributes: Vec<(String, String)>,
}

/// One line for each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLog {
    pub format: AccessLogFormat,
    pub filter: crate::access_log::Filter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    Apache,
    Json,
}

/// One service of the control plane. Without a name it is on loopback and speaks plaintext.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlAddr {
    pub host: String,
    pub port: u16,
    pub name: Option<Identity>,
}

#[derive(Clone, Debug)]
pub struct IdentitySettings {
    /// The identity, which is also what the certificate has to contain.
    pub local_name: Identity,
    /// The SNI under which peers dial; the same as `local_name` unless that is a URI.
    pub server_name: Identity,
    pub trust_anchors_pem: String,
    /// Wins over the text where it can be read, and is followed.
    pub trust_anchors_file: Option<PathBuf>,
    /// A directory that may hold `key.p8` and `csr.der`, made by Linkerd's launcher.
    pub dir: Option<PathBuf>,
    pub token_file: PathBuf,
    pub min_refresh: Duration,
    pub max_refresh: Duration,
    /// The socket of a SPIRE agent, which issues the certificates instead of the control plane.
    pub spire: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    pub filter: String,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Plain,
    Json,
}

impl Control {
    /// What bounds streams of controllers that are not on loopback.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { initial: self.initial_timeout, idle: self.idle_timeout, lifetime: self.lifetime }
    }
}

/// Is a name a suffix, or below it?
pub(crate) fn is_under(host: &str, suffix: &str) -> bool {
    let head = host.len().checked_sub(suffix.len());
    let Some((head, tail)) = head.and_then(|at| host.split_at_checked(at)) else { return false };
    tail.eq_ignore_ascii_case(suffix) && (head.is_empty() || head.ends_with('.'))
}

impl Config {
    pub(crate) fn inbound_server(&self) -> server::Settings<'_> {
        server::Settings { max_head: self.max_head, h2: &self.inbound.h2 }
    }

    pub(crate) fn outbound_server(&self) -> server::Settings<'_> {
        server::Settings { max_head: self.max_head, h2: &self.outbound.h2 }
    }

    /// Reads the process's environment. All mistakes are returned together.
    pub fn from_env() -> Result<Config, Vec<Fault>> {
        let mut config = Config::from_lookup(|name| std::env::var_os(name))?;
        env::useless(std::env::vars_os().map(|(name, _)| name), &mut config.warnings);
        Ok(config)
    }

    /// Is `ip` within the mesh's networks, so that a missing identity is a question and not an answer?
    pub fn in_cluster(&self, ip: IpAddr) -> bool {
        [&self.cluster_networks, &self.profile_networks]
            .iter()
            .any(|networks| networks.iter().any(|net| net.contains(&ip)))
    }

    /// May the controller be asked about this name?
    pub fn asks_about(&self, host: &str) -> bool {
        self.profile_suffixes.iter().any(|suffix| is_under(host.trim_end_matches('.'), suffix))
    }

    /// Is `addr` one of this proxy's own listeners? Dialling it would be a loop.
    pub fn is_own_listener(&self, addr: SocketAddr) -> bool {
        let ours = |listen: &SocketAddr| {
            listen.port() == addr.port()
                && (listen.ip() == addr.ip()
                    || (listen.ip().is_unspecified()
                        && (addr.ip().is_loopback() || self.inbound.ips.contains(&addr.ip()))))
        };
        ours(&self.inbound.listen) || self.outbound.listen.iter().any(ours)
    }

    /// `namespace/pod` as far as `POLICY_WORKLOAD` says, else the text itself: the source of records.
    pub fn pod_name(&self) -> String {
        let workload = self.control.workload.as_str();
        let json: Option<serde_json::Value> = serde_json::from_str(workload).ok();
        if let Some(json) = json
            && let (Some(ns), Some(pod)) =
                (json.get("ns").and_then(|v| v.as_str()), json.get("pod").and_then(|v| v.as_str()))
        {
            return format!("{ns}/{pod}");
        }
        workload.replace(':', "/")
    }
}
