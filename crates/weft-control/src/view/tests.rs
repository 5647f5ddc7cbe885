//! Single answers, as tables where there are many.

mod authorizations;
mod destination;
mod egress;
mod external;
mod profiles;
mod routes;

use super::{
    beside::WorkloadName,
    confirm::{State, confirm},
    decision::{Attempt, AttemptedRequest, decide},
    endpoints::{EndpointsOf, EndpointsView},
    inbound::InboundOf,
    outbound::{OutboundOf, OutboundTarget},
    profile::{ProfileOf, ProfileTarget, ProfileView},
};
use crate::{
    config::ControllerConfig,
    index::{
        Index,
        kinds::Indexed,
        reader::Reader,
        registry::Subject,
        tests::{config, node, object, pod, service, slice},
    },
};
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc};
use weft_kube::{
    core::{
        endpoint_slice::EndpointSlice,
        node::{Namespace, Node, ReplicaSet},
        pod::Pod,
        service::Service,
    },
    meta::ObjectName,
    policy::{
        authorization::{AuthorizationPolicy, MeshTlsAuthentication, NetworkAuthentication},
        http_route::{GatewayHttpRoute, PolicyHttpRoute},
        rate_limit::HttpLocalRateLimitPolicy,
        server::Server,
    },
    watch::Event,
};
use weft_model::{
    identity::{Identity, PeerIdentity},
    inbound::{Protocol, ServerPolicy},
    outbound::{
        BackendKind, Distribution, Endpoint, Endpoints, HttpRoutes, OutboundPolicy, OutboundProtocol,
        ProtocolHint, Refusal,
    },
    profile::Profile,
};

const STORE: &str = "store.shop.serviceaccount.identity.linkerd.cluster.local";

struct World {
    index: Index,
    config: ControllerConfig,
}

impl World {
    fn new() -> Self {
        let mut world = World { index: Index::default(), config: config() };
        world.put::<Node>(node());
        world
    }
    fn put<K: Indexed>(&mut self, value: Value) -> &mut Self {
        self.index.apply::<K>(Event::Applied(Arc::new(object(value))));
        self
    }
    fn gone<K: Indexed>(&mut self, name: &str) -> &mut Self {
        self.index.apply::<K>(Event::Deleted(ObjectName::new("shop", name)));
        self
    }
    fn view<S: Subject>(&self, subject: &S) -> S::View {
        subject.compute(&Reader::new(&self.index), &self.config)
    }
    fn endpoints(&self, name: &str, port: u16) -> Vec<Arc<Endpoint>> {
        let of =
            EndpointsOf { service: ObjectName::new("shop", name), port, hostname: None, client_node: None };
        match self.view(&of) {
            EndpointsView::Endpoints(Endpoints::Known(all)) => all.to_vec(),
            other => panic!("{other:?}"),
        }
    }
    fn profile(&self, addr: &str) -> Arc<Profile> {
        match self.view(&profile_of(ProfileTarget::Addr(addr.parse().unwrap()), "shop")) {
            ProfileView::Profile(profile) => profile,
            ProfileView::NoSuchName => panic!("no profile"),
        }
    }
    fn identity(&self, addr: &str) -> Option<String> {
        let profile = self.profile(addr);
        profile.endpoint.as_ref().and_then(|e| e.identity.id().map(ToString::to_string))
    }
    fn inbound(&self, pod: &str, port: u16) -> Arc<ServerPolicy> {
        self.view(&InboundOf { workload: WorkloadName::Pod(ObjectName::new("shop", pod)), port })
            .expect("a policy")
    }
    fn outbound(&self, addr: &str, client_namespace: &str) -> Option<Arc<OutboundPolicy>> {
        self.view(&OutboundOf {
            target: OutboundTarget::Addr(addr.parse().unwrap()),
            client_namespace: client_namespace.to_owned(),
        })
    }
    /// Whether a GET passes; the code if not.
    fn get(&self, pod: &str, from: &str, id: Option<&str>, path: &str) -> Result<(), String> {
        let attempt = Attempt {
            workload: WorkloadName::Pod(ObjectName::new("shop", pod)),
            port: 8080,
            client_ip: from.parse().unwrap(),
            client_id: id.map(|id| Identity::parse(id).unwrap()),
            request: Some(AttemptedRequest {
                method: "GET".to_owned(),
                path: path.to_owned(),
                host: "store".to_owned(),
            }),
        };
        let decision = decide(&Reader::new(&self.index), &self.config, &attempt).unwrap();
        if decision.allowed { Ok(()) } else { Err(decision.code.unwrap()) }
    }
}

