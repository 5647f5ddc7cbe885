//! `weft external-workload`: what it prints, and when it refuses.

use crate::harness::{Cluster, create, shown};
use serde_json::{Value, json};
use weft_control::{
    bootstrap::{IdentityFiles, bootstrap_objects},
    config::ControllerConfig,
};
use weft_kube::api;

const COLLECTION: &str = "/apis/workload.linkerd.io/v1beta1/namespaces/shop/externalworkloads";
const SECRET: &str = "/api/v1/namespaces/shop/secrets/vm-weft-token";

fn external(name: &str, identity: &str) -> Value {
    json!({"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"meshTLS": {"identity": identity, "serverName": "vm.shop.example"},
            "ports": [{"name": "http", "port": 8080}], "workloadIPs": [{"ip": "192.0.2.7"}]}})
}

#[test]
fn a_machine_gets_a_token_for_its_own_account_and_nobody_elses() {
    const ACCOUNT: &str = "vm.shop.serviceaccount.identity.linkerd.cluster.local";
    let cluster = Cluster::in_memory();
    let refused = |args: &[&str]| {
        let output = cluster.weft(&[&["external-workload"], args].concat(), "");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", shown(&output));
        assert!(output.stdout.is_empty(), "{args:?}: {}", shown(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let nothing = refused(&["token", "vm", "-n", "shop"]);
    assert!(nothing.contains("CFG-010"), "{nothing}");

    let config = ControllerConfig::new("127.0.0.1".parse().unwrap(), vec!["10.0.0.0/8".parse().unwrap()]);
    let identity = IdentityFiles::generate(&config).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async {
        let client = api::connect(Some(cluster.kubeconfig())).await.unwrap();
        let webhooks = |object: &Value| object["kind"].as_str().unwrap().ends_with("WebhookConfiguration");
        for object in bootstrap_objects(&config, &identity).iter().filter(|object| !webhooks(object)) {
            create(&client, object).await;
        }
        create(&client, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}))
            .await;
        for object in [
            external("vm", ACCOUNT),
            external("foreign", "admin.prod.serviceaccount.identity.linkerd.cluster.local"),
            external("spire", "spiffe://root.example/vm"),
        ] {
            create(&client, &object).await;
        }
        client
    });
    let missing = refused(&["token", "wm", "-n", "shop"]);
    assert!(missing.contains("no ExternalWorkload wm"), "{missing}");
    let foreign = refused(&["env", "foreign", "-n", "shop"]);
    assert!(foreign.contains("IDN-010") && foreign.contains("namespace \"prod\""), "{foreign}");
    assert!(refused(&["token", "foreign", "-n", "shop"]).contains("IDN-010"));
    assert!(refused(&["token", "spire", "-n", "shop"]).contains("SPIRE"));
    let short = refused(&["token", "vm", "-n", "shop", "--duration", "5m"]);
    assert!(short.contains("CFG-005") && short.contains("10m"), "{short}");
    let nobody = refused(&["token", "vm", "-n", "shop"]);
    assert!(nobody.contains("no ServiceAccount vm"), "{nobody}");
    let spire = cluster.ok(&["external-workload", "env", "spire", "-n", "shop"]);
    assert!(spire.contains("IDENTITY_SPIRE_WORKLOAD_API_ADDRESS='unix:///"), "{spire}");

    let uid = |path: &str| {
        let object: Value = runtime.block_on(api::get(&client, path)).unwrap();
        object["metadata"]["uid"].clone()
    };
    runtime.block_on(async {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "vm", "namespace": "shop"}});
        create(&client, &account).await;
    });
    let token = cluster.ok(&["external-workload", "token", "vm", "-n", "shop"]);
    assert_eq!(token.trim().split('.').count(), 3, "{token}");
    let first = uid(SECRET);
    cluster.ok(&["external-workload", "token", "vm", "-n", "shop"]);
    assert_eq!(uid(SECRET), first, "one Secret for all tokens of a machine");
    // The next machine of that name voids the tokens of the last one.
    runtime.block_on(async {
        api::delete(&client, &format!("{COLLECTION}/vm")).await.unwrap();
        create(&client, &external("vm", ACCOUNT)).await;
    });
    cluster.ok(&["external-workload", "token", "vm", "-n", "shop"]);
    assert_ne!(uid(SECRET), first);
}
