//! One request on its way: counted when it begins, at every piece of a body, and once when it ends, however it ends.

use super::{
    phases::Phases,
    route::{InboundRoute, OutboundBackend, OutboundRoute, Status},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use weft_fault::Phase;

/// Who counts one request.
#[derive(Clone, Debug)]
enum By {
    Inbound(Arc<InboundRoute>),
    Outbound(Arc<OutboundRoute>),
}

/// When the body of a request ended, if it has.
#[derive(Debug)]
pub struct Sent {
    begun: Instant,
    /// Microseconds from the beginning to the end, plus one; 0 until then.
    took: AtomicU64,
    /// It ended where it should.
    whole: AtomicBool,
    /// Microseconds from the beginning to its last piece.
    moved: AtomicU64,
}

impl Sent {
    fn new(begun: Instant) -> Self {
        Sent { begun, took: AtomicU64::new(0), whole: AtomicBool::new(false), moved: AtomicU64::new(0) }
    }

    /// When the last piece of a timed body passed; the beginning, before the first one.
    pub(crate) fn moved_at(&self) -> Instant {
        self.begun + Duration::from_micros(self.moved.load(Relaxed))
    }

    /// Nothing more will come.
    pub(crate) fn is_over(&self) -> bool {
        self.took.load(Relaxed) != 0
    }

    fn at(&self) -> Option<Instant> {
        let took = self.took.load(Relaxed).checked_sub(1)?;
        Some(self.begun + Duration::from_micros(took))
    }
}

/// How long the answer to a request took: from the request's end, but no earlier than the beginning of what is counted.
fn answer(begun: Instant, sent: Option<&Sent>, now: Instant) -> Duration {
    let from = sent.and_then(Sent::at).map_or(begun, |sent| sent.max(begun));
    now.saturating_duration_since(from)
}

/// The status of a response that is over.
fn status(is_grpc: bool, status: u16, grpc: Option<u8>) -> Status {
    match (is_grpc, grpc) {
        (true, Some(code)) => Status::Grpc(code),
        // Without a status it is not known how the call ended.
        (true, None) if status == 200 => Status::Grpc(2),
        _ => Status::Http(status),
    }
}

/// The status of an outbound request without a response.
fn error(is_grpc: bool, error: &'static str) -> Status {
    if is_grpc { Status::GrpcError(error) } else { Status::Error(error) }
}

/// Who asked went away before the end.
const CANCEL: &str = "CANCEL";

/// A request as its route sees it, and its phases.
#[derive(Debug)]
pub struct Exchange {
    by: By,
    phases: Arc<Phases>,
    /// The policy says that this is gRPC, so that calls end with a code of theirs.
    grpc: bool,
    begun: Instant,
    /// `None`: it has no body.
    sent: Option<Arc<Sent>>,
    /// From the beginning to the head of a response that has a body.
    head: Option<Duration>,
    ended: bool,
}

impl Exchange {
    pub fn inbound(route: &Arc<InboundRoute>, phases: &Arc<Phases>, grpc: bool, begun: Instant) -> Self {
        route.begun();
        Exchange::new(By::Inbound(route.clone()), phases, grpc, begun)
    }

    pub fn outbound(route: &Arc<OutboundRoute>, phases: &Arc<Phases>, grpc: bool, begun: Instant) -> Self {
        Exchange::new(By::Outbound(route.clone()), phases, grpc, begun)
    }

    fn new(by: By, phases: &Arc<Phases>, grpc: bool, begun: Instant) -> Self {
        Exchange { by, phases: phases.clone(), grpc, begun, sent: None, head: None, ended: false }
    }

    /// What counts the request's body.
    /// `timed`: somebody asks when its last piece passed.
    pub fn request_body(&mut self, timed: bool) -> RequestBody {
        let sent = Arc::new(Sent::new(self.begun));
        self.sent = Some(sent.clone());
        RequestBody { by: self.by.clone(), phases: self.phases.clone(), sent, timed }
    }

    /// The end of the request's body, for [`Attempt`]s to send it.
    pub fn sent(&self) -> Option<Arc<Sent>> {
        self.sent.clone()
    }

    /// Has the whole request passed?
    pub fn is_sent(&self) -> bool {
        self.sent.as_ref().is_none_or(|sent| sent.whole.load(Relaxed))
    }

    /// Did the request's body end before its time?
    pub fn is_abandoned(&self) -> bool {
        !self.is_sent() && self.sent.as_ref().is_some_and(|sent| sent.at().is_some())
    }

    /// The response's head is there.
    pub fn answered(&mut self, has_body: bool) {
        let took = self.begun.elapsed();
        self.phases.observe(Phase::ResponseHeaders, took);
        self.head = has_body.then_some(took);
    }

    /// A piece of the response's body.
    pub fn piece(&self, bytes: usize) {
        if let By::Inbound(route) = &self.by {
            route.answers(bytes);
        }
    }

    /// The response is over. `grpc`: its `grpc-status`, if there was one.
    pub fn end(mut self, status: u16, grpc: Option<u8>) {
        self.count(self::status(self.grpc, status, grpc));
    }

    /// There is no response, or it did not come to its end.
    pub fn fail(mut self, error: &'static str) {
        self.count(self.error(error));
    }

    /// Inbound families do not tell errors apart: one series for all.
    fn error(&self, error: &'static str) -> Status {
        match &self.by {
            By::Inbound(_) => Status::Error(""),
            By::Outbound(_) => self::error(self.grpc, error),
        }
    }

    fn count(&mut self, status: Status) {
        self.ended = true;
        let now = Instant::now();
        let whole = now.saturating_duration_since(self.begun);
        if let Some(head) = self.head {
            self.phases.observe(Phase::ResponseBody, whole.saturating_sub(head));
        }
        match &self.by {
            By::Inbound(route) => route.ended(status, whole, answer(self.begun, self.sent.as_deref(), now)),
            By::Outbound(route) => route.ended(status, whole),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.ended {
            self.count(self.error(CANCEL));
        }
    }
}

/// Counts a request's body, and notes when it ends.
#[derive(Debug)]
pub struct RequestBody {
    by: By,
    phases: Arc<Phases>,
    sent: Arc<Sent>,
    timed: bool,
}

impl RequestBody {
    /// All of it has passed.
    pub fn whole(self) {
        self.sent.whole.store(true, Relaxed);
    }

    pub fn piece(&self, bytes: usize) {
        if self.timed {
            let moved = self.sent.begun.elapsed().as_micros();
            self.sent.moved.store(u64::try_from(moved).unwrap_or(u64::MAX), Relaxed);
        }
        match &self.by {
            By::Inbound(route) => route.asks(bytes),
            By::Outbound(route) => route.asks(bytes),
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let took = self.sent.begun.elapsed();
        self.phases.observe(Phase::RequestBody, took);
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX - 1);
        self.sent.took.store(took.saturating_add(1), Relaxed);
    }
}

/// A request as it is sent to a backend: once, or again for a retry.
#[derive(Debug)]
pub struct Attempt {
    backend: Arc<OutboundBackend>,
    grpc: bool,
    begun: Instant,
    sent: Option<Arc<Sent>>,
    ended: bool,
}

impl Attempt {
    /// `sent`: the end of the request's body, if it has one.
    pub fn new(backend: &Arc<OutboundBackend>, grpc: bool, sent: Option<Arc<Sent>>) -> Self {
        backend.begun();
        Attempt { backend: backend.clone(), grpc, begun: Instant::now(), sent, ended: false }
    }

    /// A piece of the response's body.
    pub fn piece(&self, bytes: usize) {
        self.backend.answers(bytes);
    }

    /// The response is over, or nobody reads further. `grpc`: its `grpc-status`, if there was one.
    pub fn end(mut self, status: u16, grpc: Option<u8>) {
        self.count(self::status(self.grpc, status, grpc));
    }

    /// There is no response, or it did not come to its end.
    pub fn fail(mut self, error: &'static str) {
        self.count(self::error(self.grpc, error));
    }

    fn count(&mut self, status: Status) {
        self.ended = true;
        self.backend.ended(status, answer(self.begun, self.sent.as_deref(), Instant::now()));
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.ended {
            self.count(error(self.grpc, CANCEL));
        }
    }
}