fn profile_of(target: ProfileTarget, client_namespace: &str) -> ProfileOf {
    ProfileOf { target, client_node: None, client_namespace: client_namespace.to_owned() }
}

fn server(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["podSelector"] = json!({"matchLabels": {"app": "store"}});
    spec["port"] = json!("http");
    json!({"metadata": {"name": name, "namespace": "shop"}, "spec": spec})
}

fn policy(name: &str, target: Value, refs: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"},
        "spec": {"targetRef": target, "requiredAuthenticationRefs": refs}})
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"group": "policy.linkerd.io", "kind": kind, "name": name})
}

// --- who holds an address

/// B01: the identity follows from injection, not from readiness or phase, and for every port.
#[test]
fn identity_does_not_wait_for_readiness() {
    let mut world = World::new();
    let mut pending = pod("store-1", "10.77.0.2", true);
    pending["status"]["phase"] = json!("Pending");
    world.put::<Pod>(pending);
    for port in [8080, 9999, 4191] {
        assert_eq!(world.identity(&format!("10.77.0.2:{port}")).as_deref(), Some(STORE), "{port}");
    }
}

#[test]
fn late_labels_and_reused_addresses_are_seen() {
    let mut world = World::new();
    world.put::<Pod>(pod("store-1", "10.77.0.2", false));
    assert_eq!(world.identity("10.77.0.2:8080"), None);
    world.put::<Pod>(pod("store-1", "10.77.0.2", true));
    assert_eq!(world.identity("10.77.0.2:8080").as_deref(), Some(STORE));
    // The next pod has the address before the last one is gone.
    let mut other = pod("other-1", "10.77.0.2", true);
    other["spec"]["serviceAccountName"] = json!("other");
    let mut ended = pod("store-1", "10.77.0.2", true);
    ended["status"]["phase"] = json!("Succeeded");
    world.put::<Pod>(other).put::<Pod>(ended);
    assert!(world.identity("10.77.0.2:8080").unwrap().starts_with("other."));
    world.gone::<Pod>("store-1");
    assert!(world.identity("10.77.0.2:8080").unwrap().starts_with("other."));
}

/// B09.
#[test]
fn two_pods_with_one_address() {
    let mut world = World::new();
    let as_account = |name: &str, account: &str, node: &str| {
        let mut value = pod(name, "10.77.0.5", true);
        value["spec"]["serviceAccountName"] = json!(account);
        value["spec"]["nodeName"] = json!(node);
        value
    };
    // The older one's node is gone.
    world.put::<Pod>(as_account("old", "old", "n9")).put::<Pod>(as_account("new", "new", "weft"));
    assert!(world.identity("10.77.0.5:80").unwrap().starts_with("new."));
    // Both live on one node: nobody can tell, so nobody is dialled in plaintext or as the wrong one.
    world.put::<Pod>(as_account("old", "old", "weft"));
    assert_eq!(world.identity("10.77.0.5:80").as_deref(), Some("address-claimed-by-two-pods.invalid"));
    let addr: SocketAddr = "10.77.0.5:80".parse().unwrap();
    let confirmed = confirm(&Reader::new(&world.index), &world.config, addr);
    assert_eq!(confirmed.state, State::Unknown);
    assert!(confirmed.reason.contains("also claimed"), "{}", confirmed.reason);
    // Two of one account are the same peer.
    world.put::<Pod>(as_account("old", "new", "weft"));
    assert!(world.identity("10.77.0.5:80").unwrap().starts_with("new."));
    world.put::<Pod>(as_account("old", "old", "weft")).gone::<Pod>("old");
    assert!(world.identity("10.77.0.5:80").unwrap().starts_with("new."));
}

