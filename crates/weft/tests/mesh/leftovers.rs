//! Nothing outlives a mesh, however it ends.

use crate::harness::{PATIENCE, TestMesh, impossible};
use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: sleeper, namespace: default, annotations: {linkerd.io/inject: enabled}}
spec:
  containers: [{name: app, image: "none:1", command: [sh, -c, "sleep 54321 & setsid sleep 54321 & wait"]}]
"#;

/// What a mesh could leave: processes of its own program or its pods, links of this machine, files.
fn traces(name: &str) -> BTreeSet<String> {
    let mut traces = BTreeSet::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains("54321") || (command.contains(name) && pid != std::process::id()) {
            traces.insert(format!("process {pid} {command}"));
        }
    }
    for entry in fs::read_dir("/sys/class/net").expect("/sys/class/net").flatten() {
        let link = entry.file_name().to_string_lossy().into_owned();
        if link.starts_with("weft") {
            traces.insert(format!("link {link}"));
        }
    }
    if fs::exists(format!("/run/weft/{name}")).unwrap_or(false) {
        traces.insert(format!("/run/weft/{name}"));
    }
    traces
}

fn gone(name: &str, what: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left: Vec<_> = traces(name).into_iter().filter(|t| what(t)).collect();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left behind: {left:?}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn down_leaves_nothing() {
    let Some(mesh) = TestMesh::up("down-clean", POD) else { return };
    let name = mesh.name.clone();
    assert!(traces(&name).iter().any(|t| t.contains("54321")), "{:?}", traces(&name));
    mesh.ok(&["down"]);
    gone(&name, |_| true);
}

#[test]
fn a_killed_parent_takes_everything_with_it_and_the_next_down_sweeps_the_files() {
    if let Some(why) = impossible() {
        eprintln!("SKIPPED: killed parent: {why}");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pod.yaml");
    fs::write(&file, POD).expect("the manifest");
    // A mesh of its own, in the foreground, so that there is a parent to kill.
    let turn = TestMesh::up("turn", "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n");
    let name = format!("t{}-killed", std::process::id());
    let mut parent = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["up", "--name", &name])
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("weft up");
    let deadline = Instant::now() + PATIENCE;
    while !traces(&name).iter().any(|t| t.contains("setsid") || t.contains("sleep 54321")) {
        assert!(Instant::now() < deadline, "the pod never ran");
        sleep(Duration::from_millis(50));
    }
    parent.kill().expect("kill -9");
    parent.wait().expect("the parent ends");
    gone(&name, |t| t.contains("54321") || t.contains(&name) && !t.starts_with("/run"));

    let down =
        Command::new(env!("CARGO_BIN_EXE_weft")).args(["down", "--mesh", &name]).output().expect("weft down");
    assert!(down.status.success(), "{}", crate::harness::shown(&down));
    drop(turn);
    gone(&name, |_| true);
}
