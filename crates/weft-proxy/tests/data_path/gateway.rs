//! Two clusters' worth of proxies: a client's, a gateway's and a server's, and peers that are scripted where a stock proxy
//! would stand.

use crate::{
    harness::{
        App, Proxy, app, balance, collect, destination, detect, h2, meshed, only, policy, proxy, server,
    },
    outcomes::on_own_port,
};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;
use weft_fault::{Code, Fault};
use weft_model::{
    inbound::Authn,
    outbound::{BackendKind, Endpoint, Endpoints, ProtocolHint},
};
use weft_testkit::{
    pki::{self, Pki},
    raw,
};
use weft_tls::handshake;
use weft_wire::{
    transport_answer::TransportAnswer,
    transport_header::{Session, TransportHeader},
};

const NAME: &str = "store.shop.svc.cluster.local";
const SUFFIX: (&str, &str) = ("INBOUND_GATEWAY_SUFFIXES", "svc.cluster.local");

fn nowhere() -> SocketAddr {
    "192.0.2.1:80".parse().unwrap()
}

/// A gateway, and behind it an application with its proxy.
struct Clusters {
    pki: Pki,
    gateway: Proxy,
    server: Proxy,
    app: App,
}

async fn clusters(env: &[(&str, &str)]) -> Clusters {
    let (pki, app) = (Pki::new(), app().await);
    let server = proxy(&pki, "store", app.addr, nowhere(), &[]);
    let mut gateway = proxy(&pki, "gateway", nowhere(), nowhere(), env);
    on_own_port(&mut gateway);
    server.told.inbound(app.addr.port(), self::server(detect(), only(&gateway.id)));
    Clusters { pki, gateway, server, app }
}

impl Clusters {
    async fn new() -> Self {
        let clusters = clusters(&[SUFFIX]).await;
        clusters.serves(NAME, 80);
        clusters.gateway.told.inbound(clusters.own_port(), self::server(detect(), Authn::AnyTls));
        clusters
    }

    /// The gateway learns that a name leads to the server.
    fn serves(&self, name: &str, port: u16) {
        let path = format!("{name}:{port}");
        let mut endpoint = meshed(self.server.inbound, &self.server.id);
        endpoint.hint = ProtocolHint::H2;
        self.gateway.told.named(&path, Ok(destination(nowhere(), policy(balance(&path)), true)));
        self.gateway.told.endpoints(&path, Endpoints::Known(Arc::new(vec![Arc::new(endpoint)])));
    }

    fn own_port(&self) -> u16 {
        self.gateway.mesh.config.inbound.listen.port()
    }

    /// As another cluster's proxy connects: by its own hand, so that each byte is known.
    async fn connect(
        &self,
        account: &str,
        name: Option<&str>,
        port: u16,
        session: Option<Session>,
    ) -> TlsStream<TcpStream> {
        let credentials = self.pki.credentials(&pki::identity(account, "shop"));
        let tcp = TcpStream::connect(self.gateway.inbound).await.unwrap();
        let id = &self.gateway.id;
        let mut io = handshake::connect(credentials.client(), tcp, id, id, handshake::Offer::Transport)
            .await
            .unwrap()
            .stream;
        let header = TransportHeader { port, name: name.map(str::to_owned), session };
        io.write_all(&header.encode()).await.unwrap();
        io
    }

    /// How often the gateway counted a failed request so.
    async fn counted(&self, kind: &str, code: &str) -> u64 {
        self.gateway.counted("inbound_http_errors_total{", kind, code).await
    }

    async fn ask(&self, account: &str, name: Option<&str>, port: u16, head: &str) -> (String, Vec<u8>) {
        let mut io = self.connect(account, name, port, Some(Session::Http1)).await;
        io.write_all(format!("GET /a HTTP/1.1\r\n{head}\r\n").as_bytes()).await.unwrap();
        raw::read_http(&mut io).await.unwrap()
    }
}

fn error(head: &str) -> &str {
    head.lines().find_map(|line| line.strip_prefix("l5d-proxy-error: ")).unwrap_or_default()
}

