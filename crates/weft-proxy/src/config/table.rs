//! Every variable that the proxy reads: its name, form, default and meaning. `docs/config.md` is made from this table.

use std::fmt::Write as _;

/// What most names begin with.
pub(crate) const PREFIX: &str = "LINKERD2_PROXY_";

/// One variable.
#[derive(Debug)]
pub(crate) struct Variable {
    /// Without the prefix; `{IN,OUT}BOUND_…` stands for one variable of each side.
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    /// The text that an unset variable is read as; empty for none.
    pub(crate) default: &'static str,
    pub(crate) says: &'static str,
}

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Duration,
    Number,
    Ratio,
    Flag,
    Socket,
    SocketPair,
    Authority,
    Name,
    Suffixes,
    Ports,
    Networks,
    Ips,
    Path,
    Text,
    /// Something of its own.
    Words(&'static str),
    /// Accepted, and without any effect.
    Dead,
}

impl Form {
    /// The form in words, for messages and the reference page.
    pub(crate) fn says(self) -> &'static str {
        match self {
            Form::Duration => "a whole number and one of ms, s, m, h, d, such as 10s",
            Form::Number => "a whole number in range",
            Form::Ratio => "a number from 0 to 1",
            Form::Flag => "true or false",
            Form::Socket => "IP:PORT",
            Form::SocketPair => "one or two of IP:PORT, separated by a comma",
            Form::Authority => "HOST:PORT",
            Form::Name => "a DNS-like name or a spiffe:// URI",
            Form::Suffixes => "DNS suffixes, separated by commas",
            Form::Ports => "ports and ranges, such as 80,8000-8010",
            Form::Networks => "networks such as 10.0.0.0/8, separated by commas",
            Form::Ips => "IP addresses, separated by commas",
            Form::Path => "a path",
            Form::Text => "text",
            Form::Words(words) => words,
            Form::Dead => "anything",
        }
    }
}

/// The declaration of a variable by its name without the prefix.
pub(crate) fn find(name: &str) -> Option<&'static Variable> {
    GROUPS.iter().flat_map(|(_, variables)| *variables).find(|variable| match variable.side() {
        Some(rest) => ["INBOUND_", "OUTBOUND_"].iter().any(|side| name.strip_prefix(side) == Some(rest)),
        None => variable.name == name,
    })
}

/// The name as it stands in an environment.
pub(crate) fn full(name: &str) -> String {
    if name.starts_with("OTEL_") { name.to_owned() } else { format!("{PREFIX}{name}") }
}

impl Variable {
    fn side(&self) -> Option<&'static str> {
        self.name.strip_prefix("{IN,OUT}BOUND_")
    }

    /// The names that this row declares, without the prefix.
    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<String> {
        match self.side() {
            Some(rest) => vec![format!("INBOUND_{rest}"), format!("OUTBOUND_{rest}")],
            None => vec![self.name.to_owned()],
        }
    }
}

/// The declared variable whose name is nearest to one that nobody declares, if one is near enough to be meant.
pub(crate) fn nearest(name: &str) -> Option<String> {
    let declared = GROUPS.iter().flat_map(|(_, variables)| *variables).flat_map(|variable| {
        let sides = variable.side().map(|rest| vec![format!("INBOUND_{rest}"), format!("OUTBOUND_{rest}")]);
        sides.unwrap_or_else(|| vec![variable.name.to_owned()])
    });
    weft_fault::nearest::nearest(name, declared)
}

/// The reference page.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "# Configuration of the proxy\n\n\
         The proxy is configured by its environment. Names are Linkerd's, and so are their meanings and defaults; each\n\
         begins with `LINKERD2_PROXY_` unless it is shown in full. Every mistake is reported at once, with the variable, its\n\
         value and the form that was expected, and the process ends with status 64. A variable of that prefix that is not in\n\
         this table is named in a warning, with the nearest one that is.\n\n\
         Made from `crates/weft-proxy/src/config/table.rs`: `WEFT_WRITE_DOCS=1 cargo test -p weft-proxy --lib config`.\n",
    );
    for (group, variables) in GROUPS {
        // Writing to a string cannot fail.
        let _written =
            write!(page, "\n## {group}\n\n| variable | default | form | meaning |\n|---|---|---|---|\n");
        for Variable { name, form, default, says } in *variables {
            let default = if default.is_empty() { "–".to_owned() } else { format!("`{default}`") };
            let _written = writeln!(page, "| `{name}` | {default} | {} | {says} |", form.says());
        }
    }
    page
}

