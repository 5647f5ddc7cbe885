//! Routes of bytes, servers that speak first, pods that go, and the bounds of waiting.

use crate::{
    harness::{
        App, Proxy, app, backend, balance, collect, destination, get, h2, meta, opaque, policy, routes, rule,
    },
    retries::{PATH, counted, dst, error_of, known, plain, scripted},
};
use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use weft_fault::Code;
use weft_model::{
    http::{Filter, HostMatch},
    identity::Identity,
    meta::{Meta, Resource},
    outbound::{
        BackendKind, Distribution, Endpoint, HttpRule, OpaqueRoute, OpaqueRoutes, OutboundPolicy,
        OutboundProtocol, Refusal,
    },
};
use weft_proxy::discovery::{Destination, Lookup};
use weft_testkit::{
    pki::{self, Pki},
    raw,
};

fn client(pki: &Pki, more: &[(&str, &str)]) -> Proxy {
    let proxy = crate::harness::proxy(pki, "web", dst(), dst(), more);
    proxy.service(dst(), PATH);
    proxy
}

/// The bytes with which a TLS client begins that wants this name.
async fn hello(pki: &Pki, name: &str) -> Vec<u8> {
    let (listener, addr) = raw::listener().await;
    let (own, name) = (pki.credentials(&pki::identity("web", "shop")), Identity::parse(name).unwrap());
    let asking = tokio::task::spawn_local(async move {
        let tcp = TcpStream::connect(addr).await.unwrap();
        drop(
            weft_tls::handshake::connect(
                own.client(),
                tcp,
                &name,
                &name,
                weft_tls::handshake::Offer::Nothing,
            )
            .await,
        );
    });
    let (mut io, _) = listener.accept().await.unwrap();
    let hello = record(&mut io).await;
    asking.abort();
    hello
}

/// One TLS record.
async fn record(io: &mut TcpStream) -> Vec<u8> {
    let mut record = vec![0; 5];
    raw::within(io.read_exact(&mut record)).await.unwrap();
    record.resize(5 + usize::from(u16::from_be_bytes([record[3], record[4]])), 0);
    raw::within(io.read_exact(&mut record[5..])).await.unwrap();
    record
}

/// A server that says its name to whoever has sent a whole ClientHello.
async fn naming(name: &'static str) -> SocketAddr {
    let (listener, addr) = raw::listener().await;
    tokio::task::spawn_local(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                let hello = record(&mut io).await;
                assert_eq!(hello[0], 22, "the bytes come as they were sent");
                drop(io.write_all(name.as_bytes()).await);
            });
        }
    });
    addr
}

async fn say(proxy: &Proxy, bytes: &[u8]) -> Vec<u8> {
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(bytes).await.unwrap();
    // A refused connection is reset.
    raw::read_all(&mut io).await.unwrap_or_default()
}

#[tokio::test(flavor = "local")]
async fn tls_takes_the_route_of_its_server_name() {
    let pki = Pki::new();
    let proxy = client(&pki, &[]);
    let route = |name: &str, hosts: Vec<HostMatch>, to: SocketAddr, refuses| OpaqueRoute {
        meta: meta(name),
        hosts,
        backends: Distribution::FirstAvailable(vec![backend(BackendKind::Forward(plain(to)))]),
        refuses,
    };
    let suffix = || vec![HostMatch::Suffix("example.com".into())];
    let exact = |name: &str| vec![HostMatch::Exact(name.into())];
    let all = vec![
        route("any", suffix(), naming("any").await, None),
        route("one", exact("a.example.com"), naming("one").await, None),
        route("no", exact("b.example.com"), naming("no").await, Some(Refusal::Forbidden)),
        route("bad", exact("c.example.com"), naming("bad").await, Some(Refusal::Invalid("why".into()))),
    ];
    let protocol = OutboundProtocol::Tls(OpaqueRoutes { routes: all });
    proxy.told.destination(destination(dst(), protocol, false));
    for (name, answer, code) in [
        ("x.example.com", "any", None),
        ("a.example.com", "one", None),
        ("b.example.com", "", Some(Code::EgressDenied)),
        ("c.example.com", "", Some(Code::BackendInvalid)),
        ("example.org", "", Some(Code::NoRouteMatches)),
    ] {
        let got = say(&proxy, &hello(&pki, name).await).await;
        assert_eq!(String::from_utf8_lossy(&got), answer, "{name}");
        if let Some(code) = code {
            let failed = |record: &weft_wire::record::ConnectionRecord| {
                record.fault.as_ref().is_some_and(|fault| fault.code == code.id())
            };
            proxy.record(failed).await;
        }
    }
    // Without a name there is nothing to go by.
    assert_eq!(say(&proxy, b"no TLS at all\r\n").await, b"");
    proxy
        .record(|record| record.fault.as_ref().is_some_and(|fault| fault.code == Code::NoServerName.id()))
        .await;
}

