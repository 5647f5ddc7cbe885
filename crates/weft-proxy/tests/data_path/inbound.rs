//! Inbound: who may, what the application sees, what a refused caller hears.

use crate::harness::{Proxy, app, collect, detect, get, h2, meta, only, server};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use weft_fault::Code;
use weft_model::{
    http::{HttpMatch, PathMatch},
    identity::Identity,
    inbound::{Authn, HttpPolicy, Protocol, RateLimit, Route, Rule},
};
use weft_testkit::{
    pki::{self, Pki},
    raw,
};
use weft_tls::{
    credentials::{Client, Credentials},
    handshake::{self, Offer},
};
use weft_wire::{
    record::ConnectionRecord,
    transport_header::{Session, TransportHeader},
};

const NOWHERE: &str = "192.0.2.1:80";

fn nowhere() -> std::net::SocketAddr {
    NOWHERE.parse().unwrap()
}

async fn tls(client: &Client, proxy: &Proxy, transport: bool) -> tokio_rustls::client::TlsStream<TcpStream> {
    let tcp = TcpStream::connect(proxy.inbound).await.unwrap();
    let offer = if transport { Offer::Transport } else { Offer::Nothing };
    handshake::connect(client, tcp, &proxy.id, &proxy.id, offer).await.unwrap().stream
}

async fn tls_http(client: &Client, proxy: &Proxy, request: &str) -> (String, Vec<u8>) {
    let mut stream = tls(client, proxy, false).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    raw::read_http(&mut stream).await.unwrap()
}

fn web(pki: &Pki) -> (Identity, Credentials) {
    let id = weft_testkit::pki::identity("web", "shop");
    let credentials = pki.credentials(&id);
    (id, credentials)
}

#[tokio::test(flavor = "local")]
async fn plaintext_passes_where_it_may_and_hears_a_code_where_not() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, "store", app.addr, nowhere());
    proxy.told.inbound(app.addr.port(), server(detect(), Authn::Unauthenticated));
    let request = "GET /a?b=c HTTP/1.1\r\nHost: store\r\nl5d-client-id: forged\r\n\r\n";
    let (head, _) = raw::http(proxy.inbound, request).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(app.last().line, "GET /a?b=c HTTP/1.1");
    assert!(!app.last().headers.contains_key("l5d-client-id"));
    // The same connection hears of the new policy at its next request.
    let mut io = TcpStream::connect(proxy.inbound).await.unwrap();
    io.write_all(request.as_bytes()).await.unwrap();
    assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 200"));
    proxy.told.inbound(app.addr.port(), server(detect(), Authn::AnyTls));
    io.write_all(request.as_bytes()).await.unwrap();
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    assert!(head.contains("l5d-proxy-error: POL-002\r\n"), "{head}");
    assert!(!head.contains("connection: close"), "{head}");
    assert_eq!(app.count(), 2);
    assert_eq!(proxy.failure().await.fault.unwrap().code, "POL-002");
    // And it goes on when allowed again.
    proxy.told.inbound(app.addr.port(), server(detect(), Authn::Unauthenticated));
    io.write_all(request.as_bytes()).await.unwrap();
    assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "local")]
async fn a_meshed_client_is_named_to_the_application_and_told_why_it_is_refused() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, "store", app.addr, nowhere());
    let (id, credentials) = web(&pki);
    proxy.told.inbound(app.addr.port(), server(detect(), only(&id)));
    let request = "POST /x HTTP/1.1\r\nHost: store\r\nContent-Length: 3\r\n\r\nabc";
    let (head, body) = tls_http(credentials.client(), &proxy, request).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(body, b"abc");
    assert_eq!(app.last().headers["l5d-client-id"], id.as_str());
    let other = pki.credentials(&weft_testkit::pki::identity("other", "shop"));
    let (head, _) = tls_http(other.client(), &proxy, request).await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    let told = head.lines().find(|line| line.starts_with("l5d-proxy-error: ")).unwrap();
    assert!(told.contains("POL-001") && told.contains("other.shop.serviceaccount"), "{told}");
    let record = proxy.failure().await;
    assert_eq!(
        record.client_identity.as_deref(),
        Some("other.shop.serviceaccount.identity.linkerd.cluster.local")
    );
    // TLS without a certificate is nobody.
    let (head, _) = tls_http(&Client::anonymous(&pki.anchors()), &proxy, request).await;
    assert!(head.contains("POL-002"), "{head}");
}

