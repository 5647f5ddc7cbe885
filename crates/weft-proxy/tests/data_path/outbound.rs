//! Outbound: routing, balancing, failures that say why, and what leaves for a stranger.

use crate::harness::{
    App, Proxy, app, backend, balance, collect, destination, get, h2, meshed, meta, opaque, policy, routes,
    rule,
};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use weft_fault::{Code, Fault};
use weft_model::{
    http::{Filter, HeaderChange, HttpMatch, PathMatch, Redirect},
    identity::{PeerIdentity, Unknown},
    outbound::{
        BackendKind, Backoff, Distribution, Endpoint, Endpoints, FailureAccrual, HttpRoute, HttpRoutes,
        OutboundProtocol, ProtocolHint, Refusal, RetryPolicy, Timeouts,
    },
};
use weft_proxy::discovery::Lookup;
use weft_testkit::{
    pki::{self, Pki},
    raw,
};

const PATH: &str = "store.shop.svc.cluster.local:80";

fn dst() -> SocketAddr {
    "192.0.2.80:80".parse().unwrap()
}

/// A proxy whose application dials the service.
fn client(pki: &Pki) -> Proxy {
    let proxy = crate::harness::proxy(pki, "web", dst(), dst(), &[]);
    proxy.service(dst(), PATH);
    proxy
}

fn plain(addr: SocketAddr) -> Arc<Endpoint> {
    Arc::new(Endpoint::bare(addr, PeerIdentity::Unmeshed))
}

fn known(endpoints: &[Arc<Endpoint>]) -> Endpoints {
    Endpoints::Known(Arc::new(endpoints.to_vec()))
}

async fn ask(proxy: &Proxy) -> (String, Vec<u8>) {
    raw::http(proxy.outbound, "GET /a HTTP/1.1\r\nHost: store\r\n\r\n").await.unwrap()
}

fn error_of(head: &str) -> &str {
    head.lines().find_map(|line| line.strip_prefix("l5d-proxy-error: ")).unwrap_or("")
}

#[tokio::test(flavor = "local")]
async fn requests_are_balanced_and_connections_kept() {
    let (pki, one, two) = (Pki::new(), app().await, app().await);
    let proxy = client(&pki);
    proxy.told.endpoints(PATH, known(&[plain(one.addr), plain(two.addr)]));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    for n in 0..40 {
        io.write_all(format!("GET /{n} HTTP/1.1\r\nHost: Store\r\n\r\n").as_bytes()).await.unwrap();
        let (head, _) = raw::read_http(&mut io).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
    assert_eq!(one.count() + two.count(), 40);
    for app in [&one, &two] {
        // Not how often: an endpoint that was slow once, as on a busy machine, is left alone for a while.
        assert!(app.count() > 0, "both serve: {} and {}", one.count(), two.count());
        assert!(app.seen.borrow().iter().all(|seen| seen.connection == 1), "one connection each");
    }
    // An endpoint that is withdrawn gets nothing any more.
    proxy.told.endpoints(PATH, known(&[plain(one.addr)]));
    let before = two.count();
    for _ in 0..10 {
        ask(&proxy).await;
    }
    assert_eq!(two.count(), before);
}

#[tokio::test(flavor = "local")]
async fn a_refused_endpoint_is_left_out_at_no_cost_to_the_request() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki);
    proxy.told.endpoints(PATH, known(&[plain(raw::refused().await), plain(one.addr)]));
    for _ in 0..20 {
        let post = "POST /a HTTP/1.1\r\nHost: s\r\nContent-Length: 2\r\n\r\nhi";
        let (head, body) = raw::http(proxy.outbound, post).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(body, b"hi");
    }
    assert_eq!(one.count(), 20);
}

