//! From variables to settings.

use super::{
    Config, Control, ControlAddr, Http2, IdentitySettings, Inbound, LogFormat, LogSettings, Outbound,
    Sockets, cores,
    parse::{Vars, authority},
    policy, table, telemetry,
};
use std::{ffi::OsString, net::IpAddr, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use weft_fault::Fault;
use weft_model::{identity::Identity, outbound::Backoff};

impl Config {
    /// Reads the variables that `lookup` finds by their full name.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Config, Vec<Fault>> {
        let mut vars = Vars::new(&lookup);
        let config = read(&mut vars);
        vars.finish(config)
    }
}

/// What a reader of the log should know about variables that are set and do nothing.
pub(super) fn useless(names: impl Iterator<Item = OsString>, warnings: &mut Vec<String>) {
    let mut useless: Vec<String> = Vec::new();
    for name in names {
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix(table::PREFIX)) else { continue };
        let shown = table::full(name);
        match table::find(name) {
            Some(declared) if declared.form == table::Form::Dead => {
                useless.push(format!("{shown} has no effect: {}", declared.says));
            }
            Some(_) => {}
            None => useless.push(match table::nearest(name) {
                Some(nearest) => format!("{shown} is not known; is {} meant?", table::full(&nearest)),
                None => format!("{shown} is not known and has no effect"),
            }),
        }
    }
    useless.sort();
    warnings.extend(useless);
}

/// `None` only when a fault says why. Everything is read before anything is given up, so that every mistake is reported.
pub(super) fn read(vars: &mut Vars<'_>) -> Option<Config> {
    let mut warnings = Vec::new();
    let cluster_networks = vars.networks("POLICY_CLUSTER_NETWORKS");
    let profile_networks = vars.networks("DESTINATION_PROFILE_NETWORKS");
    let profile_suffixes = vars.suffixes("DESTINATION_PROFILE_SUFFIXES");
    let workers = cores::workers(vars);
    let admin = vars.socket("ADMIN_LISTEN_ADDR");
    let inbound = inbound(vars, &cluster_networks, admin, workers, &mut warnings);
    let outbound = outbound(vars, workers);
    let spire = telemetry::unix_socket(vars);
    let (identity, control) = (identity(vars, spire.is_some()), control(vars, spire.is_some()));
    let identity = identity.map(|identity| IdentitySettings { spire, ..identity });
    let (access_log, tap, trace) =
        (telemetry::access_log(vars), telemetry::tap(vars), telemetry::trace(vars, &mut warnings));
    let shutdown_endpoint = vars.flag("SHUTDOWN_ENDPOINT_ENABLED");
    let shutdown_grace = vars.duration("SHUTDOWN_GRACE_PERIOD");
    let log = log(vars);
    let metrics_retain_idle = vars.duration("METRICS_RETAIN_IDLE");
    let max_head = max_head(vars);
    let socket_mark = vars.number("WEFT_SOCKET_MARK");
    Some(Config {
        inbound: inbound?,
        outbound: outbound?,
        admin: admin?,
        tap,
        shutdown_endpoint: shutdown_endpoint?,
        shutdown_grace: shutdown_grace?,
        control: control?,
        identity: identity?,
        profile_networks,
        profile_suffixes,
        cluster_networks,
        workers,
        log: log?,
        access_log,
        trace,
        metrics_retain_idle: metrics_retain_idle?,
        max_head: max_head?,
        socket_mark,
        warnings,
    })
}

