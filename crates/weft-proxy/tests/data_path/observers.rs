//! The access log, taps and traces, over the wire.

use crate::{
    harness::{LocalExecutor, Proxy, app, balance, destination, detect, meshed, only, policy, proxy, server},
    profiles::one_route,
    retries::{PATH, known},
};
use hyper_util::rt::TokioIo;
use linkerd2_proxy_api::tap::{
    ObserveRequest, TapEvent,
    observe_request::{
        Extract, Match, extract,
        r#match::{Http, Label, Match as Kind, Seq, http},
    },
    tap_client::TapClient,
    tap_event::{self, ProxyDirection, http::Event},
};
use std::{cell::RefCell, net::SocketAddr, rc::Rc, sync::Arc, time::Instant};
use tokio::net::TcpListener;
use weft_fault::Code;
use weft_model::{identity::Identity, inbound::Authn, outbound::BackendKind};
use weft_proxy::{
    config::ControlAddr,
    control::{Dialer, Service, Whom, connection::Connection},
    identity,
    trace::otlp,
};
use weft_testkit::{
    pki::{self, Pki},
    raw::{self, PATIENCE},
};

fn dst() -> SocketAddr {
    "192.0.2.80:80".parse().unwrap()
}

const GET: &str = "GET /status/201 HTTP/1.1\r\nHost: store\r\nUser-Agent: raw\r\n\r\n";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

#[tokio::test(flavor = "local")]
async fn each_inbound_request_is_one_line_of_the_access_log() {
    let (pki, app) = (Pki::new(), app().await);
    let store = proxy(&pki, "store", app.addr, dst(), &[("ACCESS_LOG", "json")]);
    store.told.inbound(app.addr.port(), server(detect(), Authn::Unauthenticated));
    let post = "POST /x?q=1 HTTP/1.1\r\nHost: store\r\nContent-Length: 5\r\nx-request-id: r-1\r\n\r\nhello";
    assert!(raw::http(store.inbound, GET).await.unwrap().0.starts_with("HTTP/1.1 201"));
    assert!(raw::http(store.inbound, post).await.unwrap().0.starts_with("HTTP/1.1 200"));
    store.told.inbound(app.addr.port(), server(detect(), only(&pki::identity("web", "shop"))));
    assert!(raw::http(store.inbound, GET).await.unwrap().0.starts_with("HTTP/1.1 403"));

    let lines: Vec<serde_json::Value> =
        store.lines.first(3).await.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let field = |n: usize, name: &str| lines[n][name].as_str().unwrap_or_default().to_owned();
    assert_eq!((lines[0]["status"].as_u64(), field(0, "uri")), (Some(201), "/status/201".into()));
    assert_eq!((field(0, "client.addr"), field(0, "user_agent")), ("192.0.2.9:4321".into(), "raw".into()));
    assert_eq!(
        (field(1, "method"), field(1, "host"), field(1, "version")),
        ("POST".into(), "store".into(), "HTTP/1.1".into())
    );
    assert_eq!((field(1, "request_bytes"), field(1, "response_bytes")), ("5".into(), "5".into()));
    assert_eq!(field(1, "trace_id"), "r-1");
    assert!(lines[1].get("fault").is_none());
    assert_eq!(
        (lines[2]["status"].as_u64(), field(2, "fault")),
        (Some(403), Code::PlaintextRefused.id().into())
    );
    for n in 0..3 {
        let (total, processing): (u64, u64) =
            (field(n, "total_ns").parse().unwrap(), field(n, "processing_ns").parse().unwrap());
        assert!(0 < processing && processing <= total, "{n}: {processing} of {total}");
    }
}

#[tokio::test(flavor = "local")]
async fn a_filter_leaves_out_what_nobody_looks_for() {
    let (pki, app) = (Pki::new(), app().await);
    let settings = [("ACCESS_LOG", "apache"), ("WEFT_ACCESS_LOG_FILTER", "status>=500 || fault=POL-002")];
    let store = proxy(&pki, "store", app.addr, dst(), &settings);
    store.told.inbound(app.addr.port(), server(detect(), Authn::Unauthenticated));
    for (path, status) in [("/status/200", 200), ("/status/404", 404), ("/status/503", 503)] {
        let (head, _) =
            raw::http(store.inbound, &format!("GET {path} HTTP/1.1\r\nHost: s\r\n\r\n")).await.unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
    }
    store.told.inbound(app.addr.port(), server(detect(), only(&pki::identity("web", "shop"))));
    raw::http(store.inbound, GET).await.unwrap();
    let lines = store.lines.first(2).await;
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains(" - - [") && lines[0].ends_with("\"GET /status/503 HTTP/1.1\" 503"),
        "{lines:?}"
    );
    assert!(lines[1].ends_with("\"GET /status/201 HTTP/1.1\" 403 POL-002"), "{lines:?}");
}

