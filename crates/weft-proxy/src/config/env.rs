//! The table of variables: what each one is called, its form and its default.

use super::{
    Config, Control, ControlAddr, Http2, IdentitySettings, Inbound, LogFormat, LogSettings, Outbound,
    Sockets,
    parse::{Vars, authority},
};
use ipnet::IpNet;
use std::{
    collections::BTreeSet, ffi::OsString, net::IpAddr, net::SocketAddr, path::PathBuf, sync::Arc,
    time::Duration,
};
use weft_fault::Fault;
use weft_model::{
    identity::Identity,
    inbound::{Authn, Authorization, HttpPolicy, Network, Protocol, ServerPolicy, Suffix},
    meta::Meta,
    outbound::Backoff,
};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Config {
    /// Reads the variables that `lookup` finds by their full name.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Config, Vec<Fault>> {
        let mut vars = Vars::new(&lookup);
        let config = read(&mut vars);
        vars.finish(config)
    }
}

/// `None` only when a fault says why.
fn read(vars: &mut Vars<'_>) -> Option<Config> {
    let cluster_networks = vars.networks("POLICY_CLUSTER_NETWORKS");
    let profile_networks = vars.networks("DESTINATION_PROFILE_NETWORKS");
    let profile_suffixes = vars
        .list("DESTINATION_PROFILE_SUFFIXES", "DNS suffixes, separated by commas", suffix)
        .unwrap_or_else(|| vec!["svc.cluster.local".to_string()]);

    let detect_timeout = vars.duration("INBOUND_DETECT_TIMEOUT").unwrap_or(secs(10));
    let admin = vars.socket("ADMIN_LISTEN_ADDR").unwrap_or(SocketAddr::from(([127, 0, 0, 1], 4191)));
    let mut ports = vars.ports("INBOUND_PORTS");
    ports.insert(admin.port());
    let inbound = Inbound {
        listen: vars.socket("INBOUND_LISTEN_ADDR").unwrap_or(SocketAddr::from(([0, 0, 0, 0], 4143))),
        sockets: sockets(vars, "INBOUND"),
        detect_timeout,
        connect_timeout: vars.duration("INBOUND_CONNECT_TIMEOUT").unwrap_or(ms(300)),
        connect_backoff: backoff(vars, "INBOUND", secs(10)),
        queue_capacity: vars.number("INBOUND_HTTP_QUEUE_CAPACITY").unwrap_or(10_000),
        failfast_timeout: vars.duration("INBOUND_HTTP_FAILFAST_TIMEOUT").unwrap_or(secs(1)),
        max_in_flight: vars.number("INBOUND_MAX_IN_FLIGHT").unwrap_or(100_000),
        pool_idle_timeout: vars.duration("INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT").unwrap_or(secs(3)),
        max_idle_per_endpoint: vars.number("MAX_IDLE_CONNS_PER_ENDPOINT").unwrap_or(10_000),
        discovery_idle: vars.duration("INBOUND_DISCOVERY_IDLE_TIMEOUT").unwrap_or(secs(90)),
        default_policy: Arc::new(default_policy(vars, &cluster_networks, detect_timeout)),
        ports,
        opaque_ports: vars.ports("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION"),
        ips: vars.ips("INBOUND_IPS"),
        gateway_suffixes: vars
            .list("INBOUND_GATEWAY_SUFFIXES", "DNS suffixes, separated by commas", suffix)
            .unwrap_or_default(),
        h2: http2(vars, "INBOUND"),
    };

    let ingress_mode = vars.flag("INGRESS_MODE").unwrap_or(false);
    let outbound = Outbound {
        listen: outbound_listen(vars),
        sockets: sockets(vars, "OUTBOUND"),
        detect_timeout: vars.duration("OUTBOUND_DETECT_TIMEOUT").unwrap_or(secs(10)),
        connect_timeout: vars.duration("OUTBOUND_CONNECT_TIMEOUT").unwrap_or(secs(1)),
        connect_backoff: backoff(vars, "OUTBOUND", secs(60)),
        queue_capacity: vars.number("OUTBOUND_HTTP_QUEUE_CAPACITY").unwrap_or(10_000),
        failfast_timeout: vars.duration("OUTBOUND_HTTP_FAILFAST_TIMEOUT").unwrap_or(secs(3)),
        max_in_flight: vars.number("OUTBOUND_MAX_IN_FLIGHT").unwrap_or(100_000),
        pool_idle_timeout: vars.duration("OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT").unwrap_or(secs(3)),
        max_idle_per_endpoint: vars.number("OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT").unwrap_or(10_000),
        discovery_idle: vars.duration("OUTBOUND_DISCOVERY_IDLE_TIMEOUT").unwrap_or(secs(5)),
        ingress_mode,
        informational_headers: !vars.flag("OUTBOUND_DISABLE_INFORMATIONAL_HEADERS").unwrap_or(ingress_mode),
        h2: http2(vars, "OUTBOUND"),
    };

    // Everything is read before anything is given up, so that every mistake is reported.
    let (identity, control) = (identity(vars), control(vars));
    let tap = vars.socket("CONTROL_LISTEN_ADDR").unwrap_or(SocketAddr::from(([0, 0, 0, 0], 4190)));
    let shutdown_endpoint = vars.flag("SHUTDOWN_ENDPOINT_ENABLED").unwrap_or(false);
    let shutdown_grace = vars.duration("SHUTDOWN_GRACE_PERIOD").unwrap_or(secs(120));
    let workers = workers(vars);
    let log = log(vars);
    let metrics_retain_idle = vars.duration("METRICS_RETAIN_IDLE").unwrap_or(secs(600));
    Some(Config {
        inbound,
        outbound,
        admin,
        tap,
        shutdown_endpoint,
        shutdown_grace,
        control: control?,
        identity: identity?,
        profile_networks,
        profile_suffixes,
        cluster_networks,
        workers,
        log,
        metrics_retain_idle,
    })
}

