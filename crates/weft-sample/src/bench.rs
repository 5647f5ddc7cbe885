//! The two ends of `bench/`: a server and a client that cost as little as possible, so that what lies between them
//! can be measured. HTTP/1.1 keep-alive with one request at a time on each connection, HTTP/2 with some streams on each,
//! or bytes of no meaning in one direction.

use crate::{Error, error::within, histogram::Histogram, serve::listen};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{client, server, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    io::Write as _,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

const MAX_CONNECTIONS: usize = 16_384;
const HEAD_BYTES: usize = 16 * 1024;
const IDLE: Duration = Duration::from_secs(120);

#[derive(clap::Args, Debug)]
pub struct ServerOptions {
    /// Where to listen
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Bytes in every body
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=16_777_216))]
    pub body: u32,
    /// Read and forget whatever comes, instead of answering
    #[arg(long)]
    pub sink: bool,
}

#[derive(clap::Args, Clone, Debug)]
pub struct ClientOptions {
    /// HOST:PORT to call
    #[arg(long)]
    pub to: String,
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16_384))]
    pub connections: u16,
    /// Speak HTTP/2, with so many requests at a time on each connection
    #[arg(long, conflicts_with = "bulk", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub streams: Option<u16>,
    /// Send bytes to a sink instead of requests; a "request" is then 64 KiB
    #[arg(long)]
    pub bulk: bool,
    /// Open the connections, send one request on each, say so, and keep them open for the duration
    #[arg(long, conflicts_with_all = ["bulk", "streams"])]
    pub hold: bool,
    /// How long to measure
    #[arg(long, default_value = "10s", value_parser = crate::text::duration)]
    pub duration: Duration,
    /// How long to send requests before that without measuring
    #[arg(long, default_value = "1s", value_parser = crate::text::duration)]
    pub warmup: Duration,
    /// How long one request may take
    #[arg(long, default_value = "10s", value_parser = crate::text::duration)]
    pub timeout: Duration,
}

/// Answers until the process is ended.
pub async fn serve(options: ServerOptions) -> Result<(), Error> {
    let listener = listen(options.listen).await?;
    if options.sink { swallow_all(listener).await } else { respond_to_all(listener, options.body).await }
}

async fn swallow_all(listener: TcpListener) -> Result<(), Error> {
    loop {
        let (mut socket, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut buffer = vec![0; 256 * 1024];
            while matches!(socket.read(&mut buffer).await, Ok(1..)) {}
        });
    }
}

async fn respond_to_all(listener: TcpListener, body: u32) -> Result<(), Error> {
    let mut response =
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {body}\r\n\r\n").into_bytes();
    response.resize(response.len() + body as usize, b'x');
    let response: Arc<[u8]> = response.into();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return Ok(()) };
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let response = response.clone();
        tokio::spawn(async move {
            // The client counts what fails.
            let _ = respond(socket, &response, body).await;
            drop(slot);
        });
    }
}

/// Requests have no body, so each ends with an empty line; anything else is not for this server.
async fn respond(mut socket: TcpStream, response: &[u8], body: u32) -> Result<(), Error> {
    socket.set_nodelay(true)?;
    let mut first = [0; 3];
    if within("waiting for a request", IDLE, async { Ok(socket.peek(&mut first).await?) }).await? == 3
        && first == *b"PRI"
    {
        return respond_h2(socket, body).await;
    }
    let mut buffer = vec![0; HEAD_BYTES];
    let mut filled = 0;
    loop {
        let read = async { Ok(socket.read(&mut buffer[filled..]).await?) };
        let count = within("waiting for a request", IDLE, read).await?;
        if count == 0 {
            return Ok(());
        }
        filled += count;
        while let Some(end) = find(&buffer[..filled], b"\r\n\r\n") {
            socket.write_all(response).await?;
            buffer.copy_within(end + 4..filled, 0);
            filled -= end + 4;
        }
        if filled == buffer.len() {
            return Err(Error::TooLong { limit: HEAD_BYTES });
        }
    }
}

