//! Commands that show: get, describe, explain, logs.

use serde_json::{Value, json};

use super::{Kubectl, definition, missing};

/// A deployment of two, a service for it, and a policy.
fn application() -> Value {
    let template = json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [
        { "name": "web", "image": "web:1", "ports": [{ "name": "http", "containerPort": 8080 }] },
        { "name": "aside", "image": "aside:1" },
    ] } });
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": {
            "replicas": 2, "selector": { "matchLabels": { "app": "web" } }, "template": template } },
        { "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" }, "spec": {
            "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80, "targetPort": "http" }] } },
        { "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "web" }, "spec": {
            "podSelector": { "matchLabels": { "app": "web" } },
            "ingress": [{ "from": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }], "ports": [{ "port": "http" }] }] } },
    ] })
}

async fn with_application() -> Kubectl {
    let kubectl = Kubectl::with_controllers().await;
    kubectl.ok("apply -f -", &application()).await;
    kubectl.ok("rollout status deployment/web --timeout=30s", &Value::Null).await;
    // The slice follows its pods a moment later.
    let ready = "wait endpointslice -l kubernetes.io/service-name=web --for=jsonpath={.endpoints[1].conditions.ready}=true --timeout=30s";
    kubectl.ok(ready, &Value::Null).await;
    kubectl
}

