//! Deployments, ReplicaSets and Jobs: defaults and validation.

use serde_json::{Value, json};

use super::{names, pod};
use crate::api::error::FieldError;
use crate::api::meta::{self, default};
use crate::api::selector::LabelSelector;

fn default_template(object: &mut Value) {
    let spec = meta::object_mut(object, "spec");
    let template = spec.entry("template").or_insert_with(|| json!({}));
    let metadata = meta::object_mut(template, "metadata");
    metadata.remove("creationTimestamp");
    pod::default_spec(meta::object_mut(template, "spec"));
}

pub(super) fn default_deployment(object: &mut Value) {
    default_template(object);
    let spec = meta::object_mut(object, "spec");
    default(spec, "replicas", 1);
    default(spec, "revisionHistoryLimit", 10);
    default(spec, "progressDeadlineSeconds", 600);
    default(spec, "strategy", json!({}));
    let Some(strategy) = spec.get_mut("strategy").and_then(Value::as_object_mut) else { return };
    default(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate" {
        default(strategy, "rollingUpdate", json!({}));
        if let Some(rolling) = strategy.get_mut("rollingUpdate").and_then(Value::as_object_mut) {
            default(rolling, "maxUnavailable", "25%");
            default(rolling, "maxSurge", "25%");
        }
    }
}

pub(super) fn default_replica_set(object: &mut Value) {
    default_template(object);
    default(meta::object_mut(object, "spec"), "replicas", 1);
}

pub(super) fn default_job(object: &mut Value) {
    default_template(object);
    let spec = meta::object_mut(object, "spec");
    if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
        spec.insert("completions".into(), json!(1));
    }
    default(spec, "parallelism", 1);
    default(spec, "backoffLimit", 6);
    default(spec, "completionMode", "NonIndexed");
    default(spec, "suspend", false);
    default(spec, "podReplacementPolicy", "TerminatingOrFailed");
}

/// The labels and the selector a Job gets when it is created: they tie pods to this Job and no other.
pub(crate) fn admit_job(job: &mut Value) {
    if job["spec"]["manualSelector"] == json!(true) {
        return;
    }
    let (name, uid) = (meta::name(job).to_owned(), meta::uid(job).to_owned());
    let metadata = meta::object_mut(&mut job["spec"]["template"], "metadata");
    let labels = meta::object_mut_self(metadata.entry("labels").or_insert(Value::Null));
    for (key, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("job-name", &name),
    ] {
        labels.insert(key.to_owned(), json!(value));
    }
    job["spec"]["selector"] = json!({ "matchLabels": { "batch.kubernetes.io/controller-uid": uid } });
}

fn validate_selector(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let selector = LabelSelector::from_object(&spec["selector"]);
    let labels = spec["template"]["metadata"]["labels"].as_object();
    if !spec["selector"].is_object() {
        errors.push(FieldError::required("spec.selector", ""));
    } else if selector.is_empty() {
        let why = "empty selector is invalid for deployment";
        errors.push(FieldError::invalid("spec.selector", spec["selector"].clone(), why));
    }
    names::labels("spec.selector.matchLabels", spec["selector"]["matchLabels"].as_object(), errors);
    names::labels("spec.template.labels", labels, errors);
    if selector.is_empty() || !selector.matches(labels) {
        let shown = spec["template"]["metadata"]["labels"].clone();
        let why = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", shown, why));
    }
}

fn not_negative(object: &Value, field: &str, errors: &mut Vec<FieldError>) {
    if let Some(number) = object["spec"][field].as_i64()
        && number < 0
    {
        errors.push(FieldError::invalid(
            format!("spec.{field}"),
            number,
            "must be greater than or equal to 0",
        ));
    }
}

/// Deployments and ReplicaSets.
pub(super) fn validate_replicated(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    not_negative(object, "replicas", errors);
    validate_selector(object, errors);
    pod::validate_spec("spec.template.spec", &object["spec"]["template"]["spec"], &["Always"], errors);
    if let Some(strategy) = object["spec"]["strategy"].as_object() {
        let types = ["Recreate", "RollingUpdate"];
        let kind = strategy["type"].as_str().unwrap_or("");
        if !types.contains(&kind) {
            errors.push(FieldError::unsupported("spec.strategy.type", kind, &types));
        }
        if kind == "Recreate" && strategy.get("rollingUpdate").is_some_and(|r| !r.is_null()) {
            let why = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden("spec.strategy.rollingUpdate", why));
        }
        let zero = |field: &str| {
            strategy
                .get("rollingUpdate")
                .and_then(|rolling| rolling.get(field))
                .is_some_and(|value| *value == json!(0) || *value == json!("0%"))
        };
        if zero("maxUnavailable") && zero("maxSurge") {
            let shown = strategy["rollingUpdate"]["maxUnavailable"].clone();
            let why = "may not be 0 when `maxSurge` is 0";
            errors.push(FieldError::invalid("spec.strategy.rollingUpdate.maxUnavailable", shown, why));
        }
    }
    if old.is_some_and(|old| old["spec"]["selector"] != object["spec"]["selector"]) {
        let shown = object["spec"]["selector"].clone();
        errors.push(FieldError::invalid("spec.selector", shown, "field is immutable"));
    }
}

pub(super) fn validate_job(job: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let counts =
        ["parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"];
    for field in counts {
        not_negative(job, field, errors);
    }
    pod::validate_spec(
        "spec.template.spec",
        &job["spec"]["template"]["spec"],
        &["OnFailure", "Never"],
        errors,
    );
    // Refused rather than ignored: a Job that relies on them would do something else than it says.
    for field in ["podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "managedBy"] {
        if job["spec"].get(field).is_some() {
            errors.push(FieldError::forbidden(format!("spec.{field}"), "is not run on one machine"));
        }
    }
    let mode = meta::text(job, "/spec/completionMode");
    if mode != "NonIndexed" {
        errors.push(FieldError::unsupported("spec.completionMode", mode, &["NonIndexed"]));
    }
    let Some(old) = old else { return };
    for field in ["selector", "template", "completionMode"] {
        if old["spec"][field] != job["spec"][field] {
            let shown = job["spec"][field].clone();
            errors.push(FieldError::invalid(format!("spec.{field}"), shown, "field is immutable"));
        }
    }
    let indexed = job["spec"]["completionMode"] == "Indexed";
    if !indexed && old["spec"]["completions"] != job["spec"]["completions"] {
        let shown = job["spec"]["completions"].clone();
        errors.push(FieldError::invalid("spec.completions", shown, "field is immutable"));
    }
}
