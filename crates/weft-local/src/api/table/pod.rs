//! A pod's row.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{NONE, age, duration, or};
use crate::api::kinds::Kind;
use crate::api::meta::{self, text};

pub(super) fn row(_: &Kind, pod: &Value, now: Timestamp) -> Vec<Value> {
    let statuses = meta::items(pod, "/status/containerStatuses");
    let total = meta::items(pod, "/spec/containers").len();
    let sidecar = |name: &str| {
        meta::items(pod, "/spec/initContainers")
            .iter()
            .any(|c| c["name"] == name && c["restartPolicy"] == "Always")
    };
    let sidecars: Vec<&Value> = meta::items(pod, "/status/initContainerStatuses")
        .iter()
        .filter(|status| sidecar(text(status, "/name")))
        .collect();
    let sidecar_count =
        meta::items(pod, "/spec/initContainers").iter().filter(|c| c["restartPolicy"] == "Always").count();
    let ready =
        statuses.iter().chain(sidecars.iter().copied()).filter(|status| status["ready"] == true).count();
    let counted = statuses.iter().chain(sidecars.iter().copied());
    let restarts: i64 = counted.clone().filter_map(|status| status["restartCount"].as_i64()).sum();
    let last = counted
        .filter_map(|status| meta::parse_time(text(status, "/lastState/terminated/finishedAt")))
        .max()
        .filter(|_| restarts > 0);
    let restarts = match last {
        Some(last) => format!("{restarts} ({} ago)", duration(now.as_second() - last.as_second())),
        None => restarts.to_string(),
    };
    vec![
        json!(format!("{ready}/{}", total + sidecar_count)),
        json!(pod_status(pod)),
        json!(restarts),
        age(pod, now),
        or(text(pod, "/status/podIP"), NONE),
        or(text(pod, "/spec/nodeName"), NONE),
        or(text(pod, "/status/nominatedNodeName"), NONE),
        json!(NONE),
    ]
}

/// The word that says best how a pod is.
fn pod_status(pod: &Value) -> String {
    let mut reason = match text(pod, "/status/reason") {
        "" => text(pod, "/status/phase").to_owned(),
        reason => reason.to_owned(),
    };
    let specs = meta::items(pod, "/spec/initContainers");
    let mut initialising = false;
    for (i, status) in meta::items(pod, "/status/initContainerStatuses").iter().enumerate() {
        let sidecar =
            specs.iter().any(|spec| spec["name"] == status["name"] && spec["restartPolicy"] == "Always");
        let state = &status["state"];
        if state["terminated"]["exitCode"] == 0 || (sidecar && status["started"] == true) {
            continue;
        }
        if let Some(ended) = state.get("terminated") {
            reason = format!("Init:{}", ending(ended));
        } else if !matches!(text(state, "/waiting/reason"), "" | "PodInitializing") {
            reason = format!("Init:{}", text(state, "/waiting/reason"));
        } else {
            reason = format!("Init:{i}/{}", specs.len());
        }
        initialising = true;
        break;
    }
    if !initialising {
        let mut running = false;
        for status in meta::items(pod, "/status/containerStatuses").iter().rev() {
            let state = &status["state"];
            if !text(state, "/waiting/reason").is_empty() {
                text(state, "/waiting/reason").clone_into(&mut reason);
            } else if let Some(ended) = state.get("terminated") {
                reason = ending(ended);
            } else if status["ready"] == true && state.get("running").is_some() {
                running = true;
            }
        }
        if reason == "Completed" && running {
            reason = "Running".to_owned();
        }
    }
    if meta::deleting(pod) {
        let finished = ["Succeeded", "Failed"].contains(&text(pod, "/status/phase"));
        return if finished { reason } else { "Terminating".to_owned() };
    }
    reason
}

fn ending(terminated: &Value) -> String {
    match (text(terminated, "/reason"), meta::int(terminated, "/signal").unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", meta::int(terminated, "/exitCode").unwrap_or(0)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_status_is_its_worst_news() {
        let pod =
            |status: Value| json!({ "spec": { "initContainers": [{ "name": "i" }] }, "status": status });
        let waiting = json!({ "phase": "Running", "containerStatuses": [
            { "ready": true, "state": { "running": {} } },
            { "ready": false, "state": { "waiting": { "reason": "CrashLoopBackOff" } } },
        ] });
        assert_eq!(pod_status(&pod(waiting)), "CrashLoopBackOff");
        let starting = json!({ "phase": "Pending", "initContainerStatuses": [{ "name": "i", "state": { "running": {} } }] });
        assert_eq!(pod_status(&pod(starting)), "Init:0/1");
    }
}
