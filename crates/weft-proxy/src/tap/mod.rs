//! Tap: one authorised client watches requests as they pass.
//!
//! When nobody taps, a request costs one load of an atomic. A tap never delays a request: what does not fit into its
//! channel is not told.

mod matching;
pub(crate) mod serve;

use ::http::{HeaderMap, Request};
use arc_swap::ArcSwap;
use linkerd2_proxy_api::{
    http_types::{Headers, headers::Header},
    tap::{
        Eos, TapEvent,
        tap_event::{EndpointMeta, Http, ProxyDirection, RouteMeta, http},
    },
};
use matching::{Match, Subject};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use tonic::Status;
use weft_wire::record::Direction;

/// Events that wait for the client.
const CHANNEL: usize = 400;
/// Taps at a time. Each costs every request a comparison.
const TAPS: usize = 64;

type Event = Result<TapEvent, Status>;

/// The taps of this process.
#[derive(Default)]
pub(crate) struct Taps {
    active: AtomicUsize,
    taps: ArcSwap<Vec<Arc<Tap>>>,
    changing: Mutex<()>,
    next: AtomicU32,
}

/// One client's question.
pub(crate) struct Tap {
    base: u32,
    wanted: Match,
    /// Requests that may still be told of.
    left: AtomicUsize,
    with_headers: bool,
    streams: AtomicU64,
    events: mpsc::Sender<Event>,
}

/// A request that a tap has chosen. Its end is told even when the tap takes no more.
pub(crate) struct Tapped {
    tap: Arc<Tap>,
    stream: u64,
    /// The event, without what happened.
    about: TapEvent,
    begun: Instant,
    answered: Option<Instant>,
}

/// The head of a request, kept until its endpoint is known.
#[derive(Debug)]
pub(crate) struct Head {
    method: ::http::Method,
    scheme: String,
    authority: String,
    path: String,
    headers: HeaderMap,
}

/// The two ends of a request.
#[derive(Debug)]
pub(crate) struct Ends<'a> {
    pub(crate) direction: Direction,
    pub(crate) source: SocketAddr,
    pub(crate) source_labels: &'a BTreeMap<String, String>,
    pub(crate) destination: SocketAddr,
    pub(crate) destination_labels: &'a BTreeMap<String, String>,
    /// Of the route that took it.
    pub(crate) route_labels: &'a BTreeMap<String, String>,
}