#[test]
fn confirmations() {
    let mut world = World::new();
    world
        .put::<Pod>(pod("store-1", "10.77.0.2", true))
        .put::<Pod>(pod("plain-1", "10.77.0.3", false))
        .put::<Service>(service("store", "10.78.0.2"));
    for (addr, state) in [
        ("10.77.0.2:8080", "Meshed"),
        ("10.77.0.3:8080", "Unmeshed"),
        ("10.77.0.9:8080", "Unknown"),
        ("10.77.0.1:8080", "Unmeshed"),
        ("10.78.0.2:80", "Unmeshed"),
        ("192.0.2.1:80", "Unmeshed"),
    ] {
        let confirmed = confirm(&Reader::new(&world.index), &world.config, addr.parse().unwrap());
        assert!(format!("{:?}", confirmed.state).starts_with(state), "{addr}: {confirmed:?}");
        assert!(!confirmed.reason.is_empty());
    }
}

// --- endpoints and profiles

#[test]
fn an_endpoint_says_how_to_reach_it() {
    let mut world = World::new();
    let mut store = pod("store-1", "10.77.0.2", true);
    store["metadata"]["labels"]["pod-template-hash"] = json!("abc");
    store["metadata"]["ownerReferences"] =
        json!([{"kind": "ReplicaSet", "name": "store-abc", "controller": true}]);
    world
        .put::<Service>(service("store", "10.78.0.2"))
        .put::<Pod>(store)
        .put::<ReplicaSet>(json!({"metadata": {"name": "store-abc", "namespace": "shop", "ownerReferences":
            [{"kind": "Deployment", "name": "store", "controller": true}]}}))
        .put::<EndpointSlice>(slice("store-x", "store", &[("store-1", "10.77.0.2")]));
    let all = world.endpoints("store", 80);
    assert_eq!(all.len(), 1);
    let endpoint = &all[0];
    assert_eq!(endpoint.addr, "10.77.0.2:8080".parse().unwrap());
    assert_eq!(endpoint.identity.id().unwrap().as_str(), STORE);
    assert_eq!(endpoint.hint, ProtocolHint::H2);
    assert_eq!(endpoint.transport_port, Some(4143));
    for (label, value) in [
        ("deployment", "store"),
        ("pod", "store-1"),
        ("serviceaccount", "store"),
        ("service", "store"),
        ("namespace", "shop"),
        ("zone", "z1"),
        ("zone_locality", "unknown"),
        ("pod_template_hash", "abc"),
    ] {
        assert_eq!(endpoint.labels.get(label).map(String::as_str), Some(value), "{label}");
    }
}

#[test]
fn slices_ahead_of_or_behind_their_pods_name_nobody() {
    let mut world = World::new();
    world.put::<Service>(service("store", "10.78.0.2")).put::<EndpointSlice>(slice(
        "s",
        "store",
        &[("store-1", "10.77.0.2")],
    ));
    assert!(world.endpoints("store", 80).is_empty(), "the pod is not known yet");
    world.put::<Pod>(pod("store-1", "10.77.0.3", true));
    assert!(world.endpoints("store", 80).is_empty(), "the pod has another address");
    world.put::<Pod>(pod("store-1", "10.77.0.2", true));
    assert_eq!(world.endpoints("store", 80).len(), 1);
    // A slice that moves to another Service leaves the first.
    world.put::<EndpointSlice>(slice("s", "other", &[("store-1", "10.77.0.2")]));
    assert!(world.endpoints("store", 80).is_empty());
}

