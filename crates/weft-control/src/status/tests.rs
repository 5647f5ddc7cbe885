use super::*;
use crate::index::{
    Index,
    kinds::Indexed,
    tests::{config, object, pod, service},
};
use weft_kube::{
    core::{pod::Pod, service::Service},
    meta::ObjectName,
    policy::{
        authorization::{AuthorizationPolicy, MeshTlsAuthentication, NetworkAuthentication},
        egress_network::EgressNetwork,
        external_workload::ExternalWorkload,
        grpc_route::GrpcRoute,
        http_route::PolicyHttpRoute,
        rate_limit::HttpLocalRateLimitPolicy,
        route::TcpRoute,
        server::Server,
        server_authorization::ServerAuthorization,
        service_profile::ServiceProfile,
    },
    watch::Event,
};

#[derive(Default)]
struct World {
    index: Index,
}

impl World {
    fn put<K: Indexed>(&mut self, value: Value) -> &mut Self {
        self.index.apply::<K>(Event::Applied(Arc::new(object(value))));
        self
    }

    fn gone<K: Indexed>(&mut self, name: &str) -> &mut Self {
        self.index.apply::<K>(Event::Deleted(ObjectName::new("shop", name)));
        self
    }

    fn writes(&self) -> Vec<Write> {
        let reader = Reader::new(&self.index);
        PARTS.iter().flat_map(|part| part(&reader, &config(), Timestamp::UNIX_EPOCH)).collect()
    }

    fn write(&self, kind: &str, name: &str) -> Write {
        let found = self.writes().into_iter().find(|w| w.about["kind"] == kind && w.about["name"] == name);
        found.unwrap_or_else(|| panic!("nothing is said about {kind} {name}"))
    }

    /// `Type=Status Reason`, and the messages.
    fn said(&self, kind: &str, name: &str) -> (Vec<String>, String) {
        let write = self.write(kind, name);
        let own = write.status["conditions"].as_array().cloned();
        let conditions = own.unwrap_or_else(|| {
            let parents = write.status["parents"].as_array().unwrap();
            let ours = parents.iter().filter(|p| p["controllerName"] == CONTROLLER);
            ours.flat_map(|p| p["conditions"].as_array().unwrap().clone()).collect()
        });
        let text = |c: &Value, key: &str| c[key].as_str().unwrap().to_owned();
        let messages: Vec<String> = conditions.iter().map(|c| text(c, "message")).collect();
        let short = conditions
            .iter()
            .map(|c| {
                assert_eq!(c["observedGeneration"], 3, "{c}");
                format!("{}={} {}", text(c, "type"), text(c, "status"), text(c, "reason"))
            })
            .collect();
        (short, messages.join("; "))
    }
}

fn named(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "generation": 3}, "spec": spec})
}

fn at(mut value: Value, year: u16) -> Value {
    value["metadata"]["creationTimestamp"] = json!(format!("{year}-01-01T00:00:00Z"));
    value
}

fn route(filter: &str, backend: &str) -> Value {
    named(
        "r",
        json!({
            "parentRefs": [{"group": "core", "kind": "Service", "name": "a"}, {"name": "somebody-elses"}],
            "rules": [{"filters": [{"type": filter, "requestHeaderModifier": {}}],
                "backendRefs": [{"name": backend, "port": 80}]}],
        }),
    )
}

fn server(name: &str, extra: Value) -> Value {
    let mut spec = json!({"podSelector": {"matchLabels": {"app": "store"}}, "port": "http"});
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    named(name, spec)
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"group": "policy.linkerd.io", "kind": kind, "name": name})
}

const ACCEPTED: &str = "Accepted=True Accepted";
const RESOLVED: &str = "ResolvedRefs=True ResolvedRefs";

// --- routes

