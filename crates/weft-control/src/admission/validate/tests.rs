use super::*;

const DOMAIN: IdentityDomain<'static> =
    IdentityDomain { control_namespace: "linkerd", trust_domain: "cluster.local" };

fn verdict(group: &str, kind: &str, spec: &Value) -> Verdict {
    let name = if kind == "ServiceProfile" { "store.shop.svc.cluster.local" } else { "x" };
    let object = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec});
    check(group, kind, &object, DOMAIN).unwrap()
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"group": "policy.linkerd.io", "kind": kind, "name": name})
}

/// What is good passes; what is wrong is refused with the field that is wrong.
#[test]
fn policies() {
    let server = |extra: Value| with(json!({"podSelector": {}, "port": 80}), extra);
    let authorization =
        |target: Value, refs: Value| json!({"targetRef": target, "requiredAuthenticationRefs": refs});
    let client = |client: Value| json!({"server": {"name": "s"}, "client": client});
    let limit = |extra: Value| {
        with(json!({"targetRef": reference("Server", "s"), "total": {"requestsPerSecond": 10}}), extra)
    };
    let to_server = || reference("Server", "s");
    let (tls, net) = (|| reference("MeshTLSAuthentication", "m"), || reference("NetworkAuthentication", "n"));
    let account = || json!({"kind": "ServiceAccount", "name": "a"});
    for (kind, spec, refused) in [
        ("Server", server(json!({"accessPolicy": "audit", "proxyProtocol": "gRPC"})), None),
        ("Server", server(json!({"accessPolicy": "everybody"})), Some("spec.accessPolicy")),
        ("Server", server(json!({"proxyProtocol": "QUIC"})), Some("spec.proxyProtocol")),
        ("Server", json!({"port": 80}), Some("spec: podSelector")),
        ("Server", json!({"podSelector": {}, "port": {}}), Some("cannot be read")),
        ("AuthorizationPolicy", authorization(to_server(), json!([tls(), net()])), None),
        ("AuthorizationPolicy", authorization(json!({"kind": "Namespace", "name": "shop"}), json!([])), None),
        (
            "AuthorizationPolicy",
            authorization(json!({"kind": "Namespace", "name": "web"}), json!([])),
            Some("spec.targetRef.name"),
        ),
        (
            "AuthorizationPolicy",
            authorization(json!({"kind": "Pod", "name": "p"}), json!([])),
            Some("spec.targetRef"),
        ),
        (
            "AuthorizationPolicy",
            authorization(to_server(), json!([tls(), tls()])),
            Some("requiredAuthenticationRefs[1]"),
        ),
        (
            "AuthorizationPolicy",
            authorization(to_server(), json!([account(), account()])),
            Some("requiredAuthenticationRefs[1]"),
        ),
        (
            "AuthorizationPolicy",
            authorization(to_server(), json!([tls(), account()])),
            Some("requiredAuthenticationRefs[1]"),
        ),
        (
            "AuthorizationPolicy",
            authorization(to_server(), json!([net(), net()])),
            Some("requiredAuthenticationRefs[1]"),
        ),
        (
            "AuthorizationPolicy",
            authorization(to_server(), json!([{"kind": "Secret", "name": "x"}])),
            Some("requiredAuthenticationRefs[0]"),
        ),
        ("MeshTLSAuthentication", json!({"identities": ["*", "*.a.b", "a.b", "spiffe://a/b"]}), None),
        ("MeshTLSAuthentication", json!({"identities": ["*a"]}), Some("spec.identities[0]")),
        (
            "MeshTLSAuthentication",
            json!({"identityRefs": [{"kind": "Namespace", "name": "n", "namespace": "m"}]}),
            Some("identityRefs[0].namespace"),
        ),
        ("MeshTLSAuthentication", json!({}), Some("names nobody")),
        (
            "NetworkAuthentication",
            json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}]}),
            None,
        ),
        ("NetworkAuthentication", json!({"networks": []}), Some("spec.networks")),
        (
            "NetworkAuthentication",
            json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}]}),
            Some("leaves nothing"),
        ),
        (
            "NetworkAuthentication",
            json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}]}),
            Some("is not within"),
        ),
        (
            "NetworkAuthentication",
            json!({"networks": [{"cidr": "somewhere"}]}),
            Some("neither a network nor an address"),
        ),
        ("EgressNetwork", json!({"trafficPolicy": "Deny"}), None),
        ("EgressNetwork", json!({"trafficPolicy": "Deny", "networks": []}), Some("spec.networks")),
        ("EgressNetwork", json!({"trafficPolicy": "Perhaps"}), Some("spec.trafficPolicy")),
        ("ServerAuthorization", client(json!({"unauthenticated": true})), None),
        (
            "ServerAuthorization",
            client(json!({"unauthenticated": true, "meshTLS": {"identities": ["*"]}})),
            Some("spec.client"),
        ),
        (
            "ServerAuthorization",
            client(json!({"meshTLS": {"unauthenticatedTLS": true, "identities": ["*"]}})),
            Some("spec.client.meshTLS"),
        ),
        (
            "ServerAuthorization",
            json!({"server": {}, "client": {"unauthenticated": true}}),
            Some("spec.server"),
        ),
        ("HTTPLocalRateLimitPolicy", limit(json!({"identity": {"requestsPerSecond": 5}})), None),
        (
            "HTTPLocalRateLimitPolicy",
            limit(json!({"targetRef": reference("HTTPRoute", "r")})),
            Some("spec.targetRef"),
        ),
        ("HTTPLocalRateLimitPolicy", limit(json!({"total": {"requestsPerSecond": 0}})), Some("spec.total")),
        (
            "HTTPLocalRateLimitPolicy",
            limit(json!({"identity": {"requestsPerSecond": 11}})),
            Some("spec.identity"),
        ),
        (
            "HTTPLocalRateLimitPolicy",
            limit(json!({"overrides": [{"requestsPerSecond": 11, "clientRefs": [account()]}]})),
            Some("spec.overrides[0]"),
        ),
        (
            "HTTPLocalRateLimitPolicy",
            limit(json!({"overrides": [{"requestsPerSecond": 1, "clientRefs": [tls()]}]})),
            Some("clientRefs[0]"),
        ),
    ] {
        expect(verdict(POLICY_GROUP, kind, &spec), refused, &spec);
    }
}

