//! What is counted of a request by the route it takes, on its way in and on its way out.

use super::{
    families::{Kind, Lines},
    part::{Part, Written, series},
    series::{COARSE, Counter, FINE, FRAMES, Histogram},
};
use std::{fmt::Debug, marker::PhantomData, sync::OnceLock, time::Duration};

/// How a request ended, as Linkerd's families say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Http(u16),
    Grpc(u8),
    /// There is none: one of Linkerd's words for errors, where families say it.
    Error(&'static str),
    GrpcError(&'static str),
}

/// Ends of one label set, with the labels of one side. Found by linear search without a lock; what finds no room is
/// counted in the last one.
#[derive(Debug)]
pub(super) struct Statuses<Side> {
    counts: [OnceLock<(Status, Counter)>; STATUSES],
    side: PhantomData<Side>,
}

const STATUSES: usize = 16;

/// How the labels of a status are written.
pub(super) trait Side: Debug + Send + Sync + 'static {
    const LABELS: &'static [&'static str];
    fn labels(status: Status) -> String;
}

/// One label for both, as inbound families have it.
#[derive(Debug)]
pub(super) struct Inbound;

impl Side for Inbound {
    const LABELS: &'static [&'static str] = &["status"];
    fn labels(status: Status) -> String {
        match status {
            Status::Http(status) => format!("status=\"{status}\""),
            Status::Grpc(code) => format!("status=\"{code}\""),
            Status::Error(_) | Status::GrpcError(_) => String::from("status=\"\""),
        }
    }
}

/// `http_status` or `grpc_status`, and `error`, as outbound families have them.
#[derive(Debug)]
pub(super) struct Outbound;

impl Side for Outbound {
    const LABELS: &'static [&'static str] = &["http_status", "grpc_status", "error"];
    fn labels(status: Status) -> String {
        match status {
            Status::Http(status) => format!("http_status=\"{status}\",error=\"\""),
            Status::Grpc(code) => format!("grpc_status=\"{}\",error=\"\"", grpc_name(code)),
            Status::Error(error) => format!("http_status=\"\",error=\"{error}\""),
            Status::GrpcError(error) => format!("grpc_status=\"UNKNOWN\",error=\"{error}\""),
        }
    }
}

impl<S> Statuses<S> {
    fn new() -> Self {
        Statuses { counts: Default::default(), side: PhantomData }
    }

    fn count(&self, status: Status) {
        let new = || (status, Counter::default());
        let found = self.counts.iter().map(|slot| slot.get_or_init(new)).find(|(found, _)| *found == status);
        if let Some((_, count)) = found.or_else(|| self.counts[STATUSES - 1].get()) {
            count.add(1);
        }
    }
}

impl<S: Side> Written for Statuses<S> {
    fn activity(&self) -> u64 {
        self.counts.iter().filter_map(OnceLock::get).map(|(_, count)| count.value()).sum()
    }
    fn lines(&self, to: &mut Lines<'_>) {
        for (status, count) in self.counts.iter().filter_map(OnceLock::get) {
            to.value(&S::labels(*status), count.value());
        }
    }
}

impl<S: Side> Part for Statuses<S> {
    const KIND: Kind = Kind::Counter;
    const LABELS: &'static [&'static str] = S::LABELS;
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

series! {
    /// Requests that were let in, by the policy's port and the route: `inbound_http_*` and `inbound_grpc_*`.
    pub struct InboundRoute {
        requests: Counter = Counter::default(), "_requests_total", "Requests that were let in";
        statuses: Statuses<Inbound> = Statuses::new(), "_statuses_total", "Responses that ended";
        whole: Histogram = Histogram::new(&FINE), "_request_duration_seconds", "From the request's head to the end of the response";
        answer: Histogram = Histogram::new(&COARSE), "_response_duration_seconds", "From the end of the request to the end of the response";
        asked: Histogram = Histogram::new(&FRAMES), "_request_frame_size_bytes", "Pieces of request bodies";
        answered: Histogram = Histogram::new(&FRAMES), "_response_frame_size_bytes", "Pieces of response bodies";
    }
}

series! {
    /// Requests of the application by route, however often each is sent: `outbound_{http,grpc}_route_*`.
    pub struct OutboundRoute {
        whole: Histogram = Histogram::new(&COARSE), "_request_duration_seconds", "From the request's head to the end of the response";
        statuses: Statuses<Outbound> = Statuses::new(), "_request_statuses_total", "Requests that ended";
        asked: Histogram = Histogram::new(&FRAMES), "_request_frame_size_bytes", "Pieces of request bodies";
    }
}

series! {
    /// Requests by route and backend, each as often as it is sent: `outbound_{http,grpc}_route_backend_*`.
    pub struct OutboundBackend {
        requests: Counter = Counter::default(), "_requests_total", "Requests sent, retries included";
        statuses: Statuses<Outbound> = Statuses::new(), "_response_statuses_total", "Responses that ended";
        answer: Histogram = Histogram::new(&FINE), "_response_duration_seconds", "From the end of the request to the end of the response";
        answered: Histogram = Histogram::new(&FRAMES), "_response_frame_size_bytes", "Pieces of response bodies";
    }
}

impl InboundRoute {
    pub(super) fn begun(&self) {
        self.requests.add(1);
    }
    pub(super) fn asks(&self, bytes: usize) {
        self.asked.observe_number(bytes as u64);
    }
    pub(super) fn answers(&self, bytes: usize) {
        self.answered.observe_number(bytes as u64);
    }
    pub(super) fn ended(&self, status: Status, whole: Duration, answer: Duration) {
        self.statuses.count(status);
        self.whole.observe(whole);
        self.answer.observe(answer);
    }
}

impl OutboundRoute {
    pub(super) fn asks(&self, bytes: usize) {
        self.asked.observe_number(bytes as u64);
    }
    pub(super) fn ended(&self, status: Status, whole: Duration) {
        self.statuses.count(status);
        self.whole.observe(whole);
    }
}

impl OutboundBackend {
    pub(super) fn begun(&self) {
        self.requests.add(1);
    }
    pub(super) fn answers(&self, bytes: usize) {
        self.answered.observe_number(bytes as u64);
    }
    pub(super) fn ended(&self, status: Status, answer: Duration) {
        self.statuses.count(status);
        self.answer.observe(answer);
    }
}
