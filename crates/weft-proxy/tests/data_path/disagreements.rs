//! Where the policy and somebody else disagree whether a destination's connections are bytes or requests.

use crate::{
    harness::{Proxy, app, balance, destination, opaque, policy, routes, rule},
    retries::{PATH, dst, error_of, known, plain},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use weft_model::{
    outbound::{BackendKind, OutboundProtocol, Refusal, Timeouts},
    profile::Profile,
};
use weft_proxy::discovery::Destination;
use weft_testkit::{pki::Pki, raw};

fn client(pki: &Pki, env: &[(&str, &str)]) -> Proxy {
    crate::harness::proxy(pki, "web", dst(), dst(), env)
}

const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: s\r\nl5d-dst-override: web.shop.svc.cluster.local:80\r\n\r\n";

/// An ingress speaks HTTP, whatever the policy calls the destination.
#[tokio::test(flavor = "local")]
async fn requests_of_an_ingress_go_where_the_bytes_would() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki, &[("INGRESS_MODE", "true")]);
    let bytes = || OutboundProtocol::Opaque(opaque(balance(PATH)));
    proxy.told.destination(destination(dst(), bytes(), false));
    proxy.told.named("web.shop.svc.cluster.local:80", Ok(destination(dst(), bytes(), false)));
    proxy.told.endpoints(PATH, known(&[plain(one.addr)]));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    for n in 1..=2 {
        io.write_all(GET).await.unwrap();
        let (head, _) = raw::read_http(&mut io).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200") && !head.contains("connection: close"), "{head}");
        assert_eq!(one.count(), n);
    }
    // What refuses bytes refuses requests.
    let mut refusing = opaque(balance(PATH));
    refusing.routes[0].refuses = Some(Refusal::Forbidden);
    proxy.told.named(
        "web.shop.svc.cluster.local:80",
        Ok(destination(dst(), OutboundProtocol::Opaque(refusing), false)),
    );
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(GET).await.unwrap();
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    assert_eq!(proxy.failure().await.fault.unwrap().code, weft_fault::Code::EgressDenied.id());
    assert_eq!(one.count(), 2);
}

/// The profile's word wins (a Server or an annotation calls the port opaque), and the policy's backends serve.
#[tokio::test(flavor = "local")]
async fn bytes_go_where_the_least_specific_request_would() {
    let (pki, one) = (Pki::new(), app().await);
    for protocol in [OutboundProtocol::Http1, OutboundProtocol::Http2, OutboundProtocol::Grpc] {
        let proxy = client(&pki, &[]);
        let profile = Some(Arc::new(Profile { opaque: true, ..Profile::default() }));
        let mut never = rule(BackendKind::Invalid("a match that bytes cannot have".into()));
        never.matches.push(Default::default());
        let mut all = routes(rule(balance(PATH)));
        all.routes[0].rules.insert(0, never);
        proxy.told.destination(Destination { profile, ..destination(dst(), protocol(all), false) });
        proxy.told.endpoints(PATH, known(&[plain(one.addr)]));
        let (head, _) = raw::http(proxy.outbound, "GET /a HTTP/1.1\r\nHost: s\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let record = proxy.record(|record| record.protocol.is_some()).await;
        assert_eq!(record.protocol.as_deref(), Some("opaque"));
    }
}

/// What answers on loopback is this pod itself: an endpoint that says so is a mistake or an attack.
#[tokio::test(flavor = "local")]
async fn endpoints_on_loopback_are_not_dialled() {
    let (pki, one) = (Pki::new(), app().await);
    let proxy = client(&pki, &[("WEFT_OUTBOUND_LOOPBACK", "false")]);
    proxy.told.destination(destination(dst(), policy(BackendKind::Forward(plain(one.addr))), false));
    let (head, _) = raw::http(proxy.outbound, "GET /a HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    assert!(error_of(&head).starts_with(weft_fault::Code::ConnectionLoop.id()), "{head}");
    assert_eq!(one.count(), 0);
}

/// A server that always has more to say is cut like one that is silent.
#[tokio::test(flavor = "local")]
async fn a_response_without_end_is_cut_at_the_routes_limit() {
    let pki = Pki::new();
    let proxy = client(&pki, &[]);
    let endless = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = endless.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        let (mut io, _) = endless.accept().await.unwrap();
        io.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
        let chunk = [b"1000\r\n".as_slice(), &[b'x'; 0x1000], b"\r\n"].concat();
        while io.write_all(&chunk).await.is_ok() {}
    });
    let mut limited = rule(BackendKind::Forward(plain(addr)));
    limited.timeouts = Timeouts { request: Some(Duration::from_millis(300)), ..Default::default() };
    proxy.told.destination(destination(dst(), OutboundProtocol::Http1(routes(limited)), false));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(b"GET / HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    let reading = async {
        let mut piece = vec![0; 1 << 16];
        while !matches!(io.read(&mut piece).await, Ok(0) | Err(_)) {}
    };
    tokio::time::timeout(raw::PATIENCE, reading).await.expect("it ends");
    assert_eq!(proxy.failure().await.fault.unwrap().code, "UPS-009");
}

/// "Idle" is when neither side moves: an upload under an early response is none, and an upload that stops is.
#[tokio::test(flavor = "local")]
async fn a_stream_is_idle_when_neither_body_moves() {
    let pki = Pki::new();
    let proxy = client(&pki, &[]);
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = server.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        // Answers the first request's head at once and ends with the request; never answers another.
        let (mut io, _) = server.accept().await.unwrap();
        raw::read_until(&mut io, b"\r\n\r\n").await.unwrap();
        io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n").await.unwrap();
        raw::read_until(&mut io, b"0\r\n\r\n").await.unwrap();
        io.write_all(b"done").await.unwrap();
        let (mut other, _) = server.accept().await.unwrap();
        drop(raw::read_all(&mut other).await);
    });
    let mut limited = rule(BackendKind::Forward(plain(addr)));
    limited.timeouts = Timeouts { idle: Some(Duration::from_secs(1)), ..Default::default() };
    proxy.told.destination(destination(dst(), OutboundProtocol::Http1(routes(limited)), false));

    const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(POST).await.unwrap();
    // Longer than the limit in all, never so long without a piece.
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        io.write_all(b"1\r\nx\r\n").await.unwrap();
    }
    io.write_all(b"0\r\n\r\n").await.unwrap();
    let (head, body) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && body == b"done", "{head}");

    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(POST).await.unwrap();
    io.write_all(b"1\r\nx\r\n").await.unwrap();
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 504") && error_of(&head).starts_with("UPS-017"), "{head}");
}
