//! A cluster for one test, and the programs that talk to it.

use crate::api;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};
use std::{
    io::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// A bound on "never".
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at an object.
const LOOK: Duration = Duration::from_millis(50);
/// Commands that know no control plane.
const OF_NO_CLUSTER: [&str; 2] = ["completion", "uninject"];

pub(crate) struct Cluster {
    pub(crate) api: api::Cluster,
    /// The namespace of the control plane.
    pub(crate) control: String,
    /// And one for whatever else a test makes.
    pub(crate) apps: String,
    /// It names that one for what names none.
    kubeconfig: tempfile::NamedTempFile,
    /// The in-memory API runs on it.
    pub(crate) runtime: Runtime,
}

impl Cluster {
    pub(crate) fn start() -> Cluster {
        Self::of(api::Cluster::whole())
    }

    /// Always the API in memory: for tests that have it to themselves.
    pub(crate) fn in_memory() -> Cluster {
        Self::of(api::Cluster::in_memory())
    }

    fn of(api: impl Future<Output = api::Cluster>) -> Cluster {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (api, apps, kubeconfig) = runtime.block_on(async {
            let api = api.await;
            let apps = api.namespace("apps", json!({})).await;
            let kubeconfig = api.kubeconfig_for(api.address(), None, &apps).await;
            (api, apps, kubeconfig)
        });
        Cluster { control: api.name("linkerd"), api, apps, kubeconfig, runtime }
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        self.kubeconfig.path()
    }

    pub(crate) fn weft(&self, args: &[&str], input: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(args).env("WEFT_KUBECONFIG", self.kubeconfig.path());
        if !OF_NO_CLUSTER.contains(&args[0]) {
            command.args(["--linkerd-namespace", &self.control]);
        }
        fed(command, input)
    }

    /// The standard output of a command that must succeed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.weft(args, "");
        assert!(output.status.success(), "weft {args:?}: {}", shown(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `None` where there is no kubectl, and that is said.
    pub(crate) fn kubectl(&self, args: &[&str], input: &str) -> Option<Output> {
        if Command::new("kubectl").arg("version").arg("--client").output().is_err() {
            eprintln!("SKIPPED: kubectl is not installed");
            return None;
        }
        let mut command = Command::new("kubectl");
        command.args(args).arg("--kubeconfig").arg(self.kubeconfig.path());
        Some(fed(command, input))
    }

    /// Applies manifests; false where there is no kubectl.
    pub(crate) fn apply(&self, manifests: &str) -> bool {
        let Some(output) = self.kubectl(&["apply", "-f", "-"], manifests) else { return false };
        assert!(output.status.success(), "kubectl apply: {}", shown(&output));
        // Definitions may have been there, made by another test and not by kubectl.
        let warning = |line: &str| line.contains("Warning") && !line.contains("last-applied-configuration");
        assert!(!String::from_utf8_lossy(&output.stderr).lines().any(warning), "{}", shown(&output));
        true
    }

    /// Waits until an object is as wanted.
    pub(crate) fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found: Result<Value, _> = self.runtime.block_on(weft_kube::api::get(&self.api.client, path));
            if found.as_ref().is_ok_and(&wanted) {
                return;
            }
            assert!(Instant::now() < deadline, "{path}: {found:#?}");
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn get(&self, args: &[&str]) -> Value {
        let all = [&["get", "-o", "json"], args].concat();
        let output = self.kubectl(&all, "").expect("it was there before");
        assert!(output.status.success(), "kubectl get {args:?}: {}", shown(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

/// Creates an object of any kind.
pub(crate) async fn create(client: &kube::Client, object: &Value) {
    let object: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
    let types = object.types.clone().expect("apiVersion and kind");
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    if let Err(error) = api.create(&PostParams::default(), &object).await {
        panic!("{} {}: {error}", types.kind, object.name_any());
    }
}

/// Runs a command with this on its standard input.
fn fed(mut command: Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("it was asked for");
    let input = input.to_owned();
    // A program that reads nothing closes its end.
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().expect("the program ends");
    writer.join().expect("the writer ends");
    output
}

/// The documents of an output.
pub(crate) fn documents(yaml: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(yaml).expect("YAML")
}

pub(crate) fn named<'d>(documents: &'d [Value], kind: &str, name: &str) -> &'d Value {
    documents
        .iter()
        .find(|d| d["kind"] == kind && d["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

pub(crate) fn shown(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