/// B38 (b): a name or cluster address has the ports that were declared.
#[test]
fn undeclared_ports_lead_nowhere() {
    let mut world = World::new();
    world
        .put::<Service>(service("store", "10.78.0.2"))
        .put::<Pod>(pod("store-1", "10.77.0.2", true))
        .put::<EndpointSlice>(slice("s", "store", &[("store-1", "10.77.0.2")]));
    assert!(world.endpoints("store", 9999).is_empty());
    let policy = world.outbound("10.78.0.2:9999", "shop").unwrap();
    assert_eq!(policy.meta.name(), "undefined-port");
    assert!(
        matches!(&policy.protocol, OutboundProtocol::Opaque(o) if o.routes[0].refuses == Some(Refusal::Forbidden))
    );
    assert_eq!(*world.profile("10.78.0.2:9999"), Profile::default());
    // Headless Services name pods, which serve what they serve.
    let mut headless = service("store", "None");
    headless["spec"]["clusterIP"] = json!("None");
    world.put::<Service>(headless);
    assert_eq!(world.endpoints("store", 9999)[0].addr, "10.77.0.2:9999".parse().unwrap());
}

/// B10 (c), B38 (a): opaqueness by Server comes, goes and stays in its namespace.
#[test]
fn opaque_ports() {
    let mut world = World::new();
    world.put::<Pod>(pod("store-1", "10.77.0.2", true));
    let hint = |world: &World| world.profile("10.77.0.2:8080").endpoint.as_ref().unwrap().hint;
    assert_eq!(hint(&world), ProtocolHint::H2);
    let opaque = server("s", json!({"proxyProtocol": "opaque"}));
    let mut elsewhere = opaque.clone();
    elsewhere["metadata"]["namespace"] = json!("evil");
    world.put::<Server>(elsewhere);
    assert_eq!(hint(&world), ProtocolHint::H2);
    world.put::<Server>(opaque.clone());
    assert_eq!(hint(&world), ProtocolHint::Opaque);
    assert!(world.profile("10.77.0.2:8080").opaque);
    let mut other = opaque;
    other["spec"]["podSelector"]["matchLabels"]["app"] = json!("other");
    world.put::<Server>(other);
    assert_eq!(hint(&world), ProtocolHint::H2);
    // By annotation, name of a port; the default list when there is none.
    let mut annotated = pod("store-1", "10.77.0.2", true);
    annotated["metadata"]["annotations"] = json!({"config.linkerd.io/opaque-ports": "http"});
    assert!(world.profile("10.77.0.2:3306").opaque);
    world.put::<Pod>(annotated);
    assert_eq!(hint(&world), ProtocolHint::Opaque);
    assert!(!world.profile("10.77.0.2:3306").opaque);
}

#[test]
fn skipped_ports_have_no_proxy() {
    let mut world = World::new();
    let mut skipping = pod("store-1", "10.77.0.2", true);
    skipping["metadata"]["annotations"] = json!({"config.linkerd.io/skip-inbound-ports": "9000-9001"});
    world.put::<Pod>(skipping);
    assert_eq!(world.identity("10.77.0.2:9000"), None);
    assert!(world.identity("10.77.0.2:9002").is_some());
}

