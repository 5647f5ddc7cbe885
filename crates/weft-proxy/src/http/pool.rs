//! The HTTP connections of one worker to one server.

use super::{
    alive::Pulse,
    body::{Body, Failure},
    client::{self, Unanswered},
    h1, wellformed,
};
use crate::{
    connect::{self, Made, Role, Sessions, Target},
    deadline::within,
    io::Io,
    mesh::Mesh,
    record::Story,
};
use http::{Method, Request, Response, request};
use hyper::client::conn::http2;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use weft_fault::{Code, Fault, FaultRecord, Phase};

/// Reuses connections that are all alike. When what they depend on changes, a new pool takes over: what is under way here
/// ends in peace, and nothing new comes.
pub(crate) struct Pool {
    mesh: Arc<Mesh>,
    target: Rc<Target>,
    idle: RefCell<Vec<Idle>>,
    h2: RefCell<H2>,
    retired: Cell<bool>,
    used: Cell<Instant>,
    idle_limit: Duration,
    max_idle: usize,
    peer: Cell<Peer>,
    /// Connects that may be under way at a time.
    dials: Semaphore,
    /// So many requests are under way that they share one connection.
    crowded: Cell<bool>,
}

/// What is known of whoever answers there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Unknown,
    Weft,
    Other,
}

/// How HTTP/1 goes to a peer's proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carriage {
    /// As it is: the peer is a weft proxy, which reads it as strictly as this one.
    AsIs,
    /// Over HTTP/2, as Linkerd's proxies do.
    OverH2,
}

/// Connects under way to one peer, or to one port of the application, from one worker. All that is asked for at once would
/// be begun at once by a process that is short of CPU, and none of it ended in time; so the rest waits for its turn, which
/// is when its own time begins.
const DIALS: usize = 24;

/// From so many requests under way to one peer they share the one HTTP/2 connection: writes are then shared, too, and
/// handshakes for each request of a burst would cost more than they save.
const CROWDED: usize = 48;
/// Back below so many, each has a connection again.
const UNCROWDED: usize = 24;

/// An HTTP/2 connection without a new request for so long is let go; its last streams end it.
const H2_IDLE: Duration = Duration::from_secs(60);

/// Requests that were handed to one HTTP/2 connection and not yet taken by the task that drives it. The library's queue has no
/// bound of its own, takes a bounded number in a turn, and keeps what was given up until its turn comes: a client that takes
/// back its requests at once would fill it faster than it empties.
const PLACES: usize = 128;

struct Idle {
    client: h1::Client,
    since: Instant,
    /// How it came about, if nobody has used it yet.
    made: Option<Made>,
}

enum H2 {
    None,
    /// One attempt serves all who wait.
    Connecting(Attempt),
    Ready(Link),
}

/// An HTTP/2 connection that is open.
#[derive(Clone)]
struct Link {
    sender: http2::SendRequest<Body>,
    pulse: Rc<Pulse>,
    places: Arc<Semaphore>,
}

type Attempt = watch::Receiver<Option<Result<Outcome, Arc<FaultRecord>>>>;

/// What an attempt has led to.
#[derive(Clone)]
enum Outcome {
    H2(Link, Made),
    /// The peer takes HTTP/1 as it is; the connection waits among the idle ones.
    H1,
}

/// A response, and the HTTP/1 connection it comes on.
pub(crate) struct Answered {
    pub(crate) response: Response<Body>,
    pub(crate) lease: Option<Lease>,
    /// The connection was made for this request, whose time includes that.
    pub(crate) made: Option<Made>,
}

/// Why there is no response.
pub(crate) enum Failed {
    /// No connection: the request is untouched and may go elsewhere.
    Unsent(Fault, Box<Request<Body>>),
    /// It was sent, at least in part.
    Sent(Unanswered),
}

impl Failed {
    fn unsent(fault: Fault, head: request::Parts, body: Option<Body>) -> Self {
        Failed::Unsent(fault, Box::new(Request::from_parts(head, body.unwrap_or_else(Body::empty))))
    }
}

/// An HTTP/1 connection in use.
pub(crate) struct Lease {
    pool: Rc<Pool>,
    client: h1::Client,
}

impl Lease {
    /// `clean`: the response came whole.
    pub(crate) fn end(self, clean: bool) {
        let Lease { pool, client } = self;
        let mut idle = pool.idle.borrow_mut();
        if clean && !pool.retired.get() && client.is_reusable() && idle.len() < pool.max_idle {
            idle.push(Idle { client, since: Instant::now(), made: None });
        }
    }
}

