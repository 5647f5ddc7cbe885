//! Requests that are sent again: what is kept of them, when, how often, and who pays.

use crate::harness::{App, Proxy, app, balance, collect, destination, get, h2, routes, rule};
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use std::{cell::RefCell, convert::Infallible, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use weft_model::{
    identity::PeerIdentity,
    outbound::{
        BackendKind, Backoff, Distribution, Endpoint, Endpoints, EwmaConfig, FailureAccrual, HttpRoutes,
        HttpRule, OutboundProtocol, Penalty, RetryPolicy, SuccessRate, Timeouts,
    },
};
use weft_testkit::{pki::Pki, raw};

pub(crate) const PATH: &str = "store.shop.svc.cluster.local:80";

pub(crate) fn dst() -> SocketAddr {
    "192.0.2.80:80".parse().unwrap()
}

pub(crate) fn plain(addr: SocketAddr) -> Arc<Endpoint> {
    Arc::new(Endpoint::bare(addr, PeerIdentity::Unmeshed))
}

pub(crate) fn known(endpoints: &[Arc<Endpoint>]) -> Endpoints {
    Endpoints::Known(Arc::new(endpoints.to_vec()))
}

pub(crate) fn error_of(head: &str) -> &str {
    head.lines().find_map(|line| line.strip_prefix("l5d-proxy-error: ")).unwrap_or("")
}

/// The value of the one series of a family whose labels hold `with`.
pub(crate) async fn counted(proxy: &Proxy, family: &str, with: &str) -> u64 {
    let page = proxy.metrics().await;
    let of = page.lines().filter(|line| line.starts_with(family) && line[family.len()..].starts_with('{'));
    of.filter(|line| line.contains(with))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

fn policy() -> RetryPolicy {
    RetryPolicy {
        max_retries: 2,
        max_request_bytes: 16,
        statuses: vec![(500, 599)],
        grpc_codes: vec![14],
        per_try_timeout: None,
        backoff: Backoff { min: Duration::from_millis(1), max: Duration::from_millis(1), jitter: 0.0 },
        respects_retry_after: false,
    }
}

/// A proxy whose one service has this rule and endpoint.
fn client(pki: &Pki, rule: HttpRule, endpoint: SocketAddr) -> Proxy {
    with_routes(pki, routes(rule), endpoint)
}

pub(crate) fn with_routes(pki: &Pki, routes: HttpRoutes, endpoint: SocketAddr) -> Proxy {
    let proxy = crate::harness::proxy(pki, "web", dst(), dst(), &[]);
    let protocol = OutboundProtocol::Detect {
        timeout: Duration::from_secs(10),
        http1: routes.clone(),
        http2: routes,
        opaque: crate::harness::opaque(balance(PATH)),
    };
    proxy.told.destination(destination(dst(), protocol, false));
    proxy.told.endpoints(PATH, known(&[plain(endpoint)]));
    proxy
}

pub(crate) fn retried() -> HttpRule {
    HttpRule { retry: Some(policy()), ..rule(balance(PATH)) }
}

/// The head and body of a request.
type Got = (String, Vec<u8>);

/// A server that gives these answers, one after the other and the last one for ever, and keeps what it was sent.
#[derive(Clone)]
pub(crate) struct Scripted {
    pub(crate) addr: SocketAddr,
    pub(crate) got: Rc<RefCell<Vec<Got>>>,
}

pub(crate) async fn scripted(answers: &[&'static str]) -> Scripted {
    let (listener, addr) = raw::listener().await;
    let scripted = Scripted { addr, got: Rc::default() };
    let (got, answers) = (scripted.got.clone(), answers.to_vec());
    tokio::task::spawn_local(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            let (got, answers) = (got.clone(), answers.clone());
            tokio::task::spawn_local(async move {
                while let Ok(request) = raw::read_http(&mut io).await {
                    if request.0.is_empty() {
                        break;
                    }
                    let at = got.borrow().len().min(answers.len() - 1);
                    got.borrow_mut().push(request);
                    if answers[at].is_empty() || io.write_all(answers[at].as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    scripted
}

const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
const FINE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: s\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test(flavor = "local")]
async fn a_short_body_is_sent_again_whole() {
    let (pki, server) = (Pki::new(), scripted(&[BUSY, BUSY, FINE]).await);
    let proxy = client(&pki, retried(), server.addr);
    let (head, body) = raw::http(proxy.outbound, &post("/a", "hello")).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && body == b"ok", "{head}");
    let got = server.got.borrow().clone();
    assert_eq!(got.len(), 3);
    assert!(got.iter().all(|(head, body)| head.starts_with("POST /a ") && body == b"hello"), "{got:?}");
    assert_eq!(counted(&proxy, "outbound_http_route_retry_requests_total", "").await, 2);
    assert_eq!(counted(&proxy, "outbound_http_route_retry_successes_total", "").await, 1);
    assert_eq!(counted(&proxy, "outbound_http_route_retry_limit_exceeded_total", "").await, 0);
}

#[tokio::test(flavor = "local")]
async fn tries_are_used_up_and_the_last_answer_is_passed_on() {
    let (pki, server) = (Pki::new(), scripted(&[BUSY]).await);
    let proxy = client(&pki, retried(), server.addr);
    let (head, _) = raw::http(proxy.outbound, &post("/a", "hello")).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 503") && error_of(&head).is_empty(), "{head}");
    assert_eq!(server.got.borrow().len(), 3);
    assert_eq!(counted(&proxy, "outbound_http_route_retry_limit_exceeded_total", "").await, 1);
    // What the route does not list is passed on at once.
    let (pki, server) =
        (Pki::new(), scripted(&["HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"]).await);
    let proxy = client(&pki, retried(), server.addr);
    assert!(raw::http(proxy.outbound, &post("/a", "x")).await.unwrap().0.starts_with("HTTP/1.1 404"));
    assert_eq!(server.got.borrow().len(), 1);
}

#[tokio::test(flavor = "local")]
async fn a_body_that_is_too_long_passes_and_is_not_sent_again() {
    let (pki, server) = (Pki::new(), scripted(&[BUSY]).await);
    let proxy = client(&pki, retried(), server.addr);
    // Declared too long.
    let (head, _) = raw::http(proxy.outbound, &post("/a", &"x".repeat(17))).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert_eq!(server.got.borrow().len(), 1);
    // Not declared, and found too long on the way.
    let app = app().await;
    let proxy = client(&pki, retried(), app.addr);
    let chunked = "POST /status/500 HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n";
    let long = format!("{chunked}a\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n");
    let (head, _) = raw::http(proxy.outbound, &long).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 500"), "{head}");
    assert_eq!((app.count(), app.last().body.len()), (1, 20));
    // Chunks that fit are kept.
    let (head, _) = raw::http(proxy.outbound, &format!("{chunked}3\r\nabc\r\n0\r\n\r\n")).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 500"), "{head}");
    assert_eq!((app.count(), app.last().body.as_ref()), (4, &b"abc"[..]));
}

#[tokio::test(flavor = "local")]
async fn an_answer_before_the_request_is_whole_is_final() {
    let pki = Pki::new();
    let (listener, addr) = raw::listener().await;
    let proxy = client(&pki, retried(), addr);
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(b"POST /a HTTP/1.1\r\nHost: s\r\nContent-Length: 5\r\n\r\nhel").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let mut got = [0; 1024];
    while !String::from_utf8_lossy(&got).contains("hel") {
        assert_ne!(server.read(&mut got).await.unwrap(), 0);
    }
    server.write_all(BUSY.as_bytes()).await.unwrap();
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert_eq!(counted(&proxy, "outbound_http_route_retry_requests_total", "").await, 0);
}

#[tokio::test(flavor = "local")]
async fn a_lost_exchange_counts_as_the_answer_that_it_would_become() {
    // The server takes the request and closes.
    let (pki, server) = (Pki::new(), scripted(&["", "", FINE]).await);
    let proxy = client(&pki, retried(), server.addr);
    let (head, _) = raw::http(proxy.outbound, &post("/a", "hi")).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(server.got.borrow().len(), 3);
    // A route that does not list 502 gets it.
    let (pki, server) = (Pki::new(), scripted(&[""]).await);
    let only = RetryPolicy { statuses: vec![(503, 503)], ..policy() };
    let proxy = client(&pki, HttpRule { retry: Some(only), ..rule(balance(PATH)) }, server.addr);
    let (head, _) = raw::http(proxy.outbound, &post("/a", "hi")).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 502") && error_of(&head).starts_with("UPS-006"), "{head}");
    assert_eq!(server.got.borrow().len(), 1);
}

#[tokio::test(flavor = "local")]
async fn a_try_has_its_own_time_but_the_last_one_has_the_routes() {
    let (pki, app) = (Pki::new(), app().await);
    let hasty = RetryPolicy { per_try_timeout: Some(Duration::from_millis(50)), ..policy() };
    let timeouts = Timeouts { request: Some(Duration::from_millis(600)), ..Timeouts::default() };
    let rule = HttpRule { retry: Some(hasty), timeouts, ..rule(balance(PATH)) };
    let proxy = client(&pki, rule, app.addr);
    let (head, _) = raw::http(proxy.outbound, "GET /hang HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    assert!(head.starts_with("HTTP/1.1 504") && error_of(&head).contains("timeout=request"), "{head}");
    assert!(!head.contains("connection: close"), "one slow request does not end the connection");
    assert_eq!(app.hung.borrow().begun, 3, "two tries were given up for the next, the third was not");
    app.until(|hung| hung.cancelled == 3).await;
}

#[tokio::test(flavor = "local")]
async fn the_response_timeout_begins_with_the_requests_last_byte_and_names_itself() {
    let (pki, app) = (Pki::new(), app().await);
    let timeouts = Timeouts { response: Some(Duration::from_millis(100)), ..Timeouts::default() };
    let proxy = client(&pki, HttpRule { timeouts, ..rule(balance(PATH)) }, app.addr);
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(b"POST /hang HTTP/1.1\r\nHost: s\r\nContent-Length: 2\r\n\r\nh").await.unwrap();
    app.until(|hung| hung.begun == 1).await;
    // However long the request itself takes: the server has not been asked yet.
    let mut first = [0; 1];
    let early = tokio::time::timeout(Duration::from_millis(300), io.read(&mut first)).await;
    assert!(early.is_err(), "no answer while the request is not whole");
    io.write_all(b"i").await.unwrap();
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 504") && error_of(&head).starts_with("UPS-016"), "{head}");
    assert_eq!(
        counted(&proxy, "outbound_http_route_request_statuses_total", "RESPONSE_HEADERS_TIMEOUT").await,
        1
    );
    // gRPC says it in its own way.
    let mut client = h2(proxy.outbound).await;
    let call =
        Request::post("http://s/hang").header("content-type", "application/grpc").body(Full::default());
    let (head, _, _) = collect(client.send_request(call.unwrap()).await.unwrap()).await;
    assert_eq!((head.status.as_u16(), head.headers["grpc-status"].as_bytes()), (200, &b"4"[..]));
}

#[tokio::test(flavor = "local")]
async fn a_request_may_ask_for_retries_and_timeouts_where_its_route_lets_it() {
    let (pki, server) = (Pki::new(), scripted(&[BUSY]).await);
    let allowing = HttpRule { allow_request_headers: true, ..rule(balance(PATH)) };
    let ask = async |proxy: &Proxy, headers: &str| {
        raw::http(proxy.outbound, &format!("GET /a HTTP/1.1\r\nHost: s\r\n{headers}\r\n")).await.unwrap().0
    };
    let asks = "l5d-retry-http: 5xx\r\nl5d-retry-limit: 3\r\n";
    let proxy = client(&pki, allowing.clone(), server.addr);
    assert!(ask(&proxy, asks).await.starts_with("HTTP/1.1 503"));
    assert_eq!(server.got.borrow().len(), 4);
    assert!(server.got.borrow().iter().all(|(head, _)| !head.contains("l5d-")), "they end here");
    // One by default.
    assert!(ask(&proxy, "l5d-retry-http: gateway-error\r\n").await.starts_with("HTTP/1.1 503"));
    assert_eq!(server.got.borrow().len(), 6);
    // Where it is not allowed they are taken off and not heeded.
    let strict = client(&pki, rule(balance(PATH)), server.addr);
    ask(&strict, asks).await;
    assert_eq!(server.got.borrow().len(), 7);
    assert!(!server.got.borrow()[6].0.contains("l5d-"));
    let app = app().await;
    let proxy = client(&pki, allowing, app.addr);
    for (header, code) in
        [("l5d-timeout", "UPS-009"), ("l5d-request-timeout", "UPS-009"), ("l5d-response-timeout", "UPS-016")]
    {
        let request = format!("GET /hang HTTP/1.1\r\nHost: s\r\n{header}: 100ms\r\n\r\n");
        let (head, _) = raw::http(proxy.outbound, &request).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 504") && error_of(&head).starts_with(code), "{header}: {head}");
    }
}

/// A gRPC server: each call is answered with these pieces and this status in trailers; the last answer is for ever.
async fn grpc(answers: Vec<(&'static [&'static str], &'static str)>) -> (SocketAddr, Rc<RefCell<usize>>) {
    let (listener, addr) = raw::listener().await;
    let calls: Rc<RefCell<usize>> = Rc::default();
    let counted = calls.clone();
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (calls, answers) = (calls.clone(), answers.clone());
            let answer = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                let (calls, answers) = (calls.clone(), answers.clone());
                async move {
                    drop(request.into_body().collect().await);
                    let (pieces, status) = answers[(*calls.borrow()).min(answers.len() - 1)];
                    *calls.borrow_mut() += 1;
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", status.parse().unwrap());
                    let frames =
                        pieces.iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))));
                    let frames: Vec<Result<Frame<Bytes>, Infallible>> =
                        frames.chain([Ok(Frame::trailers(trailers))]).collect();
                    let body = StreamBody::new(tokio_stream::iter(frames));
                    Ok::<_, Infallible>(
                        http::Response::builder()
                            .header("content-type", "application/grpc")
                            .body(body)
                            .unwrap(),
                    )
                }
            });
            let io = hyper_util::rt::TokioIo::new(tcp);
            let server = hyper::server::conn::http2::Builder::new(crate::harness::LocalExecutor);
            tokio::task::spawn_local(async move { drop(server.serve_connection(io, answer).await) });
        }
    });
    (addr, counted)
}