/// A DNS suffix in the form in which names are compared.
fn suffix(text: &str) -> Option<String> {
    let text = text.trim_matches('.').to_ascii_lowercase();
    (!text.is_empty() && !text.contains([' ', '/', ':'])).then_some(text)
}

fn sockets(vars: &mut Vars<'_>, side: &str) -> Sockets {
    Sockets {
        accept_keepalive: vars.duration(&format!("{side}_ACCEPT_KEEPALIVE")),
        connect_keepalive: vars.duration(&format!("{side}_CONNECT_KEEPALIVE")),
        accept_user_timeout: vars.duration(&format!("{side}_ACCEPT_USER_TIMEOUT")),
        connect_user_timeout: vars.duration(&format!("{side}_CONNECT_USER_TIMEOUT")),
        backlog: vars.number("TCP_LISTEN_BACKLOG"),
    }
}

fn backoff(vars: &mut Vars<'_>, side: &str, max: Duration) -> Backoff {
    let backoff = Backoff {
        min: vars.duration(&format!("{side}_CONNECT_EXP_BACKOFF_MIN")).unwrap_or(ms(100)),
        max: vars.duration(&format!("{side}_CONNECT_EXP_BACKOFF_MAX")).unwrap_or(max),
        jitter: vars.ratio(&format!("{side}_CONNECT_EXP_BACKOFF_JITTER")).unwrap_or(0.1),
    };
    if backoff.min > backoff.max || backoff.min.is_zero() {
        let name = format!("{side}_CONNECT_EXP_BACKOFF_MIN");
        vars.reject(&name, &format!("{:?}", backoff.min), "more than 0 and at most the …_BACKOFF_MAX");
    }
    backoff
}

fn http2(vars: &mut Vars<'_>, side: &str) -> Http2 {
    let mut number = |name: &str| vars.number::<u32>(&format!("{side}_SERVER_HTTP2_{name}"));
    let (stream, connection) =
        (number("INITIAL_STREAM_WINDOW_SIZE"), number("INITIAL_CONNECTION_WINDOW_SIZE"));
    let (streams, frame, headers) =
        (number("MAX_CONCURRENT_STREAMS"), number("MAX_FRAME_SIZE"), number("MAX_HEADER_LIST_SIZE"));
    let (resets, send) = (number("MAX_PENDING_ACCEPT_RESET_STREAMS"), number("MAX_SEND_BUF_SIZE"));
    Http2 {
        initial_stream_window: stream.or_else(|| vars.number("HTTP2_INITIAL_STREAM_WINDOW_SIZE")),
        initial_connection_window: connection.or_else(|| vars.number("HTTP2_INITIAL_CONNECTION_WINDOW_SIZE")),
        adaptive_flow_control: vars
            .flag(&format!("{side}_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL"))
            .unwrap_or(false),
        keep_alive_interval: vars.duration(&format!("{side}_SERVER_HTTP2_KEEP_ALIVE_INTERVAL")),
        keep_alive_timeout: vars.duration(&format!("{side}_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT")),
        max_concurrent_streams: streams,
        max_frame_size: frame,
        max_header_list_size: headers,
        max_pending_accept_reset_streams: resets.map(|n| n as usize),
        max_send_buf_size: send.map(|n| n as usize),
    }
}