#[tokio::test(flavor = "local")]
async fn egress_that_is_denied_is_403_for_requests_and_an_end_for_bytes() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = client(&pki, &[]);
    let network = Meta::Resource(Resource {
        group: "policy.linkerd.io".into(),
        kind: "EgressNetwork".into(),
        namespace: "shop".into(),
        name: "all".into(),
        ..Resource::default()
    });
    let deny = Filter::Fail { status: 403, message: "traffic not allowed".into(), ratio: 1.0 };
    let to = BackendKind::Forward(plain(app.addr));
    let denied = HttpRule { filters: vec![deny], ..rule(to.clone()) };
    let mut bytes = opaque(to);
    bytes.routes[0].refuses = Some(Refusal::Forbidden);
    let protocol = OutboundProtocol::Detect {
        timeout: std::time::Duration::from_secs(10),
        http1: routes(denied.clone()),
        http2: routes(denied),
        opaque: bytes,
    };
    let policy = Arc::new(OutboundPolicy { meta: Arc::new(network), protocol: protocol.clone() });
    proxy.told.destination(Destination { policy, ..destination(dst(), protocol, false) });
    let (head, _) = raw::http(proxy.outbound, "GET / HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    assert_eq!(error_of(&head), "POL-006 traffic not allowed");
    assert_eq!(proxy.counted("outbound_http_errors_total", "unexpected", "POL-006").await, 1);
    assert_eq!(say(&proxy, b"\x00\x01\x02\x03").await, b"");
    assert_eq!(proxy.failure().await.fault.unwrap().code, Code::EgressDenied.id());
    assert_eq!(app.count(), 0);
}

/// Field report B14.
#[tokio::test(flavor = "local")]
async fn a_server_that_speaks_first_needs_no_configuration_outside_of_the_mesh() {
    let pki = Pki::new();
    // Whoever waits for the client's bytes waits for ever.
    let proxy = client(&pki, &[("OUTBOUND_DETECT_TIMEOUT", "365d")]);
    let (listener, addr) = raw::listener().await;
    tokio::task::spawn_local(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                // A client that has not said anything yet is greeted.
                let mut first = [0; 1];
                let greets = std::time::Duration::from_millis(20);
                if tokio::time::timeout(greets, io.peek(&mut first)).await.is_err() {
                    io.write_all(b"\x4a\x00\x00\x00\x0a").await.unwrap();
                }
                let (head, _) = raw::read_http(&mut io).await.unwrap();
                if head.starts_with("GET") {
                    io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                } else {
                    io.write_all(head.as_bytes()).await.unwrap();
                }
            });
        }
    });
    let outside = policy(BackendKind::Forward(plain(addr)));
    proxy.told.destination(Destination { in_cluster: false, ..destination(dst(), outside, false) });
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    let mut greeting = [0; 5];
    raw::within(io.read_exact(&mut greeting)).await.unwrap();
    assert_eq!(&greeting, b"\x4a\x00\x00\x00\x0a");
    io.write_all(b"login\r\n\r\n").await.unwrap();
    assert_eq!(raw::read_until(&mut io, b"\r\n\r\n").await.unwrap(), b"login\r\n\r\n");
    // HTTP is still recognised.
    let (head, _) = raw::http(proxy.outbound, "GET / HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(counted(&proxy, "request_total", "direction=\"outbound\"").await, 1);
    assert_eq!(counted(&proxy, "outbound_tcp_detect_http_results_total", "read_timeout").await, 0);
}

