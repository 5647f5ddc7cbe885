//! A Kubernetes API for one test: the in-memory one of `weft up`, or the real server that `WEFT_TEST_KUBECONFIG` names.
//!
//! On a real server a test has namespaces of its own ([`Cluster::name`]), which go with it. What exists only once in a
//! cluster (the webhooks of a control plane, the statuses it writes) has turns ([`Cluster::whole`]). Definitions of
//! resources stay. Without a controller-manager the test makes and ends namespaces as one would.

use http::Method;
use serde_json::{Value, json};
use std::{
    fs::File,
    io::Write as _,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket},
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::NamedTempFile;
use tokio::net::{TcpListener, TcpStream};
use weft_kube::api;
use weft_local::api::{ApiServer, Config};

const KUBECONFIG: &str = "WEFT_TEST_KUBECONFIG";
/// An address of this machine at which the API server reaches webhooks; without it, the one that reaches the API server.
const ADDRESS: &str = "WEFT_TEST_ADDRESS";
/// A controller-manager that has not renewed its lease for so long is none.
const GONE_AFTER: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    pub(crate) client: kube::Client,
    kubeconfig: PathBuf,
    /// It holds the kubeconfig of the in-memory API.
    _file: Option<NamedTempFile>,
    /// The in-memory API runs as long as there is one.
    server: Option<ApiServer>,
    real: Option<Real>,
}

/// What is known of a real server, and what a test has of it.
struct Real {
    suffix: String,
    /// There is a controller-manager.
    managed: bool,
    /// Locked: no other test has a control plane.
    _turn: Option<File>,
}

#[allow(dead_code)] // each test file that includes this uses a part
impl Cluster {
    /// For a test that keeps to its own namespaces.
    pub(crate) async fn start() -> Cluster {
        Self::take(false).await
    }

    /// For a test that installs a control plane: on a real server they take turns.
    pub(crate) async fn whole() -> Cluster {
        Self::take(true).await
    }

    /// For a test that needs what makes pods of Deployments; `None` where a real server has nobody who does.
    pub(crate) async fn whole_with_controllers() -> Option<Cluster> {
        let cluster = Self::take(true).await;
        if let Some(server) = &cluster.server {
            tokio::spawn(weft_local::controllers::run(server.api().clone()));
        }
        cluster.real.as_ref().is_none_or(|real| real.managed).then_some(cluster)
    }