fn inbound(
    vars: &mut Vars<'_>,
    cluster_networks: &[ipnet::IpNet],
    admin: Option<SocketAddr>,
    workers: usize,
    warnings: &mut Vec<String>,
) -> Option<Inbound> {
    let listen = vars.socket("INBOUND_LISTEN_ADDR");
    let sockets = sockets(vars, "INBOUND");
    let detect_timeout = vars.duration("INBOUND_DETECT_TIMEOUT");
    let connect_timeout = vars.duration("INBOUND_CONNECT_TIMEOUT");
    let connect_backoff = backoff(vars, "INBOUND");
    let queue_capacity = vars.number("INBOUND_HTTP_QUEUE_CAPACITY");
    let failfast_timeout = vars.duration("INBOUND_HTTP_FAILFAST_TIMEOUT");
    let max_in_flight = vars.number::<usize>("INBOUND_MAX_IN_FLIGHT");
    let pool_idle_timeout = vars.duration("INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT");
    let max_idle_per_endpoint = vars.number("MAX_IDLE_CONNS_PER_ENDPOINT");
    let discovery_idle = vars.duration("INBOUND_DISCOVERY_IDLE_TIMEOUT");
    let profile_timeout = vars.duration("DESTINATION_PROFILE_INITIAL_TIMEOUT");
    if vars.set("INBOUND_DEFAULT_POLICY").is_none() {
        warnings.push(format!(
            "{} is not set: ports are open to everybody until the controller speaks",
            table::full("INBOUND_DEFAULT_POLICY")
        ));
    }
    let default_policy = policy::default_policy(vars, cluster_networks, detect_timeout);
    // A name that cannot be read was told just before.
    let identity_policy =
        default_policy.is_some().then(|| policy::identity_policy(vars, cluster_networks, detect_timeout));
    let identity_ports = vars.ports("INBOUND_PORTS_REQUIRE_IDENTITY");
    let gateway_suffixes = vars.suffixes("INBOUND_GATEWAY_SUFFIXES");
    let mut ports = vars.ports("INBOUND_PORTS");
    ports.extend(admin.map(|addr| addr.port()));
    if !gateway_suffixes.is_empty() {
        ports.extend(listen.map(|addr| addr.port()));
    }
    let authority_labels =
        vars.parse("INBOUND_METRICS_AUTHORITY_LABELS", |text| (text == "unsafe").then_some(true));
    let (opaque_ports, ips) =
        (vars.ports("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION"), vars.ips("INBOUND_IPS"));
    let h2 = http2(vars, "INBOUND");
    Some(Inbound {
        listen: listen?,
        sockets,
        detect_timeout: detect_timeout?,
        connect_timeout: connect_timeout?,
        connect_backoff: connect_backoff?,
        queue_capacity: queue_capacity?,
        failfast_timeout: failfast_timeout?,
        max_in_flight: max_in_flight?.div_ceil(workers),
        pool_idle_timeout: pool_idle_timeout?,
        max_idle_per_endpoint: max_idle_per_endpoint?,
        discovery_idle: discovery_idle?,
        profile_timeout: profile_timeout?,
        default_policy: Arc::new(default_policy?),
        identity_policy: Arc::new(identity_policy.flatten()?),
        identity_ports,
        ports,
        opaque_ports,
        ips,
        gateway_suffixes,
        authority_labels: authority_labels.unwrap_or(false),
        h2,
    })
}

