//! Message bodies: passed on piece by piece, and watched to their end.

use super::{
    h1, headers,
    pool::Lease,
    replay::{Peeked, Reader},
    server,
};
use crate::{
    deadline::Moving,
    inbound::withdraw::Held,
    metrics::{
        exchange::{Attempt, Exchange, RequestBody, Sent},
        series::HttpSeries,
    },
    observe::Observing,
    outbound::load::Load,
    report,
};
use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use std::{
    cell::Cell,
    error::Error,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Sleep, sleep_until},
};
use weft_fault::{Code, Fault, Phase};
use weft_model::profile::{ResponseClass, classify};

/// A body of a request or response.
pub(crate) struct Body {
    inner: Inner,
    watch: Option<Box<Watch>>,
    counted: Option<RequestBody>,
    /// Where it leaves its own failure: the HTTP/2 library does not pass it on to whoever sends it.
    failure: Option<Failure>,
    /// It waits for a connection to take it; given back when it is asked for a piece, or dropped.
    place: Option<OwnedSemaphorePermit>,
    /// It comes from where the mesh's words mean nothing, so its trailers must not speak them.
    outside: bool,
}

/// Why a request's body failed, if it did by itself.
pub(crate) type Failure = Rc<Cell<Option<Fault>>>;

enum Inner {
    Empty,
    H2(Incoming),
    H1(h1::Incoming),
    Replayed(Box<Reader>),
    Peeked(Box<Peeked>),
    /// Another's, who watches it too.
    Relayed(Box<Body>),
    Observed(Box<Observing>),
}

impl Body {
    pub(crate) fn empty() -> Self {
        Body::of(Inner::Empty)
    }

    /// Of a message over HTTP/2.
    pub(crate) fn h2(incoming: Incoming) -> Self {
        if incoming.is_end_stream() {
            return Body::empty();
        }
        Body::of(Inner::H2(incoming))
    }

    /// Of a message over HTTP/1.
    pub(crate) fn h1(incoming: h1::Incoming) -> Self {
        Body::of(Inner::H1(incoming))
    }

    /// The same, from a client or an application: trailers cannot say what only a head may, and not what only proxies may.
    pub(crate) fn of_outsider(mut self) -> Self {
        self.outside = true;
        self
    }

    /// Who hears what a server says before its response, if the client can.
    pub(crate) fn interim(&self) -> Option<h1::Interim> {
        match &self.inner {
            Inner::H1(incoming) => incoming.interim(),
            Inner::Replayed(reader) => reader.interim(),
            Inner::Relayed(body) => body.interim(),
            Inner::Observed(observing) => observing.body().interim(),
            Inner::Empty | Inner::H2(_) | Inner::Peeked(_) => None,
        }
    }

    /// What stays of an HTTP/1 connection when HTTP ends on it.
    pub(crate) fn take_upgrade(&mut self) -> Option<h1::Upgrade> {
        match &mut self.inner {
            Inner::H1(incoming) => incoming.take_upgrade(),
            Inner::Relayed(body) => body.take_upgrade(),
            Inner::Observed(observing) => observing.body_mut().take_upgrade(),
            Inner::Empty | Inner::H2(_) | Inner::Replayed(_) | Inner::Peeked(_) => None,
        }
    }

    fn of(inner: Inner) -> Self {
        Body { inner, watch: None, counted: None, failure: None, place: None, outside: false }
    }

    pub(super) fn replayed(reader: Reader) -> Self {
        Body::of(Inner::Replayed(Box::new(reader)))
    }

    pub(super) fn peeked(peeked: Peeked) -> Self {
        Body::of(Inner::Peeked(Box::new(peeked)))
    }

    /// The same body, which leaves its failure there.
    pub(super) fn telling(mut self, failure: &Failure) -> Self {
        self.failure = Some(failure.clone());
        self
    }

    /// The same body, of a request that waits in this place until a connection takes it.
    pub(super) fn queued(mut self, place: OwnedSemaphorePermit) -> Self {
        self.place = Some(place);
        self
    }

    /// The same body, for another one who watches it.
    pub(crate) fn relayed(self) -> Self {
        if self.watch.is_none() && self.counted.is_none() {
            return self;
        }
        Body::of(Inner::Relayed(Box::new(self)))
    }

