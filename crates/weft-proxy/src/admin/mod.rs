//! The admin server: probes, metrics, the flight recorder, and a few switches for whoever is inside the pod.
//!
//! It runs on the agent's thread, so that neither a scrape nor a slow reader costs the data path anything. A meshed
//! scraper is served over mTLS, others in plaintext.

mod cache;
mod level;
mod permit;
mod scrape;
mod tell;
#[cfg(test)]
mod tests;

use crate::{control::Service, inbound::refuse::Asker, log::Log, mesh::Mesh};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
};
use weft_model::identity::{ClientTls, NoTls};
use weft_wire::{
    cached::CACHE_PATH,
    record::{CONNECTIONS_PATH, ConnectionRecord},
};

const CONNECTIONS: usize = 128;
/// From the first byte to the last byte of the answer's head; a scrape's body may take longer.
const ANSWER: Duration = Duration::from_secs(10);
/// A connection is closed after this, whatever happens on it.
const CONNECTION: Duration = Duration::from_secs(300);
const DETECT: Duration = Duration::from_secs(1);
const HANDSHAKE: Duration = Duration::from_secs(5);
const BODY_BYTES: usize = 4 * 1024;
const RECORDS: usize = 200;
const RECORDS_MOST: usize = 5_000;

/// What the admin server answers from.
pub struct Admin {
    pub mesh: Arc<Mesh>,
    pub log: Arc<Log>,
    /// The accept loops run.
    pub serving: AtomicBool,
    /// Asks the runtime to shut down.
    pub shutdown: mpsc::Sender<()>,
    /// The services of the control plane, once they are connected to.
    pub control: OnceLock<Vec<Service>>,
    scrapes: scrape::Scrapes,
    level: Arc<level::Level>,
}

impl Admin {
    pub fn new(mesh: Arc<Mesh>, log: Arc<Log>, shutdown: mpsc::Sender<()>) -> Arc<Self> {
        Arc::new(Admin {
            mesh,
            log,
            serving: AtomicBool::new(false),
            shutdown,
            control: OnceLock::new(),
            scrapes: scrape::Scrapes::default(),
            level: Arc::default(),
        })
    }
}

type Body = BoxBody<Bytes, Infallible>;