/// A collector of spans, which refuses its first batches.
struct Collector {
    addr: SocketAddr,
    batches: Rc<RefCell<Vec<otlp::ExportRequest>>>,
    asked: Rc<RefCell<usize>>,
}

async fn collector(refuses: usize) -> Collector {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (batches, asked): (Rc<RefCell<Vec<_>>>, Rc<RefCell<usize>>) = Default::default();
    let (taken, count) = (batches.clone(), asked.clone());
    tokio::task::spawn_local(async move {
        while let Ok((io, _)) = listener.accept().await {
            let (taken, count) = (taken.clone(), count.clone());
            let service =
                hyper::service::service_fn(move |request: ::http::Request<hyper::body::Incoming>| {
                    let (taken, count) = (taken.clone(), count.clone());
                    async move {
                        assert_eq!(request.uri().path(), otlp::EXPORT);
                        *count.borrow_mut() += 1;
                        if *count.borrow() <= refuses {
                            return Ok(tonic::Status::unavailable("not yet").into_http::<tonic::body::Body>());
                        }
                        let body = http_body_util::BodyExt::collect(request.into_body()).await?.to_bytes();
                        // A message of gRPC has five bytes before it.
                        let message = prost::Message::decode(&body[5..]).unwrap();
                        taken.borrow_mut().push(message);
                        let empty = http_body_util::Full::new(bytes::Bytes::from_static(&[0; 5]));
                        let mut answer = ::http::Response::new(tonic::body::Body::new(empty));
                        answer.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
                        answer.headers_mut().insert("grpc-status", "0".parse().unwrap());
                        Ok::<_, hyper::Error>(answer)
                    }
                });
            let serving = hyper::server::conn::http2::Builder::new(LocalExecutor);
            let serving = serving.serve_connection(TokioIo::new(io), service);
            tokio::task::spawn_local(async move { drop(serving.await) });
        }
    });
    Collector { addr, batches, asked }
}

