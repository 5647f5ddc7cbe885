//! EgressNetworks.

use super::*;
use weft_kube::policy::{
    egress_network::EgressNetwork,
    route::{TcpRoute, TlsRoute},
};
use weft_model::http::Filter;

fn network(name: &str, namespace: &str, policy: &str, networks: Value) -> Value {
    let mut spec = json!({"trafficPolicy": policy});
    if !networks.is_null() {
        spec["networks"] = networks;
    }
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn route(name: &str, port: u16, rules: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {
        "parentRefs": [{"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "port": port}],
        "rules": rules}})
}

fn named(world: &World, addr: &str, namespace: &str) -> String {
    world.outbound(addr, namespace).map_or("none".to_owned(), |p| p.meta.name().to_owned())
}

#[test]
fn the_most_specific_network_of_the_own_namespace_speaks() {
    let mut world = World::new();
    assert_eq!(named(&world, "192.0.2.7:80", "shop"), "egress-fallback");
    world.put::<EgressNetwork>(network("global", "linkerd-egress", "Allow", Value::Null));
    assert_eq!(named(&world, "192.0.2.7:80", "shop"), "global");
    world
        .put::<EgressNetwork>(network("wide", "shop", "Allow", json!([{"cidr": "192.0.0.0/16"}])))
        .put::<EgressNetwork>(network(
        "narrow",
        "shop",
        "Allow",
        json!([{"cidr": "192.0.2.0/24", "except": ["192.0.2.9"]}]),
    ));
    for (addr, namespace, expected) in [
        ("192.0.2.7:80", "shop", "narrow"),
        ("192.0.2.9:80", "shop", "wide"),
        ("192.0.3.1:80", "shop", "wide"),
        // Who has networks is not given the global ones.
        ("198.51.100.1:80", "shop", "egress-fallback"),
        ("198.51.100.1:80", "web", "global"),
        // In the cluster nobody leaves.
        ("10.77.0.99:80", "web", "none"),
    ] {
        assert_eq!(named(&world, addr, namespace), expected, "{addr} {namespace}");
    }
    // Of equals the oldest.
    for (name, year) in [("young", 2026), ("old", 2025)] {
        let mut value = network(name, "other", "Deny", json!([{"cidr": "192.0.2.0/24"}]));
        value["metadata"]["creationTimestamp"] = json!(format!("{year}-01-01T00:00:00Z"));
        world.put::<EgressNetwork>(value);
    }
    assert_eq!(named(&world, "192.0.2.7:80", "other"), "old");
    // A pod is known by its identity, wherever it is.
    world.put::<Pod>(pod("far", "192.0.2.7", true));
    assert_eq!(named(&world, "192.0.2.7:80", "shop"), "none");
}

#[test]
fn what_no_route_takes_is_allowed_or_denied() {
    let mut world = World::new();
    let parts = |world: &World| {
        let policy = world.outbound("192.0.2.7:80", "shop").unwrap();
        let OutboundProtocol::Detect { http1, opaque, .. } = &policy.protocol else { panic!("{policy:?}") };
        (http1.clone(), opaque.clone())
    };
    world.put::<EgressNetwork>(network("out", "shop", "Allow", Value::Null));
    let (http, opaque) = parts(&world);
    assert_eq!(http.routes[0].meta.name(), "http-egress-allow");
    assert!(http.routes[0].rules[0].filters.is_empty() && opaque.routes[0].refuses.is_none());
    let Distribution::FirstAvailable(all) = &http.routes[0].rules[0].backends else { panic!("one backend") };
    assert!(
        matches!(&all[0].backend.kind, BackendKind::Forward(e) if e.addr == "192.0.2.7:80".parse().unwrap())
    );
    // A policy of a later version denies.
    for policy in ["Deny", "Surprise"] {
        world.put::<EgressNetwork>(network("out", "shop", policy, Value::Null));
        let (http, opaque) = parts(&world);
        assert!(matches!(http.routes[0].rules[0].filters[0], Filter::Fail { status: 403, .. }));
        assert_eq!(opaque.routes[0].refuses, Some(Refusal::Forbidden));
    }
    // Routes come before that, and do not take it away.
    world.put::<PolicyHttpRoute>(route("r", 80, json!([{"matches": [{"path": {"value": "/ok"}}]}])));
    let (http, opaque) = parts(&world);
    let names: Vec<_> = http.routes.iter().map(|r| r.meta.name()).collect();
    assert_eq!(names, ["r", "http-egress-deny"]);
    assert_eq!(opaque.routes[0].refuses, Some(Refusal::Forbidden));
}

#[test]
fn routes_lead_onward_or_elsewhere_by_port() {
    let mut world = World::new();
    let onward = json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out"});
    let mut tls = route("tls", 443, json!([{"backendRefs": [onward]}]));
    tls["spec"]["hostnames"] = json!(["example.com"]);
    world
        .put::<EgressNetwork>(network("out", "shop", "Deny", Value::Null))
        .put::<Service>(service("b", "10.78.0.3"))
        .put::<TlsRoute>(tls)
        .put::<TcpRoute>(route("tcp", 5432, json!([{"backendRefs": [{"name": "b", "port": 80}]}])));
    let policy = world.outbound("192.0.2.7:443", "shop").unwrap();
    let OutboundProtocol::Tls(tls) = &policy.protocol else { panic!("{policy:?}") };
    assert_eq!((tls.routes[0].meta.name(), tls.routes[1].meta.name()), ("tls", "tls-egress-deny"));
    assert_eq!(tls.routes[1].refuses, Some(Refusal::Forbidden));
    let Distribution::RandomAvailable(all) = &tls.routes[0].backends else { panic!("backends") };
    assert!(matches!(&all[0].0.backend.kind, BackendKind::Forward(_)));
    let policy = world.outbound("192.0.2.7:5432", "shop").unwrap();
    let OutboundProtocol::Opaque(tcp) = &policy.protocol else { panic!("{policy:?}") };
    assert_eq!(tcp.routes.len(), 1);
    let Distribution::RandomAvailable(all) = &tcp.routes[0].backends else { panic!("backends") };
    assert!(matches!(&all[0].0.backend.kind, BackendKind::Balance { .. }));
    assert!(matches!(
        world.outbound("192.0.2.7:80", "shop").unwrap().protocol,
        OutboundProtocol::Detect { .. }
    ));
}
