//! Listeners: TLS with certificates of our own making, HTTP/2 for gRPC, plain requests and answers for the rest.

pub mod certificates;
pub mod grpc;
pub mod http;

use self::certificates::Certificates;
use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};
use weft_fault::{Code, Fault, Phase};
use weft_model::identity::Identity;
use weft_tls::handshake::accept_named;

/// Connections of one listener, handshakes included.
const CONNECTIONS: usize = 20_000;
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// The first byte of every TLS connection (RFC 8446, 5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub addr: SocketAddr,
    /// Proved by a client certificate; most clients of the control plane have one.
    pub identity: Option<Identity>,
}

/// How a listener protects its connections.
#[derive(Clone, Debug)]
pub enum Protection {
    Tls(Certificates),
    /// TLS, or plaintext if the client begins so. For tests.
    TlsOrPlain(Certificates),
    Plain,
}

/// An accepted connection.
pub struct Connection {
    io: Box<dyn Io>,
    peer: Peer,
    _permit: OwnedSemaphorePermit,
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Binds now, so that a port in use is told at start.
pub async fn bind(addr: SocketAddr) -> Result<TcpListener, Fault> {
    TcpListener::bind(addr).await.map_err(|e| {
        Fault::new(Code::HostUnable).in_phase(Phase::Start).about("listen").fact("address", addr).because(e)
    })
}

/// Accepts until nobody takes the connections any more. A handshake runs in a task of its own and holds up nobody.
pub async fn accept(
    listener: TcpListener,
    protection: Protection,
    out: mpsc::Sender<io::Result<Connection>>,
) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let (tcp, addr) = tokio::select! {
            () = out.closed() => return,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, as a rule: others must close first.
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let (protection, out) = (protection.clone(), out.clone());
        tokio::spawn(async move {
            let _ = tcp.set_nodelay(true);
            match timeout(HANDSHAKE_DEADLINE, protect(tcp, addr, &protection)).await {
                Ok(Ok((io, identity))) => {
                    let peer = Peer { addr, identity };
                    // Nobody takes it when the server has stopped.
                    let _ = out.send(Ok(Connection { io, peer, _permit: permit })).await;
                }
                Ok(Err(fault)) => tracing::debug!(%addr, "{fault:?}"),
                Err(_) => tracing::debug!(%addr, "no handshake in time"),
            }
        });
    }
}

async fn protect(
    tcp: TcpStream,
    addr: SocketAddr,
    protection: &Protection,
) -> Result<(Box<dyn Io>, Option<Identity>), Fault> {
    let certificates = match protection {
        Protection::Plain => return Ok((Box::new(tcp), None)),
        Protection::TlsOrPlain(certificates) => {
            let mut first = [0_u8];
            let read = tcp.peek(&mut first).await;
            let n = read.map_err(|e| Fault::new(Code::NetworkIo).peer(addr).because(e))?;
            if n == 0 || first[0] != TLS_HANDSHAKE {
                return Ok((Box::new(tcp), None));
            }
            certificates
        }
        Protection::Tls(certificates) => certificates,
    };
    let server = certificates
        .current()
        .ok_or_else(|| Fault::new(Code::NoCertificateYet).in_phase(Phase::TlsAccept).peer(addr))?;
    let accepted = accept_named(&server, tcp).await?;
    Ok((Box::new(accepted.stream), accepted.client))
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = Peer;
    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