fn outbound(vars: &mut Vars<'_>, workers: usize) -> Option<Outbound> {
    let listen = outbound_listen(vars);
    let sockets = sockets(vars, "OUTBOUND");
    let detect_timeout = vars.duration("OUTBOUND_DETECT_TIMEOUT");
    let connect_timeout = vars.duration("OUTBOUND_CONNECT_TIMEOUT");
    let connect_backoff = backoff(vars, "OUTBOUND");
    let queue_capacity = vars.number("OUTBOUND_HTTP_QUEUE_CAPACITY");
    let failfast_timeout = vars.duration("OUTBOUND_HTTP_FAILFAST_TIMEOUT");
    let tcp_queue_capacity = vars.number("OUTBOUND_TCP_QUEUE_CAPACITY");
    let tcp_failfast_timeout = vars.duration("OUTBOUND_TCP_FAILFAST_TIMEOUT");
    let max_in_flight = vars.number::<usize>("OUTBOUND_MAX_IN_FLIGHT");
    let pool_idle_timeout = vars.duration("OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT");
    let max_idle_per_endpoint = vars.number("OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT");
    let discovery_idle = vars.duration("OUTBOUND_DISCOVERY_IDLE_TIMEOUT");
    let discovery_max_age = vars.duration("WEFT_OUTBOUND_DISCOVERY_MAX_AGE");
    if let Some(age) = discovery_max_age.filter(|age| *age < Duration::from_secs(1)) {
        // Less would be a storm of questions about busy destinations.
        vars.reject("WEFT_OUTBOUND_DISCOVERY_MAX_AGE", &format!("{age:?}"), "at least 1s");
    }
    let ingress_mode = vars.flag("INGRESS_MODE");
    let loopback = vars.flag("WEFT_OUTBOUND_LOOPBACK");
    let weft_http1 = vars.flag("OUTBOUND_WEFT_HTTP1");
    let resend = vars.flag("WEFT_OUTBOUND_RESEND");
    let informational = vars.flag("OUTBOUND_DISABLE_INFORMATIONAL_HEADERS").or(ingress_mode);
    let hostname_labels = vars.flag("OUTBOUND_METRICS_HOSTNAME_LABELS");
    let h2 = http2(vars, "OUTBOUND");
    Some(Outbound {
        listen: listen?,
        sockets,
        detect_timeout: detect_timeout?,
        connect_timeout: connect_timeout?,
        connect_backoff: connect_backoff?,
        queue_capacity: queue_capacity?,
        failfast_timeout: failfast_timeout?,
        tcp_queue_capacity: tcp_queue_capacity?,
        tcp_failfast_timeout: tcp_failfast_timeout?,
        max_in_flight: max_in_flight?.div_ceil(workers),
        pool_idle_timeout: pool_idle_timeout?,
        max_idle_per_endpoint: max_idle_per_endpoint?,
        discovery_idle: discovery_idle?,
        discovery_max_age,
        ingress_mode: ingress_mode?,
        loopback: loopback?,
        weft_http1: weft_http1?,
        resend: resend?,
        informational_headers: !informational?,
        hostname_labels: hostname_labels?,
        h2,
    })
}

/// HTTP/2 says it in 32 bits; and each connection may make the proxy keep one head.
const HEADS: std::ops::RangeInclusive<usize> = 8 * 1024..=16 * 1024 * 1024;

