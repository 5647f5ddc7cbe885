//! Nothing outlives a mesh, however it ends.

use crate::{
    harness::{PATIENCE, TestMesh, shown},
    who::Who,
};
use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// A number of seconds that no other process on this machine sleeps.
fn nap() -> u32 {
    1_000_000 + std::process::id()
}

fn pod() -> String {
    let nap = nap();
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: sleeper, namespace: default, annotations: {{linkerd.io/inject: enabled}}}}
spec:
  containers: [{{name: app, image: "none:1", command: [sh, -c, "sleep {nap} & setsid sleep {nap} & wait"]}}]
"#
    )
}

/// What a mesh could leave: processes of its pods and of its own, links of this machine, mounts, files.
fn traces(mesh: &TestMesh, link: &str) -> BTreeSet<String> {
    let (state, nap) = (mesh.state().display().to_string(), nap().to_string());
    let mut traces = BTreeSet::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        // Some write to the mesh's log, and nothing in their command tells of it.
        let log = fs::read_link(format!("/proc/{pid}/fd/1")).unwrap_or_default();
        let ours = command.contains(&nap) || command.contains(&mesh.name) || log.starts_with(&state);
        if ours && pid != std::process::id() {
            traces.insert(format!("process {pid} {command}"));
        }
    }
    if !link.is_empty() && fs::exists(format!("/sys/class/net/{link}")).unwrap_or(false) {
        traces.insert(format!("link {link}"));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    traces
        .extend(mounts.lines().filter(|mount| mount.contains(&state)).map(|mount| format!("mount {mount}")));
    if fs::exists(&state).unwrap_or(false) {
        traces.insert(format!("files {state}"));
    }
    traces
}

/// The link that leads to a mesh of root's.
fn link(mesh: &TestMesh) -> String {
    let holder = fs::read(mesh.state().join("holder.json")).expect("who holds the mesh");
    let holder: serde_json::Value = serde_json::from_slice(&holder).expect("JSON");
    holder["host_link"].as_str().unwrap_or_default().to_owned()
}

fn gone(mesh: &TestMesh, link: &str, what: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left: Vec<_> = traces(mesh, link).into_iter().filter(|t| what(t)).collect();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left behind: {left:?}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn down_leaves_nothing() {
    if let Some(mut mesh) = TestMesh::up("down-clean", &pod()) {
        no_cluster_for_another(&mut mesh);
        let link = link(&mesh);
        // What it has written down about itself is spoilt: the kernel knows who it is.
        fs::write(mesh.state().join("holder.json"), "{").expect("its notes");
        mesh.ok(&["down"]);
        gone(&mesh, &link, |_| true);
    }
}

/// Another mesh on its API would run the same pods, and take its control plane along in the end.
fn no_cluster_for_another(mesh: &mut TestMesh) {
    let kubeconfig = mesh.state().join("kubeconfig").display().to_string();
    let file = mesh.file("second.yaml", &pod());
    let second = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["up", "--detach", "--name", &format!("{}-2", mesh.name), "--kubeconfig", &kubeconfig, &file])
        .output();
    let second = shown(&second.expect("weft runs"));
    assert!(second.contains("NOD-005") && second.contains(&kubeconfig), "{second}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let Some(mut mesh) = TestMesh::prepare(Who::Tester, "port-taken") else { return };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port().to_string();
    let file = mesh.file("pod.yaml", &pod());
    let up = shown(&mesh.weft(&["up", "--detach", "--api-port", &port, &file]));
    assert!(up.contains("CFG-005") && up.contains(&format!("--api-port {port}")), "{up}");
    gone(&mesh, "", |_| true);
}

#[test]
fn down_leaves_nothing_without_root() {
    if let Some(mesh) = TestMesh::up_as(Who::Ordinary, "down-user", &pod()) {
        down(&mesh);
    }
}

fn down(mesh: &TestMesh) {
    let link = link(mesh);
    assert_eq!(link.is_empty(), mesh.user.is_rootless());
    let there = traces(mesh, &link);
    for sign in ["process", "sleep", "files"] {
        assert!(there.iter().any(|trace| trace.contains(sign)), "no {sign}: {there:?}");
    }
    mesh.ok(&["down"]);
    gone(mesh, &link, |_| true);
}

#[test]
fn a_killed_parent_takes_everything_with_it_and_the_next_down_sweeps_the_files() {
    if let Some(mesh) = TestMesh::prepare(Who::Tester, "killed") {
        killed(mesh, |foreground| foreground);
    }
}

#[test]
fn so_it_does_without_root() {
    if let Some(mesh) = TestMesh::prepare(Who::Ordinary, "killed-user") {
        killed(mesh, |foreground| foreground);
    }
}

#[test]
fn a_killed_process_between_takes_everything_with_it_too() {
    // The one that entered the user namespace: the only child of the foreground's.
    let child = |pid: u32| {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("its children");
        let elsewhere = || {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten();
            tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default()).collect()
        };
        let children: String = if children.trim().is_empty() { elsewhere() } else { children };
        children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("a child")
    };
    if let Some(mesh) = TestMesh::prepare(Who::Ordinary, "killed-between") {
        killed(mesh, child);
    }
}

/// A mesh in the foreground, so that there is a parent, of which `whom` is killed.
fn killed(mut mesh: TestMesh, whom: impl Fn(u32) -> u32) {
    let file = mesh.file("pod.yaml", &pod());
    let mut command = mesh.command(&["up", "--plain", &file]);
    let mut parent = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("weft up");
    let deadline = Instant::now() + PATIENCE;
    while !traces(&mesh, "").iter().any(|t| t.contains(&format!("sleep {}", nap())) && !t.contains("setsid"))
    {
        assert!(Instant::now() < deadline, "the pod never ran");
        sleep(Duration::from_millis(50));
    }
    let link = link(&mesh);
    let victim = whom(parent.id());
    let victim = rustix::process::Pid::from_raw(i32::try_from(victim).expect("a pid")).expect("a pid");
    rustix::process::kill_process(victim, rustix::process::Signal::KILL).expect("kill -9");
    parent.wait().expect("the parent ends");
    if victim.as_raw_nonzero().get().unsigned_abs() == parent.id() {
        gone(&mesh, &link, |trace| !trace.starts_with("files"));
        mesh.ok(&["down"]);
    }
    // If something else was killed, the parent sweeps.
    gone(&mesh, &link, |_| true);
}