fn outbound_listen(vars: &mut Vars<'_>) -> Vec<SocketAddr> {
    let many = vars.parse("OUTBOUND_LISTEN_ADDRS", "one or two of IP:PORT, separated by a comma", |text| {
        let all: Option<Vec<SocketAddr>> = text.split(',').map(|item| item.trim().parse().ok()).collect();
        all.filter(|all| (1..=2).contains(&all.len()))
    });
    let one = vars.socket("OUTBOUND_LISTEN_ADDR");
    many.unwrap_or_else(|| vec![one.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 4140)))])
}

fn default_policy(vars: &mut Vars<'_>, cluster: &[IpNet], detect_timeout: Duration) -> ServerPolicy {
    const EXPECTED: &str = "deny, all-authenticated, all-unauthenticated, cluster-authenticated, \
                            cluster-unauthenticated or audit; those about the cluster need POLICY_CLUSTER_NETWORKS";
    let name = vars.text("INBOUND_DEFAULT_POLICY").unwrap_or_else(|| "all-unauthenticated".to_string());
    match server_policy(&name, cluster, detect_timeout) {
        Some(policy) => policy,
        None => {
            vars.reject("INBOUND_DEFAULT_POLICY", &name, EXPECTED);
            // Never used: the fault above ends the start.
            ServerPolicy {
                meta: Arc::new(Meta::default_named("deny")),
                protocol: Protocol::Opaque,
                authorizations: Vec::new(),
                audit: false,
            }
        }
    }
}

/// The policy that one of Linkerd's default policy names stands for.
pub(super) fn server_policy(name: &str, cluster: &[IpNet], detect_timeout: Duration) -> Option<ServerPolicy> {
    let anywhere = || -> Vec<IpNet> {
        vec![
            IpNet::new(IpAddr::from([0u8; 4]), 0).expect("a prefix of 0 is valid"),
            IpNet::new(IpAddr::from([0u8; 16]), 0).expect("a prefix of 0 is valid"),
        ]
    };
    let any_identity = || Authn::Identities { exact: BTreeSet::new(), suffixes: vec![Suffix(String::new())] };
    let (networks, authn) = match name {
        "deny" => (Vec::new(), None),
        "all-authenticated" => (anywhere(), Some(any_identity())),
        "all-unauthenticated" => (anywhere(), Some(Authn::Unauthenticated)),
        "cluster-authenticated" if !cluster.is_empty() => (cluster.to_vec(), Some(any_identity())),
        "cluster-unauthenticated" if !cluster.is_empty() => (cluster.to_vec(), Some(Authn::Unauthenticated)),
        "audit" if !cluster.is_empty() => (anywhere(), Some(any_identity())),
        _ => return None,
    };
    let meta = Arc::new(Meta::default_named(name));
    let networks: Vec<Network> =
        networks.into_iter().map(|net| Network { net, except: Vec::new() }).collect();
    let authorizations = authn.into_iter().map(|authn| Authorization {
        meta: meta.clone(),
        networks: networks.clone(),
        authn,
    });
    Some(ServerPolicy {
        authorizations: authorizations.collect(),
        audit: name == "audit",
        protocol: Protocol::Detect { timeout: detect_timeout, http: HttpPolicy::default() },
        meta,
    })
}

fn identity(vars: &mut Vars<'_>) -> Option<IdentitySettings> {
    if let Some(value) = vars.text("IDENTITY_DISABLED") {
        vars.reject("IDENTITY_DISABLED", &value, "nothing: a proxy without identity is not supported");
    }
    const NAME: &str = "a DNS-like name or a spiffe:// URI";
    let own = vars
        .parse("IDENTITY_SERVER_ID", NAME, |text| Identity::parse(text).ok())
        .or_else(|| vars.parse("IDENTITY_LOCAL_NAME", NAME, |text| Identity::parse(text).ok()));
    let server_name = vars.parse("IDENTITY_SERVER_NAME", "a DNS-like name", |text| {
        Identity::parse(text).ok().filter(|id| !id.is_uri())
    });
    // A value that does not parse is recorded already.
    if vars.text("IDENTITY_SERVER_ID").or_else(|| vars.text("IDENTITY_LOCAL_NAME")).is_none() {
        vars.missing("IDENTITY_LOCAL_NAME", NAME);
    }
    let trust_anchors_pem = vars.required("IDENTITY_TRUST_ANCHORS", "certificates in PEM");
    let token_file = vars.required("IDENTITY_TOKEN_FILE", "the path of the ServiceAccount token");
    let min_refresh = vars.duration("IDENTITY_MIN_REFRESH").unwrap_or(secs(10));
    let max_refresh = vars.duration("IDENTITY_MAX_REFRESH").unwrap_or(secs(86_400));
    if min_refresh > max_refresh {
        vars.reject("IDENTITY_MIN_REFRESH", &format!("{min_refresh:?}"), "at most IDENTITY_MAX_REFRESH");
    }
    let dir = vars.text("IDENTITY_DIR").map(PathBuf::from);
    let local_name = own?;
    let server_name = match server_name {
        Some(name) => name,
        None if !local_name.is_uri() => local_name.clone(),
        None => {
            vars.missing("IDENTITY_SERVER_NAME", "the server name that goes with a spiffe:// identity");
            return None;
        }
    };
    Some(IdentitySettings {
        local_name,
        server_name,
        trust_anchors_pem,
        dir,
        token_file: token_file.into(),
        min_refresh,
        max_refresh,
    })
}

