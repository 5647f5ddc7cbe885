//! Counters of the data path.
//!
//! A label set is resolved once (per connection, target or route) into a handle; counting is then one relaxed atomic
//! addition. Label sets that nobody holds and nothing changes are retired.

pub mod balancer;
mod breath;
mod counters;
#[cfg(test)]
mod docs;
pub mod exchange;
mod families;
pub mod group;
pub mod labels;
mod page;
mod part;
pub mod phases;
mod process;
pub mod retry;
pub mod route;
pub mod series;

pub use counters::{Count, Level};
pub use families::{Described, Kind};
pub use page::{Encoding, write};

use crate::metrics::{
    balancer::{Balancer, Detection, TransportRoute},
    breath::Breath,
    counters::{COUNTERS, GAUGES},
    families::{
        AUTHZ, AnySet, BACKEND, CLIENT, Groups, INBOUND_PARENT, OUTBOUND_ROUTE, PARENT, ROUTE, SERVICE_ROUTE,
        SRV, Set, TARGET,
    },
    labels::Labels,
    phases::Phases,
    retry::Retries,
    route::{InboundRoute, OutboundBackend, OutboundRoute},
    series::{Counter, Gauge, HttpSeries, TcpSeries},
};
use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use weft_fault::{Code, Phase};
use weft_wire::record::Direction;

/// Everything that this proxy counts.
pub struct Metrics {
    started: Instant,
    retain_idle: Duration,
    http: Set<HttpSeries>,
    tcp: Set<TcpSeries>,
    counters: Vec<Set<Counter>>,
    gauges: Vec<Set<Gauge>>,
    inbound_routes: [Set<InboundRoute>; 2],
    outbound_routes: [Set<OutboundRoute>; 2],
    outbound_backends: [Set<OutboundBackend>; 2],
    retries: [Set<Retries>; 2],
    /// As the application sees them, and as they went out.
    service_routes: [Set<HttpSeries>; 2],
    detections: [Set<Detection>; 2],
    transport_routes: [Set<TransportRoute>; 2],
    balancers: [Set<Balancer>; 3],
    control_balancers: [Set<Balancer>; 3],
    control_http: Set<HttpSeries>,
    faults: Vec<[OnceLock<Arc<Counter>>; 2]>,
    phases: Arc<Phases>,
}

/// Two names for the same families, by what the policy says of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    Http,
    Grpc,
}

/// What a balancer's endpoints are chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balanced {
    Http,
    Tcp,
    Tls,
}

/// A service of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlService {
    Identity,
    Destination,
    Policy,
}

impl ControlService {
    pub const fn as_str(self) -> &'static str {
        match self {
            ControlService::Identity => "identity",
            ControlService::Destination => "destination",
            ControlService::Policy => "policy",
        }
    }
}

/// Routes of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Tls,
}

/// Idleness is told this often at most and at least.
const RETIRE_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

const REQUESTS: Groups =
    &[&["direction", "authority"], TARGET, CLIENT, &["server_id"], SRV, ROUTE, AUTHZ, &["dst_*"]];
const CONNECTIONS: Groups = &[&["direction", "peer"], TARGET, CLIENT, &["server_id"], SRV, &["dst_*"]];
const OF_INBOUND_ROUTE: Groups = &[INBOUND_PARENT, ROUTE];
const OF_OUTBOUND_ROUTE: Groups = &[PARENT, OUTBOUND_ROUTE, &["hostname"]];
const OF_BACKEND: Groups = &[PARENT, OUTBOUND_ROUTE, BACKEND];
const OF_TRANSPORT_ROUTE: Groups = &[PARENT, OUTBOUND_ROUTE];
const OF_BALANCER: Groups = &[PARENT, BACKEND];

