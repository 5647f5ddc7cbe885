//! What waits for an HTTP/2 connection to take it has a place in that connection's queue, and there are 128. However a request
//! ends, its place is free again: after more of a kind than there are places, the same connection takes the next at once.

use crate::{
    harness::{
        App, Proxy, app, collect, destination, meshed, meta, only, opaque, proxy, routes, rule, server,
    },
    retries::{PATH, dst, known, plain, retried},
};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Frame, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tokio_stream::StreamExt;
use weft_model::{
    http::{Filter, Mirror},
    inbound::{HttpPolicy, Protocol},
    outbound::{BackendKind, HttpRule, OutboundProtocol},
};
use weft_testkit::{pki::Pki, raw};

/// More than one connection's queue has places.
const MORE: usize = 140;
const OTHER: &str = "other.shop.svc.cluster.local:80";

type Body = BoxBody<Bytes, Infallible>;
type Client = SendRequest<Body>;

async fn client(proxy: &Proxy) -> Client {
    let tcp = TcpStream::connect(proxy.outbound).await.unwrap();
    let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await;
    let (sender, connection) = made.unwrap();
    tokio::spawn(connection);
    sender
}

fn with(method: Method, uri: &str, body: Body) -> Request<Body> {
    Request::builder().method(method).uri(uri).body(body).unwrap()
}

fn full(text: &'static str) -> Body {
    Full::from(text).boxed()
}

/// A piece, and then nothing for ever.
fn unfinished() -> Body {
    let begun = tokio_stream::iter([Ok(Frame::data(Bytes::from_static(b"begun")))]);
    BodyExt::boxed(StreamBody::new(begun.chain(tokio_stream::pending())))
}

