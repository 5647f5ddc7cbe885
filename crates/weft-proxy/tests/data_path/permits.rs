//! What a policy allows, for how long, and what it does besides.

use crate::harness::{App, Proxy, app, collect, detect, get, h2, meta, only, server};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use weft_model::{
    http::{Filter, HeaderChange, HttpMatch, PathChange, PathMatch, Redirect},
    inbound::{Authn, Authorization, HttpPolicy, Network, Protocol, RateLimit, Route, Rule, ServerPolicy},
};
use weft_testkit::{
    pki::{self, Pki},
    raw,
};
use weft_tls::handshake;

fn proxy(pki: &Pki, app: SocketAddr, more: &[(&str, &str)]) -> Proxy {
    crate::harness::proxy(pki, "store", app, "192.0.2.1:80".parse().unwrap(), more)
}

fn route(path: &str, authorizations: Vec<Authorization>, filters: Vec<Filter>) -> Route {
    let path = Some(PathMatch::Prefix(path.into()));
    let rule = Rule { matches: vec![HttpMatch { path, ..Default::default() }], filters };
    Route { meta: meta(&format!("{:?}", rule.matches)), hosts: Vec::new(), authorizations, rules: vec![rule] }
}

fn authorization(name: &str, net: &str, authn: Authn) -> Authorization {
    let network = Network { net: net.parse().unwrap(), except: Vec::new() };
    Authorization { meta: meta(name), networks: vec![network], authn }
}

fn http(routes: Vec<Route>, rate_limit: Option<RateLimit>) -> Protocol {
    Protocol::Detect { timeout: Duration::from_secs(10), http: HttpPolicy { routes, rate_limit } }
}

fn with(protocol: Protocol, authorizations: Vec<Authorization>) -> Arc<ServerPolicy> {
    Arc::new(ServerPolicy { meta: meta("test"), protocol, authorizations, audit: false })
}

async fn ask(proxy: &Proxy, path: &str) -> (String, Vec<u8>) {
    raw::http(proxy.inbound, &format!("GET {path} HTTP/1.1\r\nHost: store\r\n\r\n")).await.unwrap()
}

/// Asks over TLS as `account`.
async fn ask_as(pki: &Pki, account: &str, proxy: &Proxy, path: &str) -> String {
    let credentials = pki.credentials(&pki::identity(account, "shop"));
    let tcp = TcpStream::connect(proxy.inbound).await.unwrap();
    let connected =
        handshake::connect(credentials.client(), tcp, &proxy.id, &proxy.id, handshake::Offer::Nothing).await;
    let mut stream = connected.unwrap().stream;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: store\r\n\r\n").as_bytes()).await.unwrap();
    raw::read_http(&mut stream).await.unwrap().0
}

/// An application that answers an upgrade, or a head and the first of its body, and then says no more.
async fn stays(answer: &'static str) -> (SocketAddr, tokio::sync::oneshot::Receiver<()>) {
    let (listener, addr) = raw::listener().await;
    let (gone, is_gone) = tokio::sync::oneshot::channel();
    tokio::task::spawn_local(async move {
        let (mut io, _) = listener.accept().await.unwrap();
        raw::read_until(&mut io, b"\r\n\r\n").await.unwrap();
        io.write_all(answer.as_bytes()).await.unwrap();
        drop(raw::read_all(&mut io).await);
        gone.send(()).unwrap();
    });
    (addr, is_gone)
}

