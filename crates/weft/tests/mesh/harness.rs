//! A mesh of one test: started from manifests, ended when dropped.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

/// Two cores do not carry several meshes at once without each test's deadlines telling of the others.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits in tests are bounds on "never", not measurements.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct TestMesh {
    pub(crate) name: String,
    _folder: Option<tempfile::TempDir>,
    _turn: MutexGuard<'static, ()>,
}

/// Why no mesh can run here, if so.
pub(crate) fn impossible() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    // The same step that the supervisor takes first.
    let probe = Command::new("unshare").args(["--net", "--pid", "--fork", "--mount", "true"]).output();
    match probe {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

impl TestMesh {
    /// Starts a mesh from YAML text and waits until every pod is ready. `None`: skipped, and said so.
    pub(crate) fn up(name: &str, yaml: &str) -> Option<TestMesh> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("mesh.yaml");
        fs::write(&file, yaml).expect("the manifest");
        Self::up_with(name, &[&file.display().to_string()], Some(folder))
    }

    /// The same with any arguments of `weft up`.
    pub(crate) fn up_with(name: &str, args: &[&str], folder: Option<tempfile::TempDir>) -> Option<TestMesh> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = impossible() {
            eprintln!("SKIPPED: {name}: {why}");
            return None;
        }
        let name = format!("t{}-{name}", std::process::id());
        let mesh = TestMesh { name, _folder: folder, _turn: turn };
        let started = mesh.weft(&[&["up", "--detach"], args].concat());
        assert!(started.status.success(), "weft up: {}\n{}", shown(&started), mesh.supervisor_log());
        Some(mesh)
    }

    /// Runs `weft ARGS --name NAME`.
    pub(crate) fn weft(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("weft runs")
    }

    /// The same, to be started by the caller.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        // `weft exec NAME -- CMD`: what follows the dashes is the command's.
        let split = args.iter().position(|a| *a == "--").unwrap_or(args.len());
        command.args(&args[..split]).args(["--name", &self.name]).args(&args[split..]).stdin(Stdio::null());
        command
    }

    /// The standard output of a command that must succeed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.weft(args);
        assert!(output.status.success(), "weft {args:?}: {}", shown(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Repeats until `fine` accepts the output of `weft ARGS`.
    pub(crate) fn until(&self, args: &[&str], fine: impl Fn(&Output, &str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.weft(args);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if fine(&output, &text) {
                return text;
            }
            assert!(Instant::now() < deadline, "weft {args:?} never did: {}", shown(&output));
            sleep(Duration::from_millis(200));
        }
    }

    /// An object of the API.
    pub(crate) fn get(&self, path: &str) -> serde_json::Value {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let request = http::Request::get(path).body(Vec::new()).expect("a path");
            self.client().await.request(request).await.expect("the object")
        })
    }

    /// What the controller answers when asked whether it is ready.
    pub(crate) fn ready(&self) -> Option<String> {
        let path = "/api/v1/namespaces/linkerd/services/linkerd-dst:9990/proxy/ready";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let request = http::Request::get(path).body(Vec::new()).expect("a path");
            self.client().await.request_text(request).await.ok()
        })
    }

    /// Creates an object of the API.
    pub(crate) fn create(&self, path: &str, json: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let request = http::Request::post(path).header("content-type", "application/json");
            let request = request.body(json.as_bytes().to_vec()).expect("a path");
            let created: Result<serde_json::Value, _> = self.client().await.request(request).await;
            created.expect("the object is created");
        });
    }

    pub(crate) async fn client(&self) -> kube::Client {
        use kube::config::{Config, KubeConfigOptions, Kubeconfig};
        let kubeconfig = Kubeconfig::read_from(self.state().join("kubeconfig")).expect("the kubeconfig");
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        kube::Client::try_from(config.expect("a configuration")).expect("a client")
    }

    pub(crate) fn state(&self) -> PathBuf {
        Path::new("/run/weft").join(&self.name)
    }

    fn supervisor_log(&self) -> String {
        fs::read_to_string(self.state().join("supervisor.log")).unwrap_or_default()
    }
}

impl Drop for TestMesh {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the supervisor's log\n{}", self.supervisor_log());
        }
        let _ = self.weft(&["down"]);
    }
}

pub(crate) fn shown(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Arguments of `weft`: requests out of one pod's container, by the program for that.
pub(crate) fn load<'a>(namespace: &'a str, pod: &'a str, target: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let program = ["exec", "-n", namespace, pod, "--", "weft", "sample", "load", "--target", target];
    [&program[..], more].concat()
}
