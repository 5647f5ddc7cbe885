//! Two proxies, with real TLS between them.

use crate::{
    field_reports::{accept, next},
    harness::{Proxy, app, collect, destination, detect, get, h2, meshed, only, opaque, policy, server},
    outbound::exercise_forms,
};
use std::{cell::Cell, net::SocketAddr, rc::Rc, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use weft_fault::Code;
use weft_model::{
    identity::{PeerIdentity, Unknown},
    inbound::{Authn, Protocol},
    outbound::{BackendKind, Endpoint, OutboundProtocol, ProtocolHint},
};
use weft_proxy::drain::Phase;
use weft_testkit::{
    h2raw::{ACK, Client as Frames, DATA, END_STREAM, Ended, GOAWAY, HEADERS, PING, frame, headers, request},
    pki::{self, Pki},
    raw,
};

fn dst() -> SocketAddr {
    "192.0.2.80:80".parse().unwrap()
}

/// The client's proxy and the server's, which expects exactly that client.
fn pair(pki: &Pki, app: SocketAddr) -> (Proxy, Proxy) {
    pair_with(pki, app, &[])
}

/// The same, with more configuration for both proxies.
fn pair_with(pki: &Pki, app: SocketAddr, more: &[(&str, &str)]) -> (Proxy, Proxy) {
    let server = crate::harness::proxy(pki, "store", app, dst(), more);
    let client = crate::harness::proxy(pki, "web", dst(), dst(), more);
    server.told.inbound(app.port(), self::server(detect(), only(&client.id)));
    (client, server)
}

fn endpoint(server: &Proxy, hint: ProtocolHint) -> Arc<Endpoint> {
    let mut endpoint = meshed(server.inbound, &server.id);
    endpoint.hint = hint;
    Arc::new(endpoint)
}

fn forward(client: &Proxy, endpoint: Arc<Endpoint>) {
    client.told.destination(destination(dst(), policy(BackendKind::Forward(endpoint)), true));
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: store\r\n\r\n";

#[tokio::test(flavor = "local")]
async fn http_1_goes_over_http_2_and_comes_out_as_it_went_in() {
    carried(&[("OUTBOUND_WEFT_HTTP1", "false")], "http/2").await;
}

#[tokio::test(flavor = "local")]
async fn between_weft_proxies_http_1_goes_as_it_is() {
    carried(&[], "http/1").await;
}

async fn carried(settings: &[(&str, &str)], seen: &str) {
    let (pki, app) = (Pki::new(), app().await);
    let (client, server) = pair_with(&pki, app.addr, settings);
    forward(&client, endpoint(&server, ProtocolHint::H2));
    let (head, _) = raw::http(client.outbound, GET).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && !head.contains("l5d-"), "{head}");
    assert_eq!(app.last().headers["l5d-client-id"], client.id.as_str());
    assert!(!app.last().headers.keys().any(|name| name.as_str() == "l5d-orig-proto"));
    let record = client.record(|record| record.endpoint.is_some()).await;
    assert_eq!(record.server_identity.as_deref(), Some(server.id.as_str()));
    assert_eq!(server.record(|record| record.protocol.is_some()).await.protocol.as_deref(), Some(seen));
    exercise_forms(&client, &app).await;
    // Both recorders know that it is one connection.
    let ours = server.record(|record| record.peer_id.is_some()).await.peer_id;
    assert!(
        client.mesh.recorder.connections(1000, |record| Some(&record.id) == ours.as_ref()).connections.len()
            <= 1
    );
}

#[tokio::test(flavor = "local")]
async fn http_1_without_the_hint_and_http_2_pass_as_they_are() {
    let (pki, app) = (Pki::new(), app().await);
    let (client, server) = pair(&pki, app.addr);
    forward(&client, endpoint(&server, ProtocolHint::Unknown));
    assert!(raw::http(client.outbound, GET).await.unwrap().0.starts_with("HTTP/1.1 200"));
    let mut sender = h2(client.outbound).await;
    let (head, _, _) = collect(sender.send_request(get("http://store/x")).await.unwrap()).await;
    assert_eq!(head.status, 200);
    assert_eq!(app.last().line, "GET http://store/x HTTP/2.0");
    assert_eq!(app.last().headers["l5d-client-id"], client.id.as_str());
}

#[tokio::test(flavor = "local")]
async fn the_peers_reason_reaches_the_user_of_the_client() {
    let (pki, app) = (Pki::new(), app().await);
    let (client, server) = pair(&pki, app.addr);
    server.told.inbound(app.addr.port(), self::server(detect(), only(&pki::identity("other", "shop"))));
    forward(&client, endpoint(&server, ProtocolHint::H2));
    let (head, _) = raw::http(client.outbound, GET).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 403") && head.contains("l5d-proxy-error: POL-001 "), "{head}");
    let (ours, theirs) = (client.failure().await.fault.unwrap(), server.failure().await.fault.unwrap());
    assert_eq!((ours.code.as_str(), theirs.code.as_str()), ("POL-001", "POL-001"));
    // The application's own refusal is not the mesh's.
    server.told.inbound(app.addr.port(), self::server(detect(), Authn::AnyTls));
    let request = "GET /status/403 HTTP/1.1\r\nHost: s\r\n\r\n";
    let (head, _) = raw::http(client.outbound, request).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 403") && !head.contains("l5d-"), "{head}");
}

#[tokio::test(flavor = "local")]
async fn another_identity_is_refused_without_plaintext_and_doubted() {
    let (pki, app) = (Pki::new(), app().await);
    let (client, server) = pair(&pki, app.addr);
    let expected = pki::identity("expected", "shop");
    let mut wrong = meshed(server.inbound, &expected);
    wrong.identity = PeerIdentity::Meshed { id: expected.clone(), server_name: server.id.clone() };
    forward(&client, Arc::new(wrong));
    let (head, _) = raw::http(client.outbound, GET).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 502") && head.contains("IDN-001"), "{head}");
    let fault = client.failure().await.fault.unwrap();
    assert_eq!(fault.fact("expected"), Some(expected.as_str()));
    assert_eq!(fault.fact("actual"), Some(server.id.as_str()));
    assert!(client.told.doubts().iter().any(|(addr, _)| *addr == server.inbound));
    assert_eq!(app.count(), 0);
    // The peer itself says when it is asked for somebody else: an address that was reused.
    forward(&client, Arc::new(meshed(server.inbound, &expected)));
    let (head, _) = raw::http(client.outbound, GET).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 502") && head.contains("TLS-007"), "{head}");
    let record = server.failure().await;
    assert_eq!(record.fault.unwrap().fact("seen"), Some(expected.as_str()));
}

#[tokio::test(flavor = "local")]
async fn learning_an_identity_moves_open_connections_to_it() {
    let (pki, app) = (Pki::new(), app().await);
    let (client, server) = pair(&pki, app.addr);
    let bare = Endpoint::bare(server.inbound, PeerIdentity::Unknown(Unknown::Unmarked));
    let tell = |endpoint: Arc<Endpoint>| {
        client.told.destination(destination(dst(), policy(BackendKind::Forward(endpoint)), false));
    };
    tell(Arc::new(bare.clone()));
    let mut io = TcpStream::connect(client.outbound).await.unwrap();
    // What cannot be sent twice is answered as the peer answers.
    io.write_all(b"POST /a HTTP/1.1\r\nHost: store\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 403") && head.contains("POL-002"), "{head}");
    assert!(client.told.doubts().iter().any(|(addr, _)| *addr == server.inbound));
    // The rest is held until the identity is known.
    io.write_all(GET.as_bytes()).await.unwrap();
    while client.told.doubts().is_empty() {
        tokio::task::yield_now().await;
    }
    tell(endpoint(&server, ProtocolHint::H2));
    assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 200"), "the same connection");
    assert_eq!(app.last().headers["l5d-client-id"], client.id.as_str());
    // An opaque connection cannot move: it ends, so that the next is made right.
    let opaque_to = |endpoint: Arc<Endpoint>| {
        let protocol = OutboundProtocol::Opaque(opaque(BackendKind::Forward(endpoint)));
        client.told.destination(destination(dst(), protocol, false));
    };
    server.told.inbound(app.addr.port(), self::server(detect(), Authn::Unauthenticated));
    opaque_to(Arc::new(bare));
    let mut io = TcpStream::connect(client.outbound).await.unwrap();
    io.write_all(GET.as_bytes()).await.unwrap();
    assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 200"));
    opaque_to(endpoint(&server, ProtocolHint::H2));
    assert_eq!(raw::read_all(&mut io).await.unwrap_or_default(), b"");
    let mut io = TcpStream::connect(client.outbound).await.unwrap();
    io.write_all(GET.as_bytes()).await.unwrap();
    assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 200"));
    assert_eq!(app.last().headers["l5d-client-id"], client.id.as_str());
}