#[tokio::test(flavor = "local")]
async fn a_response_that_still_comes_ends_with_its_permit() {
    let pki = Pki::new();
    let (addr, gone) = stays("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n").await;
    let proxy = proxy(&pki, addr, &[]);
    let everyone = || authorization("all", "0.0.0.0/0", Authn::Unauthenticated);
    proxy.told.inbound(addr.port(), with(http(vec![route("/", vec![everyone()], vec![])], None), vec![]));
    let mut io = TcpStream::connect(proxy.inbound).await.unwrap();
    io.write_all(b"GET /stream HTTP/1.1\r\nHost: store\r\n\r\n").await.unwrap();
    assert!(raw::read_until(&mut io, b"one\r\n").await.unwrap().starts_with(b"HTTP/1.1 200"));
    // Changes that still allow it are no interruption.
    proxy.told.inbound(addr.port(), with(http(vec![], None), vec![everyone()]));
    let routes = || vec![route("/", vec![], vec![])];
    proxy.told.inbound(addr.port(), with(http(routes(), None), vec![everyone()]));
    // The route's authorization is withdrawn, and the server has none.
    proxy.told.inbound(addr.port(), with(http(routes(), None), vec![]));
    let rest = raw::read_all(&mut io).await.unwrap_or_default();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the client must not take it for whole: {rest:?}");
    raw::within(async { gone.await.map_err(std::io::Error::other) }).await.unwrap();
    let fault = proxy.failure().await.fault.unwrap();
    assert_eq!(fault.code, "POL-004");
    assert!(fault.causes[0].starts_with("POL-001") || fault.causes[0].starts_with("POL-005"), "{fault:?}");
    let page = proxy.metrics().await;
    assert!(page.contains("inbound_tcp_authz_terminate_total{"), "{page}");
}

#[tokio::test(flavor = "local")]
async fn of_two_streams_the_one_that_is_still_allowed_goes_on() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, app.addr, &[]);
    let everyone = || vec![authorization("all", "0.0.0.0/0", Authn::Unauthenticated)];
    let policy = |hang| http(vec![route("/hang", hang, vec![]), route("/", everyone(), vec![])], None);
    proxy.told.inbound(app.addr.port(), with(policy(everyone()), vec![]));
    let mut client = h2(proxy.inbound).await;
    let hanging = tokio::spawn(client.send_request(get("http://store/hang")));
    app.until(|hung| hung.begun == 1).await;
    proxy.told.inbound(app.addr.port(), with(policy(vec![]), vec![]));
    let (head, _, _) =
        collect(tokio::time::timeout(raw::PATIENCE, hanging).await.unwrap().unwrap().unwrap()).await;
    assert_eq!((head.status.as_u16(), &head.headers["l5d-proxy-error"]), (403, &"POL-004".parse().unwrap()));
    app.until(|hung| hung.cancelled == 1).await;
    // The same connection goes on.
    let (head, _, _) = collect(client.send_request(get("http://store/a")).await.unwrap()).await;
    assert_eq!(head.status, 200);
}

#[tokio::test(flavor = "local")]
async fn an_upgraded_connection_ends_with_its_permit() {
    let pki = Pki::new();
    let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello";
    let (addr, gone) = stays(answer).await;
    let proxy = proxy(&pki, addr, &[]);
    proxy.told.inbound(addr.port(), server(detect(), Authn::Unauthenticated));
    let mut io = TcpStream::connect(proxy.inbound).await.unwrap();
    let request = b"GET /ws HTTP/1.1\r\nHost: store\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    io.write_all(request).await.unwrap();
    assert!(raw::read_until(&mut io, b"hello").await.unwrap().starts_with(b"HTTP/1.1 101"));
    proxy.told.inbound(addr.port(), server(detect(), Authn::AnyTls));
    assert_eq!(raw::read_all(&mut io).await.unwrap_or_default(), b"");
    raw::within(async { gone.await.map_err(std::io::Error::other) }).await.unwrap();
    assert_eq!(proxy.failure().await.fault.unwrap().code, "POL-004");
}

#[tokio::test(flavor = "local")]
async fn an_opaque_port_that_becomes_http_ends_its_connections_and_refuses_bytes() {
    let pki = Pki::new();
    let (listener, addr) = raw::listener().await;
    let proxy = proxy(&pki, addr, &[]);
    proxy.told.inbound(addr.port(), server(Protocol::Opaque, Authn::Unauthenticated));
    let mut io = TcpStream::connect(proxy.inbound).await.unwrap();
    io.write_all(b"x").await.unwrap();
    let (mut app, _) = listener.accept().await.unwrap();
    assert_eq!(app.read_u8().await.unwrap(), b'x');
    let http1 = Protocol::Http1(HttpPolicy::default());
    proxy.told.inbound(addr.port(), server(http1, Authn::Unauthenticated));
    assert_eq!(raw::read_all(&mut app).await.unwrap_or_default(), b"");
    let fault = proxy.failure().await.fault.unwrap();
    assert!(fault.code == "POL-004" && fault.causes[0].starts_with("POL-007"), "{fault:?}");
}

