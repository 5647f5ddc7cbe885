//! Endpoints follow pods, and those that people write lead proxies through slices.

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::{CEILING, Cluster, until, until_gone};

#[tokio::test]
async fn endpoints_follow_the_pods_of_a_service() {
    let cluster = Cluster::start().await;
    let service = json!({ "metadata": { "name": "web", "labels": { "l": "v" } }, "spec": {
        "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] } });
    cluster.create::<Service>("default", service).await;
    let all: Api<Endpoints> = cluster.api("default");
    let empty = until(&all, "web", |found| found.subsets.is_none()).await;
    assert_eq!(empty.labels()["endpoints.kubernetes.io/managed-by"], "endpoint-controller");
    assert_eq!(empty.labels()["l"], "v");

    let pod = json!({ "metadata": { "name": "p", "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "image": "c:1" }] } });
    cluster.create::<Pod>("default", pod).await;
    let found = until(&all, "web", |found| found.subsets.is_some()).await;
    let subset = &found.subsets.unwrap()[0];
    assert_eq!(subset.ports.as_ref().unwrap()[0].port, 8080);
    let addresses = subset.addresses.as_ref().unwrap();
    assert_eq!(addresses[0].target_ref.as_ref().unwrap().name.as_deref(), Some("p"));

    // What others do to it does not last, and it goes with its Service.
    all.delete("web", &DeleteParams::default()).await.unwrap();
    until(&all, "web", |again| again.uid() != found.metadata.uid && again.subsets.is_some()).await;
    cluster.api::<Pod>("default").delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    until(&all, "web", |found| found.subsets.is_none()).await;
    cluster.api::<Service>("default").delete("web", &DeleteParams::default()).await.unwrap();
    until_gone(&all, "web").await;
}

#[tokio::test]
async fn endpoints_that_people_write_become_slices() {
    let cluster = Cluster::start().await;
    let endpoints = json!({ "metadata": { "name": "out" }, "subsets": [
        { "addresses": [{ "ip": "192.0.2.7" }], "ports": [{ "port": 5432 }] }] });
    let written = cluster.create::<Endpoints>("default", endpoints).await.subsets.unwrap();
    assert_eq!(written[0].ports.as_ref().unwrap()[0].protocol.as_deref(), Some("TCP"));
    let slices: Api<EndpointSlice> = cluster.api("default");
    let own = ListParams::default().labels("kubernetes.io/service-name=out");
    let listed = async |wanted: usize| {
        let found = async {
            loop {
                let found = slices.list(&own).await.unwrap().items;
                if found.len() == wanted {
                    return found;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(CEILING, found).await.unwrap_or_else(|_| panic!("never {wanted} slices"))
    };
    // Nobody's yet.
    listed(0).await;
    let service = json!({ "metadata": { "name": "out" }, "spec": { "ports": [{ "port": 5432 }] } });
    cluster.create::<Service>("default", service).await;
    let slice = listed(1).await.remove(0);
    assert_eq!(slice.endpoints[0].addresses, ["192.0.2.7"]);
    assert_eq!(slice.ports.as_ref().unwrap()[0].port, Some(5432));

    let all: Api<Endpoints> = cluster.api("default");
    let moved = Patch::Merge(
        json!({ "subsets": [{ "addresses": [{ "ip": "192.0.2.8" }], "ports": [{ "port": 5432 }] }] }),
    );
    all.patch("out", &PatchParams::default(), &moved).await.unwrap();
    until(&slices, &slice.name_any(), |slice| slice.endpoints[0].addresses == ["192.0.2.8"]).await;
    let wrong = Patch::Merge(json!({ "subsets": [{ "addresses": [{ "ip": "here" }] }] }));
    let refused = all.patch("out", &PatchParams::default(), &wrong).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("subsets[0].addresses[0].ip: Invalid value: \"here\": must be a valid IP")
    );
    // A selector hands the slices over to those who watch pods.
    let selecting = Patch::Merge(json!({ "spec": { "selector": { "app": "none" } } }));
    let services: Api<Service> = cluster.api("default");
    services.patch("out", &PatchParams::default(), &selecting).await.unwrap();
    until_gone(&slices, &slice.name_any()).await;
}