/// Lets the client dial the server's own port, where nothing is redirected, for the application at `addr`.
fn direct(client: &Proxy, server: &mut Proxy, addr: SocketAddr) {
    let socket = weft_net::socket::listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    server.inbound = socket.local_addr().unwrap();
    let own = server.mesh.config.inbound.listen;
    let direct = weft_net::socket::Listener::new(socket, Default::default()).unwrap().pretending(own);
    let direct = direct.pretending_client(crate::harness::STRANGER.parse().unwrap());
    tokio::task::spawn_local(weft_proxy::inbound::serve(server.mesh.clone(), direct));
    let mut endpoint = meshed(addr, &server.id);
    endpoint.transport_port = Some(server.inbound.port());
    let protocol = OutboundProtocol::Opaque(opaque(BackendKind::Forward(Arc::new(endpoint))));
    client.told.destination(destination(dst(), protocol, true));
}

#[tokio::test(flavor = "local")]
async fn a_denied_opaque_connection_is_no_empty_answer() {
    let pki = Pki::new();
    let (_listener, addr) = raw::listener().await;
    let (client, mut server) = pair(&pki, addr);
    direct(&client, &mut server, addr);
    server.told.inbound(addr.port(), self::server(Protocol::Opaque, only(&server.id)));
    let mut io = TcpStream::connect(client.outbound).await.unwrap();
    io.write_all(b"PING").await.unwrap();
    let told = raw::read_all(&mut io).await.unwrap_err();
    assert_eq!(told.kind(), std::io::ErrorKind::ConnectionReset, "the application sees a failure");
    assert_eq!(server.failure().await.fault.unwrap().code, "POL-001");
    // The peer's reason reaches the client's side, where nobody sees the peer's log.
    let ours = client.failure().await.fault.unwrap();
    assert_eq!((ours.code.as_str(), ours.fact("reported_by")), ("POL-001", Some("the peer's proxy")));
    assert!(ours.fact("text").unwrap().contains("client=web.shop."), "{ours:?}");
    assert_eq!(client.counted("outbound_tcp_errors_total", "unexpected", "POL-001").await, 1);
}