#[tokio::test(flavor = "local")]
async fn a_probes_route_is_open_where_the_rest_is_not() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, app.addr, &[]);
    // The caller of these tests is in 192.0.2.0/24: the kubelet's network, say.
    let kubelet = authorization("probe", "192.0.2.0/24", Authn::Unauthenticated);
    let elsewhere = authorization("probe", "198.51.100.0/24", Authn::Unauthenticated);
    let web = || authorization("web", "0.0.0.0/0", only(&pki::identity("web", "shop")));
    let policy = |probe| {
        with(http(vec![route("/live", vec![probe], vec![]), route("/", vec![], vec![])], None), vec![web()])
    };
    proxy.told.inbound(app.addr.port(), policy(kubelet));
    assert!(ask(&proxy, "/live").await.0.starts_with("HTTP/1.1 200"));
    let (head, _) = ask(&proxy, "/data").await;
    assert!(head.starts_with("HTTP/1.1 403") && head.contains("POL-002"), "{head}");
    assert!(ask_as(&pki, "web", &proxy, "/data").await.starts_with("HTTP/1.1 200"));
    proxy.told.inbound(app.addr.port(), policy(elsewhere));
    assert!(ask(&proxy, "/live").await.0.starts_with("HTTP/1.1 403"));
}

/// B36: an application that redirects its probe is passed on as it is; where the redirect leads has no permission of its own.
#[tokio::test(flavor = "local")]
async fn b36_a_probes_redirect_is_passed_on_and_leads_no_further() {
    let pki = Pki::new();
    let moved = "HTTP/1.1 301 Moved Permanently\r\nlocation: /moved\r\ncontent-length: 0\r\n\r\n";
    let app = weft_testkit::raw::answering(moved).await;
    let proxy = proxy(&pki, app, &[]);
    let kubelet = authorization("probe", "192.0.2.0/24", Authn::Unauthenticated);
    let routes = vec![route("/live", vec![kubelet], vec![]), route("/", vec![], vec![])];
    proxy.told.inbound(app.port(), with(http(routes, None), vec![]));
    let (head, _) = ask(&proxy, "/live?full=1").await;
    assert!(head.starts_with("HTTP/1.1 301") && head.contains("location: /moved\r\n"), "{head}");
    let (head, _) = ask(&proxy, "/moved").await;
    assert!(head.starts_with("HTTP/1.1 403") && head.contains("POL-005"), "{head}");
}

#[tokio::test(flavor = "local")]
async fn default_policies_mean_what_their_names_say() {
    let pki = Pki::new();
    // Every caller here has the address 192.0.2.9.
    for (name, cluster, plain, tls) in [
        ("deny", "192.0.2.0/24", "403 POL-005", "403 POL-005"),
        ("all-unauthenticated", "198.51.100.0/24", "200", "200"),
        ("all-authenticated", "198.51.100.0/24", "403 POL-002", "200"),
        ("cluster-unauthenticated", "192.0.2.0/24", "200", "200"),
        ("cluster-unauthenticated", "198.51.100.0/24", "403 POL-001", "403 POL-001"),
        ("cluster-authenticated", "192.0.2.0/24", "403 POL-002", "200"),
        ("cluster-authenticated", "198.51.100.0/24", "403 POL-001", "403 POL-001"),
        ("audit", "198.51.100.0/24", "200", "200"),
    ] {
        let app = app().await;
        let proxy =
            proxy(&pki, app.addr, &[("INBOUND_DEFAULT_POLICY", name), ("POLICY_CLUSTER_NETWORKS", cluster)]);
        assert_eq!(outcome(&ask(&proxy, "/").await.0), plain, "{name} {cluster}, plaintext");
        assert_eq!(outcome(&ask_as(&pki, "web", &proxy, "/").await), tls, "{name} {cluster}, TLS");
    }
}

/// The status, and the code in the header if there is one.
fn outcome(head: &str) -> String {
    let status = head.split(' ').nth(1).unwrap();
    let code = head.lines().find_map(|line| line.strip_prefix("l5d-proxy-error: "));
    code.map_or(status.to_owned(), |text| format!("{status} {}", text.split(' ').next().unwrap()))
}

