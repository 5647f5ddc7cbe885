//! What a pair of proxies tells about its traffic: families and labels, and the lines of its log.

use crate::harness::{
    App, Proxy, STRANGER, app, backend, balance, collect, destination, detect, get, h2, meshed, meta, only,
    opaque, policy, proxy, routes, rule, server,
};
use http::Request;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    net::SocketAddr,
    sync::{Arc, Once},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt};
use weft_model::{
    http::Filter,
    identity::{PeerIdentity, Unknown},
    inbound::{Authn, HttpPolicy, Protocol, RateLimit, Route, Rule},
    outbound::{BackendKind, Distribution, Endpoint, Endpoints, OutboundProtocol, ProtocolHint},
};
use weft_testkit::{
    pki::{self, Pki},
    raw,
};

const PATH: &str = "store.shop.svc.cluster.local:80";
const GET: &str = "GET /a HTTP/1.1\r\nHost: store\r\nConnection: close\r\n\r\n";

fn dst() -> SocketAddr {
    "192.0.2.80:80".parse().unwrap()
}

/// The client's proxy and the server's, which lets that client in, and an application.
pub(crate) struct Pair {
    pub(crate) client: Proxy,
    pub(crate) server: Proxy,
    app: App,
}

pub(crate) async fn pair() -> Pair {
    let (pki, app) = (Pki::new(), app().await);
    let server = proxy(&pki, "store", app.addr, dst(), &[]);
    let more = [("OUTBOUND_FAILFAST_TIMEOUT", "1s")];
    let client = proxy(&pki, "web", dst(), dst(), &more);
    server.told.inbound(app.addr.port(), self::server(detect(), only(&client.id)));
    Pair { client, server, app }
}

impl Pair {
    pub(crate) fn endpoint(&self) -> Arc<Endpoint> {
        let mut endpoint = meshed(self.server.inbound, &self.server.id);
        endpoint.hint = ProtocolHint::H2;
        endpoint.labels = Arc::new(BTreeMap::from([("pod".into(), "store-0".into())]));
        Arc::new(endpoint)
    }

    pub(crate) fn leads_to(&self, protocol: OutboundProtocol) {
        self.client.told.destination(destination(dst(), protocol, true));
    }

    pub(crate) async fn status(&self, request: &str) -> String {
        let (head, _) = raw::http(self.client.outbound, request).await.unwrap();
        head.split(' ').nth(1).unwrap().to_owned()
    }
}

/// `family{labels}` of each series, its values left out. Samples of a histogram are one family.
fn shapes(page: &str) -> BTreeSet<String> {
    let types: BTreeMap<&str, &str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let end = line.find(['{', ' ']).expect("a name");
            let (name, rest) = line.split_at(end);
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|suffix| name.strip_suffix(suffix))
                .find(|family| types.get(family) == Some(&"histogram"))
                .unwrap_or(name);
            assert!(types.contains_key(family), "{family} has no type: {line}");
            let labels: BTreeSet<&str> = labels(rest).into_iter().filter(|label| *label != "le").collect();
            format!("{family}{{{}}}", labels.into_iter().collect::<Vec<_>>().join(","))
        })
        .collect()
}

