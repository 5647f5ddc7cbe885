//! Server-side apply: the fields of an object that a manager applied are its own, and go when it stops applying them.
//!
//! A field that another manager has set to another value is a conflict, however that manager set it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{self, Fields};
use super::kinds::Kind;
use super::managers::{self, Entry};
use super::update::Part;
use super::write::{Tracking, Write, check_envelope};
use super::{Api, meta, shape};

/// Applies a configuration. Returns whether the object was created by it.
#[allow(clippy::too_many_arguments)] // one for each thing a request of this sort says
pub(super) async fn apply(
    api: &Api,
    kind: &Kind,
    namespace: &str,
    name: &str,
    part: Part,
    mut wanted: Value,
    force: bool,
    write: &mut Write<'_>,
) -> Result<(bool, Arc<Value>), ApiError> {
    if write.manager.is_empty() {
        let error = super::error::FieldError::required("fieldManager", "is required for apply patch");
        return Err(ApiError::invalid("PatchOptions.meta.k8s.io", "", &[error]));
    }
    let (version, given) = (meta::text(&wanted, "/apiVersion"), meta::text(&wanted, "/kind"));
    if wanted.is_object() && (version.is_empty() || given.is_empty()) {
        let slash = if version.contains('/') { "" } else { "/" };
        return Err(ApiError::bad_request(format!("invalid object type: {slash}{version}, Kind={given}")));
    }
    check_envelope(kind, &wanted)?;
    if wanted["metadata"].get("managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    check_types(kind, &wanted)?;
    let metadata = meta::metadata_mut(&mut wanted);
    metadata.remove("managedFields");
    metadata.remove("creationTimestamp");
    metadata.entry("name").or_insert_with(|| json!(name));
    write.tracking = Tracking::Applied;

    if api.store.get(&kind.resource, namespace, name).is_none() {
        if part != Part::Main {
            return Err(ApiError::not_found(&kind.resource, name));
        }
        let mut fresh = wanted.clone();
        let mut entry = Entry::new(kind, &write.manager, "Apply", "");
        entry.fields = applied_fields(kind, part, &wanted);
        entry.time = Some(meta::now());
        managers::write(&mut fresh, vec![entry]);
        match api.create(kind, namespace, fresh, write).await {
            // Somebody was faster: then it is an update.
            Err(error) if error.reason == "AlreadyExists" => {}
            Err(error) => return Err(error),
            Ok(object) => return Ok((true, object)),
        }
    }
    let manager = write.manager.clone();
    let change = |live: &Value| merge_applied(kind, live, &wanted, &manager, part, force);
    let object = api.update(kind, namespace, name, part, change, write).await?;
    Ok((false, object))
}

/// An applied configuration must have the kind's types and no other fields, and each element of a list once.
fn check_types(kind: &Kind, wanted: &Value) -> Result<(), ApiError> {
    let refuse = |why: String| {
        let (namespace, name) = (meta::namespace(wanted), meta::name(wanted));
        let object = format!("{namespace}/{name}; {}/{}, Kind={}", kind.group, kind.version, kind.kind);
        Err(ApiError::new(500, "", format!("failed to create typed patch object ({object}): {why}")))
    };
    match shape::decode(kind, wanted) {
        Err(error) if !kind.is_custom() => return refuse(error.message),
        Err(error) => return Err(error),
        Ok(decoded) => {
            if let Some(field) = decoded.unknown.first() {
                return refuse(format!(".{field}: field not declared in schema"));
            }
        }
    }
    match fields::duplicate(kind, wanted) {
        Some((list, key)) => refuse(format!("{list}: duplicate entries for key [{key}]")),
        None => Ok(()),
    }
}

/// The fields that a configuration applies to the part it is for.
fn applied_fields(kind: &Kind, part: Part, wanted: &Value) -> Fields {
    let applied = fields::of(kind, wanted);
    match part {
        Part::Status => applied.only("status"),
        _ if kind.status => applied.without("status"),
        _ => applied,
    }
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
    let mut managers = managers::read(live);
    if managers.is_empty() {
        managers.push(managers::before_apply(kind, live));
    }
    let mut mine = Entry::new(kind, manager, "Apply", part.subresource());
    let before = managers.iter().position(|entry| entry.is(&mine)).map(|at| managers.remove(at));
    mine.fields = applied_fields(kind, part, wanted);

    // 1. What is applied is set. What this manager applied before and does not now goes, unless another one owns it.
    let mut merged = live.clone();
    fields::merge(kind, &mut merged, wanted);
    if let Some(before) = &before {
        let mut kept = mine.fields.clone();
        managers.iter().for_each(|entry| kept.union(&entry.fields));
        fields::remove(&mut merged, &before.fields.minus(&kept), &kept);
    }

    // 2. Fields that change and are another manager's are conflicts, or taken by force.
    let found = fields::compare(kind, live, &merged);
    let mut conflicts: Vec<(String, String)> = Vec::new();
    for other in &mut managers {
        let taken = other.fields.intersection(&found.changed);
        conflicts.extend(taken.paths().into_iter().map(|path| (other.shown(), path)));
        other.fields = other.fields.minus(&taken).minus(&found.removed);
    }
    if !conflicts.is_empty() && !force {
        return Err(conflict(live, &conflicts));
    }

    // 3. A manager that changes nothing keeps its time, so that applying again writes nothing.
    let same = found.changed.is_empty() && found.removed.is_empty();
    mine.time = if same { before.and_then(|before| before.time) } else { Some(meta::now()) };
    managers.push(mine);
    managers::write(&mut merged, managers);
    Ok(merged)
}

fn conflict(live: &Value, conflicts: &[(String, String)]) -> ApiError {
    let causes: Vec<Value> = conflicts
        .iter()
        .map(|(manager, path)| {
            json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {manager}"),
                "field": path,
            })
        })
        .collect();
    let message = match conflicts {
        [(manager, path)] => format!("Apply failed with 1 conflict: conflict with {manager}: {path}"),
        many => {
            let mut managers: Vec<&String> = many.iter().map(|(manager, _)| manager).collect();
            managers.sort();
            managers.dedup();
            let mut lines = Vec::new();
            for manager in managers {
                lines.push(format!("conflicts with {manager}:"));
                let own = many.iter().filter(|(owner, _)| owner == manager);
                lines.extend(own.map(|(_, path)| format!("- {path}")));
            }
            format!("Apply failed with {} conflicts: {}", many.len(), lines.join("\n"))
        }
    };
    tracing::debug!(object = meta::name(live), message, "apply refused");
    ApiError::new(409, "Conflict", message).with_details(json!({ "causes": causes }))
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

    #[test]
    fn an_update_is_a_managers_too() {
        let old = config(json!([{ "name": "a", "image": "1" }]));
        let mut live = old.clone();
        managers::note_update(&kind(), "hand", "", None, &mut live);
        let wanted = config(json!([{ "name": "a", "image": "2" }]));
        let error = applied(&live, wanted, "m", false).unwrap_err();
        assert!(
            error.message.starts_with("Apply failed with 1 conflict: conflict with \"hand\" using apps/v1: "),
            "{error}"
        );
    }
}