#[tokio::test(flavor = "local")]
async fn every_reason_for_no_answer_has_its_own_code() {
    let pki = Pki::new();
    let proxy = client(&pki);
    let expect = |status: &'static str, code: Code| {
        let proxy = &proxy;
        async move {
            let (head, _) = ask(proxy).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{code}: {head}");
            assert!(error_of(&head).starts_with(code.id()), "{code}: {head}");
            assert!(head.contains("connection: close\r\n"), "{head}");
            head
        }
    };
    proxy.told.endpoints(PATH, Endpoints::NoSuchService);
    expect("503", Code::ServiceUnknown).await;
    proxy.told.endpoints(PATH, known(&[]));
    expect("503", Code::NoEndpoints).await;
    let refused = |code| Lookup::Refused(Arc::new(Fault::new(code).fact("message", "why").record()));
    proxy.told.lookup(PATH, refused(Code::ControllerRejects));
    // The empty set that was known before stays known; a name that was never resolved is refused.
    for (said, code) in
        [(Code::ControllerRejects, Code::DiscoveryRefused), (Code::ControllerUnready, Code::DiscoveryUnready)]
    {
        let fresh = client(&pki);
        fresh.told.lookup(PATH, refused(said));
        let (head, _) = ask(&fresh).await;
        assert!(head.starts_with("HTTP/1.1 500") && error_of(&head).starts_with(code.id()), "{head}");
        assert!(error_of(&head).contains(said.id()), "the cause is there too: {head}");
    }
    let down = raw::refused().await;
    proxy.told.endpoints(PATH, known(&[plain(down)]));
    for _ in 0..3 {
        let head = expect("502", Code::ConnectRefused).await;
        assert!(error_of(&head).contains("1 x NET-001"), "{head}");
    }
    let other = pki::identity("other", "shop");
    let silent = raw::listener().await;
    proxy.told.endpoints(PATH, known(&[Arc::new(meshed(silent.1, &other))]));
    let head = expect("504", Code::HandshakeTimeout).await;
    assert!(error_of(&head).contains("1 x TLS-001"), "a peer that accepts and says nothing: {head}");
    let talks = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let talks_addr = talks.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut io, _)) = talks.accept().await {
            let _ = io.write_all(b"220 mail.example ESMTP\r\n").await;
            let mut rest = [0; 2048];
            while io.read(&mut rest).await.is_ok_and(|n| n > 0) {}
        }
    });
    proxy.told.endpoints(PATH, known(&[Arc::new(meshed(talks_addr, &other))]));
    let head = expect("502", Code::PeerNotTls).await;
    assert!(error_of(&head).contains("1 x TLS-003"), "a peer that speaks no TLS: {head}");
    assert!(proxy.told.doubts().contains(&(talks_addr, Code::PeerNotTls)));
    // Metrics tell them apart as headers do.
    let page = proxy.metrics().await;
    let counted = |code: Code| {
        let label = format!("code=\"{}\"", code.id());
        page.lines().any(|line| line.starts_with("outbound_http_errors_total{") && line.contains(&label))
    };
    for code in [
        Code::ServiceUnknown,
        Code::NoEndpoints,
        Code::ConnectRefused,
        Code::HandshakeTimeout,
        Code::PeerNotTls,
    ] {
        assert!(counted(code), "{code}\n{page}");
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn unanswered_lookups_end_after_a_bounded_wait() {
    let pki = Pki::new();
    let proxy = client(&pki);
    let (head, _) = ask(&proxy).await;
    assert!(head.starts_with("HTTP/1.1 504") && error_of(&head).starts_with("UPS-003"), "{head}");
    // A controller that answers with errors is not one that says nothing.
    let failing = client(&pki);
    let why = Fault::new(Code::ControllerUnavailable).record();
    failing.told.lookup(PATH, Lookup::Pending(Some(Arc::new(why))));
    let (head, _) = ask(&failing).await;
    assert!(head.starts_with("HTTP/1.1 504") && error_of(&head).starts_with("UPS-018"), "{head}");
    // Nor does the destination itself have to be known for ever.
    let elsewhere = crate::harness::proxy(&pki, "web", dst(), "192.0.2.81:80".parse().unwrap(), &[]);
    let (head, _) = ask(&elsewhere).await;
    assert!(head.starts_with("HTTP/1.1 504") && error_of(&head).starts_with("UPS-003"), "{head}");
    assert!(head.contains("connection: close\r\n"), "{head}");
}

#[tokio::test(flavor = "local")]
async fn an_unknown_identity_is_dialled_only_where_that_is_allowed() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki);
    let unknown = Arc::new(Endpoint::bare(one.addr, PeerIdentity::Unknown(Unknown::Unmarked)));
    proxy.told.destination(destination(dst(), policy(BackendKind::Forward(unknown.clone())), true));
    let (head, _) = ask(&proxy).await;
    assert!(head.starts_with("HTTP/1.1 502") && error_of(&head).starts_with("IDN-002"), "{head}");
    assert_eq!(one.count(), 0);
    proxy.told.destination(destination(dst(), policy(BackendKind::Forward(unknown)), false));
    let (head, _) = ask(&proxy).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

