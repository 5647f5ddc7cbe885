//! How a connection's end is told: to the flight recorder, the metrics and the log.

mod fold;

pub(crate) use fold::{Folds, Kind};

use crate::{
    deadline::Late,
    detect::Protocol,
    metrics::{Count, Metrics, balancer::Detected, labels::Labels},
    record::{Recorder, Story},
};
use std::{net::SocketAddr, time::Duration};
use weft_fault::{Code, Fault, Phase};
use weft_wire::record::Direction;

/// A connection that failed as a whole.
pub(crate) fn connection_failed(
    metrics: &Metrics,
    story: &Story,
    direction: Direction,
    who: Who<'_>,
    fault: &Fault,
) {
    let family = match direction {
        Direction::Inbound => Count::InboundTcpErrors,
        Direction::Outbound => Count::OutboundTcpErrors,
    };
    metrics.counter(family, &error_labels(story, direction, fault)).add(1);
    story.fault(fault);
    log(story, direction, who, What::Connection, fault);
}

/// Protocol detection came to an end.
pub(crate) fn detected(
    metrics: &Metrics,
    direction: Direction,
    labels: &Labels,
    detected: &Result<(Protocol, Option<Late>), Fault>,
    took: Duration,
) {
    metrics.phase(Phase::Detect, took);
    let result = match detected {
        Ok((_, Some(_))) => Detected::ReadTimeout,
        Ok((Protocol::Http1, None)) => Detected::Http1,
        Ok((Protocol::Http2, None)) => Detected::Http2,
        Ok((Protocol::Opaque, None)) => Detected::NotHttp,
        Err(_) => Detected::Error,
    };
    metrics.detection(direction, labels).observe(result, took);
}

/// A client that closed without a byte: a probe or a port scanner, and nobody's failure. Says how the connection ended.
pub(crate) fn silent(metrics: &Metrics, story: &Story, direction: Direction) -> &'static str {
    let labels = Labels::new().with("direction", direction.as_str());
    metrics.counter(Count::SilentConnections, &labels).add(1);
    tracing::debug!(spans = story.spans(), sz = 0, "Peeked bytes from TCP stream");
    "the client closed without sending a byte"
}

/// A request that was answered by the proxy instead of the server.
pub(crate) fn request_failed(
    metrics: &Metrics,
    story: &Story,
    direction: Direction,
    who: Who<'_>,
    fault: &Fault,
) {
    let family = match direction {
        Direction::Inbound => Count::InboundHttpErrors,
        Direction::Outbound => Count::OutboundHttpErrors,
    };
    metrics.counter(family, &error_labels(story, direction, fault)).add(1);
    story.fault(fault);
    log(story, direction, who, What::Request, fault);
}

/// The two ends, for the log.
#[derive(Clone, Copy)]
pub(crate) struct Who<'a> {
    pub(crate) client: SocketAddr,
    pub(crate) target: &'a dyn std::fmt::Display,
}

/// What failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Connection,
    Request,
}

/// Writes a failure under the text by which people search for it, with its code, its cause and what is known of the
/// connection.
fn log(story: &Story, direction: Direction, who: Who<'_>, what: What, fault: &Fault) {
    let target = who.target.to_string();
    // Of what comes in, who sent it is half the evidence; what goes out is always this pod's.
    let source = (direction == Direction::Inbound).then(|| who.client.ip());
    let kind = Kind { code: fault.code(), direction, target, source };
    let Some(repeated) = story.recorder().fold(kind.clone()) else { return };
    let target = kind.target;
    let (spans, text, code) = (story.spans(), text(direction, what, fault.code()), fault.code().id());
    let client = who.client;
    // Shutdowns are everyday; the rest is worth a line at the default level.
    match fault.code() {
        Code::Draining | Code::FailureInjected => {
            tracing::info!(spans, %client, %target, repeated, %code, error = ?fault, "{text}");
        }
        _ if denies(fault.code()) => {
            let tls = story.client_tls();
            tracing::warn!(spans, client.tls = %tls, client.ip = %client.ip(), %target, repeated, %code, error = ?fault, "{text}");
        }
        _ => tracing::warn!(spans, %client, %target, repeated, %code, error = ?fault, "{text}"),
    }
}

/// Did a policy of this workload forbid it?
fn denies(code: Code) -> bool {
    matches!(
        code,
        Code::NoRuleAllows
            | Code::PlaintextRefused
            | Code::DefaultDenied
            | Code::PermitWithdrawn
            | Code::TcpNotHttpRoute
            | Code::EgressDenied
    )
}