#[tokio::test(flavor = "local")]
async fn grpc_is_refused_in_its_own_form_and_unrouted_requests_are_404() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, "store", app.addr, nowhere());
    let (id, _) = web(&pki);
    let http = HttpPolicy {
        routes: vec![Route {
            meta: meta("route"),
            hosts: Vec::new(),
            authorizations: Vec::new(),
            rules: vec![Rule {
                matches: vec![HttpMatch {
                    path: Some(PathMatch::Prefix("/known".into())),
                    ..Default::default()
                }],
                filters: Vec::new(),
            }],
        }],
        rate_limit: None,
    };
    let timeout = std::time::Duration::from_secs(10);
    proxy.told.inbound(app.addr.port(), server(Protocol::Detect { timeout, http }, only(&id)));
    let mut client = h2(proxy.inbound).await;
    let grpc = Request::post("http://store/known/Method")
        .header("content-type", "application/grpc")
        .body(Full::new(Bytes::new()))
        .unwrap();
    let (head, _, _) = collect(client.send_request(grpc).await.unwrap()).await;
    assert_eq!((head.status.as_u16(), &head.headers["grpc-status"]), (200, &"7".parse().unwrap()));
    assert_eq!(head.headers["grpc-message"], "POL-002");
    let (head, _, _) = collect(client.send_request(get("http://store/unknown")).await.unwrap()).await;
    assert_eq!(head.status, 404);
    assert_eq!(head.headers["l5d-proxy-error"], "RTE-001");
    assert_eq!(app.count(), 0);
}

#[tokio::test(flavor = "local")]
async fn an_application_that_is_down_or_breaks_is_told_from_its_proxy() {
    let (pki, app) = (Pki::new(), app().await);
    let (_, credentials) = web(&pki);
    let refused = proxy(&pki, "store", raw::refused().await, nowhere());
    let request = "GET / HTTP/1.1\r\nHost: s\r\n\r\n";
    let (head, _) = tls_http(credentials.client(), &refused, request).await;
    assert!(head.starts_with("HTTP/1.1 502") && head.contains("UPS-010"), "{head}");
    assert!(
        head.contains("l5d-proxy-connection: close\r\n") && head.contains("connection: close\r\n"),
        "{head}"
    );
    let proxy = proxy(&pki, "store", app.addr, nowhere());
    let (head, _) = tls_http(credentials.client(), &proxy, "GET /gone HTTP/1.1\r\nHost: s\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 502") && head.contains("UPS-012"), "{head}");
    // What the application itself says is passed on as it is, and it cannot speak for the proxy.
    let (head, _) =
        tls_http(credentials.client(), &proxy, "GET /status/503 HTTP/1.1\r\nHost: s\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 503") && !head.contains("l5d-proxy-error"), "{head}");
    let liar =
        raw::answering("HTTP/1.1 502 Bad\r\nl5d-proxy-error: POL-002\r\ncontent-length: 0\r\n\r\n").await;
    let proxy = self::proxy(&pki, "liar", liar, nowhere());
    let (head, _) = tls_http(credentials.client(), &proxy, request).await;
    assert!(head.starts_with("HTTP/1.1 502") && !head.contains("l5d-proxy-error"), "{head}");
    let stranger = raw::answering("SUPER 1.0\n").await;
    let proxy = self::proxy(&pki, "stranger", stranger, nowhere());
    let (head, _) = tls_http(credentials.client(), &proxy, request).await;
    assert!(head.starts_with("HTTP/1.1 502") && head.contains("UPS-013"), "{head}");
}

fn proxy(pki: &Pki, name: &str, app: std::net::SocketAddr, dst: std::net::SocketAddr) -> Proxy {
    crate::harness::proxy(pki, name, app, dst, &[])
}

/// Accepts one connection and hands it over.
async fn accepting() -> (TcpListener, std::net::SocketAddr) {
    raw::listener().await
}

#[tokio::test(flavor = "local")]
async fn a_rate_limit_is_shared_by_all_connections() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, "store", app.addr, nowhere());
    let rate_limit =
        RateLimit { meta: meta("limit"), total: Some(3), per_identity: None, overrides: Vec::new() };
    let http = HttpPolicy { routes: Vec::new(), rate_limit: Some(rate_limit) };
    let protocol = Protocol::Detect { timeout: std::time::Duration::from_secs(10), http };
    proxy.told.inbound(app.addr.port(), server(protocol, Authn::Unauthenticated));
    let mut refused = 0;
    // However slow this machine is: it needs a third of a second for each request to escape the limit.
    for _ in 0..30 {
        let (head, _) = raw::http(proxy.inbound, "GET / HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
        if head.starts_with("HTTP/1.1 429") && head.contains("l5d-proxy-error: LIM-002") {
            refused += 1;
        }
    }
    assert!(refused > 0 && app.count() == 30 - refused, "{refused} refused, {} served", app.count());
}

