//! Tables: what `kubectl get` prints.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::kinds::{Form, Kind};
use super::meta::{self, text};
use super::read;
use super::respond::{Include, partial};
use super::selector::LabelSelector;

const NONE: &str = "<none>";

/// A column: name, type, priority (1: only wide).
type Column = (&'static str, &'static str, u8);

/// Builds a table of objects of one kind; without `headed` the columns are left out (later events of a watch).
pub(super) fn of(
    kind: &Kind,
    objects: &[Arc<Value>],
    revision: &str,
    beta: bool,
    include: Include,
    headed: bool,
) -> Value {
    let version = if beta { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" };
    let Layout { columns, named, cells } = layout(kind);
    let now = Timestamp::now();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut row = json!({ "cells": [] });
            let name = named.then(|| json!(meta::name(object)));
            row["cells"] = name.into_iter().chain(cells(kind, object, now)).collect();
            row["object"] = match include {
                Include::Nothing => Value::Null,
                Include::Metadata => {
                    let mut partial = partial(object);
                    partial["apiVersion"] = json!(version);
                    partial
                }
                Include::Object => Value::clone(object),
            };
            row
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": version,
        "metadata": { "resourceVersion": revision },
        "columnDefinitions": if headed { json!(columns) } else { Value::Null },
        "rows": rows,
    })
}

/// The cells of a row, without the name.
type Cells = fn(&Kind, &Value, Timestamp) -> Vec<Value>;

struct Layout {
    columns: Vec<Value>,
    /// Whether the name comes first.
    named: bool,
    cells: Cells,
}

fn layout(kind: &Kind) -> Layout {
    if let Form::Custom(version) = &kind.form {
        return Layout { columns: custom_columns(version), named: true, cells: custom_cells };
    }
    let (columns, cells): (&[Column], Cells) = match kind.plural.as_str() {
        "pods" => (
            &[
                ("Ready", "string", 0),
                ("Status", "string", 0),
                ("Restarts", "string", 0),
                ("Age", "string", 0),
                ("IP", "string", 1),
                ("Node", "string", 1),
                ("Nominated Node", "string", 1),
                ("Readiness Gates", "string", 1),
            ],
            pod,
        ),
        "services" => (
            &[
                ("Type", "string", 0),
                ("Cluster-IP", "string", 0),
                ("External-IP", "string", 0),
                ("Port(s)", "string", 0),
                ("Age", "string", 0),
                ("Selector", "string", 1),
            ],
            service,
        ),
        "deployments" => (
            &[
                ("Ready", "string", 0),
                ("Up-to-date", "string", 0),
                ("Available", "string", 0),
                ("Age", "string", 0),
                ("Containers", "string", 1),
                ("Images", "string", 1),
                ("Selector", "string", 1),
            ],
            deployment,
        ),
        "replicasets" => (
            &[
                ("Desired", "integer", 0),
                ("Current", "integer", 0),
                ("Ready", "integer", 0),
                ("Age", "string", 0),
                ("Containers", "string", 1),
                ("Images", "string", 1),
                ("Selector", "string", 1),
            ],
            replica_set,
        ),
        "jobs" => (
            &[
                ("Status", "string", 0),
                ("Completions", "string", 0),
                ("Duration", "string", 0),
                ("Age", "string", 0),
                ("Containers", "string", 1),
                ("Images", "string", 1),
                ("Selector", "string", 1),
            ],
            job,
        ),
        "configmaps" => (&[("Data", "string", 0), ("Age", "string", 0)], |_, object, now| {
            let count = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
            vec![json!(count("data") + count("binaryData")), age(object, now)]
        }),
        "secrets" => {
            (&[("Type", "string", 0), ("Data", "string", 0), ("Age", "string", 0)], |_, object, now| {
                let count = object["data"].as_object().map_or(0, serde_json::Map::len);
                vec![object["type"].clone(), json!(count), age(object, now)]
            })
        }
        "namespaces" => (&[("Status", "string", 0), ("Age", "string", 0)], |_, object, now| {
            vec![object["status"]["phase"].clone(), age(object, now)]
        }),
        "nodes" => (
            &[
                ("Status", "string", 0),
                ("Roles", "string", 0),
                ("Age", "string", 0),
                ("Version", "string", 0),
                ("Internal-IP", "string", 1),
                ("External-IP", "string", 1),
                ("OS-Image", "string", 1),
                ("Kernel-Version", "string", 1),
                ("Container-Runtime", "string", 1),
            ],
            node,
        ),
        "endpointslices" => (
            &[
                ("AddressType", "string", 0),
                ("Ports", "string", 0),
                ("Endpoints", "string", 0),
                ("Age", "string", 0),
            ],
            slice,
        ),
        "events" => (
            &[
                ("Last Seen", "string", 0),
                ("Type", "string", 0),
                ("Reason", "string", 0),
                ("Object", "string", 0),
                ("Subobject", "string", 1),
                ("Source", "string", 1),
                ("Message", "string", 0),
                ("First Seen", "string", 1),
                ("Count", "string", 1),
                ("Name", "string", 1),
            ],
            event,
        ),
        "leases" => (&[("Holder", "string", 0), ("Age", "string", 0)], |_, object, now| {
            vec![json!(text(object, "/spec/holderIdentity")), age(object, now)]
        }),
        "customresourcedefinitions" => (&[("Created At", "date", 0)], |_, object, _| {
            vec![object["metadata"]["creationTimestamp"].clone()]
        }),
        "clusterroles" | "roles" => (&[("Created At", "date", 0)], |_, object, _| {
            vec![object["metadata"]["creationTimestamp"].clone()]
        }),
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => {
            (&[("Webhooks", "integer", 0), ("Age", "string", 0)], |_, object, now| {
                vec![json!(meta::items(object, "/webhooks").len()), age(object, now)]
            })
        }
        _ => (&[("Age", "string", 0)], |_, object, now| vec![age(object, now)]),
    };
    // Events are the one kind whose name comes last, and only when wide.
    let named = kind.plural != "events";
    let mut definitions = Vec::new();
    if named {
        definitions.push(json!({
            "name": "Name", "type": "string", "format": "name", "description": "Name of the object", "priority": 0,
        }));
    }
    for (name, kind, priority) in columns {
        let format = if !named && *name == "Name" { "name" } else { "" };
        definitions.push(json!({
            "name": name, "type": kind, "format": format, "description": "", "priority": priority,
        }));
    }
    Layout { columns: definitions, named, cells }
}

