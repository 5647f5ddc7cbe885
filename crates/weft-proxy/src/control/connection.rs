//! One HTTP/2 connection to a replica of the control plane: TCP, TLS, preface, each with a deadline.

use super::counts::Counts;
use crate::config::ControlAddr;
use bytes::Bytes;
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::http2,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::{
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
};
use weft_fault::{Code, Fault, Phase};
use weft_net::socket;
use weft_tls::credentials::Client as TlsClient;

const CONNECT: Duration = Duration::from_secs(3);
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A connection on which nothing answers is closed after the sum of these.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_PATIENCE: Duration = Duration::from_secs(10);

/// Sends requests; cheap to clone. A tonic client takes it as its channel.
#[derive(Clone)]
pub struct Connection {
    requests: http2::SendRequest<tonic::body::Body>,
    authority: http::uri::Authority,
    peer: SocketAddr,
    load: Arc<Load>,
    counts: Option<Counts>,
}

/// What is under way on a connection.
#[derive(Debug, Default)]
struct Load {
    /// Requests without an answer's head.
    unanswered: AtomicUsize,
    /// Requests and streams that have not ended.
    open: AtomicUsize,
    /// When the replica last said that it cannot answer.
    unable: Mutex<Option<Instant>>,
}

/// A replica that fails at once has little to do: it is not the one to choose for that reason.
const UNABLE: Duration = Duration::from_secs(2);

/// Counts as one of something for as long as it lives.
struct Counted(Arc<Load>, fn(&Load) -> &AtomicUsize);

impl Counted {
    fn new(load: &Arc<Load>, of: fn(&Load) -> &AtomicUsize) -> Self {
        of(load).fetch_add(1, Ordering::Relaxed);
        Counted(load.clone(), of)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.1)(&self.0).fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer's body, which is load of its connection until it is over.
pub struct Answer {
    inner: Incoming,
    _open: Counted,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({}, {})", self.authority, self.peer)
    }
}

impl Connection {
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub fn is_open(&self) -> bool {
        !self.requests.is_closed()
    }

    /// Counts its requests from now on.
    pub(super) fn counted(self, counts: Option<Counts>) -> Self {
        Connection { counts, ..self }
    }

    /// Less is better: a replica that just failed comes last, and requests that wait for an answer count before streams
    /// that are open.
    pub(super) fn load(&self) -> (bool, usize, usize) {
        let unable = self.load.unable.lock().is_some_and(|at| at.elapsed() < UNABLE);
        (unable, self.load.unanswered.load(Ordering::Relaxed), self.load.open.load(Ordering::Relaxed))
    }
}

/// Connects to one address; `tls` and a name come together. The second value resolves when the connection ends.
pub async fn connect(
    addr: &ControlAddr,
    peer: SocketAddr,
    tls: Option<&TlsClient>,
) -> Result<(Connection, impl Future<Output = Fault> + use<>), Fault> {
    let authority: http::uri::Authority = match addr.host.contains(':') {
        true => format!("[{}]:{}", addr.host, addr.port),
        false => format!("{}:{}", addr.host, addr.port),
    }
    .parse()
    .map_err(|e| Fault::new(Code::BadVariable).in_phase(Phase::Control).about(&addr.host).because(e))?;
    let authority = &authority;

    // 1. TCP, in a task of its own, so that nothing else delays it.
    let dial = tokio::spawn(async move {
        tokio::time::timeout(CONNECT, socket::connect(peer, socket::Options::default())).await
    });
    let io = match dial.await {
        Ok(Ok(Ok(io))) => io,
        Ok(Ok(Err(e))) => {
            let code = match e.kind() {
                std::io::ErrorKind::ConnectionRefused => Code::ConnectRefused,
                std::io::ErrorKind::HostUnreachable | std::io::ErrorKind::NetworkUnreachable => {
                    Code::Unreachable
                }
                _ => Code::NetworkIo,
            };
            return Err(Fault::new(code).in_phase(Phase::Control).about(authority).peer(peer).because(e));
        }
        Ok(Err(_)) | Err(_) => {
            let fault = Fault::new(Code::ConnectTimeout).in_phase(Phase::Control).about(authority).peer(peer);
            return Err(fault.fact("waited_ms", CONNECT.as_millis()));
        }
    };
    // Small messages that somebody waits for; failure to set it only makes them slower.
    let _slower = io.set_nodelay(true);

    // 2. TLS, unless the controller is on loopback. 3. HTTP/2.
    let (Some(name), Some(tls)) = (&addr.name, tls) else {
        return preface(io, peer, authority).await;
    };
    let handshake = weft_tls::handshake::connect(tls, io, name, name, weft_tls::handshake::Offer::Nothing);
    match tokio::time::timeout(HANDSHAKE, handshake).await {
        Ok(Ok(connected)) => preface(connected.stream, peer, authority).await,
        Ok(Err(fault)) => Err(fault.about(authority).peer(peer)),
        Err(_) => Err(Fault::new(Code::HandshakeTimeout)
            .in_phase(Phase::TlsConnect)
            .about(authority)
            .peer(peer)
            .fact("waited_ms", HANDSHAKE.as_millis())),
    }
}

