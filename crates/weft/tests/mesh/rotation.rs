//! B34: the trust root is replaced while requests go on, and no step is taken that would cut a proxy off unasked.

use crate::{
    harness::{PATIENCE, TestMesh, load, shown},
    restarts::YAML,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
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
        let loading = scope.spawn(|| {
            let mut rounds = 0;
            while !rotated.load(Relaxed) {
                let more = ["--rate", "50", "--connections", "4", "--requests", "100", "--strict"];
                let output = mesh.weft(&load("busy", "client", "http://web:8025/healthz", &more));
                assert!(output.status.success(), "round {rounds}: {}", shown(&output));
                rounds += 1;
            }
            rounds
        });
        let output = mesh.weft(&["identity", "rotate", "--timeout", "3m"]);
        rotated.store(true, Relaxed);
        assert!(loading.join().expect("no request failed") > 0);
        output
    });
    assert!(output.status.success(), "{}", shown(&output));
    let after = trusted(&mesh);
    assert!(after.len() == 1 && after != before, "{before:?} {after:?}");
    mesh.until(&["identity"], |output, _| output.status.success());

    // Another trust domain's roots take the same way to the proxies.
    let file = mesh.state().join("east.pem");
    fs::write(&file, Ca::root("east.example", Duration::from_secs(3_600)).expect("a root").certificate_pem())
        .expect("a file");
    mesh.ok(&["identity", "trust", "east.example", &file.display().to_string()]);
    let until = Instant::now() + PATIENCE;
    while !mesh.get("/api/v1/namespaces/busy/configmaps/weft-identity-trust-roots")["data"]["foreign.east.example.crt"]
        .is_string()
    {
        assert!(Instant::now() < until, "the namespace never got the foreign roots");
        thread::sleep(Duration::from_millis(200));
    }
    mesh.ok(&["identity", "trust", "east.example", "--remove"]);

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
pub(crate) fn proxy_of(pod: &str) -> Pid {
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
    let Some(mesh) = TestMesh::up("recover", YAML) else { return };
    // The controller writes the copy once; later it comes back to it after minutes.
    mesh.until(&["identity"], |_, _| {
        let maps = mesh.get("/api/v1/namespaces/busy/configmaps");
        maps["items"].to_string().contains("weft-identity-trust-roots")
    });
    // Expiry that nobody has to wait for: everybody is given a root that ends now, and an issuer below it.
    let root = Ca::root("root.example", Duration::ZERO).expect("a root");
    let issuer = root.issuer("issuer.example", Duration::ZERO).expect("an issuer");
    let roots = json!({"data": {"ca-bundle.crt": root.certificate_pem()}});
    let secret = json!({"stringData": {"crt.pem": issuer.certificate_pem(), "key.pem": issuer.key_pem()}});
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        use k8s_openapi::api::core::v1::{ConfigMap, Secret};
        use kube::{
            Api,
            api::{Patch, PatchParams},
        };
        let client = mesh.client().await;
        let (params, linkerd) = (PatchParams::default(), "linkerd");
        let secrets: Api<Secret> = Api::namespaced(client.clone(), linkerd);
        secrets.patch("linkerd-identity-issuer", &params, &Patch::Merge(secret)).await.expect("the issuer");
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), linkerd);
        maps.patch("linkerd-identity-trust-roots", &params, &Patch::Merge(&roots)).await.expect("the roots");
        // The controller does not spread roots that its issuer does not lead to; in real life they were there before they expired.
        let maps: Api<ConfigMap> = Api::namespaced(client, "busy");
        maps.patch("weft-identity-trust-roots", &params, &Patch::Merge(&roots)).await.expect("the copy");
    });
    let expired = weft_tls::certificate::sha256_hex(root.certificate());
    mesh.until(&["identity", "-o", "json"], |_, text| {
        let found: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        let all = found["proxies"].as_array().into_iter().flatten();
        let trusting =
            all.filter(|proxy| proxy["trusts"] == json!([expired]) && proxy["certificate"].is_null());
        trusting.count() == 4
    });

    let shown_first = mesh.weft(&["identity"]);
    assert_eq!(shown_first.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&shown_first.stdout).contains("has expired"), "{}", shown(&shown_first));
    let refused = mesh.weft(&["identity", "rotate"]);
    assert_eq!(refused.status.code(), Some(2), "{}", shown(&refused));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--recover"), "{}", shown(&refused));
    let output = mesh.weft(&["identity", "rotate", "--recover", "--timeout", "3m"]);
    assert!(output.status.success(), "{}", shown(&output));
    let get = load("busy", "client", "http://web:8025/healthz", &["--requests", "100", "--strict"]);
    mesh.until(&get, |output, _| output.status.success());
}
