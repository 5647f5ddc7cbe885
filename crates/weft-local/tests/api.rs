//! The API as its clients see it: the `kube` crate over HTTPS, and `kubectl` where it is installed.

#[path = "api/endpoints.rs"]
mod endpoints;
mod imagined;
#[path = "api/port_forward.rs"]
mod port_forward;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{
    Api, AttachParams, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use weft_local::api::{ApiServer, Config};
use weft_local::controllers;

/// A generous ceiling for things that happen at once.
const CEILING: Duration = Duration::from_secs(30);

/// A server with controllers and a node agent that runs every pod in its imagination.
struct Cluster {
    server: ApiServer,
    address: SocketAddr,
    client: Client,
    _tasks: JoinSet<()>,
}

impl Cluster {
    async fn start() -> Self {
        let server = ApiServer::new(Config::default()).unwrap();
        server.api().set_kubelet(Arc::new(imagined::Agent));
        let address = server.spawn_on_loopback().await.unwrap();
        let client = client(&server.kubeconfig(address)).await;
        let mut tasks = JoinSet::new();
        tasks.spawn(controllers::run(server.api().clone()));
        tasks.spawn(imagined::pods(client.clone()));
        Self { server, address, client, _tasks: tasks }
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn create<K>(&self, namespace: &str, object: Value) -> K
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + serde::Serialize,
    {
        self.api::<K>(namespace).create(&PostParams::default(), &from(object)).await.unwrap()
    }
}

fn from<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

async fn client(kubeconfig: &str) -> Client {
    let config = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Waits until an object is as wanted, by watching it.
async fn until<K>(api: &Api<K>, name: &str, wanted: impl Fn(&K) -> bool) -> K
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let objects = watcher(api.clone(), watcher::Config::default().fields(&format!("metadata.name={name}")));
    let mut objects = std::pin::pin!(objects.applied_objects());
    let found = async {
        loop {
            let object = objects.try_next().await.unwrap().expect("a watcher does not end");
            if wanted(&object) {
                return object;
            }
        }
    };
    tokio::time::timeout(CEILING, found).await.unwrap_or_else(|_| panic!("{name} did not become as wanted"))
}

/// Waits until an object is gone.
async fn until_gone<K>(api: &Api<K>, name: &str)
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let gone = kube::runtime::conditions::is_deleted;
    let Some(object) = api.get_opt(name).await.unwrap() else { return };
    let uid = object.meta().uid.clone().unwrap();
    let waited = kube::runtime::wait::await_condition(api.clone(), name, gone(&uid));
    tokio::time::timeout(CEILING, waited).await.unwrap_or_else(|_| panic!("{name} did not go")).unwrap();
}

fn web(replicas: i32, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "web", "image": image, "ports": [{ "name": "http", "containerPort": 8080 }] }] },
            },
        },
    })
}

fn rolled_out(deployment: &Deployment) -> bool {
    let status = deployment.status.clone().unwrap_or_default();
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas);
    status.observed_generation == deployment.metadata.generation
        && status.updated_replicas == wanted
        && status.available_replicas == wanted
        && status.replicas == wanted
}