#[tokio::test(flavor = "local")]
async fn a_marked_403_in_plaintext_raises_a_doubt_and_reaches_the_user() {
    let pki = Pki::new();
    let refusing =
        raw::answering("HTTP/1.1 403 Forbidden\r\nl5d-proxy-error: POL-002\r\ncontent-length: 0\r\n\r\n")
            .await;
    let proxy = client(&pki);
    let unknown = Arc::new(Endpoint::bare(refusing, PeerIdentity::Unknown(Unknown::Unmarked)));
    proxy.told.endpoints(PATH, known(&[unknown]));
    for _ in 0..2 {
        // Once in vain, the refusal is passed on at once.
        let (head, _) = ask(&proxy).await;
        assert!(head.starts_with("HTTP/1.1 403"), "{head}");
        assert_eq!(error_of(&head), "POL-002");
    }
    let doubts = proxy.told.doubts();
    assert!(doubts.contains(&(refusing, Code::PlaintextRefused)), "{doubts:?}");
    assert_eq!(proxy.failure().await.fault.unwrap().code, "POL-002");
}

/// A stock proxy tells strangers no reason. Whether its policy or plaintext was the reason shows when the controller is asked.
#[tokio::test(flavor = "local")]
async fn a_bare_403_in_plaintext_waits_for_one_question() {
    let pki = Pki::new();
    let refusing = raw::answering("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await;
    let proxy = client(&pki);
    let unknown = Arc::new(Endpoint::bare(refusing, PeerIdentity::Unknown(Unknown::Unmarked)));
    proxy.told.endpoints(PATH, known(&[unknown]));
    // In vain: what may be the application's own word reaches its client as it is.
    let (head, _) = ask(&proxy).await;
    assert!(head.starts_with("HTTP/1.1 403") && !head.contains("l5d-proxy-error"), "{head}");
    assert!(proxy.told.doubts().contains(&(refusing, Code::NoRuleAllows)));

    // The answer comes while a request waits: it is sent again, in TLS, of which this peer knows nothing.
    let asked = async {
        while !proxy.told.doubts().contains(&(refusing, Code::NoRuleAllows)) {
            tokio::task::yield_now().await;
        }
        proxy.told.endpoints(PATH, known(&[meshed(refusing, &pki::identity("store", "shop")).into()]));
    };
    let ((head, _), ()) = tokio::join!(ask(&proxy), asked);
    assert!(error_of(&head).starts_with("TLS-"), "{head}");
}

#[tokio::test(flavor = "local")]
async fn routes_filters_and_timeouts_apply() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki);
    let forward = || BackendKind::Forward(plain(one.addr));
    let path = |path: &str| HttpMatch { path: Some(PathMatch::Prefix(path.into())), ..Default::default() };
    let mut changed = rule(forward());
    changed.matches = vec![path("/changed")];
    changed.filters = vec![
        Filter::RequestHeaders(HeaderChange {
            set: vec![("x-set".into(), "1".into())],
            ..Default::default()
        }),
        Filter::ResponseHeaders(HeaderChange { remove: vec!["x-app".into()], ..Default::default() }),
    ];
    let mut moved = rule(forward());
    moved.matches = vec![path("/moved")];
    moved.filters =
        vec![Filter::Redirect(Redirect { scheme: Some("https".into()), status: 301, ..Default::default() })];
    let mut failing = rule(forward());
    failing.matches = vec![path("/failing")];
    failing.filters = vec![Filter::Fail { status: 418, message: "tea".into(), ratio: 1.0 }];
    let mut slow = rule(forward());
    slow.matches = vec![path("/hang")];
    slow.timeouts = Timeouts { request: Some(Duration::from_millis(50)), ..Default::default() };
    let mut nowhere = rule(forward());
    nowhere.matches = vec![path("/nowhere")];
    nowhere.backends = Distribution::Empty;
    let mut invalid = rule(BackendKind::Invalid("no port 81".into()));
    invalid.matches = vec![path("/invalid")];
    let rules = vec![changed, moved, failing, slow, nowhere, invalid];
    let all = HttpRoutes {
        routes: vec![HttpRoute { meta: meta("route"), hosts: Vec::new(), rules }],
        accrual: None,
    };
    proxy.told.destination(destination(dst(), OutboundProtocol::Http1(all), false));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    let mut get = async |path: &str| {
        io.write_all(format!("GET {path} HTTP/1.1\r\nHost: store\r\n\r\n").as_bytes()).await.unwrap();
        raw::read_http(&mut io).await.unwrap().0
    };
    let head = get("/changed").await;
    assert!(head.starts_with("HTTP/1.1 200") && !head.contains("x-app"), "{head}");
    assert_eq!(one.last().headers["x-set"], "1");
    let head = get("/moved/x").await;
    assert!(
        head.starts_with("HTTP/1.1 301") && head.contains("location: https://store/moved/x\r\n"),
        "{head}"
    );
    assert!(get("/failing").await.starts_with("HTTP/1.1 418"));
    assert_eq!(proxy.counted("outbound_http_errors_total", "unexpected", "RTE-003").await, 1);
    let head = get("/nowhere").await;
    assert!(head.starts_with("HTTP/1.1 503") && error_of(&head).starts_with("RTE-002"), "{head}");
    let head = get("/invalid").await;
    assert!(head.starts_with("HTTP/1.1 502") && error_of(&head).contains("no port 81"), "{head}");
    let head = get("/other").await;
    assert!(head.starts_with("HTTP/1.1 404") && error_of(&head).starts_with("RTE-001"), "{head}");
    let head = get("/hang").await;
    assert!(head.starts_with("HTTP/1.1 504") && error_of(&head).starts_with("UPS-009"), "{head}");
    one.until(|hung| hung.cancelled == 1).await;
    assert!(get("/changed").await.starts_with("HTTP/1.1 200"), "none of these ends the connection");
}

