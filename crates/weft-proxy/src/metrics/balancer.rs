//! What is counted of connections: detection, routes of bytes, and the choice of an endpoint.

use super::{
    families::{Family, Kind, Lines},
    series::{Counter, DETECTION, Gauge, Histogram, Series, WAITING},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

/// What looking for HTTP came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detected {
    Http1,
    Http2,
    NotHttp,
    ReadTimeout,
    Error,
}

const DETECTED: [&str; 5] = ["http/1", "http/2", "not_http", "read_timeout", "error"];

/// `{inbound,outbound}_tcp_detect_http_*`.
#[derive(Debug)]
pub struct Detection {
    results: [Counter; 5],
    duration: Histogram,
}

impl Default for Detection {
    fn default() -> Self {
        Detection { results: Default::default(), duration: Histogram::new(&DETECTION) }
    }
}

impl Detection {
    pub fn observe(&self, detected: Detected, took: Duration) {
        self.results[detected as usize].add(1);
        self.duration.observe(took);
    }
}

impl Series for Detection {
    const FAMILIES: &'static [Family] = &[
        Family::new("_results_total", Kind::Counter, &["result"], "Outcomes of protocol detection"),
        Family::new("_duration_seconds", Kind::Histogram, &[], "How long protocol detection took"),
    ];
    fn activity(&self) -> u64 {
        self.duration.count()
    }
    fn lines(&self, family: usize, to: &mut Lines<'_>) {
        if family == 1 {
            return to.histogram("", &self.duration);
        }
        for (result, count) in DETECTED.iter().zip(&self.results) {
            to.value(&format!("result=\"{result}\""), count.value());
        }
    }
}

/// `outbound_{tcp,tls}_route_{open,close}_total`.
#[derive(Debug, Default)]
pub struct TransportRoute {
    opened: Counter,
    closed: [Counter; 5],
}

/// Why a connection's route ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    Orderly,
    Forbidden,
    InvalidBackend,
    InvalidPolicy,
    Unexpected,
}

const CLOSED: [&str; 5] = ["", "forbidden", "invalid_backend", "invalid_policy", "unexpected"];

impl TransportRoute {
    pub fn open(&self) {
        self.opened.add(1);
    }
    pub fn close(&self, why: Closed) {
        self.closed[why as usize].add(1);
    }
}

impl Series for TransportRoute {
    const FAMILIES: &'static [Family] = &[
        Family::new("_open_total", Kind::Counter, &[], "Connections that took the route"),
        Family::new("_close_total", Kind::Counter, &["error"], "Connections of the route that ended"),
    ];
    fn activity(&self) -> u64 {
        self.opened.value() + self.closed.iter().map(Counter::value).sum::<u64>()
    }
    fn lines(&self, family: usize, to: &mut Lines<'_>) {
        if family == 0 {
            return to.value("", self.opened.value());
        }
        for (error, count) in CLOSED.iter().zip(&self.closed) {
            to.value(&format!("error=\"{error}\""), count.value());
        }
    }
}

/// `…_balancer_*`: the endpoints of a name, and how long it takes to have one of them. Levels are sums over all who hold
/// [`Endpoints`] of it: mostly one for each worker.
#[derive(Debug)]
pub struct Balancer {
    ready: Gauge,
    pending: Gauge,
    added: Counter,
    removed: Counter,
    /// First answers.
    reset: Counter,
    waiting: Gauge,
    requests: Counter,
    waited: Histogram,
    opened: Counter,
    shut: Counter,
    opened_at: Gauge,
    shut_at: Gauge,
    is_shut: AtomicBool,
    patience_ms: Gauge,
}

impl Default for Balancer {
    fn default() -> Self {
        Balancer {
            ready: Gauge::default(),
            pending: Gauge::default(),
            added: Counter::default(),
            removed: Counter::default(),
            reset: Counter::default(),
            waiting: Gauge::default(),
            requests: Counter::default(),
            waited: Histogram::new(&WAITING),
            opened: Counter::default(),
            shut: Counter::default(),
            opened_at: Gauge::default(),
            shut_at: Gauge::default(),
            is_shut: AtomicBool::new(false),
            patience_ms: Gauge::default(),
        }
    }
}

/// The endpoints that one balancer sees, a share of the levels for as long as it lives.
#[derive(Debug)]
pub struct Endpoints {
    of: Arc<Balancer>,
    /// Ready and pending.
    said: [i64; 2],
}

impl Endpoints {
    pub fn new(of: &Arc<Balancer>) -> Self {
        Endpoints { of: of.clone(), said: [0; 2] }
    }

    pub fn of(&self) -> &Arc<Balancer> {
        &self.of
    }

