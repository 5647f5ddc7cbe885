//! TCP sockets of the data path: listening, accepting with the original destination, connecting.

use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::OnceLock,
    time::Duration,
};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// What is set on a socket: how a dead peer is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Probes after this much silence; without it the system's own interval applies.
    pub keepalive: Option<Duration>,
    /// Written data may stay unacknowledged this long (`TCP_USER_TIMEOUT`).
    pub user_timeout: Option<Duration>,
}

/// Accepts connections and finds out where each was going before it was redirected.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    options: Options,
    /// Tests run where nothing redirects: every connection claims this destination, or that none is known.
    pretended: Option<Option<SocketAddr>>,
    /// Tests run on loopback, whose clients pass every policy: every connection claims this client.
    pretended_client: Option<SocketAddr>,
}

/// An accepted connection. Addresses are canonical: an IPv4 client of an IPv6 socket is an IPv4 client.
#[derive(Debug)]
pub struct Accepted {
    pub stream: TcpStream,
    pub client: SocketAddr,
    /// The address of this end.
    pub local: SocketAddr,
    /// Where the client wanted to go; `None` when nothing redirected the connection.
    pub original_dst: Option<SocketAddr>,
}

const BACKLOG: u32 = 4096;

/// A listening socket, to be shared by several threads with `try_clone`. Must not be called for a port twice.
pub fn listen(addr: SocketAddr, backlog: Option<u32>) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_reuse_address(true)?;
    // [::] serves both families: that is how sidecars are configured.
    if addr.is_ipv6() && addr.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(i32::try_from(backlog.unwrap_or(BACKLOG)).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

impl Listener {
    /// Must be called within the runtime that will accept.
    pub fn new(socket: std::net::TcpListener, options: Options) -> io::Result<Self> {
        Ok(Listener { tcp: TcpListener::from_std(socket)?, options, pretended: None, pretended_client: None })
    }

    /// Pretends that every connection was redirected on its way to `dst`.
    pub fn pretending(mut self, dst: SocketAddr) -> Self {
        self.pretended = Some(Some(dst));
        self
    }

    /// Pretends that of no connection it is known where it was going.
    pub fn pretending_nothing(mut self) -> Self {
        self.pretended = Some(None);
        self
    }

    /// Pretends that every connection comes from `client`.
    pub fn pretending_client(mut self, client: SocketAddr) -> Self {
        self.pretended_client = Some(client);
        self
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr().map(canonical)
    }

    /// Waits for the next connection. Cancel-safe.
    pub async fn accept(&self) -> io::Result<Accepted> {
        let (stream, client) = self.tcp.accept().await?;
        prepare(&stream, self.options)?;
        let local = canonical(stream.local_addr()?);
        let original_dst = self.pretended.unwrap_or_else(|| original_dst(&stream, local));
        let client = self.pretended_client.unwrap_or(canonical(client));
        Ok(Accepted { stream, client, local, original_dst })
    }
}

/// `SO_MARK` of the connections that this process makes: set once, if at all.
static OWN_MARK: OnceLock<u32> = OnceLock::new();

/// Lets redirect rules know this process's connections by a mark, where they cannot know them by the user. A property of the
/// process as the user is one, so nothing that connects can forget it. Fails without NET_RAW or NET_ADMIN.
pub fn mark_own_connections(mark: u32) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_mark(mark)?;
    if *OWN_MARK.get_or_init(|| mark) == mark { Ok(()) } else { Err(io::ErrorKind::AlreadyExists.into()) }
}

/// Connects; no deadline of its own.
pub async fn connect(addr: SocketAddr, options: Options) -> io::Result<TcpStream> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(mark) = OWN_MARK.get() {
        SockRef::from(&socket).set_mark(*mark)?;
    }
    let stream = socket.connect(addr).await?;
    prepare(&stream, options)?;
    Ok(stream)
}

/// Lets the socket's end be a reset instead of an orderly one. What is not yet sent is lost.
pub fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

fn prepare(stream: &TcpStream, options: Options) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = match options.keepalive {
        Some(time) => TcpKeepalive::new().with_time(time).with_interval(time),
        None => TcpKeepalive::new(),
    };
    socket.set_tcp_keepalive(&keepalive)?;
    if options.user_timeout.is_some() {
        socket.set_tcp_user_timeout(options.user_timeout)?;
    }
    Ok(())
}

/// What connection tracking remembers of the destination before REDIRECT; without a redirect there is nothing.
fn original_dst(stream: &TcpStream, local: SocketAddr) -> Option<SocketAddr> {
    let socket = SockRef::from(stream);
    let found = if local.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    found.ok().and_then(|addr| addr.as_socket()).map(canonical)
}

/// An IPv4-mapped IPv6 address is the IPv4 address.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), addr.port()),
        IpAddr::V6(_) => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn mapped_clients_are_ipv4_and_destinations_can_be_pretended() {
        let Ok(socket) = listen("[::]:0".parse().unwrap(), None) else {
            eprintln!("SKIPPED: no IPv6 here");
            return;
        };
        let options =
            Options { keepalive: Some(Duration::from_secs(10)), user_timeout: Some(Duration::from_secs(30)) };
        let dst: SocketAddr = "192.0.2.7:80".parse().unwrap();
        let listener = Listener::new(socket, options).unwrap().pretending(dst);
        let port = listener.local_addr().unwrap().port();
        let near = connect(SocketAddr::from(([127, 0, 0, 1], port)), options).await.unwrap();
        let accepted = listener.accept().await.unwrap();
        assert_eq!(accepted.client, near.local_addr().unwrap());
        assert_eq!(accepted.original_dst, Some(dst));
        assert_eq!(accepted.local, SocketAddr::from(([127, 0, 0, 1], port)));
        assert!(accepted.stream.nodelay().unwrap());
        assert_eq!(
            SockRef::from(&accepted.stream).tcp_user_timeout().unwrap(),
            Some(Duration::from_secs(30))
        );
    }

    #[tokio::test]
    async fn without_a_redirect_there_is_no_original_destination() {
        let socket = listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let listener = Listener::new(socket, Options::default()).unwrap();
        let addr = listener.local_addr().unwrap();
        let _near = connect(addr, Options::default()).await.unwrap();
        let accepted = listener.accept().await.unwrap();
        // Where connection tracking is on, the answer is the address itself.
        assert!(accepted.original_dst.is_none_or(|dst| dst == addr));
    }
}
