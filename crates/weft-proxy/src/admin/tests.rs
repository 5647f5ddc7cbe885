//! The admin server over loopback.

use super::{Admin, serve};
use crate::{
    config::Config,
    discovery::{Discovery, Lookup, fixed::Fixed},
    drain, identity,
    inbound::refuse::Asker,
    log::Log,
    mesh::Mesh,
    metrics::Metrics,
    record::Recorder,
    watchdog::Gaps,
};
use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::sync::mpsc;
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    identity::{ClientTls, NoTls},
    inbound::{Authn, Authorization, HttpPolicy, Network, Protocol, ServerPolicy},
    meta::{Meta, Resource},
    outbound::Endpoints,
};
use weft_testkit::{
    pki::{Pki, identity},
    raw,
};
use weft_wire::{
    cached::Cache,
    record::{Connections, Direction},
};

struct Bench {
    admin: Arc<Admin>,
    addr: SocketAddr,
    publisher: identity::Publisher,
    signal: drain::Signal,
    shutdown: mpsc::Receiver<()>,
    told: Fixed,
}

async fn bench(changes: &[(&str, &str)]) -> Bench {
    let own = identity("web", "shop");
    let lookup = |name: &str| {
        let name = name.strip_prefix("LINKERD2_PROXY_")?;
        if let Some((_, value)) = changes.iter().find(|(changed, _)| *changed == name) {
            return Some((*value).into());
        }
        Some(match name {
            "DESTINATION_SVC_ADDR" | "POLICY_SVC_ADDR" | "IDENTITY_SVC_ADDR" => "127.0.0.1:1".into(),
            "POLICY_WORKLOAD" => "shop:web-0".into(),
            "IDENTITY_LOCAL_NAME" => own.as_str().into(),
            "IDENTITY_TRUST_ANCHORS" => "(PEM)".into(),
            "IDENTITY_TOKEN_FILE" => "/none".into(),
            _ => return None,
        })
    };
    let config = Config::from_lookup(lookup).unwrap();
    let metrics = Metrics::new(Duration::from_secs(600));
    let (recorder, _journal) = Recorder::new(metrics.clone(), config.pod_name(), &own);
    let (handle, publisher) = identity::Handle::new(own);
    let (discovery, told) = Discovery::fixed(config.inbound.default_policy.clone());
    let (signal, drain) = drain::channel();
    let mesh = Arc::new(Mesh {
        config,
        identity: handle,
        discovery,
        metrics,
        recorder,
        observers: Default::default(),
        drain,
        gaps: Gaps::none(),
        limits: Default::default(),
    });
    let (send, shutdown) = mpsc::channel(1);
    let log = Arc::new(Log::detached("warn"));
    let admin = Admin::new(mesh, log, send);
    let (listener, addr) = raw::listener().await;
    tokio::spawn(serve(admin.clone(), listener));
    Bench { admin, addr, publisher, signal, shutdown, told }
}

impl Bench {
    async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let mut io = tokio::net::TcpStream::connect(self.addr).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut io, request.as_bytes()).await.unwrap();
        let answer = String::from_utf8(raw::read_all(&mut io).await.unwrap()).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_string())
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, "").await
    }
}

#[tokio::test]
async fn readiness_says_what_it_waits_for() {
    let bench = bench(&[]).await;
    assert_eq!(bench.get("/live").await.0, 200);
    assert_eq!(bench.get("/ready").await, (503, "not ready\n".into()));
    let why = Fault::new(Code::TokenRejected).about("/none").in_phase(Phase::Certify);
    bench.publisher.waits(Some(Arc::new(why.record())));
    let (status, page) = bench.get("/ready?verbose").await;
    assert_eq!(status, 503);
    assert!(page.contains("[ ] certificate for web.shop.") && page.contains("IDN-006"), "{page}");

    bench.publisher.publish(Arc::new(Pki::new().credentials(&identity("web", "shop"))));
    bench.publisher.waits(None);
    assert_eq!(bench.get("/ready").await.0, 503, "not accepting yet");
    bench.admin.serving.store(true, Ordering::Relaxed);
    assert_eq!(bench.get("/ready").await, (200, "ready\n".into()));
    bench.signal.advance(drain::Phase::Draining);
    assert_eq!(bench.get("/ready").await.0, 503);
    assert_eq!(bench.get("/live").await.0, 200);
}