impl Collector {
    /// Waits for a number of spans; the resource that the first batch describes, and all spans.
    async fn spans(&self, wanted: usize) -> (Vec<otlp::KeyValue>, Vec<otlp::Span>) {
        let looking = async {
            loop {
                let batches = self.batches.borrow().clone();
                let all = batches.iter().flat_map(|b| &b.resource_spans);
                let spans: Vec<_> = all.flat_map(|r| &r.scope_spans).flat_map(|s| s.spans.clone()).collect();
                if spans.len() >= wanted {
                    let resource = batches[0].resource_spans[0].resource.clone().unwrap();
                    return (resource.attributes, spans);
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.expect("spans in time")
    }
}

fn attribute(span: &otlp::Span, key: &str) -> Option<otlp::Value> {
    span.attributes.iter().find(|a| a.key == key).and_then(|a| a.value.clone()?.value)
}

#[tokio::test(flavor = "local")]
async fn sampled_requests_become_spans_and_pass_their_context_on() {
    let (pki, app) = (Pki::new(), app().await);
    let collector = collector(1).await;
    let store = proxy(
        &pki,
        "store",
        app.addr,
        dst(),
        &[
            ("TRACE_COLLECTOR_SVC_ADDR", &collector.addr.to_string()),
            ("TRACE_SERVICE_NAME", "store-proxy"),
            ("TRACE_EXTRA_ATTRIBUTES", "k8s.pod.name=store-0"),
        ],
    );
    store.told.inbound(app.addr.port(), server(detect(), Authn::Unauthenticated));
    store.told.destination(destination(
        dst(),
        policy(BackendKind::Forward(Arc::new(weft_model::outbound::Endpoint::bare(
            app.addr,
            weft_model::identity::PeerIdentity::Unmeshed,
        )))),
        false,
    ));
    let ask = |path: &str, fields: &str| format!("GET {path} HTTP/1.1\r\nHost: store:80\r\n{fields}\r\n\r\n");
    let sampled = format!("traceparent: 00-{TRACE}-{PARENT}-01");

    // 1. Inbound: the application sees the proxy's span as its parent.
    raw::http(store.inbound, &ask("/status/503", &sampled)).await.unwrap();
    let inbound = app.last().headers["traceparent"].to_str().unwrap().to_owned();
    // 2. Outbound, in another form.
    let b3 = format!("x-b3-traceid: {TRACE}\r\nx-b3-spanid: {PARENT}\r\nx-b3-sampled: 1");
    raw::http(store.outbound, &ask("/b3", &b3)).await.unwrap();
    let outbound = app.last().headers.clone();
    // 3. Without a sampled context nothing is recorded, and nothing is changed.
    let not = format!("traceparent: 00-{TRACE}-{PARENT}-00");
    raw::http(store.inbound, &ask("/not", &not)).await.unwrap();
    assert_eq!(app.last().headers["traceparent"], not.split_once(": ").unwrap().1);
    raw::http(store.inbound, GET).await.unwrap();
    // 4. Refused by policy: a span, too, which says why.
    store.told.inbound(app.addr.port(), server(detect(), only(&pki::identity("web", "shop"))));
    raw::http(store.inbound, &ask("/refused", &sampled)).await.unwrap();

    let (resource, spans) = collector.spans(3).await;
    let resource: Vec<&str> = resource.iter().map(|attribute| attribute.key.as_str()).collect();
    assert_eq!(resource, ["k8s.pod.name", "service.name"]);
    assert_eq!(spans.len(), 3, "{spans:?}");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for span in &spans {
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), PARENT.into()));
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
    }
    assert_eq!(inbound, format!("00-{TRACE}-{}-01", hex(&spans[0].span_id)));
    assert_eq!((spans[0].name.as_str(), spans[0].kind), ("/status/503", i32::from(otlp::Kind::Server)));
    assert_eq!(attribute(&spans[0], "http.response.status_code"), Some(otlp::Value::Number(503)));
    assert_eq!(spans[0].status.as_ref().unwrap().code, i32::from(otlp::StatusCode::Error));

    assert_eq!(
        (outbound["x-b3-spanid"].to_str().unwrap(), outbound["x-b3-parentspanid"].to_str().unwrap()),
        (hex(&spans[1].span_id).as_str(), PARENT,)
    );
    assert_eq!(spans[1].kind, i32::from(otlp::Kind::Client));
    assert_eq!(attribute(&spans[1], "network.peer.address"), Some(otlp::Value::Text(app.addr.to_string())));
    assert!(spans[1].status.is_none());
    assert_eq!(
        attribute(&spans[2], "error.type"),
        Some(otlp::Value::Text(Code::PlaintextRefused.id().into()))
    );

    // The first attempt was refused and repeated; nothing is lost.
    assert!(*collector.asked.borrow() >= 2);
    let page = store.metrics().await;
    assert!(page.contains("opentelemetry_span_exports_total 3"), "{page}");
    assert!(page.contains("weft_spans_dropped_total 0"), "{page}");
}

/// A connection to a proxy's tap port, as `id`.
async fn tap_as(pki: &Pki, proxy: &Proxy, id: &Identity) -> TapClient<Connection> {
    let tap = proxy.tap.expect("the proxy serves taps");
    let addr = ControlAddr { host: tap.ip().to_string(), port: tap.port(), name: Some(proxy.id.clone()) };
    let whom = Whom::Certified(identity::Handle::fixed(pki.credentials(id)));
    let service = Service::start(Dialer { whom, ..Dialer::new("tap", addr, pki.anchors()) });
    TapClient::new(service.connection(Instant::now() + PATIENCE).await.unwrap())
}

fn tapper() -> Identity {
    pki::identity("tap", "linkerd-viz")
}

