//! How a connection's end is told: to the flight recorder, the metrics and the log.

use crate::{
    metrics::{Count, Metrics, labels::Labels},
    record::Story,
};
use weft_fault::{Code, Fault};
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
    metrics
        .counter(family, &Labels::new().with("error", kind(fault.code())).with("code", fault.code().id()))
        .add(1);
    story.fault(fault);
    log(direction, who, "connection failed", fault);
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
    metrics
        .counter(family, &Labels::new().with("error", kind(fault.code())).with("code", fault.code().id()))
        .add(1);
    story.fault(fault);
    log(direction, who, "request failed", fault);
}

/// The two ends, for the log.
#[derive(Clone, Copy)]
pub(crate) struct Who<'a> {
    pub(crate) client: std::net::SocketAddr,
    pub(crate) target: &'a dyn std::fmt::Display,
}

fn log(direction: Direction, who: Who<'_>, what: &'static str, fault: &Fault) {
    let (direction, client, target) = (direction.as_str(), who.client, who.target);
    // Probes and shutdowns are everyday; the rest is worth a line at the default level.
    match fault.code() {
        Code::ClientSilent | Code::Draining | Code::FailureInjected => {
            tracing::info!(direction, %client, %target, error = ?fault, "{what}");
        }
        _ => tracing::warn!(direction, %client, %target, error = ?fault, "{what}"),
    }
}

/// Linkerd's coarse error kinds, which dashboards group by.
fn kind(code: Code) -> &'static str {
    match code {
        Code::DetectTimeout => "tls detection timeout",
        Code::Overloaded => "loadshed",
        Code::NoEndpoints
        | Code::ServiceUnknown
        | Code::Unresolved
        | Code::AllEndpointsFailing
        | Code::BreakersOpen
        | Code::QueueTimeout => "failfast",
        Code::IdentityRequired => "identity required",
        Code::ResponseTimeout => "response timeout",
        Code::ConnectionLoop => "gateway loop",
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
