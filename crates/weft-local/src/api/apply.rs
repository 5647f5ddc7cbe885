//! Server-side apply: the fields of an object that a manager applied are its own, and go when it stops applying them.
//!
//! Ownership is recorded for managers that apply. Plain updates own nothing here, so an apply never conflicts with
//! them (on a real server it does), and two managers that apply different values to one field do conflict.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::kinds::Kind;
use super::update::Part;
use super::write::{Write, check_envelope};
use super::{Api, meta};

/// Applies a configuration. Returns whether the object was created by it.
#[allow(clippy::too_many_arguments)] // one for each thing a request of this sort says
pub(super) async fn apply(
    api: &Api,
    kind: &Kind,
    namespace: &str,
    name: &str,
    part: Part,
    mut wanted: Value,
    manager: &str,
    force: bool,
    write: &mut Write<'_>,
) -> Result<(bool, Arc<Value>), ApiError> {
    check_envelope(kind, &wanted)?;
    if manager.is_empty() {
        let error = super::error::FieldError::required("fieldManager", "is required for apply patch");
        return Err(ApiError::invalid("PatchOptions.meta.k8s.io", "", &[error]));
    }
    for field in ["apiVersion", "kind"] {
        if meta::text(&wanted, &format!("/{field}")).is_empty() {
            return Err(ApiError::bad_request(format!("invalid object type: {field} must be set")));
        }
    }
    if wanted["metadata"].get("managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let metadata = meta::metadata_mut(&mut wanted);
    metadata.remove("managedFields");
    metadata.remove("creationTimestamp");
    metadata.entry("name").or_insert_with(|| json!(name));

    if api.store.get(&kind.resource, namespace, name).is_none() {
        if part != Part::Main {
            return Err(ApiError::not_found(&kind.resource, name));
        }
        let fields = fields_of(kind, &wanted);
        let mut fresh = wanted.clone();
        fresh["metadata"]["managedFields"] = json!([entry(kind, manager, part, fields)]);
        match api.create(kind, namespace, fresh, write).await {
            // Somebody was faster: then it is an update.
            Err(error) if error.reason == "AlreadyExists" => {}
            Err(error) => return Err(error),
            Ok(object) => return Ok((true, object)),
        }
    }
    let change = |live: &Value| merge_applied(kind, live, &wanted, manager, part, force);
    let object = api.update(kind, namespace, name, part, change, write).await?;
    Ok((false, object))
}

/// The live object with the applied configuration in it.
fn merge_applied(
    kind: &Kind,
    live: &Value,
    wanted: &Value,
    manager: &str,
    part: Part,
    force: bool,
) -> Result<Value, ApiError> {
    let version = meta::resource_version(wanted);
    if !version.is_empty() && version != meta::resource_version(live) {
        return Err(ApiError::modified(&kind.resource, meta::name(live)));
    }
    let fields = fields_of(kind, wanted);
    let mut managers: Vec<Value> = meta::items(live, "/metadata/managedFields").to_vec();
    let own = |entry: &Value| {
        entry["manager"] == manager
            && entry["operation"] == "Apply"
            && entry["subresource"].as_str().unwrap_or("") == part.subresource()
    };

    // 1. Fields that others applied, with another value, are theirs.
    let mut conflicts: Vec<(String, String)> = Vec::new();
    for other in managers.iter_mut().filter(|entry| entry["operation"] == "Apply" && !own(entry)) {
        let shared = intersection(&fields, &other["fieldsV1"]);
        let mut paths = Vec::new();
        differing(&shared, live, wanted, "", &mut paths);
        let name = meta::text(other, "/manager").to_owned();
        if !paths.is_empty() && force {
            other["fieldsV1"] = without_paths(&other["fieldsV1"], &paths, "");
        }
        conflicts.extend(paths.into_iter().map(|path| (name.clone(), path)));
    }
    if !conflicts.is_empty() && !force {
        return Err(conflict(kind, live, &conflicts));
    }

    // 2. Fields that this manager applied before and does not apply now go, unless another one applied them too.
    let mut merged = live.clone();
    if let Some(before) = managers.iter().find(|entry| own(entry)) {
        let mut gone = difference(&before["fieldsV1"], &fields);
        for other in managers.iter().filter(|entry| entry["operation"] == "Apply" && !own(entry)) {
            gone = difference(&gone, &other["fieldsV1"]);
        }
        remove_fields(&mut merged, &gone);
    }

    // 3. What is applied is set, and owned.
    merge(kind.schema(), "", &mut merged, wanted);
    let same = managers.iter().position(own);
    match same {
        // Unchanged ownership keeps its time, so that applying again changes nothing.
        Some(at) if managers[at]["fieldsV1"] == fields => {}
        Some(at) => managers[at] = entry(kind, manager, part, fields),
        None => managers.push(entry(kind, manager, part, fields)),
    }
    managers.retain(|entry| entry["fieldsV1"].as_object().is_some_and(|fields| !fields.is_empty()));
    merged["metadata"]["managedFields"] = json!(managers);
    Ok(merged)
}

fn entry(kind: &Kind, manager: &str, part: Part, fields: Value) -> Value {
    let mut entry = json!({
        "manager": manager,
        "operation": "Apply",
        "apiVersion": kind.api_version(),
        "time": meta::now(),
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    });
    if part != Part::Main {
        entry["subresource"] = json!(part.subresource());
    }
    entry
}

fn conflict(kind: &Kind, live: &Value, conflicts: &[(String, String)]) -> ApiError {
    let causes: Vec<Value> = conflicts
        .iter()
        .map(|(manager, path)| {
            json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {manager:?} using {}", kind.api_version()),
                "field": path,
            })
        })
        .collect();
    let shown: Vec<String> =
        conflicts.iter().map(|(manager, path)| format!("conflict with {manager:?}: {path}")).collect();
    let plural = if conflicts.len() == 1 { "conflict" } else { "conflicts" };
    let message = format!("Apply failed with {} {plural}: {}", conflicts.len(), shown.join("\n"));
    tracing::debug!(object = meta::name(live), message, "apply refused");
    ApiError::new(409, "Conflict", message).with_details(json!({ "causes": causes }))
}