#[tokio::test]
async fn the_flight_recorder_is_asked_for_what_is_wanted() {
    let bench = bench(&[]).await;
    let recorder = &bench.admin.mesh.recorder;
    let story = |client: &str, server: &str| {
        recorder.story(Direction::Outbound, client.parse().unwrap(), Some(server.parse().unwrap()))
    };
    let good = story("10.0.0.1:1000", "10.78.0.1:80");
    good.event(Phase::Connect, "connected");
    good.request(200);
    good.end("closed");
    let bad = story("10.0.0.2:1000", "10.78.0.9:80");
    bad.service("store.shop.svc.cluster.local:80");
    let fault = Fault::new(Code::NoRuleAllows).in_phase(Phase::Authorize).fact("tried", "store-callers");
    bad.fault(&fault);
    bad.end("refused");

    let ask = async |query: &str| {
        let (status, page) = bench.get(&format!("/weft/connections{query}")).await;
        assert_eq!(status, 200);
        serde_json::from_str::<Connections>(&page).unwrap()
    };
    let all = ask("").await;
    assert_eq!((all.pod.as_str(), all.connections.len()), ("shop/web-0", 2));
    let failed = ask("?failed=1").await.connections;
    assert_eq!(failed.len(), 1, "a failed connection stands there once, with its end");
    assert_eq!(failed[0].fault.as_ref().unwrap().code, "POL-001");
    assert_eq!(failed[0].ended.as_deref(), Some("refused"));
    assert_eq!(ask("?dst=store.shop").await.connections.len(), 1);
    assert_eq!(ask("?src=10.0.0.1").await.connections[0].statuses[&200], 1);
    assert_eq!(ask("?src=10.0.0.3").await.connections.len(), 0);
    assert_eq!(ask("?limit=1").await.connections.len(), 1);
    let (_, page) = bench.get("/metrics").await;
    assert!(page.contains("weft_faults_total{code=\"POL-001\",direction=\"outbound\"} 1"), "{page}");
}

#[tokio::test]
async fn switches_are_for_loopback_and_only_when_enabled() {
    let closed = bench(&[]).await;
    assert_eq!(closed.ask("POST", "/shutdown", "").await.0, 404);
    assert_eq!(closed.ask("GET", "/no-such-page", "").await.0, 404);
    assert_eq!(closed.ask("POST", "/metrics", "").await.0, 405);
    assert_eq!(closed.ask("PUT", "/proxy-log-level", "warn,linkerd=debug").await.0, 204);
    assert_eq!(closed.get("/proxy-log-level").await, (200, "warn,linkerd=debug\n".into()));
    assert_eq!(closed.ask("PUT", "/proxy-log-level", "=[").await.0, 400);
    assert_eq!(closed.ask("PUT", "/proxy-log-level?for=600", "debug").await.0, 204);
    assert_eq!(closed.get("/proxy-log-level").await, (200, "debug\n".into()));
    for bad in ["0", "-1", "x", "86401"] {
        assert_eq!(closed.ask("PUT", &format!("/proxy-log-level?for={bad}"), "info").await.0, 400, "{bad}");
    }
    assert_eq!(closed.ask("PUT", "/weft/discovery", "").await.0, 405);
    assert_eq!(closed.ask("POST", "/weft/discovery", "").await.0, 400);
    let (status, nothing) = closed.ask("POST", "/weft/discovery?addr=10.0.0.1%3A80", "").await;
    assert_eq!((status, nothing.as_str()), (404, "{\"asked_again\":[]}"));
    assert_eq!(closed.ask("PUT", "/proxy-log-level", &"x".repeat(10_000)).await.0, 413);

    let mut open = bench(&[("SHUTDOWN_ENDPOINT_ENABLED", "true")]).await;
    assert_eq!(open.ask("GET", "/shutdown", "").await.0, 405);
    assert_eq!(open.ask("POST", "/shutdown", "").await.0, 200);
    assert_eq!(open.shutdown.recv().await, Some(()));
}