#[tokio::test(flavor = "local")]
async fn both_proxies_count_answers_by_route() {
    let (pki, app) = (Pki::new(), app().await);
    let (client, server) = pair(&pki, app.addr);
    forward(&client, endpoint(&server, ProtocolHint::H2));
    let mut io = TcpStream::connect(client.outbound).await.unwrap();
    for path in ["a", "a", "status/404", "gone"] {
        io.write_all(format!("GET /{path} HTTP/1.1\r\nHost: store\r\n\r\n").as_bytes()).await.unwrap();
        raw::read_http(&mut io).await.unwrap();
    }
    let (outbound, inbound) = (client.metrics().await, server.metrics().await);
    let has = |page: &str, family: &str, labels: &[&str], value: u64| {
        let found = page.lines().any(|line| {
            line.starts_with(&format!("{family}{{"))
                && labels.iter().all(|label| line.contains(label))
                && line.ends_with(&format!(" {value}"))
        });
        assert!(found, "{family} {labels:?} {value}\n{page}");
    };
    let route = "route_name=\"route\"";
    has(
        &outbound,
        "outbound_http_route_request_statuses_total",
        &[route, "http_status=\"200\",error=\"\""],
        2,
    );
    has(&outbound, "outbound_http_route_request_statuses_total", &["parent_name=\"service\"", "\"502\""], 1);
    let of_backend = ["backend_name=\"backend\"", "http_status=\"404\""];
    has(&outbound, "outbound_http_route_backend_response_statuses_total", &of_backend, 1);
    has(&outbound, "outbound_http_route_backend_requests_total", &of_backend[..1], 4);
    let port = format!("parent_port=\"{}\"", app.addr.port());
    has(&inbound, "inbound_http_requests_total", &["parent_name=\"test\"", &port], 4);
    has(&inbound, "inbound_http_statuses_total", &[&port, "status=\"200\""], 2);
    has(&inbound, "inbound_http_statuses_total", &[&port, "status=\"\""], 1);
    has(&inbound, "inbound_http_authz_allow_total", &[&format!("srv_port=\"{}\"", app.addr.port())], 4);
    for phase in ["discover", "detect", "connect", "tls-connect"] {
        assert!(outbound.contains(&format!("weft_phase_duration_seconds_count{{phase=\"{phase}\"}} ")));
    }
}