impl Pool {
    pub(crate) fn new(mesh: Arc<Mesh>, target: Target, idle_limit: Duration, max_idle: usize) -> Rc<Self> {
        Rc::new(Pool {
            mesh,
            target: Rc::new(target),
            idle: RefCell::default(),
            h2: RefCell::new(H2::None),
            retired: Cell::new(false),
            used: Cell::new(Instant::now()),
            idle_limit,
            max_idle,
            peer: Cell::new(Peer::Unknown),
            dials: Semaphore::new(DIALS),
            crowded: Cell::new(false),
        })
    }

    /// Closes what is idle and keeps nothing any more.
    pub(crate) fn retire(&self) {
        self.retired.set(true);
        self.idle.borrow_mut().clear();
        // Requests under way hold their streams; the connection ends with the last of them.
        *self.h2.borrow_mut() = H2::None;
    }

    /// Closes what has been idle for too long.
    pub(crate) fn sweep(&self, now: Instant) {
        let limit = self.idle_limit();
        self.idle
            .borrow_mut()
            .retain(|idle| now.saturating_duration_since(idle.since) < limit && idle.client.is_open());
        let unused = now.saturating_duration_since(self.used.get()) >= H2_IDLE;
        let close = matches!(&*self.h2.borrow(), H2::Ready(link) if unused || link.sender.is_closed());
        if close {
            *self.h2.borrow_mut() = H2::None;
        }
    }