/// A proxy whose service has this rule, with an application that its requests reach over HTTP/2.
async fn web(rule: HttpRule) -> (Proxy, App) {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, "web", dst(), dst(), &[("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "500ms")]);
    let routes = routes(rule);
    let protocol = OutboundProtocol::Detect {
        timeout: Duration::from_secs(10),
        http1: routes.clone(),
        http2: routes,
        opaque: opaque(crate::harness::balance(PATH)),
    };
    proxy.told.destination(destination(dst(), protocol, false));
    proxy.told.endpoints(PATH, known(&[plain(app.addr)]));
    (proxy, app)
}

/// The connection on which the next request reaches the application.
async fn next(client: &mut Client, app: &App) -> usize {
    let response = client.send_request(with(Method::GET, "http://s/next", full(""))).await.unwrap();
    let (head, ..) = collect(response).await;
    let why = head.headers.get("l5d-proxy-error");
    assert_eq!(head.status, 200, "{why:?}");
    app.last().connection
}

#[tokio::test(flavor = "local")]
async fn of_requests_that_are_answered() {
    let (proxy, app) = web(retried()).await;
    let mut client = client(&proxy).await;
    let connection = next(&mut client, &app).await;
    for (method, uri, body, status) in [
        (Method::GET, "http://s/", "", 200),
        (Method::POST, "http://s/chunks", "body", 200),
        // Sent three times, from what was kept of it.
        (Method::POST, "http://s/status/503", "body", 503),
        // The server resets it, and so does the proxy.
        (Method::GET, "http://s/gone", "", 0),
        (Method::POST, "http://s/gone", "body", 0),
    ] {
        for _ in 0..MORE {
            let status_of = match client.send_request(with(method.clone(), uri, full(body))).await {
                Ok(response) => collect(response).await.0.status.as_u16(),
                Err(_) => 0,
            };
            assert_eq!(status_of, status, "{method} {uri}");
        }
        assert_eq!(next(&mut client, &app).await, connection, "{method} {uri}");
    }
}

#[tokio::test(flavor = "local")]
async fn of_requests_that_are_taken_back() {
    // By each of several clients: one that takes back hundreds is held to be an attack.
    const EACH: usize = 20;
    let (proxy, app) = web(retried()).await;
    let connection = next(&mut client(&proxy).await, &app).await;
    for body in [|| full(""), || full("body"), unfinished] {
        let hang = || with(Method::POST, "http://s/hang", body());
        for _ in 0..MORE / EACH {
            let mut client = client(&proxy).await;
            for _ in 0..EACH {
                let begun = app.hung.borrow().begun;
                let mut request = Box::pin(client.send_request(hang()));
                tokio::select! {
                    answered = &mut request => panic!("{answered:?}"),
                    () = app.until(|hung| hung.begun > begun) => {}
                }
            }
        }
        assert_eq!(next(&mut client(&proxy).await, &app).await, connection);
        // Before anybody has taken them.
        for _ in 0..MORE / EACH {
            let mut client = client(&proxy).await;
            for _ in 0..EACH {
                let _gone = tokio::time::timeout(Duration::ZERO, client.send_request(hang())).await;
            }
            // What was sent before this is read before it.
            assert_eq!(next(&mut client, &app).await, connection);
        }
    }
    app.until(|hung| hung.cancelled == hung.begun).await;
}

#[tokio::test(flavor = "local")]
async fn of_copies_for_a_mirror() {
    let filter = Filter::Mirror(Mirror { meta: meta("mirror"), path: OTHER.into(), fraction: 1.0 });
    let (proxy, main) = web(HttpRule { filters: vec![filter], ..retried() }).await;
    let mirror = app().await;
    proxy.told.endpoints(OTHER, known(&[plain(mirror.addr)]));
    let mut client = client(&proxy).await;
    let connection = next(&mut client, &main).await;
    for body in ["", "body"] {
        let before = mirror.count();
        for i in 1..=MORE {
            let request = with(Method::POST, "http://s/", full(body));
            collect(client.send_request(request).await.unwrap()).await;
            // One at a time: of copies, too, only so many are under way.
            let copied = async {
                while mirror.count() < before + i {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(raw::PATIENCE, copied).await.expect("each copy comes");
        }
        assert_eq!(next(&mut client, &main).await, connection);
        let copies = mirror.seen.borrow();
        assert!(copies.iter().all(|seen| seen.connection == copies[0].connection));
    }
}

/// HTTP/1 that two proxies carry over HTTP/2, where what is no plain request may go another way.
#[tokio::test(flavor = "local")]
async fn of_http1_that_is_carried() {
    let (pki, app) = (Pki::new(), app().await);
    let store = proxy(&pki, "store", app.addr, dst(), &[]);
    let more = [("OUTBOUND_WEFT_HTTP1", "false"), ("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "500ms")];
    let web = proxy(&pki, "web", dst(), dst(), &more);
    let detect = Protocol::Detect { timeout: Duration::from_secs(10), http: HttpPolicy::default() };
    store.told.inbound(app.addr.port(), server(detect, only(&web.id)));
    let http = routes(rule(BackendKind::Forward(Arc::new(meshed(store.inbound, &store.id)))));
    web.told.destination(destination(dst(), OutboundProtocol::Http1(http), true));
    let get = "GET /next HTTP/1.1\r\nHost: s\r\n\r\n";
    for request in [
        "GET / HTTP/1.1\r\nHost: s\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "CONNECT s:80 HTTP/1.1\r\nHost: s:80\r\n\r\n",
        // It gives up in the midst of its body.
        "POST / HTTP/1.1\r\nHost: s\r\nContent-Length: 9\r\n\r\nabc",
    ] {
        for _ in 0..MORE {
            let mut client = TcpStream::connect(web.outbound).await.unwrap();
            client.write_all(request.as_bytes()).await.unwrap();
            if !request.ends_with("abc") {
                let (head, _) = raw::read_http(&mut client).await.unwrap();
                assert!(head.starts_with("HTTP/1.1 "), "{request}: {head}");
            }
        }
        let (head, _) = raw::http(web.outbound, get).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{request}: {head}");
    }
}