fn max_head(vars: &mut Vars<'_>) -> Option<usize> {
    let bytes = vars.number::<usize>("WEFT_MAX_HEAD_BYTES")?;
    if !HEADS.contains(&bytes) {
        vars.reject("WEFT_MAX_HEAD_BYTES", &bytes.to_string(), "8192 to 16777216");
    }
    Some(bytes)
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

fn backoff(vars: &mut Vars<'_>, side: &str) -> Option<Backoff> {
    let min_name = format!("{side}_CONNECT_EXP_BACKOFF_MIN");
    let (min, max) = (vars.duration(&min_name), vars.duration(&format!("{side}_CONNECT_EXP_BACKOFF_MAX")));
    let jitter = vars.ratio(&format!("{side}_CONNECT_EXP_BACKOFF_JITTER"));
    let backoff = Backoff { min: min?, max: max?, jitter: jitter? };
    if backoff.min > backoff.max || backoff.min.is_zero() {
        vars.reject(&min_name, &format!("{:?}", backoff.min), "more than 0 and at most the …_BACKOFF_MAX");
    }
    Some(backoff)
}

fn http2(vars: &mut Vars<'_>, side: &str) -> Http2 {
    let mut number = |name: &str| vars.number::<u32>(&format!("{side}_SERVER_HTTP2_{name}"));
    let (stream, connection) =
        (number("INITIAL_STREAM_WINDOW_SIZE"), number("INITIAL_CONNECTION_WINDOW_SIZE"));
    let (streams, frame, headers) =
        (number("MAX_CONCURRENT_STREAMS"), number("MAX_FRAME_SIZE"), number("MAX_HEADER_LIST_SIZE"));
    let (resets, send) = (number("MAX_PENDING_ACCEPT_RESET_STREAMS"), number("MAX_SEND_BUF_SIZE"));
    let (both_stream, both_connection) = (
        vars.number("HTTP2_INITIAL_STREAM_WINDOW_SIZE"),
        vars.number("HTTP2_INITIAL_CONNECTION_WINDOW_SIZE"),
    );
    // RFC 9113, 6.5.2: a frame holds 2^14 to 2^24-1 bytes, and a window at most 2^31-1.
    if let Some(frame) = frame.filter(|frame| !(16_384..=16_777_215).contains(frame)) {
        let name = format!("{side}_SERVER_HTTP2_MAX_FRAME_SIZE");
        vars.reject(&name, &frame.to_string(), "16384 to 16777215");
    }
    for (name, window) in [
        (format!("{side}_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE"), stream),
        (format!("{side}_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE"), connection),
        ("HTTP2_INITIAL_STREAM_WINDOW_SIZE".to_owned(), both_stream),
        ("HTTP2_INITIAL_CONNECTION_WINDOW_SIZE".to_owned(), both_connection),
    ] {
        if let Some(window) = window.filter(|window| *window > i32::MAX as u32) {
            vars.reject(&name, &window.to_string(), "at most 2147483647");
        }
    }
    Http2 {
        initial_stream_window: stream.or(both_stream),
        initial_connection_window: connection.or(both_connection),
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
        client_stall: vars.duration("WEFT_CLIENT_STALL_TIMEOUT").filter(|limit| !limit.is_zero()),
    }
}

fn outbound_listen(vars: &mut Vars<'_>) -> Option<Vec<SocketAddr>> {
    let many = vars.parse("OUTBOUND_LISTEN_ADDRS", |text| {
        let all: Option<Vec<SocketAddr>> = text.split(',').map(|item| item.trim().parse().ok()).collect();
        all.filter(|all| (1..=2).contains(&all.len()))
    });
    let one = vars.socket("OUTBOUND_LISTEN_ADDR");
    many.or_else(|| Some(vec![one?]))
}

fn identity(vars: &mut Vars<'_>, spire: bool) -> Option<IdentitySettings> {
    if let Some(value) = vars.set("IDENTITY_DISABLED") {
        vars.reject("IDENTITY_DISABLED", &value, "nothing: a proxy without identity is not supported");
    }
    let own = vars.name("IDENTITY_SERVER_ID");
    let local = vars.name("IDENTITY_LOCAL_NAME");
    let own = own.or(local);
    let server_name =
        vars.parse("IDENTITY_SERVER_NAME", |text| Identity::parse(text).ok().filter(|id| !id.is_uri()));
    // A value that does not parse is recorded already.
    if vars.set("IDENTITY_SERVER_ID").or_else(|| vars.set("IDENTITY_LOCAL_NAME")).is_none() {
        vars.missing("IDENTITY_LOCAL_NAME", table::Form::Name.says());
    }
    let trust_anchors_file = vars.text("WEFT_IDENTITY_TRUST_ANCHORS_FILE").map(PathBuf::from);
    let or_nothing = |text: Option<String>| text.unwrap_or_default();
    let trust_anchors_pem = match spire || trust_anchors_file.is_some() {
        true => or_nothing(vars.set("IDENTITY_TRUST_ANCHORS")),
        false => vars.required("IDENTITY_TRUST_ANCHORS"),
    };
    let token_file = match spire {
        true => or_nothing(vars.set("IDENTITY_TOKEN_FILE")),
        false => vars.required("IDENTITY_TOKEN_FILE"),
    };
    let (min_refresh, max_refresh) =
        (vars.duration("IDENTITY_MIN_REFRESH"), vars.duration("IDENTITY_MAX_REFRESH"));
    if let (Some(min), Some(max)) = (min_refresh, max_refresh)
        && min > max
    {
        vars.reject("IDENTITY_MIN_REFRESH", &format!("{min:?}"), "at most IDENTITY_MAX_REFRESH");
    }
    let dir = vars.text("IDENTITY_DIR").map(PathBuf::from);
    let local_name = own?;
    if spire && !local_name.is_uri() {
        vars.reject(
            "IDENTITY_SERVER_ID",
            local_name.as_str(),
            "a spiffe:// URI, because SPIRE issues the certificate",
        );
    }
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
        trust_anchors_file,
        dir,
        token_file: token_file.into(),
        min_refresh: min_refresh?,
        max_refresh: max_refresh?,
        spire: None,
    })
}

