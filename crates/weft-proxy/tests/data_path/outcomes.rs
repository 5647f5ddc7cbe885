//! Every way in which an inbound connection ends before it says anything useful has its own code, evidence and count.

use crate::harness::{Proxy, STRANGER, app, proxy};
use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use weft_model::identity::Identity;
use weft_net::socket::{self, Listener};
use weft_testkit::{
    pki::{self, Pki},
    raw,
};
use weft_tls::{credentials::Client, handshake};
use weft_wire::{record::ConnectionRecord, transport_header::TransportHeader};

/// Serves the proxy's own port as one that nothing redirects to, and makes it the address that tests dial.
pub(crate) fn on_own_port(proxy: &mut Proxy) {
    let socket = socket::listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    proxy.inbound = socket.local_addr().unwrap();
    let listener = Listener::new(socket, Default::default()).unwrap();
    let listener = listener.pretending(proxy.mesh.config.inbound.listen);
    let listener = listener.pretending_client(STRANGER.parse().unwrap());
    tokio::task::spawn_local(weft_proxy::inbound::serve(proxy.mesh.clone(), listener));
}

/// The ClientHello with which `client` asks for `name`.
pub(crate) async fn hello(client: Client, name: Identity) -> Vec<u8> {
    let (mut ours, theirs) = tokio::io::duplex(64 * 1024);
    let shaking = tokio::task::spawn_local(async move {
        let _never_answered =
            handshake::connect(&client, theirs, &name, &name, handshake::Offer::Nothing).await;
    });
    let mut hello = vec![0; 5];
    ours.read_exact(&mut hello).await.unwrap();
    let length = usize::from(u16::from_be_bytes([hello[3], hello[4]]));
    hello.resize(5 + length, 0);
    ours.read_exact(&mut hello[5..]).await.unwrap();
    shaking.abort();
    hello
}

struct Bench {
    pki: Pki,
    proxy: Proxy,
    client: Client,
}

async fn bench(own_port: bool, timeout: &str) -> Bench {
    let (pki, app) = (Pki::new(), app().await);
    let nowhere: SocketAddr = "192.0.2.1:80".parse().unwrap();
    let mut proxy = proxy(&pki, "store", app.addr, nowhere, &[("INBOUND_DETECT_TIMEOUT", timeout)]);
    if own_port {
        on_own_port(&mut proxy);
    }
    let client = pki.credentials(&pki::identity("web", "shop")).client().clone();
    Bench { pki, proxy, client }
}

impl Bench {
    /// Sends bytes, and then closes or waits for the proxy to.
    async fn send(&self, bytes: &[u8], close: bool) {
        let mut io = TcpStream::connect(self.proxy.inbound).await.unwrap();
        io.write_all(bytes).await.unwrap();
        if close {
            io.shutdown().await.unwrap();
        }
        drop(raw::read_all(&mut io).await);
    }

    /// After a handshake, sends bytes and then closes or waits for the proxy to.
    async fn send_in_tls(&self, client: &Client, transport: bool, bytes: &[u8], close: bool) {
        let tcp = TcpStream::connect(self.proxy.inbound).await.unwrap();
        let id = &self.proxy.id;
        let mut io = handshake::connect(
            client,
            tcp,
            id,
            id,
            if transport { handshake::Offer::Transport } else { handshake::Offer::Nothing },
        )
        .await
        .unwrap()
        .stream;
        // The proxy may refuse before it reads.
        drop(io.write_all(bytes).await);
        if close {
            drop(io.shutdown().await);
        }
        drop(raw::read_all(&mut io).await);
    }

    /// The one failure so far has this code, is counted under it, and says these things.
    async fn ended_with(&self, code: &str, kind: &str, facts: &[(&str, &str)]) -> ConnectionRecord {
        let record = self.proxy.record(|record| record.ended.is_some() && record.fault.is_some()).await;
        let fault = record.fault.as_ref().unwrap();
        assert_eq!(fault.code, code, "{fault:?}");
        for (name, value) in facts {
            assert_eq!(fault.fact(name), Some(*value), "{name} of {fault:?}");
        }
        assert_eq!(self.proxy.failures(), 1);
        assert_eq!(self.proxy.counted("inbound_tcp_errors_total{", kind, code).await, 1);
        record
    }
}