#[test]
fn routes_of_our_own_group() {
    let service = || json!({"group": "core", "kind": "Service", "name": "a"});
    let egress =
        |port: Value| with(json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "e"}), port);
    let of = |parent: Value, rule: Value| json!({"parentRefs": [parent], "rules": [rule]});
    let path = |path: &str| json!({"matches": [{"path": {"type": "Exact", "value": path}}]});
    for (spec, refused) in [
        (of(service(), path("/a")), None),
        (of(service(), path("a")), Some("spec.rules[0].matches[0].path.value")),
        (
            of(service(), json!({"filters": [{"type": "ExtensionRef"}]})),
            Some("spec.rules[0].filters[0].type"),
        ),
        (
            of(service(), json!({"matches": [{"headers": [{"name": "a:", "value": ""}]}]})),
            Some("headers[0].name"),
        ),
        (
            of(service(), json!({"timeouts": {"request": "1s", "backendRequest": "2s"}})),
            Some("timeouts.backendRequest"),
        ),
        (of(service(), json!({"timeouts": {"request": "-1s"}})), Some("timeouts.request")),
        (of(egress(json!({"port": 80})), json!({})), None),
        (of(egress(json!({})), json!({})), Some("spec.parentRefs[0].port")),
        (
            of(reference("Server", "s"), json!({"timeouts": {"request": "1s"}})),
            Some("spec.rules[0].timeouts"),
        ),
        // Another controller's route is its own business.
        (of(json!({"name": "gateway"}), path("a")), None),
    ] {
        expect(verdict(POLICY_GROUP, "HTTPRoute", &spec), refused, &spec);
    }
    let annotated = json!({
        "metadata": {"name": "r", "namespace": "shop", "annotations": {"retry.linkerd.io/limit": "many"}},
        "spec": of(service(), json!({})),
    });
    expect(
        check(POLICY_GROUP, "HTTPRoute", &annotated, DOMAIN).unwrap(),
        Some("retry.linkerd.io/limit"),
        &annotated,
    );
}