/// Field report B07 (a): the application learns from its connection that the pod is gone.
#[tokio::test(flavor = "local")]
async fn a_connection_to_one_pod_ends_with_the_pod() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = client(&pki, &[]);
    let pod = |name: &str| {
        let labels = Arc::new(BTreeMap::from([("pod".to_owned(), name.to_owned())]));
        Arc::new(Endpoint { labels, ..Endpoint::clone(&plain(dst())) })
    };
    // The endpoint is the destination itself; the test's pod listens elsewhere.
    let told = |endpoint: Arc<Endpoint>| {
        let mut protocol = policy(balance(PATH));
        if let OutboundProtocol::Detect { opaque, .. } = &mut protocol {
            *opaque = crate::harness::opaque(BackendKind::Forward(endpoint));
        }
        proxy.told.destination(destination(dst(), protocol, false));
    };
    proxy.told.endpoints(PATH, known(&[plain(app.addr)]));
    told(pod("store-0"));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(b"GET /a HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 200"));
    // Another label of the same pod changes nothing.
    told(pod("store-0"));
    io.write_all(b"GET /a HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    assert!(raw::read_http(&mut io).await.unwrap().0.starts_with("HTTP/1.1 200"));
    told(plain(dst()));
    assert_eq!(raw::read_all(&mut io).await.unwrap(), b"", "an orderly end, without a request");
    assert_eq!(proxy.failures(), 0);
}

#[tokio::test(flavor = "local")]
async fn gateways_are_asked_by_their_name_and_the_others_are_not() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = client(&pki, &[]);
    let gateway = |addr| {
        let authority_override = Some("store.far:8080".to_owned());
        Arc::new(Endpoint { authority_override, ..Endpoint::clone(&plain(addr)) })
    };
    let ask = async || {
        let (head, _) = raw::http(proxy.outbound, "GET / HTTP/1.1\r\nHost: own\r\n\r\n").await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        app.last().headers["host"].clone()
    };
    proxy.told.endpoints(PATH, known(&[gateway(app.addr)]));
    assert_eq!(ask().await, "store.far:8080");
    // A gateway that could not be reached has not changed the request for the next endpoint.
    proxy.told.endpoints(PATH, known(&[gateway(raw::refused().await), plain(app.addr)]));
    for _ in 0..10 {
        assert_eq!(ask().await, "own");
    }
}

#[tokio::test(flavor = "local")]
async fn endpoints_may_have_ipv6_addresses() {
    let pki = Pki::new();
    let proxy = client(&pki, &[]);
    let Ok(listener) = TcpListener::bind("[::1]:0").await else {
        eprintln!("SKIPPED: this machine has no IPv6 loopback");
        return;
    };
    let addr = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        let (mut io, _) = listener.accept().await.unwrap();
        let (head, _) = raw::read_http(&mut io).await.unwrap();
        assert!(head.contains("host: s"), "{head}");
        io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    });
    proxy.told.endpoints(PATH, known(&[plain(addr)]));
    let (head, _) = raw::http(proxy.outbound, "GET / HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(counted(&proxy, "request_total", "target_addr=\"[::1]:").await, 1);
}

