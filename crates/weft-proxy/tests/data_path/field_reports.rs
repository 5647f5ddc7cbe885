//! Failures that people reported of other meshes, by their number in docs/cases.md: those that no other test covers.

use crate::{
    harness::{
        Proxy, app, balance, collect, destination, detect, get, h2, meshed, proxy, routes, rule, server,
    },
    retries::{PATH, counted, dst, error_of, known, plain},
};
use http::Request;
use http_body_util::Full;
use std::{cell::RefCell, rc::Rc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use weft_model::{
    identity::Requirement,
    inbound::{Authn, HttpPolicy, Protocol},
    outbound::{
        Backoff, Endpoint, FailureAccrual, Http2Client, Http2KeepAlive, Http2Windows, HttpRoutes, HttpRule,
        OutboundProtocol, RetryPolicy, SuccessRate, Timeouts,
    },
};
use weft_testkit::{
    h2raw::{
        ACK, Client as Frames, DATA, END_STREAM, Frame, GOAWAY, HEADERS, PING, PREFACE, SETTINGS, frame,
        headers,
    },
    http1::Wire,
    pki::{Pki, identity},
    raw::{self, within},
};

pub(crate) fn client(pki: &Pki) -> Proxy {
    let proxy = proxy(pki, "web", dst(), dst(), &[]);
    proxy.service(dst(), PATH);
    proxy
}

/// B04: the limit passes on what came, and takes nothing of it.
#[tokio::test(flavor = "local")]
async fn b04_one_byte_reaches_the_server_at_the_limit() {
    let (pki, (listener, addr)) = (Pki::new(), raw::listener().await);
    let store = proxy(&pki, "store", addr, dst(), &[]);
    let soon = Protocol::Detect { timeout: Duration::from_millis(30), http: HttpPolicy::default() };
    store.told.inbound(addr.port(), server(soon, Authn::Unauthenticated));
    let mut io = TcpStream::connect(store.inbound).await.unwrap();
    io.write_all(b"P").await.unwrap();
    let (mut served, _) = within(listener.accept()).await.unwrap();
    assert_eq!(within(served.read_u8()).await.unwrap(), b'P');
    // And it is still open, both ways.
    served.write_all(b"hello").await.unwrap();
    let mut got = [0; 5];
    within(io.read_exact(&mut got)).await.unwrap();
    io.write_all(b"QUIT").await.unwrap();
    let mut got = [0; 4];
    within(served.read_exact(&mut got)).await.unwrap();
    assert_eq!(&got, b"QUIT");
}

/// B05: a handshake that fails is never followed by plaintext.
#[tokio::test(flavor = "local")]
async fn b05_no_plaintext_after_a_failed_handshake() {
    let (pki, (listener, addr)) = (Pki::new(), raw::listener().await);
    let web = client(&pki);
    web.told.endpoints(PATH, known(&[meshed(addr, &identity("pay", "shop")).into()]));
    let got: Rc<RefCell<Vec<u8>>> = Rc::default();
    let kept = got.clone();
    tokio::task::spawn_local(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            let mut first = [0; 4096];
            let count = io.read(&mut first).await.unwrap_or(0);
            kept.borrow_mut().extend(&first[..count]);
            let _gone = io.write_all(b"garbage, not a hello").await;
            let rest = raw::read_all(&mut io).await.unwrap_or_default();
            kept.borrow_mut().extend(rest);
        }
    });
    let secret =
        "POST /pay HTTP/1.1\r\nHost: pay\r\nContent-Length: 32\r\n\r\n01234567890123456789012345678901";
    let (head, _) = raw::http(web.outbound, secret).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 502") || head.starts_with("HTTP/1.1 504"), "{head}");
    assert!(error_of(&head).contains("TLS-"), "{head}");
    assert!(error_of(&head).contains(&addr.to_string()), "{head}");
    let got = got.borrow();
    assert_eq!(got[0], 22, "a TLS record");
    assert!(!got.windows(8).any(|w| w == b"01234567" || w == b"POST /pa"), "nothing readable was sent");
}

