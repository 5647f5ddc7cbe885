//! Leases and events: kinds whose times carry a fraction of six digits.

use serde_json::{Map, Value, json};

use crate::api::error::FieldError;
use crate::api::kinds::Kind;
use crate::api::meta;

/// The fields of a kind that are times with a fraction, as pointers.
fn micro_times(kind: &Kind) -> &'static [&'static str] {
    match kind.plural.as_str() {
        "leases" => &["/spec/acquireTime", "/spec/renewTime"],
        "events" => &["/eventTime", "/series/lastObservedTime"],
        _ => &[],
    }
}

/// Why one of those times cannot be read.
pub(super) fn unreadable_time(kind: &Kind, object: &Value) -> Option<String> {
    const FORM: &str = "2006-01-02T15:04:05.000000Z07:00";
    micro_times(kind).iter().find_map(|pointer| {
        let text = object.pointer(pointer)?.as_str()?;
        let whole = text.get(..19).filter(|start| format!("{start}Z").parse::<jiff::Timestamp>().is_ok());
        let (left, wanted) = match whole {
            None => (text, "2006"),
            Some(_) => {
                let rest = &text[19..];
                let digits = rest.strip_prefix('.')?.bytes().take_while(u8::is_ascii_digit).count();
                if rest.starts_with('.') && digits == 6 {
                    return None;
                }
                (rest, ".000000")
            }
        };
        Some(format!("parsing time {text:?} as {FORM:?}: cannot parse {left:?} as {wanted:?}"))
    })
}

/// What an event holds even when nobody has set it, in the form of the core group.
pub(in crate::api) fn default_event(event: &mut Map<String, Value>) {
    for (field, value) in [
        ("involvedObject", json!({})),
        ("source", json!({})),
        ("firstTimestamp", Value::Null),
        ("lastTimestamp", Value::Null),
        ("eventTime", Value::Null),
        ("reportingComponent", json!("")),
        ("reportingInstance", json!("")),
    ] {
        event.entry(field).or_insert(value);
    }
}

pub(super) fn validate_lease(lease: &Value, errors: &mut Vec<FieldError>) {
    if let Some(seconds) = meta::int(lease, "/spec/leaseDurationSeconds")
        && seconds <= 0
    {
        errors.push(FieldError::invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"));
    }
    if let Some(transitions) = meta::int(lease, "/spec/leaseTransitions")
        && transitions < 0
    {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.leaseTransitions", transitions, why));
    }
}

pub(super) fn validate_event(kind: &Kind, event: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if kind.group.is_empty() {
        let about = meta::text(event, "/involvedObject/namespace");
        if !about.is_empty() && about != meta::namespace(event) {
            let why = "does not match event.namespace";
            errors.push(FieldError::invalid("involvedObject.namespace", about, why));
        }
        return;
    }
    if old.is_some() {
        return;
    }
    if event["eventTime"].is_null() {
        errors.push(FieldError::required("eventTime", ""));
    }
    let sort = meta::text(event, "/type");
    if !["Normal", "Warning"].contains(&sort) {
        errors.push(FieldError::invalid("type", sort, format!("has invalid value: {sort}")));
    }
}