#[tokio::test(flavor = "local")]
async fn an_audit_lets_pass_and_counts_under_linkerds_name() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, app.addr, &[]);
    let web = authorization("web", "0.0.0.0/0", only(&pki::identity("web", "shop")));
    let audit = ServerPolicy { audit: true, ..ServerPolicy::clone(&with(detect(), vec![web])) };
    proxy.told.inbound(app.addr.port(), Arc::new(audit));
    assert!(ask(&proxy, "/").await.0.starts_with("HTTP/1.1 200"));
    assert!(ask_as(&pki, "web", &proxy, "/").await.starts_with("HTTP/1.1 200"));
    let page = proxy.metrics().await;
    let allowed: Vec<_> = page.lines().filter(|l| l.starts_with("inbound_http_authz_allow_total{")).collect();
    assert_eq!(allowed.len(), 2, "{allowed:?}");
    let counted = |name: &str, tls: &str| {
        allowed
            .iter()
            .any(|l| l.contains(&format!(r#"authz_kind="default",authz_name="{name}""#)) && l.contains(tls))
    };
    assert!(counted("audit", r#"tls="no_identity""#) && counted("web", r#"tls="true""#), "{allowed:?}");
    let told =
        |r: &weft_wire::record::ConnectionRecord| r.events.iter().any(|e| e.text.contains("only audited"));
    proxy.record(told).await;
}

#[tokio::test(flavor = "local")]
async fn filters_change_answer_and_fail_requests() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, app.addr, &[]);
    let change = HeaderChange {
        set: vec![("x-set".into(), "1".into())],
        add: vec![("x-add".into(), "2".into())],
        remove: vec!["x-remove".into()],
    };
    let redirect = Redirect {
        status: 301,
        host: Some("other.example".into()),
        path: Some(PathChange::Prefix("/new".into())),
        ..Redirect::default()
    };
    let routes = vec![
        route("/headers", vec![], vec![Filter::RequestHeaders(change)]),
        route("/old", vec![], vec![Filter::Redirect(redirect)]),
        route("/fail", vec![], vec![Filter::Fail { status: 418, message: "tea".into(), ratio: 1.0 }]),
        route("/unknown", vec![], vec![Filter::Unknown]),
    ];
    let everyone = vec![authorization("all", "0.0.0.0/0", Authn::Unauthenticated)];
    proxy.told.inbound(app.addr.port(), with(http(routes, None), everyone));
    let request = "GET /headers HTTP/1.1\r\nHost: store\r\nx-set: 0\r\nx-remove: 1\r\n\r\n";
    assert!(raw::http(proxy.inbound, request).await.unwrap().0.starts_with("HTTP/1.1 200"));
    let seen = app.last().headers;
    assert_eq!((&seen["x-set"], &seen["x-add"]), (&"1".parse().unwrap(), &"2".parse().unwrap()));
    assert!(!seen.contains_key("x-remove"));
    let (head, _) = ask(&proxy, "/old/page?q=1").await;
    assert!(head.starts_with("HTTP/1.1 301"), "{head}");
    assert!(head.contains("location: http://other.example/new/page?q=1\r\n"), "{head}");
    let (head, _) = ask(&proxy, "/fail").await;
    assert!(head.starts_with("HTTP/1.1 418") && head.contains("l5d-proxy-error: RTE-003 tea"), "{head}");
    assert_eq!(proxy.counted("inbound_http_errors_total", "unexpected", "RTE-003").await, 1);
    assert_eq!(proxy.failure().await.fault.unwrap().fact("message"), Some("tea"));
    let (head, _) = ask(&proxy, "/unknown").await;
    assert!(head.starts_with("HTTP/1.1 500") && head.contains("RTE-004"), "{head}");
    assert_eq!(app.count(), 1);
}

fn limit(total: Option<u32>, per_identity: Option<u32>, overrides: &[(&str, u32)]) -> RateLimit {
    let overrides = overrides.iter().map(|(account, n)| ([pki::identity(account, "shop")].into(), *n));
    RateLimit { meta: meta("limit"), total, per_identity, overrides: overrides.collect() }
}

/// Asks so often that a rate of a few a second is exceeded on any machine; says how often that was refused.
async fn refusals(mut ask: impl AsyncFnMut() -> String, app: &App) -> usize {
    let before = app.count();
    let mut refused = 0;
    for _ in 0..20 {
        let outcome = ask().await;
        refused += usize::from(outcome == "429 LIM-002");
        assert!(outcome == "200" || outcome == "429 LIM-002", "{outcome}");
    }
    assert_eq!(app.count() - before, 20 - refused);
    refused
}

#[tokio::test(flavor = "local")]
async fn rates_are_limited_per_identity_with_exceptions() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, app.addr, &[]);
    let limit = limit(None, Some(1), &[("batch", 1_000_000)]);
    proxy.told.inbound(app.addr.port(), server(http(vec![], Some(limit)), Authn::Unauthenticated));
    let as_ = |account: &'static str| {
        let (pki, proxy) = (&pki, &proxy);
        async move || outcome(&ask_as(pki, account, proxy, "/").await)
    };
    assert!(refusals(as_("web"), &app).await > 0);
    assert_eq!(refusals(as_("batch"), &app).await, 0, "an override of its own");
    assert_eq!(as_("other")().await, "200", "one identity's excess is not another's");
    // Those without an identity share one.
    assert!(refusals(async || outcome(&ask(&proxy, "/").await.0), &app).await > 0);
    let page = proxy.metrics().await;
    assert!(page.contains("inbound_http_local_ratelimit_total{"), "{page}");
}

