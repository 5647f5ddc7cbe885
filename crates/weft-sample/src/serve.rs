//! An HTTP server loop that is bounded, has deadlines and ends gracefully.

use crate::{Error, lifecycle::Lifecycle, text::say};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use std::{
    convert::Infallible, error::Error as StdError, future::Future, net::SocketAddr, sync::Arc, time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

/// Open connections at a time; others wait in the listen queue.
const MAX_CONNECTIONS: usize = 1024;
/// Also how long a kept-alive connection may be idle.
const HEAD_LIMIT: Duration = Duration::from_secs(75);
const BODY_LIMIT: Duration = Duration::from_secs(5);
const BODY_BYTES: usize = 64 * 1024;

/// The one HTTP version that a port speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Version {
    Http1,
    Http2,
}

pub(crate) async fn listen(addr: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(addr).await.map_err(|source| Error::Listen { addr, source })
}

/// Serves until the life ends, then lets requests in flight finish.
pub(crate) async fn serve<F, Answer, Body>(
    role: &'static str,
    listener: TcpListener,
    version: Version,
    life: Lifecycle,
    handler: F,
) -> Result<(), Error>
where
    F: Fn(Request<Incoming>) -> Answer + Clone + Send + 'static,
    Answer: Future<Output = Response<Body>> + Send + 'static,
    Body: http_body::Body + Send + 'static,
    Body::Data: Send,
    Body::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    if let Ok(addr) = listener.local_addr() {
        say(role, format_args!("listening on {addr}"));
    }
    loop {
        let (socket, slot) = tokio::select! {
            biased;
            () = life.closing() => break,
            next = next_connection(&listener, &slots) => match next {
                Ok(next) => next,
                Err(error) => {
                    // Out of descriptors, or a caller that is gone already: neither ends the server.
                    say(role, format_args!("cannot accept a connection: {error}"));
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let _ = socket.set_nodelay(true);
        let io = TokioIo::new(socket);
        let handler = handler.clone();
        let service = service_fn(move |request| {
            let answer = handler(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        match version {
            Version::Http1 => {
                let connection = conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_LIMIT)
                    .max_headers(100)
                    .serve_connection(io, service);
                let connection = graceful.watch(connection);
                tokio::spawn(async move {
                    // How a connection ends is its peer's affair; requests report their own failures.
                    let _ = connection.await;
                    drop(slot);
                });
            }
            Version::Http2 => {
                let connection = conn::http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .keep_alive_interval(Duration::from_secs(20))
                    .keep_alive_timeout(Duration::from_secs(10))
                    .max_concurrent_streams(256)
                    .max_header_list_size(16 * 1024)
                    .serve_connection(io, service);
                let connection = graceful.watch(connection);
                tokio::spawn(async move {
                    let _ = connection.await;
                    drop(slot);
                });
            }
        }
    }
    drop(listener);
    let open = graceful.count();
    match tokio::time::timeout(life.grace(), graceful.shutdown()).await {
        Ok(()) => say(role, format_args!("ended; {open} connections finished")),
        Err(_) => say(role, format_args!("ended; some connections did not finish within {:?}", life.grace())),
    }
    Ok(())
}

async fn next_connection(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (socket, _) = listener.accept().await?;
    Ok((socket, slot))
}

/// Serves `/healthz` on a port of its own, for roles whose main port does not speak HTTP/1.1.
pub(crate) async fn serve_health(
    role: &'static str,
    listener: TcpListener,
    life: Lifecycle,
) -> Result<(), Error> {
    let ready = life.clone();
    serve(role, listener, Version::Http1, life, move |request: Request<Incoming>| {
        let ready = ready.clone();
        async move {
            match request.uri().path() {
                "/healthz" => health(&ready),
                _ => plain(StatusCode::NOT_FOUND, "no such page\n"),
            }
        }
    })
    .await
}

/// The answer to a readiness probe.
pub(crate) fn health(life: &Lifecycle) -> Response<Full<Bytes>> {
    if life.ready() {
        plain(StatusCode::OK, "ready\n")
    } else {
        plain(StatusCode::SERVICE_UNAVAILABLE, "ending\n")
    }
}

/// The whole body of a request, bounded in size and time.
pub(crate) async fn body(request: Request<Incoming>) -> Result<Bytes, Response<Full<Bytes>>> {
    let collected = Limited::new(request.into_body(), BODY_BYTES).collect();
    match tokio::time::timeout(BODY_LIMIT, collected).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(_)) => Err(plain(StatusCode::PAYLOAD_TOO_LARGE, "the body is broken or too large\n")),
        Err(_) => Err(plain(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time\n")),
    }
}

pub(crate) fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", text)
}

pub(crate) fn html(status: StatusCode, page: impl Into<Bytes>) -> Response<Full<Bytes>> {
    typed(status, "text/html; charset=utf-8", page)
}

pub(crate) fn json(status: StatusCode, value: &serde_json::Value) -> Response<Full<Bytes>> {
    typed(status, "application/json", format!("{value}\n"))
}

fn typed(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_request_in_flight_outlives_the_end() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (life, end) = Lifecycle::for_test();
        let (arrived, has_arrived) = tokio::sync::mpsc::channel(1);
        let (release, released) = tokio::sync::watch::channel(false);
        let server = tokio::spawn(serve("test", listener, Version::Http1, life, move |_| {
            let (arrived, mut released) = (arrived.clone(), released.clone());
            async move {
                arrived.send(()).await.unwrap();
                released.wait_for(|go| *go).await.unwrap();
                plain(StatusCode::OK, "late\n")
            }
        }));
        let mut client = TcpStream::connect(addr).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut has_arrived = has_arrived;
        has_arrived.recv().await.unwrap();
        end();
        // The port closes although the request is still there.
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
        release.send_replace(true);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("late\n"), "{answer}");
        server.await.unwrap().unwrap();
    }
}
