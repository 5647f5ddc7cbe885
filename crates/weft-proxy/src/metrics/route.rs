//! What is counted of a request by the route it takes, on its way in and on its way out.

use super::{
    families::{Family, Kind, Lines},
    series::{COARSE, Counter, FINE, FRAMES, Histogram, Series},
};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// How a request ended, as Linkerd's families say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Http(u16),
    Grpc(u8),
    /// There is none: one of Linkerd's words for errors, where families say it.
    Error(&'static str),
    GrpcError(&'static str),
}

/// Ends of one label set. Found by linear search without a lock; what finds no room is counted in the last one.
#[derive(Debug, Default)]
pub struct Statuses {
    counts: [OnceLock<(Status, Counter)>; STATUSES],
}

const STATUSES: usize = 16;

impl Statuses {
    fn count(&self, status: Status) {
        let new = || (status, Counter::default());
        let found = self.counts.iter().map(|slot| slot.get_or_init(new)).find(|(found, _)| *found == status);
        if let Some((_, count)) = found.or_else(|| self.counts[STATUSES - 1].get()) {
            count.add(1);
        }
    }

    fn total(&self) -> u64 {
        self.counts.iter().filter_map(OnceLock::get).map(|(_, count)| count.value()).sum()
    }

    fn lines(&self, to: &mut Lines<'_>, labels: fn(Status) -> String) {
        for (status, count) in self.counts.iter().filter_map(OnceLock::get) {
            to.value(&labels(*status), count.value());
        }
    }
}

/// `http_status` or `grpc_status`, and `error`, as outbound families have them.
fn outbound_labels(status: Status) -> String {
    match status {
        Status::Http(status) => format!("http_status=\"{status}\",error=\"\""),
        Status::Grpc(code) => format!("grpc_status=\"{}\",error=\"\"", grpc_name(code)),
        Status::Error(error) => format!("http_status=\"\",error=\"{error}\""),
        Status::GrpcError(error) => format!("grpc_status=\"UNKNOWN\",error=\"{error}\""),
    }
}

/// One label for both, as inbound families have it.
fn inbound_labels(status: Status) -> String {
    match status {
        Status::Http(status) => format!("status=\"{status}\""),
        Status::Grpc(code) => format!("status=\"{code}\""),
        Status::Error(_) | Status::GrpcError(_) => String::from("status=\"\""),
    }
}

fn grpc_name(code: u8) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    NAMES.get(usize::from(code)).unwrap_or(&"UNKNOWN")
}

/// Requests that were let in, by the policy's port and the route: `inbound_http_*` and `inbound_grpc_*`.
#[derive(Debug)]
pub struct InboundRoute {
    requests: Counter,
    statuses: Statuses,
    request_duration: Histogram,
    response_duration: Histogram,
    request_frames: Histogram,
    response_frames: Histogram,
}

impl Default for InboundRoute {
    fn default() -> Self {
        InboundRoute {
            requests: Counter::default(),
            statuses: Statuses::default(),
            request_duration: Histogram::new(&FINE),
            response_duration: Histogram::new(&COARSE),
            request_frames: Histogram::new(&FRAMES),
            response_frames: Histogram::new(&FRAMES),
        }
    }
}

impl Series for InboundRoute {
    const FAMILIES: &'static [Family] = &[
        Family::new("_requests_total", Kind::Counter, &[], "Requests that were let in"),
        Family::new("_statuses_total", Kind::Counter, &["status"], "Responses that ended"),
        Family::new(
            "_request_duration_seconds",
            Kind::Histogram,
            &[],
            "From the request's head to the end of the response",
        ),
        Family::new(
            "_response_duration_seconds",
            Kind::Histogram,
            &[],
            "From the end of the request to the end of the response",
        ),
        Family::new("_request_frame_size_bytes", Kind::Histogram, &[], "Pieces of request bodies"),
        Family::new("_response_frame_size_bytes", Kind::Histogram, &[], "Pieces of response bodies"),
    ];
    fn activity(&self) -> u64 {
        self.requests.value() + self.statuses.total() + self.response_frames.count()
    }
    fn lines(&self, family: usize, to: &mut Lines<'_>) {
        match family {
            0 => to.value("", self.requests.value()),
            1 => self.statuses.lines(to, inbound_labels),
            2 => to.histogram("", &self.request_duration),
            3 => to.histogram("", &self.response_duration),
            4 => to.histogram("", &self.request_frames),
            _ => to.histogram("", &self.response_frames),
        }
    }
}

/// Requests by route: `outbound_{http,grpc}_route_*`.
#[derive(Debug)]
pub struct OutboundRoute {
    duration: Histogram,
    statuses: Statuses,
    frames: Histogram,
}

impl Default for OutboundRoute {
    fn default() -> Self {
        OutboundRoute {
            duration: Histogram::new(&COARSE),
            statuses: Statuses::default(),
            frames: Histogram::new(&FRAMES),
        }
    }
}

impl Series for OutboundRoute {
    const FAMILIES: &'static [Family] = &[
        Family::new(
            "_request_duration_seconds",
            Kind::Histogram,
            &[],
            "From the request's head to the end of the response",
        ),
        Family::new(
            "_request_statuses_total",
            Kind::Counter,
            &["http_status", "grpc_status", "error"],
            "Requests that ended",
        ),
        Family::new("_request_frame_size_bytes", Kind::Histogram, &[], "Pieces of request bodies"),
    ];
    fn activity(&self) -> u64 {
        self.statuses.total() + self.frames.count()
    }
    fn lines(&self, family: usize, to: &mut Lines<'_>) {
        match family {
            0 => to.histogram("", &self.duration),
            1 => self.statuses.lines(to, outbound_labels),
            _ => to.histogram("", &self.frames),
        }
    }
}

