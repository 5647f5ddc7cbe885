//! Codes that nothing else raises on the wire: each by a peer, an application or a clock that does what the code says.

use crate::{
    harness::{app, destination, detect, get, h2, meshed, opaque, policy, proxy, server},
    retries::{PATH, dst, error_of, known, plain},
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use weft_model::{
    inbound::Authn,
    outbound::{BackendKind, OutboundProtocol},
};
use weft_net::socket::{self, Listener, Options};
use weft_proxy::{identity, mesh::Mesh};
use weft_testkit::{
    h2raw::{DATA, PREFACE, SETTINGS, frame},
    pki::{Pki, identity as named},
    raw::{self, within},
};
use weft_tls::handshake::{self, Offer};

const GET: &str = "GET / HTTP/1.1\r\nHost: store\r\n\r\n";

/// TCP to a group address is refused by the kernel of this host, whatever its routes are.
fn unreachable() -> SocketAddr {
    "224.0.0.1:80".parse().unwrap()
}

#[tokio::test(flavor = "local")]
async fn an_address_without_a_route_and_endpoints_that_fail_in_different_ways_are_told() {
    let pki = Pki::new();
    let web = proxy(&pki, "web", dst(), dst(), &[]);
    web.service(dst(), PATH);
    web.told.endpoints(PATH, known(&[plain(unreachable())]));
    let (head, _) = raw::http(web.outbound, GET).await.unwrap();
    assert!(error_of(&head).starts_with("NET-003"), "{head}");
    let refused = raw::refused().await;
    web.told.endpoints(PATH, known(&[plain(unreachable()), plain(refused)]));
    let (head, _) = raw::http(web.outbound, GET).await.unwrap();
    let error = error_of(&head);
    assert!(error.starts_with("UPS-004"), "{head}");
    assert!(error.contains("1 x NET-001") && error.contains("1 x NET-003"), "{error}");
}

/// An application that is stopped: its queue is full, and the kernel answers no SYN.
#[tokio::test(flavor = "local")]
async fn an_application_that_accepts_nothing_is_told() {
    let pki = Pki::new();
    let full = socket::listen("127.0.0.1:0".parse().unwrap(), Some(0)).unwrap();
    let addr = full.local_addr().unwrap();
    let store = proxy(&pki, "store", addr, dst(), &[("INBOUND_CONNECT_TIMEOUT", "200ms")]);
    store.told.inbound(addr.port(), server(detect(), Authn::Unauthenticated));
    // Connections are begun until one does not succeed at once.
    let mut waiting = Vec::new();
    loop {
        let mut connecting = Box::pin(TcpStream::connect(addr));
        match tokio::time::timeout(Duration::from_millis(200), &mut connecting).await {
            Ok(connected) => waiting.push(connected.unwrap()),
            Err(_) => break,
        }
        assert!(waiting.len() < 16, "the queue never fills");
    }
    let (head, _) = raw::http(store.inbound, GET).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 504") && error_of(&head).starts_with("UPS-011"), "{head}");
}

#[tokio::test(flavor = "local")]
async fn a_peer_that_breaks_http_2_is_told_whichever_end_it_is() {
    let (pki, (listener, addr)) = (Pki::new(), raw::listener().await);
    let web = proxy(&pki, "web", dst(), dst(), &[]);
    web.service(dst(), PATH);
    web.told.endpoints(PATH, known(&[plain(addr)]));
    let mut client = h2(web.outbound).await;
    let asking = tokio::spawn(client.send_request(get("http://store/")));
    let (mut io, _) = within(listener.accept()).await.unwrap();
    let mut preface = [0; PREFACE.len()];
    within(io.read_exact(&mut preface)).await.unwrap();
    // DATA on stream 0 is a connection error (RFC 9113, 6.1).
    io.write_all(&[frame(SETTINGS, 0, 0, &[]), frame(DATA, 0, 0, b"x")].concat()).await.unwrap();
    let answer = tokio::time::timeout(raw::PATIENCE, asking).await.unwrap().unwrap().unwrap();
    assert!(answer.headers()["l5d-proxy-error"].to_str().unwrap().starts_with("PRO-006"), "{answer:?}");

    // And a client whose first frame is not SETTINGS (RFC 9113, 3.4).
    let store = proxy(&pki, "store", addr, dst(), &[]);
    store.told.inbound(addr.port(), server(detect(), Authn::Unauthenticated));
    let mut io = TcpStream::connect(store.inbound).await.unwrap();
    io.write_all(&[PREFACE, &frame(DATA, 0, 1, b"x")].concat()).await.unwrap();
    within(raw::read_all(&mut io)).await.unwrap();
    assert_eq!(store.failure().await.fault.unwrap().code, "PRO-006");
}

#[tokio::test(flavor = "local")]
async fn a_head_that_does_not_come_to_its_end_is_told() {
    let (pki, app) = (Pki::new(), app().await);
    let store = proxy(&pki, "store", app.addr, dst(), &[]);
    store.told.inbound(app.addr.port(), server(detect(), Authn::Unauthenticated));
    let mut io = TcpStream::connect(store.inbound).await.unwrap();
    io.write_all(GET.as_bytes()).await.unwrap();
    assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 200"));
    io.write_all(b"GET /slow HTTP/1.1\r\nHost: st").await.unwrap();
    // The clock goes on by itself when there is nothing left to read.
    tokio::time::pause();
    let (head, _) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 408") && error_of(&head).starts_with("PRO-003"), "{head}");
    assert_eq!(app.count(), 1);
}

/// The words of another make's proxy have no code: they count as they are.
#[tokio::test(flavor = "local")]
async fn a_stock_peers_words_are_passed_on_as_its_words() {
    let pki = Pki::new();
    let id = named("store", "shop");
    let credentials = pki.credentials(&id);
    let (listener, addr) = raw::listener().await;
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let Ok(accepted) = handshake::accept(&credentials, false, Offer::Nothing, tcp).await else {
                return;
            };
            let mut io = accepted.stream;
            let _head = raw::read_until(&mut io, b"\r\n\r\n").await;
            let answer = "HTTP/1.1 502 Bad Gateway\r\nl5d-proxy-error: connection refused by the app\r\n\
                          content-length: 0\r\n\r\n";
            let _sent = io.write_all(answer.as_bytes()).await;
        }
    });
    let web = proxy(&pki, "web", dst(), dst(), &[]);
    web.service(dst(), PATH);
    web.told.endpoints(PATH, known(&[Arc::new(meshed(addr, &id))]));
    let (head, _) = raw::http(web.outbound, GET).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    assert!(error_of(&head).contains("connection refused by the app"), "{head}");
    let fault = web.failure().await.fault.unwrap();
    assert_eq!(fault.code, "UPS-015", "{fault:?}");
}