#[tokio::test(flavor = "local")]
async fn grpc_hears_of_a_limit_in_its_own_form() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, app.addr, &[]);
    let limit = limit(Some(0), None, &[]);
    proxy.told.inbound(app.addr.port(), server(http(vec![], Some(limit)), Authn::Unauthenticated));
    let mut client = h2(proxy.inbound).await;
    let grpc = Request::post("http://store/a.B/C")
        .header("content-type", "application/grpc")
        .body(Full::new(Bytes::new()))
        .unwrap();
    let (head, _, _) = collect(client.send_request(grpc).await.unwrap()).await;
    assert_eq!((head.status.as_u16(), &head.headers["grpc-status"]), (200, &"8".parse().unwrap()));
}

#[tokio::test(flavor = "local")]
async fn the_pod_itself_needs_no_permission() {
    let (pki, app) = (Pki::new(), app().await);
    let mut proxy = proxy(&pki, app.addr, &[("INBOUND_DEFAULT_POLICY", "deny")]);
    let socket = weft_net::socket::listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    proxy.inbound = socket.local_addr().unwrap();
    let listener = weft_net::socket::Listener::new(socket, Default::default()).unwrap().pretending(app.addr);
    tokio::task::spawn_local(weft_proxy::inbound::serve(proxy.mesh.clone(), listener));
    assert!(ask(&proxy, "/").await.0.starts_with("HTTP/1.1 200"));
}

/// B40: probes neither use up the rate of their port nor are they refused for it.
#[tokio::test(flavor = "local")]
async fn probes_are_not_limited_and_cost_others_nothing() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = proxy(&pki, app.addr, &[]);
    let everyone = authorization("all", "0.0.0.0/0", Authn::Unauthenticated);
    let probe = Route { meta: meta("probe"), ..route("/ready", vec![everyone.clone()], vec![]) };
    let rest = route("/", vec![], vec![]);
    let limit = limit(Some(1), None, &[]);
    proxy.told.inbound(app.addr.port(), with(http(vec![probe, rest], Some(limit)), vec![everyone]));
    for _ in 0..20 {
        assert!(ask(&proxy, "/ready").await.0.starts_with("HTTP/1.1 200"));
    }
    assert!(ask(&proxy, "/a").await.0.starts_with("HTTP/1.1 200"), "the first of its second");
    let refused = async || (ask(&proxy, "/a").await.0).starts_with("HTTP/1.1 429");
    let (first, second) = (refused().await, refused().await);
    assert!(first || second, "what is no probe is limited");
    assert!(ask(&proxy, "/ready").await.0.starts_with("HTTP/1.1 200"));
}