#[tokio::test]
async fn a_deployment_is_rolled_out_scaled_and_deleted() {
    let cluster = Cluster::start().await;
    let deployments: Api<Deployment> = cluster.api("default");
    let service = json!({ "metadata": { "name": "web" }, "spec": {
        "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80, "targetPort": "http" }] } });
    let service: Service = cluster.create("default", service).await;
    assert!(service.spec.unwrap().cluster_ip.unwrap().starts_with("10.78."));
    cluster.create::<Deployment>("default", web(3, "web:1")).await;
    until(&deployments, "web", rolled_out).await;

    // Each change of the template is rolled out; the replica count holds throughout.
    let patch = Patch::Strategic(json!({ "spec": { "template": { "spec": {
        "containers": [{ "name": "web", "image": "web:2" }] } } } }));
    deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();
    let deployment = until(&deployments, "web", rolled_out).await;
    assert_eq!(deployment.annotations()["deployment.kubernetes.io/revision"], "2");
    let pods: Api<Pod> = cluster.api("default");
    let images: Vec<_> = pods.list(&ListParams::default().labels("app=web")).await.unwrap().items;
    let images = images.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    assert!(
        images
            .flat_map(|pod| &pod.spec.as_ref().unwrap().containers)
            .all(|c| c.image.as_deref() == Some("web:2"))
    );

    let mut scale = deployments.get_scale("web").await.unwrap();
    scale.spec.as_mut().unwrap().replicas = Some(1);
    deployments.replace_scale("web", &PostParams::default(), &scale).await.unwrap();
    until(&deployments, "web", rolled_out).await;

    // The slice follows: one ready endpoint, at the port the name stands for.
    let slices: Api<EndpointSlice> = cluster.api("default");
    let own = ListParams::default().labels("kubernetes.io/service-name=web");
    let name = slices.list(&own).await.unwrap().items[0].name_any();
    let slice = until(&slices, &name, |slice| slice.endpoints.len() == 1).await;
    assert_eq!(slice.ports.unwrap()[0].port, Some(8080));
    assert_eq!(slice.endpoints[0].conditions.as_ref().unwrap().ready, Some(true));

    deployments.delete("web", &DeleteParams::foreground()).await.unwrap();
    until_gone(&deployments, "web").await;
    assert!(pods.list(&ListParams::default().labels("app=web")).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn a_job_completes_and_a_namespace_ends_with_all_it_holds() {
    let cluster = Cluster::start().await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let namespace = json!({ "metadata": { "name": "work" } });
    namespaces.create(&PostParams::default(), &from(namespace)).await.unwrap();
    let job = json!({ "metadata": { "name": "once" }, "spec": { "completions": 2, "template": {
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "w", "image": "w:1" }] } } } });
    cluster.create::<Job>("work", job).await;
    let jobs: Api<Job> = cluster.api("work");
    let job =
        until(&jobs, "once", |job| job.status.as_ref().is_some_and(|s| s.completion_time.is_some())).await;
    assert_eq!(job.status.unwrap().succeeded, Some(2));

    namespaces.delete("work", &DeleteParams::default()).await.unwrap();
    until_gone(&namespaces, "work").await;
    assert!(cluster.api::<Pod>("work").list(&ListParams::default()).await.unwrap().items.is_empty());
    let map = from(json!({ "metadata": { "name": "a" } }));
    let late = cluster.api::<ConfigMap>("work").create(&PostParams::default(), &map).await;
    assert!(matches!(late, Err(kube::Error::Api(status)) if status.code == 404));
}

#[tokio::test]
async fn watches_resume_filter_and_expire() {
    let cluster = Cluster::start().await;
    let maps: Api<ConfigMap> = cluster.api("default");
    let start = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    for (name, color) in [("a", "red"), ("b", "blue")] {
        cluster
            .create::<ConfigMap>(
                "default",
                json!({ "metadata": { "name": name, "labels": { "color": color } } }),
            )
            .await;
    }
    let recolor = Patch::Merge(json!({ "metadata": { "labels": { "color": "blue" } } }));
    maps.patch("a", &PatchParams::default(), &recolor).await.unwrap();

    // An object that ceases to match is deleted as far as this watcher knows.
    let params = WatchParams::default().labels("color=red").timeout(5);
    let mut events = maps.watch(&params, &start).await.unwrap().boxed();
    assert!(
        matches!(events.try_next().await.unwrap(), Some(WatchEvent::Added(map)) if map.name_any() == "a")
    );
    assert!(
        matches!(events.try_next().await.unwrap(), Some(WatchEvent::Deleted(map)) if map.name_any() == "a")
    );

    let mut events = maps.watch(&WatchParams::default(), "1").await.unwrap().boxed();
    assert!(events.try_next().await.unwrap().is_some(), "the log still reaches back to the beginning");

    // The streaming list ends with a marked bookmark.
    let listing = watcher(maps.clone(), watcher::Config::default().streaming_lists());
    let mut listing = std::pin::pin!(listing);
    let mut seen = Vec::new();
    loop {
        match listing.try_next().await.unwrap().unwrap() {
            watcher::Event::InitApply(map) => seen.push(map.name_any()),
            watcher::Event::InitDone => break,
            _ => {}
        }
    }
    assert_eq!(seen, ["a", "b", "kube-root-ca.crt"]);

    // Chunks of a list show one state, whatever happens in between.
    let first = maps.list(&ListParams::default().limit(1)).await.unwrap();
    maps.delete("b", &DeleteParams::default()).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let rest = maps.list(&ListParams::default().limit(10).continue_token(&token)).await.unwrap();
    let names: Vec<_> = rest.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["b", "kube-root-ca.crt"]);
}

#[tokio::test]
async fn writers_race_and_lose_in_the_open() {
    let cluster = Cluster::start().await;
    let maps: Api<ConfigMap> = cluster.api("default");
    let first: ConfigMap =
        cluster.create("default", json!({ "metadata": { "name": "a" }, "data": { "k": "1" } })).await;
    let mut mine = first.clone();
    mine.data = Some(BTreeMap::from([("k".into(), "2".into())]));
    maps.replace("a", &PostParams::default(), &mine).await.unwrap();
    let late = maps.replace("a", &PostParams::default(), &first).await;
    assert!(matches!(late, Err(kube::Error::Api(status)) if status.reason == "Conflict"));

    // Nothing changed: nothing is written.
    let again = Patch::Merge(json!({ "data": { "k": "2" } }));
    let before = maps.get("a").await.unwrap();
    let after = maps.patch("a", &PatchParams::default(), &again).await.unwrap();
    assert_eq!(before.resource_version(), after.resource_version());

    // A finalizer holds an object until it is removed.
    let hold = Patch::Merge(json!({ "metadata": { "finalizers": ["example.org/hold"] } }));
    maps.patch("a", &PatchParams::default(), &hold).await.unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(maps.get("a").await.unwrap().metadata.deletion_timestamp.is_some());
    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    maps.patch("a", &PatchParams::default(), &release).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn tokens_are_for_their_audience_and_die_with_their_pod() {
    let cluster = Cluster::start().await;
    let accounts: Api<ServiceAccount> = cluster.api("default");
    let pod =
        json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "c:1" }] } });
    let pod: Pod = cluster.create("default", pod).await;
    let spec = pod.spec.unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("weft"));
    assert_eq!(
        spec.containers[0].volume_mounts.as_ref().unwrap()[0].mount_path,
        "/var/run/secrets/kubernetes.io/serviceaccount"
    );

    let request = json!({ "spec": { "audiences": ["identity.l5d.io"],
        "boundObjectRef": { "kind": "Pod", "apiVersion": "v1", "name": "p" } } });
    let issued =
        accounts.create_token_request("default", &PostParams::default(), &from(request)).await.unwrap();
    let token = issued.status.unwrap().token;
    let review = async |audience: &str| {
        let reviews: Api<k8s_openapi::api::authentication::v1::TokenReview> =
            Api::all(cluster.client.clone());
        let review = json!({ "metadata": {}, "spec": { "token": token, "audiences": [audience] } });
        reviews.create(&PostParams::default(), &from(review)).await.unwrap().status.unwrap()
    };
    let good = review("identity.l5d.io").await;
    assert_eq!(good.user.unwrap().username.as_deref(), Some("system:serviceaccount:default:default"));
    assert_eq!(review("somebody.else").await.authenticated, None);

    let pods: Api<Pod> = cluster.api("default");
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    until_gone(&pods, "p").await;
    assert_eq!(review("identity.l5d.io").await.authenticated, None);
}

