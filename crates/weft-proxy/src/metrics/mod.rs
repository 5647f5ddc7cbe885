//! Counters of the data path.
//!
//! A label set is resolved once (per connection, target or route) into a handle; counting is then one relaxed atomic
//! addition. Label sets that nobody holds and nothing changes are retired.

pub mod labels;
pub mod series;
mod text;

pub use text::write;

use crate::metrics::{
    labels::Labels,
    series::{Counter, Gauge, Group, Histogram, HttpSeries, PHASE_BUCKETS, Statuses, TcpSeries},
};
use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use weft_fault::{Code, Phase};
use weft_wire::record::Direction;

pub struct Metrics {
    started: Instant,
    pub(crate) http: Group<HttpSeries>,
    pub(crate) tcp: Group<TcpSeries>,
    /// Families with one counter per label set, by family name without `_total`.
    pub(crate) counters: Vec<(&'static str, &'static str, Group<Counter>)>,
    pub(crate) gauges: Vec<(&'static str, &'static str, Group<Gauge>)>,
    pub(crate) statuses: Vec<(&'static str, &'static str, Group<Statuses>)>,
    pub(crate) faults: Vec<[OnceLock<Arc<Counter>>; 2]>,
    pub(crate) phases: Vec<Histogram>,
    pub(crate) retain_idle: Duration,
}

/// A family of plain counters.
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
    ControlStreams,
    JournalDropped,
    ConnectionsAccepted,
    SilentConnections,
    InboundHttpRequests,
    OutboundBackendRequests,
}

const COUNTERS: &[(Count, &str, &str)] = &[
    (Count::InboundHttpAuthzAllow, "inbound_http_authz_allow", "HTTP requests that a policy allowed"),
    (Count::InboundHttpAuthzDeny, "inbound_http_authz_deny", "HTTP requests that a policy denied"),
    (Count::InboundHttpRouteNotFound, "inbound_http_route_not_found", "HTTP requests that no route matched"),
    (Count::InboundTcpAuthzAllow, "inbound_tcp_authz_allow", "Connections that a policy allowed"),
    (Count::InboundTcpAuthzDeny, "inbound_tcp_authz_deny", "Connections that a policy denied"),
    (Count::InboundTcpAuthzTerminate, "inbound_tcp_authz_terminate", "Connections cut by a policy change"),
    (Count::InboundHttpErrors, "inbound_http_errors", "Failed inbound HTTP requests"),
    (Count::OutboundHttpErrors, "outbound_http_errors", "Failed outbound HTTP requests"),
    (Count::InboundTcpErrors, "inbound_tcp_errors", "Failed inbound connections"),
    (Count::OutboundTcpErrors, "outbound_tcp_errors", "Failed outbound connections"),
    (Count::InboundRateLimit, "inbound_http_local_ratelimit", "Requests refused by a rate limit"),
    (
        Count::TransportHeaderConnections,
        "inbound_tcp_transport_header_connections",
        "Direct connections with a transport header",
    ),
    (
        Count::OutboundProtocolConnections,
        "outbound_tcp_protocol_connections",
        "Outbound connections by detected protocol",
    ),
    (Count::Faults, "weft_faults", "Failures by code"),
    (
        Count::PlaintextInCluster,
        "weft_plaintext_in_cluster",
        "Plaintext connections to in-cluster addresses, by reason",
    ),
    (Count::LogLinesDropped, "weft_log_lines_dropped", "Log lines dropped because the reader was slow"),
    (Count::WorkerStalls, "weft_worker_stalls", "Times a worker did not run for a while"),
    (Count::CertRefreshes, "control_identity_cert_refreshes", "Certificate refreshes"),
    (Count::ControlStreams, "weft_control_streams", "Control-plane streams, by service and how they ended"),
    (Count::JournalDropped, "weft_journal_dropped", "Journal entries that could not be uploaded"),
    (Count::ConnectionsAccepted, "weft_connections_accepted", "Connections accepted"),
    (
        Count::SilentConnections,
        "weft_silent_connections",
        "Connections closed without a byte from the client",
    ),
    (Count::InboundHttpRequests, "inbound_http_requests", "HTTP requests that were let in, by route"),
    (
        Count::OutboundBackendRequests,
        "outbound_http_route_backend_requests",
        "HTTP requests, by route and backend",
    ),
];

/// A family of answers by status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    Inbound,
    OutboundRoute,
    OutboundBackend,
}

