//! Endpoints that are gone: taken out of the answer, or without a word.

use crate::{
    field_reports::{accept, client, next, ok},
    harness::{app, get, h2},
    retries::{PATH, known, plain},
};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use std::time::Duration;
use tokio::net::TcpStream;
use weft_testkit::{
    h2raw::{ACK, Client as Frames, HEADERS, PING, frame},
    pki::Pki,
    raw::{self, within},
};

type Asking = tokio::task::JoinHandle<hyper::Result<http::Response<hyper::body::Incoming>>>;

fn ask(client: &mut SendRequest<Full<Bytes>>) -> Asking {
    tokio::spawn(client.send_request(get("http://store/")))
}

async fn answered(asking: Asking) -> u16 {
    tokio::time::timeout(raw::PATIENCE, asking).await.unwrap().unwrap().unwrap().status().as_u16()
}

async fn serve(server: &mut Frames<TcpStream>) {
    let asked = next(server, HEADERS).await;
    server.send(&ok(asked.stream)).await.unwrap();
}

async fn later(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// B53, the second run: who wants to use a connection that was quiet learns first whether anybody is there.
#[tokio::test(flavor = "local")]
async fn b53_a_late_request_does_not_ride_on_a_dead_connection() {
    let (pki, (listener, addr)) = (Pki::new(), raw::listener().await);
    let web = client(&pki);
    web.told.endpoints(PATH, known(&[plain(addr)]));
    let mut client = h2(web.outbound).await;
    let asking = ask(&mut client);
    let mut server = accept(&listener).await;
    serve(&mut server).await;
    assert_eq!(answered(asking).await, 200);

    // It lives, and says so: the request goes out after that, on the same connection.
    later(Duration::from_secs(4)).await;
    let asking = ask(&mut client);
    let ping = next(&mut server, PING).await;
    server.send(&frame(PING, ACK, 0, &ping.payload)).await.unwrap();
    serve(&mut server).await;
    assert_eq!(answered(asking).await, 200);

    // It is gone without a word: a second is all that the request loses, and it was never sent there.
    later(Duration::from_secs(4)).await;
    let asking = ask(&mut client);
    next(&mut server, PING).await;
    later(Duration::from_millis(1_001)).await;
    let mut other = accept(&listener).await;
    serve(&mut other).await;
    assert_eq!(answered(asking).await, 200);
    assert_eq!(web.failures(), 0);
    drop(client);
    while let Ok(Some(frame)) = server.frame().await {
        assert_ne!(frame.kind, HEADERS, "the request was sent to the dead peer, too");
    }
}

/// B07 (b): what is taken out of the answer is let go without traffic, and not dialled again by any.
#[tokio::test(flavor = "local")]
async fn b07_a_removed_endpoint_is_let_go_without_traffic_and_not_dialled_again() {
    let (pki, app) = (Pki::new(), app().await);
    let web = client(&pki);
    let (gone, gone_addr) = raw::listener().await;
    web.told.endpoints(PATH, known(&[plain(gone_addr)]));
    let asking = tokio::task::spawn_local(raw::http(web.outbound, "GET / HTTP/1.1\r\nHost: s\r\n\r\n"));
    let (mut io, _) = within(gone.accept()).await.unwrap();
    raw::read_until(&mut io, b"\r\n\r\n").await.unwrap();
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut io, answer).await.unwrap();
    assert!(asking.await.unwrap().unwrap().0.starts_with("HTTP/1.1 200"));

    web.told.endpoints(PATH, known(&[plain(app.addr)]));
    // Nobody asks for anything, and the idle connection ends.
    assert!(within(raw::read_all(&mut io)).await.unwrap().is_empty());
    for _ in 0..20 {
        raw::http(web.outbound, "GET / HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    }
    assert_eq!(app.count(), 20);
    let dialled = std::future::poll_fn(|cx| std::task::Poll::Ready(gone.poll_accept(cx).is_ready())).await;
    assert!(!dialled, "the removed endpoint was dialled again");
}
