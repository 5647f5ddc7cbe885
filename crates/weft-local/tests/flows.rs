//! `kubectl` against the in-memory API: the commands of the recorded flows, with what they print and how they end.

#[path = "flows/access.rs"]
mod access;
mod imagined;
#[path = "flows/reading.rs"]
mod reading;
#[path = "flows/workloads.rs"]
mod workloads;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinSet;
use weft_local::api::{ApiServer, Config};

/// A generous ceiling for one command.
const CEILING: Duration = Duration::from_secs(60);

struct Kubectl {
    server: ApiServer,
    directory: tempfile::TempDir,
    /// Controllers and imagined pods, where there are any.
    _tasks: JoinSet<()>,
}

impl Kubectl {
    /// A server without controllers and with two nodes, and a place for kubectl's files.
    async fn start() -> Self {
        let config = Config { node: None, controllers: false, ..Config::default() };
        let (kubectl, _) = Self::of(config).await;
        for name in ["n1", "n2"] {
            kubectl
                .ok(
                    "create -f -",
                    &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } }),
                )
                .await;
        }
        kubectl
    }

    async fn of(config: Config) -> (Self, String) {
        let server = ApiServer::new(config).unwrap();
        let address = server.spawn_on_loopback().await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig(address);
        std::fs::write(directory.path().join("kubeconfig"), &kubeconfig).unwrap();
        (Self { server, directory, _tasks: JoinSet::new() }, kubeconfig)
    }

    /// A server with controllers, whose pods run as soon as they exist.
    async fn with_controllers() -> Self {
        let (mut kubectl, kubeconfig) = Self::of(Config::default()).await;
        kubectl.server.api().set_kubelet(Arc::new(imagined::Agent));
        let config = Kubeconfig::from_yaml(&kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
        kubectl._tasks.spawn(weft_local::controllers::run(kubectl.server.api().clone()));
        kubectl._tasks.spawn(imagined::pods(kube::Client::try_from(config).unwrap()));
        kubectl
    }

    fn command(&self, arguments: &str) -> tokio::process::Command {
        let home = self.directory.path();
        let mut command = tokio::process::Command::new("kubectl");
        command
            .env("KUBECONFIG", home.join("kubeconfig"))
            .env("HOME", home)
            .env("KUBE_EDITOR", "sed -i s/edited-no/edited-yes/")
            .args(arguments.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command; what it printed, and whether it succeeded.
    async fn run(&self, arguments: &str, input: &str) -> (bool, String) {
        let mut child = self.command(arguments).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that wants no input may have ended already.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let output =
            tokio::time::timeout(CEILING, child.wait_with_output()).await.expect("kubectl ends").unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text)
    }

    async fn ok(&self, arguments: &str, input: &Value) -> String {
        let input = if input.is_null() { String::new() } else { input.to_string() };
        let (succeeded, text) = self.run(arguments, &input).await;
        assert!(succeeded, "kubectl {arguments}: {text}");
        text
    }

    /// Runs a command that must fail, and say why.
    async fn fails(&self, arguments: &str, input: &Value, why: &str) {
        let (succeeded, text) = self.run(arguments, &input.to_string()).await;
        assert!(!succeeded && text.contains(why), "kubectl {arguments}: {text}");
    }
}

fn missing() -> bool {
    let missing = Command::new("kubectl").args(["version", "--client"]).output().is_err();
    if missing {
        eprintln!("SKIPPED: kubectl is not installed");
    }
    missing
}

fn config_map(value: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c", "namespace": "k" }, "data": { "a": value } })
}

fn pod() -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": "k", "labels": { "a": "b" } },
        "spec": { "containers": [{ "name": "app", "image": "app:1" }], "nodeName": "n1" } })
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.golden.example" },
        "spec": {
            "group": "golden.example", "scope": "Namespaced",
            "names": { "plural": "widgets", "kind": "Widget", "shortNames": ["wd"] },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": {
                    "type": "object", "description": "What is wanted of it.",
                    "properties": { "size": { "type": "integer", "description": "How large it is." } },
                } } } },
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_made_changed_and_removed() {
    if missing() {
        return;
    }
    let kubectl = Kubectl::start().await;
    let none = Value::Null;
    let run = async |arguments: &str| kubectl.ok(arguments, &none).await;
    assert!(run("get namespaces").await.contains("kube-system"));
    assert_eq!(run("create namespace k").await, "namespace/k created\n");
    kubectl.ok("create -f -", &json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default", "namespace": "k" } })).await;

    // Client-side and server-side apply, each taking over from the other.
    assert_eq!(kubectl.ok("apply -f -", &config_map("1")).await, "configmap/c created\n");
    assert_eq!(kubectl.ok("apply -f -", &config_map("1")).await, "configmap/c unchanged\n");
    assert_eq!(kubectl.ok("apply -f -", &config_map("2")).await, "configmap/c configured\n");
    assert_eq!(
        kubectl.ok("apply --server-side -f -", &config_map("2")).await,
        "configmap/c serverside-applied\n"
    );
    assert_eq!(
        kubectl.ok("apply --server-side -f -", &config_map("2")).await,
        "configmap/c serverside-applied\n"
    );
    assert_eq!(
        kubectl.ok("apply --dry-run=server -f -", &config_map("3")).await,
        "configmap/c configured (server dry run)\n"
    );
    kubectl.fails("diff -f -", &config_map("3"), "+  a: \"3\"").await;
    run("patch configmap c -n k --field-manager=hand -p {\"data\":{\"a\":\"9\"}}").await;
    kubectl.fails("apply --server-side -f -", &config_map("2"), "conflict with \"hand\"").await;
    kubectl.ok("apply --server-side --force-conflicts -f -", &config_map("2")).await;
    let unknown = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "bad", "namespace": "k" }, "dtaa": {} });
    kubectl.fails("apply -f -", &unknown, "unknown field \"dtaa\"").await;

    // Changes in place.
    assert_eq!(run("label configmap c -n k x=y").await, "configmap/c labeled\n");
    assert_eq!(run("label configmaps -n k --all --overwrite x=z").await, "configmap/c labeled\n");
    assert_eq!(run("annotate configmap c -n k edited=edited-no").await, "configmap/c annotated\n");
    assert_eq!(run("edit configmap c -n k").await, "configmap/c edited\n");
    assert_eq!(run("get configmap c -n k -o jsonpath={.metadata.annotations.edited}").await, "edited-yes");
    run("patch configmap c -n k --type=json -p [{\"op\":\"remove\",\"path\":\"/data/a\"}]").await;
    assert_eq!(kubectl.ok("replace -f -", &config_map("4")).await, "configmap/c replaced\n");
    assert!(run("get --raw /api/v1/namespaces/k/configmaps/c").await.contains("\"a\":\"4\""));

    // Pods, and what is waited for.
    kubectl.ok("create -f -", &pod()).await;
    kubectl.fails("create -f -", &pod(), "(AlreadyExists)").await;
    run("patch pod p -n k --subresource=status --type=merge -p {\"status\":{\"phase\":\"Running\",\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}").await;
    run("wait --for=condition=Ready pod/p -n k --timeout=20s").await;
    run("wait --for=jsonpath={.status.phase}=Running pod/p -n k --timeout=20s").await;
    assert!(run("get pods -A").await.contains("Running"));
    assert!(
        run("get pods -n k -l a=b --field-selector metadata.name=p --chunk-size=1 -o wide")
            .await
            .contains("n1")
    );
    assert!(run("describe pod p -n k").await.contains("app:1"));
    assert!(run("describe node n1").await.contains("Non-terminated Pods"));
    kubectl.fails("get pod none -n k", &none, "pods \"none\" not found").await;
    kubectl.fails("get gizmos", &none, "doesn't have a resource type \"gizmos\"").await;
    run("cordon n2").await;
    assert!(run("get nodes").await.contains("SchedulingDisabled"));

    // Removal, to the last.
    assert!(run("delete pod p -n k --grace-period=0 --force").await.contains("pod \"p\" force deleted"));
    assert!(run("delete configmap c -n k").await.contains("configmap \"c\" deleted"));
    kubectl.fails("delete configmap c -n k", &none, "(NotFound)").await;
    run("delete configmap c -n k --ignore-not-found").await;
    assert!(kubectl.server.api().store.get("configmaps", "k", "c").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_explains_itself() {
    if missing() {
        return;
    }
    let kubectl = Kubectl::start().await;
    let none = Value::Null;
    let run = async |arguments: &str| kubectl.ok(arguments, &none).await;
    kubectl.ok("create -f -", &definition()).await;
    run("wait --for=condition=established crd/widgets.golden.example --timeout=20s").await;
    let widget = json!({ "apiVersion": "golden.example/v1", "kind": "Widget", "metadata": { "name": "w" }, "spec": { "size": 1 } });
    assert_eq!(kubectl.ok("apply -f -", &widget).await, "widget.golden.example/w created\n");
    let larger = json!({ "apiVersion": "golden.example/v1", "kind": "Widget", "metadata": { "name": "w" }, "spec": { "size": 2 } });
    assert_eq!(kubectl.ok("apply -f -", &larger).await, "widget.golden.example/w configured\n");
    assert!(run("get wd").await.contains("AGE"));
    assert!(run("describe widget w").await.contains("Size:  2"));
    assert!(run("explain widgets.spec").await.contains("How large it is."));
    assert!(run("explain widgets").await.contains("metadata\t<ObjectMeta>"));
    assert!(run("api-resources --api-group=apps").await.contains("deployments"));
    assert!(run("api-versions").await.contains("golden.example/v1"));
    assert!(run("version").await.contains("v1.36"));
    assert_eq!(run("auth can-i list pods").await, "yes\n");
    assert!(run("auth whoami").await.contains("kubernetes-admin"));
    kubectl.fails("auth can-i list pods --as=nobody", &none, "no\n").await;
    run("delete crd widgets.golden.example --wait=false").await;
    kubectl.fails("get widgets", &none, "widgets").await;
}

/// What is left out is refused, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_out_is_refused_with_a_reason() {
    if missing() {
        return;
    }
    let kubectl = Kubectl::start().await;
    let none = Value::Null;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
    kubectl.ok("create -f -", &account).await;
    let mut pod = pod();
    pod["metadata"].as_object_mut().unwrap().remove("namespace");
    kubectl.ok("create -f -", &pod).await;
    kubectl.fails("debug p --image=dbg:1 --target=app -c dbg", &none, "use kubectl exec, or weft exec").await;
    kubectl.fails("debug p --image=dbg:1 --copy-to=q", &none, "use kubectl exec, or weft exec").await;
    kubectl.fails("debug node/n1 --image=dbg:1", &none, "use kubectl exec, or weft exec").await;
    assert!(kubectl.ok("get statefulsets", &none).await.contains("No resources found"));
    let set = json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "s" } });
    kubectl.fails("apply -f -", &set, "weft runs no StatefulSets: use a Deployment").await;
    // Whatever form kubectl sends them in.
    for (command, why) in [
        ("create cronjob c --image=i --schedule=@daily", "weft runs no CronJobs: use a Job"),
        ("create ingress i --rule=a/b=web:80", "weft runs no Ingresses: this machine reaches Services"),
        ("create quota q --hard=cpu=1", "weft runs no ResourceQuotas: nothing is counted"),
        ("create priorityclass p --value=1", "weft runs no PriorityClasses: no pod gives way"),
        ("get certificatesigningrequests", "doesn't have a resource type \"certificatesigningrequests\""),
        ("patch pod p --subresource=resize -p {\"spec\":{}}", "weft resizes no containers"),
    ] {
        kubectl.fails(command, &none, why).await;
    }
    kubectl.ok("create deployment d --image=i", &none).await;
    kubectl.fails("autoscale deployment d --max=3", &none, "use kubectl scale").await;
    assert!(kubectl.ok("get hpa,all", &none).await.contains("deployment.apps/d"));
    assert!(kubectl.ok("describe namespace default", &none).await.contains("No LimitRange resource."));
    // Not as a file of its own, either.
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "p", "namespace": "default" } });
    kubectl
        .fails(
            "create --raw /api/v1/namespaces/default/pods/p/eviction -f -",
            &eviction,
            "weft evicts no pods",
        )
        .await;
    kubectl.fails("top pod", &none, "Metrics API not available").await;
    // Without eviction, a drain deletes.
    let drained = kubectl.ok("drain n1 --force --grace-period=0 --timeout=30s", &none).await;
    assert!(drained.contains("pod/p deleted") && drained.contains("node/n1 drained"), "{drained}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_prints_each_change() {
    if missing() {
        return;
    }
    let kubectl = Kubectl::start().await;
    let mut watching = kubectl.command("get configmaps -w --output-watch-events -o name").spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next =
        async || tokio::time::timeout(CEILING, lines.next_line()).await.expect("a line").unwrap().unwrap();
    let mut first = config_map("1");
    first["metadata"].as_object_mut().unwrap().remove("namespace");
    kubectl.ok("create -f -", &first).await;
    let line = next().await;
    assert!(line.contains("configmap/c"), "{line}");
    kubectl.ok("delete configmap c", &Value::Null).await;
    assert!(next().await.contains("configmap/c"));
    watching.kill().await.unwrap();
}
