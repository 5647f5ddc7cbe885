//! `weft up` as an ordinary user: what it cannot give is refused with the reason, and users keep out of each other's way.

use crate::{
    harness::{TestMesh, load, shown},
    who::{User, Who},
};
use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf};

const REFUSED: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: users, annotations: {linkerd.io/inject: enabled}}
---
apiVersion: v1
kind: Service
metadata: {name: fine, namespace: users}
spec: {selector: {app: fine}, ports: [{port: 80, targetPort: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: fine, namespace: users, labels: {app: fine}}
spec:
  containers:
  - name: app
    image: "none:1"
    # A low port, which only root could listen on.
    command: [weft, sample, bench-server, --listen, "0.0.0.0:80"]
    ports: [{containerPort: 80}]
    securityContext: {runAsUser: 0, readOnlyRootFilesystem: true}
    volumeMounts: [{name: scratch, mountPath: /opt/deep/down/scratch}, {name: scratch, mountPath: /usr/share/scratch}]
  volumes: [{name: scratch, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: users, labels: {wait: "no"}}
spec:
  securityContext: {fsGroup: 2000}
  containers:
  - {name: app, image: "none:1", command: [sleep, "3600"], securityContext: {runAsUser: 1000}}
"#;

/// A mesh of an ordinary user's, whichever way there is to one.
fn up(name: &str, yaml: &str) -> Option<TestMesh> {
    let who = if rustix::process::geteuid().is_root() { Who::Ordinary } else { Who::Tester };
    let mut mesh = TestMesh::prepare(who, name)?;
    let file = mesh.file("mesh.yaml", yaml);
    // One pod will never be ready.
    let output = mesh.weft(&["up", "--detach", "--timeout", "3", &file]);
    let text = shown(&output);
    assert!(text.contains("goes on running") || output.status.success(), "{text}");
    Some(mesh)
}

/// Arguments of `weft` that run a script in the pod `fine`.
fn in_fine(script: &str) -> [&str; 10] {
    ["exec", "-n", "users", "fine", "-c", "app", "--", "sh", "-c", script]
}

#[test]
fn other_users_are_refused_and_the_rest_works() {
    let Some(mesh) = up("users", REFUSED) else { return };
    let get = |name: &str| mesh.get(&format!("/api/v1/namespaces/users/pods/{name}"));
    let status = |pod: &serde_json::Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].clone();

    // Refused, in the status and as an event, with what was asked for.
    mesh.until(&["stat"], |_, _| status(&get("other"))["reason"] == "CreateContainerConfigError");
    let message = status(&get("other"))["message"].as_str().expect("a message").to_owned();
    for part in ["NOD-011", "runAsUser=1000", "fsGroup=2000", "mapped=0", "sudo weft up"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let events = mesh.get("/api/v1/namespaces/users/events?fieldSelector=involvedObject.name%3Dother");
    assert!(events.to_string().contains("NOD-011"), "{events:#}");

    // A low port, a root directory that cannot be written, and volumes in directories of root's.
    mesh.until(&in_fine("true"), |output, _| output.status.success());
    let sh = |script: &str| mesh.ok(&in_fine(script));
    assert_eq!(sh("id -u"), "0\n");
    assert_eq!(sh("echo x > /opt/deep/down/scratch/f && cat /usr/share/scratch/f"), "x\n");
    for path in ["/usr/f", "/etc/f", "/f", "/opt/f"] {
        assert!(sh(&format!("touch {path} 2>&1 || true")).to_lowercase().contains("read-only"), "{path}");
    }
    // Names are resolved by the mesh alone, whatever this machine uses.
    assert!(sh("cat /etc/nsswitch.conf").contains("hosts: files dns\n"));
    assert!(sh("test ! -L /etc/resolv.conf && cat /etc/resolv.conf").contains("svc.cluster.local"));
    mesh.until(&load("users", "fine", "http://fine/", &["--requests", "3", "--strict"]), |output, _| {
        output.status.success()
    });
}

#[test]
fn users_do_not_see_each_others_meshes() {
    const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n";
    let Some(mesh) = TestMesh::up_as(Who::Ordinary, "mine", NAMESPACE) else { return };
    // Nobody else looks into it.
    let root = mesh.user.state_root();
    let kubeconfig = fs::metadata(mesh.state().join("kubeconfig")).expect("the kubeconfig");
    assert_eq!(
        (kubeconfig.mode() & 0o777, fs::metadata(&root).expect("the root").mode() & 0o777),
        (0o600, 0o700)
    );
    // Root, who runs the tests, has a mesh of this name as little as the user would have root's.
    let output =
        User::new(Who::Tester).expect("root").command(None).args(["stat", "--name", &mesh.name]).output();
    let text = shown(&output.expect("weft runs"));
    assert!(text.contains("NOD-006"), "{text}");
    mesh.ok(&["stat"]);
}

#[test]
fn a_folder_that_somebody_else_made_is_not_believed() {
    let user = match User::new(Who::Ordinary) {
        Ok(user) => user,
        Err(why) => {
            eprintln!("SKIPPED: foreign folder: {why}");
            return;
        }
    };
    // Where it would be without a session: anybody can make this one.
    let folder = PathBuf::from(format!("/tmp/weft-{}", user.uid.expect("a user of its own")));
    fs::create_dir_all(&folder).expect("a folder of root's");
    let said = ["stat", "down"].map(|command| {
        shown(&user.command(None).arg(command).env_remove("XDG_RUNTIME_DIR").output().expect("weft runs"))
    });
    fs::remove_dir(&folder).expect("the folder is as it was");
    for text in said {
        for part in ["CFG-006", "belongs to user 0", "XDG_RUNTIME_DIR"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

/// In a user namespace of its own, where the setting holds for nobody else.
#[test]
fn a_kernel_that_refuses_is_explained() {
    let user = match User::new(Who::Tester) {
        Ok(user) => user,
        Err(why) => {
            eprintln!("SKIPPED: refusal: {why}");
            return;
        }
    };
    let folder = user.folder();
    let file = folder.path().join("x.yaml");
    fs::write(&file, "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n").expect("a manifest");
    // Somebody without any capability, who is called root there: that alone is no reason to be taken for root.
    let script = format!(
        "mount -t tmpfs none /run && echo 0 > /proc/sys/user/max_user_namespaces &&
         exec setpriv --bounding-set=-all --inh-caps=-all {} up --plain {}",
        env!("CARGO_BIN_EXE_weft"),
        file.display()
    );
    let mut unshare = user.command(Some("unshare"));
    let output = unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).output();
    let output = output.expect("unshare");
    let text = shown(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    let raise = "sudo sysctl -w user.max_user_namespaces=15000";
    for part in ["NOD-010", "setting=user.max_user_namespaces", "value=0", raise] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