#[tokio::test(flavor = "local")]
async fn both_stories_tell_each_step_in_order() {
    let (pki, app) = (Pki::new(), app().await);
    let (client, server) = pair(&pki, app.addr);
    forward(&client, endpoint(&server, ProtocolHint::H2));
    let mut io = TcpStream::connect(client.outbound).await.unwrap();
    for _ in 0..3 {
        io.write_all(GET.as_bytes()).await.unwrap();
        raw::read_http(&mut io).await.unwrap();
    }
    drop(io);
    let steps = |record: &weft_wire::record::ConnectionRecord| {
        assert!(record.events.is_sorted_by_key(|event| event.at_us), "{:?}", record.events);
        let steps: Vec<_> =
            record.events.iter().map(|e| format!("{} {}", e.phase.as_str(), e.text)).collect();
        steps
    };
    let expect = |steps: Vec<String>, begin: &[&str]| {
        assert_eq!(steps.len(), begin.len(), "{steps:#?}");
        for (step, begin) in steps.iter().zip(begin) {
            assert!(step.starts_with(begin), "{begin}: {steps:#?}");
        }
    };
    let outbound = client.record(|record| record.ended.is_some()).await;
    let connected = format!("connect connected to {} in ", server.inbound);
    let secured = format!("tls-connect TLS with {} in ", server.id);
    expect(
        steps(&outbound),
        &[
            "discover default/service: the endpoint ",
            "detect http/1",
            "route first request: default/route, to default/backend",
            &connected,
            &secured,
        ],
    );
    assert_eq!(outbound.tls.as_deref(), Some("mutual"));
    assert_eq!(outbound.read_bytes, 3 * GET.len() as u64);
    assert!(outbound.written_bytes > 0);
    let inbound = server.record(|record| record.peer_id.is_some()).await;
    assert_eq!(inbound.endpoint, Some(app.addr));
    let secured = format!("tls-accept TLS with {} in ", client.id);
    let connected = format!("connect connected to the application at {} in ", app.addr);
    expect(
        steps(&inbound),
        &[&secured, "detect http/1", "authorize allowed by default/rule of default/test", &connected],
    );
}

#[tokio::test(flavor = "local")]
async fn opaque_bytes_go_over_mutual_tls_with_a_transport_header() {
    let pki = Pki::new();
    let (listener, addr) = raw::listener().await;
    let (client, mut server) = pair(&pki, addr);
    direct(&client, &mut server, addr);
    server.told.inbound(addr.port(), self::server(Protocol::Opaque, only(&client.id)));
    let mut io = TcpStream::connect(client.outbound).await.unwrap();
    // The server speaks first.
    let (mut app, _) = listener.accept().await.unwrap();
    app.write_all(b"220 hello").await.unwrap();
    let mut got = [0; 9];
    io.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"220 hello");
    io.write_all(b"QUIT").await.unwrap();
    io.shutdown().await.unwrap();
    assert_eq!(raw::read_all(&mut app).await.unwrap(), b"QUIT");
    app.write_all(b"221 bye").await.unwrap();
    drop(app);
    assert_eq!(raw::read_all(&mut io).await.unwrap(), b"221 bye");
    let record = server.record(|record| record.ended.is_some() && record.fault.is_none()).await;
    assert_eq!(record.client_identity.as_deref(), Some(client.id.as_str()));
}