#[tokio::test(flavor = "local")]
async fn a_response_that_stops_half_way_is_cut_at_the_routes_limit() {
    let pki = Pki::new();
    for (timeouts, code) in [
        (Timeouts { idle: Some(Duration::from_millis(50)), ..Default::default() }, "UPS-017"),
        (Timeouts { request: Some(Duration::from_millis(500)), ..Default::default() }, "UPS-009"),
    ] {
        let proxy = client(&pki);
        let stuck = raw::answering("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await;
        let mut limited = rule(BackendKind::Forward(plain(stuck)));
        limited.timeouts = timeouts;
        proxy.told.destination(destination(dst(), OutboundProtocol::Http1(routes(limited)), false));
        let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
        io.write_all(b"GET / HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
        let got = String::from_utf8(raw::read_all(&mut io).await.unwrap()).unwrap();
        assert!(got.starts_with("HTTP/1.1 200") && got.ends_with("half"), "{got}");
        assert_eq!(proxy.failure().await.fault.unwrap().code, code);
    }
}

#[tokio::test(flavor = "local")]
async fn a_request_is_sent_twice_only_when_that_is_safe() {
    resent(&[], true).await;
}

/// B42: one knob turns even the harmless repetition off.
#[tokio::test(flavor = "local")]
async fn b42_a_setting_keeps_every_request_from_being_sent_twice() {
    resent(&[("WEFT_OUTBOUND_RESEND", "false")], false).await;
}

async fn resent(settings: &[(&str, &str)], resends: bool) {
    let pki = Pki::new();
    let proxy = crate::harness::proxy(&pki, "web", dst(), dst(), settings);
    proxy.service(dst(), PATH);
    // Answers the first request of each connection and drops the connection at the second, unanswered.
    let (listener, addr) = raw::listener().await;
    let heads: std::rc::Rc<std::cell::RefCell<Vec<String>>> = Default::default();
    let log = heads.clone();
    tokio::task::spawn_local(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            let log = log.clone();
            tokio::task::spawn_local(async move {
                let (head, _) = raw::read_http(&mut io).await.unwrap();
                log.borrow_mut().push(head);
                io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                let (head, _) = raw::read_http(&mut io).await.unwrap_or_default();
                if !head.is_empty() {
                    log.borrow_mut().push(head);
                }
            });
        }
    });
    proxy.told.endpoints(PATH, known(&[plain(addr)]));
    let get = "GET /a HTTP/1.1\r\nHost: s\r\n\r\n";
    let post = "POST /b HTTP/1.1\r\nHost: s\r\nContent-Length: 0\r\n\r\n";
    assert!(raw::http(proxy.outbound, get).await.unwrap().0.starts_with("HTTP/1.1 200"));
    let (head, _) = raw::http(proxy.outbound, get).await.unwrap();
    if !resends {
        assert!(head.starts_with("HTTP/1.1 502") && error_of(&head).starts_with("UPS-006"), "{head}");
        assert_eq!(heads.borrow().len(), 2);
        return;
    }
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(heads.borrow().len(), 3, "the second was sent again");
    let (head, _) = raw::http(proxy.outbound, post).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 502") && error_of(&head).starts_with("UPS-006"), "{head}");
    assert_eq!(heads.borrow().iter().filter(|head| head.starts_with("POST")).count(), 1);
}

