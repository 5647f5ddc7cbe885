//! Clients that flood: their connection is ended with the code for that, and a neighbour notices nothing.

use crate::{
    harness::{App, Proxy, app, destination, meshed, only, proxy, routes, rule, server},
    retries::counted,
};
use std::{cell::Cell, net::SocketAddr, rc::Rc, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use weft_model::{
    inbound::{Authn, HttpPolicy, Protocol},
    outbound::{BackendKind, OutboundProtocol},
};
use weft_testkit::{
    h2raw::{
        ACK, CANCEL, CONTINUATION, Client, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Ended, HEADERS,
        PING, PREFACE, PRIORITY, RST_STREAM, SETTINGS, block, frame, get, headers, request, reset, setting,
        string, window,
    },
    pki::Pki,
    raw::within,
};

async fn store(pki: &Pki) -> (Proxy, App) {
    let app = app().await;
    let proxy = proxy(pki, "store", app.addr, "192.0.2.80:80".parse().unwrap(), &[]);
    let http = Protocol::Http2(HttpPolicy::default());
    proxy.told.inbound(app.addr.port(), server(http, Authn::Unauthenticated));
    (proxy, app)
}

async fn flood(proxy: &Proxy, first: Vec<u8>, more: impl Fn(u32) -> Vec<u8> + 'static) -> Ended {
    flood_at(proxy.inbound, first, more).await
}

/// Sends `more(0)`, `more(1)` … until the proxy ends the connection, while a neighbour asks. How did it end?
async fn flood_at(proxy: SocketAddr, first: Vec<u8>, more: impl Fn(u32) -> Vec<u8> + 'static) -> Ended {
    let tcp = TcpStream::connect(proxy).await.unwrap();
    let (read, mut write) = tcp.into_split();
    let flooding = tokio::task::spawn_local(async move {
        let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &first].concat();
        let mut sent = write.write_all(&hello).await;
        for round in 0.. {
            if sent.is_err() {
                break;
            }
            sent = write.write_all(&more(round)).await;
            tokio::task::yield_now().await;
        }
    });
    let neighbour = async {
        let mut neighbour = Client::open(TcpStream::connect(proxy).await.unwrap()).await.unwrap();
        for i in 0..50 {
            assert_eq!(neighbour.ask(2 * i + 1, "/").await.unwrap(), Ended::Answered(200));
        }
    };
    let victim = async {
        let mut client = Client::new(tokio::io::join(read, tokio::io::sink()));
        loop {
            match client.frame().await.unwrap() {
                None => break Ended::Closed,
                Some(frame) => match frame.code() {
                    Some(code) if frame.kind != RST_STREAM && code != 0 => break Ended::Goaway(code),
                    _ => {}
                },
            }
        }
    };
    let (ended, ()) = tokio::join!(victim, neighbour);
    flooding.await.unwrap();
    ended
}

const CALM: Ended = Ended::Goaway(ENHANCE_YOUR_CALM);

/// The flooding client's connection is the one that failed.
async fn told(proxy: &Proxy) -> String {
    proxy
        .record(|record| record.fault.as_ref().is_some_and(|fault| fault.code == "LIM-005"))
        .await
        .fault
        .unwrap()
        .code
}

fn many(count: u32, one: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (0..count).flat_map(one).collect()
}