/// How the elements of a list are told apart.
enum Elements {
    By(Vec<String>),
    Set,
    Atomic,
}

/// How the list in `field` merges: custom kinds say it in their schema, for built-in ones it is known by name.
fn elements(schema: Option<&Value>, field: &str, list: &[Value]) -> Elements {
    let keys = |names: &[&str]| Elements::By(names.iter().map(|&name| name.to_owned()).collect());
    if let Some(schema) = schema {
        return match schema["x-kubernetes-list-type"].as_str() {
            Some("map") => Elements::By(
                meta::items(schema, "/x-kubernetes-list-map-keys")
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
            ),
            Some("set") => Elements::Set,
            _ => Elements::Atomic,
        };
    }
    match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "env"
        | "volumes"
        | "imagePullSecrets"
        | "secrets"
        | "webhooks" => keys(&["name"]),
        "volumeMounts" => keys(&["mountPath"]),
        "ports" if list.iter().any(|port| port.get("containerPort").is_some()) => {
            keys(&["containerPort", "protocol"])
        }
        "ports" if list.iter().any(|port| port.get("port").is_some()) => keys(&["port", "protocol"]),
        "conditions" => keys(&["type"]),
        "hostAliases" | "podIPs" => keys(&["ip"]),
        "ownerReferences" => keys(&["uid"]),
        "topologySpreadConstraints" => keys(&["topologyKey", "whenUnsatisfiable"]),
        "finalizers" => Elements::Set,
        _ => Elements::Atomic,
    }
}

/// Maps that are one value: a selector is replaced whole.
fn is_atomic_map(schema: Option<&Value>, field: &str) -> bool {
    match schema {
        Some(schema) => schema["x-kubernetes-map-type"] == "atomic",
        None => ["selector", "nodeSelector", "labelSelector", "fieldRef", "secretKeyRef", "configMapKeyRef"]
            .contains(&field),
    }
}

fn inner_schema<'a>(schema: Option<&'a Value>, key: &str) -> Option<&'a Value> {
    let schema = schema?;
    schema["properties"].get(key).or_else(|| schema.get("additionalProperties")).or(Some(&Value::Null))
}

/// The key of a list element, as `k:{…}`; the default protocol counts as given.
fn key_of(item: &Value, keys: &[String]) -> String {
    let mut parts = Map::new();
    for key in keys {
        let value = match item.get(key) {
            Some(value) => value.clone(),
            None if key == "protocol" => json!("TCP"),
            None => continue,
        };
        parts.insert(key.clone(), value);
    }
    format!("k:{}", Value::Object(parts))
}

/// The fields an applied configuration sets, in the `FieldsV1` form.
fn fields_of(kind: &Kind, wanted: &Value) -> Value {
    let mut wanted = wanted.clone();
    let top = meta::object_mut_self(&mut wanted);
    top.remove("apiVersion");
    top.remove("kind");
    let metadata = meta::metadata_mut(&mut wanted);
    for field in
        ["name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"]
    {
        metadata.remove(field);
    }
    if metadata.is_empty() {
        meta::object_mut_self(&mut wanted).remove("metadata");
    }
    // Metadata is not part of a custom kind's schema, and merges by name everywhere.
    let mut fields = Map::new();
    for (key, value) in wanted.as_object().into_iter().flatten() {
        let schema = if key == "metadata" { None } else { inner_schema(kind.schema(), key) };
        fields.insert(format!("f:{key}"), fields_of_value(schema, key, value));
    }
    Value::Object(fields)
}

