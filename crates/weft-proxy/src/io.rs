//! The one stream type of the data path: plaintext or TLS, either end.

use crate::{metrics::series::OpenConnection, record::Bytes};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Sleep,
};
use tokio_rustls::{client, server};
use weft_net::{prefixed::Prefixed, socket};

/// What carries the bytes. One type for all, so that HTTP is compiled once.
pub(crate) enum Transport {
    Plain(TcpStream),
    Accepted(Box<server::TlsStream<Prefixed<TcpStream>>>),
    Connected(Box<client::TlsStream<TcpStream>>),
}

/// A connection, its replayed first bytes, and who counts what passes.
pub(crate) struct Io {
    stream: Prefixed<Transport>,
    open: Option<OpenConnection>,
    bytes: Option<Arc<Bytes>>,
    heads: Option<Heads>,
    ended: bool,
    linger: Option<Linger>,
}

/// Closing while the client still sends would reset the connection and take the last answer from it (RFC 9112, 9.6): what
/// comes is read and thrown away, for a while.
struct Linger {
    bytes: usize,
    timer: Pin<Box<Sleep>>,
}

const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 4 << 20;

impl Io {
    pub(crate) fn new(stream: Prefixed<Transport>) -> Self {
        Io { stream, open: None, bytes: None, heads: None, ended: false, linger: None }
    }

    pub(crate) fn plain(tcp: TcpStream) -> Self {
        Io::new(Prefixed::new(Transport::Plain(tcp)))
    }

    /// Counts what passes from now on, until this is dropped.
    pub(crate) fn count(&mut self, open: OpenConnection) {
        self.open = Some(open);
    }

    /// Counts what passes for the connection's story, too.
    pub(crate) fn tell(&mut self, bytes: Arc<Bytes>) {
        self.bytes = Some(bytes);
    }

    /// Ends the connection by a reset when this is dropped: an orderly end after a failure would look to the peer like a
    /// complete answer.
    pub(crate) fn abort(&mut self) {
        let tcp = match self.stream.get_ref() {
            Transport::Plain(tcp) => tcp,
            Transport::Accepted(tls) => tls.get_ref().0.get_ref(),
            Transport::Connected(tls) => tls.get_ref().0,
        };
        // A socket that cannot be told is gone already.
        let _best_effort = socket::reset_on_close(tcp);
    }

    /// Limits how long the head of an HTTP/1 request may take once its first byte has come.
    pub(crate) fn limit_heads(&mut self, limit: Duration) -> Arc<HeadState> {
        let state = Arc::new(HeadState::default());
        self.heads = Some(Heads { limit, state: state.clone(), timer: None });
        state
    }

    pub(crate) fn stream(&mut self) -> &mut Prefixed<Transport> {
        &mut self.stream
    }
}

/// Shared between the stream, which sees bytes come, and the server, which sees requests begin and end. Both are on one
/// worker; atomics only because hyper wants a stream that could be sent (upgrades).
#[derive(Debug, Default)]
pub(crate) struct HeadState {
    /// Requests being served, bodies included.
    busy: AtomicU32,
    /// Bytes came while nothing was being served: the next head has begun.
    begun: AtomicBool,
    timed_out: AtomicBool,
}

impl HeadState {
    /// The head is whole: a request is being served.
    pub(crate) fn head_complete(&self) {
        self.begun.store(false, Relaxed);
        self.busy.fetch_add(1, Relaxed);
    }
    pub(crate) fn request_done(&self) {
        self.busy.fetch_sub(1, Relaxed);
    }
    /// The stream ended because a head did not become whole in time.
    pub(crate) fn timed_out(&self) -> bool {
        self.timed_out.load(Relaxed)
    }
}

struct Heads {
    limit: Duration,
    state: Arc<HeadState>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Heads {
    fn poll_late(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.state.begun.load(Relaxed) {
            self.timer = None;
            return false;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        let late = timer.as_mut().poll(cx).is_ready();
        self.state.timed_out.store(late, Relaxed);
        late
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                let count = buf.filled().len() - before;
                this.ended |= count == 0;
                if let Some(open) = &this.open {
                    open.read(count as u64);
                }
                if let Some(bytes) = &this.bytes {
                    bytes.read(count as u64);
                }
                if let Some(heads) = &this.heads
                    && count > 0
                    && heads.state.busy.load(Relaxed) == 0
                {
                    heads.state.begun.store(true, Relaxed);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => {
                if let Some(open) = &mut this.open {
                    open.errno(errno(&error));
                }
                Poll::Ready(Err(error))
            }
            Poll::Pending => {
                let late = this.heads.as_mut().is_some_and(|heads| heads.poll_late(cx));
                if late { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { Poll::Pending }
            }
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(polled)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(polled)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        // Only a server of HTTP/1 closes while its client may be in the middle of a message.
        if self.heads.is_none() || self.ended {
            return Poll::Ready(Ok(()));
        }
        self.poll_linger(cx).map(Ok)
    }
}

impl Io {
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let linger = self
            .linger
            .get_or_insert_with(|| Linger { bytes: 0, timer: Box::pin(tokio::time::sleep(LINGER)) });
        while linger.bytes < LINGER_BYTES && linger.timer.as_mut().poll(cx).is_pending() {
            let mut waste = [0; 4096];
            let mut buf = ReadBuf::new(&mut waste);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => linger.bytes += buf.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(())
    }

    fn wrote(&mut self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let (Poll::Ready(Ok(count)), Some(bytes)) = (&polled, &self.bytes) {
            bytes.written(*count as u64);
        }
        match (&polled, &mut self.open) {
            (Poll::Ready(Ok(count)), Some(open)) => open.written(*count as u64),
            (Poll::Ready(Err(error)), Some(open)) => open.errno(errno(error)),
            _ => {}
        }
        polled
    }
}

/// The name of the system error, as a metric label.
pub(crate) fn errno(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionReset => "ECONNRESET",
        io::ErrorKind::BrokenPipe => "EPIPE",
        io::ErrorKind::ConnectionAborted => "ECONNABORTED",
        io::ErrorKind::ConnectionRefused => "ECONNREFUSED",
        io::ErrorKind::TimedOut => "ETIMEDOUT",
        io::ErrorKind::NotConnected => "ENOTCONN",
        io::ErrorKind::HostUnreachable => "EHOSTUNREACH",
        io::ErrorKind::NetworkUnreachable => "ENETUNREACH",
        io::ErrorKind::UnexpectedEof => "EOF",
        _ => "EIO",
    }
}

macro_rules! each {
    ($self:ident, $stream:ident => $do:expr) => {
        match $self.get_mut() {
            Transport::Plain($stream) => $do,
            Transport::Accepted($stream) => $do,
            Transport::Connected($stream) => $do,
        }
    };
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Accepted(stream) => unnotified(Pin::new(stream).poll_read(cx, buf)),
            Transport::Connected(stream) => unnotified(Pin::new(stream).poll_read(cx, buf)),
        }
    }
}

/// A peer that closes TCP without the TLS close_notify alert ends the stream: HTTP has its own framing, and opaque
/// protocols see what they would see without the mesh.
fn unnotified(polled: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
    match polled {
        Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
        other => other,
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }
    fn is_write_vectored(&self) -> bool {
        match self {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Accepted(stream) => stream.is_write_vectored(),
            Transport::Connected(stream) => stream.is_write_vectored(),
        }
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(cx))
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}