#[tokio::test(flavor = "local")]
async fn a_split_hello_for_another_name_reaches_the_application_whole() {
    let pki = Pki::new();
    let (listener, addr) = accepting().await;
    let proxy = proxy(&pki, "store", addr, nowhere());
    // A real hello for app.example, in three pieces.
    let (mut ours, theirs) = tokio::io::duplex(64 * 1024);
    let app_id = Identity::parse("app.example").unwrap();
    let client = Client::anonymous(&pki.anchors());
    let shaking = tokio::task::spawn_local(async move {
        let _never_answered = handshake::connect(&client, theirs, &app_id, &app_id, Offer::Nothing).await;
    });
    let mut hello = vec![0; 5];
    ours.read_exact(&mut hello).await.unwrap();
    let length = usize::from(u16::from_be_bytes([hello[3], hello[4]]));
    hello.resize(5 + length, 0);
    ours.read_exact(&mut hello[5..]).await.unwrap();
    let mut io = TcpStream::connect(proxy.inbound).await.unwrap();
    io.set_nodelay(true).unwrap();
    let (first, rest) = hello.split_at(200);
    let (second, third) = rest.split_at(400);
    for piece in [first, second, third] {
        io.write_all(piece).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(20)).await; // so that they are separate segments
    }
    io.write_all(b"more").await.unwrap();
    io.shutdown().await.unwrap();
    let (mut app, _) = listener.accept().await.unwrap();
    let got = raw::read_all(&mut app).await.unwrap();
    assert_eq!(got, [&hello[..], b"more"].concat());
    shaking.abort();
}

#[tokio::test(flavor = "local")]
async fn few_opaque_bytes_pass_at_once_and_a_half_close_goes_through() {
    let pki = Pki::new();
    let (listener, addr) = accepting().await;
    let proxy = proxy(&pki, "store", addr, nowhere());
    let mut io = TcpStream::connect(proxy.inbound).await.unwrap();
    io.write_all(&[1, 2, 3, 4]).await.unwrap();
    let (mut app, _) = listener.accept().await.unwrap();
    let mut got = [0; 4];
    app.read_exact(&mut got).await.unwrap();
    assert_eq!(got, [1, 2, 3, 4]);
    io.shutdown().await.unwrap();
    assert_eq!(raw::read_all(&mut app).await.unwrap(), b"");
    app.write_all(b"still here").await.unwrap();
    drop(app);
    assert_eq!(raw::read_all(&mut io).await.unwrap(), b"still here");
    let record = proxy.record(|record| record.ended.is_some()).await;
    assert_eq!((record.read_bytes, record.written_bytes), (4, 10));
}

#[tokio::test(flavor = "local")]
async fn withdrawing_permission_cuts_an_opaque_connection_and_says_so() {
    let pki = Pki::new();
    let (listener, addr) = accepting().await;
    let proxy = proxy(&pki, "store", addr, nowhere());
    proxy.told.inbound(addr.port(), server(Protocol::Opaque, Authn::Unauthenticated));
    let mut io = TcpStream::connect(proxy.inbound).await.unwrap();
    io.write_all(b"x").await.unwrap();
    let (mut app, _) = listener.accept().await.unwrap();
    assert_eq!(app.read_u8().await.unwrap(), b'x');
    // A change that still allows it does not cut it.
    proxy.told.inbound(addr.port(), server(Protocol::Opaque, Authn::Unauthenticated));
    io.write_all(b"y").await.unwrap();
    assert_eq!(app.read_u8().await.unwrap(), b'y');
    proxy.told.inbound(addr.port(), server(Protocol::Opaque, Authn::AnyTls));
    assert_eq!(raw::read_all(&mut app).await.unwrap_or_default(), b"");
    let record = proxy.failure().await;
    assert_eq!(record.fault.as_ref().unwrap().code, "POL-004");
    assert!(record.fault.unwrap().causes[0].starts_with("POL-002"));
    // A new one is refused before the application hears of it.
    let mut io = TcpStream::connect(proxy.inbound).await.unwrap();
    io.write_all(b"z").await.unwrap();
    assert_eq!(raw::read_all(&mut io).await.unwrap_or_default(), b"");
}