    /// How many endpoints there are, and how many of them may be chosen now.
    pub fn say(&mut self, all: usize, ready: usize) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let now = [number(ready), number(all.saturating_sub(ready))];
        for ((level, now), said) in
            [&self.of.ready, &self.of.pending].into_iter().zip(now).zip(&mut self.said)
        {
            level.add(now - *said);
            *said = now;
        }
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        self.say(0, 0);
    }
}

impl Balancer {
    /// The controller's answer changed; its `first` one replaces whatever there was.
    pub fn updated(&self, first: bool, added: usize, removed: usize) {
        if first {
            self.reset.add(1);
        } else {
            self.added.add(added as u64);
            self.removed.add(removed as u64);
        }
    }

    /// A request asks for an endpoint, and waits until the guard is dropped, at most `patience`.
    pub fn asked(self: Arc<Self>, patience: Duration) -> Waiting {
        self.patience_ms.set(i64::try_from(patience.as_millis()).unwrap_or(i64::MAX));
        self.requests.add(1);
        self.waiting.add(1);
        Waiting(self)
    }

    /// Whether the last request had an endpoint. A gate that nobody passes is shut.
    fn gate(&self, open: bool) {
        if self.is_shut.swap(!open, Relaxed) != open {
            return;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let (count, at) = if open { (&self.opened, &self.opened_at) } else { (&self.shut, &self.shut_at) };
        count.add(1);
        at.set(now);
    }
}

/// A request that waits for an endpoint.
#[derive(Debug)]
pub struct Waiting(Arc<Balancer>);

impl Waiting {
    pub fn served(self, had_endpoint: bool, waited: Duration) {
        self.0.waited.observe(waited);
        self.0.gate(had_endpoint);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.add(-1);
    }
}

impl Series for Balancer {
    const FAMILIES: &'static [Family] = &[
        Family::new("_endpoints", Kind::Gauge, &["endpoint_state"], "Endpoints by state"),
        Family::new("_p2c_endpoints", Kind::Gauge, &[], "Endpoints"),
        Family::new("_p2c_updates_total", Kind::Counter, &["op"], "Changes of the endpoints"),
        Family::new("_queue_length", Kind::Gauge, &[], "Requests that wait for an endpoint"),
        Family::new("_queue_requests_total", Kind::Counter, &[], "Requests that asked for an endpoint"),
        Family::new(
            "_queue_latency_seconds",
            Kind::Histogram,
            &[],
            "How long requests waited for an endpoint",
        ),
        Family::new("_queue_gate_open_total", Kind::Counter, &[], "Times that endpoints became available"),
        Family::new(
            "_queue_gate_shut_total",
            Kind::Counter,
            &[],
            "Times that requests began to fail at once",
        ),
        Family::new(
            "_queue_gate_open_time_seconds",
            Kind::Gauge,
            &[],
            "When endpoints became available last",
        ),
        Family::new(
            "_queue_gate_shut_time_seconds",
            Kind::Gauge,
            &[],
            "When requests last began to fail at once",
        ),
        Family::new(
            "_queue_gate_timeout_seconds",
            Kind::Gauge,
            &[],
            "How long a request waits for an endpoint",
        ),
    ];
    fn activity(&self) -> u64 {
        let levels = self.ready.activity().wrapping_mul(31).wrapping_add(self.pending.activity());
        let changes = self.reset.value() + self.added.value() + self.removed.value();
        self.requests.value().wrapping_add(changes).wrapping_add(levels)
    }
    fn lines(&self, family: usize, to: &mut Lines<'_>) {
        match family {
            0 => {
                to.value("endpoint_state=\"ready\"", self.ready.value());
                to.value("endpoint_state=\"pending\"", self.pending.value());
            }
            1 => to.value("", self.ready.value() + self.pending.value()),
            2 => {
                to.value("op=\"Add\"", self.added.value());
                to.value("op=\"Remove\"", self.removed.value());
                to.value("op=\"Reset\"", self.reset.value());
            }
            3 => to.value("", self.waiting.value()),
            4 => to.value("", self.requests.value()),
            5 => to.histogram("", &self.waited),
            6 => to.value("", self.opened.value()),
            7 => to.value("", self.shut.value()),
            8 => to.value("", self.opened_at.value()),
            9 => to.value("", self.shut_at.value()),
            _ => to.value("", self.patience_ms.value() as f64 / 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_sums_over_all_who_balance() {
        let all = Arc::new(Balancer::default());
        let levels = || (all.ready.value(), all.pending.value());
        let (mut one, mut other) = (Endpoints::new(&all), Endpoints::new(&all));
        one.say(3, 2);
        other.say(3, 3);
        assert_eq!(levels(), (5, 1));
        one.say(2, 2);
        assert_eq!(levels(), (5, 0));
        drop(other);
        assert_eq!(levels(), (2, 0));
        drop(one);
        assert_eq!(levels(), (0, 0));
    }
}
