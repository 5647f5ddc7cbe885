//! `Get` and `GetProfile`, row by row: what they say about each kind of name and address.

use super::*;
use crate::index::{store::Store, tests::put};
use std::net::IpAddr;
use weft_kube::policy::{external_workload::ExternalWorkload, service_profile::ServiceProfile};
use weft_model::{meta::Meta, outbound::Http2Client};

const VM: &str = "spiffe://root.example/vm";

fn external(ip: &str) -> Value {
    json!({"metadata": {"name": "vm", "namespace": "shop", "labels": {"app": "store"}},
        "spec": {"meshTLS": {"identity": VM, "serverName": "vm.example"},
            "ports": [{"name": "http", "port": 8080}, {"name": "linkerd-proxy", "port": 4243}],
            "workloadIPs": [{"ip": ip}]}})
}

fn shop(world: &mut World) -> &mut World {
    world
        .put::<Service>(service("store", "10.78.0.2"))
        .put::<Pod>(pod("store-1", "10.77.0.2", true))
        .put::<EndpointSlice>(slice("s", "store", &[("store-1", "10.77.0.2")]))
}

/// Defects 1 and 4 of the original: whoever asked about a pod learns its identity when it changes, whatever port was
/// asked for and whoever declared it.
#[test]
fn a_late_identity_reaches_every_port() {
    let mut late = pod("store-1", "10.77.0.2", false);
    late["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
    late["spec"]["initContainers"][0]["ports"] = json!([{"name": "linkerd-admin", "containerPort": 4191}]);
    let store = Store::new(config());
    let ask = |port: u16| {
        let addr = SocketAddr::new("10.77.0.2".parse().unwrap(), port);
        store.subscribe(profile_of(ProfileTarget::Addr(addr), "web"))
    };
    // The container's port, the init container's, one that nobody declared.
    let watching = [8080, 4191, 5555].map(ask);
    let identities = || -> Vec<Option<String>> {
        let id = |view: &ProfileView| match view {
            ProfileView::Profile(p) => p.endpoint.as_ref()?.identity.id().map(ToString::to_string),
            ProfileView::NoSuchName => None,
        };
        watching.iter().map(|watching| id(&watching.borrow())).collect()
    };
    store.apply([put::<Pod>(late.clone())]);
    assert_eq!(identities(), [None, None, None]);
    late["metadata"]["labels"]["linkerd.io/control-plane-ns"] = json!("linkerd");
    store.apply([put::<Pod>(late.clone())]);
    assert!(identities().iter().all(|id| id.as_deref() == Some(STORE)));
    late["spec"]["serviceAccountName"] = json!("other");
    store.apply([put::<Pod>(late)]);
    assert!(identities().iter().all(|id| id.as_ref().is_some_and(|id| id.starts_with("other."))));
}

#[test]
fn meshed_endpoints_say_how_to_speak_http_2() {
    let mut world = World::new();
    shop(&mut world).put::<Pod>(pod("plain", "10.77.0.3", false));
    assert_eq!(world.endpoints("store", 80)[0].http2, world.config.http2);
    assert!(world.config.http2.keep_alive.is_some_and(|k| k.while_idle));
    assert_eq!(world.profile("10.77.0.3:8080").endpoint.as_ref().unwrap().http2, Http2Client::default());
    // A proxy's own ports are dialled as they are.
    assert_eq!(world.profile("10.77.0.2:4191").endpoint.as_ref().unwrap().transport_port, None);
}

#[test]
fn members_of_a_headless_service() {
    let mut world = World::new();
    let mut members = slice("s", "store", &[("store-0", "10.77.0.2"), ("store-1", "10.77.0.3")]);
    members["endpoints"][0]["hostname"] = json!("store-0");
    members["endpoints"][1]["hostname"] = json!("store-1");
    world
        .put::<Service>(service("store", "None"))
        .put::<Pod>(pod("store-0", "10.77.0.2", true))
        .put::<Pod>(pod("store-1", "10.77.0.3", true))
        .put::<EndpointSlice>(members);
    let service = ObjectName::new("shop", "store");
    // By the Service's port, and by a number that only the pod knows.
    for (port, addr) in [(80, "10.77.0.3:8080"), (9999, "10.77.0.3:9999")] {
        let hostname = Some("store-1".to_owned());
        let of = EndpointsOf { service: service.clone(), port, hostname, client_node: None };
        let EndpointsView::Endpoints(Endpoints::Known(all)) = world.view(&of) else { panic!() };
        assert_eq!((all.len(), all[0].addr), (1, addr.parse().unwrap()));
    }
    let ask = |hostname: &str| {
        let (service, hostname) = (service.clone(), hostname.to_owned());
        world.view(&profile_of(ProfileTarget::Member { service, hostname, port: 80 }, "web"))
    };
    let ProfileView::Profile(profile) = ask("store-0") else { panic!() };
    let endpoint = profile.endpoint.as_ref().unwrap();
    assert_eq!(endpoint.labels["pod"], "store-0");
    assert_eq!(endpoint.identity.id().unwrap().as_str(), STORE);
    assert_eq!(ask("store-9"), ProfileView::NoSuchName);
}

#[test]
fn every_form_of_a_port() {
    let mut world = World::new();
    let mut ports = service("store", "10.78.0.2");
    ports["spec"]["ports"] = json!([
        {"name": "by-name", "port": 80, "targetPort": "http"},
        {"name": "by-number", "port": 81, "targetPort": 9090},
        {"name": "datagrams", "port": 82, "protocol": "UDP"},
        {"name": "not-in-the-slice", "port": 83},
    ]);
    let mut found = slice("s", "store", &[("store-1", "10.77.0.2")]);
    found["ports"] = json!([{"name": "by-name", "port": 8080}, {"name": "by-number", "port": 9090},
        {"name": "datagrams", "port": 53, "protocol": "UDP"}]);
    shop(&mut world).put::<Service>(ports).put::<EndpointSlice>(found);
    let at = |port| world.endpoints("store", port).iter().map(|e| e.addr.port()).collect::<Vec<_>>();
    for (port, expected) in [(80, vec![8080]), (81, vec![9090]), (82, vec![]), (83, vec![]), (84, vec![])] {
        assert_eq!(at(port), expected, "{port}");
    }
}

#[test]
fn host_ports_lead_to_the_container_behind() {
    let mut world = World::new();
    let mut published = pod("store-1", "10.77.0.2", true);
    published["spec"]["containers"][0]["ports"] = json!([
        {"name": "http", "containerPort": 8080, "hostPort": 9080},
        {"name": "dns", "containerPort": 53, "hostPort": 9053, "protocol": "UDP"},
    ]);
    published["status"]["hostIP"] = json!("10.77.0.1");
    world.put::<Pod>(published.clone());
    let endpoint = world.profile("10.77.0.1:9080").endpoint.clone().unwrap();
    assert_eq!(endpoint.addr, "10.77.0.1:9080".parse().unwrap());
    assert_eq!(endpoint.identity.id().unwrap().as_str(), STORE);
    assert_eq!(endpoint.transport_port, None);
    assert_eq!(world.identity("10.77.0.1:9053"), None, "a UDP port takes no connections");
    assert_eq!(world.identity("10.77.0.1:9999"), None);
    // A pod that has ended publishes nothing, and its successor is found.
    published["status"]["phase"] = json!("Failed");
    world.put::<Pod>(published.clone());
    assert_eq!(world.identity("10.77.0.1:9080"), None);
    published["metadata"]["name"] = json!("store-2");
    published["status"]["phase"] = json!("Running");
    world.put::<Pod>(published);
    assert!(world.identity("10.77.0.1:9080").is_some());
}

#[test]
fn external_workloads_by_address_and_by_name() {
    let mut world = World::new();
    let mut listed = slice("s", "store", &[("vm", "192.0.2.7")]);
    listed["endpoints"][0]["targetRef"]["kind"] = json!("ExternalWorkload");
    world
        .put::<Service>(service("store", "10.78.0.2"))
        .put::<ExternalWorkload>(external("192.0.2.7"))
        .put::<EndpointSlice>(listed);
    let by_name = world.endpoints("store", 80)[0].clone();
    let by_address = world.profile("192.0.2.7:8080").endpoint.clone().unwrap();
    for endpoint in [&by_name, &by_address] {
        let PeerIdentity::Meshed { id, server_name } = &endpoint.identity else { panic!("{endpoint:?}") };
        assert_eq!((id.as_str(), server_name.as_str()), (VM, "vm.example"));
        assert_eq!((endpoint.hint, endpoint.transport_port), (ProtocolHint::H2, Some(4243)));
        assert_eq!(endpoint.labels["external_workload"], "vm");
        assert!(matches!(endpoint.meta.as_deref(), Some(Meta::Resource(r)) if r.kind == "ExternalWorkload"));
    }
    // Defect 6: a Server that selects it makes its port opaque, and not after it is gone.
    let opaque = json!({"metadata": {"name": "s", "namespace": "shop"}, "spec": {"port": "http",
        "externalWorkloadSelector": {"matchLabels": {"app": "store"}}, "proxyProtocol": "opaque"}});
    world.put::<Server>(opaque);
    assert!(world.profile("192.0.2.7:8080").opaque);
    assert_eq!(world.endpoints("store", 80)[0].hint, ProtocolHint::Opaque);
    world.gone::<Server>("s");
    assert!(!world.profile("192.0.2.7:8080").opaque);
    let mut annotated = external("192.0.2.7");
    annotated["metadata"]["annotations"] = json!({"config.linkerd.io/opaque-ports": "http"});
    world.put::<ExternalWorkload>(annotated);
    assert!(world.profile("192.0.2.7:8080").opaque);
    // A slice that is behind names nobody.
    world.put::<ExternalWorkload>(external("192.0.2.8"));
    assert!(world.endpoints("store", 80).is_empty());
}

#[test]
fn a_mirrored_service_goes_through_the_other_clusters_gateway() {
    let mut world = World::new();
    let gateway = "linkerd-gateway.linkerd-multicluster.serviceaccount.identity.linkerd.east.example";
    let mut mirror = service("store-east", "10.78.0.9");
    mirror["metadata"]["labels"] = json!({"mirror.linkerd.io/cluster-name": "east"});
    mirror["metadata"]["annotations"] =
        json!({"mirror.linkerd.io/remote-svc-fq-name": "store.shop.svc.east.example"});
    let mut endpoints = slice("m", "store-east", &[("", "203.0.113.9")]);
    endpoints["endpoints"][0]["targetRef"] = Value::Null;
    endpoints["ports"][0]["port"] = json!(4143);
    endpoints["metadata"]["annotations"] = json!({"mirror.linkerd.io/remote-gateway-identity": gateway});
    world.put::<Service>(mirror).put::<EndpointSlice>(endpoints);
    let all = world.endpoints("store-east", 80);
    let endpoint = &all[0];
    assert_eq!(endpoint.addr, "203.0.113.9:4143".parse().unwrap());
    assert_eq!(endpoint.identity.id().unwrap().as_str(), gateway);
    // The Service's port, not the gateway's.
    assert_eq!(endpoint.authority_override.as_deref(), Some("store.shop.svc.east.example:80"));
    assert_eq!(endpoint.hint, ProtocolHint::H2);
    for (label, value) in [
        ("target_cluster", "east"),
        ("target_service", "store"),
        ("target_service_namespace", "shop"),
        ("service", "store-east"),
    ] {
        assert_eq!(endpoint.labels.get(label).map(String::as_str), Some(value), "{label}");
    }
}

#[test]
fn a_pod_of_both_families_is_one_endpoint() {
    let mut world = World::new();
    let mut both = pod("store-1", "10.77.0.2", true);
    both["status"]["podIPs"] = json!([{"ip": "10.77.0.2"}, {"ip": "fd77::2"}]);
    let mut six = slice("s6", "store", &[("store-1", "fd77::2")]);
    six["addressType"] = json!("IPv6");
    shop(&mut world).put::<Pod>(both).put::<EndpointSlice>(six);
    let addrs = |world: &World| world.endpoints("store", 80).iter().map(|e| e.addr.ip()).collect::<Vec<_>>();
    let only = |ip: &str| vec![ip.parse::<IpAddr>().unwrap()];
    assert_eq!(addrs(&world), only("10.77.0.2"));
    world.config.ipv6 = true;
    assert_eq!(addrs(&world), only("fd77::2"));
    // Without the slice of the other family, the one that there is.
    world.gone::<EndpointSlice>("s6");
    assert_eq!(addrs(&world), only("10.77.0.2"));
}

#[test]
fn an_endpoint_nearby_can_count_for_more() {
    let mut world = World::new();
    shop(&mut world);
    let weight = |world: &World, node: &str| {
        let service = ObjectName::new("shop", "store");
        let of = EndpointsOf { service, port: 80, hostname: None, client_node: Some(node.to_owned()) };
        let EndpointsView::Endpoints(Endpoints::Known(all)) = world.view(&of) else { panic!() };
        all[0].weight
    };
    assert_eq!(weight(&world, "weft"), 10_000);
    world.config.zone_weights = true;
    assert_eq!(weight(&world, "weft"), 100_000);
    assert_eq!(weight(&world, "elsewhere"), 10_000);
}

/// Of the Service, else of its namespace, else the default list; and what a ServiceProfile adds.
#[test]
fn opaque_ports_of_a_service() {
    let mut world = World::new();
    let mut ports = service("store", "10.78.0.2");
    ports["spec"]["ports"] = json!([{"name": "http", "port": 80}, {"name": "sql", "port": 3306}]);
    shop(&mut world).put::<Service>(ports.clone());
    let opaque =
        |world: &World| (world.profile("10.78.0.2:80").opaque, world.profile("10.78.0.2:3306").opaque);
    assert_eq!(opaque(&world), (false, true));
    let annotation = |ports: &str| json!({"config.linkerd.io/opaque-ports": ports});
    world.put::<Namespace>(json!({"metadata": {"name": "shop", "annotations": annotation("80")}}));
    assert_eq!(opaque(&world), (true, false));
    ports["metadata"]["annotations"] = annotation("sql");
    world.put::<Service>(ports);
    assert_eq!(opaque(&world), (false, true));
    world.put::<ServiceProfile>(json!({"metadata": {"name": "store.shop.svc.cluster.local",
        "namespace": "shop"}, "spec": {"routes": [], "opaquePorts": ["80"]}}));
    assert_eq!(opaque(&world), (true, true));
}

/// B05: a Service, or a namespace, whose endpoints must have an identity: without one they are given out with a name that
/// nobody can prove, and never as plaintext.
#[test]
fn b05_an_endpoint_without_the_identity_that_is_required_is_nobodys() {
    let mut world = World::new();
    world
        .put::<Service>(service("store", "10.78.0.2"))
        .put::<Pod>(pod("store-1", "10.77.0.2", true))
        .put::<Pod>(pod("store-2", "10.77.0.3", false))
        .put::<EndpointSlice>(slice("s", "store", &[("store-1", "10.77.0.2"), ("store-2", "10.77.0.3")]));
    let annotated = |value: &str| {
        let mut annotated = service("store", "10.78.0.2");
        annotated["metadata"]["annotations"] = json!({"weft.dev/require-identity": value});
        annotated
    };
    let namespace = |value: &str| {
        json!({"metadata": {"name": "shop",
        "annotations": {"weft.dev/require-identity": value}}})
    };
    let ids = |world: &World| -> Vec<Option<String>> {
        let all = world.endpoints("store", 80);
        all.iter().map(|e| e.identity.id().map(ToString::to_string)).collect()
    };
    let meshed = || Some(STORE.to_owned());
    let by_service = || Some("store.shop.service.identity-required.invalid".to_owned());
    let by_namespace = || Some("shop.namespace.identity-required.invalid".to_owned());
    assert_eq!(ids(&world), [meshed(), None]);
    world.put::<Service>(annotated("true"));
    assert_eq!(ids(&world), [meshed(), by_service()]);
    assert_eq!(world.endpoints("store", 80)[1].transport_port, None);
    // What is no answer asks for it.
    world.put::<Service>(annotated("ture"));
    assert_eq!(ids(&world), [meshed(), by_service()]);
    world.put::<Service>(annotated("false")).put::<Namespace>(namespace("true"));
    assert_eq!(ids(&world), [meshed(), None], "the Service's own word counts for more");
    world.put::<Service>(service("store", "10.78.0.2"));
    assert_eq!(ids(&world), [meshed(), by_namespace()]);
    // By address, too.
    assert_eq!(world.identity("10.77.0.3:8080"), by_namespace());
    assert_eq!(world.identity("10.77.0.2:8080"), meshed());
    world.put::<Namespace>(namespace("false"));
    assert_eq!(ids(&world), [meshed(), None]);
}
