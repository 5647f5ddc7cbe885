//! What is counted for one label set, and the groups in which label sets are found again.

use super::labels::Labels;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

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

/// Upper bounds in microseconds.
pub(crate) const LATENCY_BUCKETS: &[u64] = &[
    1_000, 2_000, 3_000, 4_000, 5_000, 10_000, 20_000, 30_000, 40_000, 50_000, 100_000, 200_000, 300_000,
    400_000, 500_000, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000, 10_000_000, 20_000_000,
    30_000_000, 40_000_000, 50_000_000,
];
pub(crate) const PHASE_BUCKETS: &[u64] = &[
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000,
];

#[derive(Debug)]
pub struct Histogram {
    bounds_us: &'static [u64],
    /// One more than bounds: the last is +Inf.
    counts: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds_us: &'static [u64]) -> Self {
        let counts = (0..=bounds_us.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds_us, counts, sum_us: AtomicU64::new(0) }
    }

    pub fn observe(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let at = self.bounds_us.partition_point(|bound| *bound < us);
        self.counts[at].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// `unit_us` is how many microseconds the family's unit has.
    pub(crate) fn render(&self, page: &mut String, labels: &Labels, name: &str, more: &str, unit_us: f64) {
        let mut cumulative = 0;
        let (bucket, comma) = (format!("{name}_bucket"), if more.is_empty() { "" } else { "," });
        for (at, count) in self.counts.iter().enumerate() {
            cumulative += count.load(Relaxed);
            let le = match self.bounds_us.get(at) {
                Some(bound) => format!("{more}{comma}le=\"{}\"", *bound as f64 / unit_us),
                None => format!("{more}{comma}le=\"+Inf\""),
            };
            labels.line(page, &bucket, &le, cumulative);
        }
        labels.line(page, &format!("{name}_sum"), more, self.sum_us.load(Relaxed) as f64 / unit_us);
        labels.line(page, &format!("{name}_count"), more, cumulative);
    }
}

/// Requests and responses of one label set.
#[derive(Debug, Default)]
pub struct HttpSeries {
    pub(crate) requests: Counter,
    /// Found by linear search without a lock; what finds no room is counted in the last one.
    pub(crate) responses: [OnceLock<Box<Response>>; RESPONSES],
}

const RESPONSES: usize = 12;

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) grpc: Option<u8>,
    pub(crate) success: bool,
    pub(crate) count: Counter,
    pub(crate) latency: Histogram,
}

impl HttpSeries {
    pub fn request(&self) {
        self.requests.add(1);
    }

    /// A response ended. `success` is its classification: no 5xx, or for gRPC no failing code.
    pub fn response(&self, status: u16, grpc: Option<u8>, success: bool, latency: Duration) {
        let new = || {
            let latency = Histogram::new(LATENCY_BUCKETS);
            Box::new(Response { status, grpc, success, count: Counter::default(), latency })
        };
        let same = |found: &Response| (found.status, found.grpc, found.success) == (status, grpc, success);
        let found = self.responses.iter().map(|slot| slot.get_or_init(new)).find(|found| same(found));
        // Twelve kinds of answer from one target and still another: the kind found last stands for all further ones.
        let response = found.or_else(|| self.responses[RESPONSES - 1].get());
        if let Some(response) = response {
            response.count.add(1);
            response.latency.observe(latency);
        }
    }
}

/// Answers of one label set, by status or by the error that took their place.
#[derive(Debug, Default)]
pub struct Statuses {
    /// Found like [`HttpSeries::responses`].
    pub(crate) counts: [OnceLock<(Status, Counter)>; STATUSES],
}

const STATUSES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Http(u16),
    /// One of Linkerd's words for errors.
    Error(&'static str),
}

impl Statuses {
    pub fn count(&self, status: Status) {
        let new = || (status, Counter::default());
        let found = self.counts.iter().map(|slot| slot.get_or_init(new)).find(|(found, _)| *found == status);
        if let Some((_, count)) = found.or_else(|| self.counts[STATUSES - 1].get()) {
            count.add(1);
        }
    }
}

