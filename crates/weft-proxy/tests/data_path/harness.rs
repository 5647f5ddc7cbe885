//! Proxies in this process, and an application that tells what it saw.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    cell::RefCell,
    convert::Infallible,
    ffi::OsString,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::net::{TcpListener, TcpStream};
use weft_model::{
    http::HttpMatch,
    identity::{Identity, PeerIdentity},
    inbound::{Authn, Authorization, HttpPolicy, Network, Protocol, ServerPolicy},
    meta::Meta,
    outbound::{
        Backend, BackendKind, Distribution, Endpoint, EwmaConfig, HttpRoute, HttpRoutes, HttpRule,
        OpaqueRoute, OpaqueRoutes, OutboundPolicy, OutboundProtocol, RouteBackend, Timeouts,
    },
};
use weft_net::socket::{self, Listener, Options};
use weft_proxy::{
    config::Config,
    discovery::{Destination, Discovery, fixed::Fixed},
    drain, identity,
    mesh::Mesh,
    metrics::Metrics,
    record::Recorder,
};
use weft_testkit::pki::{self, Pki};
use weft_wire::record::ConnectionRecord;

/// A client outside of loopback, which every policy would let pass.
pub(crate) const STRANGER: &str = "192.0.2.9:4321";

pub(crate) struct Proxy {
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) told: Fixed,
    pub(crate) inbound: SocketAddr,
    pub(crate) outbound: SocketAddr,
    pub(crate) drain: drain::Signal,
    pub(crate) id: Identity,
    pub(crate) lines: Lines,
    pub(crate) tap: Option<SocketAddr>,
}