/// Accepts until the process ends.
pub async fn serve(admin: Arc<Admin>, listener: TcpListener) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((io, client)) => {
                let admin = admin.clone();
                tokio::spawn(async move {
                    // Neither a slow scraper nor a forgotten connection stays for ever.
                    drop(tokio::time::timeout(CONNECTION, connection(admin, io, client)).await);
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the admin server cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(admin: Arc<Admin>, io: TcpStream, client: SocketAddr) {
    let client = weft_net::socket::canonical(client);
    let Ok(own) = io.local_addr().map(weft_net::socket::canonical) else { return };
    // A TLS record starts with the type of a handshake; no HTTP method does.
    let mut first = [0; 1];
    let is_tls =
        matches!(tokio::time::timeout(DETECT, io.peek(&mut first)).await, Ok(Ok(1)) if first[0] == 0x16);
    // The port by which policies know it.
    let app = SocketAddr::new(own.ip(), admin.mesh.config.admin.port());
    if !is_tls {
        let why = if client.ip().is_loopback() { NoTls::Loopback } else { NoTls::NoTlsFromRemote };
        return http(admin, io, Peer { client, app, tls: ClientTls::None(why) }).await;
    }
    let Some(credentials) = admin.mesh.identity.current() else { return };
    let handshake = weft_tls::handshake::accept(&credentials, false, weft_tls::handshake::Offer::Nothing, io);
    match tokio::time::timeout(HANDSHAKE, handshake).await {
        Ok(Ok(accepted)) => {
            let tls = ClientTls::Terminated(accepted.client);
            http(admin, accepted.stream, Peer { client, app, tls }).await;
        }
        Ok(Err(fault)) => tracing::debug!(%client, "admin: {fault:?}"),
        Err(_) => tracing::debug!(%client, "admin: the TLS handshake did not finish"),
    }
}

/// Whoever is at the other end of a connection.
struct Peer {
    client: SocketAddr,
    app: SocketAddr,
    tls: ClientTls,
}

async fn http<IO>(admin: Arc<Admin>, io: IO, from: Peer)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (client, from) = (from.client, Arc::new(from));
    let service = hyper::service::service_fn(move |request| {
        let (admin, from) = (admin.clone(), from.clone());
        async move {
            let answer = tokio::time::timeout(ANSWER, answer(&admin, request, &from)).await;
            let late = |_| text(StatusCode::GATEWAY_TIMEOUT, "the request took too long\n");
            Ok::<_, Infallible>(answer.unwrap_or_else(late))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(ANSWER).max_buf_size(32 * 1024);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(32).max_header_list_size(16 * 1024);
    if let Err(error) = builder.serve_connection(TokioIo::new(io), service).await {
        tracing::debug!(%client, %error, "admin connection");
    }
}

async fn answer(admin: &Admin, request: Request<Incoming>, from: &Peer) -> Response<Body> {
    let Peer { client, app, tls } = from;
    if let Some(refused) = permit::refusal(admin, Asker { app: *app, client: *client, tls }, &request) {
        return refused;
    }
    let path = request.uri().path().to_string();
    match (request.method(), path.as_str()) {
        (&Method::GET, "/live") => text(StatusCode::OK, "live\n"),
        (&Method::GET, "/ready") => tell::ready(admin, request.uri().query() == Some("verbose")),
        (&Method::GET, "/metrics") => admin.scrapes.page(&admin.mesh, &admin.log, request.headers()),
        (&Method::GET, CONNECTIONS_PATH) => connections(admin, request.uri().query().unwrap_or("")),
        (&Method::GET, CACHE_PATH) => cache::list(admin, request.uri().query().unwrap_or("")).await,
        (_, CACHE_PATH | "/proxy-log-level" | "/shutdown" | "/env.json" | "/logs.json")
            if !client.ip().is_loopback() =>
        {
            text(StatusCode::FORBIDDEN, "only from within the pod\n")
        }
        (&Method::GET, "/env.json") => {
            let readable = std::env::vars_os().filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
            });
            tell::environment(readable)
        }
        (&Method::GET, "/logs.json") => tell::logs(admin, request.uri().query().unwrap_or("")),
        (&Method::GET, "/proxy-log-level") => level::show(admin),
        (&Method::POST, CACHE_PATH) => cache::refresh(admin, request.uri().query().unwrap_or("")).await,
        (&Method::PUT, "/proxy-log-level") => {
            let query = request.uri().query().map(str::to_owned);
            level::set(admin, query.as_deref(), request.into_body()).await
        }
        (_, "/shutdown") if !admin.mesh.config.shutdown_endpoint => {
            text(StatusCode::NOT_FOUND, "the shutdown endpoint is not enabled\n")
        }
        (&Method::POST, "/shutdown") => {
            // Full: it has been asked already.
            let _asked = admin.shutdown.try_send(());
            text(StatusCode::OK, "shutting down\n")
        }
        (_, "/live" | "/ready" | "/metrics" | CONNECTIONS_PATH) => text(StatusCode::METHOD_NOT_ALLOWED, ""),
        (_, CACHE_PATH | "/proxy-log-level" | "/shutdown" | "/env.json" | "/logs.json") => {
            text(StatusCode::METHOD_NOT_ALLOWED, "")
        }
        _ => text(StatusCode::NOT_FOUND, ""),
    }
}

fn text(status: StatusCode, body: impl Into<String>) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", Full::new(Bytes::from(body.into())).boxed())
}

fn respond(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

/// `?direction=&src=&dst=&failed=&limit=`: addresses, names and identities are matched by what they contain.
fn connections(admin: &Admin, query: &str) -> Response<Body> {
    let parameters: Vec<(&str, &str)> =
        query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
    let value = |name: &str| {
        parameters.iter().find(|(n, _)| *n == name).map(|(_, v)| *v).filter(|value| !value.is_empty())
    };
    let (src, dst, direction) = (value("src"), value("dst"), value("direction"));
    let failed = parameters.iter().any(|(n, v)| *n == "failed" && !matches!(*v, "false" | "0"));
    let limit = value("limit").and_then(|n| n.parse().ok()).unwrap_or(RECORDS).min(RECORDS_MOST);
    let holds = |text: &Option<String>, part: &str| text.as_ref().is_some_and(|text| text.contains(part));
    let wanted = |record: &ConnectionRecord| {
        (!failed || record.fault.is_some())
            && direction.is_none_or(|direction| record.direction.as_str() == direction)
            && src.is_none_or(|src| {
                record.client.to_string().contains(src) || holds(&record.client_identity, src)
            })
            && dst.is_none_or(|dst| {
                record.server.is_some_and(|addr| addr.to_string().contains(dst))
                    || record.endpoint.is_some_and(|addr| addr.to_string().contains(dst))
                    || holds(&record.service, dst)
                    || holds(&record.server_identity, dst)
            })
    };
    match serde_json::to_vec(&admin.mesh.recorder.connections(limit, wanted)) {
        Ok(json) => respond(StatusCode::OK, "application/json", Full::new(json.into()).boxed()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// Binds the admin port in the agent's runtime.
pub fn listen(addr: SocketAddr, backlog: Option<u32>) -> io::Result<TcpListener> {
    TcpListener::from_std(weft_net::socket::listen(addr, backlog)?)
}