fn fields_of_value(schema: Option<&Value>, field: &str, value: &Value) -> Value {
    match value {
        Value::Object(map) if !map.is_empty() && !is_atomic_map(schema, field) => {
            let inner = map.iter().map(|(key, value)| {
                (format!("f:{key}"), fields_of_value(inner_schema(schema, key), key, value))
            });
            Value::Object(inner.collect())
        }
        Value::Array(list) if !list.is_empty() => match elements(schema, field, list) {
            Elements::Atomic => json!({}),
            Elements::Set => {
                Value::Object(list.iter().map(|item| (format!("v:{item}"), json!({}))).collect())
            }
            Elements::By(keys) => {
                let item_schema = schema.map(|schema| &schema["items"]);
                let inner = list.iter().map(|item| {
                    let mut fields = fields_of_value(item_schema, "", item);
                    meta::object_mut_self(&mut fields).insert(".".into(), json!({}));
                    (key_of(item, &keys), fields)
                });
                Value::Object(inner.collect())
            }
        },
        _ => json!({}),
    }
}

/// The fields in both. An empty map that one applied is not the entries that another one did.
fn intersection(a: &Value, b: &Value) -> Value {
    let mut both = Map::new();
    let is_leaf = |fields: &Value| fields.as_object().is_none_or(Map::is_empty);
    for (key, value) in a.as_object().into_iter().flatten() {
        let Some(other) = b.get(key) else { continue };
        if is_leaf(value) != is_leaf(other) {
            continue;
        }
        let inner = intersection(value, other);
        if is_leaf(value) || !is_leaf(&inner) {
            both.insert(key.clone(), inner);
        }
    }
    Value::Object(both)
}

/// The fields in `a` that are not in `b`. A field with inner ones is dropped when none of these is left.
fn difference(a: &Value, b: &Value) -> Value {
    let mut left = Map::new();
    for (key, value) in a.as_object().into_iter().flatten() {
        match b.get(key) {
            None => {
                left.insert(key.clone(), value.clone());
            }
            Some(other) => {
                let inner = difference(value, other);
                if inner.as_object().is_some_and(|inner| !inner.is_empty()) {
                    left.insert(key.clone(), inner);
                }
            }
        }
    }
    Value::Object(left)
}

/// The value a field key selects.
fn select<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    if let Some(field) = key.strip_prefix("f:") {
        return value.get(field);
    }
    let keys: Value = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
    value.as_array()?.iter().find(|item| has_keys(item, &keys))
}

fn has_keys(item: &Value, keys: &Value) -> bool {
    keys.as_object().into_iter().flatten().all(|(key, wanted)| match item.get(key) {
        Some(value) => value == wanted,
        None => key == "protocol" && wanted == "TCP",
    })
}

/// The leaves of `fields` where the two objects differ, as paths.
fn differing(fields: &Value, a: &Value, b: &Value, at: &str, paths: &mut Vec<String>) {
    for (key, inner) in fields.as_object().into_iter().flatten() {
        if key == "." || key.starts_with("v:") {
            continue;
        }
        let path = path_of(at, key);
        let (left, right) = (select(a, key), select(b, key));
        if inner.as_object().is_some_and(|inner| !inner.is_empty()) {
            differing(inner, left.unwrap_or(&Value::Null), right.unwrap_or(&Value::Null), &path, paths);
        } else if left != right {
            paths.push(path);
        }
    }
}

/// `.spec.ports[port=80,protocol="TCP"].name`.
fn path_of(at: &str, key: &str) -> String {
    if let Some(field) = key.strip_prefix("f:") {
        return format!("{at}.{field}");
    }
    let keys: Value = serde_json::from_str(key.strip_prefix("k:").unwrap_or("")).unwrap_or(Value::Null);
    let parts: Vec<String> =
        keys.as_object().into_iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{at}[{}]", parts.join(","))
}

fn without_paths(fields: &Value, paths: &[String], at: &str) -> Value {
    let mut left = Map::new();
    for (key, inner) in fields.as_object().into_iter().flatten() {
        let path = path_of(at, key);
        if key == "." || !paths.contains(&path) {
            left.insert(key.clone(), without_paths(inner, paths, &path));
        }
    }
    Value::Object(left)
}