/// A proxy whose inbound connections were all meant for `app`, and whose outbound ones for `dst`.
pub(crate) fn proxy(pki: &Pki, name: &str, app: SocketAddr, dst: SocketAddr, more: &[(&str, &str)]) -> Proxy {
    let id = pki::identity(name, "shop");
    let any = "127.0.0.1:0".parse().unwrap();
    let (inbound, outbound) = (socket::listen(any, None).unwrap(), socket::listen(any, None).unwrap());
    let addrs = (inbound.local_addr().unwrap(), outbound.local_addr().unwrap());
    let mut env: Vec<(String, String)> = [
        ("INBOUND_LISTEN_ADDR", addrs.0.to_string()),
        ("OUTBOUND_LISTEN_ADDR", addrs.1.to_string()),
        ("DESTINATION_SVC_ADDR", "127.0.0.1:1".into()),
        ("POLICY_SVC_ADDR", "127.0.0.1:1".into()),
        ("IDENTITY_SVC_ADDR", "127.0.0.1:1".into()),
        ("POLICY_WORKLOAD", format!(r#"{{"ns":"shop","pod":"{name}"}}"#)),
        ("IDENTITY_TRUST_ANCHORS", pki.anchors_pem()),
        ("IDENTITY_TOKEN_FILE", "/nonexistent".into()),
        ("IDENTITY_LOCAL_NAME", id.to_string()),
        ("POLICY_CLUSTER_NETWORKS", "127.0.0.0/8".into()),
        ("INBOUND_CONNECT_TIMEOUT", "1s".into()),
        ("WEFT_OUTBOUND_LOOPBACK", "true".into()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    env.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let lookup = |name: &str| {
        let name = name.strip_prefix("LINKERD2_PROXY_")?;
        env.iter().rev().find(|(n, _)| n == name).map(|(_, value)| OsString::from(value))
    };
    let config = Config::from_lookup(lookup).expect("the harness's own configuration");
    let metrics = Metrics::new(config.metrics_retain_idle);
    let (recorder, journal) = Recorder::new(metrics.clone(), format!("shop/{name}"), &id);
    tokio::task::spawn_local(async move {
        let mut journal = journal;
        while journal.recv().await.is_some() {}
    });
    let (discovery, told) = Discovery::fixed(config.inbound.default_policy.clone());
    let (signal, watch) = drain::channel();
    let lines = Lines::default();
    let (observers, unstarted) = weft_proxy::observe::prepare(&config, &metrics, lines.clone()).unwrap();
    let tap = unstarted.tap_addr();
    let mesh = Arc::new(Mesh {
        config,
        identity: identity::Handle::fixed(pki.credentials(&id)),
        discovery,
        metrics,
        recorder,
        observers: Arc::new(observers),
        drain: watch,
        gaps: weft_proxy::watchdog::Gaps::none(),
        limits: Default::default(),
    });
    unstarted.with_batch_wait(Duration::from_millis(50)).start(&mesh);
    let options = Options::default();
    let listen = Listener::new(inbound, options).unwrap().pretending(app);
    let listen = listen.pretending_client(STRANGER.parse().unwrap());
    tokio::task::spawn_local(weft_proxy::inbound::serve(mesh.clone(), listen));
    let listen = Listener::new(outbound, options).unwrap().pretending(dst);
    tokio::task::spawn_local(weft_proxy::outbound::serve(mesh.clone(), listen));
    Proxy { mesh, told, inbound: addrs.0, outbound: addrs.1, drain: signal, id, lines, tap }
}

/// What is written to the access log.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Waits for a number of lines: another thread writes them.
    pub(crate) async fn first(&self, count: usize) -> Vec<String> {
        let looking = async {
            loop {
                let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
                if text.lines().count() >= count {
                    return text.lines().map(str::to_owned).collect();
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(weft_testkit::raw::PATIENCE, looking).await.expect("lines in time")
    }
}

impl Proxy {
    /// The last recorded failure, of a connection or request. Waits for it: the record follows the answer.
    pub(crate) async fn failure(&self) -> ConnectionRecord {
        self.record(|record| record.fault.is_some()).await
    }

    pub(crate) async fn record(&self, wanted: impl Fn(&ConnectionRecord) -> bool + Copy) -> ConnectionRecord {
        let looking = async {
            loop {
                if let Some(record) = self.mesh.recorder.connections(1, wanted).connections.pop() {
                    return record;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(weft_testkit::raw::PATIENCE, looking).await.expect("a record of that kind")
    }

    /// The page that Prometheus reads.
    pub(crate) async fn metrics(&self) -> String {
        let (send, mut receive) = tokio::sync::mpsc::channel(1_000);
        let plain = weft_proxy::metrics::Encoding::Plain;
        weft_proxy::metrics::write(self.mesh.metrics.clone(), plain, send).await;
        let mut page = String::new();
        while let Some(piece) = receive.recv().await {
            page.push_str(std::str::from_utf8(&piece).unwrap());
        }
        page
    }

    /// How often a failure of this kind and code was counted in a family.
    pub(crate) async fn counted(&self, family: &str, kind: &str, code: &str) -> u64 {
        let page = self.metrics().await;
        let labels = [format!("error=\"{kind}\""), format!("code=\"{code}\"")];
        let counts =
            |line: &&str| line.starts_with(family) && labels.iter().all(|label| line.contains(label));
        page.lines().filter(counts).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    pub(crate) fn failures(&self) -> usize {
        self.mesh.recorder.connections(1000, |record| record.fault.is_some()).connections.len()
    }

    /// Tells the outbound side that `dst` is a service behind which `path` has endpoints.
    pub(crate) fn service(&self, dst: SocketAddr, path: &str) {
        self.told.destination(destination(dst, policy(balance(path)), false));
    }
}

pub(crate) fn meta(name: &str) -> Arc<Meta> {
    Arc::new(Meta::default_named(name))
}

pub(crate) fn server(protocol: Protocol, authn: Authn) -> Arc<ServerPolicy> {
    let networks =
        ["0.0.0.0/0", "::/0"].map(|net| Network { net: net.parse().unwrap(), except: Vec::new() }).to_vec();
    Arc::new(ServerPolicy {
        meta: meta("test"),
        protocol,
        authorizations: vec![Authorization { meta: meta("rule"), networks, authn }],
        audit: false,
    })
}

pub(crate) fn detect() -> Protocol {
    Protocol::Detect { timeout: Duration::from_secs(10), http: HttpPolicy::default() }
}

pub(crate) fn only(id: &Identity) -> Authn {
    Authn::Identities { exact: [id.clone()].into(), suffixes: Vec::new() }
}

pub(crate) fn balance(path: &str) -> BackendKind {
    BackendKind::Balance { path: path.into(), ewma: EwmaConfig::DEFAULT }
}

pub(crate) fn backend(kind: BackendKind) -> RouteBackend {
    RouteBackend { backend: Backend { meta: meta("backend"), kind }, filters: Vec::new() }
}

pub(crate) fn rule(kind: BackendKind) -> HttpRule {
    HttpRule {
        matches: Vec::<HttpMatch>::new(),
        filters: Vec::new(),
        backends: Distribution::FirstAvailable(vec![backend(kind)]),
        timeouts: Timeouts::default(),
        retry: None,
        allow_request_headers: false,
    }
}

pub(crate) fn routes(rule: HttpRule) -> HttpRoutes {
    let route = HttpRoute { meta: meta("route"), hosts: Vec::new(), rules: vec![rule] };
    HttpRoutes { routes: vec![route], accrual: None }
}

pub(crate) fn opaque(kind: BackendKind) -> OpaqueRoutes {
    OpaqueRoutes {
        routes: vec![OpaqueRoute {
            meta: meta("route"),
            hosts: Vec::new(),
            backends: Distribution::FirstAvailable(vec![backend(kind)]),
            refuses: None,
        }],
    }
}

pub(crate) fn policy(kind: BackendKind) -> OutboundProtocol {
    OutboundProtocol::Detect {
        timeout: Duration::from_secs(10),
        http1: routes(rule(kind.clone())),
        http2: routes(rule(kind.clone())),
        opaque: opaque(kind),
    }
}

pub(crate) fn destination(dst: SocketAddr, protocol: OutboundProtocol, strict: bool) -> Destination {
    Destination {
        addr: dst,
        generation: 1,
        learned: Instant::now(),
        profile: None,
        service: None,
        policy: Arc::new(OutboundPolicy { meta: meta("service"), protocol }),
        in_cluster: true,
        strict,
        awaits_identity: false,
    }
}

pub(crate) fn meshed(addr: SocketAddr, id: &Identity) -> Endpoint {
    Endpoint::bare(addr, PeerIdentity::Meshed { id: id.clone(), server_name: id.clone() })
}

/// What the application was asked, and how.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Which of its connections it came on.
    pub(crate) connection: usize,
}

/// An application for both versions of HTTP. `/status/N` answers N; `/chunks` three pieces and a trailer; `/gone` drops
/// the connection; `/hang` never answers; anything else what it was sent.
pub(crate) struct App {
    pub(crate) addr: SocketAddr,
    pub(crate) seen: Rc<RefCell<Vec<Seen>>>,
    pub(crate) hung: Rc<RefCell<Hung>>,
}

/// How many requests hang, and how many of these were cancelled.
#[derive(Debug, Default)]
pub(crate) struct Hung {
    pub(crate) begun: usize,
    pub(crate) cancelled: usize,
}

struct Hanging(Rc<RefCell<Hung>>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.borrow_mut().cancelled += 1;
    }
}

pub(crate) async fn app() -> App {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let app = App { addr: listener.local_addr().unwrap(), seen: Rc::default(), hung: Rc::default() };
    let (seen, hung) = (app.seen.clone(), app.hung.clone());
    tokio::task::spawn_local(async move {
        let mut connection = 0;
        while let Ok((tcp, _)) = listener.accept().await {
            connection += 1;
            tokio::task::spawn_local(serve(tcp, connection, seen.clone(), hung.clone()));
        }
    });
    app
}

async fn serve(tcp: TcpStream, connection: usize, seen: Rc<RefCell<Vec<Seen>>>, hung: Rc<RefCell<Hung>>) {
    // `hyper_util`'s automatic server wants a `Send` service; the two versions are told apart by the first byte.
    let mut first = [0; 3];
    if tcp.peek(&mut first).await.is_err() {
        return;
    }
    let answer = hyper::service::service_fn(move |request| {
        self::answer(request, connection, seen.clone(), hung.clone())
    });
    let io = TokioIo::new(tcp);
    let _ended = if &first == b"PRI" {
        let mut server = hyper::server::conn::http2::Builder::new(LocalExecutor);
        // More than any proxy lets through: what is refused is not refused here.
        server.max_header_list_size(1 << 20).serve_connection(io, answer).await
    } else {
        hyper::server::conn::http1::Builder::new().serve_connection(io, answer).await
    };
}

#[derive(Clone)]
pub(crate) struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor
where
    F::Output: 'static,
{
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}

type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;

async fn answer(
    request: Request<Incoming>,
    connection: usize,
    seen: Rc<RefCell<Vec<Seen>>>,
    hung: Rc<RefCell<Hung>>,
) -> Result<Response<AnswerBody>, std::io::Error> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    if path == "/hang" {
        hung.borrow_mut().begun += 1;
        let _hanging = Hanging(hung);
        std::future::pending::<()>().await;
    }
    let Ok(body) = body.collect().await else { return Err(std::io::Error::other("the request broke off")) };
    let body = body.to_bytes();
    let line = format!("{} {} {:?}", head.method, head.uri, head.version);
    seen.borrow_mut().push(Seen { line, headers: head.headers, body: body.clone(), connection });
    if path == "/gone" {
        return Err(std::io::Error::other("gone"));
    }
    let mut response = Response::new(Full::new(body).boxed_unsync());
    response.headers_mut().insert("x-app", HeaderValue::from_static("1"));
    if let Some(status) = path.strip_prefix("/status/") {
        *response.status_mut() = StatusCode::from_bytes(status.as_bytes()).unwrap();
    }
    if path == "/chunks" {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-t", HeaderValue::from_static("1"));
        let frames = ["one ", "two ", "three"]
            .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::from(piece))))
            .into_iter()
            .chain([Ok(Frame::trailers(trailers))]);
        response.headers_mut().insert("trailer", HeaderValue::from_static("x-t"));
        *response.body_mut() = StreamBody::new(tokio_stream::iter(frames)).boxed_unsync();
    }
    Ok(response)
}

impl App {
    pub(crate) fn last(&self) -> Seen {
        self.seen.borrow().last().expect("a request reached the application").clone()
    }
    pub(crate) fn count(&self) -> usize {
        self.seen.borrow().len()
    }
    /// Waits until a condition on the hanging requests holds.
    pub(crate) async fn until(&self, holds: impl Fn(&Hung) -> bool) {
        let waiting = async {
            while !holds(&self.hung.borrow()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(weft_testkit::raw::PATIENCE, waiting).await.expect("the application saw that");
    }
}

/// An HTTP/2 client on its own connection.
pub(crate) async fn h2(addr: SocketAddr) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let tcp = TcpStream::connect(addr).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub(crate) async fn collect(
    response: Response<Incoming>,
) -> (http::response::Parts, Bytes, Option<HeaderMap>) {
    let (head, body) = response.into_parts();
    let body = tokio::time::timeout(weft_testkit::raw::PATIENCE, body.collect()).await.unwrap().unwrap();
    let trailers = body.trailers().cloned();
    (head, body.to_bytes(), trailers)
}

pub(crate) fn get(uri: &str) -> Request<Full<Bytes>> {
    Request::get(uri).body(Full::default()).unwrap()
}
