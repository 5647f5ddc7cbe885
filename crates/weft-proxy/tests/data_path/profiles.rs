//! ServiceProfiles: their routes, classes, budgets and shares; and copies of requests.

use crate::{
    harness::{App, Proxy, app, balance, collect, destination, get, h2, meta, opaque, policy, routes, rule},
    retries::{PATH, counted, dst, error_of, known, plain, scripted},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use weft_model::{
    http::{Filter, Mirror, PathChange, PathMatch, Rewrite},
    outbound::{HttpRule, OutboundProtocol},
    profile::{
        Condition, Override, ProfileRoute, ResponseClass, ResponseCondition, ServiceProfile, ServiceRoutes,
    },
    retry::RetryBudget,
};
use weft_testkit::{pki::Pki, raw};

const NAME: &str = "store.shop.svc.cluster.local";
const OTHER: &str = "other.shop.svc.cluster.local:80";

fn route(name: &str, path: &str) -> ProfileRoute {
    ProfileRoute {
        condition: Condition::Path(PathMatch::Exact(path.into())),
        classes: Vec::new(),
        labels: BTreeMap::from([("route".to_owned(), name.to_owned())]),
        retryable: false,
        timeout: None,
    }
}

fn service_routes(profile: &ServiceProfile) -> Option<Arc<ServiceRoutes>> {
    ServiceRoutes::new(profile, Some(NAME), None, 80, None).map(Arc::new)
}

/// Of a profile with one route to `PATH`.
pub(crate) fn one_route(name: &str, path: &str) -> Option<Arc<ServiceRoutes>> {
    service_routes(&ServiceProfile { routes: vec![route(name, path)], ..ServiceProfile::default() })
}

fn client(pki: &Pki, profile: &ServiceProfile) -> Proxy {
    let proxy = crate::harness::proxy(pki, "web", dst(), dst(), &[]);
    let service = service_routes(profile);
    let told = destination(dst(), policy(balance("policy.shop.svc.cluster.local:80")), false);
    proxy.told.destination(weft_proxy::discovery::Destination { service, ..told });
    proxy
}

async fn ask(proxy: &Proxy, path: &str) -> String {
    raw::http(proxy.outbound, &format!("GET {path} HTTP/1.1\r\nHost: s\r\n\r\n")).await.unwrap().0
}

#[tokio::test(flavor = "local")]
async fn a_profiles_routes_replace_the_policys() {
    let (pki, app) = (Pki::new(), app().await);
    let slow = ProfileRoute { timeout: Some(Duration::from_millis(100)), ..route("slow", "/hang") };
    let fine = ResponseClass { condition: ResponseCondition::Status(503, 503), is_failure: false };
    let classed = ProfileRoute { classes: vec![fine], ..route("classed", "/status/503") };
    let profile = ServiceProfile { routes: vec![slow, classed], ..ServiceProfile::default() };
    let proxy = client(&pki, &profile);
    proxy.told.endpoints(PATH, known(&[plain(app.addr)]));
    // The service's name is told on, since it decided.
    assert!(ask(&proxy, "/any").await.starts_with("HTTP/1.1 200"));
    assert_eq!(app.last().headers["l5d-dst-canonical"], PATH);
    let head = ask(&proxy, "/hang").await;
    assert!(head.starts_with("HTTP/1.1 504") && error_of(&head).starts_with("UPS-009"), "{head}");
    assert!(ask(&proxy, "/status/503").await.starts_with("HTTP/1.1 503"));
    let dst = format!("dst=\"{PATH}\"");
    assert_eq!(counted(&proxy, "route_request_total", &dst).await, 3);
    assert_eq!(counted(&proxy, "route_request_total", "rt_route=\"slow\"").await, 1);
    let classed = "rt_route=\"classed\",classification=\"success\",status_code=\"503\"";
    assert_eq!(counted(&proxy, "route_response_total", classed).await, 1);
    assert_eq!(counted(&proxy, "route_actual_response_total", classed).await, 1);
}

#[tokio::test(flavor = "local")]
async fn without_a_profile_no_name_is_told_and_none_is_believed() {
    let (pki, app) = (Pki::new(), app().await);
    let proxy = crate::harness::proxy(&pki, "web", dst(), dst(), &[]);
    proxy.service(dst(), PATH);
    proxy.told.endpoints(PATH, known(&[plain(app.addr)]));
    let request = "GET / HTTP/1.1\r\nHost: s\r\nl5d-dst-canonical: x\r\nl5d-dst-override: y:80\r\n\r\n";
    assert!(raw::http(proxy.outbound, request).await.unwrap().0.starts_with("HTTP/1.1 200"));
    assert!(app.last().headers.keys().all(|name| !name.as_str().starts_with("l5d-")));
}

#[tokio::test(flavor = "local")]
async fn a_profiles_retries_are_paid_from_its_budget() {
    let (pki, app) = (Pki::new(), app().await);
    let budget = RetryBudget { ratio: 1.0, min_per_second: 0, ttl: Duration::from_secs(60) };
    let retried = ProfileRoute { retryable: true, ..route("retried", "/status/500") };
    let profile = ServiceProfile { routes: vec![retried], budget: Some(budget), ..ServiceProfile::default() };
    let proxy = client(&pki, &profile);
    proxy.told.endpoints(PATH, known(&[plain(app.addr)]));
    for _ in 0..2 {
        assert!(ask(&proxy, "/status/500").await.starts_with("HTTP/1.1 500"));
    }
    assert_eq!(app.count(), 4, "each request paid for one retry, and found nothing left for a second");
    let of = "rt_route=\"retried\"";
    assert_eq!(counted(&proxy, "route_request_total", of).await, 2);
    assert_eq!(counted(&proxy, "route_actual_request_total", of).await, 4);
    assert_eq!(counted(&proxy, "route_retryable_total", of).await, 4);
    assert_eq!(counted(&proxy, "route_retry_skipped_total", "skipped=\"no_budget\"").await, 2);
    assert_eq!(counted(&proxy, "outbound_http_route_retry_overflow_total", "").await, 2);
}

#[tokio::test(flavor = "local")]
async fn shares_go_to_other_services_bytes_as_well_as_requests() {
    let (pki, one, two) = (Pki::new(), app().await, app().await);
    let share = |authority: &str, weight| Override { authority: authority.into(), weight, meta: None };
    let overrides = vec![share(OTHER, 0), share(PATH, 1)];
    let proxy = client(&pki, &ServiceProfile { overrides, ..ServiceProfile::default() });
    proxy.told.endpoints(PATH, known(&[plain(one.addr)]));
    proxy.told.endpoints(OTHER, known(&[plain(two.addr)]));
    for _ in 0..5 {
        assert!(ask(&proxy, "/").await.starts_with("HTTP/1.1 200"));
    }
    assert_eq!((one.count(), two.count()), (5, 0));
    // Bytes that are no HTTP go by the shares too; the server here knows HTTP and does not mind the form.
    let bytes = scripted(&["pong\r\n\r\n"]).await;
    proxy.told.endpoints(PATH, known(&[plain(bytes.addr)]));
    let mut io = TcpStream::connect(proxy.outbound).await.unwrap();
    io.write_all(b"\x01ping\r\n\r\n").await.unwrap();
    assert_eq!(raw::read_until(&mut io, b"\r\n\r\n").await.unwrap(), b"pong\r\n\r\n");
}

/// A proxy whose one rule has this filter.
fn filtering(pki: &Pki, filter: Filter, app: &App) -> Proxy {
    let proxy = crate::harness::proxy(pki, "web", dst(), dst(), &[]);
    let matches = vec![weft_model::http::HttpMatch {
        path: Some(PathMatch::Prefix("/a".into())),
        ..Default::default()
    }];
    let rule = HttpRule { matches, filters: vec![filter], ..rule(balance(PATH)) };
    let protocol = OutboundProtocol::Detect {
        timeout: Duration::from_secs(10),
        http1: routes(rule.clone()),
        http2: routes(rule),
        opaque: opaque(balance(PATH)),
    };
    proxy.told.destination(destination(dst(), protocol, false));
    proxy.told.endpoints(PATH, known(&[plain(app.addr)]));
    proxy
}

#[tokio::test(flavor = "local")]
async fn a_rewritten_request_keeps_its_form() {
    let (pki, app) = (Pki::new(), app().await);
    let rewrite = Rewrite { host: Some("v2.shop".into()), path: Some(PathChange::Prefix("/b".into())) };
    let proxy = filtering(&pki, Filter::RewriteUrl(rewrite), &app);
    assert!(ask(&proxy, "/a/x?q=1").await.starts_with("HTTP/1.1 200"));
    assert_eq!(app.last().line, "GET /b/x?q=1 HTTP/1.1");
    assert_eq!(app.last().headers["host"], "v2.shop");
    let mut sender = h2(proxy.outbound).await;
    collect(sender.send_request(get("http://s/a/y")).await.unwrap()).await;
    assert_eq!(app.last().line, "GET http://v2.shop/b/y HTTP/2.0");
}

#[tokio::test(flavor = "local")]
async fn a_mirror_gets_the_whole_request_and_changes_nothing() {
    let (pki, main, mirror) = (Pki::new(), app().await, app().await);
    let filter = |fraction| Filter::Mirror(Mirror { meta: meta("mirror"), path: OTHER.into(), fraction });
    let proxy = filtering(&pki, filter(1.0), &main);
    proxy.told.endpoints(OTHER, known(&[plain(mirror.addr)]));
    let post = "POST /a/status HTTP/1.1\r\nHost: s\r\nContent-Length: 5\r\n\r\nhello";
    let (head, body) = raw::http(proxy.outbound, post).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && body == b"hello", "{head}");
    let until = async |outcome: &str| {
        let outcome = format!("outcome=\"{outcome}\"");
        while counted(&proxy, "weft_mirrored_requests_total", &outcome).await == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(raw::PATIENCE, until("answered")).await.expect("the copy is answered");
    assert_eq!((main.count(), mirror.count()), (1, 1));
    assert_eq!((mirror.last().line, mirror.last().body), (main.last().line, main.last().body));
    // A mirror that is not there is nobody's failure.
    proxy.told.endpoints(OTHER, known(&[]));
    assert!(raw::http(proxy.outbound, post).await.unwrap().0.starts_with("HTTP/1.1 200"));
    tokio::time::timeout(raw::PATIENCE, until("no endpoint")).await.expect("the copy is given up");
    assert_eq!(proxy.failures(), 0);
    // None of the requests, where the share is none.
    let proxy = filtering(&pki, filter(0.0), &main);
    proxy.told.endpoints(OTHER, known(&[plain(mirror.addr)]));
    assert!(raw::http(proxy.outbound, post).await.unwrap().0.starts_with("HTTP/1.1 200"));
    assert_eq!(mirror.count(), 1);
}
