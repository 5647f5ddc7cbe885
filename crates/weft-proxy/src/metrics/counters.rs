//! The families that have one number per label set.

use super::families::{AUTHZ, BACKEND, CLIENT, Groups, PARENT, ROUTE, SERVICE_ROUTE, SRV, TARGET};

/// A family of plain counters. Further ones are appended here and to [`COUNTERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    InboundHttpAuthzAllow,
    InboundHttpAuthzDeny,
    InboundHttpRouteNotFound,
    InboundTcpAuthzAllow,
    InboundTcpAuthzDeny,
    InboundTcpAuthzTerminate,
    InboundHttpErrors,
    OutboundHttpErrors,
    InboundTcpErrors,
    OutboundTcpErrors,
    InboundRateLimit,
    TransportHeaderConnections,
    OutboundProtocolConnections,
    Faults,
    /// Connections made in plaintext to an in-cluster address, by reason.
    PlaintextInCluster,
    LogLinesDropped,
    WorkerStalls,
    CertRefreshes,
    JournalDropped,
    SilentConnections,
    RouteRetryable,
    RouteRetrySkipped,
    /// Copies of requests, by what became of them.
    Mirrored,
    SpanExports,
    SpanExportRequests,
    SpansDropped,
    TransferCost,
    ControlDnsResolutions,
    /// Frames of HTTP/2 clients that were cut off for flooding.
    FloodFrames,
}

/// Its name without `_total`, its labels, and what is counted.
type Counters = (Count, &'static str, Groups, &'static str);

pub(crate) const COUNTERS: &[Counters] = &[
    (
        Count::InboundHttpAuthzAllow,
        "inbound_http_authz_allow",
        &[TARGET, SRV, ROUTE, AUTHZ, CLIENT],
        "HTTP requests that a policy allowed",
    ),
    (
        Count::InboundHttpAuthzDeny,
        "inbound_http_authz_deny",
        &[TARGET, SRV, ROUTE, CLIENT],
        "HTTP requests that a policy denied",
    ),
    (
        Count::InboundHttpRouteNotFound,
        "inbound_http_route_not_found",
        &[TARGET, SRV, ROUTE, CLIENT],
        "HTTP requests that no route matched",
    ),
    (
        Count::InboundTcpAuthzAllow,
        "inbound_tcp_authz_allow",
        &[TARGET, SRV, AUTHZ, CLIENT],
        "Connections that a policy allowed",
    ),
    (
        Count::InboundTcpAuthzDeny,
        "inbound_tcp_authz_deny",
        &[TARGET, SRV, CLIENT],
        "Connections that a policy denied",
    ),
    (
        Count::InboundTcpAuthzTerminate,
        "inbound_tcp_authz_terminate",
        &[TARGET, SRV, CLIENT],
        "Connections cut by a policy change",
    ),
    (
        Count::InboundHttpErrors,
        "inbound_http_errors",
        &[&["error", "code"], TARGET],
        "Failed inbound HTTP requests",
    ),
    (
        Count::OutboundHttpErrors,
        "outbound_http_errors",
        &[&["error", "code"]],
        "Failed outbound HTTP requests",
    ),
    (
        Count::InboundTcpErrors,
        "inbound_tcp_errors",
        &[&["error", "code"], TARGET],
        "Failed inbound connections",
    ),
    (Count::OutboundTcpErrors, "outbound_tcp_errors", &[&["error", "code"]], "Failed outbound connections"),
    (
        Count::InboundRateLimit,
        "inbound_http_local_ratelimit",
        &[TARGET, SRV],
        "Requests refused by a rate limit",
    ),
    (
        Count::TransportHeaderConnections,
        "inbound_tcp_transport_header_connections",
        &[&["session_protocol", "target_port", "target_name", "client_id"]],
        "Direct connections with a transport header",
    ),
    (
        Count::OutboundProtocolConnections,
        "outbound_tcp_protocol_connections",
        &[&["protocol"], PARENT],
        "Outbound connections, by what is known of their protocol beforehand",
    ),
    (Count::Faults, "weft_faults", &[&["code", "direction"]], "Failures by code"),
    (
        Count::PlaintextInCluster,
        "weft_plaintext_in_cluster",
        &[&["reason"]],
        "Endpoints within the cluster that are dialled in plaintext, by reason",
    ),
    (
        Count::LogLinesDropped,
        "weft_log_lines_dropped",
        &[&["log"]],
        "Log lines dropped because the reader was slow",
    ),
    (
        Count::WorkerStalls,
        "weft_worker_stalls",
        &[&["worker", "kind"]],
        "Times a worker did not run for a while",
    ),
    (Count::CertRefreshes, "control_identity_cert_refreshes", &[&["result"]], "Certificate refreshes"),
    (
        Count::JournalDropped,
        "weft_journal_dropped",
        &[&["why"]],
        "Journal entries that could not be uploaded",
    ),
    (
        Count::SilentConnections,
        "weft_silent_connections",
        &[&["direction"]],
        "Connections closed without a byte from the client",
    ),
    (
        Count::RouteRetryable,
        "route_retryable",
        SERVICE_ROUTE,
        "Responses that a ServiceProfile's route calls failures of retryable requests",
    ),
    (
        Count::RouteRetrySkipped,
        "route_retry_skipped",
        &[&["direction", "dst", "rt_*", "skipped"]],
        "Such responses whose requests were not sent again",
    ),
    (
        Count::Mirrored,
        "weft_mirrored_requests",
        &[BACKEND, &["outcome"]],
        "Copies of requests for another service, by what became of them",
    ),
    (Count::SpanExports, "opentelemetry_span_exports", &[], "Spans that a collector took"),
    (Count::SpanExportRequests, "opentelemetry_span_export_requests", &[], "Batches of spans that were sent"),
    (Count::SpansDropped, "weft_spans_dropped", &[], "Spans that no collector took"),
    (
        Count::TransferCost,
        "outbound_tcp_transfer_cost_bytes",
        &[&["op", "zone_locality"]],
        "Bytes received from and sent to endpoints, by whether they are in this zone",
    ),
    (
        Count::ControlDnsResolutions,
        "control_dns_resolutions",
        &[&["client", "record_type", "result"]],
        "Times that a controller's name was asked for",
    ),
    (
        Count::FloodFrames,
        "weft_http2_flood_frames",
        &[&["kind"]],
        "What HTTP/2 clients had sent, or been sent resets for, when they were cut off for flooding",
    ),
];

/// A family of plain gauges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    CertExpiration,
    CertRefresh,
    CertAnchor,
    AnchorExpiration,
}

pub(crate) const GAUGES: &[(Level, &str, Groups, &str)] = &[
    (
        Level::CertExpiration,
        "control_identity_cert_expiration_timestamp_seconds",
        &[],
        "When the certificate expires, in seconds since the epoch",
    ),
    (
        Level::CertRefresh,
        "control_identity_cert_refresh_timestamp_seconds",
        &[],
        "When the certificate was renewed last, in seconds since the epoch",
    ),
    (
        Level::CertAnchor,
        "weft_identity_cert_anchor",
        &[&["sha256", "subject"]],
        "1 for the trust anchor that the certificate leads to, 0 for those before it; sha256=\"none\": it leads to none that is trusted",
    ),
    (
        Level::AnchorExpiration,
        "weft_identity_trust_anchor_expiration_timestamp_seconds",
        &[&["sha256", "subject"]],
        "When a trust anchor expires, in seconds since the epoch; 0: it is no longer trusted",
    ),
];