#[tokio::test(flavor = "local")]
async fn frames_that_only_cost() {
    let (proxy, _app) = store(&Pki::new()).await;
    type One = fn() -> Vec<u8>;
    let floods: [(&str, One); 6] = [
        ("PING", || frame(PING, 0, 0, &[7; 8])),
        ("SETTINGS", || setting(4, 65_535)),
        ("PRIORITY", || frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
        ("WINDOW_UPDATE", || window(0, 1)),
        ("unknown", || frame(0xbb, 0, 0, &[])),
        ("empty DATA", || frame(DATA, 0, 1, &[])),
    ];
    for (name, one) in floods {
        let open = headers(1, 0, &request("POST", "/hang", &[]));
        assert_eq!(flood(&proxy, open, move |_| many(100, |_| one())).await, CALM, "{name}");
    }
    assert_eq!(told(&proxy).await, "LIM-005");
    let frames = counted(&proxy, "weft_http2_flood_frames_total", "kind=\"other\"").await;
    assert!(frames >= 2_000, "{frames} frames");
}

#[tokio::test(flavor = "local")]
async fn requests_that_are_taken_back_at_once() {
    let (proxy, _app) = store(&Pki::new()).await;
    let rapid = |round: u32| {
        many(100, |i| {
            let stream = 2 * (100 * round + i) + 1;
            [headers(stream, END_STREAM, &get("/hang", &[])), reset(stream, CANCEL)].concat()
        })
    };
    assert_eq!(flood(&proxy, Vec::new(), rapid).await, CALM);
}

#[tokio::test(flavor = "local")]
async fn requests_that_the_proxy_is_made_to_reset() {
    let (proxy, _app) = store(&Pki::new()).await;
    assert_eq!(flood(&proxy, Vec::new(), overflow).await, CALM);
    let (proxy, _app) = store(&Pki::new()).await;
    let malformed = |round: u32| {
        many(100, |i| headers(2 * (100 * round + i) + 1, END_STREAM, &get("/", &[("content-length", "5")])))
    };
    assert_eq!(flood(&proxy, Vec::new(), malformed).await, CALM);
}

fn overflow(round: u32) -> Vec<u8> {
    many(100, |i| {
        let stream = 2 * (100 * round + i) + 1;
        [headers(stream, END_STREAM, &get("/hang", &[])), window(stream, 0x7fff_ffff)].concat()
    })
}

/// The client's proxy speaks for the flooding client and for its neighbour on one connection, which must not end for both.
#[tokio::test(flavor = "local")]
async fn what_a_proxy_takes_back_for_one_client_is_not_held_against_the_others() {
    let (pki, app) = (Pki::new(), app().await);
    let dst = "192.0.2.80:80".parse().unwrap();
    let store = proxy(&pki, "store", app.addr, dst, &[]);
    let web = proxy(&pki, "web", dst, dst, &[]);
    store.told.inbound(app.addr.port(), server(Protocol::Http2(HttpPolicy::default()), only(&web.id)));
    let http = routes(rule(BackendKind::Forward(Arc::new(meshed(store.inbound, &store.id)))));
    web.told.destination(destination(dst, OutboundProtocol::Http2(http), true));
    for _ in 0..5 {
        assert_eq!(flood_at(web.outbound, Vec::new(), overflow).await, CALM);
    }
    assert_eq!(store.failures(), 0);
}

#[tokio::test(flavor = "local")]
async fn a_header_block_without_end() {
    let (proxy, _app) = store(&Pki::new()).await;
    let open = || frame(HEADERS, END_STREAM, 1, &block(&get("/", &[])));
    let empty = |_| many(100, |_| frame(CONTINUATION, 0, 1, &[]));
    assert_eq!(flood(&proxy, open(), empty).await, CALM);
    let full = |round: u32| frame(CONTINUATION, 0, 1, &block(&[(&format!("x-{round}"), &"x".repeat(4_000))]));
    assert_eq!(flood(&proxy, open(), full).await, CALM);
}

#[tokio::test(flavor = "local")]
async fn a_field_repeated_by_its_number_alone_is_counted_each_time() {
    let (proxy, _app) = store(&Pki::new()).await;
    let mut client = Client::open(TcpStream::connect(proxy.inbound).await.unwrap()).await.unwrap();
    // Entry 62 is what this puts into the table; each further byte repeats it.
    let mut bomb = block(&get("/", &[]));
    bomb.push(0x40);
    string(b"x", &mut bomb);
    string(&[b'y'; 3_000], &mut bomb);
    bomb.extend([0xbe; 10_000]);
    client.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb)).await.unwrap();
    assert_eq!(client.end(1).await.unwrap(), CALM, "thirty megabytes of fields in ten kilobytes");
    let mut client = Client::open(TcpStream::connect(proxy.inbound).await.unwrap()).await.unwrap();
    // Small ones cost as much to keep as large ones.
    let mut bomb = block(&get("/", &[]));
    bomb.push(0x40);
    string(b"x", &mut bomb);
    string(b"", &mut bomb);
    bomb.extend([0xbe; 1_000]);
    client.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb)).await.unwrap();
    assert_eq!(client.end(1).await.unwrap(), Ended::Answered(431));
    assert_eq!(client.ask(3, "/").await.unwrap(), Ended::Answered(200));
}

/// A server that takes one request at a time, and answers none.
async fn full_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                const MAX_CONCURRENT_STREAMS: u16 = 3;
                let mut preface = [0; PREFACE.len()];
                if tcp.read_exact(&mut preface).await.is_err() {
                    return;
                }
                let mut wire = Client::new(tcp);
                let _gone = wire.send(&setting(MAX_CONCURRENT_STREAMS, 1)).await;
                while let Ok(Some(came)) = wire.frame().await {
                    if came.kind == SETTINGS && came.flags & ACK == 0 {
                        let _gone = wire.send(&frame(SETTINGS, ACK, 0, &[])).await;
                    }
                }
            });
        }
    });
    addr
}

#[tokio::test(flavor = "local")]
async fn requests_queue_for_a_connection_in_bounded_number_and_not_for_ever() {
    const CLIENTS: u32 = 2;
    const EACH: u32 = 240;
    // What a connection's queue has room for, and what the server may have been sent before it said how much it takes.
    const NOT_REFUSED: u32 = 128 + 100 + 4;
    let app = full_server().await;
    let limits = [("INBOUND_HTTP_FAILFAST_TIMEOUT", "300ms")];
    let proxy = proxy(&Pki::new(), "store", app, "192.0.2.80:80".parse().unwrap(), &limits);
    proxy.told.inbound(app.port(), server(Protocol::Http2(HttpPolicy::default()), Authn::Unauthenticated));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let tcp = TcpStream::connect(proxy.inbound).await.unwrap();
        let mut client = Client::open(tcp).await.unwrap();
        client.send(&many(EACH, |i| headers(2 * i + 1, END_STREAM, &get("/", &[])))).await.unwrap();
        clients.push(client);
    }
    // Nothing else than a refusal has a head: the server answers nothing.
    let refused = Rc::new(Cell::new(0));
    for mut client in clients {
        let refused = refused.clone();
        tokio::task::spawn_local(async move {
            while let Ok(Some(came)) = client.frame().await {
                if came.kind == HEADERS {
                    refused.set(refused.get() + 1);
                }
            }
        });
    }
    within(async {
        while refused.get() < CLIENTS * (EACH - NOT_REFUSED) {
            tokio::task::yield_now().await;
        }
        Ok(())
    })
    .await
    .unwrap();
    let metrics = proxy.metrics().await;
    assert!(metrics.contains(r#"inbound_http_errors_total{error="loadshed",code="LIM-003""#), "{metrics}");
}
