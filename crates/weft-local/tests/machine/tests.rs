//! The tests. They share one machine, as they would share a cluster; `kill -9` comes last.

use super::{
    agent::another_agent_takes_over,
    clusters::meshes_are_apart_or_peers,
    forward::ports_are_forwarded_from_inside_the_pod,
    kubectl::kubectl_reaches_into_containers,
    lab::{self, apply, condition, logs, phase, ready, until},
    policies::network_policies_are_enforced,
    tool,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client,
    api::{AttachParams, DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use std::{
    fs::Permissions,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::io::AsyncReadExt;
use weft_local::{
    rights::Rights,
    up::{Mesh, MeshInfo},
};

/// Runs the tests whose names contain the filter, and says what ran: libtest cannot, since this program comes back as
/// other processes.
pub(crate) fn run(filter: &[&str]) -> ExitCode {
    // What cargo and nextest ask of a test program.
    if filter.contains(&"--list") {
        return ExitCode::SUCCESS;
    }
    let root = tempfile::tempdir().expect("a directory");
    let name = format!("t{}", std::process::id());
    let Some(mesh) = lab::start_if_allowed(&name, root.path()) else {
        eprintln!("SKIPPED: machine: this machine allows no namespaces");
        return ExitCode::SUCCESS;
    };
    let rights = Rights::of_this_process();
    println!("with the rights of {rights:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let wanted = |test: &str| filter.iter().all(|f| f.starts_with('-') || test.contains(f));
    macro_rules! tests {
        ($($test:ident),*) => {$(
            if wanted(stringify!($test)) {
                let started = std::time::Instant::now();
                runtime.block_on(async { $test(&lab::client(&mesh).await, &mesh).await });
                println!("test {} ... ok ({:.1?})", stringify!($test), started.elapsed());
            }
        )*};
    }
    tests!(
        pods_services_and_names,
        environment_and_volumes,
        init_containers_and_sidecars_of_a_job,
        restarts_and_probes,
        graceful_ends,
        commands_in_containers,
        ports_are_forwarded_from_inside_the_pod,
        kubectl_reaches_into_containers,
        redirected_pods,
        images_without_a_command_say_so,
        another_agent_takes_over,
        network_policies_are_enforced
    );
    let state = root.path().join(&name);
    if wanted("stop") {
        let info = mesh.info().clone();
        mesh.stop(Duration::from_secs(2)).expect("stopped");
        assert!(!state.exists() && !has_link(&info));
        println!("test stop ... ok");
    }
    if wanted("meshes_are_apart_or_peers") && rights == Rights::User {
        eprintln!("SKIPPED: meshes_are_apart_or_peers: only root can make links between meshes");
    } else if wanted("meshes_are_apart_or_peers") {
        let started = std::time::Instant::now();
        runtime.block_on(meshes_are_apart_or_peers(root.path()));
        println!("test meshes_are_apart_or_peers ... ok ({:.1?})", started.elapsed());
    }
    if wanted("killed_parent_leaves_nothing") {
        runtime.block_on(killed_parent_leaves_nothing(root.path()));
        println!("test killed_parent_leaves_nothing ... ok");
    }
    if rights == Rights::Root { without_root(filter) } else { ExitCode::SUCCESS }
}

/// The same tests again, as a user whom nobody knows.
fn without_root(filter: &[&str]) -> ExitCode {
    // systemd's range of users that come and go.
    let user = 61_184 + std::process::id() % 4_000;
    // The program comes along: where root builds, others often may not look.
    let folder =
        tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().expect("a directory");
    let program = folder.path().join("machine");
    std::fs::copy("/proc/self/exe", &program).expect("a copy of this program");
    let mut again = std::process::Command::new(&program);
    // Its groups go by this, too.
    again.args(filter).uid(user).gid(user).env_remove("XDG_RUNTIME_DIR").current_dir("/");
    match again.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => panic!("as user {user}: {error}"),
    }
}

/// The command of a pod that is this program again.
pub(crate) fn tool_command(words: &[&str]) -> String {
    // In containers, the program that runs the mesh goes by this name.
    let mut command = vec!["weft", "tool"];
    command.extend(words);
    serde_json::to_string(&command).expect("JSON")
}

pub(crate) fn link_exists(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

/// Whether this machine has the link that leads to the mesh, if one does.
fn has_link(info: &MeshInfo) -> bool {
    info.host_link && Path::new("/sys/class/net").join(info.network.host_link()).exists()
}

/// What the HTTP server at an address answers: asked from this machine, or from a pod where this machine has no way there.
async fn ask(client: &Client, mesh: &Mesh, address: &str) -> Result<String, String> {
    if mesh.info().host_link {
        return tool::get(address).map_err(|e| e.to_string());
    }
    let words: Vec<String> = serde_json::from_str(&tool_command(&["get", address])).expect("a command");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let script = format!("exec {} 2>&1", words.join(" "));
    match exec(client, "asker", &["sh", "-c", &script]).await {
        (text, status) if status == "Success" => Ok(text.trim_end().to_owned()),
        (text, _) => Err(text),
    }
}

fn is_refusal(answer: &Result<String, String>) -> bool {
    answer.as_ref().is_err_and(|why| why.contains("Connection refused"))
}

pub(crate) fn pods(client: &Client) -> Api<Pod> {
    Api::default_namespaced(client.clone())
}

async fn pods_services_and_names(client: &Client, mesh: &Mesh) {
    let serve = tool_command(&["serve", "8080", "hello"]);
    let get = tool_command(&["get", "web:80"]);
    let get_pod = tool_command(&["get", "db-0.db.default.svc.cluster.local:8080"]);
    apply(
        client,
        &format!(
            r#"
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: http}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: db}}
spec: {{selector: {{app: web}}, clusterIP: None, ports: [{{port: 8080}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web, labels: {{app: web}}}}
spec:
  hostname: db-0
  subdomain: db
  containers:
  - {{name: web, image: none, command: {serve}, ports: [{{name: http, containerPort: 8080}}],
     readinessProbe: {{httpGet: {{port: http}}, periodSeconds: 1}}}}
"#
        ),
    )
    .await;
    let web = ready(client, "web").await;
    for (name, command) in [("by-service", get), ("by-pod-name", get_pod)] {
        apply(
            client,
            &format!(
                r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: OnFailure
  containers: [{{name: c, image: none, command: {command}}}]
"#
            ),
        )
        .await;
        phase(client, name, "Succeeded").await;
        assert_eq!(logs(client, name).await, "hello\n");
    }
    let served = logs(client, "web").await;
    assert!(served.starts_with("listening\n"), "{served}");
    let client_ip = pods(client).get("by-service").await.unwrap().status.unwrap().pod_ip.unwrap();
    assert!(served.contains(&format!("request from {client_ip}\n")), "{served}");
    // From this machine, or from a pod, to the pod and to the service.
    assert_eq!(mesh.info().host_link, Rights::of_this_process() == Rights::Root);
    if !mesh.info().host_link {
        let yaml = "apiVersion: v1\nkind: Pod\nmetadata: {name: asker}\n\
                    spec: {containers: [{name: c, image: none, command: [sleep, '3600']}]}\n";
        apply(client, yaml).await;
        ready(client, "asker").await;
    }
    let pod_ip = web["status"]["podIP"].as_str().unwrap();
    assert_eq!(ask(client, mesh, &format!("{pod_ip}:8080")).await.unwrap(), "hello");
    let services: Api<k8s_openapi::api::core::v1::Service> = Api::default_namespaced(client.clone());
    let ip = services.get("web").await.unwrap().spec.unwrap().cluster_ip.unwrap();
    assert_eq!(ask(client, mesh, &format!("{ip}:80")).await.unwrap(), "hello");
    // Without endpoints a service refuses at once.
    pods(client).delete("web", &DeleteParams::default().grace_period(1)).await.unwrap();
    until(client, "web", "gone", serde_json::Value::is_null).await;
    // So does the address of a pod that is gone.
    let answer = ask(client, mesh, &format!("{pod_ip}:8080")).await;
    assert!(is_refusal(&answer), "{answer:?}");
    // The slice follows the pod a moment later.
    let deadline = Instant::now() + lab::DEADLINE;
    while !is_refusal(&ask(client, mesh, &format!("{ip}:80")).await) {
        assert!(Instant::now() < deadline, "the service without endpoints never refuses");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Where nothing leads outside, what is outside refuses at once, too.
    if !mesh.info().host_link {
        let answer = ask(client, mesh, "192.0.2.1:80").await;
        assert!(is_refusal(&answer), "{answer:?}");
    }
}

async fn environment_and_volumes(client: &Client, _mesh: &Mesh) {
    apply(client, r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: red, file.txt: "content"}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {password: swordfish}
---
apiVersion: v1
kind: Pod
metadata: {name: volumes, labels: {tier: back}}
spec:
  containers:
  - name: c
    image: none
    workingDir: /data
    command: [/bin/sh, -c, "set -e; pwd; echo $COLOR $PASSWORD $NAME $COMBINED $0; cat /etc/settings/file.txt /etc/sub; echo; cat /etc/podinfo/labels; echo; test -s /var/run/secrets/tokens/t; echo x > /data/y; ! echo x > /etc/settings/z; echo w > /usr/written; id -u; while read color < /etc/settings/color; [ $color != blue ]; do sleep 0.1; done; echo blue now", "$(NAME)!"]
    securityContext: {runAsUser: 0}
    env:
    - {name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: keys, key: password}}}
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: COMBINED, value: "$(COLOR)-$(NAME)"}
    volumeMounts:
    - {name: settings, mountPath: /etc/settings}
    - {name: settings, mountPath: /etc/sub, subPath: color}
    - {name: data, mountPath: /data}
    - {name: info, mountPath: /etc/podinfo}
    - {name: token, mountPath: /var/run/secrets/tokens}
  restartPolicy: Never
  volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: data, emptyDir: {}}
  - {name: info, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - {name: token, projected: {sources: [{serviceAccountToken: {path: t, audience: identity.l5d.io, expirationSeconds: 3600}}]}}
"#).await;
    ready(client, "volumes").await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let patch = Patch::Merge(json!({"data": {"color": "blue"}}));
    maps.patch("settings", &PatchParams::default(), &patch).await.unwrap();
    phase(client, "volumes", "Succeeded").await;
    let want = "/data\nred swordfish volumes red-volumes volumes!\ncontentred\ntier=\"back\"\n0\nblue now\n";
    let got: String = logs(client, "volumes")
        .await
        .lines()
        .filter(|l| !l.contains("ead-only"))
        .map(|l| format!("{l}\n"))
        .collect();
    assert_eq!(got, want);
    assert!(!Path::new("/usr/written").exists());
}

async fn init_containers_and_sidecars_of_a_job(client: &Client, _mesh: &Mesh) {
    apply(client, r#"
apiVersion: batch/v1
kind: Job
metadata: {name: work}
spec:
  template:
    spec:
      restartPolicy: Never
      initContainers:
      - {name: first, image: none, command: [/bin/sh, -c, "echo first > /shared/log"], volumeMounts: [{name: s, mountPath: /shared}]}
      - name: beside
        image: none
        restartPolicy: Always
        command: [/bin/sh, -c, "trap 'echo bye; exit 0' TERM; echo beside >> /shared/log; touch /shared/up; while :; do sleep 0.1; done"]
        startupProbe: {exec: {command: [test, -e, /shared/up]}, periodSeconds: 1, failureThreshold: 30}
        volumeMounts: [{name: s, mountPath: /shared}]
      - {name: last, image: none, command: [/bin/sh, -c, "echo last >> /shared/log"], volumeMounts: [{name: s, mountPath: /shared}]}
      containers:
      - {name: main, image: none, command: [/bin/sh, -c, "cat /shared/log"], volumeMounts: [{name: s, mountPath: /shared}]}
      volumes: [{name: s, emptyDir: {}}]
"#).await;
    let jobs: Api<k8s_openapi::api::batch::v1::Job> = Api::default_namespaced(client.clone());
    let deadline = std::time::Instant::now() + lab::DEADLINE;
    while jobs.get("work").await.unwrap().status.and_then(|s| s.succeeded) != Some(1) {
        assert!(std::time::Instant::now() < deadline, "the job does not complete");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let found = pods(client).list(&kube::api::ListParams::default().labels("job-name=work")).await.unwrap();
    let pod = found.items[0].metadata.name.clone().unwrap();
    let of =
        |container: &str| kube::api::LogParams { container: Some(container.into()), ..Default::default() };
    assert_eq!(pods(client).logs(&pod, &of("main")).await.unwrap(), "first\nbeside\nlast\n");
    assert_eq!(pods(client).logs(&pod, &of("beside")).await.unwrap(), "bye\n");
}

async fn restarts_and_probes(client: &Client, _mesh: &Mesh) {
    apply(client, r#"
apiVersion: v1
kind: Pod
metadata: {name: flaky}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: none
    command: [/bin/sh, -c, "if [ -e /state/second ]; then echo second; rm -f /state/sick; else touch /state/second /state/sick; echo first; fi; while :; do sleep 0.1; done"]
    livenessProbe: {exec: {command: [test, "!", -e, /state/sick]}, periodSeconds: 1, failureThreshold: 1, initialDelaySeconds: 1}
    readinessProbe: {exec: {command: [test, "!", -e, /state/sick]}, periodSeconds: 1}
    volumeMounts: [{name: state, mountPath: /state}]
  volumes: [{name: state, emptyDir: {}}]
"#).await;
    let pod = until(client, "flaky", "ready after a restart", |p| {
        condition(p, "Ready") && p["status"]["containerStatuses"][0]["restartCount"] == 1
    })
    .await;
    let last = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 143, "{last}");
    assert_eq!(logs(client, "flaky").await, "second\n");
    let previous = kube::api::LogParams { previous: true, ..Default::default() };
    assert_eq!(pods(client).logs("flaky", &previous).await.unwrap(), "first\n");
    apply(
        client,
        r#"
apiVersion: v1
kind: Pod
metadata: {name: crashes}
spec: {containers: [{name: c, image: none, command: [/bin/sh, -c, "exit 3"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: absent}
spec: {restartPolicy: Never, containers: [{name: c, image: none, command: [/no/such/program]}]}
"#,
    )
    .await;
    until(client, "crashes", "backed off", |p| {
        let c = &p["status"]["containerStatuses"][0];
        c["state"]["waiting"]["reason"] == "CrashLoopBackOff" && c["lastState"]["terminated"]["exitCode"] == 3
    })
    .await;
    let absent = phase(client, "absent", "Failed").await;
    let ended = &absent["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["reason"], "StartError", "{ended}");
    assert!(ended["message"].as_str().unwrap().contains("/no/such/program"), "{ended}");
}

async fn graceful_ends(client: &Client, _mesh: &Mesh) {
    apply(
        client,
        r#"
apiVersion: v1
kind: Pod
metadata: {name: polite, finalizers: [weft.dev/test]}
spec:
  containers:
  - name: c
    image: none
    command: [/bin/sh, -c, "trap 'echo term; exit 5' TERM; while :; do sleep 0.1; done"]
    lifecycle: {preStop: {exec: {command: [/bin/sh, -c, "echo prestop > /proc/1/fd/1"]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: stubborn}
spec:
  containers: [{name: c, image: none, command: [/bin/sh, -c, "trap '' TERM; while :; do sleep 0.1; done"]}]
"#,
    )
    .await;
    ready(client, "polite").await;
    ready(client, "stubborn").await;
    pods(client).delete("stubborn", &DeleteParams::default().grace_period(2)).await.unwrap();
    pods(client).delete("polite", &DeleteParams::default()).await.unwrap();
    let ended = until(client, "polite", "ended", |p| {
        p["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
    })
    .await;
    assert!(ended["metadata"]["deletionTimestamp"].is_string());
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    // Gone already is as good: the finalizer kept the object only as long as it could.
    let _ = pods(client).patch("polite", &PatchParams::default(), &release).await;
    until(client, "polite", "gone", serde_json::Value::is_null).await;
    until(client, "stubborn", "gone", serde_json::Value::is_null).await;
}

/// What a command in a pod writes, and `Success` or `Failure`.
pub(crate) async fn exec(client: &Client, pod: &str, command: &[&str]) -> (String, String) {
    let params = AttachParams::default().stderr(false);
    let mut running = pods(client).exec(pod, command.iter().copied(), &params).await.unwrap();
    let mut out = String::new();
    running.stdout().unwrap().read_to_string(&mut out).await.unwrap();
    let status = running.take_status().unwrap().await.unwrap();
    (out, status.status.unwrap_or_default())
}

async fn commands_in_containers(client: &Client, _mesh: &Mesh) {
    apply(client, r#"
apiVersion: v1
kind: Pod
metadata: {name: shell}
spec: {containers: [{name: c, image: none, env: [{name: A, value: b}], command: [/bin/sh, -c, "while :; do sleep 0.1; done"]}]}
"#).await;
    ready(client, "shell").await;
    let run = async |script: &str| exec(client, "shell", &["/bin/sh", "-c", script]).await;
    assert_eq!(
        run("hostname; echo $A; cat /proc/1/comm | head -c 0").await,
        ("shell\nb\n".into(), "Success".into())
    );
    assert_eq!(run("exit 7").await, (String::new(), "Failure".into()));
    let terminal = AttachParams::interactive_tty();
    let mut running =
        pods(client).exec("shell", ["/bin/sh", "-c", "tty; read x; echo got $x"], &terminal).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut running.stdin().unwrap(), b"hello\n").await.unwrap();
    let mut out = String::new();
    running.stdout().unwrap().read_to_string(&mut out).await.unwrap();
    // The echo of what was typed may come first.
    assert!(out.contains("/dev/pts/0\r\n") && out.ends_with("got hello\r\n"), "{out:?}");
    // An application can neither mark its packets nor change its addresses.
    let (out, _) = run("grep -E 'CapEff|NoNewPrivs' /proc/self/status").await;
    let bits = out.lines().find_map(|l| l.strip_prefix("CapEff:")).map(|b| u64::from_str_radix(b.trim(), 16));
    assert_eq!(bits.unwrap().unwrap() & (1 << 12 | 1 << 13 | 1 << 21), 0, "{out}");
    assert!(out.contains("NoNewPrivs:\t1"), "{out}");
}

/// The set-up of the redirect and a stand-in for the proxy, as injection adds them: both are this program, like weft.
async fn redirected_pods(client: &Client, mesh: &Mesh) {
    let serve = tool_command(&["serve", "8080", "application"]);
    let get = tool_command(&["get", "10.78.200.200:80"]);
    apply(client, &format!(r#"
apiVersion: v1
kind: Pod
metadata: {{name: meshed}}
spec:
  initContainers:
  - name: linkerd-init
    image: weft.dev/weft:test
    args: [tool, redirect]
    securityContext: {{runAsUser: 65534, runAsNonRoot: true, capabilities: {{add: [NET_ADMIN, NET_RAW]}}}}
  - name: linkerd-proxy
    image: weft.dev/weft:test
    restartPolicy: Always
    args: [tool, serve, "4143", inbound]
    securityContext: {{runAsUser: 2102}}
    startupProbe: {{tcpSocket: {{port: 4143}}, periodSeconds: 1, failureThreshold: 60}}
  - {{name: outbound, image: weft.dev/weft:test, restartPolicy: Always, args: [tool, serve, "4140", outbound]}}
  containers:
  - {{name: app, image: none, command: {serve}, readinessProbe: {{tcpSocket: {{port: 8080}}}}}}
  - {{name: caller, image: none, command: {get}}}
"#)).await;
    let pod = until(client, "meshed", "calling out", |p| {
        let all = p["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        all.iter().any(|c| c["name"] == "caller" && c["lastState"]["terminated"]["exitCode"] == 0)
    })
    .await;
    let of = |container: &str| kube::api::LogParams {
        container: Some(container.into()),
        previous: true,
        ..Default::default()
    };
    // From the application to anywhere, and from anywhere to the application.
    assert_eq!(pods(client).logs("meshed", &of("caller")).await.unwrap(), "outbound\n");
    let ip = pod["status"]["podIP"].as_str().unwrap();
    assert_eq!(ask(client, mesh, &format!("{ip}:8080")).await.unwrap(), "inbound");
    // The proxy is of the user whose sockets are left alone and has no capability; or it has the one to mark its sockets.
    let params = AttachParams::default().stderr(false).container("linkerd-proxy");
    let command = ["/bin/sh", "-c", "id -u; grep CapEff /proc/1/status"];
    let mut running = pods(client).exec("meshed", command, &params).await.unwrap();
    let mut out = String::new();
    running.stdout().unwrap().read_to_string(&mut out).await.unwrap();
    let expected = match Rights::of_this_process() {
        Rights::Root => "2102\nCapEff:\t0000000000000000\n",
        Rights::User => "0\nCapEff:\t0000000000002000\n",
    };
    assert_eq!(out, expected);
}

async fn images_without_a_command_say_so(client: &Client, _mesh: &Mesh) {
    apply(
        client,
        r#"
apiVersion: v1
kind: Pod
metadata: {name: image}
spec: {containers: [{name: c, image: "nginx:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: annotated, annotations: {weft.dev/command.c: "/bin/sh -c 'echo $0 $1' a"}}
spec: {restartPolicy: Never, containers: [{name: c, image: "nginx:1", args: [b]}]}
"#,
    )
    .await;
    let pod = until(client, "image", "refused", |p| {
        p["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "NoCommand"
    })
    .await;
    let message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap();
    assert!(message.starts_with("CFG-003") && message.contains("weft.dev/command.c"), "{message}");
    phase(client, "annotated", "Succeeded").await;
    assert_eq!(logs(client, "annotated").await, "a b\n");
}

/// The parent of a machine is killed: its processes and links go by themselves, its files with the next start.
async fn killed_parent_leaves_nothing(root: &Path) {
    let name = format!("k{}", std::process::id());
    let config = weft_local::up::UpConfig {
        name: name.clone(),
        state_root: root.to_path_buf(),
        ..weft_local::up::UpConfig::default()
    };
    let info = weft_local::up::start_detached(&config).expect("started");
    let state = root.join(&name);
    let holder: serde_json::Value =
        serde_json::from_slice(&std::fs::read(state.join("holder.json")).unwrap()).unwrap();
    let parent = u32::try_from(holder["pid"].as_u64().unwrap()).unwrap();
    let supervisor = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let supervisor: u32 = supervisor.trim().parse().unwrap();
    let ends = weft_net::process::Pidfd::open(supervisor).unwrap();
    weft_net::process::Pidfd::open(parent).unwrap().signal(rustix::process::Signal::KILL).unwrap();
    tokio::time::timeout(lab::DEADLINE, ends.ended()).await.expect("the supervisor ends").unwrap();
    assert!(state.exists());
    weft_local::up::down(root, &name).expect("swept");
    assert!(!state.exists() && !has_link(&info));
    assert_eq!(weft_local::up::down(root, &name).unwrap_err().code(), weft_fault::Code::NotRunning);
}