#[tokio::test]
async fn what_is_known_is_listed_as_far_as_it_is_asked_for() {
    let bench = bench(&[]).await;
    for name in ["store.shop.svc.cluster.local:80", "web.shop.svc.cluster.local:80"] {
        bench.told.lookup(name, Lookup::Answered(Endpoints::NoSuchService));
    }
    let (status, page) = bench.get("/weft/discovery?subject=store.shop&limit=10").await;
    let cache: Cache = serde_json::from_str(&page).unwrap();
    assert_eq!((status, cache.pod.as_str(), cache.total), (200, "shop/web-0", 1));
    assert_eq!(cache.answers[0].subject, "store.shop.svc.cluster.local:80");
    let (_, page) = bench.get("/weft/discovery?limit=1").await;
    let cache: Cache = serde_json::from_str(&page).unwrap();
    assert_eq!((cache.answers.len(), cache.total), (1, 2));
}

#[tokio::test]
async fn a_scraper_that_asks_for_it_gets_the_page_compressed() {
    let bench = bench(&[]).await;
    let mut io = tokio::net::TcpStream::connect(bench.addr).await.unwrap();
    let request = b"GET /metrics HTTP/1.0\r\naccept-encoding: gzip\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut io, request).await.unwrap();
    let answer = raw::read_all(&mut io).await.unwrap();
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
    let (head, body) = (String::from_utf8_lossy(&answer[..end]), &answer[end..]);
    assert!(head.to_ascii_lowercase().contains("content-encoding: gzip"), "{head}");
    let mut page = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(body), &mut page).unwrap();
    assert!(page.contains("\nprocess_start_time_seconds "), "{page}");
    assert!(page.contains("\nproxy_build_info{version="), "{page}");
}

#[tokio::test]
async fn scrapers_take_turns_and_too_many_are_told_so() {
    let bench = bench(&[]).await;
    // More than the buffers of a connection nobody reads from: each scrape stays until its reader comes.
    for n in 0..20_000 {
        let labels =
            crate::metrics::labels::Labels::new().with("authority", format!("service-{n}.{:0>200}", n));
        bench.admin.mesh.metrics.http(&labels).request();
    }
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut io = tokio::net::TcpStream::connect(bench.addr).await.unwrap();
        let request = b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut io, request).await.unwrap();
        // The head comes at once, whoever's turn it is.
        let mut status = [0; 12];
        tokio::io::AsyncReadExt::read_exact(&mut io, &mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        open.push(io);
    }
    assert_eq!(bench.get("/metrics").await.0, 503);
    assert_eq!(bench.get("/live").await.0, 200, "the others are served meanwhile");
    drop(open);
    let free = async {
        while bench.get("/metrics").await.0 != 200 {
            tokio::task::yield_now().await;
        }
    };
    // Pages are written at the lowest priority: on a busy machine that takes a while.
    tokio::time::timeout(6 * raw::PATIENCE, free).await.expect("a scraper that went away leaves its place");
}

#[tokio::test]
async fn readiness_names_the_services_that_are_not_connected() {
    let bench = bench(&[]).await;
    let (listener, addr) = raw::listener().await;
    drop(listener);
    let host = addr.ip().to_string();
    let addr_of = crate::config::ControlAddr { host, port: addr.port(), name: None };
    let dialer = crate::control::Dialer::new("policy", addr_of, Pki::new().anchors());
    let service = crate::control::Service::start(dialer);
    bench.admin.control.set(vec![service]).unwrap();
    let told = async {
        loop {
            let (status, page) = bench.get("/ready?verbose").await;
            assert_eq!(status, 503);
            assert!(page.contains(&format!("[ ] connected to policy at {addr}")), "{page}");
            if page.contains("NET-001") {
                return page;
            }
        }
    };
    let page = tokio::time::timeout(raw::PATIENCE, told).await.expect("the refused connection is told");
    assert!(page.contains("not connected: CTL-001"), "{page}");
}