/// Text or a placeholder.
fn or(text: &str, placeholder: &str) -> Value {
    json!(if text.is_empty() { placeholder } else { text })
}

/// How long ago the object was made.
fn age(object: &Value, now: Timestamp) -> Value {
    since(text(object, "/metadata/creationTimestamp"), now)
}

fn since(time: &str, now: Timestamp) -> Value {
    json!(
        meta::parse_time(time)
            .map_or("<unknown>".to_owned(), |time| duration(now.as_second() - time.as_second()))
    )
}

/// A duration as kubectl shows it: two units at most, the second only while it matters.
pub(super) fn duration(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

fn pod(_: &Kind, pod: &Value, now: Timestamp) -> Vec<Value> {
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

fn service(_: &Kind, service: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = meta::items(service, "/spec/ports")
        .iter()
        .map(|port| {
            let node_port = port["nodePort"].as_i64().map_or(String::new(), |port| format!(":{port}"));
            format!("{}{node_port}/{}", port["port"], text(port, "/protocol"))
        })
        .collect();
    let external = match text(service, "/spec/externalName") {
        "" => meta::items(service, "/spec/externalIPs")
            .iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(","),
        name => name.to_owned(),
    };
    let selector = service["spec"]["selector"].as_object();
    let selector = selector.map_or(String::new(), |labels| LabelSelector::from_labels(labels).to_string());
    vec![
        json!(text(service, "/spec/type")),
        or(text(service, "/spec/clusterIP"), NONE),
        or(&external, NONE),
        or(&ports.join(","), NONE),
        age(service, now),
        or(&selector, NONE),
    ]
}

fn count(object: &Value, pointer: &str) -> i64 {
    meta::int(object, pointer).unwrap_or(0)
}

/// Containers, images and selector: the wide part of a workload's row.
fn template(object: &Value) -> Vec<Value> {
    let join = |field: &str| {
        let containers = meta::items(object, "/spec/template/spec/containers");
        containers.iter().filter_map(|container| container[field].as_str()).collect::<Vec<_>>().join(",")
    };
    let selector = LabelSelector::from_object(&object["spec"]["selector"]).to_string();
    vec![json!(join("name")), json!(join("image")), or(&selector, NONE)]
}

fn deployment(_: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let wanted = count(object, "/spec/replicas");
    let mut cells = vec![
        json!(format!("{}/{wanted}", count(object, "/status/readyReplicas"))),
        json!(count(object, "/status/updatedReplicas")),
        json!(count(object, "/status/availableReplicas")),
        age(object, now),
    ];
    cells.extend(template(object));
    cells
}

fn replica_set(_: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![
        json!(count(object, "/spec/replicas")),
        json!(count(object, "/status/replicas")),
        json!(count(object, "/status/readyReplicas")),
        age(object, now),
    ];
    cells.extend(template(object));
    cells
}

fn job(_: &Kind, job: &Value, now: Timestamp) -> Vec<Value> {
    let has = |kind: &str| {
        meta::items(job, "/status/conditions").iter().any(|c| c["type"] == kind && c["status"] == "True")
    };
    let status = match () {
        () if has("Complete") => "Complete",
        () if has("Failed") => "Failed",
        () if meta::deleting(job) => "Terminating",
        () if has("Suspended") => "Suspended",
        () => "Running",
    };
    let succeeded = count(job, "/status/succeeded");
    let completions = match meta::int(job, "/spec/completions") {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None => format!("{succeeded}/1 of {}", count(job, "/spec/parallelism")),
    };
    let started = meta::parse_time(text(job, "/status/startTime"));
    let ended = meta::parse_time(text(job, "/status/completionTime")).unwrap_or(now);
    let took = started.map_or(String::new(), |started| duration(ended.as_second() - started.as_second()));
    let mut cells = vec![json!(status), json!(completions), json!(took), age(job, now)];
    cells.extend(template(job));
    cells
}

fn node(_: &Kind, node: &Value, now: Timestamp) -> Vec<Value> {
    let ready = meta::items(node, "/status/conditions").iter().find(|c| c["type"] == "Ready");
    let mut status = match ready.map(|condition| text(condition, "/status")) {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let roles: Vec<&str> = meta::labels(node)
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    let address = |kind: &str| {
        let found = meta::items(node, "/status/addresses").iter().find(|address| address["type"] == kind);
        or(found.map_or("", |address| text(address, "/address")), NONE)
    };
    let info =
        |field: &str, placeholder: &str| or(text(node, &format!("/status/nodeInfo/{field}")), placeholder);
    vec![
        json!(status),
        or(&roles.join(","), NONE),
        age(node, now),
        info("kubeletVersion", ""),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage", "<unknown>"),
        info("kernelVersion", "<unknown>"),
        info("containerRuntimeVersion", "<unknown>"),
    ]
}

/// The first three of a list, and how many more there are.
fn few(list: &[String], unset: &str) -> Value {
    match list.len() {
        0 => json!(unset),
        1..=3 => json!(list.join(",")),
        n => json!(format!("{} + {} more...", list[..3].join(","), n - 3)),
    }
}

fn slice(_: &Kind, slice: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = meta::items(slice, "/ports")
        .iter()
        .map(|port| port["port"].as_i64().map_or("*".to_owned(), |port| port.to_string()))
        .collect();
    let addresses: Vec<String> = meta::items(slice, "/endpoints")
        .iter()
        .flat_map(|endpoint| meta::items(endpoint, "/addresses"))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    vec![slice["addressType"].clone(), few(&ports, "<unset>"), few(&addresses, "<unset>"), age(slice, now)]
}

fn event(kind: &Kind, event: &Value, now: Timestamp) -> Vec<Value> {
    let event = &read::as_stored(kind, event.clone());
    let first = ["/firstTimestamp", "/eventTime", "/metadata/creationTimestamp"];
    let last = ["/lastTimestamp", "/series/lastObservedTime", "/eventTime", "/metadata/creationTimestamp"];
    let pick = |fields: &[&str]| {
        let time = fields.iter().map(|field| text(event, field)).find(|time| !time.is_empty());
        since(time.unwrap_or(""), now)
    };
    let about = &event["involvedObject"];
    let component = match text(event, "/source/component") {
        "" => text(event, "/reportingComponent"),
        component => component,
    };
    let host = match text(event, "/source/host") {
        "" => text(event, "/reportingInstance"),
        host => host,
    };
    let source = match host {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    };
    vec![
        pick(&last),
        json!(text(event, "/type")),
        json!(text(event, "/reason")),
        json!(format!("{}/{}", text(about, "/kind").to_lowercase(), text(about, "/name"))),
        json!(text(about, "/fieldPath")),
        json!(source),
        json!(text(event, "/message").trim()),
        pick(&first),
        json!(count(event, "/count").max(count(event, "/series/count")).max(1)),
        json!(meta::name(event)),
    ]
}

/// The columns of a custom kind: those it declares, or its age.
fn custom_columns(version: &Value) -> Vec<Value> {
    let mut columns = vec![json!({
        "name": "Name", "type": "string", "format": "name", "description": "Name of the object", "priority": 0,
    })];
    let declared = meta::items(version, "/additionalPrinterColumns");
    for column in declared {
        columns.push(json!({
            "name": column["name"], "type": column["type"], "format": text(column, "/format"),
            "description": text(column, "/description"), "priority": count(column, "/priority"),
        }));
    }
    if declared.is_empty() {
        columns
            .push(json!({ "name": "Age", "type": "date", "format": "", "description": "", "priority": 0 }));
    }
    columns
}

fn custom_cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let Form::Custom(version) = &kind.form else { return vec![age(object, now)] };
    let declared = meta::items(version, "/additionalPrinterColumns");
    if declared.is_empty() {
        return vec![age(object, now)];
    }
    declared
        .iter()
        .map(|column| {
            let found = json_path(object, text(column, "/jsonPath"));
            match (text(column, "/type"), found) {
                (_, None) => Value::Null,
                ("date", Some(Value::String(time))) => since(&time, now),
                ("string", Some(value)) if !value.is_string() => json!(value.to_string()),
                (_, Some(value)) => value,
            }
        })
        .collect()
}

/// The simple JSON paths that columns use: `.a.b`, `.a[0].b`, `.a[?(@.type=="x")].b`.
fn json_path(object: &Value, path: &str) -> Option<Value> {
    let mut value = object;
    let mut rest = path.trim_start_matches('.');
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (index, after) = inner.split_once(']')?;
            let list = value.as_array()?;
            value = if let Some(filter) = index.strip_prefix("?(@.").and_then(|f| f.strip_suffix(')')) {
                let (field, wanted) = filter.split_once("==")?;
                let wanted = wanted.trim().trim_matches(['"', '\'']);
                list.iter().find(|item| item[field.trim()] == wanted)?
            } else if index == "*" {
                list.first()?
            } else {
                list.get(index.parse::<usize>().ok()?)?
            };
            rest = after.trim_start_matches('.');
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            value = value.get(&rest[..end])?;
            rest = rest[end..].strip_prefix('.').unwrap_or(&rest[end..]);
        }
    }
    Some(value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (seconds, shown) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (185, "3m5s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (9 * 3600, "9h"),
            (3 * 86_400 + 7200, "3d2h"),
            (10 * 86_400, "10d"),
        ] {
            assert_eq!(duration(seconds), shown);
        }
    }

    #[test]
    fn paths_of_columns() {
        let object = json!({ "spec": { "list": [{ "type": "x", "v": 1 }, { "type": "y", "v": 2 }] } });
        assert_eq!(json_path(&object, ".spec.list[1].v"), Some(json!(2)));
        assert_eq!(json_path(&object, ".spec.list[?(@.type==\"x\")].v"), Some(json!(1)));
        assert_eq!(json_path(&object, ".spec.none"), None);
    }

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