/// The names in `{a="…",b="…"} 1`.
fn labels(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = text.strip_prefix('{').unwrap_or("");
    while let Some((name, value)) = rest.split_once("=\"") {
        names.push(name);
        let mut escaped = false;
        let end = value.find(|c| match (c, escaped) {
            ('"', false) => true,
            ('\\', false) => {
                escaped = true;
                false
            }
            _ => {
                escaped = false;
                false
            }
        });
        rest = &value[end.expect("the end of a value") + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    names
}

/// Each label of each series is declared for its family.
fn all_declared(shapes: &BTreeSet<String>, pair: &Pair) {
    let declared: BTreeMap<String, Vec<&str>> =
        pair.client.mesh.metrics.describe().into_iter().map(|family| (family.name, family.labels)).collect();
    for shape in shapes {
        let (family, labels) = shape.trim_end_matches('}').split_once('{').unwrap();
        let known = declared.get(family).unwrap_or_else(|| panic!("{family} is not declared"));
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            let fits = |known: &&str| match known.strip_suffix('*') {
                Some(begin) => label.starts_with(begin),
                None => *known == label,
            };
            assert!(known.iter().any(fits), "{label} of {family} is not declared");
        }
    }
}

/// HTTP, refused, limited, failing, gRPC and opaque traffic.
async fn drive(pair: &mut Pair) {
    // HTTP/1 over HTTP/2 through a balancer, with a body, with the application's own failures.
    pair.leads_to(policy(balance(PATH)));
    pair.client.told.endpoints(PATH, Endpoints::Known(Arc::new(vec![pair.endpoint()])));
    assert_eq!(pair.status(GET).await, "200");
    let post = "POST /b HTTP/1.1\r\nHost: store\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
    assert_eq!(pair.status(post).await, "200");
    assert_eq!(pair.status(&GET.replace("/a", "/status/503")).await, "503");
    // No endpoints, then one that refuses.
    pair.client.told.endpoints(PATH, Endpoints::Known(Arc::new(Vec::new())));
    assert_eq!(pair.status(GET).await, "503");
    let refused = Endpoint::bare(raw::refused().await, PeerIdentity::Unmeshed);
    pair.client.told.endpoints(PATH, Endpoints::Known(Arc::new(vec![Arc::new(refused)])));
    assert_eq!(pair.status(GET).await, "502");
    // Denied, without a route, limited.
    pair.client.told.endpoints(PATH, Endpoints::Known(Arc::new(vec![pair.endpoint()])));
    let port = pair.app.addr.port();
    let tell = |pair: &Pair, protocol, authn| pair.server.told.inbound(port, server(protocol, authn));
    tell(pair, detect(), only(&pki::identity("other", "shop")));
    assert_eq!(pair.status(GET).await, "403");
    let elsewhere = weft_model::http::HostMatch::Exact("elsewhere".into());
    let route =
        Route { meta: meta("r"), hosts: vec![elsewhere], authorizations: Vec::new(), rules: Vec::new() };
    let http = HttpPolicy { routes: vec![route], rate_limit: None };
    tell(pair, Protocol::Http1(http), Authn::AnyTls);
    assert_eq!(pair.status(GET).await, "404");
    let rate_limit = RateLimit { meta: meta("l"), total: Some(0), per_identity: None, overrides: Vec::new() };
    tell(
        pair,
        Protocol::Http1(HttpPolicy { routes: Vec::new(), rate_limit: Some(rate_limit) }),
        Authn::AnyTls,
    );
    assert_eq!(pair.status(GET).await, "429");
    // gRPC, by routes of its own on both sides.
    let any = vec![Rule { matches: Vec::new(), filters: Vec::new() }];
    let route = Route { meta: meta("g"), hosts: Vec::new(), authorizations: Vec::new(), rules: any };
    tell(pair, Protocol::Grpc(HttpPolicy { routes: vec![route], rate_limit: None }), Authn::AnyTls);
    pair.leads_to(OutboundProtocol::Grpc(routes(rule(balance(PATH)))));
    let mut sender = h2(pair.client.outbound).await;
    let mut call: Request<_> = get("http://store/pkg.Store/List");
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    *call.method_mut() = http::Method::POST;
    collect(sender.send_request(call).await.unwrap()).await;
    drop(sender);
    // Bytes, let in, refused, and by a server name.
    let (listener, addr) = raw::listener().await;
    let direct = direct_to(pair, addr);
    pair.server.told.inbound(addr.port(), server(Protocol::Opaque, Authn::AnyTls));
    pair.leads_to(OutboundProtocol::Opaque(opaque(BackendKind::Forward(direct.clone()))));
    let mut io = TcpStream::connect(pair.client.outbound).await.unwrap();
    let (mut peer, _) = listener.accept().await.unwrap();
    peer.write_all(b"hello").await.unwrap();
    io.read_exact(&mut [0; 5]).await.unwrap();
    // The permit is withdrawn while the connection is open.
    pair.server.told.inbound(addr.port(), server(Protocol::Opaque, only(&pair.server.id)));
    drop(raw::read_all(&mut io).await);
    drop(peer);
    pair.leads_to(OutboundProtocol::Opaque(opaque(balance(PATH))));
    pair.client.told.endpoints(PATH, Endpoints::Known(Arc::new(vec![direct])));
    let mut io = TcpStream::connect(pair.client.outbound).await.unwrap();
    io.write_all(b"PING").await.unwrap();
    assert!(raw::read_all(&mut io).await.is_err());
    let mut forbidden = opaque(balance(PATH));
    forbidden.routes[0].refuses = Some(weft_model::outbound::Refusal::Forbidden);
    pair.leads_to(OutboundProtocol::Opaque(forbidden));
    let mut io = TcpStream::connect(pair.client.outbound).await.unwrap();
    drop(raw::read_all(&mut io).await);
    // A client that says nothing, and one in plaintext that nobody expects.
    let silent = TcpStream::connect(pair.server.inbound).await.unwrap();
    drop(silent);
    let mut io = TcpStream::connect(pair.server.inbound).await.unwrap();
    io.write_all(b"not TLS at all\r\n").await.unwrap();
    drop(raw::read_all(&mut io).await);
    pair.server.record(|record| record.fault.as_ref().is_some_and(|f| f.code == "TLS-012")).await;
    pair.server
        .record(|record| record.ended.as_deref().is_some_and(|how| how.contains("without sending")))
        .await;
}

/// Lets the client dial the server's own port for the application at `addr`.
pub(crate) fn direct_to(pair: &mut Pair, addr: SocketAddr) -> Arc<Endpoint> {
    let socket = weft_net::socket::listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    pair.server.inbound = socket.local_addr().unwrap();
    let own = pair.server.mesh.config.inbound.listen;
    let direct = weft_net::socket::Listener::new(socket, Default::default()).unwrap().pretending(own);
    let direct = direct.pretending_client(STRANGER.parse().unwrap());
    tokio::task::spawn_local(weft_proxy::inbound::serve(pair.server.mesh.clone(), direct));
    let mut endpoint = meshed(addr, &pair.server.id);
    endpoint.transport_port = Some(pair.server.inbound.port());
    Arc::new(endpoint)
}

#[tokio::test(flavor = "local")]
async fn families_and_labels_are_those_of_the_golden_file() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data_path/telemetry.golden");
    let mut pair = pair().await;
    drive(&mut pair).await;
    let mut shapes = shapes(&pair.client.metrics().await);
    shapes.extend(self::shapes(&pair.server.metrics().await));
    all_declared(&shapes, &pair);
    // What the machine tells is not the same everywhere.
    let by_machine = ["weft_cgroup", "weft_pressure", "weft_run_queue", "process_max_fds"];
    shapes.retain(|shape| !by_machine.iter().any(|begin| shape.starts_with(begin)));
    let now: String = shapes.iter().map(|shape| format!("{shape}\n")).collect();
    if std::env::var_os("WEFT_WRITE_DOCS").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    let (golden, now): (BTreeSet<_>, BTreeSet<_>) = (golden.lines().collect(), now.lines().collect());
    let (lost, new): (Vec<_>, Vec<_>) =
        (golden.difference(&now).collect(), now.difference(&golden).collect());
    assert!(
        lost.is_empty() && new.is_empty(),
        "lost {lost:#?}, new {new:#?}; if it is meant: WEFT_WRITE_DOCS=1 cargo test -p weft-proxy --test data_path telemetry"
    );
}

