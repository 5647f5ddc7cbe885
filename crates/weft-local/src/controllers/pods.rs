//! What controllers ask of pods.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::meta::{self, text};

pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    meta::items(object, "/status/conditions").iter().find(|condition| condition["type"] == kind)
}

pub(super) fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition["status"] == "True")
}

/// Whether the pod has run to its end.
pub(super) fn is_finished(pod: &Value) -> bool {
    ["Succeeded", "Failed"].contains(&text(pod, "/status/phase"))
}

/// Whether the pod counts towards a number of replicas.
pub(super) fn is_active(pod: &Value) -> bool {
    !is_finished(pod) && !meta::deleting(pod)
}

/// Whether the pod has been ready for that long, and if not, how long it still takes.
pub(super) fn is_available(
    pod: &Value,
    min_ready_seconds: i64,
    now: Timestamp,
) -> Result<(), Option<Duration>> {
    if !is_ready(pod) {
        return Err(None);
    }
    if min_ready_seconds == 0 {
        return Ok(());
    }
    let since = condition(pod, "Ready").and_then(|c| meta::parse_time(text(c, "/lastTransitionTime")));
    let ready_for = since.map_or(0, |since| now.as_second() - since.as_second());
    match u64::try_from(min_ready_seconds - ready_for) {
        Ok(left) if left > 0 => Err(Some(Duration::from_secs(left))),
        _ => Ok(()),
    }
}

/// A pod from a workload's template.
pub(super) fn from_template(owner: &Value) -> Value {
    let template = &owner["spec"]["template"];
    let mut metadata = json!({
        "generateName": format!("{}-", meta::name(owner)),
        "ownerReferences": super::client::controlled_by(owner),
    });
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"] })
}

/// Sets a condition of a status; times only move when something changed.
pub(super) fn set_condition(
    conditions: &mut Vec<Value>,
    kind: &str,
    status: bool,
    reason: &str,
    message: &str,
) {
    let now = meta::now();
    let status = if status { "True" } else { "False" };
    let old = conditions.iter_mut().find(|condition| condition["type"] == kind);
    match old {
        Some(old) if old["status"] == status && old["reason"] == reason && old["message"] == message => {}
        Some(old) => {
            if old["status"] != status {
                old["lastTransitionTime"] = json!(now);
            }
            old["status"] = json!(status);
            old["lastUpdateTime"] = json!(now);
            old["reason"] = json!(reason);
            old["message"] = json!(message);
        }
        None => conditions.push(json!({
            "type": kind, "status": status, "lastUpdateTime": now, "lastTransitionTime": now, "reason": reason,
            "message": message,
        })),
    }
}
