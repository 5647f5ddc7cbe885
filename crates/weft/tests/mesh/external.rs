//! `weft up --kubeconfig`: a node of an API that is not the mesh's own: a real one if `WEFT_TEST_KUBECONFIG` names it,
//! which must have a controller-manager; else the in-memory one, in this process.

use crate::{
    api,
    harness::{TestMesh, shown},
    who::{User, Who},
};
use serde_json::Value;
use std::{path::Path, process::Command};
use weft_kube::api::get;

#[test]
fn the_shop_runs_on_an_api_that_was_there_and_leaves_it_as_it_was() {
    match User::new(Who::Tester) {
        Ok(user) if user.is_rootless() => {
            eprintln!(
                "SKIPPED: external: only root can make the link by which the API server reaches the mesh"
            );
            return;
        }
        Ok(_) => {}
        Err(why) => {
            eprintln!("SKIPPED: external: {why}");
            return;
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let cluster = runtime.block_on(api::Cluster::whole_with_controllers());
    let Some(cluster) = cluster else {
        eprintln!("SKIPPED: there is no controller-manager, which makes pods of Deployments");
        return;
    };
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/shop");
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let args = ["--kubeconfig", &kubeconfig, &example.display().to_string()];
    // It returns when every pod is ready, and the job has filled the store through the mesh.
    let Some(mesh) = TestMesh::up_with("external", &args, None) else { return };
    let read = |path: &str| runtime.block_on(get::<Value>(&cluster.client, path));
    let pods = read("/api/v1/namespaces/shop/pods").expect("pods");
    let pods = pods["items"].as_array().expect("a list");
    assert!(!pods.is_empty());
    for pod in pods {
        assert_eq!(pod["spec"]["nodeName"], "weft", "{pod:#}");
        let containers = pod["spec"]["initContainers"].as_array().expect("what was injected");
        assert!(containers.iter().any(|c| c["name"] == "linkerd-proxy"), "{pod:#}");
    }
    let stand_in =
        read("/api/v1/namespaces/linkerd/pods/weft-controller").expect("the controller's stand-in");
    assert_eq!(stand_in["status"]["containerStatuses"][0]["ready"], true, "{stand_in:#}");

    // A second one would run the same pods.
    let second = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["up", "--detach", "--name", "second"])
        .args(args)
        .output();
    let second = shown(&second.expect("weft runs"));
    assert!(second.contains("NOD-005"), "{second}");

    let down = mesh.weft(&["down"]);
    assert!(down.status.success(), "{}", shown(&down));
    for gone in [
        "/api/v1/nodes/weft",
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/linkerd-proxy-injector-webhook-config",
    ] {
        assert_eq!(read(gone).err().and_then(|error| error.code()), Some(404), "{gone}");
    }
    let of_the_node = "/api/v1/pods?fieldSelector=spec.nodeName%3Dweft";
    assert_eq!(read(of_the_node).expect("pods")["items"], Value::Array(Vec::new()));
    // Its controller ends the namespace, when it comes to it.
    for namespace in ["shop", "linkerd"] {
        let left = read(&format!("/api/v1/namespaces/{namespace}"));
        let ending = left.is_ok_and(|left| left["metadata"]["deletionTimestamp"].is_null());
        assert!(!ending, "{namespace} is still there");
    }
}
