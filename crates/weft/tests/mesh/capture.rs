//! What crosses between meshed pods is encrypted: a capture of the node's links holds no byte of what the applications say.

use crate::{
    harness::{TestMesh, load},
    who::Who,
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

const MARKER: &str = "marker-7f3a91c2-nobody-may-read-this";

fn manifests(inject: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Namespace
metadata: {{name: secret, annotations: {{linkerd.io/inject: {inject}}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: mail, namespace: secret}}
spec: {{selector: {{app: mail}}, ports: [{{port: 8025}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: mail, namespace: secret, labels: {{app: mail}}}}
spec: {{containers: [{{name: app, image: "none:1", command: [weft, sample, bench-server, --listen, "0.0.0.0:8025"]}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: client, namespace: secret}}
spec: {{containers: [{{name: app, image: "none:1", command: [sleep, "3600"]}}]}}
"#
    )
}

/// Frames on every link of the node, and those that hold the marker, while the client calls the server with it in the URL.
fn marked_frames(mesh: &TestMesh) -> (usize, usize) {
    let mut capture = in_namespaces_of(supervisor_pid(mesh));
    capture.args(["--ignored", "--exact", "--nocapture", "capture::a_capture_for_another_test"]);
    let mut capture =
        capture.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("nsenter, of util-linux");
    let mut said = BufReader::new(capture.stdout.take().expect("its output")).lines();
    let mut next = |word: &str| {
        let line = said.by_ref().flatten().find(|line| line.contains(word));
        line.unwrap_or_else(|| panic!("the capture ended before it said {word}"))
    };
    next("capturing");
    let target = format!("http://mail:8025/?say={MARKER}");
    let load = load("secret", "client", &target, &["--requests", "10", "--strict"]);
    mesh.until(&load, |output, _| output.status.success());
    drop(capture.stdin.take());
    let line = next("captured");
    let numbers = line.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<usize>>();
    assert!(capture.wait().expect("the capture").success());
    match numbers[..] {
        [frames, marked] => (frames, marked),
        _ => panic!("{line}"),
    }
}

/// This program again, in the network namespace of a process.
fn in_namespaces_of(pid: u32) -> Command {
    let mut nsenter = Command::new("nsenter");
    nsenter.args(["--target", &pid.to_string(), "--net"]);
    // Root may do so from where it is; whoever owns the user namespace has to be in it.
    if !rustix::process::geteuid().is_root() {
        nsenter.args(["--user", "--preserve-credentials"]);
    }
    nsenter.arg("--").arg(std::env::current_exe().expect("this program"));
    nsenter
}

/// Started by the tests below: captures what passes in its network namespace until its standard input ends.
#[test]
#[ignore = "no test by itself: the tests below start this program anew with it, inside the network namespace that they look at, and check what it counts"]
fn a_capture_for_another_test() {
    // ETH_P_ALL, big-endian: every frame of every link, both directions.
    let every = Protocol::from(i32::from(3u16.to_be()));
    let mut socket = Socket::new(Domain::PACKET, Type::RAW, Some(every)).expect("a packet socket");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let stop = Arc::new(AtomicBool::new(false));
    let watch = stop.clone();
    thread::spawn(move || {
        let _end = std::io::stdin().read_to_end(&mut Vec::new());
        watch.store(true, Ordering::Relaxed);
    });
    println!("capturing");
    let (mut frames, mut marked, mut frame) = (0, 0, vec![0; 70_000]);
    while !stop.load(Ordering::Relaxed) {
        let Ok(length) = socket.read(&mut frame) else { continue };
        frames += 1;
        marked += usize::from(frame[..length].windows(MARKER.len()).any(|w| w == MARKER.as_bytes()));
    }
    println!("captured {frames} {marked}");
}

/// The process whose network namespace is the node's.
fn supervisor_pid(mesh: &TestMesh) -> u32 {
    let needle = mesh.state().display().to_string();
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let mut found =
        processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|pid| {
            // Its log is its standard output.
            fs::read_link(format!("/proc/{pid}/fd/1")).is_ok_and(|to| to.starts_with(&needle))
                && fs::read_link(format!("/proc/{pid}/ns/net")).ok()
                    != fs::read_link("/proc/self/ns/net").ok()
                && fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|s| {
                    s.lines().any(|l| {
                        l.starts_with("NSpid:") && l.split_whitespace().count() == 3 && l.ends_with("\t1")
                    })
                })
        });
    found.next().expect("the supervisor runs")
}

#[test]
fn nothing_readable_crosses_between_meshed_pods() {
    if let Some(mesh) = TestMesh::up("sealed", &manifests("enabled")) {
        is_sealed(&mesh);
    }
}

#[test]
fn nothing_readable_crosses_without_root_either() {
    if let Some(mesh) = TestMesh::up_as(Who::Ordinary, "sealed-user", &manifests("enabled")) {
        is_sealed(&mesh);
    }
}

fn is_sealed(mesh: &TestMesh) {
    let (frames, marked) = marked_frames(mesh);
    assert!(frames > 0, "the capture saw nothing");
    assert_eq!(marked, 0, "of {frames} frames");
}

/// The same capture without the mesh sees the marker: the test above can fail.
#[test]
fn the_capture_would_see_it() {
    let Some(mesh) = TestMesh::up("open", &manifests("disabled")) else { return };
    let (_, marked) = marked_frames(&mesh);
    assert!(marked > 0);
}