fn call() -> Request<Full<Bytes>> {
    let call = Request::post("http://s/svc/Method").header("content-type", "application/grpc");
    call.body(Full::new(Bytes::from_static(b"ask"))).unwrap()
}

#[tokio::test(flavor = "local")]
async fn grpc_statuses_are_found_in_trailers_that_are_near() {
    let pki = Pki::new();
    // Trailers alone; trailers after one piece; and a status that is not listed.
    let (addr, calls) = grpc(vec![(&[], "14"), (&["one"], "14"), (&["one", "two"], "0")]).await;
    let proxy = client(&pki, retried(), addr);
    let mut sender = h2(proxy.outbound).await;
    let (head, body, trailers) = collect(sender.send_request(call()).await.unwrap()).await;
    assert_eq!((head.status.as_u16(), body.as_ref()), (200, &b"onetwo"[..]));
    assert_eq!(trailers.unwrap()["grpc-status"], "0");
    assert_eq!(*calls.borrow(), 3);
    let (addr, calls) = grpc(vec![(&["one"], "13")]).await;
    let proxy = client(&pki, retried(), addr);
    let mut sender = h2(proxy.outbound).await;
    let (_, body, trailers) = collect(sender.send_request(call()).await.unwrap()).await;
    assert_eq!((body.as_ref(), trailers.unwrap()["grpc-status"].as_bytes()), (&b"one"[..], &b"13"[..]));
    assert_eq!(*calls.borrow(), 1);
}

