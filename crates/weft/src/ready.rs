//! Are the workloads there yet?

use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{ContainerStatus, Event, Pod},
};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use std::collections::BTreeMap;
use weft_local::{api::kubelet::MIRROR, node::NODE_NAME};

/// What a pod is up to, as far as waiting for it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodState {
    /// Not yet, and what it waits for.
    Waiting(String),
    /// In trouble that waiting alone may not end: a crash loop, a missing volume.
    Troubled(String),
    Ready,
    /// A Job's pod that ended well.
    Done,
}

/// All pods by `namespace/name`, and the ReplicaSets that are refused theirs.
pub(crate) async fn pods(client: &Client) -> kube::Result<BTreeMap<String, PodState>> {
    let pods = Api::<Pod>::all(client.clone()).list(&ListParams::default()).await?;
    let sets = Api::<ReplicaSet>::all(client.clone()).list(&ListParams::default()).await?;
    let warnings = ListParams::default().fields("type=Warning");
    let warnings = Warnings(Api::<Event>::all(client.clone()).list(&warnings).await?.items);
    let title = |object: &kube::core::ObjectMeta| {
        format!(
            "{}/{}",
            object.namespace.as_deref().unwrap_or_default(),
            object.name.as_deref().unwrap_or_default()
        )
    };
    let mut states = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_ours(pod)) {
        // What keeps a volume from being there is told in an event only.
        let state = match (state(pod), warnings.newest("Pod", &pod.metadata, "FailedMount")) {
            (PodState::Waiting(_), Some(why)) => PodState::Troubled(why.to_owned()),
            (state, _) => state,
        };
        states.insert(title(&pod.metadata), state);
    }
    for set in &sets {
        let wanted = set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
        let there = set.status.as_ref().map_or(0, |s| s.replicas);
        if there < wanted
            && let Some(why) = warnings.newest("ReplicaSet", &set.metadata, "FailedCreate")
        {
            states.insert(title(&set.metadata), PodState::Troubled(why.to_owned()));
        }
    }
    Ok(states)
}

/// Whether this machine's node runs it, or might: a cluster that is not the mesh's own has others. Who only stands for the
/// controller is not waited for, and not counted.
fn is_ours(pod: &Pod) -> bool {
    if pod.annotations().contains_key(MIRROR) {
        return false;
    }
    let spec = pod.spec.as_ref();
    match spec.and_then(|spec| spec.node_name.as_deref()).unwrap_or_default() {
        "" => spec
            .and_then(|spec| spec.scheduler_name.as_deref())
            .is_none_or(|name| name == "default-scheduler"),
        node => node == NODE_NAME,
    }
}

/// The warnings among the events.
struct Warnings(Vec<Event>);

impl Warnings {
    /// The newest message with this reason about an object.
    fn newest(&self, kind: &str, object: &kube::core::ObjectMeta, reason: &str) -> Option<&str> {
        self.0
            .iter()
            .filter(|event| {
                let about = &event.involved_object;
                about.kind.as_deref() == Some(kind)
                    && about.name == object.name
                    && about.namespace == object.namespace
                    && event.reason.as_deref() == Some(reason)
            })
            .max_by_key(|event| event.last_timestamp.clone())
            .and_then(|event| event.message.as_deref())
    }
}

/// Pods that Deployments and Jobs still owe: their controllers may not have made them yet.
pub(crate) async fn owed(client: &Client) -> kube::Result<usize> {
    use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job};
    let mut owed = 0;
    for deployment in Api::<Deployment>::all(client.clone()).list(&ListParams::default()).await? {
        let wanted = deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
        let status = deployment.status.unwrap_or_default();
        let behind = status.observed_generation.unwrap_or(0) < deployment.metadata.generation.unwrap_or(0);
        if behind || status.updated_replicas.unwrap_or(0) < wanted {
            owed += 1;
        }
    }
    for job in Api::<Job>::all(client.clone()).list(&ListParams::default()).await? {
        let status = job.status.unwrap_or_default();
        let suspended = job.spec.as_ref().and_then(|s| s.suspend).unwrap_or(false);
        let seen = status.active.unwrap_or(0) + status.succeeded.unwrap_or(0) + status.failed.unwrap_or(0);
        if !suspended && seen == 0 {
            owed += 1;
        }
    }
    Ok(owed)
}