#[test]
fn zones_and_local_traffic() {
    let mut world = World::new();
    let n2 = json!({"metadata": {"name": "n2", "labels": {"topology.kubernetes.io/zone": "z2"}}});
    let mut far = pod("b", "10.77.0.3", true);
    far["spec"]["nodeName"] = json!("n2");
    let mut hinted = slice("s", "store", &[("a", "10.77.0.2"), ("b", "10.77.0.3")]);
    hinted["endpoints"][0]["hints"] = json!({"forZones": [{"name": "z1"}]});
    hinted["endpoints"][1]["hints"] = json!({"forZones": [{"name": "z2"}]});
    hinted["endpoints"][0]["nodeName"] = json!("weft");
    hinted["endpoints"][1]["nodeName"] = json!("n2");
    world
        .put::<Node>(n2)
        .put::<Service>(service("store", "10.78.0.2"))
        .put::<Pod>(pod("a", "10.77.0.2", true))
        .put::<Pod>(far)
        .put::<EndpointSlice>(hinted.clone());
    let from = |world: &World, node: &str| -> Vec<String> {
        let of = EndpointsOf {
            service: ObjectName::new("shop", "store"),
            port: 80,
            hostname: None,
            client_node: Some(node.to_owned()),
        };
        match world.view(&of) {
            EndpointsView::Endpoints(Endpoints::Known(all)) => {
                all.iter().map(|e| e.labels["zone_locality"].clone()).collect()
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(from(&world, "n2"), ["local"]);
    // One endpoint without a hint: hints do not count.
    hinted["endpoints"][0]["hints"] = Value::Null;
    world.put::<EndpointSlice>(hinted);
    assert_eq!(from(&world, "n2"), ["remote", "local"]);
    let mut local = service("store", "10.78.0.2");
    local["spec"]["internalTrafficPolicy"] = json!("Local");
    world.put::<Service>(local);
    assert_eq!(from(&world, "weft"), ["local"]);
    assert!(from(&world, "n3").is_empty());
}

// --- inbound

#[test]
fn default_policies() {
    let id = Some(STORE);
    for (name, cluster_plain, cluster_id, outside_plain, outside_id) in [
        ("all-unauthenticated", true, true, true, true),
        ("all-authenticated", false, true, false, true),
        ("cluster-unauthenticated", true, true, false, false),
        ("cluster-authenticated", false, true, false, false),
        ("deny", false, false, false, false),
        ("audit", true, true, true, true),
        ("nonsense", false, false, false, false),
    ] {
        let mut world = World::new();
        let mut value = pod("store-1", "10.77.0.2", true);
        value["metadata"]["annotations"] = json!({"config.linkerd.io/default-inbound-policy": name});
        world.put::<Pod>(value);
        let passes = |ip, id| world.get("store-1", ip, id, "/").is_ok();
        assert_eq!(
            (
                passes("10.77.0.9", None),
                passes("10.77.0.9", id),
                passes("192.0.2.1", None),
                passes("192.0.2.1", id)
            ),
            (cluster_plain, cluster_id, outside_plain, outside_id),
            "{name}"
        );
    }
}

#[test]
fn servers_and_authorizations() {
    let mut world = World::new();
    world.put::<Pod>(pod("store-1", "10.77.0.2", true)).put::<Server>(server("store", json!({})));
    let get = |world: &World, id| world.get("store-1", "10.77.0.9", id, "/");
    assert_eq!(get(&world, Some(STORE)), Err("POL-001".to_owned()));
    // A policy whose authentication is not there allows nobody.
    let refs = json!([reference("MeshTLSAuthentication", "web")]);
    world.put::<AuthorizationPolicy>(policy("p", reference("Server", "store"), refs));
    assert_eq!(get(&world, Some(STORE)), Err("POL-001".to_owned()));
    world.put::<MeshTlsAuthentication>(
        json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"identities": [STORE]}}),
    );
    assert_eq!(get(&world, Some(STORE)), Ok(()));
    assert_eq!(get(&world, None), Err("POL-002".to_owned()));
    assert_eq!(get(&world, Some("x.y")), Err("POL-001".to_owned()));
    // Both must hold.
    let refs = json!([reference("MeshTLSAuthentication", "web"), reference("NetworkAuthentication", "n")]);
    world.put::<AuthorizationPolicy>(policy("p", reference("Server", "store"), refs));
    assert!(get(&world, Some(STORE)).is_err());
    world.put::<NetworkAuthentication>(json!({"metadata": {"name": "n", "namespace": "shop"},
        "spec": {"networks": [{"cidr": "10.77.0.0/24", "except": ["10.77.0.9"]}]}}));
    assert!(get(&world, Some(STORE)).is_err());
    assert_eq!(world.get("store-1", "10.77.0.8", Some(STORE), "/"), Ok(()));
    // A namespace as target covers every Server in it.
    world.gone::<AuthorizationPolicy>("p").put::<AuthorizationPolicy>(policy(
        "all",
        json!({"kind": "Namespace", "name": "shop"}),
        json!([]),
    ));
    assert_eq!(get(&world, None), Ok(()));
}