#[tokio::test(flavor = "local")]
async fn a_drain_finishes_what_is_under_way_and_goes_on_serving_until_the_end() {
    let (pki, app) = (Pki::new(), app().await);
    let (client, server) = pair(&pki, app.addr);
    forward(&client, endpoint(&server, ProtocolHint::H2));
    let mut kept = TcpStream::connect(client.outbound).await.unwrap();
    kept.write_all(GET.as_bytes()).await.unwrap();
    raw::read_http(&mut kept).await.unwrap();
    let mut busy = TcpStream::connect(client.outbound).await.unwrap();
    busy.write_all(b"POST /x HTTP/1.1\r\nHost: s\r\nContent-Length: 4\r\n\r\nab").await.unwrap();
    let mut hanging = TcpStream::connect(client.outbound).await.unwrap();
    hanging.write_all(b"GET /hang HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    app.until(|hung| hung.begun == 1).await;
    server.drain.advance(Phase::Draining);
    client.drain.advance(Phase::Draining);
    assert_eq!(raw::read_all(&mut kept).await.unwrap_or_default(), b"", "an idle connection ends");
    busy.write_all(b"cd").await.unwrap();
    let (head, body) = raw::read_http(&mut busy).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("connection: close"), "{head}");
    assert_eq!(body, b"abcd");
    // New connections are still served, each for one request.
    for _ in 0..3 {
        let (head, _) = raw::http(client.outbound, GET).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("connection: close"), "{head}");
    }
    client.drain.advance(Phase::Stopped);
    assert_eq!(raw::read_all(&mut hanging).await.unwrap_or_default(), b"");
    app.until(|hung| hung.cancelled == 1).await;
    let record = client.failure().await;
    assert_eq!(record.fault.unwrap().code, "LIM-004");
    assert!(TcpStream::connect(client.outbound).await.is_err(), "the listener is closed");
}

