//! A mesh of one test: started from manifests, ended when dropped.

use crate::who::{User, Who};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
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
    pub(crate) user: User,
    folder: Option<tempfile::TempDir>,
    _turn: MutexGuard<'static, ()>,
}

impl TestMesh {
    /// Starts a mesh from YAML text and waits until every pod is ready. `None`: skipped, and said so.
    pub(crate) fn up(name: &str, yaml: &str) -> Option<TestMesh> {
        Self::up_as(Who::Tester, name, yaml)
    }

    /// The same as somebody else.
    pub(crate) fn up_as(who: Who, name: &str, yaml: &str) -> Option<TestMesh> {
        let mut mesh = Self::prepare(who, name)?;
        let file = mesh.file("mesh.yaml", yaml);
        Some(mesh.start(&[&file]))
    }

    /// The same with any arguments of `weft up`.
    pub(crate) fn up_with(name: &str, args: &[&str], folder: Option<tempfile::TempDir>) -> Option<TestMesh> {
        let mut mesh = Self::prepare(Who::Tester, name)?;
        mesh.folder = folder;
        Some(mesh.start(args))
    }

    /// One that is not started: its turn, its name and its user.
    pub(crate) fn prepare(who: Who, name: &str) -> Option<TestMesh> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let user = match User::new(who) {
            Ok(user) => user,
            Err(why) => {
                eprintln!("SKIPPED: {name}: {why}");
                return None;
            }
        };
        let name = format!("t{}-{name}", std::process::id());
        Some(TestMesh { name, user, folder: None, _turn: turn })
    }

    /// Writes a file that the mesh's user can read; its path.
    pub(crate) fn file(&mut self, name: &str, text: &str) -> String {
        let folder = self.folder.get_or_insert_with(|| self.user.folder());
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a file");
        self.user.give(&path);
        path.display().to_string()
    }

    pub(crate) fn start(self, args: &[&str]) -> TestMesh {
        let started = self.weft(&[&["up", "--detach"], args].concat());
        assert!(started.status.success(), "weft up: {}\n{}", shown(&started), self.supervisor_log());
        self
    }

    /// Runs `weft ARGS --name NAME`.
    pub(crate) fn weft(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("weft runs")
    }

    /// The same, to be started by the caller.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.user.command(None);
        // `weft exec NAME -- CMD`: what follows the dashes is the command's.
        let split = args.iter().position(|a| *a == "--").unwrap_or(args.len());
        command.args(&args[..split]).args(["--name", &self.name]).args(&args[split..]);
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

    /// Deletes an object of the API.
    pub(crate) fn delete(&self, path: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let request = http::Request::delete(path).body(Vec::new()).expect("a path");
            let deleted: Result<serde_json::Value, _> = self.client().await.request(request).await;
            deleted.expect("the object is deleted");
        });
    }

    pub(crate) async fn client(&self) -> kube::Client {
        use kube::config::{Config, KubeConfigOptions, Kubeconfig};
        let kubeconfig = Kubeconfig::read_from(self.state().join("kubeconfig")).expect("the kubeconfig");
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        kube::Client::try_from(config.expect("a configuration")).expect("a client")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.user.state_root().join(&self.name)
    }

    fn supervisor_log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.state().join(name)).unwrap_or_default();
        let (controller, agent) = (read("controller.log"), read("agent.log"));
        read("supervisor.log")
            + "--- the controller's log\n"
            + &controller
            + "--- the node agent's log\n"
            + &agent
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