    /// A response's body, for who wants to know how it ends.
    pub(crate) fn observed(observing: Observing) -> Self {
        Body::of(Inner::Observed(Box::new(observing)))
    }

    /// Watches a response's body to its end, or to its being dropped.
    pub(crate) fn watched(mut self, watch: Box<Watch>) -> Self {
        if self.is_end_stream() {
            watch.end(None);
        } else {
            self.watch = Some(watch);
        }
        self
    }

    /// Counts a request's body, piece by piece and when it ends. `timed`: a limit depends on when its last piece passed.
    pub(crate) fn counted(mut self, exchange: &mut Exchange, timed: bool) -> Self {
        if !self.is_end_stream() {
            self.counted = Some(exchange.request_body(timed));
        }
        self
    }

    /// Counts a watched response by its route, too; `status` and `grpc` are those of its head.
    pub(crate) fn by_route(mut self, mut exchange: Exchange, status: u16, grpc: Option<u8>) -> Self {
        match &mut self.watch {
            Some(watch) => {
                exchange.answered(true);
                watch.exchange = Some(exchange);
            }
            // It has no body, or nobody watches for its end.
            None => {
                exchange.answered(false);
                exchange.end(status, grpc);
            }
        }
        self
    }

    /// The server is told by the dropped stream, the client by a message that breaks off.
    fn break_off<T, E: From<Fault>>(&mut self, fault: Fault) -> Poll<Option<Result<T, E>>> {
        if let Some(watch) = self.watch.take() {
            watch.broke(report::route_error(fault.code()), None);
        }
        self.inner = Inner::Empty;
        Poll::Ready(Some(Err(fault.into())))
    }

    /// Nothing of it can be lost by sending the message again.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_end_stream()
    }
}

/// What waits for the end of a response.
pub(crate) struct Watch {
    pub(crate) series: Arc<HttpSeries>,
    /// The same request, by its route; given by [`Body::by_route`].
    pub(crate) exchange: Option<Exchange>,
    /// The request as it was sent to a backend.
    pub(crate) attempt: Option<Attempt>,
    pub(crate) begun: Instant,
    pub(crate) status: u16,
    /// `grpc-status` of a response to a gRPC request: from the head, later from the trailers.
    pub(crate) grpc: Option<u8>,
    pub(crate) is_grpc: bool,
    /// The HTTP/1 connection the response comes on.
    pub(crate) lease: Option<Lease>,
    /// Counts as load of its endpoint until it is dropped; learns how the response is classified.
    pub(crate) load: Option<Load>,
    /// What the route allows the response to take.
    pub(crate) limits: Option<Limits>,
    /// The route's patience with it is over.
    pub(crate) late: bool,
    /// The permit under which it comes.
    pub(crate) held: Option<Held>,
    /// The classes of a ServiceProfile's route, where one takes the request.
    pub(crate) service: Option<Box<ByClasses>>,
}

/// A response as a ServiceProfile's route sees it.
pub(crate) struct ByClasses {
    pub(crate) classes: Arc<[ResponseClass]>,
    /// As the application sees it, and as it went out.
    pub(crate) series: [Arc<HttpSeries>; 2],
}

/// Limits of a response that has begun.
pub(crate) struct Limits {
    /// Until its last byte.
    total: Option<Pin<Box<Sleep>>>,
    idle: Option<Idle>,
    /// The request's body.
    sent: Option<Arc<Sent>>,
    /// Hears of the failure: the response's head is gone, so its answer cannot tell it.
    tell: Tell,
}

/// The limit between two pieces of either body.
struct Idle {
    limit: Duration,
    /// When the last piece of the response passed.
    moved: Instant,
    timer: Moving,
}

/// Reports a failure to log, metrics and story.
pub(crate) type Tell = Box<dyn Fn(&Fault)>;

impl Limits {
    /// `None` where a route has no limits: the ordinary case costs nothing.
    pub(crate) fn new(
        begun: Instant,
        total: Option<Duration>,
        idle: Option<Duration>,
        sent: Option<Arc<Sent>>,
        tell: impl FnOnce() -> Tell,
    ) -> Option<Self> {
        if total.is_none() && idle.is_none() {
            return None;
        }
        Some(Limits {
            total: total.map(|limit| Box::pin(sleep_until((begun + limit).into()))),
            idle: idle.map(|limit| Idle { limit, moved: Instant::now(), timer: Moving::default() }),
            sent,
            tell: tell(),
        })
    }

