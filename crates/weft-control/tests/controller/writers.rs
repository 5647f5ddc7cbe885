//! What the replica that leads writes into the API.

use super::*;

/// An ExternalWorkload becomes an endpoint of the Service that selects it, as soon as it is ready.
#[tokio::test]
async fn external_workloads_get_slices() {
    let mesh = Mesh::start().await;
    mesh.shop().await;
    mesh.create(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "vm", "namespace": mesh.shop},
            "spec": {"selector": {"app": "vm"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}),
    )
    .await;
    let mut client = DestinationClient::new(mesh.channel(mesh.controller.addresses.destination).await);
    mesh.create(json!({"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
        "metadata": {"name": "vm-1", "namespace": mesh.shop, "labels": {"app": "vm"}},
        "spec": {"meshTLS": {"identity": "spiffe://root.example/vm", "serverName": "vm.example"},
            "ports": [{"name": "http", "port": 8080}], "workloadIPs": [{"ip": "192.0.2.7"}]}}))
        .await;
    let slices = &mesh.path("discovery.k8s.io/v1", "endpointslices");
    let ready = |list: &Value, ready: bool| {
        let items = list["items"].as_array().unwrap();
        items.iter().any(|slice| {
            slice["endpoints"][0]["targetRef"]["name"] == "vm-1"
                && slice["endpoints"][0]["conditions"]["ready"] == ready
        })
    };
    mesh.until(slices, |list| ready(list, false)).await;
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Up",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    mesh.patch(&mesh.path("workload.linkerd.io/v1beta1", "externalworkloads/vm-1/status"), status).await;
    mesh.until(slices, |list| ready(list, true)).await;
    let get = GetDestination { path: format!("{}:80", mesh.dns("vm")), ..Default::default() };
    let mut updates = client.get(get).await.unwrap().into_inner();
    loop {
        if let update::Update::Add(set) = next(&mut updates).await.update.unwrap() {
            assert_eq!(identity_of(&set.addrs[0]).as_deref(), Some("spiffe://root.example/vm"));
            break;
        }
    }

    // Its own proxy gets policies by its name, as a pod's does.
    let mut policies = InboundServerPoliciesClient::new(mesh.channel(mesh.controller.addresses.policy).await);
    let workload = json!({"ns": mesh.shop, "external_workload": "vm-1"}).to_string();
    let mut policy = policies.watch_port(PortSpec { workload, port: 8080 }).await.unwrap().into_inner();
    assert_eq!(next(&mut policy).await.labels["name"], "all-unauthenticated");
    mesh.create(json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
        "metadata": {"name": "vm-http", "namespace": mesh.shop},
        "spec": {"externalWorkloadSelector": {"matchLabels": {"app": "vm"}}, "port": "http"}}))
        .await;
    assert_eq!(next(&mut policy).await.labels["name"], "vm-http");
    let refused = mesh
        .refused(json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
            "metadata": {"name": "both", "namespace": mesh.shop},
            "spec": {"podSelector": {}, "externalWorkloadSelector": {}, "port": 80}}))
        .await;
    assert!(refused.contains("oneOf"), "{refused}");
    let (status, said) = mesh.admin(&format!("/weft/policy?external={}/vm-1&port=8080", mesh.shop)).await;
    assert!(status == 200 && said.contains("vm-http"), "{status} {said}");
    let namespace = format!("/apis/coordination.k8s.io/v1/namespaces/{}", mesh.config.control_namespace);
    let lease = format!("{namespace}/leases/linkerd-destination-endpoint-write");
    mesh.until(&lease, |lease| lease["spec"]["holderIdentity"] != "").await;
    mesh.controller.stop().await;
}

/// A machine's token proves its ServiceAccount and nothing else, for as long as the Secret is there that it is bound to.
#[tokio::test]
async fn a_machines_token_is_for_its_own_account_and_can_be_revoked() {
    let mesh = Mesh::start().await;
    let (store, other) = (mesh.identity("store"), mesh.identity("other"));
    mesh.shop().await;
    let roots = mesh.identity.trust_roots.clone();
    let secret = mesh
        .create(json!({"apiVersion": "v1", "kind": "Secret", "type": "weft.dev/external-workload",
            "metadata": {"name": "vm-weft-token", "namespace": mesh.shop}}))
        .await;
    let answer = api::create(
        &mesh.client,
        &mesh.path("v1", "serviceaccounts/store/token"),
        &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
            "audiences": ["identity.l5d.io"], "boundObjectRef": {"apiVersion": "v1", "kind": "Secret",
                "name": "vm-weft-token", "uid": secret["metadata"]["uid"]}}}),
    )
    .await
    .unwrap();
    // As a file has it that somebody wrote.
    let token = format!("{}\n", answer["status"]["token"].as_str().unwrap());
    mesh.certify(&token, &store, &roots).await.unwrap();
    for (identity, why) in [
        ("spiffe://root.example/vm", "a SPIFFE ID is proved by a SPIRE agent"),
        (other.as_str(), "its own ServiceAccount only"),
    ] {
        let refused = mesh.certify(&token, identity, &roots).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
        assert!(refused.message().contains(why), "{}", refused.message());
    }
    api::delete(&mesh.client, &mesh.path("v1", "secrets/vm-weft-token")).await.unwrap();
    // A real API server remembers for a few seconds what it said of a token.
    let refused = timeout(LIMIT, async {
        loop {
            match mesh.certify(&token, &store, &roots).await {
                Ok(_) => tokio::time::sleep(LOOK).await,
                Err(refused) => break refused,
            }
        }
    });
    let refused = refused.await.expect("a token whose Secret is gone is refused");
    assert!(refused.message().contains("invalidated"), "{}", refused.message());
    mesh.controller.stop().await;
}

/// F2: the change that explains the failure is still known after the controller was killed.
#[tokio::test]
async fn the_journal_outlives_the_controller() {
    let mesh = Mesh::start().await;
    mesh.shop().await;
    let shop = format!("/api/v1/namespaces/{}", mesh.shop);
    mesh.patch(&shop, json!({"metadata": {"labels": {"mesh": "yes"}}})).await;
    mesh.patch(&shop, json!({"metadata": {"labels": {"mesh": null}}})).await;
    mesh.create(json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": mesh.shop}, "spec": {"replicas": 0,
            "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "web:1"}]}}}}))
        .await;
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "web:2"}]}}}});
    mesh.patch(&mesh.path("apps/v1", "deployments/web"), image).await;
    let path = &mesh.control("configmaps/weft-journal");
    let written = timeout(LIMIT, async {
        loop {
            if let Ok(map) = api::get::<Value>(&mesh.client, path).await {
                let text = map["data"]["entries.json"].as_str().unwrap_or_default().to_owned();
                if text.contains("images web:1 to web:2") && text.contains("label mesh removed") {
                    return;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    });
    assert!(written.await.is_ok(), "{:#?}", mesh.controller.store.journal.find("", 0));
    let account = mesh.second().await;
    let Mesh { controller, mut config, shop, cluster: _cluster, .. } = mesh;
    drop(controller);

    config.ports = Ports { destination: 0, policy: 0, identity: 0, webhook: 0, admin: 0 };
    let next_one = Controller::bind(config, account).await.unwrap();
    let known = timeout(LIMIT, async {
        while !next_one
            .store
            .journal
            .find(&format!("Namespace {shop}"), 0)
            .iter()
            .any(|e| e.text.contains("(was \"yes\")"))
        {
            tokio::task::yield_now().await;
        }
    });
    assert!(known.await.is_ok());
    next_one.stop().await;
}
