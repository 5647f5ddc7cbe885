//! Clients that ask and do not read what they are answered.

use crate::harness::{self, App, Proxy, app, detect, proxy, server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use weft_model::inbound::Authn;
use weft_testkit::{
    h2raw::{CANCEL, Client, END_STREAM, Ended, PREFACE, get, headers, setting, window},
    pki::Pki,
    raw,
};

const LIMIT: (&str, &str) = ("WEFT_CLIENT_STALL_TIMEOUT", "200ms");
const INITIAL_WINDOW_SIZE: u16 = 4;

async fn store(pki: &Pki) -> (Proxy, App) {
    let app = app().await;
    let proxy = proxy(pki, "store", app.addr, "192.0.2.80:80".parse().unwrap(), &[LIMIT]);
    proxy.told.inbound(app.addr.port(), server(detect(), Authn::Unauthenticated));
    (proxy, app)
}

#[tokio::test(flavor = "local")]
async fn streams_without_a_window_are_reset_and_the_connection_lives() {
    let pki = Pki::new();
    let (proxy, app) = store(&pki).await;
    let mut client = Client::new(TcpStream::connect(proxy.inbound).await.unwrap());
    client.send(&[PREFACE, &setting(INITIAL_WINDOW_SIZE, 0)].concat()).await.unwrap();
    let streams = || (0..20).map(|i| 2 * i + 1);
    for stream in streams() {
        client.send(&headers(stream, END_STREAM, &get("/chunks", &[]))).await.unwrap();
    }
    for stream in streams() {
        assert_eq!(client.end(stream).await.unwrap(), Ended::Reset(CANCEL), "{stream}");
    }
    assert_eq!(app.count(), 20);
    assert_eq!(proxy.counted("inbound_http_errors_total{", "unexpected", "LIM-007").await, 20);
    // Whoever has room is answered, on the same connection and on others.
    client.send(&headers(101, END_STREAM, &get("/chunks", &[]))).await.unwrap();
    client.send(&window(101, 1_000)).await.unwrap();
    assert_eq!(client.end(101).await.unwrap(), Ended::Answered(200));
    let mut neighbour = harness::h2(proxy.inbound).await;
    let response = neighbour.send_request(harness::get("http://web/chunks")).await.unwrap();
    assert_eq!(harness::collect(response).await.1, "one two three");
}

/// An application whose answer has no end. Tells when its connection is cut.
async fn endless() -> (std::net::SocketAddr, tokio::task::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let writing = tokio::task::spawn_local(async move {
        let (mut io, _) = listener.accept().await.unwrap();
        raw::read_http(&mut io).await.unwrap();
        io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n").await.unwrap();
        let mut count = 0;
        while io.write_all(&[b'x'; 64 * 1024]).await.is_ok() {
            count += 1;
        }
        count
    });
    (addr, writing)
}

#[tokio::test(flavor = "local")]
async fn a_connection_that_is_not_read_is_reset_and_its_server_let_go() {
    for version in [1, 2] {
        let pki = Pki::new();
        let (addr, writing) = endless().await;
        let proxy = proxy(&pki, "store", addr, "192.0.2.80:80".parse().unwrap(), &[LIMIT]);
        proxy.told.inbound(addr.port(), server(detect(), Authn::Unauthenticated));
        let mut tcp = TcpStream::connect(proxy.inbound).await.unwrap();
        if version == 1 {
            tcp.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").await.unwrap();
        } else {
            // All the windows that there are, and then not a byte is read.
            let orig = get("/", &[("l5d-orig-proto", "HTTP/1.1")]);
            let largest = 0x7fff_ffff;
            let asked = [
                PREFACE,
                &setting(INITIAL_WINDOW_SIZE, largest),
                &window(0, largest - 65_535),
                &headers(1, END_STREAM, &orig),
            ];
            tcp.write_all(&asked.concat()).await.unwrap();
        }
        raw::within(async { Ok(writing.await.unwrap()) }).await.expect("the server is let go");
        let record = proxy.record(|record| record.ended.is_some() && record.fault.is_some()).await;
        assert_eq!(record.fault.unwrap().code, "LIM-007", "HTTP/{version}");
        let mut read = Vec::new();
        let ended = raw::within(tcp.read_to_end(&mut read)).await;
        assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset, "HTTP/{version}");
    }
}