#[test]
fn conditions_of_routes_say_what_is_missing() {
    let mut world = World::default();
    world.put::<PolicyHttpRoute>(route("RequestHeaderModifier", "b"));
    let said = |world: &World| world.said("HTTPRoute", "r").0;
    assert_eq!(said(&world), ["Accepted=False NoMatchingParent", "ResolvedRefs=False BackendNotFound"]);
    world.put::<Service>(service("a", "10.78.0.2")).put::<Service>(service("b", "10.78.0.3"));
    assert_eq!(said(&world), [ACCEPTED, RESOLVED]);
    world.put::<PolicyHttpRoute>(route("CORS", "b"));
    let (short, message) = world.said("HTTPRoute", "r");
    assert_eq!(short[0], "Accepted=False UnsupportedValue");
    assert!(message.starts_with("spec.rules[0].filters[0].type: \"CORS\""), "{message}");
    let mut far = route("RequestHeaderModifier", "b");
    far["spec"]["rules"][0]["backendRefs"][0]["namespace"] = json!("other");
    world.put::<PolicyHttpRoute>(far);
    assert_eq!(said(&world), [ACCEPTED, "ResolvedRefs=False RefNotPermitted"]);
    let mut odd = route("RequestHeaderModifier", "b");
    odd["spec"]["rules"][0]["backendRefs"][0]["kind"] = json!("Bucket");
    world.put::<PolicyHttpRoute>(odd);
    assert_eq!(said(&world), [ACCEPTED, "ResolvedRefs=False InvalidKind"]);
}

#[test]
fn what_was_written_is_not_written_again_and_others_keep_their_entries() {
    let mut world = World::default();
    world.put::<Service>(service("a", "10.78.0.2")).put::<Server>(server("s", json!({})));
    let foreign = json!({"controllerName": "example.com/other", "parentRef": {"name": "x"}});
    let mut value = route("RequestHeaderModifier", "b");
    value["status"] = json!({"parents": [foreign]});
    world.put::<PolicyHttpRoute>(value.clone());
    let write = world.write("HTTPRoute", "r");
    assert_eq!(write.status["parents"][0], foreign);
    value["status"] = write.status;
    // Our own write comes back as an event, and is no news.
    let applied = world.index.apply::<PolicyHttpRoute>(Event::Applied(Arc::new(object(value))));
    assert!(applied.touched.is_empty() && applied.notes.is_empty());
    let mut value = server("s", json!({}));
    value["status"] = world.write("Server", "s").status;
    let foreign = json!({"type": "Theirs", "status": "True"});
    value["status"]["conditions"].as_array_mut().unwrap().insert(0, foreign.clone());
    let applied = world.index.apply::<Server>(Event::Applied(Arc::new(object(value.clone()))));
    assert!(applied.touched.is_empty());
    assert_eq!(world.writes(), []);
    // What changes is written beside what others wrote.
    value["spec"]["proxyProtocol"] = json!("QUIC");
    world.put::<Server>(value);
    assert_eq!(world.write("Server", "s").status["conditions"][0], foreign);
}

#[test]
fn of_two_kinds_of_routes_one_is_accepted() {
    let mut world = World::default();
    let grpc = |name: &str, port: Value| {
        let mut parent = json!({"group": "core", "kind": "Service", "name": "a"});
        if !port.is_null() {
            parent["port"] = port;
        }
        named(name, json!({"parentRefs": [parent], "rules": [{}]}))
    };
    let mut two = service("a", "10.78.0.2");
    two["spec"]["ports"] = json!([{"name": "x", "port": 80}, {"name": "y", "port": 81}]);
    world
        .put::<Service>(two)
        .put::<Service>(service("b", "10.78.0.3"))
        .put::<PolicyHttpRoute>(route("RequestHeaderModifier", "b"))
        .put::<GrpcRoute>(grpc("g", json!(80)));
    // The other port is still HTTP's.
    assert_eq!(world.said("HTTPRoute", "r").0, [ACCEPTED, RESOLVED]);
    world.put::<GrpcRoute>(grpc("g", Value::Null));
    let (short, message) = world.said("HTTPRoute", "r");
    assert_eq!(short, ["Accepted=False RouteReasonConflicted", RESOLVED]);
    assert!(message.contains("GRPCRoute"), "{message}");
    assert_eq!(world.said("GRPCRoute", "g").0, [ACCEPTED, RESOLVED]);
    world.gone::<GrpcRoute>("g").gone::<PolicyHttpRoute>("r");
    let bytes = |name: &str, year| at(grpc(name, Value::Null), year);
    world.put::<TcpRoute>(bytes("young", 2026)).put::<TcpRoute>(bytes("old", 2025));
    assert_eq!(world.said("TCPRoute", "old").0, [ACCEPTED, RESOLVED]);
    assert_eq!(world.said("TCPRoute", "young").0[0], "Accepted=False RouteReasonConflicted");
}