#[tokio::test(flavor = "local")]
async fn cancellation_reaches_the_server() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki);
    proxy.told.endpoints(PATH, known(&[plain(one.addr)]));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(b"GET /hang HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    one.until(|hung| hung.begun == 1).await;
    drop(io);
    one.until(|hung| hung.cancelled == 1).await;
    let mut client = h2(proxy.outbound).await;
    let asking = tokio::spawn(client.send_request(get("http://store/hang")));
    one.until(|hung| hung.begun == 2).await;
    asking.abort();
    one.until(|hung| hung.cancelled == 2).await;
    assert_eq!(proxy.failures(), 0, "a client that leaves is nobody's failure");
    // The same connection goes on.
    let (head, _, _) = collect(client.send_request(get("http://store/")).await.unwrap()).await;
    assert_eq!(head.status, 200);
}

#[tokio::test(flavor = "local")]
async fn messages_keep_their_form() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki);
    proxy.told.endpoints(PATH, known(&[plain(one.addr)]));
    exercise_forms(&proxy, &one).await;
}

/// The cases of request form and body framing; also used across two proxies.
pub(crate) async fn exercise_forms(proxy: &Proxy, app: &App) {
    let ask = async |request: &str| {
        let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
        io.write_all(request.as_bytes()).await.unwrap();
        let mut io = tokio::io::BufReader::new(io);
        let head = String::from_utf8(raw::read_until(&mut io, b"\r\n\r\n").await.unwrap()).unwrap();
        let body = if request.starts_with("HEAD") {
            Vec::new()
        } else if head.contains("chunked") {
            let end: &[u8] = if request.contains("trailers") { b"x-t: 1\r\n\r\n" } else { b"0\r\n\r\n" };
            raw::read_until(&mut io, end).await.unwrap()
        } else if let Some(n) = head.lines().find_map(|l| l.strip_prefix("content-length: ")) {
            let mut body = vec![0; n.parse().unwrap()];
            io.read_exact(&mut body).await.unwrap();
            body
        } else {
            raw::read_all(&mut io).await.unwrap()
        };
        (head, String::from_utf8(body).unwrap())
    };
    // Both target forms arrive as they were sent.
    ask("GET /a?b=c HTTP/1.1\r\nHost: svc:8000\r\n\r\n").await;
    assert_eq!(app.last().line, "GET /a?b=c HTTP/1.1");
    assert_eq!(app.last().headers["host"], "svc:8000");
    ask("GET http://svc:8000/a?b=c HTTP/1.1\r\nHost: svc:8000\r\n\r\n").await;
    assert_eq!(app.last().line, "GET http://svc:8000/a?b=c HTTP/1.1");
    // A chunked body on a GET is a body.
    let (_, body) =
        ask("GET /x HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
            .await;
    assert_eq!(app.last().body, "abc");
    assert!(body == "abc" || body.contains("abc"), "{body}");
    // Chunks for 1.1, none for 1.0; HEAD has no body.
    let (head, body) = ask("GET /chunks HTTP/1.1\r\nHost: s\r\nTE: trailers\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("transfer-encoding: chunked"), "{head}");
    assert!(body.contains("one ") && body.contains("three"), "{body}");
    let (head, body) = ask("GET /chunks HTTP/1.0\r\nHost: s\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.0 200") && !head.contains("chunked"), "{head}");
    assert_eq!(body, "one two three");
    assert_eq!(app.last().line, "GET /chunks HTTP/1.0");
    let (head, _) = ask("HEAD /x HTTP/1.1\r\nHost: s\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(app.last().line.starts_with("HEAD"));
    // Close is honoured and said; options end at the hop.
    let (head, _) = ask("GET / HTTP/1.1\r\nHost: s\r\nConnection: close, x-hop\r\nX-Hop: 1\r\n\r\n").await;
    assert!(head.contains("connection: close"), "{head}");
    assert!(!app.last().headers.contains_key("x-hop"));
    // An upgrade offer that the server ignores is none, and the connection goes on.
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    for _ in 0..2 {
        io.write_all(b"GET / HTTP/1.1\r\nHost: s\r\nConnection: Upgrade\r\nUpgrade: TLS/1.2\r\n\r\n")
            .await
            .unwrap();
        assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 200"));
    }
    // Large bodies pass whole, both ways.
    let mut client = h2(proxy.outbound).await;
    let big = Bytes::from((0..3_000_000_u32).map(|i| i.to_le_bytes()[0]).collect::<Vec<_>>());
    let post = Request::post("http://s/big").body(Full::new(big.clone())).unwrap();
    let (head, body, _) = collect(client.send_request(post).await.unwrap()).await;
    assert_eq!(head.status, 200);
    assert!(body == big);
    let (_, body, trailers) = collect(client.send_request(get("http://s/chunks")).await.unwrap()).await;
    assert_eq!(body, "one two three");
    assert_eq!(trailers.unwrap()["x-t"], "1");
    // Twenty thousand bytes of target and of header.
    let long = "x".repeat(20_000);
    let (head, _) = ask(&format!("GET /{long} HTTP/1.1\r\nHost: s\r\nX-Long: {long}\r\n\r\n")).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let (head, _) =
        ask(&format!("GET / HTTP/1.1\r\nHost: s\r\nX-Long: {}\r\n\r\n", "x".repeat(300_000))).await;
    assert!(head.starts_with("HTTP/1.1 431"), "{head}");
}

#[tokio::test(flavor = "local")]
async fn an_answer_that_is_not_http_is_named() {
    let pki = Pki::new();
    let proxy = client(&pki);
    proxy.told.endpoints(PATH, known(&[plain(raw::answering("SUPER 1.0\n").await)]));
    let (head, _) = ask(&proxy).await;
    assert!(head.starts_with("HTTP/1.1 502") && error_of(&head).starts_with("UPS-008"), "{head}");
}

#[tokio::test(flavor = "local")]
async fn websockets_and_other_upgrades_become_bytes() {
    let pki = Pki::new();
    let proxy = client(&pki);
    let (listener, addr) = raw::listener().await;
    tokio::spawn(async move {
        let (mut io, _) = listener.accept().await.unwrap();
        let (head, _) = raw::read_http(&mut io).await.unwrap();
        assert!(head.to_lowercase().contains("upgrade: websocket"), "{head}");
        io.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        )
        .await
        .unwrap();
        let mut got = [0; 4];
        io.read_exact(&mut got).await.unwrap();
        io.write_all(&got).await.unwrap();
    });
    proxy.told.endpoints(PATH, known(&[plain(addr)]));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(b"GET /ws HTTP/1.1\r\nHost: s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 101") && head.to_lowercase().contains("upgrade: websocket"), "{head}");
    io.write_all(b"\x01\x02\x03\x04").await.unwrap();
    assert_eq!(raw::read_all(&mut io).await.unwrap(), b"\x01\x02\x03\x04");
}