#[tokio::test(flavor = "local")]
async fn a_request_goes_through_a_gateway_and_says_so() {
    let clusters = Clusters::new().await;
    let (head, _) = clusters.ask("web", Some(NAME), 80, "host: mirrored\r\nl5d-require-id: x\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200") && !head.contains("l5d-"), "{head}");
    let seen = clusters.app.last();
    let (gateway, web) = (&clusters.gateway.id, pki::identity("web", "shop"));
    assert_eq!(seen.headers["forwarded"], format!("by={gateway};for={web};host={NAME};proto=https"));
    assert_eq!(
        (&seen.headers["host"], &seen.headers["l5d-client-id"]),
        (&NAME.parse().unwrap(), &gateway.as_str().parse().unwrap())
    );
    // Both halves are recorded, and the server's proxy knows the second.
    let onward = clusters.gateway.record(|r| r.direction == weft_wire::record::Direction::Outbound).await;
    let theirs = clusters.server.record(|r| r.peer_id.is_some()).await;
    assert_eq!(theirs.peer_id.as_ref(), Some(&onward.id));
    // A name is a label where something is behind it.
    clusters.ask("web", Some("made-up.example"), 80, "host: mirrored\r\n").await;
    let page = clusters.gateway.metrics().await;
    let hails = |line: &&str| line.starts_with("inbound_tcp_transport_header_connections_total{");
    let known = format!("target_name=\"{NAME}\"");
    assert!(page.lines().filter(hails).any(|line| line.contains(&known)), "{page}");
    assert!(!page.contains("made-up"), "{page}");
}

/// The other cluster says HTTP, and this one's policy knows bytes: a session keeps its form (B15).
#[tokio::test(flavor = "local")]
async fn a_session_of_requests_reaches_a_destination_of_bytes() {
    let clusters = Clusters::new().await;
    let path = format!("{NAME}:80");
    let bytes = weft_model::outbound::OutboundProtocol::Opaque(crate::harness::opaque(balance(&path)));
    clusters.gateway.told.named(&path, Ok(destination(nowhere(), bytes, true)));
    let (head, _) = clusters.ask("web", Some(NAME), 80, "host: mirrored\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

#[tokio::test(flavor = "local")]
async fn a_weft_client_reaches_a_mirrored_service_in_every_protocol() {
    let clusters = Clusters::new().await;
    let dst: SocketAddr = "192.0.2.80:80".parse().unwrap();
    let client = proxy(&clusters.pki, "web", dst, dst, &[]);
    let endpoint = |hint| {
        let endpoint = meshed(clusters.gateway.inbound, &clusters.gateway.id);
        let authority_override = Some(format!("{NAME}:80"));
        Arc::new(Endpoint {
            transport_port: Some(clusters.gateway.inbound.port()),
            authority_override,
            hint,
            ..endpoint
        })
    };
    let lead =
        |hint| client.told.destination(destination(dst, policy(BackendKind::Forward(endpoint(hint))), true));
    for hint in [ProtocolHint::H2, ProtocolHint::Unknown] {
        lead(hint);
        let request = "POST /a HTTP/1.1\r\nHost: store-east\r\nContent-Length: 3\r\n\r\nabc";
        let mut io = TcpStream::connect(client.outbound).await.unwrap();
        io.write_all(request.as_bytes()).await.unwrap();
        let (head, body) = raw::read_http(&mut io).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200") && body == b"abc", "{hint:?} {head}");
        assert_eq!(clusters.app.last().headers["host"], NAME);
        assert_eq!(&clusters.app.last().body[..], b"abc");
    }
    // gRPC: an HTTP/2 request whose status comes in the trailers.
    let mut sender = h2(client.outbound).await;
    let grpc = Request::post("http://store-east/chunks")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from_static(b"abc")))
        .unwrap();
    let (head, body, trailers) = collect(sender.send_request(grpc).await.unwrap()).await;
    assert_eq!((head.status.as_u16(), &body[..]), (200, &b"one two three"[..]));
    assert_eq!(trailers.unwrap()["x-t"], "1");
    assert_eq!(clusters.app.last().line, format!("POST http://{NAME}:80/chunks HTTP/2.0"));
    assert_eq!(clusters.app.last().headers["te"], "trailers");
}