#[test]
fn the_oldest_server_speaks_for_the_port() {
    let mut world = World::new();
    world.put::<Pod>(pod("store-1", "10.77.0.2", true));
    for (name, year) in [("a", 2026), ("b", 2025), ("c", 2025)] {
        let mut value = server(name, json!({}));
        value["metadata"]["creationTimestamp"] = json!(format!("{year}-01-01T00:00:00Z"));
        world.put::<Server>(value);
    }
    assert_eq!(world.inbound("store-1", 8080).meta.name(), "b");
    world.gone::<Server>("b");
    assert_eq!(world.inbound("store-1", 8080).meta.name(), "c");
}

#[test]
fn an_unknown_protocol_refuses_and_audit_does_not() {
    let mut world = World::new();
    world
        .put::<Pod>(pod("store-1", "10.77.0.2", true))
        .put::<Server>(server("s", json!({"proxyProtocol": "QUIC", "accessPolicy": "all-unauthenticated"})));
    assert!(world.get("store-1", "10.77.0.9", Some(STORE), "/").is_err());
    world.put::<Server>(server("s", json!({"accessPolicy": "audit"})));
    assert_eq!(world.get("store-1", "10.77.0.9", None, "/"), Ok(()));
    assert!(world.inbound("store-1", 8080).audit);
}

/// B36.
#[test]
fn probes_pass_whatever_routes_there_are() {
    let mut world = World::new();
    world.config.probe_networks = vec!["10.77.0.1/32".parse().unwrap()];
    let mut probed = pod("store-1", "10.77.0.2", true);
    probed["spec"]["containers"][0]["readinessProbe"] =
        json!({"httpGet": {"path": "/health?full=1", "port": "http"}});
    world.put::<Pod>(probed).put::<Server>(server("store", json!({})));
    let check = |world: &World| {
        for (from, path, expected) in [
            ("10.77.0.1", "/health?full=1", true),
            ("10.77.0.1", "/health?x", true),
            ("10.77.0.1", "/other", false),
            ("10.77.0.2", "/health", false),
        ] {
            assert_eq!(world.get("store-1", from, None, path).is_ok(), expected, "{from} {path}");
        }
    };
    check(&world);
    let route = |path: &str| {
        json!({"metadata": {"name": "api", "namespace": "shop"}, "spec": {
            "parentRefs": [reference("Server", "store")],
            "rules": [{"matches": [{"path": {"value": path}}]}]}})
    };
    world.put::<PolicyHttpRoute>(route("/api"));
    check(&world);
    // A route that also covers the probe's path keeps what it allows.
    world.put::<PolicyHttpRoute>(route("/")).put::<AuthorizationPolicy>(policy(
        "route",
        reference("HTTPRoute", "api"),
        json!([{"kind": "ServiceAccount", "name": "store"}]),
    ));
    assert_eq!(world.get("store-1", "10.77.0.9", Some(STORE), "/health"), Ok(()));
    assert_eq!(world.get("store-1", "10.77.0.1", None, "/health"), Ok(()));
}