/// Removes fields from an object; a list element goes with its key.
fn remove_fields(object: &mut Value, fields: &Value) {
    for (key, inner) in fields.as_object().into_iter().flatten() {
        let leaf = inner.as_object().is_none_or(Map::is_empty);
        if let Some(field) = key.strip_prefix("f:") {
            if leaf {
                if let Some(map) = object.as_object_mut() {
                    map.shift_remove(field);
                }
            } else if let Some(value) = object.get_mut(field) {
                remove_fields(value, inner);
                // What held only those fields goes with them.
                let empty = match &*value {
                    Value::Object(map) => map.is_empty(),
                    Value::Array(list) => list.is_empty(),
                    _ => false,
                };
                if empty && let Some(map) = object.as_object_mut() {
                    map.shift_remove(field);
                }
            }
        } else if let Some(keys) = key.strip_prefix("k:") {
            let Ok(keys) = serde_json::from_str::<Value>(keys) else { continue };
            let Some(list) = object.as_array_mut() else { continue };
            if inner.get(".").is_some() || leaf {
                list.retain(|item| !has_keys(item, &keys));
            } else if let Some(item) = list.iter_mut().find(|item| has_keys(item, &keys)) {
                remove_fields(item, inner);
            }
        } else if let Some(wanted) = key.strip_prefix("v:")
            && let (Ok(wanted), Some(list)) = (serde_json::from_str::<Value>(wanted), object.as_array_mut())
        {
            list.retain(|item| *item != wanted);
        }
    }
}

/// Sets in `live` what `wanted` says.
fn merge(schema: Option<&Value>, field: &str, live: &mut Value, wanted: &Value) {
    match wanted {
        Value::Object(map) if live.is_object() && !is_atomic_map(schema, field) => {
            let target = meta::object_mut_self(live);
            for (key, value) in map {
                if value.is_null() {
                    continue;
                }
                let inner =
                    if key == "metadata" && field.is_empty() { None } else { inner_schema(schema, key) };
                match target.get_mut(key) {
                    Some(existing) => merge(inner, key, existing, value),
                    None => {
                        target.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        Value::Array(list) if live.is_array() => {
            let Some(target) = live.as_array_mut() else { return };
            match elements(schema, field, list) {
                Elements::Atomic => *target = list.clone(),
                Elements::Set => {
                    for item in list {
                        if !target.contains(item) {
                            target.push(item.clone());
                        }
                    }
                }
                Elements::By(keys) => {
                    let item_schema = schema.map(|schema| &schema["items"]);
                    for item in list {
                        let wanted_key = key_of(item, &keys);
                        match target.iter_mut().find(|existing| key_of(existing, &keys) == wanted_key) {
                            Some(existing) => merge(item_schema, "", existing, item),
                            None => target.push(item.clone()),
                        }
                    }
                }
            }
        }
        wanted => *live = wanted.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::Kinds;

    fn kind() -> Arc<Kind> {
        Kinds::default().find("apps", "v1", "deployments").unwrap()
    }

    fn applied(live: &Value, wanted: Value, manager: &str, force: bool) -> Result<Value, ApiError> {
        merge_applied(&kind(), live, &wanted, manager, Part::Main, force)
    }

    fn config(containers: Value) -> Value {
        json!({ "metadata": { "name": "d", "labels": { "a": "1" } },
            "spec": { "template": { "spec": { "containers": containers } } } })
    }

    #[test]
    fn what_is_no_longer_applied_goes() {
        let live = json!({ "metadata": { "name": "d" }, "spec": { "replicas": 3 } });
        let first = config(
            json!([{ "name": "a", "image": "1", "env": [{ "name": "X", "value": "1" }] }, { "name": "b" }]),
        );
        let one = applied(&live, first, "m", false).unwrap();
        assert_eq!(one["spec"]["replicas"], 3);
        assert_eq!(one["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 2);

        let mut second = config(json!([{ "name": "a", "image": "2" }]));
        meta::metadata_mut(&mut second).remove("labels");
        let two = applied(&one, second.clone(), "m", false).unwrap();
        assert_eq!(two["spec"]["template"]["spec"]["containers"], json!([{ "name": "a", "image": "2" }]));
        assert_eq!(two["metadata"].get("labels"), None);
        assert_eq!(applied(&two, second, "m", false).unwrap(), two, "applying again changes nothing");
    }

    #[test]
    fn two_managers_conflict_over_a_value_only() {
        let live = json!({ "metadata": { "name": "d" } });
        let one = applied(&live, config(json!([{ "name": "a", "image": "1" }])), "one", false).unwrap();
        let same = applied(&one, config(json!([{ "name": "a", "image": "1" }])), "two", false).unwrap();
        assert_eq!(same["metadata"]["managedFields"].as_array().unwrap().len(), 2);

        let error = applied(&one, config(json!([{ "name": "a", "image": "2" }])), "two", false).unwrap_err();
        assert_eq!(error.reason, "Conflict");
        let path = ".spec.template.spec.containers[name=\"a\"].image";
        assert_eq!(error.details["causes"][0]["field"], path);
        let forced = applied(&one, config(json!([{ "name": "a", "image": "2" }])), "two", true).unwrap();
        assert_eq!(forced["spec"]["template"]["spec"]["containers"][0]["image"], "2");
    }
}