/// Connections of one label set.
#[derive(Debug, Default)]
pub struct TcpSeries {
    pub(crate) opened: Counter,
    pub(crate) open: Gauge,
    pub(crate) read: Counter,
    pub(crate) written: Counter,
    /// By errno name; the empty name is an orderly end.
    pub(crate) closed: Mutex<Vec<(&'static str, u64)>>,
}

impl TcpSeries {
    /// Counts a connection as open until the guard is dropped.
    pub fn open(self: Arc<Self>) -> OpenConnection {
        self.opened.add(1);
        self.open.add(1);
        OpenConnection { series: self, errno: "" }
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
    }
    pub fn written(&self, bytes: u64) {
        self.series.written.add(bytes);
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

/// A number that changes whenever a series changes: how idleness is told.
pub trait Activity {
    fn activity(&self) -> u64;
}
impl Activity for Counter {
    fn activity(&self) -> u64 {
        self.value()
    }
}
impl Activity for Gauge {
    fn activity(&self) -> u64 {
        self.value().cast_unsigned()
    }
}
impl Activity for HttpSeries {
    fn activity(&self) -> u64 {
        let answered: u64 = self.responses.iter().filter_map(OnceLock::get).map(|r| r.count.value()).sum();
        self.requests.value() + answered
    }
}
impl Activity for Statuses {
    fn activity(&self) -> u64 {
        self.counts.iter().filter_map(OnceLock::get).map(|(_, count)| count.value()).sum()
    }
}
impl Activity for TcpSeries {
    fn activity(&self) -> u64 {
        self.opened.value() + self.read.value() + self.written.value() + self.open.value().cast_unsigned()
    }
}

/// The label sets of some families that are counted together.
#[derive(Debug)]
pub struct Group<S> {
    series: Mutex<HashMap<Labels, Arc<Entry<S>>>>,
}

#[derive(Debug)]
pub(crate) struct Entry<S> {
    pub(crate) labels: Labels,
    pub(crate) series: Arc<S>,
    idle: Mutex<(u64, Instant)>,
}

impl<S> Default for Group<S> {
    fn default() -> Self {
        Group { series: Mutex::default() }
    }
}

impl<S: Default + Activity> Group<S> {
    pub(crate) fn resolve(&self, labels: &Labels) -> Arc<S> {
        let mut all = self.series.lock();
        if let Some(entry) = all.get(labels) {
            return entry.series.clone();
        }
        let series = Arc::new(S::default());
        let idle = Mutex::new((0, Instant::now()));
        let entry = Arc::new(Entry { labels: labels.clone(), series: series.clone(), idle });
        all.insert(labels.clone(), entry);
        series
    }

    /// All series now: pointers are copied under the lock, nothing is formatted.
    pub(crate) fn list(&self) -> Vec<Arc<Entry<S>>> {
        self.series.lock().values().cloned().collect()
    }

    /// Forgets label sets that nobody holds and that did not change for `retain`. Called by the agent only.
    pub(crate) fn retire(&self, retain: Duration, now: Instant) {
        let idle: Vec<Labels> = self
            .list()
            .into_iter()
            .filter(|entry| {
                let activity = entry.series.activity();
                let mut idle = entry.idle.lock();
                if idle.0 != activity {
                    *idle = (activity, now);
                }
                now.saturating_duration_since(idle.1) >= retain
            })
            .map(|entry| entry.labels.clone())
            .collect();
        // A few at a time, so that a worker that resolves a new label set never waits for all of them.
        for some in idle.chunks(256) {
            let mut all = self.series.lock();
            for labels in some {
                // Whoever holds a handle may still count: two holders are this group and the entry's own.
                if all.get(labels).is_some_and(|entry| Arc::strong_count(&entry.series) == 1) {
                    all.remove(labels);
                }
            }
        }
    }
}