/// Prior knowledge: the peer is known to speak HTTP/2.
async fn preface<IO>(
    io: IO,
    peer: SocketAddr,
    authority: &http::uri::Authority,
) -> Result<(Connection, Pin<Box<dyn Future<Output = Fault> + Send>>), Fault>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let subject = authority.clone();
    let broken = move |cause: Option<hyper::Error>| {
        let fault = Fault::new(Code::ConnectionReset).in_phase(Phase::Control).about(&subject).peer(peer);
        match cause {
            Some(cause) => fault.because(cause),
            None => fault.fact("by", "the controller closed the connection"),
        }
    };
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(8 << 20)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_PATIENCE)
        .keep_alive_while_idle(true);
    let (requests, driver) = match tokio::time::timeout(HANDSHAKE, builder.handshake(TokioIo::new(io))).await
    {
        Ok(Ok(done)) => done,
        Ok(Err(e)) => return Err(broken(Some(e))),
        Err(_) => return Err(broken(None).fact("waited_ms", HANDSHAKE.as_millis())),
    };
    let (ended, end) = oneshot::channel();
    // The driver ends when the peer closes or the last handle is dropped.
    tokio::spawn(async move {
        // Nobody listens any more when the service is gone.
        let _unheard = ended.send(driver.await.err());
    });
    let end = Box::pin(async move { broken(end.await.ok().flatten()) });
    Ok((Connection { requests, authority: authority.clone(), peer, load: Arc::default(), counts: None }, end))
}

/// A request of this connection, in the shape that tonic's clients call.
impl tower::Service<http::Request<tonic::body::Body>> for Connection {
    type Response = http::Response<Answer>;
    type Error = Arc<hyper::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.requests.poll_ready(cx).map_err(Arc::new)
    }

    fn call(&mut self, mut request: http::Request<tonic::body::Body>) -> Self::Future {
        let path = request.uri().path_and_query().cloned();
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(http::uri::Scheme::HTTP);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = path;
        if let Ok(uri) = http::Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
        let response = self.requests.send_request(request);
        let unanswered = Counted::new(&self.load, |load| &load.unanswered);
        let open = Counted::new(&self.load, |load| &load.open);
        let (load, counts, begun) = (self.load.clone(), self.counts.clone(), Instant::now());
        if let Some(counts) = &counts {
            counts.request();
        }
        Box::pin(async move {
            let response = response.await.map_err(Arc::new)?;
            drop(unanswered);
            if is_unable(response.headers()) {
                *load.unable.lock() = Some(Instant::now());
            }
            let (head, inner) = response.into_parts();
            if let Some(counts) = &counts {
                counts.response(&head, begun);
            }
            Ok(http::Response::from_parts(head, Answer { inner, _open: open }))
        })
    }
}

/// The replica's own failure, and not its word about what was asked.
fn is_unable(headers: &http::HeaderMap) -> bool {
    use tonic::Code::{DeadlineExceeded, Internal, ResourceExhausted, Unavailable, Unknown};
    let status = tonic::Status::from_header_map(headers);
    status.is_some_and(|s| {
        matches!(s.code(), DeadlineExceeded | Internal | ResourceExhausted | Unavailable | Unknown)
    })
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