#[tokio::test(flavor = "local")]
async fn a_breaker_that_goes_by_the_rate_shuts_and_says_so() {
    let (pki, app) = (Pki::new(), app().await);
    let backoff = Backoff { min: Duration::from_secs(60), max: Duration::from_secs(60), jitter: 0.0 };
    let rate = Some(SuccessRate { threshold: 0.7, window: Duration::from_secs(60), min_requests: 4 });
    let accrual =
        FailureAccrual { max_consecutive: 0, rate, backoff, respects_retry_after: false, min_ready: 0 };
    let proxy =
        with_routes(&pki, HttpRoutes { accrual: Some(accrual), ..routes(rule(balance(PATH))) }, app.addr);
    let ask = async |status: u16| {
        let request = format!("GET /status/{status} HTTP/1.1\r\nHost: s\r\n\r\n");
        raw::http(proxy.outbound, &request).await.unwrap().0
    };
    // A surplus that the application refuses counts against it as a failure does.
    for status in [200, 200, 429, 500] {
        assert!(ask(status).await.starts_with(&format!("HTTP/1.1 {status}")));
    }
    let head = ask(200).await;
    assert!(head.starts_with("HTTP/1.1 503") && error_of(&head).starts_with("UPS-005"), "{head}");
    assert_eq!(app.count(), 4);
}