#[tokio::test]
async fn callers_are_known_and_confined() {
    let cluster = Cluster::start().await;
    let accounts: Api<ServiceAccount> = cluster.api("default");
    let request = from(json!({ "spec": {} }));
    let issued = accounts.create_token_request("default", &PostParams::default(), &request).await;
    let token = issued.unwrap().status.unwrap().token;
    let admin = cluster.server.kubeconfig(cluster.address);
    let with = |token: &str| admin.replace(cluster.server.api().admin_token(), token);

    let nobody = client(&with("wrong")).await;
    let refused = Api::<Pod>::default_namespaced(nobody).list(&ListParams::default()).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 401));

    let app = client(&with(&token)).await;
    let secrets = Api::<Secret>::default_namespaced(app.clone()).list(&ListParams::default()).await;
    assert!(matches!(secrets, Err(kube::Error::Api(status)) if status.code == 403));
    let role = json!({ "metadata": { "name": "r" }, "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }] });
    cluster.create::<k8s_openapi::api::rbac::v1::Role>("default", role).await;
    let binding = json!({ "metadata": { "name": "r" }, "subjects": [{ "kind": "ServiceAccount", "name": "default" }],
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r" } });
    cluster.create::<k8s_openapi::api::rbac::v1::RoleBinding>("default", binding).await;
    Api::<Pod>::default_namespaced(app).list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn logs_and_exec_reach_the_node_agent() {
    let cluster = Cluster::start().await;
    let pods: Api<Pod> = cluster.api("default");
    let pod =
        json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "c:1" }] } });
    cluster.create::<Pod>("default", pod).await;
    let params = LogParams { tail_lines: Some(2), ..LogParams::default() };
    assert_eq!(pods.logs("p", &params).await.unwrap(), "c line 2\nc line 3\n");

    let params = AttachParams::default().stdin(true).stderr(true);
    let mut process = pods.exec("p", ["cat", "3"], &params).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"hello").await.unwrap();
    tokio::io::AsyncWriteExt::shutdown(&mut stdin).await.unwrap();
    drop(stdin);
    let (mut out, mut err) = (String::new(), String::new());
    let (mut stdout, mut stderr) = (process.stdout().unwrap(), process.stderr().unwrap());
    let status = process.take_status().unwrap();
    let read = async {
        let _ = tokio::join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err));
        status.await
    };
    let status = tokio::time::timeout(CEILING, read).await.unwrap().unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("cat 3\nhello", "done\n"));
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"));

    let params = AttachParams::default().stderr(true);
    assert!(pods.exec("p", ["cat"], &params.container("none")).await.is_err());
}