#[tokio::test(flavor = "local")]
async fn opaque_bytes_take_one_endpoint_and_declared_opacity_wins_over_http() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki);
    // Opaque by policy: an HTTP client's bytes arrive untouched, whatever they look like.
    let forward = BackendKind::Forward(plain(one.addr));
    proxy.told.destination(destination(dst(), OutboundProtocol::Opaque(opaque(forward)), false));
    let request = "GET / HTTP/1.1\r\nHost: s\r\nKeep-Alive: x\r\nConnection: close\r\n\r\n";
    assert!(raw::http(proxy.outbound, request).await.unwrap().0.starts_with("HTTP/1.1 200"));
    assert!(one.last().headers.contains_key("keep-alive"));
    // Opaque by the endpoint's own word.
    let mut endpoint = Endpoint::bare(one.addr, PeerIdentity::Unmeshed);
    endpoint.hint = ProtocolHint::Opaque;
    let forward = BackendKind::Forward(Arc::new(endpoint));
    proxy.told.destination(destination(dst(), policy(forward), false));
    raw::http(proxy.outbound, request).await.unwrap();
    assert!(one.last().headers.contains_key("keep-alive"));
    // A route that forbids closes and says so.
    let mut forbidden = opaque(BackendKind::Forward(plain(one.addr)));
    forbidden.routes[0].refuses = Some(Refusal::Forbidden);
    proxy.told.destination(destination(dst(), OutboundProtocol::Opaque(forbidden), false));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(b"x").await.unwrap();
    assert_eq!(raw::read_all(&mut io).await.unwrap_or_default(), b"");
    assert_eq!(proxy.failure().await.fault.unwrap().code, "POL-006");
}

