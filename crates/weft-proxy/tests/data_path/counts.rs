//! What single requests and connections are counted as: phases, tries, and ends that are no answer.

use crate::{
    harness::{Proxy, app, balance, destination, get, h2, opaque, proxy, routes},
    retries::{PATH, counted, dst, known, plain, retried, scripted, with_routes},
    telemetry,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use weft_model::{
    inbound::{Authn, Protocol},
    outbound::{BackendKind, OutboundProtocol},
};
use weft_testkit::{pki::Pki, raw};

/// How often a phase was observed.
async fn observed(proxy: &Proxy, phase: &str) -> u64 {
    counted(proxy, "weft_phase_duration_seconds_count", &format!("phase=\"{phase}\"")).await
}

const GET: &str = "GET /chunks HTTP/1.1\r\nHost: store\r\nConnection: close\r\n\r\n";
const POST: &str = "POST /b HTTP/1.1\r\nHost: store\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";

#[tokio::test(flavor = "local")]
async fn each_phase_of_a_request_and_a_connection_is_observed() {
    let mut pair = telemetry::pair().await;
    pair.leads_to(crate::harness::policy(balance(PATH)));
    pair.client.told.endpoints(PATH, known(&[pair.endpoint()]));
    assert_eq!(pair.status(POST).await, "200");
    let of_requests = [
        ("accept", 1),
        ("detect", 1),
        ("request-headers", 1),
        ("request-body", 1),
        ("response-headers", 1),
        ("response-body", 1),
    ];
    for (phase, count) in of_requests.into_iter().chain([
        ("discover", 1),
        ("route", 1),
        ("queue", 1),
        ("connect", 1),
        ("tls-connect", 1),
        ("authorize", 0),
        ("copy", 0),
    ]) {
        assert_eq!(observed(&pair.client, phase).await, count, "{phase} of the client's proxy");
    }
    for (phase, count) in [("request-headers", 1), ("tls-accept", 1), ("authorize", 1), ("request-body", 1)] {
        assert_eq!(observed(&pair.server, phase).await, count, "{phase} of the server's proxy");
    }

    let (listener, addr) = raw::listener().await;
    let direct = telemetry::direct_to(&mut pair, addr);
    pair.server.told.inbound(addr.port(), crate::harness::server(Protocol::Opaque, Authn::AnyTls));
    pair.leads_to(OutboundProtocol::Opaque(opaque(BackendKind::Forward(direct))));
    let mut io = TcpStream::connect(pair.client.outbound).await.unwrap();
    let (mut peer, _) = listener.accept().await.unwrap();
    peer.write_all(b"hello").await.unwrap();
    io.read_exact(&mut [0; 5]).await.unwrap();
    drop((io, peer));
    for proxy in [&pair.client, &pair.server] {
        let ended = |record: &weft_wire::record::ConnectionRecord| {
            record.protocol.as_deref() != Some("http/1") && record.duration_us.is_some()
        };
        proxy.record(ended).await;
        assert_eq!(observed(proxy, "copy").await, 1);
    }
    assert_eq!(observed(&pair.client, "route").await, 2);
    assert_eq!(observed(&pair.server, "authorize").await, 2);
    assert_eq!(observed(&pair.server, "transport-header").await, 1);
}

#[tokio::test(flavor = "local")]
async fn a_retried_request_is_one_for_its_route_and_several_for_its_backend() {
    let pki = Pki::new();
    let fails = "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n";
    let server = scripted(&[fails, fails, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"]).await;
    let client = with_routes(&pki, routes(retried()), server.addr);
    let (head, _) = raw::http(client.outbound, POST).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let route = "outbound_http_route_request_statuses_total";
    let backend = "outbound_http_route_backend_response_statuses_total";
    for (family, with, count) in [
        (route, "", 1),
        (route, "http_status=\"200\"", 1),
        ("outbound_http_route_backend_requests_total", "", 3),
        (backend, "http_status=\"500\"", 2),
        (backend, "http_status=\"200\"", 1),
        ("outbound_http_route_request_frame_size_bytes_count", "", 1),
        ("outbound_http_route_backend_response_frame_size_bytes_count", "", 1),
        ("outbound_http_route_retry_requests_total", "", 2),
    ] {
        assert_eq!(counted(&client, family, with).await, count, "{family} {with}");
    }
}

#[tokio::test(flavor = "local")]
async fn what_does_not_come_to_its_end_is_a_failure_with_a_word_for_it() {
    let (pki, app) = (Pki::new(), app().await);
    let (listener, cut) = raw::listener().await;
    tokio::task::spawn_local(async move {
        let (mut io, _) = listener.accept().await.unwrap();
        raw::read_http(&mut io).await.unwrap();
        io.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await.unwrap();
    });
    let client = proxy(&pki, "web", dst(), dst(), &[]);
    let leads_to = |addr| {
        client.told.destination(destination(dst(), crate::harness::policy(balance(PATH)), false));
        client.told.endpoints(PATH, known(&[plain(addr)]));
    };
    let failed = async |with: &str| {
        let with = format!("classification=\"failure\"{with}");
        counted(&client, "response_total", &with).await
    };
    // Without a head, over each version.
    leads_to(app.addr);
    let mut sender = h2(client.outbound).await;
    assert!(sender.send_request(get("http://store/gone")).await.is_err());
    assert_eq!(failed(",error=\"h2(INTERNAL_ERROR)\"").await, 1, "{}", client.metrics().await);
    let (head, _) = raw::http(client.outbound, &GET.replace("/chunks", "/gone")).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    assert_eq!(failed(",error=\"unclassified\"").await, 1);
    // With half a body.
    leads_to(cut);
    let mut io = TcpStream::connect(client.outbound).await.unwrap();
    io.write_all(GET.as_bytes()).await.unwrap();
    assert!(raw::read_all(&mut io).await.unwrap().ends_with(b"\r\n\r\nhalf"));
    assert_eq!(failed(",status_code=\"200\",error=\"unclassified\"").await, 1);
    assert_eq!(counted(&client, "response_total", "classification=\"success\"").await, 0);
    let backend = "outbound_http_route_backend_response_statuses_total";
    assert_eq!(counted(&client, backend, "error=\"RESET\"").await, 1);
    assert_eq!(counted(&client, backend, "error=\"IO\"").await, 2);
}

#[tokio::test(flavor = "local")]
async fn b50_series_of_what_is_gone_go_too() {
    let (pki, gone, stays) = (Pki::new(), app().await, app().await);
    let client = proxy(&pki, "web", dst(), dst(), &[("METRICS_RETAIN_IDLE", "1ms")]);
    client.told.destination(destination(dst(), crate::harness::policy(balance(PATH)), false));
    for app in [&gone, &stays] {
        client.told.endpoints(PATH, known(&[plain(app.addr)]));
        let (head, _) = raw::http(client.outbound, GET).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
    let of = |app: &crate::harness::App| format!("target_addr=\"{}\"", app.addr);
    let looking = async {
        while client.metrics().await.contains(&of(&gone)) {
            client.mesh.metrics.retire().await;
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(raw::PATIENCE, looking).await.expect("the series of the endpoint that is gone go");
    assert_eq!(counted(&client, "request_total", &of(&stays)).await, 1, "what is in use stays");
}