impl Metrics {
    /// Label sets that nobody holds are retired once they are idle for `retain_idle`.
    pub fn new(retain_idle: Duration) -> Arc<Self> {
        let route = "HTTP by route";
        Arc::new(Metrics {
            started: Instant::now(),
            retain_idle,
            http: Set::new("", REQUESTS, ""),
            tcp: Set::new("", CONNECTIONS, ""),
            counters: COUNTERS.iter().map(|(_, name, labels, help)| Set::new(name, labels, help)).collect(),
            gauges: GAUGES.iter().map(|(_, name, labels, help)| Set::new(name, labels, help)).collect(),
            inbound_routes: [
                Set::new("inbound_http", OF_INBOUND_ROUTE, route),
                Set::new("inbound_grpc", OF_INBOUND_ROUTE, "gRPC by route"),
            ],
            outbound_routes: [
                Set::new("outbound_http_route", OF_OUTBOUND_ROUTE, route),
                Set::new("outbound_grpc_route", OF_OUTBOUND_ROUTE, "gRPC by route"),
            ],
            outbound_backends: [
                Set::new("outbound_http_route_backend", OF_BACKEND, "HTTP by route and backend"),
                Set::new("outbound_grpc_route_backend", OF_BACKEND, "gRPC by route and backend"),
            ],
            retries: [
                Set::new("outbound_http_route_retry", OF_TRANSPORT_ROUTE, "HTTP by route"),
                Set::new("outbound_grpc_route_retry", OF_TRANSPORT_ROUTE, "gRPC by route"),
            ],
            service_routes: [
                Set::new("route_", SERVICE_ROUTE, "by a ServiceProfile's route"),
                Set::new("route_actual_", SERVICE_ROUTE, "by a ServiceProfile's route, retries included"),
            ],
            detections: [
                Set::new("inbound_tcp_detect_http", &[SRV], "inbound"),
                Set::new("outbound_tcp_detect_http", &[PARENT], "outbound"),
            ],
            transport_routes: [
                Set::new("outbound_tcp_route", OF_TRANSPORT_ROUTE, "opaque"),
                Set::new("outbound_tls_route", OF_TRANSPORT_ROUTE, "by TLS server name"),
            ],
            balancers: [
                Set::new("outbound_http_balancer", OF_BALANCER, "HTTP by backend"),
                Set::new("outbound_tcp_balancer", OF_BALANCER, "opaque by backend"),
                Set::new("outbound_tls_balancer", OF_BALANCER, "TLS by backend"),
            ],
            control_balancers: [
                Set::new("control_identity_balancer", &[&["addr"]], "certificates"),
                Set::new("control_destination_balancer", &[&["addr"]], "discovery"),
                Set::new("control_policy_balancer", &[&["addr"]], "policy"),
            ],
            control_http: Set::new(
                "control_",
                &[&["addr", "tls", "server_id", "no_tls_reason"]],
                "control plane",
            ),
            faults: Code::ALL.iter().map(|_| Default::default()).collect(),
            phases: Phases::new(),
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
        self.counters[family as usize].resolve(labels)
    }

    pub fn gauge(&self, family: Level, labels: &Labels) -> Arc<Gauge> {
        self.gauges[family as usize].resolve(labels)
    }

    /// These series of a family have these values, and its others are zero.
    pub fn only(&self, family: Level, values: impl IntoIterator<Item = (Labels, i64)>) {
        self.gauges[family as usize].each(|gauge| gauge.set(0));
        for (labels, value) in values {
            self.gauge(family, &labels).set(value);
        }
    }

    pub fn inbound_route(&self, flavour: Flavour, labels: &Labels) -> Arc<InboundRoute> {
        self.inbound_routes[flavour as usize].resolve(labels)
    }

    pub fn outbound_route(&self, flavour: Flavour, labels: &Labels) -> Arc<OutboundRoute> {
        self.outbound_routes[flavour as usize].resolve(labels)
    }

    pub fn outbound_backend(&self, flavour: Flavour, labels: &Labels) -> Arc<OutboundBackend> {
        self.outbound_backends[flavour as usize].resolve(labels)
    }

    pub fn retries(&self, flavour: Flavour, labels: &Labels) -> Arc<Retries> {
        self.retries[flavour as usize].resolve(labels)
    }

    /// Requests of the application that a route of a ServiceProfile takes.
    pub fn service_route(&self, labels: &Labels) -> Arc<HttpSeries> {
        self.service_routes[0].resolve(labels)
    }

    /// The same as they go out, retries included.
    pub fn service_route_actual(&self, labels: &Labels) -> Arc<HttpSeries> {
        self.service_routes[1].resolve(labels)
    }

    /// What protocol detection comes to.
    pub fn detection(&self, direction: Direction, labels: &Labels) -> Arc<Detection> {
        self.detections[direction as usize].resolve(labels)
    }

    pub fn transport_route(&self, transport: Transport, labels: &Labels) -> Arc<TransportRoute> {
        self.transport_routes[transport as usize].resolve(labels)
    }

    pub fn balancer(&self, balanced: Balanced, labels: &Labels) -> Arc<Balancer> {
        self.balancers[balanced as usize].resolve(labels)
    }

    /// The replicas of a service of the control plane.
    pub fn control_balancer(&self, service: ControlService, labels: &Labels) -> Arc<Balancer> {
        self.control_balancers[service as usize].resolve(labels)
    }

    /// Requests to a service of the control plane.
    pub fn control_http(&self, labels: &Labels) -> Arc<HttpSeries> {
        self.control_http.resolve(labels)
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
        self.phases.observe(phase, took);
    }

    /// The same, for who observes often.
    pub fn phases(&self) -> &Arc<Phases> {
        &self.phases
    }

    /// All sets of label sets, in the order of the page.
    fn sets(&self) -> Vec<&dyn AnySet> {
        let mut sets: Vec<&dyn AnySet> = vec![&self.http, &self.tcp];
        self.counters.iter().for_each(|set| sets.push(set));
        self.gauges.iter().for_each(|set| sets.push(set));
        self.inbound_routes.iter().for_each(|set| sets.push(set));
        self.outbound_routes.iter().for_each(|set| sets.push(set));
        self.outbound_backends.iter().for_each(|set| sets.push(set));
        self.retries.iter().for_each(|set| sets.push(set));
        self.service_routes.iter().for_each(|set| sets.push(set));
        self.detections.iter().for_each(|set| sets.push(set));
        self.transport_routes.iter().for_each(|set| sets.push(set));
        self.balancers.iter().for_each(|set| sets.push(set));
        self.control_balancers.iter().for_each(|set| sets.push(set));
        sets.push(&self.control_http);
        sets
    }

    /// Every family that the page may have.
    pub fn describe(&self) -> Vec<Described> {
        let mut all: Vec<Described> = self.sets().iter().flat_map(|set| set.families()).collect();
        all.push(phases::describe());
        all.extend(process::describe());
        all
    }

    /// Forgets label sets that nobody holds and that are idle. Called by the agent from time to time; takes its time.
    pub async fn retire(&self) {
        let mut breath = Breath::new();
        for set in self.sets() {
            let mut chunk = 0;
            while set.retire(chunk, self.retain_idle, Instant::now()) {
                chunk += 1;
                breath.take().await;
            }
        }
    }

    /// How often that is worth while.
    pub fn retire_every(&self) -> Duration {
        (self.retain_idle / 10).clamp(RETIRE_EVERY.0, RETIRE_EVERY.1)
    }

    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_the_order_of_their_enums() {
        for (at, (count, name, ..)) in COUNTERS.iter().enumerate() {
            assert_eq!(*count as usize, at, "{name}");
        }
        for (at, (level, name, ..)) in GAUGES.iter().enumerate() {
            assert_eq!(*level as usize, at, "{name}");
        }
        for (at, code) in Code::ALL.iter().enumerate() {
            assert_eq!(*code as usize, at);
        }
    }
}