/// Held as long as detection may take, and then told what was missing.
#[tokio::test(flavor = "local")]
async fn a_connection_that_waits_in_vain_for_the_first_certificate_is_told() {
    let (pki, app) = (Pki::new(), app().await);
    let web = proxy(&pki, "web", dst(), dst(), &[("OUTBOUND_DETECT_TIMEOUT", "50ms")]);
    let fixed = BackendKind::Forward(plain(app.addr));
    web.told.destination(destination(dst(), policy(fixed.clone()), false));
    let mesh = Arc::new(Mesh {
        config: web.mesh.config.clone(),
        identity: identity::Handle::new(web.id.clone()).0,
        discovery: web.mesh.discovery.clone(),
        metrics: web.mesh.metrics.clone(),
        recorder: web.mesh.recorder.clone(),
        observers: web.mesh.observers.clone(),
        drain: web.mesh.drain.clone(),
        gaps: weft_proxy::watchdog::Gaps::none(),
        limits: Default::default(),
    });
    let socket = socket::listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let addr = socket.local_addr().unwrap();
    let listener = Listener::new(socket, Options::default()).unwrap().pretending(dst());
    tokio::task::spawn_local(weft_proxy::outbound::serve(mesh, listener));
    let (head, _) = raw::http(addr, GET).await.unwrap();
    assert!(error_of(&head).starts_with("IDN-004"), "{head}");
    // Bytes of any other kind hear nothing, and the record holds it.
    web.told.destination(destination(dst(), OutboundProtocol::Opaque(opaque(fixed)), false));
    let mut io = TcpStream::connect(addr).await.unwrap();
    io.write_all(b"\x00\x01").await.unwrap();
    let _reset = within(raw::read_all(&mut io)).await;
    assert_eq!(web.failure().await.fault.unwrap().code, "IDN-004");
    assert_eq!(app.count(), 0);
}