#[test]
fn routes_are_authorized_by_themselves() {
    let mut world = World::new();
    world
        .put::<Pod>(pod("store-1", "10.77.0.2", true))
        .put::<Server>(server("store", json!({"proxyProtocol": "HTTP/1"})))
        .put::<PolicyHttpRoute>(json!({"metadata": {"name": "read", "namespace": "shop"}, "spec": {
            "parentRefs": [reference("Server", "store")],
            "rules": [{"matches": [{"path": {"value": "/items"}, "method": "GET"}]}]}}))
        // Of another group, and not readable: it adds nothing.
        .put::<GatewayHttpRoute>(json!({"metadata": {"name": "read", "namespace": "shop"}, "spec": {
            "parentRefs": [reference("Server", "store")],
            "rules": [{"matches": [{"path": {"value": "/"}}], "filters": [{"type": "CORS"}]}]}}))
        .put::<AuthorizationPolicy>(policy(
            "p",
            reference("HTTPRoute", "read"),
            json!([{"kind": "ServiceAccount", "name": "store"}]),
        ));
    assert_eq!(world.get("store-1", "10.77.0.9", Some(STORE), "/items/1"), Ok(()));
    assert_eq!(world.get("store-1", "10.77.0.9", Some("x.y"), "/items/1"), Err("POL-001".to_owned()));
    assert_eq!(world.get("store-1", "10.77.0.9", Some(STORE), "/admin"), Err("RTE-001".to_owned()));
}

#[test]
fn rate_limits_of_a_server() {
    let mut world = World::new();
    world
        .put::<Pod>(pod("store-1", "10.77.0.2", true))
        .put::<Server>(server("store", json!({})))
        .put::<HttpLocalRateLimitPolicy>(json!({"metadata": {"name": "l", "namespace": "shop"}, "spec": {
            "targetRef": reference("Server", "store"), "total": {"requestsPerSecond": 100},
            "overrides": [{"requestsPerSecond": 5, "clientRefs": [{"kind": "ServiceAccount", "name": "store"}]}]}}));
    let Protocol::Detect { http, .. } = &world.inbound("store-1", 8080).protocol else { panic!("detect") };
    let limit = http.rate_limit.as_ref().unwrap();
    assert_eq!(limit.total, Some(100));
    assert!(limit.overrides[0].0.contains(&Identity::parse(STORE).unwrap()));
}

// --- outbound

fn http_routes(policy: &OutboundPolicy) -> &HttpRoutes {
    match &policy.protocol {
        OutboundProtocol::Detect { http1, .. } => http1,
        OutboundProtocol::Http1(http) | OutboundProtocol::Http2(http) => http,
        other => panic!("{other:?}"),
    }
}

#[test]
fn where_traffic_goes() {
    let mut world = World::new();
    world.put::<Service>(service("store", "10.78.0.2")).put::<Pod>(pod("store-1", "10.77.0.2", true));
    let policy = world.outbound("10.78.0.2:80", "shop").unwrap();
    assert_eq!(policy.meta.to_string(), "service/shop/store:80");
    let Distribution::FirstAvailable(backends) = &http_routes(&policy).routes[0].rules[0].backends else {
        panic!("one backend")
    };
    assert!(
        matches!(&backends[0].backend.kind, BackendKind::Balance { path, .. } if path == "store.shop.svc.cluster.local:80")
    );
    // Pods and unknown cluster addresses have no policy; the rest of the world is forwarded to, without an identity.
    assert!(world.outbound("10.77.0.2:80", "shop").is_none());
    assert!(world.outbound("10.77.0.99:80", "shop").is_none());
    let egress = world.outbound("192.0.2.1:443", "shop").unwrap();
    assert_eq!(egress.meta.name(), "egress-fallback");
    // A pod outside the networks given is still known by its identity.
    world.put::<Pod>(pod("far", "192.0.2.1", true));
    assert!(world.outbound("192.0.2.1:443", "shop").is_none());
}