    async fn take(whole: bool) -> Cluster {
        // What the controller logs is shown with a test that failed; RUST_LOG says how much.
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let Some(path) = std::env::var_os(KUBECONFIG).filter(|path| !path.is_empty()) else {
            return Self::in_memory().await;
        };
        let turn = whole.then(|| {
            let file = File::create(std::env::temp_dir().join("weft-test-cluster.lock")).unwrap();
            file.lock().unwrap();
            file
        });
        let kubeconfig = PathBuf::from(path);
        let client = api::connect(Some(&kubeconfig)).await.unwrap();
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager";
        let lease: Value = api::get(&client, lease).await.unwrap_or_default();
        let renewed = lease["spec"]["renewTime"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
        let managed =
            renewed.is_some_and(|at| jiff::Timestamp::now().duration_since(at).unsigned_abs() < GONE_AFTER);
        let nanos = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let suffix = format!("{:x}{:x}", nanos % 0xffff_ffff, std::process::id() % 0xfff);
        let real = Some(Real { suffix, managed, _turn: turn });
        Cluster { client, kubeconfig, _file: None, server: None, real }
    }

    /// Whatever the environment says.
    pub(crate) async fn in_memory() -> Cluster {
        let server = ApiServer::new(Config::default()).unwrap();
        let addr = server.spawn_on_loopback().await.unwrap();
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(server.kubeconfig(addr).as_bytes()).unwrap();
        let client = api::connect(Some(file.path())).await.unwrap();
        let kubeconfig = file.path().to_owned();
        Cluster { client, kubeconfig, _file: Some(file), server: Some(server), real: None }
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// What this test calls a namespace of this name.
    pub(crate) fn name(&self, name: &str) -> String {
        match &self.real {
            Some(real) => format!("{name}-{}", real.suffix),
            None => name.to_owned(),
        }
    }

    /// Makes the namespace that this test calls so, with what controllers would put into it.
    pub(crate) async fn namespace(&self, name: &str, metadata: Value) -> String {
        let name = self.name(name);
        let mut namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        namespace["metadata"]["name"] = json!(name);
        api::create(&self.client, "/api/v1/namespaces", &namespace).await.unwrap();
        self.furnish(&name).await;
        name
    }

    /// What every namespace has, unless it is there already.
    pub(crate) async fn furnish(&self, namespace: &str) {
        let path = format!("/api/v1/namespaces/{namespace}");
        let named = |name: &str| json!({"name": name, "namespace": namespace});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named("default")});
        let roots = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": named("kube-root-ca.crt"),
            "data": {"ca.crt": ""}});
        for (plural, object) in [("serviceaccounts", account), ("configmaps", roots)] {
            match api::create(&self.client, &format!("{path}/{plural}"), &object).await {
                Err(error) if error.code() != Some(409) => panic!("{plural} of {namespace}: {error}"),
                _ => {}
            }
        }
    }

    /// Applies a definition, as all tests do on a shared server, and waits until it is served.
    pub(crate) async fn define(&self, definition: &Value) {
        let name = definition["metadata"]["name"].as_str().unwrap();
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        api::apply(&self.client, &path, "weft-tests", definition).await.unwrap();
        loop {
            let now: Value = api::get(&self.client, &path).await.unwrap();
            let conditions = now["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Where the API listens.
    pub(crate) fn address(&self) -> SocketAddr {
        let config = self.file();
        let server = config["clusters"][0]["cluster"]["server"].as_str().unwrap();
        let authority = server.trim_start_matches("https://").trim_end_matches('/');
        authority.to_socket_addrs().unwrap().next().unwrap()
    }

    /// Where the API server reaches what listens at `to` on loopback.
    pub(crate) async fn reachable(&self, to: SocketAddr) -> SocketAddr {
        let Some(reach) = self.reach() else { return to };
        let listener = TcpListener::bind((reach, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(relay(listener, to));
        at
    }

    /// On a real server: an address of this machine that it reaches.
    fn reach(&self) -> Option<IpAddr> {
        self.real.as_ref()?;
        if let Ok(address) = std::env::var(ADDRESS) {
            return Some(address.parse().expect(ADDRESS));
        }
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(self.address()).unwrap();
        let own = socket.local_addr().unwrap().ip();
        // Endpoints in the loopback range are refused.
        assert!(!own.is_loopback(), "the API server is on {own}: set {ADDRESS} to an address it reaches");
        Some(own)
    }

    /// A client for the API at another address, and as a ServiceAccount if one is named.
    pub(crate) async fn client(&self, at: SocketAddr, account: Option<(&str, &str)>) -> kube::Client {
        let file = self.kubeconfig_for(at, account, "default").await;
        api::connect(Some(file.path())).await.unwrap()
    }

    /// Likewise as a file, with a namespace for what names none.
    pub(crate) async fn kubeconfig_for(
        &self,
        at: SocketAddr,
        account: Option<(&str, &str)>,
        namespace: &str,
    ) -> NamedTempFile {
        let mut config = self.file();
        for context in config["contexts"].as_array_mut().unwrap() {
            context["context"]["namespace"] = json!(namespace);
        }
        if let Some((namespace, name)) = account {
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
            let request =
                json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
            let answer = api::create(&self.client, &path, &request).await.unwrap();
            for user in config["users"].as_array_mut().unwrap() {
                user["user"] = json!({"token": answer["status"]["token"]});
            }
        }
        if at != self.address() {
            for cluster in config["clusters"].as_array_mut().unwrap() {
                let cluster = &mut cluster["cluster"];
                let url: http::Uri = cluster["server"].as_str().unwrap().parse().unwrap();
                cluster["tls-server-name"] = json!(url.host().unwrap());
                cluster["server"] = json!(format!("https://{at}"));
            }
        }
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(config.to_string().as_bytes()).unwrap();
        file
    }

    /// The kubeconfig; tests want one of one cluster and one user.
    fn file(&self) -> Value {
        serde_saphyr::from_str(&std::fs::read_to_string(&self.kubeconfig).unwrap()).unwrap()
    }
}

/// Carries connections on to another address as long as the test runs.
async fn relay(listener: TcpListener, to: SocketAddr) {
    while let Ok((mut client, _)) = listener.accept().await {
        tokio::spawn(async move {
            let Ok(mut server) = TcpStream::connect(to).await else { return };
            // Either side may end it as it likes.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(real) = self.real.take() else { return };
        let (kubeconfig, suffix) = (self.kubeconfig.clone(), format!("-{}", real.suffix));
        // The test's runtime may be the one that waits here.
        let cleaned = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = api::connect(Some(&kubeconfig)).await.unwrap();
                clean(&client, &suffix, real.managed).await;
            });
        });
        if cleaned.join().is_err() {
            eprintln!("namespaces ending with {} may have been left", self.kubeconfig.display());
        }
    }
}

/// Deletes the namespaces with this end to their names, and what belongs to a control plane in one of them.
async fn clean(client: &kube::Client, suffix: &str, managed: bool) {
    let own = |name: &Value| name.as_str().is_some_and(|name| name.ends_with(suffix));
    for kinds in [
        "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
        "admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        "rbac.authorization.k8s.io/v1/clusterrolebindings",
        "rbac.authorization.k8s.io/v1/clusterroles",
    ] {
        for object in items(client, &format!("/apis/{kinds}")).await {
            if own(&object["metadata"]["labels"]["linkerd.io/control-plane-ns"]) {
                let name = object["metadata"]["name"].as_str().unwrap();
                api::delete(client, &format!("/apis/{kinds}/{name}")).await.unwrap();
            }
        }
    }
    let collections = if managed { vec!["/api/v1|pods".to_owned()] } else { collections(client).await };
    for namespace in items(client, "/api/v1/namespaces").await {
        if !own(&namespace["metadata"]["name"]) {
            continue;
        }
        let name = namespace["metadata"]["name"].as_str().unwrap();
        for collection in &collections {
            let (version, plural) = collection.split_once('|').unwrap();
            let path = format!("{version}/namespaces/{name}/{plural}?gracePeriodSeconds=0");
            let deleted: Result<Value, _> =
                api::json(client, Method::DELETE, &path, "application/json", &Value::Null).await;
            // A definition may have gone meanwhile.
            drop(deleted);
        }
        let path = format!("/api/v1/namespaces/{name}");
        api::delete(client, &path).await.unwrap();
        if !managed {
            let mut ending: Value = api::get(client, &path).await.unwrap();
            ending["spec"]["finalizers"] = json!([]);
            let end = format!("{path}/finalize");
            let ended: Result<Value, _> =
                api::json(client, Method::PUT, &end, "application/json", &ending).await;
            ended.unwrap();
        }
    }
}

async fn items(client: &kube::Client, path: &str) -> Vec<Value> {
    let list: Value = api::get(client, path).await.unwrap();
    list["items"].as_array().cloned().unwrap_or_default()
}

/// Every kind in namespaces that can be deleted all at once: path of its version, `|`, plural.
async fn collections(client: &kube::Client) -> Vec<String> {
    let groups: Value = api::get(client, "/apis").await.unwrap();
    let preferred = |group: &Value| {
        group["preferredVersion"]["groupVersion"].as_str().map(|version| format!("/apis/{version}"))
    };
    let versions = groups["groups"].as_array().unwrap().iter().filter_map(preferred);
    let mut all = Vec::new();
    for version in versions.chain(["/api/v1".to_owned()]) {
        let resources: Value = api::get(client, &version).await.unwrap_or_default();
        for resource in resources["resources"].as_array().into_iter().flatten() {
            let verbs = resource["verbs"].as_array().cloned().unwrap_or_default();
            if resource["namespaced"] == json!(true) && verbs.contains(&json!("deletecollection")) {
                all.push(format!("{version}|{}", resource["name"].as_str().unwrap()));
            }
        }
    }
    all
}