fn state(pod: &Pod) -> PodState {
    let Some(status) = &pod.status else { return PodState::Waiting("starting".into()) };
    let condition = |name: &str| status.conditions.iter().flatten().find(|c| c.type_ == name);
    match status.phase.as_deref() {
        Some("Succeeded") => return PodState::Done,
        Some("Failed") => {
            let why = status.message.clone().or(status.reason.clone()).or_else(|| trouble(pod));
            return PodState::Troubled(why.unwrap_or_else(|| "failed".into()));
        }
        _ => {}
    }
    if condition("Ready").is_some_and(|c| c.status == "True") {
        return PodState::Ready;
    }
    if let Some(trouble) = trouble(pod) {
        return PodState::Troubled(trouble);
    }
    let step = statuses(pod).find_map(|(name, container)| {
        let started = container.started.unwrap_or(false) || container.ready;
        let ended_well =
            container.state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0);
        (!started && !ended_well).then(|| format!("container {name} is starting"))
    });
    let unready = || {
        statuses(pod).find(|(_, c)| !c.ready).map(|(name, _)| format!("container {name} is not ready yet"))
    };
    PodState::Waiting(step.or_else(unready).unwrap_or_else(|| "starting".into()))
}

fn statuses(pod: &Pod) -> impl Iterator<Item = (&str, &ContainerStatus)> {
    let status = pod.status.iter();
    status
        .flat_map(|s| s.init_container_statuses.iter().flatten().chain(s.container_statuses.iter().flatten()))
        .map(|c| (c.name.as_str(), c))
}

/// The first container that waits for a reason that is more than starting up.
fn trouble(pod: &Pod) -> Option<String> {
    statuses(pod).find_map(|(name, container)| {
        let state = container.state.as_ref()?;
        let last = container.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        if let Some(waiting) = &state.waiting {
            let reason = waiting.reason.as_deref()?;
            if matches!(reason, "ContainerCreating" | "PodInitializing") {
                return None;
            }
            // How it ended says more than how long the next start is put off.
            let ended = || {
                let last = last?;
                let code = format!("exit code {}", last.exit_code);
                Some(last.message.as_ref().map_or(code.clone(), |why| format!("{code}: {}", why.trim())))
            };
            let message = match reason {
                "CrashLoopBackOff" => ended().or_else(|| waiting.message.clone()),
                _ => waiting.message.clone().or_else(ended),
            };
            return Some(format!(
                "container {name}: {reason}{}",
                message.map(|m| format!(": {m}")).unwrap_or_default()
            ));
        }
        let ended = state.terminated.as_ref().filter(|t| t.exit_code != 0)?;
        Some(format!("container {name} exited with {}", ended.exit_code))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: serde_json::Value) -> PodState {
        state(
            &serde_json::from_value(serde_json::json!({"metadata": {"name": "p"}, "status": status}))
                .expect("a pod"),
        )
    }

    #[test]
    fn the_newest_warning_counts() {
        let event = |reason: &str, at: &str, message: &str| {
            let about = serde_json::json!({"kind": "Pod", "namespace": "a", "name": "p"});
            serde_json::from_value(
                serde_json::json!({"metadata": {}, "involvedObject": about, "reason": reason,
                "lastTimestamp": at, "message": message}),
            )
            .expect("an event")
        };
        let warnings = Warnings(vec![
            event("FailedMount", "2026-01-01T00:00:02Z", "new"),
            event("FailedMount", "2026-01-01T00:00:01Z", "old"),
            event("BackOff", "2026-01-01T00:00:03Z", "other"),
        ]);
        let mut pod = kube::core::ObjectMeta::default();
        (pod.namespace, pod.name) = (Some("a".into()), Some("p".into()));
        assert_eq!(warnings.newest("Pod", &pod, "FailedMount"), Some("new"));
        assert_eq!(warnings.newest("ReplicaSet", &pod, "FailedMount"), None);
    }

    #[test]
    fn states_are_told_apart() {
        assert_eq!(of(serde_json::json!({"phase": "Succeeded"})), PodState::Done);
        let ready =
            serde_json::json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        assert_eq!(of(ready), PodState::Ready);
        let waiting = serde_json::json!({"phase": "Pending", "containerStatuses": [{"name": "a", "ready": false, "image": "",
            "imageID": "", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]});
        assert_eq!(of(waiting), PodState::Waiting("container a is starting".into()));
        let looping = serde_json::json!({"phase": "Running", "containerStatuses": [{"name": "a", "ready": false, "image": "",
            "imageID": "", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 3}}}]});
        assert_eq!(of(looping), PodState::Troubled("container a: CrashLoopBackOff: exit code 3".into()));
    }
}