fn wanting(limit: u32, kinds: Vec<Kind>, with_headers: bool) -> ObserveRequest {
    let matches = kinds.into_iter().map(|kind| Match { r#match: Some(kind) }).collect();
    let headers = extract::http::Extract::Headers(extract::http::Headers {});
    let extract = extract::Extract::Http(extract::Http { extract: Some(headers) });
    ObserveRequest {
        limit,
        r#match: Some(Match { r#match: Some(Kind::All(Seq { matches })) }),
        extract: with_headers.then_some(Extract { extract: Some(extract) }),
    }
}

fn path_begins(with: &str) -> Kind {
    let prefix = http::string_match::Match::Prefix(with.into());
    Kind::Http(Http { r#match: Some(http::Match::Path(http::StringMatch { r#match: Some(prefix) })) })
}

/// The events of a tap until it ends, in order.
async fn events(mut stream: tonic::Streaming<TapEvent>) -> Vec<TapEvent> {
    let reading = async {
        let mut all = Vec::new();
        while let Some(event) = stream.message().await.unwrap() {
            all.push(event);
        }
        all
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("the tap ends when its limit is reached")
}

fn event(of: &TapEvent) -> &Event {
    let Some(tap_event::Event::Http(http)) = &of.event else { panic!("{of:?}") };
    http.event.as_ref().unwrap()
}

#[tokio::test(flavor = "local")]
async fn a_tap_sees_what_it_asked_for_at_both_ends_and_ends_at_its_limit() {
    let (pki, app) = (Pki::new(), app().await);
    let tapper_id = tapper().to_string();
    let tap = [("TAP_SVC_NAME", tapper_id.as_str()), ("CONTROL_LISTEN_ADDR", "127.0.0.1:0")];
    let store = proxy(&pki, "store", app.addr, dst(), &tap);
    let web = proxy(&pki, "web", dst(), dst(), &tap);
    store.told.inbound(app.addr.port(), server(detect(), only(&web.id)));
    let mut endpoint = meshed(store.inbound, &store.id);
    endpoint.labels = Arc::new([("pod".to_owned(), "store-0".to_owned())].into());
    web.told.destination(destination(dst(), policy(BackendKind::Forward(Arc::new(endpoint))), true));

    let mut at_store = tap_as(&pki, &store, &tapper()).await;
    let mut at_web = tap_as(&pki, &web, &tapper()).await;
    let inbound =
        at_store.observe(wanting(1, vec![path_begins("/status")], true)).await.unwrap().into_inner();
    let outbound =
        at_web.observe(wanting(1, vec![path_begins("/status")], false)).await.unwrap().into_inner();

    // Not wanted, wanted, and one too many.
    for path in ["/other", "/status/418", "/status/200"] {
        raw::http(web.outbound, &format!("GET {path} HTTP/1.1\r\nHost: store\r\nx-secret: s\r\n\r\n"))
            .await
            .unwrap();
    }
    for (all, direction, with_headers) in [
        (events(inbound).await, ProxyDirection::Inbound, true),
        (events(outbound).await, ProxyDirection::Outbound, false),
    ] {
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all.iter().all(|event| event.proxy_direction == i32::from(direction)));
        let Event::RequestInit(init) = event(&all[0]) else { panic!("{all:?}") };
        assert_eq!((init.path.as_str(), init.authority.as_str()), ("/status/418", "store"));
        let names = init.headers.iter().flat_map(|h| &h.headers).map(|h| h.name.as_str()).collect::<Vec<_>>();
        assert_eq!((init.headers.is_some(), names.contains(&"x-secret")), (with_headers, with_headers));
        let Event::ResponseInit(response) = event(&all[1]) else { panic!("{all:?}") };
        assert_eq!(response.http_status, 418);
        let Event::ResponseEnd(end) = event(&all[2]) else { panic!("{all:?}") };
        assert_eq!((&end.id, &response.id), (&init.id, &init.id));
        assert!(end.since_request_init.is_some() && end.since_response_init.is_some());
        let labels = match direction {
            ProxyDirection::Inbound => all[0].source_meta.clone().unwrap().labels,
            _ => all[0].destination_meta.clone().unwrap().labels,
        };
        let (key, id) = if with_headers { ("client_id", &web.id) } else { ("server_id", &store.id) };
        assert_eq!((labels["tls"].as_str(), labels[key].as_str()), ("true", id.as_str()));
        if direction == ProxyDirection::Outbound {
            assert_eq!(labels["pod"], "store-0");
        }
    }
}

#[tokio::test(flavor = "local")]
async fn a_tap_may_ask_for_a_route_and_hears_its_labels() {
    use weft_model::{
        http::{HttpMatch, PathMatch},
        inbound::{HttpPolicy, Protocol, Route, Rule},
        meta::{Meta, Resource},
    };
    let (pki, app) = (Pki::new(), app().await);
    let tapper_id = tapper().to_string();
    let tap = [("TAP_SVC_NAME", tapper_id.as_str()), ("CONTROL_LISTEN_ADDR", "127.0.0.1:0")];
    let store = proxy(&pki, "store", app.addr, dst(), &tap);
    let web = proxy(&pki, "web", dst(), dst(), &tap);
    let route = |name: &str, path: &str| Route {
        meta: Arc::new(Meta::Resource(Resource {
            group: "gateway.networking.k8s.io".into(),
            kind: "HTTPRoute".into(),
            namespace: "shop".into(),
            name: name.into(),
            ..Resource::default()
        })),
        hosts: Vec::new(),
        authorizations: Vec::new(),
        rules: vec![Rule {
            matches: vec![HttpMatch { path: Some(PathMatch::Prefix(path.into())), ..HttpMatch::default() }],
            filters: Vec::new(),
        }],
    };
    let http = HttpPolicy { routes: vec![route("status", "/status"), route("rest", "/")], rate_limit: None };
    let protocol = Protocol::Detect { timeout: PATIENCE, http };
    store.told.inbound(app.addr.port(), server(protocol, only(&web.id)));
    web.told.endpoints(PATH, known(&[Arc::new(meshed(store.inbound, &store.id))]));
    let mut to = destination(dst(), policy(balance(PATH)), true);
    to.service = one_route("status", "/status/418");
    web.told.destination(to);

    let wants =
        |key: &str, value: &str| Kind::RouteLabel(Label { key: key.to_owned(), value: value.to_owned() });
    let mut at_store = tap_as(&pki, &store, &tapper()).await;
    let mut at_web = tap_as(&pki, &web, &tapper()).await;
    let inbound = at_store.observe(wanting(1, vec![wants("route_name", "status")], false)).await.unwrap();
    let outbound = at_web.observe(wanting(1, vec![wants("route", "status")], false)).await.unwrap();
    for path in ["/other", "/status/418"] {
        raw::http(web.outbound, &format!("GET {path} HTTP/1.1\r\nHost: store\r\n\r\n")).await.unwrap();
    }
    for all in [events(inbound.into_inner()).await, events(outbound.into_inner()).await] {
        let Event::RequestInit(init) = event(&all[0]) else { panic!("{all:?}") };
        assert_eq!(init.path, "/status/418");
        let labels = all[0].route_meta.clone().unwrap().labels;
        match all[0].proxy_direction == i32::from(ProxyDirection::Inbound) {
            true => {
                assert_eq!(labels["route_kind"], "HTTPRoute");
                assert_eq!((labels["route_namespace"].as_str(), labels.len()), ("shop", 4), "{labels:?}");
            }
            false => assert_eq!(labels["route"], "status"),
        }
    }
}

#[tokio::test(flavor = "local")]
async fn only_the_one_client_may_tap_and_only_with_a_question() {
    let (pki, app) = (Pki::new(), app().await);
    let tapper_id = tapper().to_string();
    let tap = [("TAP_SVC_NAME", tapper_id.as_str()), ("CONTROL_LISTEN_ADDR", "127.0.0.1:0")];
    let store = proxy(&pki, "store", app.addr, dst(), &tap);
    let question = || wanting(1, vec![path_begins("/")], false);
    let mut stranger = tap_as(&pki, &store, &pki::identity("web", "shop")).await;
    let refused = stranger.observe(question()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    assert!(refused.message().contains(&tapper_id), "{refused:?}");
    let mut client = tap_as(&pki, &store, &tapper()).await;
    let mut nonsense = vec![wanting(0, vec![path_begins("/")], false), question()];
    nonsense[1].r#match = None;
    for question in nonsense {
        let refused = client.observe(question).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    }
    // Without the variable nothing listens.
    assert!(proxy(&pki, "web", app.addr, dst(), &[]).tap.is_none());
}