#[tokio::test(flavor = "local")]
async fn bytes_are_counted_by_the_endpoints_zone() {
    let pki = Pki::new();
    let proxy = client(&pki, &[]);
    for (label, zone) in [(Some("local"), "local"), (Some("remote"), "remote"), (None, "unknown")] {
        let server = scripted(&["pong\r\n\r\n"]).await;
        let labels = label.map(|zone| ("zone_locality".to_owned(), zone.to_owned())).into_iter().collect();
        let endpoint = Endpoint { labels: Arc::new(labels), ..Endpoint::clone(&plain(server.addr)) };
        let protocol = OutboundProtocol::Opaque(opaque(BackendKind::Forward(Arc::new(endpoint))));
        proxy.told.destination(destination(dst(), protocol, false));
        let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
        io.write_all(b"ping!\r\n\r\n").await.unwrap();
        assert_eq!(raw::read_until(&mut io, b"\r\n\r\n").await.unwrap(), b"pong\r\n\r\n");
        let cost = async |op: &str| {
            let with = format!("op=\"{op}\",zone_locality=\"{zone}\"");
            counted(&proxy, "outbound_tcp_transfer_cost_bytes_total", &with).await
        };
        assert_eq!((cost("recv").await, cost("send").await), (8, 9), "{zone}");
    }
}

#[tokio::test(flavor = "local")]
async fn no_more_connections_wait_for_endpoints_than_the_queue_holds() {
    let pki = Pki::new();
    let proxy = client(&pki, &[("OUTBOUND_TCP_QUEUE_CAPACITY", "1")]);
    proxy.told.destination(destination(dst(), OutboundProtocol::Opaque(opaque(balance(PATH))), false));
    proxy.told.lookup(PATH, Lookup::Pending(None));
    let mut first = TcpStream::connect(proxy.outbound).await.unwrap();
    first.write_all(b"ping\r\n\r\n").await.unwrap();
    proxy.record(|record| record.events.iter().any(|event| event.phase == weft_fault::Phase::Route)).await;
    assert_eq!(say(&proxy, b"ping\r\n\r\n").await, b"");
    assert_eq!(proxy.failure().await.fault.unwrap().code, Code::Overloaded.id());
    // Whoever waited is served once there is an answer.
    proxy.told.endpoints(PATH, known(&[plain(scripted(&["pong\r\n\r\n"]).await.addr)]));
    assert_eq!(raw::read_until(&mut first, b"\r\n\r\n").await.unwrap(), b"pong\r\n\r\n");
}

/// Field report B11: a burst is served, exactly the overflow of a limit is refused, and nothing of it lasts.
#[tokio::test(flavor = "local")]
async fn a_burst_leaves_nothing_behind() {
    let (pki, one, two) = (Pki::new(), app().await, app().await);
    let endpoints = |apps: &[&App]| known(&apps.iter().map(|app| plain(app.addr)).collect::<Vec<_>>());
    let proxy = client(&pki, &[]);
    proxy.told.endpoints(PATH, endpoints(&[&one, &two]));
    let sender = h2(proxy.outbound).await;
    let burst: Vec<_> = (0..500).map(|_| sender.clone().send_request(get("http://s/"))).collect();
    for answer in futures_util::future::join_all(burst).await {
        assert_eq!(collect(answer.unwrap()).await.0.status, 200);
    }
    // A limit of ten, and fifteen at once that do not end.
    let proxy = client(&pki, &[("OUTBOUND_MAX_IN_FLIGHT", "10"), ("CORES", "1")]);
    proxy.told.endpoints(PATH, endpoints(&[&one]));
    let sender = h2(proxy.outbound).await;
    let hanging: Vec<_> = (0..10)
        .map(|_| tokio::task::spawn_local(sender.clone().send_request(get("http://s/hang"))))
        .collect();
    one.until(|hung| hung.begun == 10).await;
    for _ in 0..5 {
        // On connections of their own: a proxy that is full asks its clients to come back on another one.
        let mut overflow = h2(proxy.outbound).await;
        let (head, _, _) = collect(overflow.send_request(get("http://s/")).await.unwrap()).await;
        assert_eq!(head.status, 503);
        assert!(head.headers["l5d-proxy-error"].to_str().unwrap().starts_with("LIM-001"));
    }
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
    one.until(|hung| hung.cancelled == 10).await;
    let (head, _, _) = collect(h2(proxy.outbound).await.send_request(get("http://s/")).await.unwrap()).await;
    assert_eq!(head.status, 200);
}
