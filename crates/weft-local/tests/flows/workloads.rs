//! Commands that change workloads, and wait for them.

use serde_json::{Value, json};

use super::{CEILING, Kubectl, missing};
use tokio::io::{AsyncBufReadExt, BufReader};

fn web(image: &str) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": {
        "replicas": 2, "selector": { "matchLabels": { "app": "web" } },
        "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "web", "image": image }] } },
    } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployments_are_rolled_out_and_back() {
    if missing() {
        return;
    }
    let kubectl = Kubectl::with_controllers().await;
    let run = async |arguments: &str| kubectl.ok(arguments, &Value::Null).await;
    let settled = async || {
        assert!(run("rollout status deployment/web --timeout=30s").await.contains("successfully rolled out"))
    };
    kubectl.ok("apply -f -", &web("web:1")).await;
    settled().await;
    run("annotate deployment web kubernetes.io/change-cause=first").await;
    assert_eq!(run("set image deployment/web web=web:2").await, "deployment.apps/web image updated\n");
    settled().await;
    assert_eq!(
        run("rollout history deployment/web")
            .await
            .lines()
            .filter(|line| line.starts_with(['1', '2']))
            .count(),
        2
    );
    assert!(run("rollout history deployment/web --revision=2").await.contains("web:2"));
    assert!(run("rollout undo deployment/web --to-revision=1").await.contains("rolled back"));
    settled().await;
    let image = "get deployment web -o jsonpath={.spec.template.spec.containers[0].image}";
    assert_eq!(run(image).await, "web:1");
    assert_eq!(run("rollout restart deployment/web").await, "deployment.apps/web restarted\n");
    settled().await;
    assert!(run("get deployment web -o yaml").await.contains("kubectl.kubernetes.io/restartedAt"));
    run("rollout pause deployment/web").await;
    run("set env deployment/web A=b").await;
    kubectl.fails("rollout restart deployment/web", &Value::Null, "paused").await;
    run("rollout resume deployment/web").await;
    settled().await;

    assert_eq!(
        run("scale deployment/web --current-replicas=2 --replicas=1").await,
        "deployment.apps/web scaled\n"
    );
    run("wait deployment/web --for=jsonpath={.status.replicas}=1 --timeout=30s").await;
    run("wait deployment/web --for=condition=Available --timeout=30s").await;
    kubectl.fails("wait deployment/web --for=condition=Odd --timeout=1s", &Value::Null, "timed out").await;
    run("expose deployment/web --port=80").await;
    assert_eq!(run("get service web -o jsonpath={.spec.selector.app}").await, "web");
    run("delete deployment web --cascade=foreground --wait --timeout=30s").await;
    run("wait pod -l app=web --for=delete --timeout=30s").await;
    kubectl.fails("get deployment web", &Value::Null, "(NotFound)").await;
}

fn labelled(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "labels": { "set": "one" } }, "data": { "a": "1" } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_longer_applied_is_pruned() {
    if missing() {
        return;
    }
    let kubectl = Kubectl::start().await;
    let both = json!({ "apiVersion": "v1", "kind": "List", "items": [labelled("one"), labelled("two")] });
    kubectl.ok("apply -n default -f -", &both).await;
    let pruned = kubectl.ok("apply -n default --prune -l set=one -f -", &labelled("one")).await;
    assert!(
        pruned.contains("configmap/one unchanged") && pruned.contains("configmap/two pruned"),
        "{pruned}"
    );
    assert_eq!(
        kubectl
            .ok("apply view-last-applied configmap/one -o json", &Value::Null)
            .await
            .matches("\"a\": \"1\"")
            .count(),
        1
    );
    // Replaced as a whole: another object of the same name.
    let uid = "get configmap one -o jsonpath={.metadata.uid}";
    let before = kubectl.ok(uid, &Value::Null).await;
    kubectl.ok("replace --force -f -", &labelled("one")).await;
    assert_ne!(kubectl.ok(uid, &Value::Null).await, before);
    assert!(kubectl.ok("delete configmap -l set=one", &Value::Null).await.contains("\"one\" deleted"));
}

/// A watch shows the rows of what was there, and then of every change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_pods_shows_rows() {
    if missing() {
        return;
    }
    let kubectl = Kubectl::with_controllers().await;
    kubectl.ok("run first --image=x", &Value::Null).await;
    kubectl.ok("wait pod/first --for=condition=Ready --timeout=30s", &Value::Null).await;
    let mut watching = kubectl.command("get pods -w -o wide").spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut until = async |parts: &[&str]| {
        let found = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if parts.iter().all(|part| line.contains(part)) {
                    return;
                }
            }
            panic!("no row with {parts:?}");
        };
        tokio::time::timeout(CEILING, found).await.unwrap();
    };
    until(&["NAME", "NOMINATED NODE"]).await;
    until(&["first", "Running"]).await;
    kubectl.ok("run second --image=x", &Value::Null).await;
    until(&["second", "Running"]).await;
    watching.kill().await.unwrap();
}
