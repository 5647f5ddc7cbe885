//! Routes of Services: which kind a port serves, what becomes of their filters and backends.

use super::*;
use std::time::Duration;
use weft_kube::policy::{
    grpc_route::GrpcRoute,
    reference_grant::ReferenceGrant,
    route::{TcpRoute, TlsRoute},
};
use weft_model::{
    extension::extensions,
    http::{Filter, PathChange, PathMatch},
    outbound::{OpaqueRoutes, RouteBackend},
};

fn route(name: &str, rules: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {
        "parentRefs": [{"group": "core", "kind": "Service", "name": "a"}], "rules": rules}})
}

fn world() -> World {
    let mut world = World::new();
    world.put::<Service>(service("a", "10.78.0.2")).put::<Service>(service("b", "10.78.0.3"));
    world
}

fn policy_of(world: &World) -> Arc<OutboundPolicy> {
    world.outbound("10.78.0.2:80", "shop").unwrap()
}

fn http(world: &World) -> HttpRoutes {
    match &policy_of(world).protocol {
        OutboundProtocol::Grpc(grpc) => grpc.clone(),
        _ => http_routes(&policy_of(world)).clone(),
    }
}

fn bytes(world: &World) -> OpaqueRoutes {
    match &policy_of(world).protocol {
        OutboundProtocol::Opaque(routes) | OutboundProtocol::Tls(routes) => routes.clone(),
        other => panic!("{other:?}"),
    }
}

fn backends(distribution: &Distribution) -> Vec<(RouteBackend, u32)> {
    match distribution {
        Distribution::RandomAvailable(all) => all.clone(),
        Distribution::FirstAvailable(all) => all.iter().map(|b| (b.clone(), 1)).collect(),
        Distribution::Empty => Vec::new(),
    }
}

fn path(backend: &RouteBackend) -> &str {
    match &backend.backend.kind {
        BackendKind::Balance { path, .. } => path,
        BackendKind::Invalid(why) => why,
        BackendKind::Forward(_) => "onward",
    }
}

fn to(name: &str) -> Value {
    json!([{"backendRefs": [{"name": name, "port": 80}]}])
}

#[test]
fn one_kind_of_route_is_served_at_a_port() {
    let mut world = world();
    let kind = |world: &World| {
        let text = format!("{:?}", policy_of(world).protocol);
        text[..text.find(['(', ' ']).unwrap()].to_owned()
    };
    assert_eq!(kind(&world), "Detect");
    world.put::<TcpRoute>(route("tcp", to("b")));
    assert_eq!(kind(&world), "Opaque");
    assert_eq!(path(&backends(&bytes(&world).routes[0].backends)[0].0), "b.shop.svc.cluster.local:80");
    let mut tls = route("tls", to("b"));
    tls["spec"]["hostnames"] = json!(["*.example.com"]);
    world.put::<TlsRoute>(tls);
    assert_eq!(kind(&world), "Tls");
    assert_eq!(bytes(&world).routes[0].hosts, [weft_model::http::HostMatch::Suffix("example.com".into())]);
    world.put::<GatewayHttpRoute>(route("http", to("b")));
    assert_eq!(kind(&world), "Detect");
    assert_eq!(http(&world).routes[0].meta.name(), "http");
    world.put::<GrpcRoute>(route("grpc", to("b")));
    assert_eq!(kind(&world), "Grpc");
    // A declared protocol counts for more.
    for (declared, expected, serves) in
        [("http", "Http1", "http"), ("kubernetes.io/h2c", "Grpc", "grpc"), ("redis", "Opaque", "tcp")]
    {
        let mut value = service("a", "10.78.0.2");
        value["spec"]["ports"][0]["appProtocol"] = json!(declared);
        world.put::<Service>(value);
        assert_eq!(kind(&world), expected);
        let name = match expected {
            "Opaque" => bytes(&world).routes[0].meta.name().to_owned(),
            _ => http(&world).routes[0].meta.name().to_owned(),
        };
        assert_eq!(name, serves);
    }
    // A flaw takes a route away, and its kind with it.
    world.put::<Service>(service("a", "10.78.0.2"));
    world.put::<GrpcRoute>(route("grpc", json!([{"matches": [{"method": {"type": "RegularExpression"}}]}])));
    assert_eq!(kind(&world), "Detect");
}

#[test]
fn calls_go_by_name_and_fail_in_their_own_form() {
    let mut world = world();
    world.put::<GrpcRoute>(route(
        "r",
        json!([{"matches": [{"method": {"service": "shop.Store", "method": "Buy"}}],
            "backendRefs": [{"name": "b", "port": 80}, {"name": "gone", "port": 80}]}]),
    ));
    let routes = http(&world);
    let rule = &routes.routes[0].rules[0];
    assert_eq!(rule.matches[0].path, Some(PathMatch::Exact("/shop.Store/Buy".into())));
    let all = backends(&rule.backends);
    assert_eq!(path(&all[0].0), "b.shop.svc.cluster.local:80");
    assert!(
        matches!(&all[1].0.filters[0], Filter::Fail { status: 13, message, .. } if message.contains("gone"))
    );
}

