//! ServerAuthorizations, and where policies end.

use super::*;
use weft_kube::policy::{grpc_route::GrpcRoute, server_authorization::ServerAuthorization};

fn authorization(name: &str, server: Value, client: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"server": server, "client": client}})
}

#[test]
fn server_authorizations_allow_by_name_and_by_labels() {
    let mut world = World::new();
    let mut labelled = server("store", json!({}));
    labelled["metadata"]["labels"] = json!({"tier": "back"});
    world.put::<Pod>(pod("store-1", "10.77.0.2", true)).put::<Server>(labelled);
    let by_name = json!({"name": "store"});
    let by_label = json!({"selector": {"matchLabels": {"tier": "back"}}});
    let elsewhere = json!({"selector": {"matchLabels": {"tier": "front"}}});
    let account = json!({"meshTLS": {"serviceAccounts": [{"name": "store"}]}});
    let plain = json!({"unauthenticated": true});
    // Without networks it is the cluster's.
    for (server, client, from, id, passes) in [
        (&by_name, &plain, "10.77.0.9", None, true),
        (&by_name, &plain, "192.0.2.1", None, false),
        (&by_label, &account, "10.77.0.9", Some(STORE), true),
        (&by_label, &account, "10.77.0.9", Some("x.y"), false),
        (&by_label, &account, "10.77.0.9", None, false),
        (&elsewhere, &plain, "10.77.0.9", None, false),
        (&by_name, &json!({"meshTLS": {"unauthenticatedTLS": true}}), "10.77.0.9", Some("x.y"), true),
        (&by_name, &json!({"meshTLS": {"identities": ["*"]}}), "10.77.0.9", Some("x.y"), true),
        (
            &by_name,
            &json!({"unauthenticated": true, "networks": [{"cidr": "192.0.2.0/24"}]}),
            "192.0.2.1",
            None,
            true,
        ),
        // What contradicts itself allows nobody.
        (
            &by_name,
            &json!({"unauthenticated": true, "meshTLS": {"identities": ["*"]}}),
            "10.77.0.9",
            Some(STORE),
            false,
        ),
        (&json!({"name": "store", "selector": {}}), &plain, "10.77.0.9", None, false),
        (&by_name, &json!({}), "10.77.0.9", Some(STORE), false),
    ] {
        world.put::<ServerAuthorization>(authorization("a", server.clone(), client.clone()));
        assert_eq!(world.get("store-1", from, id, "/").is_ok(), passes, "{server} {client} {from} {id:?}");
    }
    world.put::<ServerAuthorization>(authorization("a", by_name, plain)).gone::<ServerAuthorization>("a");
    assert!(world.get("store-1", "10.77.0.9", None, "/").is_err());
}

/// B38: what is said in a namespace holds there.
#[test]
fn a_target_in_another_namespace_is_no_target() {
    let mut world = World::new();
    world.put::<Pod>(pod("store-1", "10.77.0.2", true)).put::<Server>(server("store", json!({})));
    let mut target = reference("Server", "store");
    target["namespace"] = json!("other");
    world.put::<AuthorizationPolicy>(policy("p", target, json!([])));
    assert!(world.get("store-1", "10.77.0.9", None, "/").is_err());
    let mut elsewhere = authorization("a", json!({"name": "store"}), json!({"unauthenticated": true}));
    elsewhere["metadata"]["namespace"] = json!("other");
    world.put::<ServerAuthorization>(elsewhere);
    assert!(world.get("store-1", "10.77.0.9", None, "/").is_err());
}

#[test]
fn calls_are_routes_of_a_server_too() {
    let mut world = World::new();
    let route = json!({"metadata": {"name": "buy", "namespace": "shop"}, "spec": {
        "parentRefs": [reference("Server", "store")],
        "rules": [{"matches": [{"method": {"service": "shop.Store", "method": "Buy"}}]}]}});
    let allowed = policy(
        "p",
        json!({"group": "gateway.networking.k8s.io", "kind": "GRPCRoute", "name": "buy"}),
        json!([{"kind": "ServiceAccount", "name": "store"}]),
    );
    world
        .put::<Pod>(pod("store-1", "10.77.0.2", true))
        .put::<GrpcRoute>(route)
        .put::<AuthorizationPolicy>(allowed);
    for (protocol, serves) in [("gRPC", true), ("HTTP/2", true), ("unknown", true), ("HTTP/1", false)] {
        world.put::<Server>(server("store", json!({"proxyProtocol": protocol})));
        let routes = match &world.inbound("store-1", 8080).protocol {
            Protocol::Detect { http, .. }
            | Protocol::Http1(http)
            | Protocol::Http2(http)
            | Protocol::Grpc(http) => http.routes.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(routes.iter().any(|r| r.meta.name() == "buy"), serves, "{protocol}");
        assert_eq!(routes.iter().any(|r| r.authorizations.len() == 1), serves, "{protocol}");
    }
}

#[test]
fn of_several_limits_the_oldest_holds_and_a_bad_one_does_not() {
    let mut world = World::new();
    let limit = |name: &str, year: u16, total: u32| {
        json!({"metadata": {"name": name, "namespace": "shop", "creationTimestamp": format!("{year}-01-01T00:00:00Z")},
            "spec": {"targetRef": reference("Server", "store"), "total": {"requestsPerSecond": total}}})
    };
    world
        .put::<Pod>(pod("store-1", "10.77.0.2", true))
        .put::<Server>(server("store", json!({})))
        .put::<HttpLocalRateLimitPolicy>(limit("young", 2026, 7))
        .put::<HttpLocalRateLimitPolicy>(limit("old", 2025, 9));
    let total = |world: &World| match &world.inbound("store-1", 8080).protocol {
        Protocol::Detect { http, .. } => http.rate_limit.as_ref().and_then(|l| l.total),
        Protocol::Grpc(http) => http.rate_limit.as_ref().and_then(|l| l.total),
        other => panic!("{other:?}"),
    };
    assert_eq!(total(&world), Some(9));
    world.put::<HttpLocalRateLimitPolicy>(limit("old", 2025, 0));
    assert_eq!(total(&world), Some(7));
    world.put::<Server>(server("store", json!({"proxyProtocol": "gRPC"})));
    assert_eq!(total(&world), None);
}