/// A process that is short of CPU must not begin everything at once and end nothing in time.
#[tokio::test(flavor = "local")]
async fn connects_to_one_peer_wait_for_their_turn_and_not_for_ever() {
    let pki = Pki::new();
    // A peer that accepts and never says a word.
    let (listener, addr) = raw::listener().await;
    let accepted = Rc::new(Cell::new(0));
    let counting = accepted.clone();
    tokio::task::spawn_local(async move {
        let mut open = Vec::new();
        while let Ok((io, _)) = listener.accept().await {
            counting.set(counting.get() + 1);
            open.push(io);
        }
    });
    let limits = [("OUTBOUND_CONNECT_TIMEOUT", "20s"), ("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "300ms")];
    let client = crate::harness::proxy(&pki, "web", dst(), dst(), &limits);
    let silent = Arc::new(meshed(addr, &pki::identity("store", "shop")));
    client.told.destination(destination(
        dst(),
        OutboundProtocol::Opaque(opaque(BackendKind::Forward(silent))),
        true,
    ));
    let mut asking = Vec::new();
    for _ in 0..30 {
        asking.push(TcpStream::connect(client.outbound).await.unwrap());
    }
    let record = client.failure().await;
    let fault = record.fault.unwrap();
    assert_eq!(fault.code, "LIM-006");
    assert_eq!(fault.fact("connects_under_way"), Some("24"));
    assert!(client.metrics().await.contains(r#"outbound_tcp_errors_total{error="loadshed""#));
    assert!(accepted.get() <= 24, "{}", accepted.get());
}

#[tokio::test(flavor = "local")]
async fn a_burst_does_not_cost_a_handshake_for_each_request() {
    let pki = Pki::new();
    // An application that answers only when all of the burst is with it.
    let (listener, addr) = raw::listener().await;
    const BURST: usize = 100;
    let app = tokio::task::spawn_local(async move {
        let mut waiting = Vec::new();
        while waiting.len() < BURST {
            let (mut io, _) = listener.accept().await.unwrap();
            raw::read_http(&mut io).await.unwrap();
            waiting.push(io);
        }
        for io in &mut waiting {
            io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        }
        waiting
    });
    let patient = [("OUTBOUND_CONNECT_TIMEOUT", "20s"), ("INBOUND_CONNECT_TIMEOUT", "20s")];
    let (client, server) = pair_with(&pki, addr, &patient);
    forward(&client, endpoint(&server, ProtocolHint::H2));
    let asking: Vec<_> = (0..BURST)
        .map(|_| {
            let outbound = client.outbound;
            tokio::task::spawn_local(async move { raw::http(outbound, GET).await.unwrap().0 })
        })
        .collect();
    for asked in asking {
        assert!(asked.await.unwrap().starts_with("HTTP/1.1 200"));
    }
    let connections = server.mesh.recorder.connections(1000, |_| true).connections.len();
    assert!(connections <= 50, "{connections} connections for {BURST} requests");
    drop(app.await);
}

#[tokio::test(flavor = "local")]
async fn a_refusal_of_plaintext_is_heard_in_opaque_bytes_too() {
    let (pki, app) = (Pki::new(), app().await);
    let (client, server) = pair(&pki, app.addr);
    let unknown = |addr| Arc::new(Endpoint::bare(addr, PeerIdentity::Unknown(Unknown::Unmarked)));
    let lead = |endpoint| {
        let protocol = OutboundProtocol::Opaque(opaque(BackendKind::Forward(endpoint)));
        client.told.destination(destination(dst(), protocol, false));
    };
    lead(unknown(server.inbound));
    let mut io = TcpStream::connect(client.outbound).await.unwrap();
    io.write_all(GET.as_bytes()).await.unwrap();
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 403") && head.contains("l5d-proxy-error: POL-002"), "{head}");
    // What the peer's proxy said was passed on whole; then the connection ends, and the address is doubted.
    assert_eq!(raw::read_all(&mut io).await.unwrap(), b"");
    let doubted = [(server.inbound, Code::PlaintextRefused), (dst(), Code::PlaintextRefused)];
    assert_eq!(client.told.doubts(), doubted);
    assert_eq!(client.failure().await.fault.unwrap().fact("reported_by"), Some("the peer's proxy"));

    // An application's own refusal is nobody's proof, and its connection goes on.
    let application = raw::answering("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await;
    lead(unknown(application));
    let mut io = TcpStream::connect(client.outbound).await.unwrap();
    for _ in 0..2 {
        io.write_all(GET.as_bytes()).await.unwrap();
        assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 403"));
    }
    assert_eq!(client.told.doubts(), []);
}

/// RFC 9110, 10.1.1: a client that waits for a 100 gets one, also where the hop in between has no way to pass it on.
#[tokio::test(flavor = "local")]
async fn a_client_that_waits_for_a_100_gets_one_on_either_kind_of_hop() {
    for settings in [&[("OUTBOUND_WEFT_HTTP1", "false")][..], &[]] {
        let pki = Pki::new();
        let (listener, addr) = raw::listener().await;
        tokio::task::spawn_local(async move {
            let (mut io, _) = listener.accept().await.unwrap();
            raw::read_until(&mut io, b"\r\n\r\n").await.unwrap();
            io.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
            raw::read_until(&mut io, b"hello").await.unwrap();
            io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            raw::read_all(&mut io).await
        });
        let (client, server) = pair_with(&pki, addr, settings);
        forward(&client, endpoint(&server, ProtocolHint::H2));
        let mut io = TcpStream::connect(client.outbound).await.unwrap();
        let head = "POST / HTTP/1.1\r\nHost: store\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        io.write_all(head.as_bytes()).await.unwrap();
        let interim = raw::read_until(&mut io, b"\r\n\r\n").await.unwrap();
        assert!(interim.starts_with(b"HTTP/1.1 100"), "{settings:?} {:?}", String::from_utf8_lossy(&interim));
        io.write_all(b"hello").await.unwrap();
        let (answer, _) = raw::read_http(&mut io).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test(flavor = "local")]
async fn an_application_that_is_down_is_named_to_the_client_of_an_opaque_port() {
    let (pki, addr) = (Pki::new(), raw::refused().await);
    let (client, mut server) = pair(&pki, addr);
    direct(&client, &mut server, addr);
    server.told.inbound(addr.port(), self::server(Protocol::Opaque, only(&client.id)));
    // Whether the client has said something already makes no difference, nor how much.
    for said in [0, 4, 200_000] {
        let mut io = TcpStream::connect(client.outbound).await.unwrap();
        let _refused_meanwhile = io.write_all(&vec![b'x'; said]).await;
        raw::read_all(&mut io).await.unwrap_err();
    }
    let coded = |record: &weft_wire::record::ConnectionRecord| {
        record.fault.as_ref().is_some_and(|fault| fault.code == "UPS-010")
    };
    let all = client.mesh.recorder.connections(10, |record| record.fault.is_some()).connections;
    assert!(all.len() == 3 && all.iter().all(coded), "{all:?}");
}

/// B28: both ends of a long stream of gRPC are told that their proxies go, and it goes on: to its end, or to that of the grace
/// period.
#[tokio::test(flavor = "local")]
async fn b28_a_long_grpc_stream_goes_on_through_a_drain_until_it_ends_or_is_cut() {
    for ends in [true, false] {
        let (pki, (listener, addr)) = (Pki::new(), raw::listener().await);
        let (client, server) = pair(&pki, addr);
        forward(&client, endpoint(&server, ProtocolHint::H2));
        let mut caller = Frames::open(TcpStream::connect(client.outbound).await.unwrap()).await.unwrap();
        let grpc = ("content-type", "application/grpc");
        caller.send(&headers(1, 0, &request("POST", "/shop.Store/Watch", &[grpc]))).await.unwrap();
        let mut callee = accept(&listener).await;
        let stream = next(&mut callee, HEADERS).await.stream;
        callee.send(&headers(stream, 0, &[(":status", "200"), grpc])).await.unwrap();
        next(&mut caller, HEADERS).await;
        let talk = async |caller: &mut Frames<TcpStream>, callee: &mut Frames<TcpStream>, said: &[u8]| {
            caller.send(&frame(DATA, 0, 1, said)).await.unwrap();
            assert_eq!(next(callee, DATA).await.payload, said);
            callee.send(&frame(DATA, 0, stream, said)).await.unwrap();
            assert_eq!(next(caller, DATA).await.payload, said);
        };
        talk(&mut caller, &mut callee, b"before").await;
        server.drain.advance(Phase::Draining);
        client.drain.advance(Phase::Draining);
        assert_eq!(next(&mut caller, GOAWAY).await.code(), Some(0), "the caller is told");
        let ping = next(&mut caller, PING).await;
        caller.send(&frame(PING, ACK, 0, &ping.payload)).await.unwrap();
        talk(&mut caller, &mut callee, b"meanwhile").await;
        if ends {
            caller.send(&frame(DATA, END_STREAM, 1, b"")).await.unwrap();
            assert_eq!(next(&mut callee, DATA).await.flags & END_STREAM, END_STREAM);
            callee.send(&headers(stream, END_STREAM, &[("grpc-status", "0")])).await.unwrap();
            let trailers = next(&mut caller, HEADERS).await;
            assert_eq!(trailers.flags & END_STREAM, END_STREAM);
            // Nothing is left: the connection ends by itself, and no failure is told.
            while caller.frame().await.unwrap().is_some() {}
            assert_eq!((client.failures(), server.failures()), (0, 0));
        } else {
            client.drain.advance(Phase::Stopped);
            server.drain.advance(Phase::Stopped);
            let ended = caller.end(1).await.unwrap();
            assert!(matches!(ended, Ended::Closed | Ended::Reset(_)), "{ended:?}");
            for proxy in [&client, &server] {
                assert_eq!(proxy.failure().await.fault.unwrap().code, "LIM-004");
            }
        }
    }
}