#[test]
fn one_tcp_route_takes_all_bytes() {
    let mut world = world();
    for (name, year, backend) in [("young", 2026, "a"), ("old", 2025, "b")] {
        let mut value = route(name, to(backend));
        value["metadata"]["creationTimestamp"] = json!(format!("{year}-01-01T00:00:00Z"));
        world.put::<TcpRoute>(value);
    }
    let routes = bytes(&world).routes;
    assert_eq!((routes.len(), routes[0].meta.name()), (1, "old"));
}

/// What the stock protocol cannot carry is in the policy all the same, and is handed over beside it.
#[test]
fn rewrites_and_copies_are_in_the_policy() {
    let mut world = world();
    world.put::<PolicyHttpRoute>(route(
        "r",
        json!([{"matches": [{"path": {"value": "/old"}}],
            "filters": [
                {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "X-A", "value": "b"}]}},
                {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}}},
                {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "b", "port": 80}, "percent": 10}}],
            "backendRefs": [{"name": "b", "port": 80, "filters": [
                {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["X-B"]}}]}]}]),
    ));
    let routes = http(&world);
    let rule = &routes.routes[0].rules[0];
    assert!(matches!(&rule.filters[0], Filter::ResponseHeaders(c) if c.set == [("x-a".into(), "b".into())]));
    assert!(
        matches!(&rule.filters[1], Filter::RewriteUrl(r) if r.path == Some(PathChange::Prefix("/new".into())))
    );
    let Filter::Mirror(mirror) = &rule.filters[2] else { panic!("{:?}", rule.filters) };
    assert_eq!((mirror.path.as_str(), mirror.fraction), ("b.shop.svc.cluster.local:80", 0.1));
    assert!(matches!(&backends(&rule.backends)[0].0.filters[0], Filter::RequestHeaders(_)));
    assert_eq!(extensions(&policy_of(&world)).len(), 2);
    // A copy for a Service that goes away is made no more.
    world.gone::<Service>("b");
    assert_eq!(http(&world).routes[0].rules[0].filters.len(), 2);
}

/// B38: other namespaces are reached by their leave.
#[test]
fn a_backend_in_another_namespace_needs_a_grant() {
    let mut world = world();
    let mut far = service("far", "10.78.0.9");
    far["metadata"]["namespace"] = json!("other");
    world.put::<Service>(far).put::<GatewayHttpRoute>(route(
        "r",
        json!([{"backendRefs": [{"name": "far", "namespace": "other", "port": 80}]}]),
    ));
    let backend = |world: &World| path(&backends(&http(world).routes[0].rules[0].backends)[0].0).to_owned();
    assert!(backend(&world).contains("no ReferenceGrant in other"), "{}", backend(&world));
    let grant = |kind: &str, namespace: &str, to: Value| {
        json!({"metadata": {"name": "g", "namespace": "other"}, "spec": {
            "from": [{"group": "gateway.networking.k8s.io", "kind": kind, "namespace": namespace}], "to": [to]}})
    };
    let service = json!({"group": "", "kind": "Service"});
    let named = json!({"group": "", "kind": "Service", "name": "far"});
    for (kind, namespace, to, granted) in [
        ("HTTPRoute", "shop", &service, true),
        ("HTTPRoute", "shop", &named, true),
        ("GRPCRoute", "shop", &service, false),
        ("HTTPRoute", "web", &service, false),
        ("HTTPRoute", "shop", &json!({"group": "", "kind": "Secret"}), false),
        ("HTTPRoute", "shop", &json!({"group": "", "kind": "Service", "name": "b"}), false),
    ] {
        world.put::<ReferenceGrant>(grant(kind, namespace, to.clone()));
        let there = backend(&world) == "far.other.svc.cluster.local:80";
        assert_eq!(there, granted, "{kind} {namespace} {to}");
    }
}

/// Whoever sends traffic to a Service needs no leave for it.
#[test]
fn a_consumers_route_may_lead_to_its_parent() {
    let mut world = world();
    world.put::<GatewayHttpRoute>(json!({"metadata": {"name": "mine", "namespace": "web"}, "spec": {
        "parentRefs": [{"group": "", "kind": "Service", "name": "a", "namespace": "shop"}],
        "rules": [{"backendRefs": [{"name": "a", "namespace": "shop", "port": 80, "weight": 3},
            {"name": "b", "namespace": "shop", "port": 80}]}]}}));
    let policy = world.outbound("10.78.0.2:80", "web").unwrap();
    let all = backends(&http_routes(&policy).routes[0].rules[0].backends);
    assert_eq!((path(&all[0].0), all[0].1), ("a.shop.svc.cluster.local:80", 3));
    assert!(path(&all[1].0).contains("ReferenceGrant"));
}