#[tokio::test(flavor = "local")]
async fn requests_go_by_weight() {
    let (pki, one, two) = (Pki::new(), app().await, app().await);
    let proxy = client(&pki, rule(balance(PATH)), one.addr);
    let heavy = |app: &App, weight| Arc::new(Endpoint { weight, ..Endpoint::clone(&plain(app.addr)) });
    proxy.told.endpoints(PATH, known(&[heavy(&one, 10_000), heavy(&two, 0)]));
    let mut sender = h2(proxy.outbound).await;
    for _ in 0..20 {
        collect(sender.send_request(get("http://s/")).await.unwrap()).await;
    }
    assert_eq!((one.count(), two.count()), (20, 0));
    // Who weighs nothing serves all the same where nobody else is there.
    proxy.told.endpoints(PATH, known(&[heavy(&two, 0)]));
    collect(sender.send_request(get("http://s/")).await.unwrap()).await;
    assert_eq!(two.count(), 1);
}

#[tokio::test(flavor = "local")]
async fn an_identity_that_cannot_be_read_is_nobodys() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = client(&pki, rule(balance(PATH)), app.addr);
    let request = "GET /a HTTP/1.1\r\nHost: s\r\nl5d-require-id: who knows\r\n\r\n";
    let (head, _) = raw::http(proxy.outbound, request).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    assert!(error_of(&head).starts_with("IDN-003") && head.contains("\"who knows\""), "{head}");
    assert_eq!(app.count(), 0);
}

