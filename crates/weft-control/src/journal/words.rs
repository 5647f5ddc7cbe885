//! Changes in words: what changed, from what to what, by whom.

use std::collections::BTreeMap;
use weft_kube::{kind::Kind, meta::Meta};

/// `created by kubectl, version 12`, `changed by kubectl, generation 3 to 4, version 12 to 15: label a removed (was b)`.
pub fn written<K: Kind>(old: Option<&K>, new: &K, details: Vec<String>) -> String {
    let meta = new.meta();
    let by = meta.last_writer.as_deref().map(|w| format!(" by {w}")).unwrap_or_default();
    let mut text = match old.map(Kind::meta) {
        None => format!("created{by}, version {}", meta.resource_version),
        Some(old) => {
            let generation = match old.generation == meta.generation {
                true => String::new(),
                false => format!(", generation {} to {}", old.generation, meta.generation),
            };
            let (from, to) = (&old.resource_version, &meta.resource_version);
            format!("changed{by}{generation}, version {from} to {to}")
        }
    };
    if !details.is_empty() {
        text.push_str(": ");
        text.push_str(&details.join(", "));
    }
    text
}

/// What is different in the metadata that decisions look at.
pub fn metadata(old: &Meta, new: &Meta) -> Vec<String> {
    let mut changes = Vec::new();
    if old.uid != new.uid {
        changes.push(format!("is another object now: uid {} to {}", old.uid, new.uid));
    }
    changes.extend(pairs("label", &old.labels, &new.labels));
    changes.extend(pairs("annotation", &old.annotations, &new.annotations));
    if new.deletion_timestamp.is_some() && old.deletion_timestamp.is_none() {
        changes.push("is being deleted".to_owned());
    }
    changes
}

/// `label a removed (was b)`, `label a: b to c`, `label a added: c`.
fn pairs(what: &str, old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<String> {
    let gone = old.iter().filter(|(name, _)| !new.contains_key(*name));
    let mut changes: Vec<String> =
        gone.map(|(name, value)| format!("{what} {name} removed (was {value:?})")).collect();
    changes.extend(new.iter().filter_map(|(name, value)| match old.get(name) {
        None => Some(format!("{what} {name} added: {value:?}")),
        Some(before) if before != value => Some(format!("{what} {name}: {before:?} to {value:?}")),
        Some(_) => None,
    }));
    changes
}