#[test]
fn a_route_that_an_older_one_hides_is_told() {
    let mut world = World::default();
    let mut consumer = at(route("RequestHeaderModifier", "b"), 2026);
    consumer["metadata"]["name"] = json!("late");
    world
        .put::<Service>(service("a", "10.78.0.2"))
        .put::<Service>(service("b", "10.78.0.3"))
        .put::<PolicyHttpRoute>(at(route("RequestHeaderModifier", "b"), 2025))
        .put::<PolicyHttpRoute>(consumer.clone());
    assert_eq!(world.said("HTTPRoute", "r").0, [ACCEPTED, RESOLVED]);
    let (short, message) = world.said("HTTPRoute", "late");
    assert_eq!(short, [ACCEPTED, RESOLVED, "Conflicted=True RouteOverlap"]);
    assert!(message.contains("HTTPRoute shop/r"), "{message}");
    let write = world.write("HTTPRoute", "late");
    assert_eq!(write.warnings.len(), 1);
    // Once is enough.
    consumer["status"] = write.status;
    consumer["metadata"]["generation"] = json!(4);
    world.put::<PolicyHttpRoute>(consumer);
    assert_eq!(world.write("HTTPRoute", "late").warnings, []);
}

#[test]
fn what_stock_proxies_cannot_be_told_is_accepted_where_there_are_none() {
    let mut world = World::default();
    let rewrite = || {
        let filter = json!({"type": "URLRewrite", "urlRewrite": {"hostname": "x"}});
        let mut value = route("RequestHeaderModifier", "b");
        value["spec"]["rules"][0]["filters"] = json!([filter]);
        value
    };
    let mut ours = pod("ours", "10.77.0.2", true);
    ours["metadata"]["annotations"] = json!({"linkerd.io/created-by": "weft/proxy-injector 0.1.0"});
    world
        .put::<Service>(service("a", "10.78.0.2"))
        .put::<Service>(service("b", "10.78.0.3"))
        .put::<Pod>(ours)
        .put::<PolicyHttpRoute>(rewrite());
    assert_eq!(world.said("HTTPRoute", "r").0, [ACCEPTED, RESOLVED]);
    world.put::<Pod>(pod("stock", "10.77.0.3", true));
    let (short, message) = world.said("HTTPRoute", "r");
    assert_eq!(short[0], "Accepted=False UnsupportedValue");
    assert!(message.contains("filters[0].type: URLRewrite") && message.contains("shop/stock"), "{message}");
}

#[test]
fn routes_of_servers() {
    let mut world = World::default();
    let of = |rule: Value| named("r", json!({"parentRefs": [reference("Server", "s")], "rules": [rule]}));
    let said = |world: &World| world.said("HTTPRoute", "r");
    world.put::<PolicyHttpRoute>(of(json!({})));
    assert_eq!(said(&world).0, ["Accepted=False NoMatchingParent"]);
    world.put::<Server>(server("s", json!({})));
    assert_eq!(said(&world).0, [ACCEPTED]);
    for (rule, protocol, reason) in [
        (
            json!({"filters": [{"type": "ResponseHeaderModifier", "responseHeaderModifier": {}}]}),
            "unknown",
            "filters[0].type",
        ),
        (json!({"timeouts": {"request": "1s"}}), "unknown", "spec.rules[0].timeouts"),
        (json!({"backendRefs": [{"name": "b", "port": 80}]}), "unknown", "spec.rules[0].backendRefs"),
        (json!({}), "gRPC", "proxyProtocol gRPC"),
        (json!({}), "opaque", "proxyProtocol opaque"),
    ] {
        world.put::<Server>(server("s", json!({"proxyProtocol": protocol}))).put::<PolicyHttpRoute>(of(rule));
        let (short, message) = said(&world);
        assert_eq!(short, ["Accepted=False UnsupportedValue"]);
        assert!(message.contains(reason), "{message}");
    }
}

// --- everything else

/// As for pods, Servers of ExternalWorkloads that claim one port are told; those of pods are no rivals.
#[test]
fn overlapping_servers_of_machines_are_told() {
    let of_machines = |name: &str, port: Value| {
        named(name, json!({"externalWorkloadSelector": {"matchLabels": {"app": "store"}}, "port": port}))
    };
    let mut world = World::default();
    world
        .put::<Pod>(pod("vm", "10.77.0.2", true))
        .put::<Server>(at(server("of-pods", json!({})), 2023))
        .put::<ExternalWorkload>(json!({
            "metadata": {"name": "vm", "namespace": "shop", "labels": {"app": "store"}},
            "spec": {"meshTLS": {"identity": "spiffe://x/vm", "serverName": "vm.example"},
                "ports": [{"name": "http", "port": 8080}], "workloadIPs": [{"ip": "192.0.2.7"}]}}))
        .put::<Server>(at(of_machines("old", json!("http")), 2024));
    assert_eq!(world.said("Server", "old").0, [ACCEPTED]);
    assert_eq!(world.said("Server", "of-pods").0, [ACCEPTED]);
    world.put::<Server>(at(of_machines("new", json!(8080)), 2025));
    let (short, message) = world.said("Server", "new");
    assert_eq!(short, ["Accepted=False ServerOverlap", "Conflicted=True ServerOverlap"]);
    assert!(message.contains("Server old selects vm:8080"), "{message}");
    world.gone::<ExternalWorkload>("vm");
    assert_eq!(world.said("Server", "new").0, [ACCEPTED]);
}

