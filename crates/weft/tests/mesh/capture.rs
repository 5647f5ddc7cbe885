//! What crosses between meshed pods is encrypted: a capture of the node's links holds no byte of what the applications say.

use crate::harness::{TestMesh, load};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::Read as _,
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

/// Frames on every link of the node that hold the marker, while the client calls the server with it in the URL.
fn marked_frames(mesh: &TestMesh) -> (usize, usize) {
    let supervisor = supervisor_pid(mesh);
    let stop = Arc::new(AtomicBool::new(false));
    let (ready, is_ready) = std::sync::mpsc::channel();
    let seen = thread::spawn({
        let stop = stop.clone();
        move || {
            let namespace =
                std::fs::File::open(format!("/proc/{supervisor}/ns/net")).expect("the node's namespace");
            rustix::thread::move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )
            .expect("entering the node's namespace");
            // ETH_P_ALL, big-endian: every frame of every link, both directions.
            let socket =
                Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(i32::from(3u16.to_be()))))
                    .expect("a packet socket");
            socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
            ready.send(()).expect("the test waits");
            let (mut frames, mut marked, mut frame) = (0, 0, vec![0; 70_000]);
            let mut socket = socket;
            while !stop.load(Ordering::Relaxed) {
                let Ok(length) = socket.read(&mut frame) else { continue };
                frames += 1;
                marked += usize::from(frame[..length].windows(MARKER.len()).any(|w| w == MARKER.as_bytes()));
            }
            (frames, marked)
        }
    });
    is_ready.recv().expect("the capture began");
    let target = format!("http://mail:8025/?say={MARKER}");
    let load = load("secret", "client", &target, &["--requests", "10", "--strict"]);
    mesh.until(&load, |output, _| output.status.success());
    stop.store(true, Ordering::Relaxed);
    seen.join().expect("the capture")
}

/// The process whose network namespace is the node's.
fn supervisor_pid(mesh: &TestMesh) -> u32 {
    let needle = mesh.state().display().to_string();
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut found =
        processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|pid| {
            // Its log is its standard output.
            std::fs::read_link(format!("/proc/{pid}/fd/1")).is_ok_and(|to| to.starts_with(&needle))
                && std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()
                    != std::fs::read_link("/proc/self/ns/net").ok()
                && std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|s| {
                    s.lines().any(|l| {
                        l.starts_with("NSpid:") && l.split_whitespace().count() == 3 && l.ends_with("\t1")
                    })
                })
        });
    found.next().expect("the supervisor runs")
}

#[test]
fn nothing_readable_crosses_between_meshed_pods() {
    let Some(mesh) = TestMesh::up("sealed", &manifests("enabled")) else { return };
    let (frames, marked) = marked_frames(&mesh);
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
