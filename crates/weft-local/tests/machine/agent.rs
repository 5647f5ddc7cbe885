//! The node agent ends, and another takes over what it finds.

use super::{
    lab::{DEADLINE, apply, logs, phase, ready, until},
    tests::{exec, pods},
};
use futures_util::{AsyncBufReadExt as _, TryStreamExt as _};
use kube::{
    Client,
    api::{DeleteParams, LogParams, WatchEvent, WatchParams},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    path::Path,
    time::{Duration, Instant},
};
use tokio::time::sleep;
use weft_local::up::Mesh;

/// Everything that can be in the middle of something when the agent ends.
const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: steady}
spec:
  initContainers:
  - {name: first, image: none, command: [/bin/sh, -c, "echo again >> /count/inits"], volumeMounts: [{name: count, mountPath: /count}]}
  - name: beside
    image: none
    restartPolicy: Always
    command: [/bin/sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    startupProbe: {exec: {command: ["true"]}}
    lifecycle: {postStart: {exec: {command: [/bin/sh, -c, "echo again >> /count/hooks"]}}}
    volumeMounts: [{name: count, mountPath: /count}]
  containers:
  - name: c
    image: none
    command: [/bin/sh, -c, "n=0; while :; do n=$((n+1)); echo $n; sleep 0.02; done"]
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    volumeMounts: [{name: count, mountPath: /count}]
  volumes: [{name: count, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: again}
spec: {containers: [{name: c, image: none, command: [/bin/sh, -c, "while [ ! -e /tmp/go ]; do sleep 0.05; done; exit 4"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: ends}
spec: {restartPolicy: Never, containers: [{name: c, image: none, command: [/bin/sh, -c, "echo last words; while [ ! -e /tmp/go ]; do sleep 0.05; done; exit 3"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: ended}
spec: {restartPolicy: Never, containers: [{name: c, image: none, command: [echo, "it is over"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: leaves}
spec: {containers: [{name: c, image: none, command: [sleep, "3600"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: torn}
spec: {containers: [{name: c, image: none, command: [/bin/sh, -c, "sleep 3600; : torn of MESH"]}]}
"#;

pub(crate) async fn another_agent_takes_over(client: &Client, mesh: &Mesh) {
    let torn = format!("torn of {}", mesh.info().name);
    apply(client, &PODS.replace("torn of MESH", &torn)).await;
    for name in ["again", "ends", "leaves", "torn"] {
        ready(client, name).await;
    }
    phase(client, "ended", "Succeeded").await;
    let before = ready(client, "steady").await;
    let version = before["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let follow = LogParams { follow: true, container: Some("c".into()), ..LogParams::default() };
    let mut lines = pods(client).log_stream("steady", &follow).await.unwrap().lines();

    // An agent that does nothing any more, while much happens; then it is gone.
    let first = agent(mesh, None).await;
    kill_process(first, Signal::STOP).unwrap();
    // As if it had been about to remove the last of a pod.
    let state = mesh.info().kubeconfig.parent().unwrap().strip_prefix("/").unwrap();
    let pods_of =
        |agent: Pid| Path::new("/proc").join(agent.to_string()).join("root").join(state).join("pods");
    std::fs::create_dir_all(pods_of(first).join("gone/volumes/v")).unwrap();
    for name in ["again", "ends"] {
        assert_eq!(exec(client, name, &["touch", "/tmp/go"]).await.1, "Success");
    }
    pods(client).delete("leaves", &DeleteParams::default().grace_period(1)).await.unwrap();
    pods(client).delete("torn", &DeleteParams::default().grace_period(0)).await.unwrap();
    kill_process(first, Signal::KILL).unwrap();
    let second = agent(mesh, Some(first)).await;

    // What happened meanwhile is found out.
    until(client, "again", "ready after a restart", |p| {
        let c = &p["status"]["containerStatuses"][0];
        c["ready"] == true && c["restartCount"] == 1 && c["lastState"]["terminated"]["exitCode"] == 4
    })
    .await;
    let ends = phase(client, "ends", "Failed").await;
    assert_eq!(ends["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3, "{ends}");
    assert_eq!(logs(client, "ends").await, "last words\n");
    until(client, "leaves", "gone", serde_json::Value::is_null).await;
    let deadline = Instant::now() + DEADLINE;
    while process(|command| command.contains(&torn)).is_some() {
        assert!(Instant::now() < deadline, "a pod whose object went meanwhile still runs");
        sleep(Duration::from_millis(20)).await;
    }
    while pods_of(second).join("gone").exists() {
        assert!(Instant::now() < deadline, "files of a pod that has ended are left");
        sleep(Duration::from_millis(20)).await;
    }
    // What nothing happened to is as it was, and never seemed otherwise.
    let steady = until(client, "steady", "there", |_| true).await;
    assert_eq!(steady["status"]["containerStatuses"], before["status"]["containerStatuses"]);
    assert_eq!(steady["status"]["initContainerStatuses"], before["status"]["initContainerStatuses"]);
    let count = exec(client, "steady", &["cat", "/count/inits", "/count/hooks"]).await.0;
    assert_eq!(count, "again\nagain\n", "init containers and start hooks run once");
    assert_eq!(logs(client, "ended").await, "it is over\n");
    // Killed several times in a row, it is still there, with restarts counted where they belong.
    let mut last = second;
    for _ in 0..2 {
        kill_process(last, Signal::KILL).unwrap();
        last = agent(mesh, Some(last)).await;
    }
    apply(
        client,
        "apiVersion: v1\nkind: Pod\nmetadata: {name: late}\nspec: {containers: [{name: c, image: none, command: [sleep, \"3600\"]}]}\n",
    )
    .await;
    let late = ready(client, "late").await;
    for pod in [&steady, &ends] {
        assert_ne!(late["status"]["podIP"], pod["status"]["podIP"], "an address that was taken");
    }
    never_unready(client, "steady", &version).await;
    // Its output has no gap, and whoever follows it did not lose it.
    let mut expected = 1;
    while expected < 200 {
        let line = lines.try_next().await.unwrap().expect("a line");
        assert_eq!(line, expected.to_string());
        expected += 1;
    }
    for name in ["steady", "again", "ends", "ended", "late"] {
        pods(client).delete(name, &DeleteParams::default().grace_period(1)).await.unwrap();
    }
    for name in ["steady", "again", "ends", "ended", "late"] {
        until(client, name, "gone", serde_json::Value::is_null).await;
    }
}

/// No version of a pod since then says that it is not ready.
async fn never_unready(client: &Client, name: &str, version: &str) {
    let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(1);
    let events = pods(client).watch(&params, version).await.unwrap();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.try_next().await.unwrap() {
        let WatchEvent::Modified(pod) = event else { panic!("{event:?}") };
        let conditions = pod.status.and_then(|s| s.conditions).unwrap_or_default();
        assert!(conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"), "{conditions:?}");
    }
}

/// The process that is the mesh's node agent, once it is another than `than`.
async fn agent(mesh: &Mesh, than: Option<Pid>) -> Pid {
    let wanted = format!("__agent {} ", mesh.info().name);
    let deadline = Instant::now() + DEADLINE;
    loop {
        match process(|command| command.ends_with(&wanted)) {
            Some(found) if Some(found) != than => return found,
            _ => {}
        }
        assert!(Instant::now() < deadline, "there is no agent");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A process by its command line, the words of which a blank follows.
fn process(is_it: impl Fn(&str) -> bool) -> Option<Pid> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let found = pids.find(|pid| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is_it(&String::from_utf8_lossy(&command).replace('\0', " "))
    });
    found.and_then(Pid::from_raw)
}