/// Of two Servers for one port, people are told which decides.
#[test]
fn overlapping_servers_are_told() {
    let mut world = World::default();
    let mut wide = server("wide", json!({}));
    wide["spec"]["podSelector"] = json!({});
    let mut other = pod("other-1", "10.77.0.3", true);
    other["metadata"]["labels"]["app"] = json!("other");
    world
        .put::<Pod>(pod("store-1", "10.77.0.2", true))
        .put::<Pod>(other)
        .put::<Server>(at(server("old", json!({})), 2024))
        .put::<Server>(at(wide, 2025));
    assert_eq!(world.said("Server", "old").0, [ACCEPTED, "Conflicted=True ServerOverlap"]);
    let (short, message) = world.said("Server", "wide");
    assert_eq!(short, [ACCEPTED, "Conflicted=True ServerOverlap"]);
    assert!(message.contains("Server old selects store-1:8080"), "{message}");
    let write = world.write("Server", "wide");
    assert_eq!(write.warnings[0].0, "ServerOverlap");
    // Nothing is left to it: it decides nothing.
    world.gone::<Pod>("other-1");
    assert_eq!(
        world.said("Server", "wide").0,
        ["Accepted=False ServerOverlap", "Conflicted=True ServerOverlap"]
    );
    world.gone::<Server>("old");
    assert_eq!(world.said("Server", "wide").0, [ACCEPTED]);
}

#[test]
fn policies_are_accepted_when_they_hold() {
    let mut world = World::default();
    let policy = |target: Value, refs: Value| {
        named("p", json!({"targetRef": target, "requiredAuthenticationRefs": refs}))
    };
    let said = |world: &World| world.said("AuthorizationPolicy", "p");
    let refs = || json!([reference("MeshTLSAuthentication", "m")]);
    world.put::<AuthorizationPolicy>(policy(reference("Server", "s"), refs()));
    assert_eq!(said(&world).0, ["Accepted=False NoMatchingTarget"]);
    world.put::<Server>(server("s", json!({})));
    let (short, message) = said(&world);
    assert_eq!(short, ["Accepted=False AuthenticationNotFound"]);
    assert!(message.contains("MeshTLSAuthentication shop/m does not exist"), "{message}");
    world.put::<MeshTlsAuthentication>(named("m", json!({"identities": ["*"]})));
    assert_eq!(said(&world).0, [ACCEPTED]);
    assert_eq!(world.said("MeshTLSAuthentication", "m").0, [ACCEPTED]);
    for (target, refs, reason) in [
        (json!({"kind": "Namespace", "name": "other"}), json!([]), "must be the policy's own"),
        (json!({"kind": "Pod", "name": "x"}), json!([]), "spec.targetRef"),
        (
            reference("Server", "s"),
            json!([reference("MeshTLSAuthentication", "m"), {"kind": "ServiceAccount", "name": "a"}]),
            "requiredAuthenticationRefs[1]",
        ),
    ] {
        world.put::<AuthorizationPolicy>(policy(target, refs));
        let (short, message) = said(&world);
        assert_eq!(short, ["Accepted=False UnsupportedValue"]);
        assert!(message.contains(reason), "{message}");
    }
    world
        .put::<MeshTlsAuthentication>(named("m", json!({"identities": ["*", "a b"]})))
        .put::<NetworkAuthentication>(named(
            "n",
            json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["10.0.0.0/7"]}]}),
        ))
        .put::<ServerAuthorization>(named(
            "a",
            json!({"server": {"name": "none"}, "client": {"unauthenticated": true}}),
        ));
    assert!(world.said("MeshTLSAuthentication", "m").1.starts_with("spec.identities[1]"));
    assert!(world.said("NetworkAuthentication", "n").1.starts_with("spec.networks[0].except[0]"));
    assert_eq!(world.said("ServerAuthorization", "a").0, ["Accepted=False NoMatchingTarget"]);
    world.put::<ServerAuthorization>(named(
        "a",
        json!({"server": {"name": "s"}, "client": {"unauthenticated": true}}),
    ));
    assert_eq!(world.said("ServerAuthorization", "a").0, [ACCEPTED]);
}

