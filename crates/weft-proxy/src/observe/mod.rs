//! Whoever wants to know of single requests: the access log, taps and traces. Where nobody does, a request costs two
//! comparisons and one load of an atomic.

mod start;

pub use start::{Unstarted, prepare};

use crate::{
    access_log::{AccessLog, Ended, Entry},
    http::body::{Body, grpc_status},
    tap::{Ends, Head, Tapped, Taps},
    trace::{Span, Tracer},
};
use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, Response};
use hyper::body::{Body as _, Frame, SizeHint};
use linkerd2_proxy_api::tap::Eos;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    error::Error,
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use weft_fault::Code;
use weft_model::{
    identity::{ClientTls, Identity, PeerIdentity},
    meta::Meta,
    outbound::Endpoint,
};
use weft_wire::record::Direction;

/// All who may want to know.
#[derive(Default)]
pub struct Observers {
    access_log: Option<AccessLog>,
    tracer: Option<Tracer>,
    taps: Taps,
}

/// How a request that was cancelled by its client is logged: the number that web servers use for it.
const CLIENT_LEFT: u16 = 499;

impl Observers {
    fn new(access_log: Option<AccessLog>, tracer: Option<Tracer>) -> Observers {
        Observers { access_log, tracer, taps: Taps::default() }
    }

    /// Access-log lines that found the queue full.
    pub(crate) fn lines_dropped(&self) -> u64 {
        self.access_log.as_ref().map_or(0, AccessLog::dropped)
    }

    pub(crate) fn taps(&self) -> &Taps {
        &self.taps
    }

    /// A request to the application. `None` when nobody wants to know.
    pub(crate) fn inbound<B>(
        self: &Arc<Self>,
        request: &mut Request<B>,
        client: SocketAddr,
        tls: &ClientTls,
        app: SocketAddr,
    ) -> Option<Watching> {
        if self.access_log.is_none() && self.tracer.is_none() && !self.taps.any() {
            return None;
        }
        let watching = self.begin(request, Direction::Inbound, client);
        {
            let mut observed = watching.observed.lock();
            if self.access_log.is_some() {
                observed.entry = Some(Entry::new(request, client, tls.client_id().map(Identity::as_str)));
            }
            if self.taps.any() {
                observed.untold =
                    Some(Untold { head: Head::new(request), source_labels: labels_of_client(tls), app });
            }
        }
        Some(watching)
    }

    /// A request of the application. Its endpoint is told later, by [`endpoint`].
    pub(crate) fn outbound<B>(
        self: &Arc<Self>,
        request: &mut Request<B>,
        client: SocketAddr,
    ) -> Option<Watching> {
        if self.tracer.is_none() && !self.taps.any() {
            return None;
        }
        let watching = self.begin(request, Direction::Outbound, client);
        if self.taps.any() {
            watching.observed.lock().head = Some(Head::new(request));
        }
        let (observers, observed) = (self.clone(), watching.observed.clone());
        request.extensions_mut().insert(Handle { observers, observed });
        Some(watching)
    }

    fn begin<B>(
        self: &Arc<Self>,
        request: &mut Request<B>,
        direction: Direction,
        client: SocketAddr,
    ) -> Watching {
        let span = self.tracer.as_ref().and_then(|tracer| tracer.begin(request, direction, client));
        let observed = Observed {
            begun: Instant::now(),
            client,
            processing: Duration::ZERO,
            status: CLIENT_LEFT,
            fault: None,
            bytes: 0,
            entry: None,
            span,
            head: None,
            untold: None,
            tapped: Vec::new(),
        };
        Watching { observers: self.clone(), observed: Arc::new(Mutex::new(observed)), over: false }
    }