/// Linkerd's text for what happened, where it has one.
fn text(direction: Direction, what: What, code: Code) -> &'static str {
    match (what, code) {
        (_, Code::DetectTimeout) => "TLS detection timed out",
        (What::Connection, code) if denies(code) => "Connection denied",
        (What::Request, code) if denies(code) => "Request denied",
        (What::Connection, _) if kind(code) == "failfast" => "TCP Balancer service in fail-fast",
        (What::Request, _) if kind(code) == "failfast" => "HTTP Balancer service in fail-fast",
        (_, code) if direction == Direction::Outbound && connects(code) => "Failed to connect",
        (What::Connection, _) => "Connection closed",
        (What::Request, _) => "Request failed",
    }
}

/// Is it a failure to connect?
fn connects(code: Code) -> bool {
    matches!(
        code,
        Code::ConnectRefused
            | Code::ConnectTimeout
            | Code::Unreachable
            | Code::HandshakeTimeout
            | Code::HandshakeEof
            | Code::HandshakeFailed
            | Code::PeerNotTls
            | Code::CertificateUntrusted
            | Code::CertificateExpired
            | Code::IdentityMismatch
            | Code::Stalled
    )
}

/// An endpoint could not be connected to; the request or connection that wanted it may find another.
pub(crate) fn connect_failed(recorder: &Recorder, endpoint: SocketAddr, fault: &Fault) {
    let target = format!("endpoint {endpoint}");
    let kind = Kind { code: fault.code(), direction: Direction::Outbound, target, source: None };
    let Some(repeated) = recorder.fold(kind) else { return };
    let spans = format!("outbound:endpoint{{peer.addr={endpoint}}}");
    tracing::warn!(spans, repeated, code = %fault.code().id(), error = ?fault, "Failed to connect");
}

/// An endpoint in the cluster is dialled in plaintext, for a reason that may be a mistake. Said once of each.
pub(crate) fn plaintext(recorder: &Recorder, endpoint: SocketAddr, reason: &'static str) {
    if recorder.first_said(endpoint, reason) {
        tracing::warn!(
            spans = format!("outbound:endpoint{{peer.addr={endpoint}}}"),
            reason,
            tls = "None(NotProvidedByServiceDiscovery)",
            "Plaintext to an address in the cluster whose identity is not known; the controller is asked again"
        );
    }
}

/// What a failure is counted under: Linkerd's kind, the code, and inbound the address that was dialled.
fn error_labels(story: &Story, direction: Direction, fault: &Fault) -> Labels {
    let labels = Labels::new().with("error", kind(fault.code())).with("code", fault.code().id());
    match (direction, story.server()) {
        (Direction::Inbound, Some(server)) => labels.target(server),
        _ => labels,
    }
}

/// Linkerd's coarse error kinds, which dashboards group by.
fn kind(code: Code) -> &'static str {
    match code {
        Code::DetectTimeout => "tls detection timeout",
        Code::Overloaded | Code::ConnectsQueued | Code::QueueTimeout => "loadshed",
        Code::NoEndpoints
        | Code::ServiceUnknown
        | Code::Unresolved
        | Code::DiscoveryFailing
        | Code::AllEndpointsFailing
        | Code::BreakersOpen => "failfast",
        Code::IdentityRequired => "identity required",
        Code::ResponseTimeout | Code::ResponseHeadersTimeout | Code::StreamIdle => "response timeout",
        Code::ConnectionLoop | Code::GatewayLoop => "gateway loop",
        Code::GatewayNameForeign | Code::GatewayNameUnknown | Code::GatewayNoTarget | Code::GatewayNoName => {
            "gateway domain invalid"
        }
        Code::ConnectRefused
        | Code::ConnectTimeout
        | Code::Unreachable
        | Code::ConnectionReset
        | Code::NetworkIo
        | Code::AppRefused
        | Code::AppConnectTimeout
        | Code::AppClosed
        | Code::UpstreamReset
        | Code::HandshakeEof => "i/o",
        _ => "unexpected",
    }
}