#[tokio::test(flavor = "local")]
async fn an_empty_backend_does_not_slow_a_healthy_one() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki);
    let empty = "empty.shop.svc.cluster.local:80";
    proxy.told.endpoints(PATH, known(&[plain(one.addr)]));
    proxy.told.endpoints(empty, known(&[]));
    let mut both = rule(balance(PATH));
    both.backends =
        Distribution::RandomAvailable(vec![(backend(balance(empty)), 1), (backend(balance(PATH)), 1)]);
    proxy.told.destination(destination(dst(), OutboundProtocol::Http1(routes(both)), false));
    for _ in 0..20 {
        assert!(ask(&proxy).await.0.starts_with("HTTP/1.1 200"));
    }
}

#[tokio::test(flavor = "local")]
async fn a_breaker_shuts_after_failures_in_a_row() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki);
    proxy.told.endpoints(PATH, known(&[plain(one.addr)]));
    let backoff = Backoff { min: Duration::from_secs(5), max: Duration::from_secs(60), jitter: 0.0 };
    let mut all = routes(rule(balance(PATH)));
    all.accrual = Some(FailureAccrual {
        max_consecutive: 3,
        rate: None,
        backoff,
        respects_retry_after: false,
        min_ready: 0,
    });
    proxy.told.destination(destination(dst(), OutboundProtocol::Http1(all), false));
    let get = async |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: s\r\n\r\n");
        raw::http(proxy.outbound, &request).await.unwrap().0
    };
    for _ in 0..3 {
        assert!(!get("/status/500").await.contains("l5d-proxy-error"), "the application's own words");
    }
    let head = get("/").await;
    assert!(head.starts_with("HTTP/1.1 503") && error_of(&head).starts_with("UPS-005"), "{head}");
    assert_eq!(one.count(), 3);
}

#[tokio::test(flavor = "local")]
async fn breakers_leave_as_many_endpoints_in_as_the_policy_wants() {
    let (pki, apps) = (Pki::new(), [app().await, app().await, app().await]);
    let proxy = client(&pki);
    proxy.told.endpoints(PATH, known(&apps.each_ref().map(|app| plain(app.addr))));
    let backoff = Backoff { min: Duration::from_secs(60), max: Duration::from_secs(60), jitter: 0.0 };
    let mut all = routes(rule(balance(PATH)));
    all.accrual = Some(FailureAccrual {
        max_consecutive: 1,
        rate: None,
        backoff,
        respects_retry_after: false,
        min_ready: 2,
    });
    proxy.told.destination(destination(dst(), OutboundProtocol::Http1(all), false));
    for _ in 0..30 {
        let (head, _) =
            raw::http(proxy.outbound, "GET /status/500 HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
        assert!(head.starts_with("HTTP/1.1 500") && !head.contains("l5d-proxy-error"), "{head}");
    }
    // The first that failed is left out; no other may be.
    let counts = apps.each_ref().map(App::count);
    assert!(counts.contains(&1) && counts.iter().sum::<usize>() == 30, "{counts:?}");
}

#[tokio::test(flavor = "local")]
async fn a_route_may_want_failures_tried_again() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki);
    let failing = raw::answering("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").await;
    proxy.told.endpoints(PATH, known(&[plain(failing)]));
    let mut retried = rule(balance(PATH));
    retried.retry = Some(RetryPolicy {
        max_retries: 2,
        max_request_bytes: 65_536,
        statuses: vec![(500, 599)],
        grpc_codes: Vec::new(),
        per_try_timeout: None,
        backoff: Backoff { min: Duration::from_millis(1), max: Duration::from_millis(1), jitter: 0.0 },
        respects_retry_after: false,
    });
    proxy.told.destination(destination(dst(), OutboundProtocol::Http1(routes(retried)), false));
    assert!(ask(&proxy).await.0.starts_with("HTTP/1.1 503"), "in the end the answer is passed on");
    proxy.told.endpoints(PATH, known(&[plain(one.addr)]));
    let head = raw::http(proxy.outbound, "GET /status/500 HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap().0;
    assert!(head.starts_with("HTTP/1.1 500"), "{head}");
    assert_eq!(one.count(), 3, "one and two more");
}