async fn respond_h2(socket: TcpStream, body: u32) -> Result<(), Error> {
    let body = Bytes::from(vec![b'x'; body as usize]);
    let answer = service_fn(move |_request| {
        let body = Full::new(body.clone());
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    let mut serving = server::conn::http2::Builder::new(TokioExecutor::new());
    // The client counts what fails.
    let _ended = serving.timer(TokioTimer::new()).serve_connection(TokioIo::new(socket), answer).await;
    Ok(())
}

/// What one run found, printed as a line of JSON.
#[derive(serde::Serialize)]
struct Report {
    connections: u16,
    seconds: f64,
    requests: u64,
    /// Those of the warm-up included: what the CPU time of a whole run is divided by.
    requests_in_all: u64,
    errors: u64,
    /// What the first error was.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
    requests_per_second: f64,
    p50_us: u128,
    p90_us: u128,
    p99_us: u128,
    max_us: u128,
}

/// Sends requests as fast as the connections allow and prints a report.
pub async fn measure(options: ClientOptions) -> Result<(), Error> {
    if options.hold {
        return hold(&options).await;
    }
    let report = run(&options).await?;
    let line = serde_json::to_string(&report).map_err(std::io::Error::from)?;
    writeln!(std::io::stdout(), "{line}").map_err(Error::Io)
}

async fn run(options: &ClientOptions) -> Result<Report, Error> {
    let began = Instant::now() + options.warmup;
    let until = began + options.duration;
    let mut workers = JoinSet::new();
    for _ in 0..options.connections {
        match options.streams {
            _ if options.bulk => {
                workers.spawn(pour(options.to.clone(), began, until));
            }
            None => {
                workers.spawn(hammer(options.to.clone(), began, until, options.timeout));
            }
            Some(streams) => {
                let sender = multiplex(&options.to).await?;
                for _ in 0..streams {
                    workers.spawn(hammer_h2(
                        sender.clone(),
                        options.to.clone(),
                        began,
                        until,
                        options.timeout,
                    ));
                }
            }
        }
    }
    let mut all = Worker::default();
    while let Some(worker) = workers.join_next().await {
        let worker = worker.map_err(std::io::Error::other)?;
        all.latency.merge(&worker.latency);
        all.requests += worker.requests;
        all.errors += worker.errors;
        all.first_error = all.first_error.or(worker.first_error);
    }
    let latency = all.latency;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Report {
        connections: options.connections,
        seconds,
        requests: latency.total(),
        requests_in_all: all.requests,
        errors: all.errors,
        first_error: all.first_error,
        requests_per_second: latency.total() as f64 / seconds,
        p50_us: latency.quantile(0.50).as_micros(),
        p90_us: latency.quantile(0.90).as_micros(),
        p99_us: latency.quantile(0.99).as_micros(),
        max_us: latency.max().as_micros(),
    })
}

/// What one connection saw.
#[derive(Default)]
struct Worker {
    latency: Histogram,
    requests: u64,
    errors: u64,
    first_error: Option<String>,
}

impl Worker {
    /// Counts a request. After a failure it pauses: what is down is not to be hammered for it.
    async fn count<T>(&mut self, outcome: Result<T, Error>, sent: Instant, began: Instant) -> Option<T> {
        match outcome {
            Ok(done) => {
                self.requests += 1;
                // The warm-up is not measured.
                if sent >= began {
                    self.latency.add(sent.elapsed());
                }
                Some(done)
            }
            Err(error) => {
                self.errors += 1;
                self.first_error.get_or_insert_with(|| error.chain());
                tokio::time::sleep(Duration::from_millis(10)).await;
                None
            }
        }
    }
}

/// One connection until the end of the run; opened again after an error.
async fn hammer(to: String, began: Instant, until: Instant, timeout: Duration) -> Worker {
    let request = format!("GET / HTTP/1.1\r\nhost: {to}\r\nuser-agent: weft-bench\r\n\r\n");
    let mut seen = Worker::default();
    let mut open: Option<TcpStream> = None;
    let mut buffer = vec![0; 256 * 1024];
    while Instant::now() < until {
        let sent = Instant::now();
        let exchange = async {
            let mut socket = match open.take() {
                Some(socket) => socket,
                None => dial(&to).await?,
            };
            socket.write_all(request.as_bytes()).await?;
            let kept = receive(&mut socket, &mut buffer).await?;
            Ok(kept.then_some(socket))
        };
        open = seen.count(within("a request", timeout, exchange).await, sent, began).await.flatten();
    }
    seen
}

/// Opens every connection, uses it once, and keeps it.
async fn hold(options: &ClientOptions) -> Result<(), Error> {
    let request = format!("GET / HTTP/1.1\r\nhost: {}\r\nuser-agent: weft-bench\r\n\r\n", options.to);
    let mut held = Vec::with_capacity(options.connections.into());
    let mut buffer = vec![0; 64 * 1024];
    for _ in 0..options.connections {
        let mut socket = dial(&options.to).await?;
        let exchange = async {
            socket.write_all(request.as_bytes()).await?;
            receive(&mut socket, &mut buffer).await
        };
        within("a request", options.timeout, exchange).await?;
        held.push(socket);
    }
    writeln!(std::io::stdout(), "{{\"held\":{}}}", held.len()).map_err(Error::Io)?;
    tokio::time::sleep(options.duration).await;
    Ok(())
}

/// Bytes in one direction, as fast as they are taken.
async fn pour(to: String, began: Instant, until: Instant) -> Worker {
    let mut seen = Worker::default();
    let block = vec![b'x'; 64 * 1024];
    let mut socket = match dial(&to).await {
        Ok(socket) => socket,
        Err(error) => {
            return Worker { errors: 1, first_error: Some(error.chain()), ..Worker::default() };
        }
    };
    while Instant::now() < until {
        let sent = Instant::now();
        if let Err(error) = socket.write_all(&block).await {
            seen.errors += 1;
            seen.first_error = Some(error.to_string());
            break;
        }
        seen.requests += 1;
        if sent >= began {
            seen.latency.add(sent.elapsed());
        }
    }
    seen
}

type Sender = client::conn::http2::SendRequest<Empty<Bytes>>;

async fn multiplex(to: &str) -> Result<Sender, Error> {
    let io = TokioIo::new(dial(to).await?);
    let handshake = client::conn::http2::handshake(TokioExecutor::new(), io).await;
    let (sender, connection) = handshake.map_err(std::io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

/// One stream after another, until the end of the run.
async fn hammer_h2(
    mut sender: Sender,
    to: String,
    began: Instant,
    until: Instant,
    timeout: Duration,
) -> Worker {
    let mut seen = Worker::default();
    while Instant::now() < until {
        let sent = Instant::now();
        let exchange = async {
            let request = Request::get(format!("http://{to}/")).body(Empty::new());
            let response = sender.send_request(request.map_err(std::io::Error::other)?).await;
            let response = response.map_err(std::io::Error::other)?;
            if response.status() != 200 {
                let answer = response.status().to_string();
                return Err(Error::Protocol { from: "the server".to_string(), answer });
            }
            response.into_body().collect().await.map_err(std::io::Error::other)?;
            Ok(())
        };
        seen.count(within("a request", timeout, exchange).await, sent, began).await;
    }
    seen
}

async fn dial(to: &str) -> Result<TcpStream, Error> {
    let socket =
        TcpStream::connect(to).await.map_err(|source| Error::Connect { to: to.to_string(), source })?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Reads one response to its end; says whether the connection may carry another.
async fn receive(socket: &mut TcpStream, buffer: &mut [u8]) -> Result<bool, Error> {
    let mut filled = 0;
    let (head, length, keep) = loop {
        let count = socket.read(&mut buffer[filled..]).await?;
        if count == 0 {
            return Err(Error::Closed);
        }
        filled += count;
        if let Some(found) = parse(&buffer[..filled])? {
            break found;
        }
        if filled == buffer.len() {
            return Err(Error::TooLong { limit: filled });
        }
    };
    let mut left = (head + length).saturating_sub(filled);
    while left > 0 {
        let most = left.min(buffer.len());
        match socket.read(&mut buffer[..most]).await? {
            0 => return Err(Error::Closed),
            count => left -= count,
        }
    }
    Ok(keep)
}

/// The length of the head, that of the body, and whether the connection stays; `None` while the head is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(usize, usize, bool)>, Error> {
    let protocol = |answer: String| Error::Protocol { from: "the server".to_string(), answer };
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(bytes) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(protocol(error.to_string())),
    };
    let value = |name: &str| {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.and_then(|header| std::str::from_utf8(header.value).ok())
    };
    if response.code != Some(200) {
        let why = value("l5d-proxy-error").unwrap_or_default();
        return Err(protocol(format!("status {} {why}", response.code.unwrap_or_default())));
    }
    let length = value("content-length").and_then(|length| length.trim().parse().ok());
    let length = length.ok_or_else(|| protocol("no content-length".to_string()))?;
    let keep = !value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Ok(Some((head, length, keep)))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_responses() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nxx";
        assert_eq!(parse(whole).unwrap(), Some((38, 2, true)));
        assert_eq!(parse(&whole[..20]).unwrap(), None);
        let last = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        assert_eq!(parse(last).unwrap().map(|found| found.2), Some(false));
        let error = parse(b"HTTP/1.1 503 x\r\nl5d-proxy-error: UPS-004\r\n\r\n").unwrap_err().to_string();
        assert!(error.contains("503 UPS-004"), "{error}");
        assert!(parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    }

    #[tokio::test]
    async fn the_client_measures_the_server() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = tokio::spawn(respond_to_all(listener, 300_000));
        let options = ClientOptions {
            to: addr.to_string(),
            connections: 2,
            streams: None,
            bulk: false,
            hold: false,
            duration: Duration::from_millis(200),
            warmup: Duration::ZERO,
            timeout: Duration::from_secs(5),
        };
        for streams in [None, Some(3)] {
            let report = run(&ClientOptions { streams, ..options.clone() }).await.unwrap();
            assert_eq!((report.errors, report.first_error), (0, None));
            assert!(report.requests > 0);
            assert!(report.p50_us <= report.p99_us && report.p99_us <= report.max_us);
        }
        server.abort();
    }
}