#[tokio::test(flavor = "local")]
async fn a_stream_that_was_refused_is_sent_again_with_its_body() {
    let pki = Pki::new();
    let (listener, addr) = raw::listener().await;
    let got: Rc<RefCell<Vec<Bytes>>> = Rc::default();
    let seen = got.clone();
    tokio::task::spawn_local(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(tcp).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let seen = seen.clone();
            tokio::task::spawn_local(async move {
                let body = request.into_body().data().await.unwrap().unwrap();
                seen.borrow_mut().push(body);
                if seen.borrow().len() == 1 {
                    respond.send_reset(h2::Reason::REFUSED_STREAM);
                } else {
                    respond.send_response(http::Response::new(()), true).unwrap();
                }
            });
        }
    });
    // Nothing is listed: that the server did not begin is reason enough.
    let none = RetryPolicy { statuses: Vec::new(), grpc_codes: Vec::new(), ..policy() };
    let proxy = client(&pki, HttpRule { retry: Some(none), ..rule(balance(PATH)) }, addr);
    let request = Request::post("http://s/a").body(Full::new(Bytes::from_static(b"hello"))).unwrap();
    let (head, _, _) = collect(h2(proxy.outbound).await.send_request(request).await.unwrap()).await;
    assert_eq!(head.status, 200);
    assert_eq!(*got.borrow(), ["hello", "hello"]);
}

#[tokio::test(flavor = "local")]
async fn an_endpoint_that_asks_for_less_gets_less() {
    let (pki, app) = (Pki::new(), app().await);
    let busy =
        scripted(&["HTTP/1.1 429 Too Many Requests\r\nretry-after: 60\r\ncontent-length: 0\r\n\r\n"]).await;
    let second = Duration::from_secs(1);
    let penalty = Some(Penalty { latency: 5 * second, max_retry_after: 300 * second });
    let ewma = EwmaConfig { penalty, ..EwmaConfig::DEFAULT };
    let proxy = client(&pki, rule(BackendKind::Balance { path: PATH.into(), ewma }), app.addr);
    proxy.told.endpoints(PATH, known(&[plain(busy.addr), plain(app.addr)]));
    for _ in 0..40 {
        raw::http(proxy.outbound, "GET /a HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    }
    assert_eq!((busy.got.borrow().len(), app.count()), (1, 39), "once, and then it is left alone");
}

#[tokio::test(flavor = "local")]
async fn a_fixed_backend_that_is_down_is_passed_over() {
    let (pki, app) = (Pki::new(), app().await);
    let refused = raw::refused().await;
    let fixed = |addr| crate::harness::backend(BackendKind::Forward(plain(addr)));
    let backends = Distribution::FirstAvailable(vec![fixed(refused), fixed(app.addr)]);
    let long = ("OUTBOUND_CONNECT_EXP_BACKOFF_MIN", "60s");
    let proxy = crate::harness::proxy(&pki, "web", dst(), dst(), &[long]);
    let protocol = OutboundProtocol::Http1(routes(HttpRule { backends, ..rule(balance(PATH)) }));
    proxy.told.destination(destination(dst(), protocol, false));
    let ask = async || raw::http(proxy.outbound, "GET /a HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap().0;
    assert!(ask().await.starts_with("HTTP/1.1 502"), "nobody knew");
    assert!(ask().await.starts_with("HTTP/1.1 200"));
}