    fn ended(&self, observed: &mut Observed, end: End<'_>) {
        let (status, fault) = (observed.status, observed.fault);
        if let (Some(entry), Some(log)) = (observed.entry.take(), &self.access_log) {
            let (total, processing) = (observed.begun.elapsed(), observed.processing);
            log.write(&entry, Ended { status, fault, response_bytes: observed.bytes, total, processing });
        }
        if let (Some(span), Some(tracer)) = (observed.span.take(), &self.tracer) {
            tracer.end(span, status, fault);
        }
        for tapped in observed.tapped.drain(..) {
            tapped.ended(observed.bytes, end.eos, end.trailers);
        }
    }
}

fn labels_of_client(tls: &ClientTls) -> BTreeMap<String, String> {
    match tls.client_id() {
        Some(id) => BTreeMap::from([("tls".into(), "true".into()), ("client_id".into(), id.to_string())]),
        None => BTreeMap::from([("tls".into(), "no_identity".into())]),
    }
}

/// What is known of a request so far.
struct Observed {
    begun: Instant,
    client: SocketAddr,
    /// What the proxy itself spent on it.
    processing: Duration,
    status: u16,
    fault: Option<Code>,
    bytes: u64,
    entry: Option<Entry>,
    span: Option<Span>,
    /// For taps, until there is an endpoint.
    head: Option<Head>,
    /// The same for an inbound request, until its route is known or it is answered without one.
    untold: Option<Untold>,
    tapped: Vec<Tapped>,
}

/// An inbound request of which no tap was told yet.
struct Untold {
    head: Head,
    source_labels: BTreeMap<String, String>,
    app: SocketAddr,
}

impl Observed {
    fn tell_taps(&mut self, taps: &Taps, route_labels: &BTreeMap<String, String>) {
        let Some(Untold { head, source_labels, app }) = self.untold.take() else { return };
        let ends = Ends {
            direction: Direction::Inbound,
            source: self.client,
            source_labels: &source_labels,
            destination: app,
            destination_labels: &BTreeMap::new(),
            route_labels,
        };
        self.tapped = taps.begun(&head, &ends, self.begun);
    }
}

/// What taps hear of a route: the words of the metrics' labels, and what a ServiceProfile calls it.
fn labels_of_route(route: &Meta, profile: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let own = [
        ("route_group", route.group()),
        ("route_kind", route.kind()),
        ("route_namespace", route.namespace()),
        ("route_name", route.name()),
    ];
    let own = own.into_iter().filter(|(_, value)| !value.is_empty());
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    own.chain(profile.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone()))).collect()
}

/// Goes with an outbound request to where its endpoint is chosen.
#[derive(Clone)]
struct Handle {
    observers: Arc<Observers>,
    observed: Arc<Mutex<Observed>>,
}

/// A request goes to this endpoint now, by this route; it may have gone to another one before. `profile`: the labels of a
/// ServiceProfile's route.
pub(crate) fn endpoint(
    extensions: &Extensions,
    endpoint: &Endpoint,
    route: &Meta,
    profile: Option<&BTreeMap<String, String>>,
) {
    let Some(Handle { observers, observed }) = extensions.get::<Handle>() else { return };
    let mut observed = observed.lock();
    let observed = &mut *observed;
    if let Some(span) = &mut observed.span {
        span.peer(endpoint.addr);
    }
    if let Some(head) = &observed.head {
        let mut labels = BTreeMap::clone(&endpoint.labels);
        match &endpoint.identity {
            PeerIdentity::Meshed { id, .. } => {
                labels.extend([
                    ("tls".to_owned(), "true".to_owned()),
                    ("server_id".to_owned(), id.to_string()),
                ]);
            }
            _ => drop(labels.insert("tls".to_owned(), "no_identity".to_owned())),
        }
        let ends = Ends {
            direction: Direction::Outbound,
            source: observed.client,
            source_labels: &BTreeMap::new(),
            destination: endpoint.addr,
            destination_labels: &labels,
            route_labels: &labels_of_route(route, profile),
        };
        // What was tried before has no answer that anybody will see.
        for tapped in observed.tapped.drain(..) {
            tapped.ended(0, None, None);
        }
        observed.tapped = observers.taps.begun(head, &ends, Instant::now());
    }
}