    fn moved(&mut self) {
        if let Some(idle) = &mut self.idle {
            idle.moved = Instant::now();
        }
    }

    fn poll_late(&mut self, cx: &mut Context<'_>) -> Option<&'static str> {
        if self.total.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
            return Some("request");
        }
        let Idle { limit, moved, timer } = self.idle.as_mut()?;
        // The client may be sending meanwhile.
        let moved = self.sent.as_ref().map_or(*moved, |sent| sent.moved_at().max(*moved));
        timer.poll((moved + *limit).into(), cx).is_ready().then_some("idle")
    }

    /// Is the time over that the whole response has? Without waiting: for who always has more to say.
    fn is_over(&self) -> bool {
        self.total.as_ref().is_some_and(|timer| timer.deadline() <= tokio::time::Instant::now())
    }
}

impl Watch {
    /// Is the response to end before its time?
    fn poll_broken_off(&mut self, cx: &mut Context<'_>) -> Option<Fault> {
        if let Some(late) = self.limits.as_mut().and_then(|limits| limits.poll_late(cx)) {
            return Some(self.late(late));
        }
        self.held.as_mut().and_then(|held| held.poll_withdrawn(cx))
    }

    /// The same for a server that always has more to say, and is therefore never waited for.
    fn is_broken_off(&mut self) -> Option<Fault> {
        if self.limits.as_ref().is_some_and(Limits::is_over) {
            return Some(self.late("request"));
        }
        self.held.as_ref().and_then(Held::is_withdrawn)
    }

    fn late(&mut self, which: &'static str) -> Fault {
        let code = if which == "idle" { Code::StreamIdle } else { Code::ResponseTimeout };
        let fault = Fault::new(code)
            .in_phase(Phase::ResponseBody)
            .fact("timeout", which)
            .fact("since_request_ms", self.begun.elapsed().as_millis());
        if let Some(limits) = &self.limits {
            (limits.tell)(&fault);
        }
        self.late = true;
        fault
    }

    /// Did the client spoil it? One that gives up sending is told nothing more, and one that has not ended its request may
    /// be who is waited for.
    fn is_the_clients(&self) -> bool {
        let spoilt = |exchange: &Exchange| exchange.is_abandoned() || (self.late && !exchange.is_sent());
        self.exchange.as_ref().is_some_and(spoilt)
    }

    fn piece(&self, bytes: usize) {
        if let Some(exchange) = &self.exchange {
            exchange.piece(bytes);
        }
        if let Some(attempt) = &self.attempt {
            attempt.piece(bytes);
        }
    }

    /// The response broke off: `error` in the words of routes, and why the server reset it, if it did.
    fn broke(self, error: &'static str, reset: Option<h2::Reason>) {
        let the_clients = self.is_the_clients();
        if let Some(exchange) = self.exchange {
            exchange.fail(error);
        }
        if let Some(attempt) = self.attempt {
            attempt.fail(error);
        }
        let (word, begun) = (report::response_error(reset), Some((self.status, self.begun.elapsed())));
        for series in self.service.iter().flat_map(|by| &by.series).chain([&self.series]) {
            series.failed(word, begun);
        }
        if let Some(load) = self.load.filter(|_| !the_clients) {
            load.lost();
        }
        if let Some(lease) = self.lease {
            lease.end(false);
        }
    }

    /// The response is over and came whole, so its connection may carry another.
    fn end(self, trailers: Option<&HeaderMap>) {
        let grpc = trailers.and_then(grpc_status).or(self.grpc);
        let class = self.service.as_ref().and_then(|by| classify(&by.classes, self.status));
        let success = !class.unwrap_or(self.status >= 500) && grpc.is_none_or(|code| !fails(code));
        for series in self.service.iter().flat_map(|by| &by.series) {
            series.response(self.status, grpc.filter(|_| self.is_grpc), success, self.begun.elapsed());
        }
        self.series.response(self.status, grpc.filter(|_| self.is_grpc), success, self.begun.elapsed());
        if let Some(exchange) = self.exchange {
            exchange.end(self.status, grpc);
        }
        if let Some(attempt) = self.attempt {
            attempt.end(self.status, grpc);
        }
        if let Some(load) = &self.load {
            load.classified(success, self.status, grpc);
        }
        if let Some(lease) = self.lease {
            lease.end(true);
        }
    }
}