/// A client's own routes and the producer's are in one list, the oldest first.
#[test]
fn consumer_and_producer_routes_are_one_list() {
    let mut world = world();
    for (name, namespace, year) in [("theirs", "shop", 2026), ("mine", "web", 2025)] {
        world.put::<GatewayHttpRoute>(json!({"metadata": {"name": name, "namespace": namespace,
            "creationTimestamp": format!("{year}-01-01T00:00:00Z")}, "spec": {
            "parentRefs": [{"group": "", "kind": "Service", "name": "a", "namespace": "shop"}],
            "rules": [{}]}}));
    }
    let names = |namespace: &str| -> Vec<String> {
        let policy = world.outbound("10.78.0.2:80", namespace).unwrap();
        http_routes(&policy).routes.iter().map(|r| r.meta.name().to_owned()).collect()
    };
    assert_eq!(names("web"), ["mine", "theirs"]);
    assert_eq!(names("other"), ["theirs"]);
}

#[test]
fn the_nearest_word_about_timeouts_and_retries_counts() {
    let mut world = world();
    let mut annotated = service("a", "10.78.0.2");
    annotated["metadata"]["annotations"] = json!({"timeout.linkerd.io/request": "1s", "retry.linkerd.io/http": "5xx",
        "balancer.linkerd.io/failure-accrual": "unified", "balancer.alpha.linkerd.io/penalize-failures": "true"});
    world.put::<Service>(annotated);
    let timeout = |world: &World| http(world).routes[0].rules[0].timeouts.request;
    assert_eq!(timeout(&world), Some(Duration::from_secs(1)));
    let default = http(&world);
    assert!(default.accrual.unwrap().rate.is_some());
    let rule = &default.routes[0].rules[0];
    assert_eq!(rule.retry.as_ref().unwrap().statuses, [(500, 599)]);
    let BackendKind::Balance { ewma, .. } = &backends(&rule.backends)[0].0.backend.kind else {
        panic!("balance")
    };
    assert!(ewma.penalty.is_some());

    let own = route("r", json!([{"timeouts": {"request": "2s"}}]));
    world.put::<PolicyHttpRoute>(own.clone());
    assert_eq!(timeout(&world), Some(Duration::from_secs(2)));
    let mut annotated = own;
    annotated["metadata"]["annotations"] = json!({"timeout.linkerd.io/request": "3s"});
    world.put::<PolicyHttpRoute>(annotated.clone());
    assert_eq!(timeout(&world), Some(Duration::from_secs(3)));
    // A route with an annotation that cannot be read is no route.
    annotated["metadata"]["annotations"] = json!({"timeout.linkerd.io/request": "3"});
    world.put::<PolicyHttpRoute>(annotated);
    assert_eq!(http(&world).routes[0].meta.name(), "http");
}

/// B56: one route of a later version is one route less, not none.
#[test]
fn a_route_with_fields_of_a_later_version_is_left_out_by_itself() {
    let mut world = world();
    world
        .put::<GatewayHttpRoute>(route("later", json!([{"sessionPersistence": {"type": "Cookie"}}])))
        .put::<GatewayHttpRoute>(route("cors", json!([{"filters": [{"type": "CORS", "cors": {}}]}])))
        .put::<GatewayHttpRoute>(route(
            "regex",
            json!([{"matches": [{"path": {"type": "RegularExpression", "value": "("}}]}]),
        ))
        .put::<GatewayHttpRoute>(route("good", json!([{"name": "all"}])));
    let routes = http(&world).routes;
    assert_eq!(routes.iter().map(|r| r.meta.name()).collect::<Vec<_>>(), ["good"]);
}

/// B10: the result does not depend on the order in which objects came.
#[test]
fn fifty_orders_give_one_policy() {
    use proptest::{prelude::*, test_runner::TestRunner};
    type Put = fn(&mut World) -> &mut World;
    let objects: [Put; 6] = [
        |w| w.put::<Service>(service("a", "10.78.0.2")),
        |w| w.put::<Service>(service("b", "10.78.0.3")),
        |w| w.put::<GatewayHttpRoute>(route("r", to("b"))),
        |w| w.put::<PolicyHttpRoute>(route("r", json!([{"matches": [{"path": {"value": "/x"}}]}]))),
        |w| w.put::<GrpcRoute>(route("bad", json!([{"matches": [{"method": {"service": "/"}}]}]))),
        |w| w.put::<Pod>(pod("a-1", "10.77.0.2", true)),
    ];
    let make = |order: &[usize]| {
        let mut world = World::new();
        for at in order {
            objects[*at](&mut world);
        }
        policy_of(&world)
    };
    let expected = make(&[0, 1, 2, 3, 4, 5]);
    let orders = Just(vec![0, 1, 2, 3, 4, 5]).prop_shuffle();
    let mut runner = TestRunner::new(ProptestConfig { cases: 50, ..ProptestConfig::default() });
    runner
        .run(&orders, |order| {
            prop_assert_eq!(make(&order), expected.clone());
            Ok(())
        })
        .unwrap();
}