/// How an answer ended, as far as its bytes tell.
#[derive(Clone, Copy, Default)]
struct End<'a> {
    eos: Option<Eos>,
    trailers: Option<&'a HeaderMap>,
}

/// A request that somebody watches. When it is dropped without having ended, the client has left.
pub(crate) struct Watching {
    observers: Arc<Observers>,
    observed: Arc<Mutex<Observed>>,
    over: bool,
}

impl Watching {
    /// An inbound request was let in by this route, if the port has routes.
    pub(crate) fn routed(&self, route: Option<&Meta>) {
        let mut observed = self.observed.lock();
        if observed.untold.is_some() {
            let labels = route.map(|route| labels_of_route(route, None)).unwrap_or_default();
            observed.tell_taps(&self.observers.taps, &labels);
        }
    }

    /// The answer, watched to its end. `fault`: the proxy made it.
    pub(crate) fn answered(self, response: Response<Body>, fault: Option<Code>) -> Response<Body> {
        let (head, body) = response.into_parts();
        {
            let mut observed = self.observed.lock();
            observed.status = head.status.as_u16();
            observed.fault = fault;
            // It was refused before a route took it.
            observed.tell_taps(&self.observers.taps, &BTreeMap::new());
            for tapped in &mut observed.tapped {
                tapped.answered(head.status.as_u16(), &head.headers);
            }
        }
        let grpc = grpc_status(&head.headers);
        if body.is_end_stream() {
            self.ended(End { eos: grpc.map(|code| Eos::from_grpc_status(code.into())), trailers: None });
            return Response::from_parts(head, body);
        }
        Response::from_parts(head, Body::observed(Observing { body, watching: Some(self), grpc }))
    }

    /// The stream was reset instead of answered.
    pub(crate) fn reset(self, reason: h2::Reason) {
        self.ended(End { eos: Some(reason.into()), trailers: None });
    }

    fn ended(mut self, end: End<'_>) {
        self.over = true;
        self.observers.ended(&mut self.observed.lock(), end);
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if !self.over {
            let end = End { eos: Some(h2::Reason::CANCEL.into()), trailers: None };
            self.observers.ended(&mut self.observed.lock(), end);
        }
    }
}

/// Runs a request's work, and measures what it takes of the worker's time if somebody watches.
pub(crate) async fn measured<T>(
    watching: Option<&Watching>,
    mut work: Pin<&mut impl Future<Output = T>>,
) -> T {
    let Some(watching) = watching else { return work.await };
    let mut spent = Duration::ZERO;
    let done = poll_fn(|cx| {
        let begun = Instant::now();
        let polled = work.as_mut().poll(cx);
        spent += begun.elapsed();
        polled
    })
    .await;
    watching.observed.lock().processing = spent;
    done
}

type Piece = Result<Frame<Bytes>, Box<dyn Error + Send + Sync>>;

/// A watched answer's body.
pub(crate) struct Observing {
    body: Body,
    watching: Option<Watching>,
    grpc: Option<u8>,
}

impl Observing {
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Pending => return polled,
            Poll::Ready(Some(Ok(frame))) => {
                if let (Some(data), Some(watching)) = (frame.data_ref(), &self.watching) {
                    watching.observed.lock().bytes += data.len() as u64;
                }
                let trailers = frame.trailers_ref();
                self.grpc = trailers.and_then(grpc_status).or(self.grpc);
                if trailers.is_some() || self.body.is_end_stream() {
                    self.end(trailers);
                }
            }
            Poll::Ready(Some(Err(error))) => {
                if let Some(watching) = self.watching.take() {
                    let reason = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason);
                    watching.reset(reason.unwrap_or(h2::Reason::INTERNAL_ERROR));
                }
            }
            Poll::Ready(None) => self.end(None),
        }
        polled
    }

    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    pub(crate) fn body_mut(&mut self) -> &mut Body {
        &mut self.body
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) {
        if let Some(watching) = self.watching.take() {
            watching.ended(End { eos: self.grpc.map(|code| Eos::from_grpc_status(code.into())), trailers });
        }
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