#[tokio::test(flavor = "local")]
async fn a_connection_to_ourselves_is_a_loop() {
    let pki = Pki::new();
    let mut proxy = client(&pki);
    let own = proxy.mesh.config.outbound.listen[0];
    let socket = weft_net::socket::listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    proxy.outbound = socket.local_addr().unwrap();
    let listener = weft_net::socket::Listener::new(socket, Default::default()).unwrap().pretending(own);
    tokio::task::spawn_local(weft_proxy::outbound::serve(proxy.mesh.clone(), listener));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    assert_eq!(raw::read_all(&mut io).await.unwrap_or_default(), b"");
    assert_eq!(proxy.failure().await.fault.unwrap().code, "NET-006");
}

#[tokio::test(flavor = "local")]
async fn endpoints_that_are_opaque_are_so_for_the_first_connection_too() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki);
    proxy.told.lookup(PATH, Lookup::Pending(None));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(b"GET /a HTTP/1.1\r\nHost: store\r\nl5d-client-id: mine\r\n\r\n").await.unwrap();
    // The connection is detected, and waits for what its endpoints say.
    proxy.record(|record| record.events.iter().any(|event| event.text.contains("asked for"))).await;
    let opaque = Endpoint { hint: ProtocolHint::Opaque, ..Endpoint::clone(&plain(one.addr)) };
    proxy.told.endpoints(PATH, known(&[Arc::new(opaque)]));
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(one.last().headers["l5d-client-id"], "mine", "nothing was changed");
    assert_eq!(proxy.record(|record| record.endpoint.is_some()).await.protocol.as_deref(), Some("opaque"));
}

#[tokio::test(flavor = "local")]
async fn an_http_1_0_client_keeps_its_connection_if_it_asks() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki);
    proxy.told.endpoints(PATH, known(&[plain(one.addr)]));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    for _ in 0..2 {
        io.write_all(b"GET /a HTTP/1.0\r\nHost: store\r\nConnection: keep-alive\r\n\r\n").await.unwrap();
        let (head, _) = raw::read_http(&mut io).await.unwrap();
        assert!(head.starts_with("HTTP/1.0 200") && head.contains("connection: keep-alive"), "{head}");
    }
    io.write_all(b"GET /a HTTP/1.0\r\nHost: store\r\n\r\n").await.unwrap();
    let rest = String::from_utf8(raw::read_all(&mut io).await.unwrap()).unwrap();
    assert!(rest.starts_with("HTTP/1.0 200") && !rest.contains("keep-alive"), "{rest}");
}

#[tokio::test(flavor = "local")]
async fn a_stock_proxys_bare_refusal_is_reason_enough_to_ask_again() {
    let pki = Pki::new();
    let bare = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\ndate: Mon, 30 Nov 2026 11:00:00 GMT\r\n\r\n";
    let own = "HTTP/1.1 403 Forbidden\r\nserver: app\r\ncontent-length: 0\r\n\r\n";
    for (answer, doubted) in [(bare, true), (own, false)] {
        let addr = raw::answering(answer).await;
        let proxy = client(&pki);
        let unknown = PeerIdentity::Unknown(Unknown::Unmarked);
        proxy.told.endpoints(PATH, known(&[Arc::new(Endpoint::bare(addr, unknown))]));
        let (head, _) = ask(&proxy).await;
        // It is passed on as it is: it may be the application's own.
        assert!(head.starts_with("HTTP/1.1 403") && !head.contains("l5d-"), "{head}");
        assert_eq!(proxy.told.doubts().iter().any(|(at, _)| *at == addr), doubted, "{head}");
    }
}
