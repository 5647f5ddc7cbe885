//! Tables: what `kubectl get` prints.

mod custom;
mod network;
mod pod;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::kinds::{Form, Kind};
use super::meta::{self, text};
use super::read;
use super::respond::{Include, partial};
use super::selector::LabelSelector;
use network::{budget, endpoints, policy, service, slice};

const NONE: &str = "<none>";

/// A column: name, type, priority (1: only wide).
type Column = (&'static str, &'static str, u8);

const AGE: Column = ("Age", "string", 0);

/// Builds a table of objects of one kind; without `headed` the columns are left out (later events of a watch).
pub(super) fn of(
    kind: &Kind,
    objects: &[Arc<Value>],
    revision: &str,
    beta: bool,
    include: Include,
    headed: bool,
) -> Value {
    let Layout { columns, named, cells } = layout(kind);
    let cells = |object: &Value, now| cells(kind, object, now);
    build((columns, named), cells, objects, revision, beta, include, headed)
}

/// The table of one `Scale`, which is no kind of its own.
pub(super) fn of_scale(scale: Value, beta: bool, include: Include) -> Value {
    let columns = definitions(true, &[("Desired", "integer", 0), ("Available", "integer", 0), AGE]);
    let revision = meta::resource_version(&scale).to_owned();
    let cells = |scale: &Value, now| {
        vec![json!(count(scale, "/spec/replicas")), json!(count(scale, "/status/replicas")), age(scale, now)]
    };
    build((columns, true), cells, &[Arc::new(scale)], &revision, beta, include, true)
}

fn build(
    (columns, named): (Vec<Value>, bool),
    cells: impl Fn(&Value, Timestamp) -> Vec<Value>,
    objects: &[Arc<Value>],
    revision: &str,
    beta: bool,
    include: Include,
    headed: bool,
) -> Value {
    let version = if beta { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" };
    let now = Timestamp::now();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut row = json!({ "cells": [] });
            let name = named.then(|| json!(meta::name(object)));
            row["cells"] = name.into_iter().chain(cells(object, now)).collect();
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
        return Layout { columns: custom::columns(version), named: true, cells: custom::cells };
    }
    let (columns, cells): (&[Column], Cells) = match kind.plural.as_str() {
        "pods" => (
            &[
                ("Ready", "string", 0),
                ("Status", "string", 0),
                ("Restarts", "string", 0),
                AGE,
                ("IP", "string", 1),
                ("Node", "string", 1),
                ("Nominated Node", "string", 1),
                ("Readiness Gates", "string", 1),
            ],
            pod::row,
        ),
        "services" => (
            &[
                ("Type", "string", 0),
                ("Cluster-IP", "string", 0),
                ("External-IP", "string", 0),
                ("Port(s)", "string", 0),
                AGE,
                ("Selector", "string", 1),
            ],
            service,
        ),
        "deployments" => (
            &[
                ("Ready", "string", 0),
                ("Up-to-date", "string", 0),
                ("Available", "string", 0),
                AGE,
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
                AGE,
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
                AGE,
                ("Containers", "string", 1),
                ("Images", "string", 1),
                ("Selector", "string", 1),
            ],
            job,
        ),
        "configmaps" => (&[("Data", "string", 0), AGE], |_, object, now| {
            let count = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
            vec![json!(count("data") + count("binaryData")), age(object, now)]
        }),
        "secrets" => (&[("Type", "string", 0), ("Data", "string", 0), AGE], |_, object, now| {
            let count = object["data"].as_object().map_or(0, serde_json::Map::len);
            vec![object["type"].clone(), json!(count), age(object, now)]
        }),
        "namespaces" => (&[("Status", "string", 0), AGE], |_, object, now| {
            vec![object["status"]["phase"].clone(), age(object, now)]
        }),
        "nodes" => (
            &[
                ("Status", "string", 0),
                ("Roles", "string", 0),
                AGE,
                ("Version", "string", 0),
                ("Internal-IP", "string", 1),
                ("External-IP", "string", 1),
                ("OS-Image", "string", 1),
                ("Kernel-Version", "string", 1),
                ("Container-Runtime", "string", 1),
            ],
            node,
        ),
        "endpointslices" => {
            (&[("AddressType", "string", 0), ("Ports", "string", 0), ("Endpoints", "string", 0), AGE], slice)
        }
        "endpoints" => (&[("Endpoints", "string", 0), AGE], endpoints),
        "networkpolicies" => (&[("Pod-Selector", "string", 0), AGE], policy),
        "servicecidrs" => (&[("CIDRs", "string", 0), AGE], |_, object, now| {
            vec![json!(texts(object, "/spec/cidrs").join(",")), age(object, now)]
        }),
        "poddisruptionbudgets" => (
            &[
                ("Min Available", "string", 0),
                ("Max Unavailable", "string", 0),
                ("Allowed Disruptions", "integer", 0),
                AGE,
            ],
            budget,
        ),
        "rolebindings" | "clusterrolebindings" => (
            &[
                ("Role", "string", 0),
                AGE,
                ("Users", "string", 1),
                ("Groups", "string", 1),
                ("ServiceAccounts", "string", 1),
            ],
            binding,
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
        "leases" => (&[("Holder", "string", 0), AGE], |_, object, now| {
            vec![json!(text(object, "/spec/holderIdentity")), age(object, now)]
        }),
        "customresourcedefinitions" => (&[("Created At", "date", 0)], |_, object, _| {
            vec![object["metadata"]["creationTimestamp"].clone()]
        }),
        "clusterroles" | "roles" => (&[("Created At", "date", 0)], |_, object, _| {
            vec![object["metadata"]["creationTimestamp"].clone()]
        }),
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => {
            (&[("Webhooks", "integer", 0), AGE], |_, object, now| {
                vec![json!(meta::items(object, "/webhooks").len()), age(object, now)]
            })
        }
        _ => (&[AGE], |_, object, now| vec![age(object, now)]),
    };
    // Events are the one kind whose name comes last, and only when wide.
    let named = kind.plural != "events";
    Layout { columns: definitions(named, columns), named, cells }
}

/// Columns as a table has them, after the name where that comes first.
fn definitions(named: bool, columns: &[Column]) -> Vec<Value> {
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
    definitions
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

/// The texts of a list.
fn texts<'v>(object: &'v Value, pointer: &str) -> Vec<&'v str> {
    meta::items(object, pointer).iter().filter_map(Value::as_str).collect()
}

fn binding(_: &Kind, binding: &Value, now: Timestamp) -> Vec<Value> {
    let subjects = |kind: &str| {
        let subjects = meta::items(binding, "/subjects").iter().filter(|subject| subject["kind"] == kind);
        let named = subjects.map(|subject| match text(subject, "/namespace") {
            "" => text(subject, "/name").to_owned(),
            namespace => format!("{namespace}/{}", text(subject, "/name")),
        });
        json!(named.collect::<Vec<_>>().join(", "))
    };
    let role = &binding["roleRef"];
    vec![
        json!(format!("{}/{}", text(role, "/kind"), text(role, "/name"))),
        age(binding, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
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
}