#[tokio::test(flavor = "local")]
async fn a_probe_is_nobodys_failure_and_counted_apart() {
    for own_port in [false, true] {
        let bench = bench(own_port, "10s").await;
        bench.send(b"", true).await;
        let silent =
            |r: &ConnectionRecord| r.ended.as_deref().is_some_and(|how| how.contains("without sending"));
        assert_eq!(bench.proxy.record(silent).await.fault, None);
        let page = bench.proxy.metrics().await;
        assert!(page.contains(r#"weft_silent_connections_total{direction="inbound"} 1"#), "{page}");
        assert!(!page.contains("inbound_tcp_errors_total{"), "{page}");
    }
}

#[tokio::test(flavor = "local")]
async fn a_hello_that_breaks_off_is_no_probe() {
    for own_port in [false, true] {
        let bench = bench(own_port, "10s").await;
        let hello = hello(bench.client.clone(), bench.proxy.id.clone()).await;
        bench.send(&hello[..100], true).await;
        bench.ended_with("TLS-010", "unexpected", &[("bytes", "100")]).await;
    }
}

#[tokio::test(flavor = "local")]
async fn silence_and_a_slow_hello_are_told_apart_by_the_bytes_seen() {
    for (sent, bytes) in [(&b""[..], "0"), (&[22, 3, 1][..], "3")] {
        let bench = bench(true, "200ms").await;
        bench.send(sent, false).await;

        let record = bench.ended_with("TLS-008", "tls detection timeout", &[("bytes", bytes)]).await;
        let fault = record.fault.unwrap();
        assert!(fault.peer.is_some() && fault.fact("waited_ms").is_some(), "{fault:?}");
    }
}

#[tokio::test(flavor = "local")]
async fn another_workloads_name_is_refused_with_both_names() {
    for own_port in [false, true] {
        let bench = bench(own_port, "10s").await;
        let other = pki::identity("other", "shop");
        bench.send(&hello(bench.client.clone(), other.clone()).await, false).await;
        let own = bench.proxy.id.clone();
        bench
            .ended_with("TLS-007", "unexpected", &[("seen", other.as_str()), ("expected", own.as_str())])
            .await;
    }
}

#[tokio::test(flavor = "local")]
async fn the_own_port_tells_its_wrong_callers_apart() {
    let plaintext = bench(true, "10s").await;
    plaintext.send(b"GET / HTTP/1.1\r\n\r\n", false).await;
    plaintext.ended_with("TLS-012", "unexpected", &[("bytes", "18")]).await;

    let nameless = bench(true, "10s").await;
    let mut hello = hello(nameless.client.clone(), nameless.proxy.id.clone()).await;
    blank_sni(&mut hello);
    nameless.send(&hello, false).await;
    nameless.ended_with("TLS-014", "unexpected", &[]).await;

    let anonymous = bench(true, "10s").await;
    let client = Client::anonymous(&anonymous.pki.anchors());
    anonymous.send_in_tls(&client, true, b"", false).await;
    anonymous.ended_with("TLS-006", "unexpected", &[]).await;

    let old = bench(true, "10s").await;
    old.send_in_tls(&old.client, false, b"", false).await;
    let web = pki::identity("web", "shop");
    old.ended_with("PRO-007", "unexpected", &[("client", web.as_str())]).await;
}

/// Makes the server name's extension one that nobody knows: its type is the one number that changes.
fn blank_sni(hello: &mut [u8]) {
    // Record and handshake headers, version, random, session, ciphers, compression; then extensions.
    let mut at = 5 + 4 + 2 + 32;
    at += 1 + usize::from(hello[at]);
    at += 2 + usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    at += 1 + usize::from(hello[at]);
    at += 2;
    while hello[at..at + 2] != [0, 0] {
        at += 4 + usize::from(u16::from_be_bytes([hello[at + 2], hello[at + 3]]));
    }
    hello[at..at + 2].copy_from_slice(&[0x5a, 0x5b]);
}

#[tokio::test(flavor = "local")]
async fn a_transport_header_may_be_missing_malformed_too_long_or_late() {
    let header = TransportHeader { port: 80, name: None, session: None }.encode();
    let long = [&header[..header.len() - 6], &[0, 1, 0, 1]].concat();
    let wrong = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let web = pki::identity("web", "shop");
    for (bytes, close, code, fact) in [
        (&header[..7], true, "PRO-004", ("bytes", "7")),
        (&b""[..], true, "PRO-004", ("bytes", "0")),
        (&wrong[..], false, "PRO-005", ("client", web.as_str())),
        (&long[..], false, "PRO-008", ("client", web.as_str())),
    ] {
        let bench = bench(true, "10s").await;
        bench.send_in_tls(&bench.client, true, bytes, close).await;
        bench.ended_with(code, "unexpected", &[fact]).await;
    }
    // Long enough for a handshake on a busy machine.
    let bench = bench(true, "1s").await;
    bench.send_in_tls(&bench.client, true, &header[..7], false).await;
    bench.ended_with("PRO-009", "unexpected", &[("bytes", "7")]).await;
}

#[tokio::test(flavor = "local")]
async fn a_handshake_may_stop_end_or_be_refused_by_the_client() {
    for own_port in [false, true] {
        let stopped = bench(own_port, "300ms").await;
        let hello = hello(stopped.client.clone(), stopped.proxy.id.clone()).await;
        let mut io = TcpStream::connect(stopped.proxy.inbound).await.unwrap();
        io.write_all(&hello).await.unwrap();
        stopped.ended_with("TLS-001", "unexpected", &[]).await;

        let ended = bench(own_port, "10s").await;
        let hello = self::hello(ended.client.clone(), ended.proxy.id.clone()).await;
        ended.send(&hello, true).await;
        ended.ended_with("TLS-002", "i/o", &[]).await;

        // internal_error(80), in answer to the server's hello.
        let alerted = bench(own_port, "10s").await;
        let hello = self::hello(alerted.client.clone(), alerted.proxy.id.clone()).await;
        let mut io = TcpStream::connect(alerted.proxy.inbound).await.unwrap();
        io.write_all(&hello).await.unwrap();
        io.read_u8().await.unwrap();
        io.write_all(&[21, 3, 3, 0, 2, 2, 80]).await.unwrap();
        let seen = [("alert", "InternalError"), ("is", "the client's complaint about this server")];
        alerted.ended_with("TLS-013", "unexpected", &seen).await;

        let distrusted = bench(own_port, "10s").await;
        let stranger = Client::anonymous(&Pki::new().anchors());
        let tcp = TcpStream::connect(distrusted.proxy.inbound).await.unwrap();
        let id = &distrusted.proxy.id;
        handshake::connect(&stranger, tcp, id, id, handshake::Offer::Nothing).await.unwrap_err();
        let complaint = [("is", "the client's complaint about this server")];
        distrusted.ended_with("TLS-004", "unexpected", &complaint).await;
    }
}
