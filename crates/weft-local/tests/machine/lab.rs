//! A machine for one test run, and what tests ask of it.

use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    config::Kubeconfig,
    core::GroupVersionKind,
    discovery::ApiResource,
};
use serde_json::Value;
use std::{
    path::Path,
    time::{Duration, Instant},
};
use weft_fault::Code;
use weft_local::up::{Mesh, UpConfig};

/// Nothing on this machine takes longer, however busy it is.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn start(name: &str, root: &Path) -> Mesh {
    start_if_allowed(name, root).expect("a machine that allows namespaces")
}

/// `None` where the kernel allows no namespaces.
pub(crate) fn start_if_allowed(name: &str, root: &Path) -> Option<Mesh> {
    let config = UpConfig { name: name.into(), state_root: root.into(), ..UpConfig::default() };
    match Mesh::start(&config) {
        Ok(mesh) => Some(mesh),
        Err(fault) if fault.code() == Code::NamespacesRefused => {
            eprintln!("{fault:?}");
            None
        }
        Err(fault) if format!("{fault:?}").contains("Operation not permitted") => None,
        Err(fault) => {
            let log = std::fs::read_to_string(root.join(name).join("supervisor.log")).unwrap_or_default();
            panic!("{fault:?}\n{log}");
        }
    }
}

pub(crate) async fn client(mesh: &Mesh) -> Client {
    let kubeconfig = Kubeconfig::read_from(&mesh.info().kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// The API of an object's kind and namespace.
pub(crate) fn api_of(client: &Client, object: &Value) -> Api<DynamicObject> {
    let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match kind {
        "Namespace" => Api::all_with(client.clone(), &resource),
        _ => {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
    }
}

pub(crate) async fn apply(client: &Client, yaml: &str) {
    for object in documents(yaml) {
        let name = object["metadata"]["name"].as_str().unwrap().to_string();
        let params = PatchParams::apply("test").force();
        api_of(client, &object).patch(&name, &params, &Patch::Apply(&object)).await.unwrap_or_else(|e| {
            panic!("{}/{name}: {e}", object["kind"]);
        });
    }
}

pub(crate) fn documents(yaml: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    all.into_iter().filter(|d| !d.is_null()).collect()
}

/// Asks again until the pod's JSON satisfies `holds`.
pub(crate) async fn until(client: &Client, pod: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let object = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default"}});
    let api = api_of(client, &object);
    let deadline = Instant::now() + DEADLINE;
    loop {
        let now = match api.get_opt(pod).await.unwrap() {
            Some(found) => serde_json::to_value(found).unwrap(),
            None => Value::Null,
        };
        if holds(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "{pod} is never {what}: {:#}", now["status"]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn condition(pod: &Value, kind: &str) -> bool {
    let list = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    list.iter().any(|c| c["type"] == kind && c["status"] == "True")
}

pub(crate) async fn ready(client: &Client, pod: &str) -> Value {
    until(client, pod, "ready", |p| condition(p, "Ready")).await
}

pub(crate) async fn phase(client: &Client, pod: &str, phase: &str) -> Value {
    until(client, pod, phase, |p| p["status"]["phase"] == phase).await
}

pub(crate) async fn logs(client: &Client, pod: &str) -> String {
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::default_namespaced(client.clone());
    pods.logs(pod, &Default::default()).await.unwrap()
}