/// B56: what another controller may understand is let in, with a warning if it is meant for us, too.
#[test]
fn routes_of_the_gateway_api() {
    let ours = || json!({"group": "", "kind": "Service", "name": "a"});
    let theirs = || json!({"name": "gateway"});
    let of = |parent: Value, rules: Value| json!({"parentRefs": [parent], "rules": rules});
    let cors = || json!([{"filters": [{"type": "CORS"}]}]);
    let warns = |verdict: Verdict| match verdict {
        Verdict::Allowed(warnings) => warnings.len(),
        Verdict::Denied(why) => panic!("{why}"),
    };
    assert_eq!(warns(verdict(GATEWAY_GROUP, "HTTPRoute", &of(theirs(), cors()))), 0);
    assert_eq!(warns(verdict(GATEWAY_GROUP, "HTTPRoute", &of(ours(), cors()))), 1);
    assert_eq!(warns(verdict(GATEWAY_GROUP, "HTTPRoute", &json!({"rules": [{"matches": "x"}]}))), 1);
    let portless = json!([{"backendRefs": [{"name": "b"}]}]);
    for kind in ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"] {
        let spec = of(ours(), portless.clone());
        expect(verdict(GATEWAY_GROUP, kind, &spec), Some("spec.rules[0].backendRefs[0].port"), &spec);
        assert_eq!(warns(verdict(GATEWAY_GROUP, kind, &of(theirs(), portless.clone()))), 0);
    }
    let two = of(ours(), json!([{}, {}]));
    expect(verdict(GATEWAY_GROUP, "TCPRoute", &two), Some("spec.rules"), &two);
}

#[test]
fn service_profiles() {
    for (spec, refused) in [
        (json!({"routes": [{"name": "r", "condition": {"method": "GET"}}]}), None),
        (json!({"routes": [{"name": "r", "condition": {}}]}), Some("spec.routes[0] (r): condition")),
        (json!({"routes": [{"condition": {"method": "GET"}}]}), Some("name")),
        (
            json!({"routes": [{"name": "r", "condition": {"method": "GET"}, "timeout": "soon"}]}),
            Some("timeout"),
        ),
        (json!({"retryBudget": {"retryRatio": 0.1}}), Some("cannot be read")),
        (json!({"opaquePorts": ["a"]}), Some("spec.opaquePorts[0]")),
    ] {
        expect(verdict("linkerd.io", "ServiceProfile", &spec), refused, &spec);
    }
}

#[test]
fn others_are_not_asked_about_and_deletions_pass() {
    assert_eq!(check("", "Pod", &json!({}), DOMAIN), None);
    assert_eq!(check(POLICY_GROUP, "Server", &Value::Null, DOMAIN), None);
    let denied = Verdict::Denied("spec.port: why".to_owned()).response("7");
    assert_eq!((&denied["uid"], &denied["allowed"]), (&json!("7"), &json!(false)));
    assert_eq!(denied["status"]["message"], "spec.port: why");
}

fn with(mut value: Value, extra: Value) -> Value {
    for (key, extra) in extra.as_object().unwrap() {
        value[key] = extra.clone();
    }
    value
}

fn expect(verdict: Verdict, refused: Option<&str>, spec: &Value) {
    match (verdict, refused) {
        (Verdict::Allowed(warnings), None) => assert!(warnings.is_empty(), "{spec}: {warnings:?}"),
        (Verdict::Denied(why), Some(part)) => assert!(why.contains(part), "{spec}: {why}"),
        (verdict, refused) => panic!("{spec}: {verdict:?}, expected {refused:?}"),
    }
}
