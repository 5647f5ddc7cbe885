//! JSON patch, merge patch and strategic merge patch.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::kinds::Kind;
use super::places::{Elements, Place};

/// The body of a PATCH request, by its media type. Server-side apply is in `apply`.
#[derive(Debug, Clone)]
pub(super) enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    /// Applies the patch to an object in the form the client sees.
    pub(super) fn apply(&self, kind: &Kind, object: &Value) -> Result<Value, ApiError> {
        match self {
            Self::Json(operations) => json_patch(object, operations),
            Self::Merge(patch) if !patch.is_object() => Err(not_an_object()),
            Self::Merge(patch) => {
                let mut result = object.clone();
                json_patch::merge(&mut result, patch);
                Ok(result)
            }
            Self::Strategic(_) if kind.is_custom() => Err(ApiError::new(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )),
            Self::Strategic(Value::Object(patch)) => {
                let mut result = object.clone();
                strategic_object(Place::of(kind), super::meta::object_mut_self(&mut result), patch)?;
                Ok(result)
            }
            Self::Strategic(_) => Err(not_an_object()),
        }
    }
}

fn not_an_object() -> ApiError {
    ApiError::bad_request("json: cannot unmarshal array into Go value of type map[string]interface {}")
}

fn json_patch(object: &Value, operations: &Value) -> Result<Value, ApiError> {
    let Some(list) = operations.as_array() else {
        return Err(ApiError::bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        ));
    };
    // A bounded list: a real server allows as many.
    if list.len() > 10_000 {
        return Err(ApiError::new(
            413,
            "RequestEntityTooLarge",
            format!("The allowed maximum operations in a JSON patch is 10000, got {}", list.len()),
        ));
    }
    let rejected = || {
        ApiError::new(422, "Invalid", "the server rejected our request due to an error in our request")
            .with_details(serde_json::json!({}))
    };
    let operations: json_patch::Patch = serde_json::from_value(operations.clone()).map_err(|_| rejected())?;
    let mut result = object.clone();
    json_patch::patch(&mut result, &operations).map_err(|_| rejected())?;
    Ok(result)
}

fn strategic_object(
    place: Place<'_>,
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), ApiError> {
    match patch.get("$patch").and_then(Value::as_str) {
        None | Some("merge") => {}
        Some("replace") => {
            target.clear();
            target.extend(
                patch.iter().filter(|(key, _)| *key != "$patch").map(|(k, v)| (k.clone(), v.clone())),
            );
            return Ok(());
        }
        Some("delete") => {
            target.clear();
            return Ok(());
        }
        Some(other) => {
            return Err(ApiError::new(
                500,
                "",
                format!("unknown patch type: {other} in map: map[$patch:{other}]"),
            ));
        }
    }
    if let Some(retained) = patch.get("$retainKeys").and_then(Value::as_array) {
        target.retain(|key, _| retained.iter().any(|kept| kept == key));
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(list)), Some(gone)) = (target.get_mut(field), value.as_array()) {
                list.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if key.starts_with('$') {
            continue;
        }
        match value {
            Value::Null => {
                target.remove(key);
            }
            Value::Object(inner) => {
                let slot = target.entry(key.clone()).or_insert(Value::Null);
                strategic_object(place.inner(key), super::meta::object_mut_self(slot), inner)?;
            }
            Value::Array(list) => {
                let order = patch.get(&format!("$setElementOrder/{key}")).and_then(Value::as_array);
                let current = match target.remove(key) {
                    Some(Value::Array(current)) => current,
                    _ => Vec::new(),
                };
                target.insert(
                    key.clone(),
                    Value::Array(strategic_list(place.inner(key), current, list, order)?),
                );
            }
            _ => {
                target.insert(key.clone(), value.clone());
            }
        }
    }
    // An order without a patch of the same list only reorders.
    for (key, order) in patch {
        if let (Some(field), Some(order)) = (key.strip_prefix("$setElementOrder/"), order.as_array())
            && !patch.contains_key(field)
            && let Some(Value::Array(list)) = target.get_mut(field)
            && let Elements::By(keys) = place.inner(field).patched()
            && let Some(merge_key) = keys.first()
        {
            reorder(list, merge_key, order);
        }
    }
    Ok(())
}

fn strategic_list(
    place: Place<'_>,
    mut current: Vec<Value>,
    patch: &[Value],
    order: Option<&Vec<Value>>,
) -> Result<Vec<Value>, ApiError> {
    if patch.iter().any(|item| item["$patch"] == "replace") {
        return Ok(patch.iter().filter(|item| item.get("$patch").is_none()).cloned().collect());
    }
    match place.patched() {
        Elements::Atomic => Ok(patch.to_vec()),
        Elements::Set => {
            let before = current.clone();
            current.retain(|item| !patch.contains(item));
            Ok(interleave(current, patch.to_vec(), &before, |item| item.clone()))
        }
        Elements::By(keys) => {
            let key = keys.first().map_or("", String::as_str);
            let before = current.clone();
            let mut changed = Vec::new();
            for item in patch {
                let Some(inner) = item.as_object() else { return Ok(patch.to_vec()) };
                let Some(wanted) = inner.get(key) else {
                    let message = format!("map: {} does not contain declared merge key: {key}", shown(item));
                    return Err(ApiError::new(500, "", message));
                };
                let at = current.iter().position(|existing| existing.get(key) == Some(wanted));
                let existing = at.map(|at| current.remove(at));
                if inner.get("$patch").and_then(Value::as_str) == Some("delete") {
                    continue;
                }
                let mut merged = existing.unwrap_or(Value::Null);
                strategic_object(place.item(), super::meta::object_mut_self(&mut merged), inner)?;
                changed.push(merged);
            }
            let of = |item: &Value| item.get(key).cloned().unwrap_or(Value::Null);
            // What the client orders counts as changed, whether it changes or not.
            let order = order.map_or(&[][..], Vec::as_slice);
            let mut at = 0;
            while at < current.len() {
                if order.iter().any(|wanted| of(wanted) == of(&current[at])) {
                    changed.push(current.remove(at));
                } else {
                    at += 1;
                }
            }
            if !order.is_empty() {
                changed.sort_by_key(|item| order.iter().position(|wanted| of(wanted) == of(item)));
            }
            Ok(interleave(current, changed, &before, of))
        }
    }
}