#[tokio::test(flavor = "local")]
async fn an_upgraded_connection_goes_through_a_gateway() {
    let clusters = Clusters::new().await;
    let (listener, addr) = raw::listener().await;
    let server = proxy(&clusters.pki, "chat", addr, nowhere(), &[]);
    server.told.inbound(addr.port(), self::server(detect(), Authn::AnyTls));
    let endpoint = Arc::new(meshed(server.inbound, &server.id));
    clusters.gateway.told.named(
        "chat.shop.svc.cluster.local:80",
        Ok(destination(nowhere(), policy(BackendKind::Forward(endpoint)), true)),
    );
    let mut io = clusters.connect("web", Some("chat.shop.svc.cluster.local"), 80, Some(Session::Http1)).await;
    let request = "GET /ws HTTP/1.1\r\nHost: chat\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    io.write_all(request.as_bytes()).await.unwrap();
    let (mut chat, _) = listener.accept().await.unwrap();
    let head = raw::read_until(&mut chat, b"\r\n\r\n").await.unwrap();
    assert!(
        String::from_utf8_lossy(&head).contains("upgrade: websocket"),
        "{}",
        String::from_utf8_lossy(&head)
    );
    chat.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    let head = raw::read_until(&mut io, b"\r\n\r\n").await.unwrap();
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    io.write_all(b"ping").await.unwrap();
    let mut got = [0; 4];
    chat.read_exact(&mut got).await.unwrap();
    chat.write_all(b"pong").await.unwrap();
    io.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"pong");
    // It lasts as long as what allowed it.
    let other = pki::identity("other", "shop");
    clusters.gateway.told.inbound(clusters.own_port(), self::server(detect(), only(&other)));
    assert_eq!(raw::read_all(&mut io).await.unwrap_or_default(), b"");
    assert_eq!(clusters.gateway.failure().await.fault.unwrap().code, "POL-004");
}

#[tokio::test(flavor = "local")]
async fn opaque_bytes_go_through_a_gateway_until_its_policy_says_no() {
    let clusters = Clusters::new().await;
    let mut io = clusters.connect("web", Some(NAME), 80, None).await;
    io.write_all(b"GET /a HTTP/1.1\r\nHost: as-sent\r\n\r\n").await.unwrap();
    assert_eq!(answer(&mut io).await, TransportAnswer::Accepted);
    assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 200"));
    assert_eq!(clusters.app.last().headers["host"], "as-sent");
    let own_port = clusters.own_port();
    clusters.gateway.told.inbound(own_port, server(detect(), only(&pki::identity("other", "shop"))));
    assert_eq!(raw::read_all(&mut io).await.unwrap_or_default(), b"");
    assert_eq!(clusters.gateway.failure().await.fault.unwrap().code, "POL-004");
    let mut io = clusters.connect("web", Some(NAME), 80, None).await;
    let told = answer(&mut io).await;
    assert!(matches!(&told, TransportAnswer::Refused(text) if text.starts_with("POL-001 ")), "{told:?}");
    let refused =
        |r: &weft_wire::record::ConnectionRecord| r.fault.as_ref().is_some_and(|f| f.code == "POL-001");
    clusters.gateway.record(refused).await;
}

#[tokio::test(flavor = "local")]
async fn the_gateways_own_policy_decides_who_may_use_it() {
    let clusters = Clusters::new().await;
    let own_port = clusters.own_port();
    clusters.gateway.told.inbound(own_port, server(detect(), only(&pki::identity("web", "shop"))));
    let (head, _) = clusters.ask("web", Some(NAME), 80, "host: h\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let (head, _) = clusters.ask("other", Some(NAME), 80, "host: h\r\n").await;
    assert!(head.starts_with("HTTP/1.1 403") && error(&head).starts_with("POL-001 "), "{head}");
    assert_eq!(clusters.app.count(), 1);
}

#[tokio::test(flavor = "local")]
async fn what_a_gateway_cannot_serve_has_a_code_for_each_reason() {
    let clusters = Clusters::new().await;
    let told = &clusters.gateway.told;
    told.named("gone.shop.svc.cluster.local:80", Err(Fault::new(Code::DiscoveryRefused).record()));
    told.named("empty.shop.svc.cluster.local:80", Err(Fault::new(Code::ServiceUnknown).record()));
    for (name, status, code) in [
        ("store.example", "404", "CLU-002"),
        ("gone.shop.svc.cluster.local", "404", "CLU-003"),
        ("empty.shop.svc.cluster.local", "404", "CLU-004"),
    ] {
        let (head, _) = clusters.ask("web", Some(name), 80, "host: h\r\n").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        assert!(error(&head).starts_with(code) && error(&head).contains(name), "{head}");
        assert_eq!(clusters.counted("gateway domain invalid", code).await, 1);
    }
    // It may come to be, on the same connection.
    let mut io =
        clusters.connect("web", Some("empty.shop.svc.cluster.local"), 80, Some(Session::Http1)).await;
    let request = b"GET /a HTTP/1.1\r\nhost: h\r\n\r\n";
    io.write_all(request).await.unwrap();
    assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 404"));
    clusters.serves("empty.shop.svc.cluster.local", 80);
    io.write_all(request).await.unwrap();
    assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "local")]