#[test]
fn rate_limits_say_which_one_holds() {
    let mut world = World::default();
    let limit = |name: &str, year, rate: u32| {
        let spec = json!({"targetRef": reference("Server", "s"), "total": {"requestsPerSecond": 10},
            "identity": {"requestsPerSecond": rate}});
        at(named(name, spec), year)
    };
    let said = |world: &World, name: &str| world.said("HTTPLocalRateLimitPolicy", name).0;
    world
        .put::<HttpLocalRateLimitPolicy>(limit("old", 2025, 5))
        .put::<HttpLocalRateLimitPolicy>(limit("new", 2026, 5));
    assert_eq!(said(&world, "old"), ["Accepted=False NoMatchingTarget"]);
    world.put::<Server>(server("s", json!({})));
    assert_eq!(said(&world, "old"), [ACCEPTED]);
    assert_eq!(said(&world, "new"), ["Accepted=False RateLimitReasonAlreadyExists"]);
    assert_eq!(world.write("HTTPLocalRateLimitPolicy", "old").status["targetRef"]["name"], "s");
    world.put::<HttpLocalRateLimitPolicy>(limit("old", 2025, 50));
    assert_eq!(said(&world, "old"), ["Accepted=False UnsupportedValue"]);
    assert_eq!(said(&world, "new"), [ACCEPTED]);
    world.put::<Server>(server("s", json!({"proxyProtocol": "gRPC"})));
    assert_eq!(said(&world, "new"), ["Accepted=False UnsupportedValue"]);
}

#[test]
fn egress_networks_and_profiles() {
    let mut world = World::default();
    let network = |name: &str, year, cidr: &str| {
        at(named(name, json!({"trafficPolicy": "Deny", "networks": [{"cidr": cidr}]})), year)
    };
    world.put::<EgressNetwork>(network("in", 2025, "10.0.0.0/8")).put::<EgressNetwork>(network(
        "out",
        2025,
        "192.0.2.0/24",
    ));
    let (short, message) = world.said("EgressNetwork", "in");
    assert_eq!(short, ["Accepted=False EgressReasonNetworkOverlap"]);
    assert!(message.contains("10.77.0.0/16"), "{message}");
    assert_eq!(world.said("EgressNetwork", "out").0, [ACCEPTED]);
    world.put::<EgressNetwork>(network("late", 2026, "192.0.2.0/24"));
    assert_eq!(world.said("EgressNetwork", "late").0, [ACCEPTED, "Conflicted=True EgressNetworkOverlap"]);
    let profile = |name: &str, path: &str| {
        named(name, json!({"routes": [{"name": "r", "condition": {"pathRegex": path}}]}))
    };
    world
        .put::<ServiceProfile>(profile("a.shop.svc.cluster.local", "/a"))
        .put::<ServiceProfile>(profile("b.shop.svc.cluster.local", "("))
        .put::<ServiceProfile>(profile("store", "/a"));
    assert_eq!(world.said("ServiceProfile", "a.shop.svc.cluster.local").0, [ACCEPTED]);
    assert!(world.said("ServiceProfile", "b.shop.svc.cluster.local").1.starts_with("spec.routes[0] (r)"));
    assert!(world.said("ServiceProfile", "store").1.starts_with("metadata.name"));
}

/// A Service's status is not ours: what its annotations do not say is told by events alone.
#[test]
fn annotations_that_cannot_be_read_are_told() {
    let mut world = World::default();
    let mut annotated = service("a", "10.78.0.2");
    annotated["metadata"]["annotations"] =
        json!({"timeout.linkerd.io/request": "5", "retry.linkerd.io/http": "5xx", "other": "x"});
    world.put::<Service>(annotated).put::<Service>(service("b", "10.78.0.3"));
    let writes = world.writes();
    assert_eq!(writes.len(), 1);
    assert!(writes[0].status.is_null() && writes[0].about["apiVersion"] == "v1");
    assert_eq!(writes[0].warnings.len(), 1);
    assert!(
        writes[0].warnings[0].1.starts_with("timeout.linkerd.io/request: \"5\""),
        "{:?}",
        writes[0].warnings
    );
}