#[tokio::test]
async fn a_meshed_scraper_is_served_over_tls() {
    let bench = bench(&[]).await;
    let pki = Pki::new();
    let own = identity("web", "shop");
    bench.publisher.publish(Arc::new(pki.credentials(&own)));
    let scraper = pki.credentials(&identity("prometheus", "monitoring"));
    let io = tokio::net::TcpStream::connect(bench.addr).await.unwrap();
    let connected =
        weft_tls::handshake::connect(scraper.client(), io, &own, &own, weft_tls::handshake::Offer::Nothing)
            .await
            .unwrap();
    let mut io = connected.stream;
    let request = b"GET /live HTTP/1.1\r\nhost: a\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut io, request).await.unwrap();
    let (head, body) = raw::read_http(&mut io).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(body, b"live\n");
}

/// A Server about the admin port is like any: it decides, also about the command line. Defaults are about the workload's ports.
#[tokio::test]
async fn a_server_that_selects_the_admin_port_decides_who_may_read() {
    let bench = bench(&[]).await;
    let app = SocketAddr::new([10, 0, 0, 1].into(), bench.admin.mesh.config.admin.port());
    let asked = |path: &str, client: &str, tls: &ClientTls| {
        let request = http::Request::get(path).body(()).unwrap();
        let from = Asker { app, client: client.parse().unwrap(), tls };
        super::permit::refusal(&bench.admin, from, &request).map(|refused| {
            let told = refused.headers()["l5d-proxy-error"].to_str().unwrap();
            (refused.status().as_u16(), told.chars().take(7).collect::<String>())
        })
    };
    let (plain, stranger) = (ClientTls::None(NoTls::NoTlsFromRemote), "10.0.0.9:1000");
    let meshed = |name| ClientTls::Terminated(Some(identity(name, "monitoring")));
    let allowed = || Authorization {
        meta: Arc::new(Meta::default_named("scrapers")),
        networks: vec![Network { net: "0.0.0.0/0".parse().unwrap(), except: Vec::new() }],
        authn: Authn::Identities {
            exact: [identity("prometheus", "monitoring")].into(),
            suffixes: Vec::new(),
        },
    };
    let policy = |meta: Meta, authorizations| {
        let detect = Protocol::Detect { timeout: Duration::from_secs(1), http: HttpPolicy::default() };
        let policy = ServerPolicy { meta: Arc::new(meta), protocol: detect, authorizations, audit: false };
        bench.told.inbound(app.port(), Arc::new(policy));
    };

    policy(Meta::default_named("deny"), Vec::new());
    assert_eq!(asked("/metrics", stranger, &plain), None, "a default is not about this port");

    let server =
        || Meta::Resource(Resource { kind: "Server".into(), name: "admin".into(), ..Resource::default() });
    policy(server(), vec![allowed()]);
    assert_eq!(asked("/metrics", stranger, &plain), Some((403, "POL-002".into())));
    let other = asked("/metrics", stranger, &meshed("web"));
    assert_eq!(other, Some((403, "POL-001".into())));
    assert_eq!(asked("/metrics", stranger, &meshed("prometheus")), None);
    assert_eq!(asked("/metrics", "127.0.0.1:1000", &plain), None, "the pod itself");
    let page = bench.get("/metrics").await.1;
    for family in ["inbound_http_authz_deny_total", "inbound_http_authz_allow_total"] {
        let counted = |line: &&str| line.starts_with(family) && line.contains("srv_name=\"admin\"");
        assert!(page.lines().any(|line| counted(&line)), "{family}: {page}");
    }
    let failed = bench.admin.mesh.recorder.connections(9, |record| record.fault.is_some()).connections;
    assert_eq!(failed.len(), 2, "refusals are recorded");

    let unreadable = ServerPolicy {
        meta: Arc::new(Meta::default_named("invalid")),
        protocol: Protocol::Unreadable("?".into()),
        authorizations: Vec::new(),
        audit: false,
    };
    bench.told.inbound(app.port(), Arc::new(unreadable));
    assert_eq!(asked("/metrics", stranger, &meshed("prometheus")), Some((500, "POL-003".into())));
}