    /// Does it hold any connection for a next request?
    pub(crate) fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty() && matches!(&*self.h2.borrow(), H2::None)
    }

    /// Tells how the connection that serves a client came about; `None`: another client needed it before.
    pub(crate) fn tell(&self, story: &Story, made: Option<Made>) {
        match made {
            Some(made) => made.tell(story, &self.target),
            None => {
                let text = format!("over a connection to {} that was open already", self.target.addr);
                story.event(Phase::Connect, text);
            }
        }
    }

    /// Connects, as soon as there is a place for it.
    pub(crate) async fn dial(&self, sessions: Sessions) -> Result<(Io, Made), Fault> {
        let limit = self.patience();
        let _place = match self.dials.try_acquire() {
            Ok(place) => place,
            Err(_) => match within(limit, self.dials.acquire()).await {
                Ok(place) => place.map_err(|_| Fault::new(Code::Invariant).in_phase(Phase::Queue))?,
                Err(late) => {
                    return Err(Fault::new(Code::ConnectsQueued)
                        .in_phase(Phase::Queue)
                        .peer(self.target.names)
                        .fact("connects_under_way", DIALS)
                        .fact("waited_ms", late.waited.as_millis()));
                }
            },
        };
        connect::dial(&self.mesh, &self.target, sessions).await
    }

    /// How long a request may wait for its turn.
    fn patience(&self) -> Duration {
        match self.target.role {
            Role::App => self.mesh.config.inbound.failfast_timeout,
            Role::Peer => self.mesh.config.outbound.failfast_timeout,
        }
    }

    /// A place in a connection's queue, as soon as there is one.
    async fn place(&self, link: &Link) -> Result<OwnedSemaphorePermit, Fault> {
        if let Ok(place) = link.places.clone().try_acquire_owned() {
            return Ok(place);
        }
        match within(self.patience(), link.places.clone().acquire_owned()).await {
            Ok(place) => place.map_err(|_| Fault::new(Code::Invariant).in_phase(Phase::Queue)),
            Err(late) => Err(Fault::new(Code::QueueTimeout)
                .in_phase(Phase::Queue)
                .peer(self.target.names)
                .fact("requests_queued", PLACES)
                .fact("waited_ms", late.waited.as_millis())),
        }
    }

    /// Sends over HTTP/1. `alone`: on a connection that nobody used before and nobody will use after.
    pub(crate) async fn send_h1(
        self: &Rc<Self>,
        request: Request<Body>,
        alone: bool,
    ) -> Result<Answered, Failed> {
        self.used.set(Instant::now());
        let (head, body) = request.into_parts();
        let resendable = self.may_resend() && resendable(&head, &body);
        let mut body = Some(body);
        let mut fresh = alone;
        loop {
            let reused = if fresh { None } else { self.checkout() };
            let is_reused = reused.is_some();
            let (mut client, made) = match reused {
                Some(reused) => reused,
                None => match self.connect_h1().await {
                    Ok((client, made)) => (client, Some(made)),
                    Err(fault) => return Err(Failed::unsent(fault, head, body)),
                },
            };
            let lost = match client.send(&head, &mut body, self.target.role).await {
                Ok(response) => {
                    let lease = (!alone).then(|| Lease { pool: self.clone(), client });
                    return Ok(Answered { response, lease, made });
                }
                Err(lost) => lost,
            };
            let silent = matches!(lost, h1::Lost::Silent(_));
            // It was written, no byte came back, and sending it twice does no harm.
            if is_reused && silent && resendable {
                fresh = true;
                continue;
            }
            let fault = lost.fault(self.target.role).peer(self.target.names);
            return Err(Failed::Sent(Unanswered { fault, reset: None, unprocessed: false }));
        }
    }

    /// Sends over the one HTTP/2 connection.
    pub(crate) async fn send_h2(self: &Rc<Self>, mut request: Request<Body>) -> Result<Answered, Failed> {
        let empty = request.body().is_empty();
        let again = (self.may_resend() && empty).then(|| copy_of(&request));
        let failure = (!empty).then(Failure::default);
        if let Some(failure) = &failure {
            request = request.map(|body| body.telling(failure));
        }
        for last in [false, true] {
            let (mut link, made) = match self.h2().await {
                Ok(connected) => connected,
                Err(fault) => return Err(Failed::Unsent(fault, Box::new(request))),
            };
            let place = match self.place(&link).await {
                Ok(place) => place,
                Err(fault) => return Err(Failed::Unsent(fault, Box::new(request))),
            };
            request = request.map(|body| body.queued(place));
            let mut error = match link.sender.try_send_request(request).await {
                Ok(response) => {
                    if let Err(fault) = wellformed::check_response(&response) {
                        let fault = fault.peer(self.target.names);
                        return Err(Failed::Sent(Unanswered { fault, reset: None, unprocessed: false }));
                    }
                    return Ok(Answered { response: response.map(Body::h2), lease: None, made });
                }
                Err(error) => error,
            };
            let mut unanswered = self.unanswered(error.error(), link.pulse.breach());
            if let Some(fault) = failure.as_ref().and_then(|failure| failure.take()) {
                unanswered.fault = fault;
            }
            request = match error.take_message() {
                Some(unsent) if last => return Err(Failed::Unsent(unanswered.fault, Box::new(unsent))),
                Some(unsent) => unsent,
                None => match &again {
                    // The server says that it did not begin: a new connection may take it, whatever the method.
                    Some(kept) if unanswered.unprocessed && !last => copy_of(kept),
                    _ => return Err(Failed::Sent(unanswered)),
                },
            };
            // A connection that refused this request would refuse the next.
            let ready = matches!(&*self.h2.borrow(), H2::Ready(..));
            if ready {
                *self.h2.borrow_mut() = H2::None;
            }
        }
        let fault = Fault::new(Code::Invariant).in_phase(Phase::Connect);
        Err(Failed::Unsent(fault, Box::new(request)))
    }

    /// What this proxy does by itself towards peers. Between the proxy and its application it is no second request: the
    /// connection was idle and died.
    fn may_resend(&self) -> bool {
        self.target.role == Role::App || self.mesh.config.outbound.resend
    }

    fn unanswered(&self, error: &hyper::Error, breach: Option<&'static str>) -> Unanswered {
        client::unanswered(error, self.target.role, self.target.names, breach)
    }

    /// The connection used last: the others may go on towards their idle limit.
    fn checkout(&self) -> Option<(h1::Client, Option<Made>)> {
        loop {
            let Idle { client, since, made } = self.idle.borrow_mut().pop()?;
            if since.elapsed() < self.idle_limit() && client.is_open() {
                return Some((client, made));
            }
        }
    }

    async fn connect_h1(&self) -> Result<(h1::Client, Made), Fault> {
        let (io, made) = self.dial(Sessions::HTTP1).await?;
        if self.peer.get() == Peer::Weft && !made.weft {
            // Another proxy took its place. What is written now it reads all the same.
            self.peer.set(Peer::Other);
        }
        Ok((h1::Client::new(io, self.mesh.config.max_head), made))
    }

    /// How long a connection may wait for its next request. A peer's is worth more than one to the application: it took a
    /// handshake.
    fn idle_limit(&self) -> Duration {
        if self.peer.get() == Peer::Weft { self.idle_limit.max(H2_IDLE) } else { self.idle_limit }
    }

    /// How HTTP/1 goes to the peer's proxy, with so many requests under way. Connects where that is not known yet; the
    /// connection is used next.
    pub(crate) async fn carriage(self: &Rc<Self>, under_way: usize) -> Result<Carriage, Fault> {
        if !self.mesh.config.outbound.weft_http1 {
            return Ok(Carriage::OverH2);
        }
        if self.peer.get() == Peer::Unknown {
            self.attempt(Sessions::CARRIED).await?;
        }
        let bound = if self.crowded.get() { UNCROWDED } else { CROWDED };
        self.crowded.set(under_way >= bound);
        let as_is = self.peer.get() == Peer::Weft && !self.crowded.get();
        Ok(if as_is { Carriage::AsIs } else { Carriage::OverH2 })
    }

    /// The one HTTP/2 connection, and how it came about if this caller had to wait for it.
    async fn h2(self: &Rc<Self>) -> Result<(Link, Option<Made>), Fault> {
        self.used.set(Instant::now());
        loop {
            let ready = match &*self.h2.borrow() {
                H2::Ready(link) if !link.sender.is_closed() => Some(link.clone()),
                _ => None,
            };
            if let Some(link) = ready {
                if link.pulse.beats().await && !link.sender.is_closed() {
                    return Ok((link, None));
                }
                // Nobody answers: what is under way there ends by itself, and this request does not wait for that.
                let same =
                    matches!(&*self.h2.borrow(), H2::Ready(now) if Rc::ptr_eq(&now.pulse, &link.pulse));
                if same {
                    *self.h2.borrow_mut() = H2::None;
                }
                continue;
            }
            // An attempt that was under way may have been for whatever the peer takes.
            if let Outcome::H2(link, made) = self.attempt(Sessions::HTTP2).await? {
                return Ok((link, Some(made)));
            }
        }
    }

    /// Joins the attempt that is under way, or starts one.
    async fn attempt(self: &Rc<Self>, sessions: Sessions) -> Result<Outcome, Fault> {
        let under_way = match &*self.h2.borrow() {
            H2::Connecting(attempt) => Some(attempt.clone()),
            _ => None,
        };
        let mut attempt = under_way.unwrap_or_else(|| self.start(sessions));
        let failed = match attempt.wait_for(Option::is_some).await {
            Ok(done) => match &*done {
                Some(Ok(outcome)) => return Ok(outcome.clone()),
                Some(Err(record)) => record.clone(),
                None => return Err(Fault::new(Code::Invariant).in_phase(Phase::Connect)),
            },
            // The attempt's task was dropped with its runtime.
            Err(_) => return Err(Fault::new(Code::Draining).in_phase(Phase::Connect)),
        };
        Err(failed.again())
    }

    /// Starts the one attempt. It goes on when those who wait leave: others may come.
    fn start(self: &Rc<Self>, sessions: Sessions) -> Attempt {
        let (done, attempt) = watch::channel(None);
        *self.h2.borrow_mut() = H2::Connecting(attempt.clone());
        let pool = self.clone();
        tokio::task::spawn_local(async move {
            let result = pool.connect(sessions).await;
            *pool.h2.borrow_mut() = match &result {
                Ok(Outcome::H2(link, _)) if !pool.retired.get() => H2::Ready(link.clone()),
                _ => H2::None,
            };
            done.send_replace(Some(result.map_err(|fault| Arc::new(fault.record()))));
        });
        attempt
    }

    async fn connect(&self, sessions: Sessions) -> Result<Outcome, Fault> {
        let (io, made) = self.dial(sessions).await?;
        self.peer.set(if made.weft { Peer::Weft } else { Peer::Other });
        if made.weft && sessions.differ() {
            if !self.retired.get() {
                let client = h1::Client::new(io, self.mesh.config.max_head);
                self.idle.borrow_mut().push(Idle { client, since: Instant::now(), made: Some(made) });
            }
            return Ok(Outcome::H1);
        }
        let made_ready = client::http2(io, &self.target.http2, self.mesh.config.max_head).await;
        let (sender, pulse) = made_ready.map_err(|error| self.unanswered(&error, None).fault)?;
        Ok(Outcome::H2(Link { sender, pulse, places: Arc::new(Semaphore::new(PLACES)) }, made))
    }
}

/// May it be sent a second time when a reused connection died without a byte in answer (RFC 9110, 9.2.2)?
fn resendable(head: &request::Parts, body: &Body) -> bool {
    body.is_empty()
        && matches!(
            head.method,
            Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE | Method::TRACE
        )
}

/// The same request, whose body is empty.
pub(crate) fn copy_of(request: &Request<Body>) -> Request<Body> {
    let mut copy = Request::new(Body::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.retire();
    }
}