#[test]
fn protocols_by_declaration() {
    let mut world = World::new();
    for (app_protocol, expected) in [
        (json!("http"), "Http1"),
        (json!("kubernetes.io/h2c"), "Http2"),
        (json!("linkerd.io/opaque"), "Opaque"),
        (json!("redis"), "Opaque"),
        (Value::Null, "Detect"),
    ] {
        let mut value = service("store", "10.78.0.2");
        value["spec"]["ports"][0]["appProtocol"] = app_protocol.clone();
        world.put::<Service>(value);
        let policy = world.outbound("10.78.0.2:80", "shop").unwrap();
        assert!(format!("{:?}", policy.protocol).starts_with(expected), "{app_protocol}");
    }
    world.put::<Namespace>(
        json!({"metadata": {"name": "shop", "annotations": {"config.linkerd.io/opaque-ports": "80"}}}),
    );
    assert!(matches!(world.outbound("10.78.0.2:80", "shop").unwrap().protocol, OutboundProtocol::Opaque(_)));
    assert!(world.profile("10.78.0.2:80").opaque);
}

/// B10 (a), (b): a route that leaves leaves nothing, and a backend works as soon as it is there.
#[test]
fn routes_and_backends_come_and_go() {
    let mut world = World::new();
    let route = |parent: &str| {
        json!({"metadata": {"name": "r", "namespace": "shop"}, "spec": {
            "parentRefs": [{"group": "core", "kind": "Service", "name": parent}],
            "rules": [{"backendRefs": [{"name": "b", "port": 80}]}]}})
    };
    let usable = |world: &World| {
        let policy = world.outbound("10.78.0.2:80", "shop").unwrap();
        let routes = &http_routes(&policy).routes;
        let kind = match &routes[0].rules[0].backends {
            Distribution::FirstAvailable(all) => all[0].backend.kind.clone(),
            Distribution::RandomAvailable(all) => all[0].0.backend.kind.clone(),
            Distribution::Empty => panic!("no backend"),
        };
        (routes[0].meta.name().to_owned(), !matches!(kind, BackendKind::Invalid(_)))
    };
    world.put::<Service>(service("a", "10.78.0.2")).put::<PolicyHttpRoute>(route("a"));
    assert_eq!(usable(&world), ("r".to_owned(), false));
    world.put::<Service>(service("b", "10.78.0.3"));
    assert_eq!(usable(&world), ("r".to_owned(), true));
    world.gone::<Service>("b");
    assert_eq!(usable(&world), ("r".to_owned(), false));
    world.put::<PolicyHttpRoute>(route("nowhere"));
    assert_eq!(usable(&world), ("http".to_owned(), true));
}

#[test]
fn consumer_routes_bind_their_own_namespace() {
    let mut world = World::new();
    world.put::<Service>(service("a", "10.78.0.2")).put::<GatewayHttpRoute>(json!({
        "metadata": {"name": "mine", "namespace": "web"}, "spec": {
        "parentRefs": [{"group": "", "kind": "Service", "name": "a", "namespace": "shop", "port": 80}],
        "rules": [{"timeouts": {"request": "2s", "backendRequest": "1s"}}]}}));
    let name = |namespace: &str| {
        http_routes(&world.outbound("10.78.0.2:80", namespace).unwrap()).routes[0].meta.name().to_owned()
    };
    assert_eq!((name("web"), name("shop"), name("other")), ("mine".into(), "http".into(), "http".into()));
    let policy = world.outbound("10.78.0.2:80", "web").unwrap();
    let timeouts = http_routes(&policy).routes[0].rules[0].timeouts;
    assert_eq!(timeouts.request, Some(std::time::Duration::from_secs(2)));
}

#[test]
fn unmeshed_is_said_and_not_left_open() {
    let mut world = World::new();
    world.put::<Pod>(pod("plain", "10.77.0.3", false));
    assert_eq!(world.profile("10.77.0.3:80").endpoint.as_ref().unwrap().identity, PeerIdentity::Unmeshed);
}