async fn a_loop_ends_at_the_gateway_that_sees_it() {
    let clusters = Clusters::new().await;
    let own = &clusters.gateway.id;
    let passed =
        format!("host: h\r\nforwarded: by=other;for=x\r\nforwarded: by={own};for=y;host=h;proto=https\r\n");
    let (head, _) = clusters.ask("web", Some(NAME), 80, &passed).await;
    assert!(head.starts_with("HTTP/1.1 508") && error(&head).starts_with("CLU-005 "), "{head}");
    let (head, _) = clusters.ask("gateway", Some(NAME), 80, "host: h\r\n").await;
    assert!(head.starts_with("HTTP/1.1 508") && error(&head).starts_with("CLU-005 "), "{head}");
    let mut io = clusters.connect("gateway", Some(NAME), 80, None).await;
    let TransportAnswer::Refused(text) = answer(&mut io).await else { panic!("a loop was accepted") };
    assert!(text.starts_with("CLU-005 "), "{text}");
    assert_eq!(raw::read_all(&mut io).await.unwrap(), b"");
    assert_eq!(clusters.app.count(), 0);
    assert_eq!(clusters.counted("gateway loop", "CLU-005").await, 2);
}

#[tokio::test(flavor = "local")]
async fn the_state_of_the_balancer_reaches_the_other_cluster() {
    let clusters = Clusters::new().await;
    let down = meshed(raw::refused().await, &clusters.server.id);
    clusters.gateway.told.endpoints(&format!("{NAME}:80"), Endpoints::Known(Arc::new(vec![Arc::new(down)])));
    let (head, _) = clusters.ask("web", Some(NAME), 80, "host: h\r\n").await;
    assert!(head.starts_with("HTTP/1.1 502") && error(&head).starts_with("NET-001 "), "{head}");
    assert!(error(&head).contains("endpoints=1 tried=1 failing=1 x NET-001"), "{head}");
    clusters.gateway.told.endpoints(&format!("{NAME}:80"), Endpoints::Known(Arc::default()));
    let (head, _) = clusters.ask("web", Some(NAME), 80, "host: h\r\n").await;
    assert!(head.starts_with("HTTP/1.1 503") && error(&head).starts_with("UPS-001 "), "{head}");
}

#[tokio::test(flavor = "local")]
async fn requests_may_name_their_own_service() {
    let clusters = Clusters::new().await;
    let other = "other.shop.svc.cluster.local";
    clusters.serves(other, 8080);
    let own_port = clusters.own_port();
    for host in [NAME.to_owned(), format!("{other}:8080")] {
        let (head, _) = clusters.ask("web", None, own_port, &format!("host: {host}\r\n")).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(clusters.app.last().headers["host"], host.as_str());
    }
    let mut io = clusters.connect("web", None, own_port, Some(Session::Http1)).await;
    io.write_all(b"GET /a HTTP/1.0\r\n\r\n").await.unwrap();
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.contains(" 404 ") && error(&head).starts_with("CLU-006 "), "{head}");
}

#[tokio::test(flavor = "local")]
async fn a_proxy_that_is_no_gateway_says_that() {
    let clusters = clusters(&[]).await;
    for session in [None, Some(Session::Http1)] {
        let mut io = clusters.connect("web", Some(NAME), 80, session).await;
        if session.is_none() {
            let refused = answer(&mut io).await;
            assert!(matches!(&refused, TransportAnswer::Refused(text) if text.starts_with("CLU-001 ")));
        }
        assert_eq!(raw::read_all(&mut io).await.unwrap_or_default(), b"");
    }
    let fault = clusters.gateway.failure().await.fault.unwrap();
    assert_eq!((fault.code.as_str(), fault.fact("target")), ("CLU-001", Some(NAME)));
}

/// What the proxy says in front of opaque bytes.
async fn answer<IO: tokio::io::AsyncRead + Unpin>(io: &mut IO) -> TransportAnswer {
    let mut read = Vec::new();
    loop {
        read.push(raw::within(io.read_u8()).await.unwrap());
        if let Some((answer, _)) = TransportAnswer::decode(&read).unwrap() {
            return answer;
        }
    }
}