/// The lines that this test's proxies write: they all run on its thread. One subscriber serves all tests, since `tracing`
/// remembers for the whole process what nobody wants to hear.
struct Lines;

thread_local! {
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Level, spans and message of a line, and its fields.
#[derive(Clone, Debug, Default)]
struct Line {
    level: String,
    spans: String,
    message: String,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "spans" => self.spans = value.into(),
            "message" => self.message = value.into(),
            name => drop(self.fields.insert(name, value.into())),
        }
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("weft_proxy") {
            let mut line = Line { level: event.metadata().level().to_string(), ..Line::default() };
            event.record(&mut line);
            LINES.with_borrow_mut(|lines| lines.push(line));
        }
    }
}

impl Lines {
    fn listen() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Lines)).unwrap();
        });
        LINES.take();
    }

    /// The first line with this message, and that field of it.
    fn find(message: &str, field: &str, value: &str) -> Line {
        LINES.with_borrow(|lines| {
            let fits = |line: &&Line| {
                line.message == message && line.fields.get(field).is_some_and(|found| found.contains(value))
            };
            let found = lines.iter().find(fits);
            found.unwrap_or_else(|| panic!("{message} with {field}={value} in {lines:#?}")).clone()
        })
    }
}

#[tokio::test(flavor = "local")]
async fn lines_say_what_people_search_for() {
    Lines::listen();
    let mut pair = pair().await;
    drive(&mut pair).await;
    let accept = format!("inbound:accept{{client.addr={STRANGER} target.addr={}}}", pair.app.addr);

    let denied = Lines::find("Request denied", "code", "POL-001");
    assert_eq!(denied.level, "WARN");
    assert!(denied.spans.starts_with(&format!("{accept}:server{{port=")), "{denied:?}");
    assert!(denied.spans.ends_with(":http{v=1.x}"), "{denied:?}");
    assert!(denied.fields["client.tls"].starts_with("Some(Established"), "{denied:?}");
    assert!(denied.fields["error"].contains("POL-001"), "{denied:?}");

    let denied = Lines::find("Connection denied", "code", "POL-001");
    assert!(denied.spans.contains(":direct"), "{denied:?}");

    let none = Lines::find("HTTP Balancer service in fail-fast", "code", "UPS-001");
    assert!(none.spans.starts_with("outbound:accept{client.addr=127.0.0.1:"), "{none:?}");
    assert!(none.spans.contains(":proxy{addr=192.0.2.80:80}:http{v=1.x}:logical{dst="), "{none:?}");
    assert!(none.fields["error"].contains(PATH), "the balancer is named: {none:?}");

    let refused = Lines::find("Failed to connect", "code", "NET-001");
    assert!(refused.spans.starts_with("outbound:endpoint{peer.addr=127.0.0.1:"), "{refused:?}");

    let silent = Lines::find("Peeked bytes from TCP stream", "sz", "0");
    assert_eq!(silent.level, "DEBUG");
    assert!(silent.spans.starts_with("inbound:accept{client.addr="), "{silent:?}");
}

