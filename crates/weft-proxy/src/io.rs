//! The one stream type of the data path: plaintext or TLS, either end.

use crate::{deadline::within, http::respond, metrics::series::OpenConnection, record::Bytes};
use std::{
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{client, server};
use weft_fault::{Code, Fault, Phase};
use weft_net::{prefixed::Prefixed, socket};
use weft_wire::transport_answer::TransportAnswer;

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
    answer: Answer,
}

/// Whether a peer's proxy is told, or tells, what became of a connection whose bytes have no form of their own for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Not,
    /// The client's proxy reads it in front of all else.
    Owed,
    /// The server's proxy writes it in front of all else.
    Awaited,
}

/// The peer's proxy refused the connection, in these words.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Refused {}

/// How long a refused client's proxy has to hang up: before that, closing could cost it the refusal.
const HANGS_UP: Duration = Duration::from_secs(1);
/// What it may have sent meanwhile is read and thrown away.
const THROWN_AWAY: u64 = 1 << 20;

impl Io {
    pub(crate) fn new(stream: Prefixed<Transport>) -> Self {
        Io { stream, open: None, bytes: None, answer: Answer::Not }
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

    /// The client's proxy waits for an answer, which [`Io::accept`] or [`Io::refuse`] gives.
    pub(crate) fn owe_answer(&mut self) {
        self.answer = Answer::Owed;
    }

    /// The peer's proxy answers in front of its first byte; a refusal is an error of reading, [`Refused`].
    pub(crate) fn await_answer(&mut self) {
        self.answer = Answer::Awaited;
    }

    /// Tells the client's proxy, if it wants to know, that what it sends reaches somebody.
    pub(crate) async fn accept(&mut self) -> Result<(), Fault> {
        if std::mem::replace(&mut self.answer, Answer::Not) != Answer::Owed {
            return Ok(());
        }
        let stream = self.stream.get_mut();
        let telling = async {
            stream.write_all(&TransportAnswer::Accepted.encode()).await?;
            stream.flush().await
        };
        // It is one byte: nothing but a connection that is gone keeps it from being sent.
        let told = within(HANGS_UP, telling).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        told.map_err(|error| Fault::new(Code::NetworkIo).in_phase(Phase::TransportHeader).because(error))
    }

    /// Ends a connection that failed: by words where the client's proxy can read some, else by a reset.
    pub(crate) async fn refuse(&mut self, fault: &Fault) {
        if std::mem::replace(&mut self.answer, Answer::Not) != Answer::Owed {
            return self.abort();
        }
        let answer = TransportAnswer::Refused(respond::full_text(fault)).encode();
        let stream = self.stream.get_mut();
        let telling = async {
            stream.write_all(&answer).await?;
            stream.shutdown().await?;
            tokio::io::copy(&mut stream.take(THROWN_AWAY), &mut tokio::io::sink()).await
        };
        // In vain or not: it has been told what could be told.
        let _told = within(HANGS_UP, telling).await;
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match TransportAnswer::decode(self.stream.prefix()) {
                Ok(Some((TransportAnswer::Accepted, length))) => {
                    self.stream.consume(length);
                    self.answer = Answer::Not;
                    return Poll::Ready(Ok(()));
                }
                Ok(Some((TransportAnswer::Refused(text), _))) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionRefused, Refused(text))));
                }
                Ok(None) => {}
                Err(bad) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, bad))),
            }
            if ready!(self.stream.poll_fill(cx))? == 0 {
                // It is gone: whoever accepts says so.
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
    }

    /// Ends the connection by a reset when this is dropped: an orderly end after a failure would look to the peer like a
    /// complete answer.
    pub(crate) fn abort(&mut self) {
        // A socket that cannot be told is gone already.
        let _best_effort = socket::reset_on_close(self.tcp());
    }

    /// Has the peer reset the connection? After its FIN, reading does not tell.
    pub(crate) fn is_reset(&self) -> bool {
        !matches!(self.tcp().take_error(), Ok(None))
    }

    fn tcp(&self) -> &TcpStream {
        match self.stream.get_ref() {
            Transport::Plain(tcp) => tcp,
            Transport::Accepted(tls) => tls.get_ref().0.get_ref(),
            Transport::Connected(tls) => tls.get_ref().0,
        }
    }

    pub(crate) fn stream(&mut self) -> &mut Prefixed<Transport> {
        &mut self.stream
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.answer == Answer::Awaited {
            let answered = ready!(this.poll_answer(cx));
            if let (Err(error), Some(open)) = (&answered, &mut this.open) {
                open.errno(errno(error));
            }
            answered?;
        }
        let before = buf.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                let count = buf.filled().len() - before;
                if let Some(open) = &this.open {
                    open.read(count as u64);
                }
                if let Some(bytes) = &this.bytes {
                    bytes.read(count as u64);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => {
                if let Some(open) = &mut this.open {
                    open.errno(errno(&error));
                }
                Poll::Ready(Err(error))
            }
            Poll::Pending => Poll::Pending,
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
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Io {
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