/// gRPC codes that are the server's fault, as Linkerd classifies them.
pub(crate) fn fails(code: u8) -> bool {
    // unknown, deadline exceeded, permission denied, resource exhausted, unimplemented, internal, unavailable, data loss
    matches!(code, 2 | 4 | 7 | 8 | 12 | 13 | 14 | 15)
}

pub(crate) fn grpc_status(headers: &HeaderMap) -> Option<u8> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// A body whose reader goes away is a cancelled response: the server is told by the dropped stream, and the count says
/// nothing about its health.
impl Drop for Body {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.take()
            && let Some(lease) = watch.lease
        {
            lease.end(false);
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        this.place = None;
        let polled = match &mut this.inner {
            Inner::Empty => return Poll::Ready(None),
            Inner::H2(incoming) => Pin::new(incoming).poll_frame(cx).map_err(Self::Error::from),
            Inner::H1(incoming) => incoming.poll_frame(cx).map_err(Self::Error::from),
            Inner::Replayed(reader) => reader.poll_frame(cx),
            Inner::Peeked(peeked) => peeked.poll_frame(cx),
            Inner::Relayed(body) => Pin::new(&mut **body).poll_frame(cx),
            Inner::Observed(observing) => observing.poll_frame(cx),
        };
        match polled {
            Poll::Ready(Some(Ok(mut frame))) => {
                if this.outside
                    && let Some(trailers) = frame.trailers_mut()
                {
                    headers::clean_trailers(trailers);
                }
                if let Some(fault) = this.watch.as_mut().and_then(|watch| watch.is_broken_off()) {
                    return this.break_off(fault);
                }
                if let (Some(counted), Some(data)) = (&this.counted, frame.data_ref()) {
                    counted.piece(data.len());
                }
                if let Some(watch) = &mut this.watch {
                    if let Some(data) = frame.data_ref() {
                        watch.piece(data.len());
                    }
                    if let Some(limits) = &mut watch.limits {
                        limits.moved();
                    }
                    if let Some(trailers) = frame.trailers_ref() {
                        watch.grpc = grpc_status(trailers).or(watch.grpc);
                    }
                }
                if this.is_end_stream() {
                    this.counted.take().into_iter().for_each(RequestBody::whole);
                    if let Some(watch) = this.watch.take() {
                        watch.end(None);
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                if let Some(watch) = this.watch.take() {
                    let reset = server::h2_cause(&*error).and_then(h2::Error::reason);
                    watch.broke(report::body_error(reset), reset);
                }
                Poll::Ready(Some(Err(match (&this.failure, error.downcast::<Fault>()) {
                    (Some(failure), Ok(fault)) => {
                        let text = fault.to_string();
                        failure.set(Some(*fault));
                        text.into()
                    }
                    (None, Ok(fault)) => fault,
                    (_, Err(error)) => error,
                })))
            }
            Poll::Ready(None) => {
                this.counted.take().into_iter().for_each(RequestBody::whole);
                if let Some(watch) = this.watch.take() {
                    watch.end(None);
                }
                Poll::Ready(None)
            }
            Poll::Pending => {
                if let Some(fault) = this.watch.as_mut().and_then(|watch| watch.poll_broken_off(cx)) {
                    return this.break_off(fault);
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Empty => true,
            Inner::H2(incoming) => incoming.is_end_stream(),
            Inner::H1(incoming) => incoming.is_end_stream(),
            Inner::Replayed(reader) => reader.is_end_stream(),
            Inner::Peeked(peeked) => peeked.is_end_stream(),
            Inner::Relayed(body) => body.is_end_stream(),
            Inner::Observed(observing) => observing.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Empty => SizeHint::with_exact(0),
            Inner::H2(incoming) => incoming.size_hint(),
            Inner::H1(incoming) => incoming.size_hint(),
            Inner::Replayed(reader) => reader.size_hint(),
            Inner::Peeked(peeked) => peeked.size_hint(),
            Inner::Relayed(body) => body.size_hint(),
            Inner::Observed(observing) => observing.size_hint(),
        }
    }
}