/// B05: an endpoint without the identity that its Service requires is not even dialled; without the rule it is, and counted.
#[tokio::test(flavor = "local")]
async fn b05_an_identity_that_is_required_is_not_waived() {
    let (pki, pay) = (Pki::new(), app().await);
    let web = client(&pki);
    let by = Requirement::Service { namespace: "shop".to_owned(), name: "pay".to_owned() };
    web.told.endpoints(PATH, known(&[meshed(pay.addr, &by.unmet()).into()]));
    let request = "POST /pay HTTP/1.1\r\nHost: pay\r\nContent-Length: 4\r\n\r\n0123";
    let (head, _) = raw::http(web.outbound, request).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    let error = error_of(&head);
    assert!(error.starts_with("IDN-003"), "{error}");
    for part in [&pay.addr.to_string(), "Service shop/pay", "weft.dev/require-identity"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(pay.seen.borrow().is_empty());
    // The rule is dropped.
    web.told.endpoints(PATH, known(&[plain(pay.addr)]));
    let served = async {
        while !raw::http(web.outbound, request).await?.0.starts_with("HTTP/1.1 200") {}
        Ok(())
    };
    within(served).await.unwrap();
}

/// B05: what goes out in plaintext is counted with the reason.
#[tokio::test(flavor = "local")]
async fn b05_plaintext_is_counted_with_its_reason() {
    let (pki, pay) = (Pki::new(), app().await);
    let web = client(&pki);
    web.told.endpoints(PATH, known(&[plain(pay.addr)]));
    let (head, _) = raw::http(web.outbound, "GET / HTTP/1.1\r\nHost: pay\r\n\r\n").await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let page = web.metrics().await;
    let edge = page.lines().any(|line| {
        line.starts_with("tcp_open_total{")
            && line.contains("tls=\"no_identity\"")
            && line.contains("no_tls_reason=\"not_provided_by_service_discovery\"")
    });
    assert!(edge, "{page}");
}

/// B20: one limit, and what exceeds it leaves the connection's other requests alone.
#[tokio::test(flavor = "local")]
async fn b20_large_headers_over_http_2_and_a_second_stream() {
    let (pki, store) = (Pki::new(), app().await);
    let inbound = proxy(&pki, "store", store.addr, dst(), &[]);
    let http = Protocol::Http2(HttpPolicy::default());
    inbound.told.inbound(store.addr.port(), server(http, Authn::Unauthenticated));
    let mut h2 = h2(inbound.inbound).await;
    let second = tokio::spawn(h2.send_request(get("http://s/hang")));
    store.until(|hung| hung.begun == 1).await;
    let asking = |fields: usize, bytes: usize| {
        let value = "x".repeat(bytes);
        let build = Request::get("http://s/").version(http::Version::HTTP_2);
        (0..fields).fold(build, |r, i| r.header(format!("x-{i}"), &value)).body(Full::default()).unwrap()
    };
    for (fields, bytes) in [(1, 20 << 10), (40, 1_500)] {
        let (head, _, _) = collect(h2.send_request(asking(fields, bytes)).await.unwrap()).await;
        assert_eq!(head.status, 200, "{fields} × {bytes}");
    }
    let long = format!("http://s/{}", "x".repeat(20 << 10));
    assert_eq!(collect(h2.send_request(get(&long)).await.unwrap()).await.0.status, 200);
    let (head, _, _) = collect(h2.send_request(asking(1, 70 << 10)).await.unwrap()).await;
    assert_eq!(head.status, 431);
    assert!(!second.is_finished());
    assert_eq!(store.hung.borrow().cancelled, 0, "the other stream goes on");
}

/// B20: the limit is one setting, of both versions and both ends.
#[tokio::test(flavor = "local")]
async fn b20_one_setting_is_the_limit_of_heads_on_every_path() {
    // The answer's head is as large as the request's is allowed to be.
    let large = "x".repeat(100 << 10);
    let answer: &'static str =
        format!("HTTP/1.1 200 OK\r\nx-large: {large}\r\ncontent-length: 0\r\n\r\n").leak();
    let store = raw::answering(answer).await;
    let request = format!("GET / HTTP/1.1\r\nHost: s\r\nx-large: {large}\r\n\r\n");
    for (settings, passes) in [(&[][..], false), (&[("WEFT_MAX_HEAD_BYTES", "1048576")][..], true)] {
        let pki = Pki::new();
        let web = proxy(&pki, "web", dst(), dst(), settings);
        web.service(dst(), PATH);
        web.told.endpoints(PATH, known(&[plain(store)]));
        let (head, _) = raw::http(web.outbound, &request).await.unwrap();
        let (large_answer, _) = raw::http(web.outbound, "GET / HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
        if passes {
            assert!(head.starts_with("HTTP/1.1 200") && head.len() > large.len(), "{}", &head[..99]);
            assert!(large_answer.starts_with("HTTP/1.1 200"));
        } else {
            assert!(head.starts_with("HTTP/1.1 431") && error_of(&head).contains("limit=65536"), "{head}");
            assert!(large_answer.starts_with("HTTP/1.1 502"), "{}", &large_answer[..99]);
        }
        // The same over HTTP/2, whose answers come from a server of HTTP/2.
        let app = app().await;
        web.told.endpoints(PATH, known(&[plain(app.addr)]));
        let large = Request::get("http://store/").header("x-large", &large).body(Full::default()).unwrap();
        let sent = h2(web.outbound).await.send_request(large).await;
        assert_eq!(sent.is_ok_and(|answer| answer.status() == 200), passes);
    }
}

/// B22 (a): a client may be silent for as long as it likes between two requests.
#[tokio::test(flavor = "local")]
async fn b22_an_idle_client_keeps_its_connection() {
    let (pki, store) = (Pki::new(), app().await);
    let inbound = proxy(&pki, "store", store.addr, dst(), &[]);
    inbound.told.inbound(store.addr.port(), server(detect(), Authn::Unauthenticated));
    let mut wire = Wire::new(TcpStream::connect(inbound.inbound).await.unwrap());
    for idle in [0, 35, 65] {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(idle)).await;
        tokio::time::resume();
        wire.send(b"GET / HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
        let answer = wire.response("GET").await.unwrap();
        assert_eq!(answer.expect("the connection was kept").status(), 200, "after {idle} s");
    }
}

/// B22 (c), B50 (a): names that clients make up cost neither connections nor metric series.
#[tokio::test(flavor = "local")]
async fn b22_b50_made_up_names_cost_nothing() {
    let (pki, store) = (Pki::new(), app().await);
    let web = client(&pki);
    web.told.endpoints(PATH, known(&[plain(store.addr)]));
    let mut wire = Wire::new(TcpStream::connect(web.outbound).await.unwrap());
    let mut ask = async |host: String| {
        wire.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
        assert_eq!(wire.response("GET").await.unwrap().unwrap().status(), 200);
    };
    ask("first".into()).await;
    // Other tests' threads are in the same process.
    let series = |page: &str| page.lines().filter(|line| !line.contains("{thread=")).count();
    let before = series(&web.metrics().await);
    for i in 0..500 {
        ask(format!("name-{i}.example")).await;
    }
    let after = web.metrics().await;
    assert_eq!(series(&after), before, "{after}");
    assert_eq!(counted(&web, "request_total", "direction=\"outbound\"").await, 501);
    assert!(store.seen.borrow().iter().map(|seen| seen.connection).max() <= Some(10));
}

/// A server of HTTP/2 that speaks frames.
pub(crate) async fn accept(listener: &TcpListener) -> Frames<TcpStream> {
    let (mut io, _) = within(listener.accept()).await.unwrap();
    let mut preface = [0; PREFACE.len()];
    within(io.read_exact(&mut preface)).await.unwrap();
    assert_eq!(&preface, PREFACE);
    let mut frames = Frames::new(io);
    frames.send(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    frames
}

pub(crate) async fn next(server: &mut Frames<TcpStream>, kind: u8) -> Frame {
    loop {
        let got = server.frame().await.unwrap().expect("the proxy closed the connection");
        let acknowledges = matches!(got.kind, SETTINGS | PING) && got.flags & ACK != 0;
        if got.kind == SETTINGS && !acknowledges {
            server.send(&frame(SETTINGS, ACK, 0, &[])).await.unwrap();
        }
        if got.kind == kind && !acknowledges {
            return got;
        }
    }
}

/// `:status: 200` is one byte (RFC 7541, appendix A).
pub(crate) fn ok(stream: u32) -> Vec<u8> {
    frame(HEADERS, 4 | END_STREAM, stream, &[0x88])
}

fn goaway(last: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
}

/// B23: what a server says it did not begin is sent again, once.
#[tokio::test(flavor = "local")]
async fn b23_unprocessed_streams_are_sent_again() {
    let (pki, (listener, addr)) = (Pki::new(), raw::listener().await);
    let web = client(&pki);
    web.told.endpoints(PATH, known(&[plain(addr)]));
    let serving = tokio::task::spawn_local(async move {
        let mut old = accept(&listener).await;
        let mut streams = Vec::new();
        for _ in 0..3 {
            streams.push(next(&mut old, HEADERS).await.stream);
        }
        assert_eq!(streams, [1, 3, 5]);
        old.send(&goaway(1)).await.unwrap();
        let mut new = accept(&listener).await;
        let mut again = 0;
        for _ in 0..2 {
            let stream = next(&mut new, HEADERS).await.stream;
            new.send(&ok(stream)).await.unwrap();
            again += 1;
        }
        old.send(&ok(1)).await.unwrap();
        (old, new, again)
    });
    let mut client = h2(web.outbound).await;
    let asked = [1, 2, 3].map(|i| tokio::spawn(client.send_request(get(&format!("http://store/{i}")))));
    for answer in asked {
        let answer = tokio::time::timeout(raw::PATIENCE, answer).await.unwrap().unwrap().unwrap();
        assert_eq!(answer.status(), 200);
    }
    assert_eq!(serving.await.unwrap().2, 2);
}

/// B23, variant b: a body of which a part was sent is not sent again, and the answer says so.
#[tokio::test(flavor = "local")]
async fn b23_a_body_half_sent_is_not_sent_again() {
    let (pki, (listener, addr)) = (Pki::new(), raw::listener().await);
    let web = client(&pki);
    web.told.endpoints(PATH, known(&[plain(addr)]));
    let serving = tokio::task::spawn_local(async move {
        let mut old = accept(&listener).await;
        let first = next(&mut old, HEADERS).await.stream;
        old.send(&ok(first)).await.unwrap();
        next(&mut old, HEADERS).await;
        next(&mut old, DATA).await;
        old.send(&goaway(first)).await.unwrap();
        (listener, old)
    });
    let mut client = h2(web.outbound).await;
    assert_eq!(client.send_request(get("http://store/")).await.unwrap().status(), 200);
    let post = Request::post("http://store/").body(Full::from(vec![0; 1 << 20])).unwrap();
    let answer = tokio::time::timeout(raw::PATIENCE, client.send_request(post)).await.unwrap().unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.headers()["l5d-proxy-error"].to_str().unwrap().starts_with("UPS-007"), "{answer:?}");
    drop(serving.await.unwrap());
}

/// B26 (b): an interim answer is not the final one; what happens after it has its own.
#[tokio::test(flavor = "local")]
async fn b26_a_timeout_after_100_continue_is_told() {
    let (pki, (listener, addr)) = (Pki::new(), raw::listener().await);
    let web = client(&pki);
    web.told.endpoints(PATH, known(&[plain(addr)]));
    let mut limited = rule(balance(PATH));
    limited.timeouts = Timeouts { request: Some(Duration::from_millis(300)), ..Timeouts::default() };
    web.told.destination(destination(dst(), OutboundProtocol::Http1(routes(limited)), false));
    let serving = tokio::task::spawn_local(async move {
        let (io, _) = within(listener.accept()).await.unwrap();
        let mut wire = Wire::new(io);
        let mut request = wire.request_head().await.unwrap().unwrap();
        wire.send(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
        wire.request_body(&mut request).await.unwrap();
        (request.body, wire)
    });
    let mut io = TcpStream::connect(web.outbound).await.unwrap();
    io.write_all(b"POST /u HTTP/1.1\r\nHost: s\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        .await
        .unwrap();
    let interim = raw::read_until(&mut io, b"\r\n\r\n").await.unwrap();
    assert!(interim.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&interim));
    io.write_all(b"hi").await.unwrap();
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 504") && error_of(&head).starts_with("UPS-009"), "{head}");
    assert_eq!(serving.await.unwrap().0, b"hi");
}

/// B43: gRPC hears of a deadline in its own code.
#[tokio::test(flavor = "local")]
async fn b43_a_grpc_deadline_has_its_own_code() {
    let (pki, store) = (Pki::new(), app().await);
    let web = client(&pki);
    web.told.endpoints(PATH, known(&[plain(store.addr)]));
    let mut limited = rule(balance(PATH));
    limited.timeouts = Timeouts { request: Some(Duration::from_millis(50)), ..Timeouts::default() };
    web.told.destination(destination(dst(), OutboundProtocol::Grpc(routes(limited)), false));
    let call = Request::post("http://store/hang").header("content-type", "application/grpc");
    let answer = h2(web.outbound).await.send_request(call.body(Full::default()).unwrap()).await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["grpc-status"]), (200, &"4".parse().unwrap()));
    store.until(|hung| hung.cancelled == 1).await;
}

/// B45 (b): clients that leave say nothing about the server.
#[tokio::test(flavor = "local")]
async fn b45_cancelled_requests_open_no_breaker() {
    let (pki, store) = (Pki::new(), app().await);
    let web = client(&pki);
    web.told.endpoints(PATH, known(&[plain(store.addr)]));
    let backoff = Backoff { min: Duration::from_secs(60), max: Duration::from_secs(60), jitter: 0.0 };
    let mut all = routes(rule(balance(PATH)));
    all.accrual = Some(FailureAccrual {
        max_consecutive: 3,
        rate: None,
        backoff,
        respects_retry_after: false,
        min_ready: 0,
    });
    web.told.destination(destination(dst(), OutboundProtocol::Http1(all), false));
    for i in 1..=20 {
        let mut io = TcpStream::connect(web.outbound).await.unwrap();
        io.write_all(b"GET /hang HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
        store.until(|hung| hung.begun == i).await;
        drop(io);
        store.until(|hung| hung.cancelled == i).await;
    }
    let (head, _) = raw::http(web.outbound, "GET / HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(web.failures(), 0);
}

/// B53: a peer that is gone without a word is found out by its silence.
#[tokio::test(flavor = "local")]
async fn b53_an_http_2_peer_that_answers_no_ping_is_given_up() {
    let (pki, (listener, addr)) = (Pki::new(), raw::listener().await);
    let web = client(&pki);
    web.told.endpoints(PATH, known(&[plain(addr)]));
    let mut client = h2(web.outbound).await;
    let asking = tokio::spawn(client.send_request(get("http://store/")));
    let mut server = accept(&listener).await;
    next(&mut server, HEADERS).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(21)).await;
    tokio::time::resume();
    next(&mut server, PING).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(21)).await;
    tokio::time::resume();
    let answer = tokio::time::timeout(raw::PATIENCE, asking).await.unwrap().unwrap().unwrap();
    assert_eq!(answer.status(), 502);
    assert!(answer.headers()["l5d-proxy-error"].to_str().unwrap().starts_with("UPS-006"), "{answer:?}");
}

/// B45 (c): an endpoint that hangs is left out, whichever of the route's limits shows it.
#[tokio::test(flavor = "local")]
async fn an_endpoint_that_hangs_shuts_its_breaker() {
    const HALF: &str = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
    let limit = Some(Duration::from_millis(30));
    let timeouts = Timeouts::default();
    let retry = RetryPolicy {
        max_retries: 1,
        max_request_bytes: 0,
        statuses: Vec::new(),
        grpc_codes: Vec::new(),
        per_try_timeout: limit,
        backoff: Backoff { min: Duration::from_millis(1), max: Duration::from_millis(1), jitter: 0.0 },
        respects_retry_after: false,
    };
    let response = Timeouts { response: limit, ..timeouts };
    for (what, answer, timeouts, retry) in [
        ("request", "", Timeouts { request: limit, ..timeouts }, None),
        ("response", "", response, None),
        ("a try", "", Timeouts { request: Some(Duration::from_millis(100)), ..timeouts }, Some(retry)),
        ("request, in the middle of the answer", HALF, Timeouts { request: limit, ..timeouts }, None),
        ("idle", HALF, Timeouts { idle: limit, ..timeouts }, None),
    ] {
        let (pki, (listener, addr)) = (Pki::new(), raw::listener().await);
        let hanging = tokio::task::spawn_local(async move {
            let mut held = Vec::new();
            while let Ok((mut io, _)) = listener.accept().await {
                // A request that never comes whole ends in an error here.
                if raw::read_http(&mut io).await.is_ok() {
                    io.write_all(answer.as_bytes()).await.unwrap();
                    held.push(io);
                }
            }
        });
        let web = client(&pki);
        web.told.endpoints(PATH, known(&[plain(addr)]));
        let backoff = Backoff { min: Duration::from_secs(60), max: Duration::from_secs(60), jitter: 0.0 };
        // In a row, or by the rate: either counts them.
        let rate = SuccessRate { threshold: 0.5, window: Duration::from_secs(60), min_requests: 2 };
        let (max_consecutive, rate) = if answer.is_empty() { (2, None) } else { (0, Some(rate)) };
        let accrual =
            FailureAccrual { max_consecutive, rate, backoff, respects_retry_after: false, min_ready: 0 };
        let rule = HttpRule { timeouts, retry: retry.clone(), ..rule(balance(PATH)) };
        let all = HttpRoutes { accrual: Some(accrual), ..routes(rule) };
        web.told.destination(destination(dst(), OutboundProtocol::Http1(all), false));
        // What it is not given whole it cannot answer: that does not count.
        let slow = "POST / HTTP/1.1\r\nHost: s\r\nContent-Length: 9\r\n\r\n";
        if what == "request" {
            for _ in 0..3 {
                let (head, _) = raw::http(web.outbound, slow).await.unwrap();
                assert!(error_of(&head).starts_with("UPS-009"), "{what}: {head}");
            }
        }
        let mut codes = Vec::new();
        for _ in 0..3 {
            let answered = raw::http(web.outbound, "GET / HTTP/1.1\r\nHost: s\r\n\r\n").await;
            let head = answered.map_or(String::new(), |(head, _)| head);
            codes.push(error_of(&head).get(..7).unwrap_or_default().to_owned());
        }
        assert_eq!(codes[2], "UPS-005", "{what}: {codes:?}");
        if retry.is_none() {
            assert_ne!(codes[1], "UPS-005", "{what}: {codes:?}");
        }
        hanging.abort();
    }
}

/// An endpoint's own parameters for HTTP/2 are those of its connections.
#[tokio::test(flavor = "local")]
async fn an_endpoints_http_2_parameters_are_used() {
    let (pki, (listener, addr)) = (Pki::new(), raw::listener().await);
    let web = client(&pki);
    let http2 = Http2Client {
        windows: Some(Http2Windows::Fixed { stream: Some(77_777), connection: None }),
        keep_alive: Some(Http2KeepAlive {
            interval: Duration::from_millis(20),
            timeout: None,
            while_idle: true,
        }),
        ..Http2Client::default()
    };
    web.told.endpoints(PATH, known(&[Endpoint { http2, ..Endpoint::clone(&plain(addr)) }.into()]));
    let mut client = h2(web.outbound).await;
    let asking = tokio::spawn(client.send_request(get("http://store/")));
    let mut server = accept(&listener).await;
    let settings = next(&mut server, SETTINGS).await;
    // SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113, 6.5.2).
    let window = [&[0, 4][..], &77_777_u32.to_be_bytes()].concat();
    assert!(settings.payload.chunks(6).any(|setting| setting == window), "{settings:?}");
    let request = next(&mut server, HEADERS).await;
    server.send(&headers(request.stream, END_STREAM, &[(":status", "204")])).await.unwrap();
    let answer = tokio::time::timeout(raw::PATIENCE, asking).await.unwrap().unwrap().unwrap();
    assert_eq!(answer.status(), 204);
    // Nothing is under way, and yet it wants to know.
    next(&mut server, PING).await;
}