impl Taps {
    /// Does anybody tap? The one thing that every request asks.
    pub(crate) fn any(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// Adds a tap, whose events come out of the receiver. `None` when there are too many.
    fn add(
        &self,
        wanted: Match,
        limit: usize,
        with_headers: bool,
    ) -> Option<(Arc<Tap>, mpsc::Receiver<Event>)> {
        let _one_at_a_time = self.changing.lock();
        let now = self.taps.load();
        if now.len() >= TAPS {
            return None;
        }
        let (events, receiver) = mpsc::channel(CHANNEL);
        let tap = Arc::new(Tap {
            base: self.next.fetch_add(1, Ordering::Relaxed),
            wanted,
            left: AtomicUsize::new(limit),
            with_headers,
            streams: AtomicU64::new(0),
            events,
        });
        let mut taps = Vec::clone(&now);
        taps.push(tap.clone());
        self.publish(taps);
        Some((tap, receiver))
    }

    /// Takes a tap away: it chooses no more. Requests that it has chosen hold it until they end.
    fn remove(&self, base: u32) {
        let _one_at_a_time = self.changing.lock();
        let mut taps = Vec::clone(&self.taps.load());
        taps.retain(|tap| tap.base != base);
        self.publish(taps);
    }

    fn publish(&self, taps: Vec<Arc<Tap>>) {
        self.active.store(taps.len(), Ordering::Relaxed);
        self.taps.store(Arc::new(taps));
    }

    /// Tells of a request that goes out now to everybody who wants it.
    pub(crate) fn begun(&self, head: &Head, ends: &Ends<'_>, begun: Instant) -> Vec<Tapped> {
        let subject = Subject {
            source: ends.source,
            destination: ends.destination,
            destination_labels: ends.destination_labels,
            route_labels: ends.route_labels,
            scheme: &head.scheme,
            method: head.method.as_str(),
            authority: &head.authority,
            path: &head.path,
        };
        let taps = self.taps.load();
        let wanting = taps.iter().filter(|tap| tap.wanted.holds(&subject));
        let mut exhausted = Vec::new();
        let chosen = wanting.filter_map(|tap| {
            let taken =
                tap.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if taken.is_err() || taken == Ok(1) {
                exhausted.push(tap.base);
            }
            taken.is_ok().then(|| tap.begin(head, ends, begun)).flatten()
        });
        let chosen = chosen.collect();
        exhausted.into_iter().for_each(|base| self.remove(base));
        chosen
    }
}

impl Tap {
    fn begin(self: &Arc<Self>, head: &Head, ends: &Ends<'_>, begun: Instant) -> Option<Tapped> {
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let labels = |of: &BTreeMap<String, String>| of.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let meta = |of| Some(EndpointMeta { labels: labels(of) });
        let direction = match ends.direction {
            Direction::Inbound => ProxyDirection::Inbound,
            Direction::Outbound => ProxyDirection::Outbound,
        };
        let about = TapEvent {
            source: Some(ends.source.into()),
            source_meta: meta(ends.source_labels),
            route_meta: Some(RouteMeta { labels: labels(ends.route_labels) }),
            destination: Some(ends.destination.into()),
            destination_meta: meta(ends.destination_labels),
            proxy_direction: direction.into(),
            event: None,
        };
        let tapped = Tapped { tap: self.clone(), stream, about, begun, answered: None };
        let init = http::RequestInit {
            id: Some(tapped.id()),
            method: Some(head.method.clone().into()),
            scheme: Some(head.scheme.as_str().into()),
            authority: head.authority.clone(),
            path: head.path.clone(),
            headers: self.headers(&head.headers),
        };
        tapped.tell(http::Event::RequestInit(init)).then_some(tapped)
    }

    /// The fields, if the client asked for them.
    fn headers(&self, headers: &HeaderMap) -> Option<Headers> {
        let header = |(name, value): (&::http::HeaderName, &::http::HeaderValue)| Header {
            name: name.as_str().to_owned(),
            value: value.as_bytes().to_vec(),
        };
        self.with_headers.then(|| Headers { headers: headers.iter().map(header).collect() })
    }
}

impl Tapped {
    fn id(&self) -> http::StreamId {
        http::StreamId { base: self.tap.base, stream: self.stream }
    }

    /// `false`: the client is gone, or too slow.
    fn tell(&self, event: http::Event) -> bool {
        let event = linkerd2_proxy_api::tap::tap_event::Event::Http(Http { event: Some(event) });
        self.tap.events.try_send(Ok(TapEvent { event: Some(event), ..self.about.clone() })).is_ok()
    }

    pub(crate) fn answered(&mut self, status: u16, headers: &HeaderMap) {
        let now = Instant::now();
        self.answered = Some(now);
        self.tell(http::Event::ResponseInit(http::ResponseInit {
            id: Some(self.id()),
            since_request_init: duration(now - self.begun),
            http_status: status.into(),
            headers: self.tap.headers(headers),
        }));
    }

    pub(crate) fn ended(self, bytes: u64, eos: Option<Eos>, trailers: Option<&HeaderMap>) {
        let now = Instant::now();
        self.tell(http::Event::ResponseEnd(http::ResponseEnd {
            id: Some(self.id()),
            since_request_init: duration(now - self.begun),
            since_response_init: duration(now - self.answered.unwrap_or(now)),
            response_bytes: bytes,
            eos,
            trailers: trailers.and_then(|trailers| self.tap.headers(trailers)),
        }));
    }
}

impl Head {
    pub(crate) fn new<B>(request: &Request<B>) -> Head {
        Head {
            method: request.method().clone(),
            scheme: request.uri().scheme_str().unwrap_or("http").to_owned(),
            authority: crate::http::headers::authority(request).unwrap_or_default().to_owned(),
            path: request.uri().path().to_owned(),
            headers: request.headers().clone(),
        }
    }
}

fn duration(of: Duration) -> Option<prost_types::Duration> {
    of.try_into().ok()
}