/// Requests by route and backend: `outbound_{http,grpc}_route_backend_*`.
#[derive(Debug)]
pub struct OutboundBackend {
    requests: Counter,
    statuses: Statuses,
    duration: Histogram,
    frames: Histogram,
}

impl Default for OutboundBackend {
    fn default() -> Self {
        OutboundBackend {
            requests: Counter::default(),
            statuses: Statuses::default(),
            duration: Histogram::new(&FINE),
            frames: Histogram::new(&FRAMES),
        }
    }
}

impl Series for OutboundBackend {
    const FAMILIES: &'static [Family] = &[
        Family::new("_requests_total", Kind::Counter, &[], "Requests sent"),
        Family::new(
            "_response_statuses_total",
            Kind::Counter,
            &["http_status", "grpc_status", "error"],
            "Responses that ended",
        ),
        Family::new(
            "_response_duration_seconds",
            Kind::Histogram,
            &[],
            "From the end of the request to the end of the response",
        ),
        Family::new("_response_frame_size_bytes", Kind::Histogram, &[], "Pieces of response bodies"),
    ];
    fn activity(&self) -> u64 {
        self.requests.value() + self.statuses.total() + self.frames.count()
    }
    fn lines(&self, family: usize, to: &mut Lines<'_>) {
        match family {
            0 => to.value("", self.requests.value()),
            1 => self.statuses.lines(to, outbound_labels),
            2 => to.histogram("", &self.duration),
            _ => to.histogram("", &self.frames),
        }
    }
}

/// Who counts one request.
#[derive(Clone, Debug)]
enum By {
    Inbound(Arc<InboundRoute>),
    Outbound(Arc<OutboundRoute>, Arc<OutboundBackend>),
}

/// One request on its way: counted when it begins, at every piece of a body, and once when it ends, however it ends.
#[derive(Debug)]
pub struct Exchange {
    by: By,
    grpc: bool,
    begun: Instant,
    /// Microseconds from the beginning to the end of the request's body, plus one; 0 until then. `None`: it has no body.
    sent: Option<Arc<AtomicU64>>,
    ended: bool,
}

impl Exchange {
    /// `grpc`: the policy says that this is gRPC, so that calls end with a code of theirs.
    pub fn inbound(route: &Arc<InboundRoute>, grpc: bool, begun: Instant) -> Self {
        route.requests.add(1);
        Exchange { by: By::Inbound(route.clone()), grpc, begun, sent: None, ended: false }
    }

    pub fn outbound(
        route: &Arc<OutboundRoute>,
        backend: &Arc<OutboundBackend>,
        grpc: bool,
        begun: Instant,
    ) -> Self {
        backend.requests.add(1);
        Exchange { by: By::Outbound(route.clone(), backend.clone()), grpc, begun, sent: None, ended: false }
    }

    /// What counts the request's body.
    pub fn request_body(&mut self) -> RequestBody {
        let sent = Arc::new(AtomicU64::new(0));
        self.sent = Some(sent.clone());
        RequestBody { by: self.by.clone(), begun: self.begun, sent }
    }

    /// A piece of the response's body.
    pub fn piece(&self, bytes: usize) {
        let frames = match &self.by {
            By::Inbound(route) => &route.response_frames,
            By::Outbound(_, backend) => &backend.frames,
        };
        frames.observe_number(bytes as u64);
    }

    /// The response is over. `grpc`: its `grpc-status`, if there was one.
    pub fn end(mut self, status: u16, grpc: Option<u8>) {
        self.count(match (self.grpc, grpc) {
            (true, Some(code)) => Status::Grpc(code),
            // Without a status it is not known how the call ended.
            (true, None) if status == 200 => Status::Grpc(2),
            _ => Status::Http(status),
        });
    }

    /// There is no response.
    pub fn fail(mut self, error: &'static str) {
        self.count(self.error(error));
    }

    /// Inbound families do not tell errors apart: one series for all.
    fn error(&self, error: &'static str) -> Status {
        match (&self.by, self.grpc) {
            (By::Inbound(_), _) => Status::Error(""),
            (By::Outbound(..), true) => Status::GrpcError(error),
            (By::Outbound(..), false) => Status::Error(error),
        }
    }

    fn count(&mut self, status: Status) {
        self.ended = true;
        let took = self.begun.elapsed();
        let sent = self.sent.as_ref().map_or(0, |sent| sent.load(Relaxed).saturating_sub(1));
        let answered = took.saturating_sub(Duration::from_micros(sent));
        match &self.by {
            By::Inbound(route) => {
                route.statuses.count(status);
                route.request_duration.observe(took);
                route.response_duration.observe(answered);
            }
            By::Outbound(route, backend) => {
                route.statuses.count(status);
                route.duration.observe(took);
                backend.statuses.count(status);
                backend.duration.observe(answered);
            }
        }
    }
}

/// Whoever asked went away before the end.
impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.ended {
            self.count(self.error("CANCEL"));
        }
    }
}

/// Counts a request's body, and notes when it ends.
#[derive(Debug)]
pub struct RequestBody {
    by: By,
    begun: Instant,
    sent: Arc<AtomicU64>,
}

impl RequestBody {
    pub fn piece(&self, bytes: usize) {
        let frames = match &self.by {
            By::Inbound(route) => &route.request_frames,
            By::Outbound(route, _) => &route.frames,
        };
        frames.observe_number(bytes as u64);
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let took = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX - 1);
        self.sent.store(took.saturating_add(1), Relaxed);
    }
}
