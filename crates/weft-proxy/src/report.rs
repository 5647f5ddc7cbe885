//! How a connection's end is told: to the flight recorder, the metrics and the log.

use crate::{
    deadline::Late,
    detect::Protocol,
    metrics::{Count, Metrics, balancer::Detected, labels::Labels},
    record::Story,
};
use std::{
    cell::RefCell,
    collections::HashMap,
    time::{Duration, Instant},
};
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
    metrics
        .counter(family, &Labels::new().with("error", kind(fault.code())).with("code", fault.code().id()))
        .add(1);
    story.fault(fault);
    log(direction, who, "connection failed", fault);
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
pub(crate) fn silent(metrics: &Metrics, direction: Direction, client: std::net::SocketAddr) -> &'static str {
    let labels = Labels::new().with("direction", direction.as_str());
    metrics.counter(Count::SilentConnections, &labels).add(1);
    tracing::debug!(direction = direction.as_str(), %client, "the client closed without sending a byte");
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

/// The same failure of the same target is written once in this time; how often it came meanwhile is said the next time.
const REPEAT: Duration = Duration::from_secs(1);
/// More kinds of failure than this at once: the table starts anew.
const KINDS: usize = 512;

/// When a kind of failure was last written, and how many were not since.
struct Written {
    at: Instant,
    held_back: u64,
}

thread_local! {
    static WRITTEN: RefCell<HashMap<(Code, Direction, String), Written>> = RefCell::default();
}

fn log(direction: Direction, who: Who<'_>, what: &'static str, fault: &Fault) {
    let (client, target) = (who.client, who.target.to_string());
    let Some(repeated) = may_write((fault.code(), direction, target.clone())) else { return };
    let direction = direction.as_str();
    // Shutdowns are everyday; the rest is worth a line at the default level.
    match fault.code() {
        Code::Draining | Code::FailureInjected => {
            tracing::info!(direction, %client, %target, repeated, error = ?fault, "{what}");
        }
        _ => tracing::warn!(direction, %client, %target, repeated, error = ?fault, "{what}"),
    }
}

/// `None`: it was written just now. Otherwise how many were held back since the last time.
fn may_write(kind: (Code, Direction, String)) -> Option<u64> {
    WRITTEN.with_borrow_mut(|written| {
        let now = Instant::now();
        if let Some(last) = written.get_mut(&kind) {
            if now.duration_since(last.at) < REPEAT {
                last.held_back += 1;
                return None;
            }
            last.at = now;
            return Some(std::mem::take(&mut last.held_back));
        }
        if written.len() >= KINDS {
            written.clear();
        }
        written.insert(kind, Written { at: now, held_back: 0 });
        Some(0)
    })
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

/// Linkerd's words for the error of a route's request.
pub(crate) fn route_error(code: Code) -> &'static str {
    match code {
        Code::NoEndpoints
        | Code::ServiceUnknown
        | Code::Unresolved
        | Code::AllEndpointsFailing
        | Code::BreakersOpen
        | Code::QueueTimeout => "FAIL_FAST",
        Code::Overloaded => "LOAD_SHED",
        Code::ResponseTimeout => "REQUEST_TIMEOUT",
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

/// The same for a stream that the server reset.
pub(crate) fn reset_error(reason: h2::Reason) -> &'static str {
    match reason {
        h2::Reason::CANCEL => "CANCEL",
        h2::Reason::REFUSED_STREAM => "REFUSED",
        h2::Reason::ENHANCE_YOUR_CALM => "ENHANCE_YOUR_CALM",
        _ => "RESET",
    }
}
