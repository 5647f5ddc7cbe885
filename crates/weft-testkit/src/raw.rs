//! Peers that say exactly the bytes a test gives them.

use std::{io, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// No test waits longer than this for a byte: a hang is a failure that names itself.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A listener on a free loopback port.
pub async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
    let addr = listener.local_addr().expect("a bound socket");
    (listener, addr)
}

/// A loopback port on which nothing listens.
pub async fn refused() -> SocketAddr {
    listener().await.1
}

/// Reads until the bytes end with `end`, or the peer closes.
pub async fn read_until<IO: AsyncRead + Unpin>(io: &mut IO, end: &[u8]) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    while !all.ends_with(end) {
        match within(io.read_u8()).await {
            Ok(byte) => all.push(byte),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// Reads until the peer closes.
pub async fn read_all<IO: AsyncRead + Unpin>(io: &mut IO) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    within(io.read_to_end(&mut all)).await?;
    Ok(all)
}

/// Reads one HTTP/1 message that says its length (or has no body): head and body.
pub async fn read_http<IO: AsyncRead + Unpin>(io: &mut IO) -> io::Result<(String, Vec<u8>)> {
    let head = String::from_utf8_lossy(&read_until(io, b"\r\n\r\n").await?).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    within(io.read_exact(&mut body)).await?;
    Ok((head, body))
}

/// Sends `request` on a new connection and reads one HTTP/1 answer.
pub async fn http(addr: SocketAddr, request: &str) -> io::Result<(String, Vec<u8>)> {
    let mut io = within(TcpStream::connect(addr)).await?;
    within(io.write_all(request.as_bytes())).await?;
    read_http(&mut io).await
}

/// Serves every connection by answering each request head with `answer`, until the listener is dropped.
pub async fn answering(answer: &'static str) -> SocketAddr {
    let (listener, addr) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            tokio::spawn(async move {
                while let Ok((head, _)) = read_http(&mut io).await {
                    if head.is_empty() || io.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    addr
}

/// A future of I/O, bounded.
pub async fn within<T>(io: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(PATIENCE, io).await {
        Ok(done) => done,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the test's patience is over")),
    }
}