#[tokio::test(flavor = "local")]
async fn an_injected_failure_is_logged_with_its_code() {
    Lines::listen();
    let (pki, app) = (Pki::new(), app().await);
    let client = proxy(&pki, "web", dst(), dst(), &[]);
    let mut failing = rule(BackendKind::Forward(Arc::new(Endpoint::bare(app.addr, PeerIdentity::Unmeshed))));
    failing.filters = vec![Filter::Fail { status: 503, message: "as asked".into(), ratio: 1.0 }];
    client.told.destination(destination(dst(), OutboundProtocol::Http1(routes(failing)), false));
    let (head, _) = raw::http(client.outbound, GET).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    let line = Lines::find("Request failed", "code", "RTE-003");
    assert_eq!(line.level, "INFO");
    assert!(line.fields["error"].contains("as asked"), "{line:?}");
}

#[tokio::test(flavor = "local")]
async fn a_target_that_is_dialled_in_plaintext_is_named_once_with_the_reason() {
    Lines::listen();
    let (pki, app) = (Pki::new(), app().await);
    let client = proxy(&pki, "web", dst(), dst(), &[]);
    let bare = Arc::new(Endpoint::bare(app.addr, PeerIdentity::Unknown(Unknown::LookupFailed)));
    for n in 0..3 {
        // Another answer about the same address each time.
        let mut endpoint = Endpoint::clone(&bare);
        endpoint.labels = Arc::new(BTreeMap::from([("n".into(), n.to_string())]));
        endpoint.hint = if n == 1 { ProtocolHint::H2 } else { ProtocolHint::Unknown };
        let kind = BackendKind::Forward(Arc::new(endpoint));
        client.told.destination(destination(dst(), policy(kind), false));
        assert!(raw::http(client.outbound, GET).await.unwrap().0.starts_with("HTTP/1.1 200"));
    }
    let named = |line: &&Line| line.message.starts_with("Plaintext to an address in the cluster");
    let all = LINES.take();
    let named: Vec<&Line> = all.iter().filter(named).collect();
    assert_eq!(named.len(), 1, "{all:#?}");
    assert_eq!(named[0].level, "WARN");
    assert_eq!(named[0].fields["reason"], "lookup-failed");
    assert!(named[0].spans.contains(&app.addr.to_string()), "{named:?}");
}

#[tokio::test(flavor = "local")]
async fn host_names_are_labels_only_where_that_is_asked_for() {
    let (pki, app) = (Pki::new(), app().await);
    for (more, label) in [
        (&[][..], "hostname=\"\""),
        (&[("OUTBOUND_METRICS_HOSTNAME_LABELS", "true")][..], "hostname=\"store.example\""),
    ] {
        let client = proxy(&pki, "web", dst(), dst(), more);
        let kind = BackendKind::Forward(Arc::new(Endpoint::bare(app.addr, PeerIdentity::Unmeshed)));
        let mut by_route = rule(kind.clone());
        by_route.backends = Distribution::FirstAvailable(vec![backend(kind)]);
        client.told.destination(destination(dst(), OutboundProtocol::Http1(routes(by_route)), false));
        let request = "GET / HTTP/1.1\r\nHost: Store.example:80\r\nConnection: close\r\n\r\n";
        raw::http(client.outbound, request).await.unwrap();
        let page = client.metrics().await;
        let found = page
            .lines()
            .any(|l| l.starts_with("outbound_http_route_request_statuses_total{") && l.contains(label));
        assert!(found, "{label} in\n{page}");
    }
}