const ANSWERS: &[(Answers, &str, &str)] = &[
    (Answers::Inbound, "inbound_http_statuses", "HTTP answers, by route"),
    (Answers::OutboundRoute, "outbound_http_route_request_statuses", "HTTP answers, by route"),
    (
        Answers::OutboundBackend,
        "outbound_http_route_backend_response_statuses",
        "HTTP answers, by route and backend",
    ),
];

/// A family of plain gauges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    BalancerEndpoints,
    CertExpiration,
    CertRefresh,
}

const GAUGES: &[(Level, &str, &str)] = &[
    (Level::BalancerEndpoints, "outbound_http_balancer_endpoints", "Endpoints of a balancer, by state"),
    (
        Level::CertExpiration,
        "control_identity_cert_expiration_timestamp_seconds",
        "When the certificate expires, in seconds since the epoch",
    ),
    (
        Level::CertRefresh,
        "control_identity_cert_refresh_timestamp_seconds",
        "When the certificate was renewed last, in seconds since the epoch",
    ),
];

impl Metrics {
    /// Label sets that nobody holds are retired once they are idle for `retain_idle`.
    pub fn new(retain_idle: Duration) -> Arc<Self> {
        Arc::new(Metrics {
            started: Instant::now(),
            http: Group::default(),
            tcp: Group::default(),
            counters: COUNTERS.iter().map(|(_, name, help)| (*name, *help, Group::default())).collect(),
            gauges: GAUGES.iter().map(|(_, name, help)| (*name, *help, Group::default())).collect(),
            statuses: ANSWERS.iter().map(|(_, name, help)| (*name, *help, Group::default())).collect(),
            faults: Code::ALL.iter().map(|_| Default::default()).collect(),
            phases: PHASES.iter().map(|_| Histogram::new(PHASE_BUCKETS)).collect(),
            retain_idle,
        })
    }

    /// Requests and responses of one label set.
    pub fn http(&self, labels: &Labels) -> Arc<HttpSeries> {
        self.http.resolve(labels)
    }

    /// Connections and bytes of one label set.
    pub fn tcp(&self, labels: &Labels) -> Arc<TcpSeries> {
        self.tcp.resolve(labels)
    }

    /// One counter of one label set. Hold it where the same labels are counted often.
    pub fn counter(&self, family: Count, labels: &Labels) -> Arc<Counter> {
        // The table is in the order of the enum: a test holds it to that.
        self.counters[family as usize].2.resolve(labels)
    }

    /// The answers of one label set. Hold it as you hold a counter.
    pub fn statuses(&self, family: Answers, labels: &Labels) -> Arc<Statuses> {
        self.statuses[family as usize].2.resolve(labels)
    }

    pub fn gauge(&self, family: Level, labels: &Labels) -> Arc<Gauge> {
        self.gauges[family as usize].2.resolve(labels)
    }

    /// Counts a failure in `weft_faults_total{code,direction}`.
    pub fn fault(&self, code: Code, direction: Direction) {
        let counter = self.faults[code as usize][direction as usize].get_or_init(|| {
            self.counter(
                Count::Faults,
                &Labels::new().with("code", code.id()).with("direction", direction.as_str()),
            )
        });
        counter.add(1);
    }

    /// How long a step took, in `weft_phase_duration_seconds{phase}`.
    pub fn phase(&self, phase: Phase, took: Duration) {
        self.phases[phase as usize].observe(took);
    }

    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

/// The phases, in the order of their numbers.
pub(crate) const PHASES: &[Phase] = &[
    Phase::Accept,
    Phase::Detect,
    Phase::TlsAccept,
    Phase::TransportHeader,
    Phase::Discover,
    Phase::Route,
    Phase::Authorize,
    Phase::Queue,
    Phase::Connect,
    Phase::TlsConnect,
    Phase::RequestHeaders,
    Phase::RequestBody,
    Phase::ResponseHeaders,
    Phase::ResponseBody,
    Phase::Copy,
    Phase::Control,
    Phase::Certify,
    Phase::Start,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_the_order_of_their_enums() {
        for (at, (count, name, _)) in COUNTERS.iter().enumerate() {
            assert_eq!(*count as usize, at, "{name}");
        }
        for (at, (answers, name, _)) in ANSWERS.iter().enumerate() {
            assert_eq!(*answers as usize, at, "{name}");
        }
        for (at, (level, name, _)) in GAUGES.iter().enumerate() {
            assert_eq!(*level as usize, at, "{name}");
        }
        for (at, phase) in PHASES.iter().enumerate() {
            assert_eq!(*phase as usize, at);
        }
        for (at, code) in Code::ALL.iter().enumerate() {
            assert_eq!(*code as usize, at);
        }
    }
}