/// Columns may be wider or narrower: what stands in them is compared.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_described() {
    if missing() {
        return;
    }
    let kubectl = with_application().await;
    let describe = async |what: &str| words(&kubectl.ok(&format!("describe {what}"), &Value::Null).await);
    for (what, parts) in [
        (
            "pod -l app=web",
            &["Controlled By: ReplicaSet/web-", "Image: web:1", "Port: 8080/TCP", "kube-api-access-"][..],
        ),
        (
            "service web",
            &["Type: ClusterIP", "TargetPort: http/TCP", ":8080", "Internal Traffic Policy: Cluster"],
        ),
        (
            "deployment web",
            &["2 desired | 2 updated | 2 total | 2 available", "ScalingReplicaSet", "from 0 to 2"],
        ),
        ("replicaset -l app=web", &["Controlled By: Deployment/web", "2 Running", "SuccessfulCreate"]),
        ("namespace default", &["kubernetes.io/metadata.name=default", "Status: Active"]),
        (
            "endpointslice",
            &["kubernetes.io/service-name=web", "AddressType: IPv4", "http 8080 TCP", "TargetRef: Pod/web-"],
        ),
        (
            "networkpolicy web",
            &["PodSelector: app=web", "To Port: http/TCP", "CIDR: 10.0.0.0/8", "Policy Types: Ingress"],
        ),
        ("serviceaccount default", &["Name: default"]),
    ] {
        let shown = describe(what).await;
        for part in parts {
            assert!(shown.contains(part), "{what}: no {part:?} in {shown}");
        }
    }

    // A custom object, with an event about it.
    kubectl.ok("create -f -", &definition()).await;
    kubectl
        .ok("wait --for=condition=established crd/widgets.golden.example --timeout=20s", &Value::Null)
        .await;
    let widget = json!({ "apiVersion": "golden.example/v1", "kind": "Widget", "metadata": { "name": "w" }, "spec": { "size": 1 } });
    kubectl.ok("create -f -", &widget).await;
    let uid = kubectl.ok("get widget w -o jsonpath={.metadata.uid}", &Value::Null).await;
    let event = json!({ "apiVersion": "v1", "kind": "Event", "metadata": { "name": "w.1" }, "type": "Normal",
        "involvedObject": { "apiVersion": "golden.example/v1", "kind": "Widget", "name": "w", "namespace": "default", "uid": uid },
        "reason": "Polished", "message": "It shines.", "source": { "component": "polisher" },
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z", "count": 1 });
    kubectl.ok("create -f -", &event).await;
    let shown = describe("widget w").await;
    assert!(shown.contains("Size: 1") && shown.contains("Polished"), "{shown}");
    assert!(
        words(&kubectl.ok("events --for widget/w", &Value::Null).await)
            .contains("Polished Widget/w It shines.")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_shown_in_every_form() {
    if missing() {
        return;
    }
    let kubectl = with_application().await;
    let get = async |what: &str| words(&kubectl.ok(&format!("get {what}"), &Value::Null).await);
    assert!(get("pods -o wide").await.contains("NOMINATED NODE READINESS GATES"));
    assert!(get("deploy web -o wide").await.contains("web,aside web:1,aside:1 app=web"));
    assert!(get("svc web -o wide").await.ends_with("app=web"));
    assert!(get("deployment web -o yaml").await.contains("kind: Deployment"));
    assert_eq!(get("deployment web -o jsonpath={.spec.template.spec.containers[*].name}").await, "web aside");
    assert_eq!(get("deployment web -o go-template={{.spec.replicas}}").await, "2");
    assert_eq!(get("deployment -o custom-columns=N:.metadata.name,R:.spec.replicas").await, "N R web 2");
    assert_eq!(get("deploy,svc -l nothing=such -o name").await, "");
    assert_eq!(get("service --sort-by=.spec.ports[0].port -o name").await, "service/web");
    assert_eq!(get("pods -l app=web,tier!=x -o name").await.matches("pod/web-").count(), 2);
    assert_eq!(
        get("pods --field-selector status.phase=Running,spec.nodeName=weft -o name")
            .await
            .matches("pod/")
            .count(),
        2
    );
    assert_eq!(get("pods --field-selector status.phase!=Running -o name").await, "");
    assert!(get("pods --show-labels").await.contains("app=web,pod-template-hash="));
    assert!(get("pods -L app").await.contains("APP"));
    assert!(get("all").await.contains("replicaset.apps/web-"));
    assert!(get("ns default -o jsonpath={.status.phase}").await.contains("Active"));
    kubectl.fails("get pods --field-selector spec.odd=1", &Value::Null, "field label not supported").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_of_built_in_kinds_are_explained() {
    if missing() {
        return;
    }
    let kubectl = Kubectl::start().await;
    let explain = async |what: &str| words(&kubectl.ok(&format!("explain {what}"), &Value::Null).await);
    for (what, parts) in [
        ("pod", &["KIND: Pod VERSION: v1", "spec <PodSpec>", "metadata <ObjectMeta>"][..]),
        (
            "pod.spec.containers",
            &["FIELD: containers <[]Container>", "image <string>", "name <string> -required-"],
        ),
        ("pods.spec.containers.livenessProbe.httpGet.port", &["<IntOrString>"]),
        ("deploy", &["GROUP: apps KIND: Deployment VERSION: v1", "spec <DeploymentSpec>"]),
        (
            "svc.spec.ports",
            &["FIELD: ports <[]ServicePort>", "port <integer> -required-", "targetPort <IntOrString>"],
        ),
        ("deployment.spec.template.spec.nodeSelector", &["<map[string]string>"]),
        (
            "lease.spec.renewTime",
            &["GROUP: coordination.k8s.io", "FIELD: renewTime <string>", "when the current holder"],
        ),
        ("networkpolicy.spec.ingress.from.ipBlock", &["cidr <string> -required-", "except <[]string>"]),
        ("crd.spec.versions.schema", &["openAPIV3Schema <JSONSchemaProps>"]),
        (
            "svc --recursive",
            &["loadBalancer <LoadBalancerStatus>", "nodePort <integer>", "clientIP <ClientIPConfig>"],
        ),
    ] {
        let shown = explain(what).await;
        for part in parts {
            assert!(shown.contains(part), "{what}: no {part:?} in {shown}");
        }
    }
    // What it is for, too, not the type alone.
    assert!(explain("pod.spec.hostNetwork").await.contains("network"));
    kubectl.fails("explain pod.spec.odd", &Value::Null, "field \"odd\" does not exist").await;
    // Unknown fields are refused by the server, as before.
    let odd = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" }, "spec": { "odd": 1, "ports": [{ "port": 1 }] } });
    kubectl.fails("apply --validate=strict -f -", &odd, "unknown field \"spec.odd\"").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_and_commands_reach_containers() {
    if missing() {
        return;
    }
    let kubectl = with_application().await;
    let run = async |arguments: &str| kubectl.ok(arguments, &Value::Null).await;
    assert!(run("logs deployment/web -c web --tail=1").await.starts_with("web line 3\n"));
    let all = run("logs -l app=web --all-containers --prefix --tail=1").await;
    assert_eq!(all.matches("/aside] aside line 3").count(), 2, "{all}");
    assert!(run("logs deployment/web --all-pods --tail=1").await.contains("web line 3"));
    kubectl.fails("logs deployment/web -c none", &Value::Null, "container none is not valid").await;
    assert!(run("exec deployment/web -c aside -- cat").await.contains("cat\n"));
    let (ok, text) = kubectl.run("exec -i deployment/web -c web -- cat 3", "typed").await;
    assert!(!ok && text.contains("typed") && text.contains("exit code 3"), "{text}");
    assert!(run("attach deployment/web -c web").await.contains("attached\n"));
}
