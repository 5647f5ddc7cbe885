//! What is counted: counters, gauges, histograms, and the series made of them.

use super::families::{Family, Kind, Lines};
use parking_lot::Mutex;
use std::{
    fmt::Write,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// What is counted for one label set, in one family or several. Counting takes no lock that a reader holds for longer
/// than a copy.
pub trait Series: Default + Send + Sync + 'static {
    /// Names begin with what the set's own name leaves open.
    const FAMILIES: &'static [Family];
    /// A number that changes whenever the series changes: how idleness is told.
    fn activity(&self) -> u64;
    /// Says something for as long as it stands, however long it does not change.
    fn stands(&self) -> bool {
        false
    }
    /// Writes the lines of one family, by its place in [`Series::FAMILIES`].
    fn lines(&self, family: usize, to: &mut Lines<'_>);
}

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Series for Counter {
    const FAMILIES: &'static [Family] = &[Family::new("_total", Kind::Counter, &[], "")];
    fn activity(&self) -> u64 {
        self.value()
    }
    fn lines(&self, _: usize, to: &mut Lines<'_>) {
        to.value("", self.value());
    }
}

#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    pub fn add(&self, n: i64) {
        self.0.fetch_add(n, Relaxed);
    }
    pub fn set(&self, n: i64) {
        self.0.store(n, Relaxed);
    }
    pub fn value(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

impl Series for Gauge {
    const FAMILIES: &'static [Family] = &[Family::new("", Kind::Gauge, &[], "")];
    fn activity(&self) -> u64 {
        self.value().cast_unsigned()
    }
    fn stands(&self) -> bool {
        self.value() != 0
    }
    fn lines(&self, _: usize, to: &mut Lines<'_>) {
        to.value("", self.value());
    }
}

/// The upper bounds of a histogram's buckets, as integers of a small unit.
#[derive(Debug)]
pub struct Bounds {
    upper: &'static [u64],
    /// How many of the small unit make one of the family's unit.
    unit: f64,
    /// The label `le` of each bucket, written once.
    le: OnceLock<Box<[String]>>,
}

impl Bounds {
    pub(crate) const fn new(upper: &'static [u64], unit: f64) -> Self {
        Bounds { upper, unit, le: OnceLock::new() }
    }

    fn le(&self) -> &[String] {
        self.le.get_or_init(|| {
            let finite = self.upper.iter().map(|bound| format!("le=\"{}\"", *bound as f64 / self.unit));
            finite.chain([String::from("le=\"+Inf\"")]).collect()
        })
    }
}

/// Linkerd's buckets of milliseconds, counted in microseconds.
static LATENCY: Bounds = Bounds::new(
    &[
        1_000, 2_000, 3_000, 4_000, 5_000, 10_000, 20_000, 30_000, 40_000, 50_000, 100_000, 200_000, 300_000,
        400_000, 500_000, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000, 10_000_000, 20_000_000,
        30_000_000, 40_000_000, 50_000_000,
    ],
    1e3,
);
/// Seconds, counted in microseconds, as fine as the steps of a connection need it.
pub(crate) static STEPS: Bounds = Bounds::new(
    &[
        50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
        2_500_000, 5_000_000, 10_000_000, 30_000_000,
    ],
    1e6,
);
/// Linkerd's two resolutions for requests and responses, and its three others.
pub(crate) static FINE: Bounds =
    Bounds::new(&[25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 10_000_000], 1e6);
pub(crate) static COARSE: Bounds = Bounds::new(&[50_000, 500_000, 1_000_000, 10_000_000], 1e6);
pub(crate) static DETECTION: Bounds = Bounds::new(&[1_000, 100_000], 1e6);
pub(crate) static WAITING: Bounds = Bounds::new(&[500, 5_000, 50_000, 500_000, 1_000_000, 3_000_000], 1e6);
pub(crate) static FRAMES: Bounds = Bounds::new(&[128, 1_024, 10_240], 1.0);

#[derive(Debug)]
pub struct Histogram {
    bounds: &'static Bounds,
    /// One more than bounds: the last is +Inf.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static Bounds) -> Self {
        let counts = (0..=bounds.upper.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum: AtomicU64::new(0) }
    }

    pub fn observe(&self, took: Duration) {
        self.observe_number(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// A number of the bounds' small unit.
    pub fn observe_number(&self, number: u64) {
        let at = self.bounds.upper.partition_point(|bound| *bound < number);
        self.counts[at].fetch_add(1, Relaxed);
        self.sum.fetch_add(number, Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    pub(crate) fn lines(&self, to: &mut Lines<'_>, more: &str) {
        let mut cumulative = 0;
        for (le, count) in self.bounds.le().iter().zip(&self.counts) {
            cumulative += count.load(Relaxed);
            to.bucket(more, le, cumulative);
        }
        let sum = self.sum.load(Relaxed) as f64 / self.bounds.unit;
        to.totals(more, sum, cumulative);
    }
}

/// Requests and responses of one label set.
#[derive(Debug, Default)]
pub struct HttpSeries {
    requests: Counter,
    /// Found by linear search without a lock; what finds no room is counted in the last one.
    responses: [OnceLock<Box<Response>>; RESPONSES],
}

const RESPONSES: usize = 12;

/// How a response ended, as far as series are kept apart by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    /// `None`: it never began.
    status: Option<u16>,
    grpc: Option<u8>,
    success: bool,
    /// It did not come to its end: one of Linkerd's words for why. Otherwise empty.
    error: &'static str,
}

#[derive(Debug)]
struct Response {
    outcome: Outcome,
    count: Counter,
    latency: Histogram,
}

impl HttpSeries {
    pub fn request(&self) {
        self.requests.add(1);
    }

    /// A response ended. `success` is its classification: no 5xx, or for gRPC no failing code.
    pub fn response(&self, status: u16, grpc: Option<u8>, success: bool, latency: Duration) {
        let response = self.ended(Outcome { status: Some(status), grpc, success, error: "" });
        response.inspect(|response| response.latency.observe(latency));
    }

    /// There is no response, or, if `begun` with a status and after that time, none that came to its end.
    pub fn failed(&self, error: &'static str, begun: Option<(u16, Duration)>) {
        let status = begun.map(|(status, _)| status);
        let response = self.ended(Outcome { status, grpc: None, success: false, error });
        if let (Some(response), Some((_, latency))) = (response, begun) {
            response.latency.observe(latency);
        }
    }

    fn ended(&self, outcome: Outcome) -> Option<&Response> {
        let new =
            || Box::new(Response { outcome, count: Counter::default(), latency: Histogram::new(&LATENCY) });
        let mut all = self.responses.iter().map(|slot| &**slot.get_or_init(new));
        let found = all.find(|response| response.outcome == outcome);
        // Twelve kinds of answer from one target and still another: the kind found last stands for all further ones.
        let response = found.or_else(|| self.responses[RESPONSES - 1].get().map(|last| &**last))?;
        response.count.add(1);
        Some(response)
    }
}

impl Outcome {
    /// Labels without a value are left out, which is the same to Prometheus.
    fn labels(self) -> String {
        let class = if self.success { "success" } else { "failure" };
        let mut labels = format!("classification=\"{class}\"");
        // Writing to a String cannot fail.
        if let Some(status) = self.status {
            let _infallible = write!(labels, ",status_code=\"{status}\"");
        }
        if let Some(code) = self.grpc {
            let _infallible = write!(labels, ",grpc_status=\"{code}\"");
        }
        if !self.error.is_empty() {
            let _infallible = write!(labels, ",error=\"{}\"", self.error);
        }
        labels
    }
}

impl Series for HttpSeries {
    const FAMILIES: &'static [Family] = &[
        Family::new("request_total", Kind::Counter, &[], "Requests"),
        Family::new(
            "response_total",
            Kind::Counter,
            &["classification", "status_code", "grpc_status", "error"],
            "Responses that ended, and requests without one",
        ),
        Family::new(
            "response_latency_ms",
            Kind::Histogram,
            &["classification", "status_code", "grpc_status", "error"],
            "From the request to the end of its response, in milliseconds",
        ),
    ];
    fn activity(&self) -> u64 {
        let answered: u64 = self.responses.iter().filter_map(OnceLock::get).map(|r| r.count.value()).sum();
        self.requests.value() + answered
    }
    fn lines(&self, family: usize, to: &mut Lines<'_>) {
        if family == 0 {
            return to.value("", self.requests.value());
        }
        for response in self.responses.iter().filter_map(OnceLock::get) {
            let more = response.outcome.labels();
            if family == 1 {
                to.value(&more, response.count.value());
            } else if response.outcome.status.is_some() {
                response.latency.lines(to, &more);
            }
        }
    }
}

/// Connections of one label set.
#[derive(Debug, Default)]
pub struct TcpSeries {
    opened: Counter,
    open: Gauge,
    read: Counter,
    written: Counter,
    /// By errno name; the empty name is an orderly end. Locked once per connection, for a copy of a few words.
    closed: Mutex<Vec<(&'static str, u64)>>,
    /// Bytes received and sent by where the endpoint is, where that is known of one.
    cost: OnceLock<[Arc<Counter>; 2]>,
}

impl TcpSeries {
    /// Counts what passes by the endpoint's zone, too: bytes received and bytes sent.
    pub fn costs(&self, cost: impl FnOnce() -> [Arc<Counter>; 2]) {
        self.cost.get_or_init(cost);
    }

    /// Counts a connection as open until the guard is dropped.
    pub fn open(self: Arc<Self>) -> OpenConnection {
        self.opened.add(1);
        self.open.add(1);
        OpenConnection { series: self, errno: "" }
    }
}

impl Series for TcpSeries {
    const FAMILIES: &'static [Family] = &[
        Family::new("tcp_open_total", Kind::Counter, &[], "Connections opened"),
        Family::new("tcp_open_connections", Kind::Gauge, &[], "Connections open now"),
        Family::new("tcp_read_bytes_total", Kind::Counter, &[], "Bytes read from peers"),
        Family::new("tcp_write_bytes_total", Kind::Counter, &[], "Bytes written to peers"),
        Family::new("tcp_close_total", Kind::Counter, &["errno"], "Connections closed"),
    ];
    fn activity(&self) -> u64 {
        self.opened.value() + self.read.value() + self.written.value() + self.open.activity()
    }
    fn lines(&self, family: usize, to: &mut Lines<'_>) {
        match family {
            0 => to.value("", self.opened.value()),
            1 => to.value("", self.open.value()),
            2 => to.value("", self.read.value()),
            3 => to.value("", self.written.value()),
            _ => {
                let closed = self.closed.lock().clone();
                for (errno, count) in closed {
                    to.value(&format!("errno=\"{errno}\""), count);
                }
            }
        }
    }
}

/// An open connection, as the metrics see it.
#[derive(Debug)]
pub struct OpenConnection {
    series: Arc<TcpSeries>,
    errno: &'static str,
}

impl OpenConnection {
    pub fn read(&self, bytes: u64) {
        self.series.read.add(bytes);
        if let Some([received, _]) = self.series.cost.get() {
            received.add(bytes);
        }
    }
    pub fn written(&self, bytes: u64) {
        self.series.written.add(bytes);
        if let Some([_, sent]) = self.series.cost.get() {
            sent.add(bytes);
        }
    }
    /// The error that ends it, by its system name (`ECONNRESET`).
    pub fn errno(&mut self, name: &'static str) {
        self.errno = name;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.series.open.add(-1);
        let mut closed = self.series.closed.lock();
        match closed.iter_mut().find(|(errno, _)| *errno == self.errno) {
            Some((_, count)) => *count += 1,
            None => closed.push((self.errno, 1)),
        }
    }
}