/// Runs kubectl against the cluster and returns what it printed.
async fn kubectl(kubeconfig: &str, arguments: &[&str], input: &str) -> (bool, String) {
    let mut command = tokio::process::Command::new("kubectl");
    command
        .env("KUBECONFIG", kubeconfig)
        .args(arguments)
        .env("HOME", std::env::temp_dir())
        .kill_on_drop(true);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, input.as_bytes()).await.unwrap();
    drop(stdin);
    let output =
        tokio::time::timeout(CEILING, child.wait_with_output()).await.expect("kubectl ends").unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_works() {
    if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        eprintln!("SKIPPED: kubectl is not installed");
        return;
    }
    let cluster = Cluster::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, cluster.server.kubeconfig(cluster.address)).unwrap();
    let path = path.to_str().unwrap();
    let run = async |arguments: &str, input: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let (ok, text) = kubectl(path, &arguments, input).await;
        assert!(ok, "kubectl {}: {text}", arguments.join(" "));
        text
    };
    let manifest = web(2, "web:1").to_string();
    assert_eq!(run("apply -f -", &manifest).await, "deployment.apps/web created\n");
    assert_eq!(run("apply -f -", &manifest).await, "deployment.apps/web unchanged\n");
    run("rollout status deployment/web --timeout=20s", "").await;
    let applied = run("apply --server-side --force-conflicts -f -", &manifest).await;
    assert!(applied.contains("deployment.apps/web serverside-applied"), "{applied}");
    run("scale deployment/web --replicas=1", "").await;
    run("rollout status deployment/web --timeout=20s", "").await;
    run("wait --for=condition=Available deployment/web --timeout=20s", "").await;
    assert!(run("get deployments", "").await.contains("1/1"));
    assert!(run("get pods -o wide", "").await.contains("Running"));
    assert!(run("get all -A", "").await.contains("replicaset.apps/web"));
    assert!(run("describe deployment web", "").await.contains("ScalingReplicaSet"));
    assert!(run("api-resources", "").await.contains("endpointslices"));
    assert!(run("logs deployment/web --tail=1", "").await.contains("web line 3"));
    assert_eq!(run("exec -i deployment/web -- cat", "typed").await, "cat\ntypeddone\n");
    let (ok, text) = kubectl(path, &["exec", "deployment/web", "--", "cat", "7"], "").await;
    assert!(!ok && text.contains("exit code 7"), "{text}");
    run("set image deployment/web web=web:2", "").await;
    run("rollout status deployment/web --timeout=20s", "").await;
    run("rollout undo deployment/web", "").await;
    run("rollout status deployment/web --timeout=20s", "").await;
    assert!(
        run("get deployment web -o jsonpath={.spec.template.spec.containers[0].image}", "").await == "web:1"
    );
    let (ok, text) =
        kubectl(path, &["apply", "-f", "-"], &manifest.replace("\"replicas\"", "\"replicaz\"")).await;
    assert!(!ok && text.contains("unknown field \"spec.replicaz\""), "{text}");
    // These send protobuf.
    run("create namespace made", "").await;
    run("create configmap made -n made --from-literal=a=b", "").await;
    assert_eq!(run("auth can-i delete pods", "").await, "yes\n");
    assert_eq!(run("create token default -n made --duration=1h", "").await.matches('.').count(), 2);
    run("create deployment made -n made --image=made:1 --replicas=2 --port=80 -- sleep 9", "").await;
    let made = run(
        "get deployment made -n made -o jsonpath={.spec.replicas}{.spec.template.spec.containers[0]}",
        "",
    )
    .await;
    assert!(made.starts_with('2') && made.contains("\"sleep\",\"9\"") && made.contains("made:1"), "{made}");
    run("create job made -n made --image=made:1 -- true", "").await;
    run("create service clusterip made -n made --tcp=80:http", "").await;
    run("create role made -n made --verb=get --resource=pods", "").await;
    run("delete namespace made --wait --timeout=20s", "").await;
    run("delete deployment web --wait --timeout=20s", "").await;
    assert_eq!(run("get pods", "").await, "No resources found in default namespace.\n");
}