/// A value as a real server writes it in this one message.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}:{}", shown(value))).collect();
            entries.sort();
            format!("map[{}]", entries.join(" "))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(shown).collect::<Vec<_>>().join(" ")),
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}

/// Merges the untouched elements with the changed ones. Each side keeps its order; an untouched element comes first
/// only where it stood before the next changed one already.
fn interleave(
    untouched: Vec<Value>,
    changed: Vec<Value>,
    before: &[Value],
    key: impl Fn(&Value) -> Value,
) -> Vec<Value> {
    let place = |item: &Value| before.iter().position(|old| key(old) == key(item));
    let (mut left, mut right) = (untouched.into_iter().peekable(), changed.into_iter().peekable());
    let mut merged = Vec::new();
    loop {
        let next = match (left.peek(), right.peek()) {
            (None, None) => return merged,
            (Some(_), None) => left.next(),
            (None, Some(_)) => right.next(),
            (Some(a), Some(b)) => match (place(a), place(b)) {
                (Some(a), Some(b)) if a < b => left.next(),
                _ => right.next(),
            },
        };
        merged.extend(next);
    }
}

/// Puts the listed elements in the given order; others keep their place after the element they followed.
fn reorder(list: &mut [Value], key: &str, order: &[Value]) {
    let rank = |item: &Value| order.iter().position(|wanted| wanted.get(key) == item.get(key));
    let mut last = 0;
    let mut ranked: Vec<(usize, Value)> = list
        .iter()
        .map(|item| {
            last = rank(item).unwrap_or(last);
            (last, item.clone())
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    for (slot, (_, item)) in list.iter_mut().zip(ranked) {
        *slot = item;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::Kinds;
    use serde_json::json;

    /// Patches the specification of a Pod, a Service or a Node.
    fn strategic(kind: &str, spec: Value, patch: Value) -> Value {
        let kind = Kinds::default().find_kind("v1", kind).unwrap();
        let patched = Patch::Strategic(json!({ "spec": patch })).apply(&kind, &json!({ "spec": spec }));
        patched.unwrap()["spec"].clone()
    }

    /// A Node's taints are one value: the one that a patch leaves out is gone.
    #[test]
    fn taints_are_replaced() {
        let [one, two] = ["a", "b"].map(|key| json!({ "key": key, "effect": "NoSchedule" }));
        let patched = strategic("Node", json!({ "taints": [one, two] }), json!({ "taints": [two] }));
        assert_eq!(patched, json!({ "taints": [two] }));
    }

    #[test]
    fn containers_merge_by_name() {
        let object =
            json!({ "containers": [{ "name": "a", "image": "1", "env": [{ "name": "X", "value": "1" }] }] });
        let patch = json!({ "containers": [{ "name": "b", "image": "1" }, { "name": "a", "image": "2" }] });
        let expected = json!({ "containers": [
            { "name": "b", "image": "1" },
            { "name": "a", "image": "2", "env": [{ "name": "X", "value": "1" }] },
        ] });
        assert_eq!(strategic("Pod", object, patch), expected);
    }

    #[test]
    fn elements_are_deleted_and_reordered() {
        let object = json!({ "volumes": [{ "name": "A" }, { "name": "B" }, { "name": "C" }] });
        let patch = json!({
            "$setElementOrder/volumes": [{ "name": "C" }, { "name": "A" }],
            "volumes": [{ "name": "B", "$patch": "delete" }],
        });
        let expected = json!({ "volumes": [{ "name": "C" }, { "name": "A" }] });
        assert_eq!(strategic("Pod", object, patch), expected);
    }

    #[test]
    fn directives_of_maps() {
        let object = json!({ "data": { "a": "1" }, "strategy": { "type": "x", "rollingUpdate": {} } });
        let patch = json!({
            "data": { "$patch": "replace", "b": "2" },
            "strategy": { "$retainKeys": ["type"], "type": "Recreate" },
        });
        let expected = json!({ "data": { "b": "2" }, "strategy": { "type": "Recreate" } });
        assert_eq!(strategic("Pod", object, patch), expected);
    }

    #[test]
    fn service_ports_merge_by_port() {
        let object = json!({ "ports": [{ "port": 80, "name": "http" }] });
        let patch =
            json!({ "ports": [{ "port": 443, "name": "https" }, { "port": 80, "targetPort": 8080 }] });
        let expected = json!({ "ports": [
            { "port": 443, "name": "https" }, { "port": 80, "name": "http", "targetPort": 8080 },
        ] });
        assert_eq!(strategic("Service", object, patch), expected);
    }
}