macro_rules! group {
    ($($name:literal $form:expr, $default:literal, $says:literal;)*) => {
        &[$(Variable { name: $name, form: $form, default: $default, says: $says }),*]
    };
}

use Form::{
    Authority, Dead, Duration, Flag, Ips, Name, Networks, Number, Path, Ports, Ratio, Socket, SocketPair,
    Suffixes, Text, Words,
};

/// The table.
pub(crate) const GROUPS: &[(&str, &[Variable])] = &[
    (
        "Control plane",
        group! {
            "DESTINATION_SVC_ADDR" Authority, "", "Where the destination service is. Required. A loopback address means plaintext; several addresses behind the name share the load";
            "DESTINATION_SVC_NAME" Name, "", "The identity that it must prove, which is also the server name asked for. Required unless it is on loopback";
            "DESTINATION_CONTEXT" Text, "", "Passed on with each question, unread";
            "POLICY_SVC_ADDR" Authority, "", "Where the policy service is. Required";
            "POLICY_SVC_NAME" Name, "", "As `DESTINATION_SVC_NAME`";
            "POLICY_WORKLOAD" Text, "", "This workload's name for the policy service, passed on unread. Required";
            "IDENTITY_SVC_ADDR" Authority, "", "Where certificates come from. Required unless SPIRE issues them";
            "IDENTITY_SVC_NAME" Name, "", "As `DESTINATION_SVC_NAME`";
            "CONTROL_STREAM_INITIAL_TIMEOUT" Duration, "", "The longest wait for a stream's first message; without it, 10s. Not for controllers on loopback, like the next two";
            "CONTROL_STREAM_IDLE_TIMEOUT" Duration, "", "A stream on which nothing was said for so long is opened anew; what is known stays in force. At least the initial timeout";
            "CONTROL_STREAM_LIFETIME" Duration, "", "A stream of this age is opened anew, so that replicas share the load. At least the idle timeout";
            "DNS_MIN_TTL" Duration, "", "Names of the control plane are resolved anew no sooner than this, whatever the answer's TTL";
            "DNS_MAX_TTL" Duration, "", "… and no later than this";
        },
    ),
    (
        "Identity",
        group! {
            "IDENTITY_LOCAL_NAME" Name, "", "This proxy's identity. Required, unless `IDENTITY_SERVER_ID` is set";
            "IDENTITY_SERVER_ID" Name, "", "The same, and wins";
            "IDENTITY_SERVER_NAME" Words("a DNS-like name"), "", "The server name under which peers dial; needed with a spiffe:// identity";
            "IDENTITY_TRUST_ANCHORS" Words("certificates in PEM"), "", "The roots that peers' and controllers' certificates lead to. Required, unless SPIRE or a file provides them";
            "WEFT_IDENTITY_TRUST_ANCHORS_FILE" Path, "", "weft's own. The same in a file, which wins where it can be read and is followed as it changes: roots are replaced without a restart. Files `foreign.DOMAIN.crt` beside it hold those of other trust domains";
            "IDENTITY_DIR" Path, "", "A directory that may hold `key.p8` and `csr.der`, made by Linkerd's launcher. Without, the key is made in memory and stays there";
            "IDENTITY_TOKEN_FILE" Words("the path of the ServiceAccount token"), "", "Read anew for each certificate. Required, unless SPIRE issues them";
            "IDENTITY_MIN_REFRESH" Duration, "10s", "A certificate is renewed no sooner than this";
            "IDENTITY_MAX_REFRESH" Duration, "24h", "… and no later than this; in between, at 70 % of its life";
            "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS" Words("the path of a unix socket, with or without unix:"), "", "Certificates and roots come from this SPIRE agent instead of the control plane";
            "IDENTITY_SPIRE_SOCKET" Words("the path of a unix socket, with or without unix:"), "", "The old name of the same";
            "IDENTITY_DISABLED" Words("nothing: a proxy without identity is not supported"), "", "Must not be set";
        },
    ),
    (
        "Listeners",
        group! {
            "INBOUND_LISTEN_ADDR" Socket, "0.0.0.0:4143", "Connections to this workload";
            "OUTBOUND_LISTEN_ADDRS" SocketPair, "", "Connections from this workload; wins over the next";
            "OUTBOUND_LISTEN_ADDR" Socket, "127.0.0.1:4140", "The same, one address";
            "ADMIN_LISTEN_ADDR" Socket, "127.0.0.1:4191", "Probes, metrics and switches";
            "CONTROL_LISTEN_ADDR" Socket, "0.0.0.0:4190", "Tap; listens only if `TAP_SVC_NAME` is set";
            "TCP_LISTEN_BACKLOG" Number, "", "Connections that may wait to be accepted; without it, the kernel's most";
            "{IN,OUT}BOUND_ACCEPT_KEEPALIVE" Duration, "", "TCP keep-alive interval of accepted connections";
            "{IN,OUT}BOUND_ACCEPT_USER_TIMEOUT" Duration, "", "TCP_USER_TIMEOUT of accepted connections";
            "{IN,OUT}BOUND_CONNECT_KEEPALIVE" Duration, "", "TCP keep-alive interval of connections made";
            "{IN,OUT}BOUND_CONNECT_USER_TIMEOUT" Duration, "", "TCP_USER_TIMEOUT of connections made";
            "WEFT_SOCKET_MARK" Number, "", "weft's own. SO_MARK of the proxy's connections, which `weft proxy-init` reads as well: how redirect rules know them where the proxy has no user of its own (`weft up` without root). Needs NET_RAW";
        },
    ),
    (
        "Detection and connecting",
        group! {
            "{IN,OUT}BOUND_DETECT_TIMEOUT" Duration, "10s", "How long a client may take to show what it speaks";
            "INBOUND_CONNECT_TIMEOUT" Duration, "300ms", "Connecting to the application";
            "OUTBOUND_CONNECT_TIMEOUT" Duration, "1s", "Connecting to a peer: TCP, TLS and the transport header together";
            "{IN,OUT}BOUND_CONNECT_EXP_BACKOFF_MIN" Duration, "100ms", "The first delay before connecting again. Outbound: to endpoints and controllers. Inbound: to controllers on loopback";
            "INBOUND_CONNECT_EXP_BACKOFF_MAX" Duration, "10s", "The last delay";
            "OUTBOUND_CONNECT_EXP_BACKOFF_MAX" Duration, "60s", "The last delay";
            "{IN,OUT}BOUND_CONNECT_EXP_BACKOFF_JITTER" Ratio, "0.1", "The part of a delay that is random";
        },
    ),
    (
        "Queues and pools",
        group! {
            "{IN,OUT}BOUND_HTTP_QUEUE_CAPACITY" Number, "10000", "Requests that may wait for a connection or an endpoint. Inbound: without effect, since a request waits for its own connection only, and no longer than `INBOUND_CONNECT_TIMEOUT`";
            "INBOUND_HTTP_FAILFAST_TIMEOUT" Duration, "1s", "How long a request may wait for its turn to connect to the application";
            "WEFT_MAX_HEAD_BYTES" Number, "65536", "weft's own. The largest head of a message over HTTP/1 and the largest header list over HTTP/2, from clients and from servers, both sides; 8192 to 16777216";
            "WEFT_OUTBOUND_RESEND" Flag, "true", "weft's own. A request that was sent is sent again where the server says that it did not begin with it, or where it died without a byte of an answer and the method is idempotent; false: never, but for a route's own retries";
            "OUTBOUND_HTTP_FAILFAST_TIMEOUT" Duration, "3s", "How long a request may wait for an endpoint, and a connection for discovery";
            "OUTBOUND_TCP_QUEUE_CAPACITY" Number, "10000", "Opaque connections that may wait for an endpoint";
            "OUTBOUND_TCP_FAILFAST_TIMEOUT" Duration, "3s", "How long an opaque connection may wait for an endpoint";
            "{IN,OUT}BOUND_MAX_IN_FLIGHT" Number, "100000", "Requests under way at a time; more are refused with 503. Counted until the response's head, by each worker for its share";
            "{IN,OUT}BOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT" Duration, "3s", "An idle HTTP/1 connection is closed after this";
            "WEFT_CLIENT_STALL_TIMEOUT" Duration, "5m", "weft's own. A client that takes nothing of its answer for so long is let go: its stream is reset, or its connection if nothing can be written to it. Whoever reads slowly is not; a piece of an answer larger than 16 KiB has as much more time. 0: never";
            "MAX_IDLE_CONNS_PER_ENDPOINT" Number, "10000", "Idle HTTP/1 connections that are kept to the application";
            "OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT" Number, "10000", "… and to each endpoint";
        },
    ),
    (
        "Discovery",
        group! {
            "OUTBOUND_DISCOVERY_IDLE_TIMEOUT" Duration, "5s", "What is known about a destination is dropped when nothing used it for so long";
            "INBOUND_DISCOVERY_IDLE_TIMEOUT" Duration, "90s", "… and about a port";
            "WEFT_OUTBOUND_DISCOVERY_MAX_AGE" Duration, "", "weft's own. An answer older than this is asked for anew, however busy its destination is, and replaced when the controller answers; at least 1s";
            "DESTINATION_PROFILE_NETWORKS" Networks, "", "Profiles are asked for addresses in these only";
            "DESTINATION_PROFILE_SUFFIXES" Suffixes, "svc.cluster.local.", "Names that the controller is asked about, where requests name their destination (`INGRESS_MODE`); others are refused (`UPS-019`)";
            "DESTINATION_PROFILE_INITIAL_TIMEOUT" Duration, "500ms", "Without effect: inbound requests are not held for a profile, since their routes come with the port's policy. What waits for a first answer outbound is bounded by `OUTBOUND_HTTP_FAILFAST_TIMEOUT` and `OUTBOUND_DETECT_TIMEOUT`";
        },
    ),
    (
        "HTTP/2",
        group! {
            "HTTP2_INITIAL_STREAM_WINDOW_SIZE" Number, "", "Receive window of a stream, both sides; without it, 1 MiB";
            "HTTP2_INITIAL_CONNECTION_WINDOW_SIZE" Number, "", "Receive window of a connection, both sides; without it, 8 MiB";
            "{IN,OUT}BOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE" Number, "", "The same for one side's servers";
            "{IN,OUT}BOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE" Number, "", "The same for one side's servers";
            "{IN,OUT}BOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL" Flag, "false", "Windows follow the measured bandwidth";
            "{IN,OUT}BOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL" Duration, "", "PING clients so often";
            "{IN,OUT}BOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT" Duration, "", "… and close when the answer is later than this";
            "{IN,OUT}BOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS" Number, "", "Streams that a client may have open";
            "{IN,OUT}BOUND_SERVER_HTTP2_MAX_FRAME_SIZE" Number, "", "The largest frame accepted";
            "{IN,OUT}BOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE" Number, "", "The largest header list accepted; without it, `WEFT_MAX_HEAD_BYTES`";
            "{IN,OUT}BOUND_SERVER_HTTP2_MAX_PENDING_ACCEPT_RESET_STREAMS" Number, "", "Streams that were reset before they were served; more end the connection";
            "{IN,OUT}BOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE" Number, "", "Bytes of a stream that wait to be sent";
        },
    ),
    (
        "Inbound policy",
        group! {
            "INBOUND_DEFAULT_POLICY" Words("deny, all-authenticated, all-unauthenticated, cluster-authenticated, cluster-unauthenticated or audit; those about the cluster need POLICY_CLUSTER_NETWORKS"), "all-unauthenticated", "What holds for a port until the controller speaks";
            "POLICY_CLUSTER_NETWORKS" Networks, "", "The networks of this cluster's pods and services";
            "INBOUND_PORTS" Ports, "", "Ports whose policy is watched from the start. The admin port always is, and the inbound port of a gateway";
            "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION" Ports, "", "Ports whose bytes are moved unread until the controller says otherwise";
            "INBOUND_IPS" Ips, "", "This pod's addresses; connections for others are refused. Empty: any";
            "INBOUND_GATEWAY_SUFFIXES" Suffixes, "", "Names that this proxy forwards to as a gateway";
            "INBOUND_PORTS_REQUIRE_IDENTITY" Ports, "", "Ports that let in nobody without an identity until the controller speaks, whatever `INBOUND_DEFAULT_POLICY` allows";
            "INBOUND_PORTS_REQUIRE_TLS" Dead, "", "Without effect, as in Linkerd: policy decides";
        },
    ),
    (
        "Outbound modes",
        group! {
            "WEFT_OUTBOUND_LOOPBACK" Flag, "false", "weft's own, for tests without namespaces. Endpoints on loopback are dialled; otherwise a loop is suspected (`NET-006`), because what answers there is this pod itself";
            "INGRESS_MODE" Flag, "false", "Every connection is HTTP, and its requests are routed by `l5d-dst-override`";
            "OUTBOUND_WEFT_HTTP1" Flag, "true", "HTTP/1 goes to another weft proxy as it is; false: over HTTP/2, as to Linkerd's proxies";
            "OUTBOUND_DISABLE_INFORMATIONAL_HEADERS" Flag, "", "No `l5d-proxy-error` for the application; unset: as `INGRESS_MODE`";
        },
    ),
    (
        "Process",
        group! {
            "CORES_MAX" Number, "", "Workers at most; the first of this and the next two that is set decides. None set: the CPU quota rounded up, or one";
            "CORES_MAX_RATIO" Ratio, "", "Workers as a part of the machine's CPUs";
            "CORES_MIN" Number, "", "Workers at least";
            "CORES" Number, "", "The old name of `CORES_MIN`";
            "SHUTDOWN_GRACE_PERIOD" Duration, "2m", "How long connections may go on after SIGTERM";
            "SHUTDOWN_ENDPOINT_ENABLED" Flag, "false", "POST /shutdown works";
        },
    ),
    (
        "Telemetry",
        group! {
            "LOG" Words("a filter such as warn,linkerd=info, or off"), "warn,linkerd=info,hickory=error", "What is logged. `linkerd` selects weft's own lines too";
            "LOG_FORMAT" Words("plain or json"), "plain", "How it is logged";
            "ACCESS_LOG" Words("apache or json"), "", "One line on stderr for each inbound request, at its response's end";
            "WEFT_ACCESS_LOG_FILTER" Words("conditions joined by ||, of: status>=N, latency>=DURATION, fault, fault=CODE"), "", "weft's own. Only requests that meet a condition are logged";
            "METRICS_RETAIN_IDLE" Duration, "10m", "A series that nothing changed for so long is dropped";
            "OUTBOUND_METRICS_HOSTNAME_LABELS" Flag, "false", "Outbound route families carry the host name of the request, once the destination knows it";
            "INBOUND_METRICS_AUTHORITY_LABELS" Words("unsafe"), "", "Inbound families carry the authority that the client chose; that can be anything, hence the name";
            "TAP_SVC_NAME" Name, "", "The only client that may tap; unset: no tap";
            "TRACE_COLLECTOR_SVC_ADDR" Authority, "", "Where spans are sent to (OTLP over gRPC); unset: no traces";
            "TRACE_COLLECTOR_SVC_NAME" Name, "", "As `DESTINATION_SVC_NAME`";
            "TRACE_SERVICE_NAME" Text, "linkerd-proxy", "The `service.name` of spans, unless the next three say otherwise";
            "TRACE_ATTRIBUTES_PATH" Path, "", "A file of the pod's labels, `key=\"value\"` a line: attributes of every span";
            "TRACE_EXTRA_ATTRIBUTES" Words("key=value, one a line"), "", "More attributes; they win over the file's";
            "OTEL_RESOURCE_ATTRIBUTES" Words("key=value, separated by commas"), "", "More attributes; they win over all others. The name is shown in full";
            "TRACE_PROTOCOL" Dead, "", "Without effect: traces are OTLP";
        },
    ),
];
