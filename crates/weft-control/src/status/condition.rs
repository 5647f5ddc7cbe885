//! Conditions, as Kubernetes writes them.

use super::Write;
use jiff::Timestamp;
use serde_json::{Value, json};
use weft_kube::{kind::Kind, meta::Meta, policy::status::Conditions};

/// The types that are ours; entries of other types are other controllers'.
const OURS: [&str; 3] = [ACCEPTED, RESOLVED_REFS, CONFLICTED];
pub(super) const ACCEPTED: &str = "Accepted";
pub(super) const RESOLVED_REFS: &str = "ResolvedRefs";
/// There only where it holds.
pub(super) const CONFLICTED: &str = "Conflicted";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub kind: &'static str,
    pub holds: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Condition {
    /// Its reason is its name.
    pub(super) fn yes(kind: &'static str) -> Self {
        Condition { kind, holds: true, reason: kind, message: String::new() }
    }

    pub(super) fn no(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Condition { kind, holds: false, reason, message: message.into() }
    }

    pub(super) fn conflicted(reason: &'static str, message: impl Into<String>) -> Self {
        Condition { kind: CONFLICTED, holds: true, reason, message: message.into() }
    }

    /// `Accepted`, unless there is a flaw.
    pub(super) fn accepted(flaw: Option<String>) -> Self {
        match flaw {
            Some(flaw) => Condition::no(ACCEPTED, "UnsupportedValue", flaw),
            None => Condition::yes(ACCEPTED),
        }
    }

    /// Keeps the time of the last change while the state stays.
    pub(super) fn json(&self, generation: i64, old: &[Value], now: Timestamp) -> Value {
        let status = if self.holds { "True" } else { "False" };
        let since = old
            .iter()
            .find(|c| c["type"] == self.kind && c["status"] == status)
            .and_then(|c| c["lastTransitionTime"].as_str())
            .map_or_else(|| now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), str::to_owned);
        json!({
            "type": self.kind, "status": status, "reason": self.reason, "message": self.message,
            "observedGeneration": generation, "lastTransitionTime": since,
        })
    }

    /// A conflict is told once: when it is new, or a new one.
    pub(super) fn warning(&self, old: &[Value]) -> Option<(String, String)> {
        let told = old.iter().any(|c| c["type"] == self.kind && c["message"] == self.message);
        (self.kind == CONFLICTED && !told).then(|| (self.reason.to_owned(), self.message.clone()))
    }
}

/// The same entries. Controllers disagree about their order, and must not answer each other's writes for ever.
pub(super) fn same(a: &[Value], b: &[Value]) -> bool {
    a.len() == b.len() && a.iter().all(|entry| b.contains(entry))
}

/// What should be written about an object whose status is a list of conditions.
pub(super) fn of_object<K: Kind>(
    object: &K,
    status: &Conditions,
    wanted: &[Condition],
    now: Timestamp,
) -> Option<Write> {
    let old = &status.conditions;
    let foreign = old.iter().filter(|c| !OURS.iter().any(|ours| c["type"] == *ours)).cloned();
    let ours = wanted.iter().map(|c| c.json(object.meta().generation, old, now));
    let all: Vec<Value> = foreign.chain(ours).collect();
    (!same(&all, old)).then(|| Write {
        status: json!({"conditions": all}),
        warnings: wanted.iter().filter_map(|c| c.warning(old)).collect(),
        ..empty::<K>(object.meta())
    })
}

/// A write about this object, of nothing yet.
pub(super) fn empty<K: Kind>(meta: &Meta) -> Write {
    write(&K::path(Some(&meta.namespace)), K::GROUP, K::VERSION, K::KIND, meta)
}

pub(super) fn write(collection: &str, group: &str, version: &str, kind: &str, meta: &Meta) -> Write {
    Write {
        path: format!("{collection}/{}", meta.name),
        version: meta.resource_version.clone(),
        status: Value::Null,
        about: json!({
            "apiVersion": if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
            "kind": kind, "namespace": meta.namespace,
            "name": meta.name, "uid": meta.uid,
        }),
        warnings: Vec::new(),
    }
}