fn control(vars: &mut Vars<'_>, spire: bool) -> Option<Control> {
    let (destination, policy) = (control_addr(vars, "DESTINATION"), control_addr(vars, "POLICY"));
    let identity = match spire {
        true => None,
        false => Some(control_addr(vars, "IDENTITY")),
    };
    let workload = vars.required("POLICY_WORKLOAD");
    let context = vars.text("DESTINATION_CONTEXT").unwrap_or_default();
    let initial_timeout = vars.duration("CONTROL_STREAM_INITIAL_TIMEOUT");
    let idle_timeout = vars.duration("CONTROL_STREAM_IDLE_TIMEOUT");
    let lifetime = vars.duration("CONTROL_STREAM_LIFETIME");
    let ordered = [initial_timeout, idle_timeout, lifetime];
    if ordered.iter().flatten().zip(ordered.iter().flatten().skip(1)).any(|(a, b)| a > b) {
        let shown = format!("{initial_timeout:?}, {idle_timeout:?}, {lifetime:?}");
        vars.reject("CONTROL_STREAM_INITIAL_TIMEOUT", &shown, "initial ≤ idle ≤ lifetime");
    }
    let (min_ttl, max_ttl) = (vars.duration("DNS_MIN_TTL"), vars.duration("DNS_MAX_TTL"));
    if let (Some(min), Some(max)) = (min_ttl, max_ttl)
        && min > max
    {
        vars.reject("DNS_MIN_TTL", &format!("{min:?}"), "at most DNS_MAX_TTL");
    }
    Some(Control {
        destination: destination?,
        policy: policy?,
        identity: match identity {
            Some(addr) => Some(addr?),
            None => None,
        },
        workload,
        context,
        initial_timeout,
        idle_timeout,
        lifetime,
        min_ttl,
        max_ttl,
    })
}

pub(super) fn control_addr(vars: &mut Vars<'_>, service: &str) -> Option<ControlAddr> {
    let addr = format!("{service}_SVC_ADDR");
    let name_variable = format!("{service}_SVC_NAME");
    let parsed = vars.parse(&addr, authority);
    let name = vars.name(&name_variable);
    let Some((host, port)) = parsed else {
        // A value that does not parse is recorded already.
        if vars.set(&addr).is_none() {
            vars.missing(&addr, table::Form::Authority.says());
        }
        return None;
    };
    let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if loopback {
        return Some(ControlAddr { host, port, name: None });
    }
    if name.is_none() {
        if vars.set(&name_variable).is_none() {
            vars.missing(
                &name_variable,
                "the controller's identity, needed unless its address is on loopback",
            );
        }
        return None;
    }
    Some(ControlAddr { host, port, name })
}

fn log(vars: &mut Vars<'_>) -> Option<LogSettings> {
    let filter = vars.text("LOG");
    let format = vars.parse("LOG_FORMAT", |text| match text.to_ascii_lowercase().as_str() {
        "plain" => Some(LogFormat::Plain),
        "json" => Some(LogFormat::Json),
        _ => None,
    });
    Some(LogSettings { filter: filter?, format: format? })
}