/// Linkerd's words for the error of a route's request.
pub(crate) fn route_error(code: Code) -> &'static str {
    match code {
        Code::NoEndpoints
        | Code::ServiceUnknown
        | Code::Unresolved
        | Code::DiscoveryFailing
        | Code::AllEndpointsFailing
        | Code::BreakersOpen => "FAIL_FAST",
        Code::Overloaded | Code::ConnectsQueued | Code::QueueTimeout => "LOAD_SHED",
        Code::ResponseTimeout => "REQUEST_TIMEOUT",
        Code::ResponseHeadersTimeout => "RESPONSE_HEADERS_TIMEOUT",
        Code::StreamIdle => "IDLE_TIMEOUT",
        Code::UpstreamGoaway => "GO_AWAY",
        Code::ConnectRefused
        | Code::ConnectTimeout
        | Code::Unreachable
        | Code::ConnectionReset
        | Code::NetworkIo
        | Code::AppRefused
        | Code::AppConnectTimeout
        | Code::AppClosed
        | Code::UpstreamReset
        | Code::HandshakeEof => "IO",
        _ => "UNKNOWN",
    }
}

/// The same for a response's body that broke off.
pub(crate) fn body_error(reset: Option<h2::Reason>) -> &'static str {
    reset.map_or("IO", reset_error)
}

/// The word of Linkerd's oldest families for a response that did not come, or not to its end.
pub(crate) fn response_error(reset: Option<h2::Reason>) -> &'static str {
    match reset {
        None => "unclassified",
        Some(h2::Reason::NO_ERROR) => "h2(NO_ERROR)",
        Some(h2::Reason::PROTOCOL_ERROR) => "h2(PROTOCOL_ERROR)",
        Some(h2::Reason::INTERNAL_ERROR) => "h2(INTERNAL_ERROR)",
        Some(h2::Reason::FLOW_CONTROL_ERROR) => "h2(FLOW_CONTROL_ERROR)",
        Some(h2::Reason::SETTINGS_TIMEOUT) => "h2(SETTINGS_TIMEOUT)",
        Some(h2::Reason::STREAM_CLOSED) => "h2(STREAM_CLOSED)",
        Some(h2::Reason::FRAME_SIZE_ERROR) => "h2(FRAME_SIZE_ERROR)",
        Some(h2::Reason::REFUSED_STREAM) => "h2(REFUSED_STREAM)",
        Some(h2::Reason::CANCEL) => "h2(CANCEL)",
        Some(h2::Reason::COMPRESSION_ERROR) => "h2(COMPRESSION_ERROR)",
        Some(h2::Reason::CONNECT_ERROR) => "h2(CONNECT_ERROR)",
        Some(h2::Reason::ENHANCE_YOUR_CALM) => "h2(ENHANCE_YOUR_CALM)",
        Some(h2::Reason::INADEQUATE_SECURITY) => "h2(INADEQUATE_SECURITY)",
        Some(h2::Reason::HTTP_1_1_REQUIRED) => "h2(HTTP_1_1_REQUIRED)",
        // A peer may send any number: it must not become a label.
        Some(_) => "h2(unknown)",
    }
}

/// The same for a stream that the server reset.
pub(crate) fn reset_error(reason: h2::Reason) -> &'static str {
    match reason {
        h2::Reason::CANCEL => "CANCEL",
        h2::Reason::REFUSED_STREAM => "REFUSED",
        h2::Reason::ENHANCE_YOUR_CALM => "ENHANCE_YOUR_CALM",
        _ => "RESET",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_called_what_people_search_for() {
        use Direction::{Inbound, Outbound};
        for (direction, what, code, wanted) in [
            (Inbound, What::Connection, Code::DetectTimeout, "TLS detection timed out"),
            (Inbound, What::Connection, Code::NoRuleAllows, "Connection denied"),
            (Inbound, What::Request, Code::PlaintextRefused, "Request denied"),
            (Inbound, What::Request, Code::AppRefused, "Request failed"),
            (Inbound, What::Connection, Code::ForeignServerName, "Connection closed"),
            (Outbound, What::Request, Code::NoEndpoints, "HTTP Balancer service in fail-fast"),
            (Outbound, What::Request, Code::AllEndpointsFailing, "HTTP Balancer service in fail-fast"),
            (Outbound, What::Connection, Code::Unresolved, "TCP Balancer service in fail-fast"),
            (Outbound, What::Request, Code::ConnectRefused, "Failed to connect"),
            (Outbound, What::Request, Code::IdentityMismatch, "Failed to connect"),
            (Outbound, What::Request, Code::ResponseTimeout, "Request failed"),
        ] {
            assert_eq!(text(direction, what, code), wanted, "{code:?}");
        }
    }
}
