//! B34: the trust root is replaced while requests go on, and no step is taken that would cut a proxy off unasked.

use crate::{
    harness::{PATIENCE, TestMesh, shown},
    restarts::YAML,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    process::Output,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};
use weft_tls::authority::Ca;

#[test]
fn the_root_is_rotated_under_load_and_not_while_a_proxy_would_be_left_behind() {
    let Some(mesh) = TestMesh::up("rotation", YAML) else { return };
    let before = trusted(&mesh);
    assert_eq!(before.len(), 1);

    // 1. All proxies are there: every request of many short connections is answered.
    let rotated = AtomicBool::new(false);
    let output = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut rounds = 0;
            while !rotated.load(Relaxed) {
                let output = mesh.weft(&[
                    "exec",
                    "-n",
                    "busy",
                    "client",
                    "--",
                    "weft",
                    "sample",
                    "load",
                    "--target",
                    "http://web:8025/healthz",
                    "--rate",
                    "50",
                    "--connections",
                    "4",
                    "--requests",
                    "100",
                    "--strict",
                ]);
                assert!(output.status.success(), "round {rounds}: {}", shown(&output));
                rounds += 1;
            }
            rounds
        });
        let output = mesh.weft(&["identity", "rotate", "--timeout", "3m"]);
        rotated.store(true, Relaxed);
        assert!(load.join().expect("no request failed") > 0);
        output
    });
    assert!(output.status.success(), "{}", shown(&output));
    let after = trusted(&mesh);
    assert!(after.len() == 1 && after != before, "{before:?} {after:?}");
    mesh.until(&["identity"], |output, _| output.status.success());

    // 2. One proxy stands still: the rotation stops before it matters, and names it.
    let pods = mesh.get("/api/v1/namespaces/busy/pods?labelSelector=app%3Dweb");
    let pod = pods["items"][0]["metadata"]["name"].as_str().expect("a replica").to_owned();
    let proxy = proxy_of(&pod);
    kill_process(proxy, Signal::STOP).expect("the proxy stops");
    let output = mesh.weft(&["identity", "rotate", "--timeout", "20s"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
    let named: Vec<&str> = told.lines().filter(|line| line.contains('×')).collect();
    assert!(named.len() == 1 && named[0].contains(&format!("busy/{pod}:")), "{told}");
    assert!(trusted(&mesh).is_superset(&after), "nothing was taken away");

    // 3. It goes on: so does the rotation, where it was.
    kill_process(proxy, Signal::CONT).expect("the proxy goes on");
    let output: Output = mesh.weft(&["identity", "rotate", "--timeout", "3m"]);
    assert!(output.status.success(), "{}", shown(&output));
    assert!(trusted(&mesh).is_disjoint(&after));
}

fn trusted(mesh: &TestMesh) -> std::collections::BTreeSet<String> {
    let text = String::from_utf8(mesh.weft(&["identity", "-o", "json"]).stdout).expect("text");
    let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let roots = found["roots"].as_array().expect("roots").iter();
    roots.map(|root| root["sha256"].as_str().expect("a fingerprint").to_owned()).collect()
}

/// The process of a pod's proxy.
fn proxy_of(pod: &str) -> Pid {
    let until = Instant::now() + PATIENCE;
    let (name, proxy) = (format!("_pod_name={pod}\0"), b"proxy\0");
    loop {
        for entry in fs::read_dir("/proc").expect("/proc").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
            let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
            if read("cmdline").ends_with(proxy)
                && read("environ").windows(name.len()).any(|w| w == name.as_bytes())
            {
                return Pid::from_raw(pid).expect("a pid is not zero");
            }
        }
        assert!(Instant::now() < until, "no proxy of {pod}");
    }
}

/// The worst case: the root has expired, its key is lost, and no certificate in the mesh is valid any more.
#[test]
fn a_mesh_whose_root_has_expired_recovers_without_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let life = Duration::from_secs(40);
    let root = Ca::root("root.example", life).expect("a root");
    let issuer = root.issuer("issuer.example", life).expect("an issuer");
    fs::write(at("mesh.yaml"), YAML).expect("the manifest");
    fs::write(at("ca.pem"), root.certificate_pem()).expect("the anchor");
    fs::write(at("issuer.pem"), issuer.certificate_pem() + &issuer.key_pem()).expect("the issuer");
    let args = [at("mesh.yaml"), "--trust-anchor".into(), at("ca.pem"), "--issuer".into(), at("issuer.pem")];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some(mesh) = TestMesh::up_with("recover", &args, None) else { return };

    mesh.until(&["identity"], |output, text| output.status.code() == Some(1) && text.contains("has expired"));
    let refused = mesh.weft(&["identity", "rotate"]);
    assert_eq!(refused.status.code(), Some(2), "{}", shown(&refused));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--recover"), "{}", shown(&refused));
    let output = mesh.weft(&["identity", "rotate", "--recover", "--timeout", "3m"]);
    assert!(output.status.success(), "{}", shown(&output));
    let get = ["exec", "-n", "busy", "client", "--", "weft", "sample", "load", "--target"];
    let get = [&get[..], &["http://web:8025/healthz", "--requests", "100", "--strict"]].concat();
    mesh.until(&get, |output, _| output.status.success());
}
