//! Policies of ExternalWorkloads are those of pods, but for what only an injector or kubelet does.

use super::*;
use weft_kube::policy::external_workload::ExternalWorkload;

fn machine(annotations: Value) -> Value {
    json!({"metadata": {"name": "vm", "namespace": "shop", "labels": {"app": "store"}, "annotations": annotations},
        "spec": {"meshTLS": {"identity": "spiffe://root.example/vm", "serverName": "vm.example"},
            "ports": [{"name": "http", "port": 8080}], "workloadIPs": [{"ip": "192.0.2.7"}]}})
}

fn selecting_machines(name: &str, spec: Value) -> Value {
    let mut server = server(name, spec);
    let selector = server["spec"].as_object_mut().unwrap().remove("podSelector").unwrap();
    server["spec"]["externalWorkloadSelector"] = selector;
    server
}

fn policy_of(world: &World, workload: WorkloadName, port: u16) -> Option<Arc<ServerPolicy>> {
    world.view(&InboundOf { workload, port })
}

fn vm() -> WorkloadName {
    WorkloadName::External(ObjectName::new("shop", "vm"))
}

#[test]
fn a_machine_has_the_servers_that_select_machines() {
    let mut world = World::new();
    assert!(policy_of(&world, vm(), 8080).is_none());
    world
        .put::<ExternalWorkload>(machine(json!({})))
        // A pod of the same name and labels is another workload.
        .put::<Pod>(pod("vm", "10.77.0.2", true))
        .put::<Server>(server("of-pods", json!({"proxyProtocol": "HTTP/1"})))
        .put::<Server>(selecting_machines("of-machines", json!({"proxyProtocol": "gRPC"})));
    let pod = WorkloadName::Pod(ObjectName::new("shop", "vm"));
    for (workload, server) in [(pod, "of-pods"), (vm(), "of-machines")] {
        // By the name of a port, which each has in its own way.
        assert_eq!(policy_of(&world, workload.clone(), 8080).unwrap().meta.name(), server);
        assert_eq!(policy_of(&world, workload, 8081).unwrap().meta.name(), "all-unauthenticated");
    }
    let served = policy_of(&world, vm(), 8080).unwrap();
    assert!(matches!(&served.protocol, Protocol::Grpc(http) if http.routes.is_empty()));
    // Who may call is decided as for pods, with the same reasons.
    let attempt = |client_id: Option<&str>| Attempt {
        workload: vm(),
        port: 8080,
        client_ip: "10.77.0.9".parse().unwrap(),
        client_id: client_id.map(|id| Identity::parse(id).unwrap()),
        request: None,
    };
    let decide = |world: &World, id| decide(&Reader::new(&world.index), &world.config, &attempt(id)).unwrap();
    assert_eq!(decide(&world, Some(STORE)).code.as_deref(), Some("POL-001"));
    world
        .put::<MeshTlsAuthentication>(json!({"metadata": {"name": "store", "namespace": "shop"},
            "spec": {"identities": [STORE]}}))
        .put::<AuthorizationPolicy>(policy(
            "allow-store",
            reference("Server", "of-machines"),
            json!([reference("MeshTLSAuthentication", "store")]),
        ));
    assert!(decide(&world, Some(STORE)).allowed);
    assert!(!decide(&world, None).allowed);
    world.gone::<Server>("of-machines");
    assert_eq!(policy_of(&world, vm(), 8080).unwrap().meta.name(), "all-unauthenticated");
    world.gone::<ExternalWorkload>("vm");
    assert!(policy_of(&world, vm(), 8080).is_none());
}

/// The injector copies a namespace's annotations into pods; nobody does that for a machine.
#[test]
fn a_machine_goes_by_its_namespaces_annotations() {
    let mut world = World::new();
    let namespace = |annotations: Value| json!({"metadata": {"name": "shop", "annotations": annotations}});
    world.put::<ExternalWorkload>(machine(json!({})));
    let name = |world: &World| policy_of(world, vm(), 3000).unwrap().meta.name().to_owned();
    assert_eq!(name(&world), "all-unauthenticated");
    world.put::<Namespace>(namespace(json!({"config.linkerd.io/default-inbound-policy": "deny",
        "config.linkerd.io/opaque-ports": "3000"})));
    assert_eq!(name(&world), "deny");
    assert_eq!(policy_of(&world, vm(), 3000).unwrap().protocol, Protocol::Opaque);
    assert!(world.profile("192.0.2.7:3000").opaque);
    world.put::<ExternalWorkload>(machine(json!({
        "config.linkerd.io/default-inbound-policy": "cluster-authenticated",
        "config.linkerd.io/opaque-ports": ""})));
    assert_eq!(name(&world), "cluster-authenticated");
    assert!(matches!(policy_of(&world, vm(), 3000).unwrap().protocol, Protocol::Detect { .. }));
    assert!(!world.profile("192.0.2.7:3000").opaque);
    world.put::<ExternalWorkload>(machine(json!({"config.linkerd.io/default-inbound-policy": "all-wrong"})));
    assert_eq!(name(&world), "deny");
}

/// A port that requires an identity turns whatever its default policy allows into the authenticated kind of it.
#[test]
fn required_identities() {
    const REQUIRE: &str = "config.linkerd.io/proxy-require-identity-inbound-ports";
    let mut world = World::new();
    let annotated = |ports: &str, default: &str| json!({REQUIRE: ports, "config.linkerd.io/default-inbound-policy": default});
    for (ports, default, port, expected) in [
        ("8080", "all-unauthenticated", 8080, "all-authenticated"),
        ("8000-8100", "cluster-unauthenticated", 8080, "cluster-authenticated"),
        ("http", "all-unauthenticated", 8080, "all-authenticated"),
        ("8080", "all-unauthenticated", 8081, "all-unauthenticated"),
        ("8080", "all-authenticated", 8080, "all-authenticated"),
        ("8080", "deny", 8080, "deny"),
        ("8080", "audit", 8080, "audit"),
    ] {
        let mut on_pod = pod("store-1", "10.77.0.2", true);
        on_pod["metadata"]["annotations"] = annotated(ports, default);
        world.put::<Pod>(on_pod).put::<ExternalWorkload>(machine(annotated(ports, default)));
        for workload in [WorkloadName::Pod(ObjectName::new("shop", "store-1")), vm()] {
            let policy = policy_of(&world, workload, port).unwrap();
            assert_eq!(policy.meta.name(), expected, "{ports} {default} {port}");
        }
    }
    // A Server says more exactly who may call, and decides alone.
    let server = server("s", json!({"accessPolicy": "all-unauthenticated"}));
    world.put::<Server>(server);
    assert!(world.get("store-1", "10.77.0.9", None, "/").is_ok());
    // What the installation requires holds where no annotation says otherwise.
    let mut world = World::new();
    world.config.injection.require_identity_ports = "8080".to_owned();
    world.put::<Pod>(pod("store-1", "10.77.0.2", true));
    assert_eq!(world.get("store-1", "10.77.0.9", None, "/"), Err("POL-002".to_owned()));
    assert!(world.get("store-1", "10.77.0.9", Some(STORE), "/").is_ok());
}