fn control(vars: &mut Vars<'_>) -> Option<Control> {
    let (destination, policy, identity) =
        (control_addr(vars, "DESTINATION"), control_addr(vars, "POLICY"), control_addr(vars, "IDENTITY"));
    let workload = vars.required("POLICY_WORKLOAD", "a name for this workload, opaque to the proxy");
    let context = vars.text("DESTINATION_CONTEXT").unwrap_or_default();
    let initial_timeout = vars.duration("CONTROL_STREAM_INITIAL_TIMEOUT");
    let idle_timeout = vars.duration("CONTROL_STREAM_IDLE_TIMEOUT");
    let lifetime = vars.duration("CONTROL_STREAM_LIFETIME");
    let ordered = [initial_timeout, idle_timeout, lifetime];
    if ordered.iter().flatten().zip(ordered.iter().flatten().skip(1)).any(|(a, b)| a > b) {
        let shown = format!("{initial_timeout:?}, {idle_timeout:?}, {lifetime:?}");
        vars.reject("CONTROL_STREAM_INITIAL_TIMEOUT", &shown, "initial ≤ idle ≤ lifetime");
    }
    Some(Control {
        destination: destination?,
        policy: policy?,
        identity: identity?,
        workload,
        context,
        initial_timeout,
        idle_timeout,
        lifetime,
    })
}

fn control_addr(vars: &mut Vars<'_>, service: &str) -> Option<ControlAddr> {
    let addr = format!("{service}_SVC_ADDR");
    const FORM: &str = "HOST:PORT";
    let Some((host, port)) = vars.parse(&addr, FORM, authority) else {
        // A value that does not parse is recorded already.
        if vars.text(&addr).is_none() {
            vars.missing(&addr, FORM);
        }
        return None;
    };
    let name_variable = format!("{service}_SVC_NAME");
    let name = vars.parse(&name_variable, "a DNS-like name", |text| Identity::parse(text).ok());
    let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if loopback {
        return Some(ControlAddr { host, port, name: None });
    }
    if name.is_none() {
        if vars.text(&name_variable).is_none() {
            vars.missing(
                &name_variable,
                "the controller's identity, needed unless its address is on loopback",
            );
        }
        return None;
    }
    Some(ControlAddr { host, port, name })
}

/// `CORES*` win; then the CPU quota rounded up; then one.
fn workers(vars: &mut Vars<'_>) -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let max: Option<usize> = vars.number("CORES_MAX");
    let ratio = vars.ratio("CORES_MAX_RATIO");
    let min: Option<usize> = vars.number::<usize>("CORES_MIN").or_else(|| vars.number("CORES"));
    let wanted = max.or_else(|| ratio.map(|r| (available as f32 * r).round() as usize)).or(min);
    let wanted = wanted.or_else(cpu_quota).unwrap_or(1);
    wanted.max(min.unwrap_or(1)).clamp(1, available)
}

/// The cgroup's CPU quota in whole CPUs, rounded up; `None` without one.
fn cpu_quota() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/fs/cgroup/cpu.max").ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0).then(|| usize::try_from(quota.div_ceil(period)).unwrap_or(usize::MAX).max(1))
}

fn log(vars: &mut Vars<'_>) -> LogSettings {
    let filter = vars.text("LOG").unwrap_or_else(|| "warn,weft=info,linkerd=info".to_string());
    let format = vars.parse("LOG_FORMAT", "plain or json", |text| match text.to_ascii_lowercase().as_str() {
        "plain" => Some(LogFormat::Plain),
        "json" => Some(LogFormat::Json),
        _ => None,
    });
    LogSettings { filter, format: format.unwrap_or(LogFormat::Plain) }
}