#[tokio::test(flavor = "local")]
async fn the_proxys_own_port_wants_mutual_tls_and_a_header() {
    let (pki, app) = (Pki::new(), app().await);
    let mut proxy = proxy(&pki, "store", app.addr, nowhere());
    // Connections to the port itself: nothing redirected them.
    let socket = weft_net::socket::listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    proxy.inbound = socket.local_addr().unwrap();
    let own = proxy.mesh.config.inbound.listen;
    let listener = weft_net::socket::Listener::new(socket, Default::default()).unwrap().pretending(own);
    tokio::task::spawn_local(weft_proxy::inbound::serve(proxy.mesh.clone(), listener));
    let (id, credentials) = web(&pki);
    let port = app.addr.port();
    proxy.told.inbound(port, server(detect(), only(&id)));

    let open = |header: TransportHeader, bytes: &'static [u8]| {
        let (client, proxy) = (credentials.client(), &proxy);
        async move {
            let mut stream = tls(client, proxy, true).await;
            stream.write_all(&header.encode()).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            stream
        }
    };
    let request = b"GET / HTTP/1.1\r\nHost: s\r\n\r\n";
    let mut stream = open(TransportHeader { port, name: None, session: Some(Session::Http1) }, request).await;
    assert!(raw::read_http(&mut stream).await.unwrap().0.starts_with("HTTP/1.1 200"));
    assert_eq!(app.last().headers["l5d-client-id"], id.as_str());
    // Without a session protocol the bytes are opaque: the application sees them as they are.
    let mut stream = open(TransportHeader { port, name: None, session: None }, request).await;
    assert_eq!(stream.read_u8().await.unwrap(), 0, "accepted");
    assert!(raw::read_http(&mut stream).await.unwrap().0.starts_with("HTTP/1.1 200"));
    assert!(!app.last().headers.contains_key("l5d-client-id"));
    // A name would make it a gateway.
    let mut stream = open(TransportHeader { port, name: Some("x.y".into()), session: None }, b"").await;
    let refused = raw::read_all(&mut stream).await.unwrap();
    assert!(refused.starts_with(b"\x01") && refused[3..].starts_with(b"CLU-001 "), "{refused:?}");
    assert_eq!(proxy.failure().await.fault.unwrap().fact("target"), Some(format!("x.y:{port}").as_str()));
    // The proxy's own port behind its own port.
    let mut stream = open(TransportHeader { port: own.port(), name: None, session: None }, b"").await;
    let refused = raw::read_all(&mut stream).await.unwrap();
    assert!(refused.starts_with(b"\x01") && refused[3..].starts_with(b"NET-006 "), "{refused:?}");

    let code = |code: Code| {
        let proxy = &proxy;
        async move { proxy.record(|r| r.fault.as_ref().is_some_and(|f| f.code == code.id())).await }
    };
    code(Code::ConnectionLoop).await;
    let mut stream = TcpStream::connect(proxy.inbound).await.unwrap();
    stream.write_all(request).await.unwrap();
    code(Code::PlaintextOnOwnPort).await;
    // A probe is written down, and is nobody's failure.
    drop(TcpStream::connect(proxy.inbound).await.unwrap());
    let silent = |r: &ConnectionRecord| r.ended.as_deref().is_some_and(|how| how.contains("without sending"));
    assert_eq!(proxy.record(silent).await.fault, None);
    let mut stream = tls(credentials.client(), &proxy, false).await;
    assert_eq!(raw::read_all(&mut stream).await.unwrap_or_default(), b"");
    code(Code::TransportNotOffered).await;
    let tcp = TcpStream::connect(proxy.inbound).await.unwrap();
    let other = Identity::parse("other.example").unwrap();
    let told =
        handshake::connect(credentials.client(), tcp, &other, &other, Offer::Transport).await.unwrap_err();
    assert_eq!(told.code(), Code::ForeignServerName, "the client is told by an alert");
    let record = code(Code::ForeignServerName).await;
    assert_eq!(record.fault.unwrap().fact("seen"), Some("other.example"));
}

#[tokio::test(flavor = "local")]
async fn probes_of_a_port_that_denies_them_are_no_failures_and_callers_are_reset() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, "store", app.addr, app.addr);
    proxy.told.inbound(app.addr.port(), server(Protocol::Opaque, only(&pki::identity("web", "shop"))));
    drop(TcpStream::connect(proxy.inbound).await.unwrap());
    let silent = |r: &ConnectionRecord| r.ended.as_deref().is_some_and(|how| how.contains("without sending"));
    assert_eq!(proxy.record(silent).await.fault, None);
    let mut stream = TcpStream::connect(proxy.inbound).await.unwrap();
    stream.write_all(b"PING").await.unwrap();
    let told = raw::read_all(&mut stream).await.unwrap_err();
    assert_eq!(told.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(proxy.failure().await.fault.unwrap().code, "POL-002");
}

#[tokio::test(flavor = "local")]
async fn a_policy_that_cannot_be_read_refuses_everything_and_says_so() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, "store", app.addr, app.addr);
    let unreadable = server(Protocol::Unreadable("server.protocol".into()), Authn::Unauthenticated);
    proxy.told.inbound(app.addr.port(), unreadable);
    let (head, _) = raw::http(proxy.inbound, "GET / HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    assert!(head.starts_with("HTTP/1.1 500") && head.contains("l5d-proxy-error: POL-003\r\n"), "{head}");
    let mut stream = TcpStream::connect(proxy.inbound).await.unwrap();
    stream.write_all(b"\x01\x02").await.unwrap();
    assert!(raw::read_all(&mut stream).await.is_err(), "reset");
    assert_eq!(app.count(), 0);
    assert_eq!(proxy.failure().await.fault.unwrap().fact("policy"), Some("server.protocol"));
}
