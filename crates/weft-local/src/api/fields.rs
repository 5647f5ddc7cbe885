//! Sets of an object's fields, as `metadata.managedFields` has them, and what can be done with them: which fields an
//! object sets, in which two objects differ, merging one object into another, removing fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::kinds::Kind;
use super::meta;
use super::places::{Elements, Place};

/// A set of fields, by key: `f:NAME`, `k:{…}` for an element of a list of objects, `v:…` for one of a list of values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fields {
    /// Whether the field itself is in the set, beside those below it.
    own: bool,
    below: BTreeMap<String, Fields>,
}

impl Fields {
    /// Reads the `FieldsV1` form.
    pub(super) fn read(fields: &Value) -> Self {
        let mut read = Self::default();
        for (key, inner) in fields.as_object().into_iter().flatten() {
            if key == "." {
                read.own = true;
                continue;
            }
            let mut below = Self::read(inner);
            below.own |= inner.as_object().is_none_or(Map::is_empty);
            read.below.insert(key.clone(), below);
        }
        read
    }

    /// The `FieldsV1` form.
    pub(super) fn to_value(&self) -> Value {
        let mut fields = Map::new();
        if self.own && !self.below.is_empty() {
            fields.insert(".".into(), json!({}));
        }
        for (key, inner) in &self.below {
            fields.insert(key.clone(), inner.to_value());
        }
        Value::Object(fields)
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.own && self.below.is_empty()
    }

    pub(super) fn union(&mut self, other: &Self) {
        self.own |= other.own;
        for (key, inner) in &other.below {
            self.below.entry(key.clone()).or_default().union(inner);
        }
    }

    /// The fields that `other` has not.
    pub(super) fn minus(&self, other: &Self) -> Self {
        self.combined(other, |own, others| own && !others)
    }

    /// The fields that `other` has too.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        self.combined(other, |own, others| own && others)
    }

    fn combined(&self, other: &Self, keep: fn(bool, bool) -> bool) -> Self {
        let nothing = Self::default();
        let below = self.below.iter().filter_map(|(key, inner)| {
            let combined = inner.combined(other.below.get(key).unwrap_or(&nothing), keep);
            (!combined.is_empty()).then(|| (key.clone(), combined))
        });
        Self { below: below.collect(), own: keep(self.own, other.own) }
    }

    /// Leaves out a part of the object.
    pub(super) fn without(mut self, field: &str) -> Self {
        self.below.remove(&format!("f:{field}"));
        self
    }

    /// Keeps one part of the object.
    pub(super) fn only(mut self, field: &str) -> Self {
        let key = format!("f:{field}");
        self.below.retain(|known, _| *known == key);
        self
    }

    /// The fields as paths, those of one level before what is below them.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, at: &str, paths: &mut Vec<String>) {
        let own = self.below.iter().filter(|(_, inner)| inner.own);
        paths.extend(own.map(|(key, _)| path_of(at, key)));
        for (key, inner) in &self.below {
            inner.collect_paths(&path_of(at, key), paths);
        }
    }

    fn at(&mut self, key: String) -> &mut Self {
        self.below.entry(key).or_default()
    }

    /// Drops what every object has and nobody owns.
    fn stripped(mut self) -> Self {
        let identity = [
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "managedFields",
            "selfLink",
        ];
        self.below.remove("f:apiVersion");
        self.below.remove("f:kind");
        if let Some(metadata) = self.below.get_mut("f:metadata") {
            metadata.own = false;
            metadata.below.retain(|key, _| !identity.iter().any(|field| key[2..] == **field));
            if metadata.below.is_empty() {
                self.below.remove("f:metadata");
            }
        }
        self
    }
}

/// `.spec.ports[port=80,protocol="TCP"].name`.
fn path_of(at: &str, key: &str) -> String {
    if let Some(field) = key.strip_prefix("f:") {
        return format!("{at}.{field}");
    }
    if let Some(value) = key.strip_prefix("v:") {
        return format!("{at}[={value}]");
    }
    format!("{at}[{}]", shown_key(key))
}

/// `port=80,protocol="TCP"`.
fn shown_key(key: &str) -> String {
    let keys: Value = serde_json::from_str(key.strip_prefix("k:").unwrap_or("")).unwrap_or(Value::Null);
    let parts: Vec<String> =
        keys.as_object().into_iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
    parts.join(",")
}

/// The key of a list element; the default protocol counts as given.
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

/// The fields that an object sets.
pub(super) fn of(kind: &Kind, object: &Value) -> Fields {
    let mut fields = Fields::default();
    collect(Place::of(kind), object, &mut fields);
    fields.stripped()
}

fn collect(place: Place<'_>, value: &Value, fields: &mut Fields) {
    match value {
        Value::Object(map) if !place.is_atomic() && (place.root || !map.is_empty()) => {
            for (key, value) in map {
                let inner = fields.at(format!("f:{key}"));
                inner.own |= place.is_entry(key) && !place.root;
                collect(place.inner(key), value, inner);
            }
            fields.below.retain(|_, inner| !inner.is_empty());
        }
        Value::Array(list) => match place.elements() {
            Elements::Atomic => fields.own = true,
            Elements::Set => list.iter().for_each(|item| fields.at(format!("v:{item}")).own = true),
            Elements::By(keys) => {
                for item in list {
                    let inner = fields.at(key_of(item, &keys));
                    inner.own = true;
                    collect(place.item(), item, inner);
                }
            }
        },
        _ => fields.own = true,
    }
}

/// An element of a list of objects that stands there twice: the list's path and the key.
pub(super) fn duplicate(kind: &Kind, object: &Value) -> Option<(String, String)> {
    fn find(place: Place<'_>, value: &Value, at: &str) -> Option<(String, String)> {
        match value {
            Value::Object(map) => {
                map.iter().find_map(|(key, value)| find(place.inner(key), value, &format!("{at}.{key}")))
            }
            Value::Array(list) => {
                let Elements::By(keys) = place.elements() else { return None };
                let found: Vec<String> = list.iter().map(|item| key_of(item, &keys)).collect();
                let twice = (1..found.len()).find(|i| found[..*i].contains(&found[*i]));
                if let Some(i) = twice {
                    return Some((at.to_owned(), shown_key(&found[i])));
                }
                list.iter().find_map(|item| find(place.item(), item, at))
            }
            _ => None,
        }
    }
    find(Place::of(kind), object, "")
}

/// In what one object differs from another.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Fields that are new or have another value.
    pub changed: Fields,
    pub removed: Fields,
}

pub(super) fn compare(kind: &Kind, old: &Value, new: &Value) -> Differences {
    let mut found = Differences::default();
    differ(Place::of(kind), Some(old), Some(new), &mut found.changed, &mut found.removed);
    Differences { changed: found.changed.stripped(), removed: found.removed.stripped() }
}

fn differ(
    place: Place<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
    changed: &mut Fields,
    removed: &mut Fields,
) {
    if old == new {
        return;
    }
    let empty = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    };
    let sample = new.filter(|new| !new.is_null()).or(old).unwrap_or(&Value::Null);
    let same_shape = |value: Option<&Value>| {
        value.is_none_or(|value| value.is_null() || value.is_array() == sample.is_array())
    };
    let parts = |value: Option<&Value>| -> Option<Vec<(String, Value)>> {
        match (sample, value) {
            (_, None | Some(Value::Null)) => Some(Vec::new()),
            (Value::Object(_), Some(Value::Object(map))) if !place.is_atomic() => {
                Some(map.iter().map(|(key, value)| (format!("f:{key}"), value.clone())).collect())
            }
            (Value::Array(_), Some(Value::Array(list))) => match place.elements() {
                Elements::Atomic => None,
                Elements::Set => Some(list.iter().map(|item| (format!("v:{item}"), item.clone())).collect()),
                Elements::By(keys) => {
                    Some(list.iter().map(|item| (key_of(item, &keys), item.clone())).collect())
                }
            },
            _ => None,
        }
    };
    let inner =
        (same_shape(old) && !(empty(old) && empty(new))).then(|| parts(old).zip(parts(new))).flatten();
    let Some((before, after)) = inner else {
        match new {
            Some(_) => changed.own = true,
            None => removed.own = true,
        }
        return;
    };
    if !place.root {
        changed.own |= old.is_none();
        removed.own |= new.is_none();
    }
    let in_list = sample.is_array();
    for key in before.iter().map(|(key, _)| key).chain(after.iter().map(|(key, _)| key)) {
        let find = |parts: &'_ [(String, Value)]| {
            parts.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone())
        };
        let (old, new) = (find(&before), find(&after));
        let inner = if in_list { place.item() } else { place.inner(&key[2..]) };
        differ(inner, old.as_ref(), new.as_ref(), changed.at(key.clone()), removed.at(key.clone()));
    }
    changed.below.retain(|_, inner| !inner.is_empty());
    removed.below.retain(|_, inner| !inner.is_empty());
}

/// Sets in `live` what `wanted` says.
pub(super) fn merge(kind: &Kind, live: &mut Value, wanted: &Value) {
    merge_value(Place::of(kind), live, wanted);
}

fn merge_value(place: Place<'_>, live: &mut Value, wanted: &Value) {
    match wanted {
        Value::Object(map) if live.is_object() && !place.is_atomic() => {
            let target = meta::object_mut_self(live);
            for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
                match target.get_mut(key) {
                    Some(existing) => merge_value(place.inner(key), existing, value),
                    None => {
                        target.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        Value::Array(list) if live.is_array() => {
            let Some(target) = live.as_array_mut() else { return };
            match place.elements() {
                Elements::Atomic => *target = list.clone(),
                Elements::Set => {
                    for item in list {
                        if !target.contains(item) {
                            target.push(item.clone());
                        }
                    }
                }
                Elements::By(keys) => {
                    for item in list {
                        let wanted = key_of(item, &keys);
                        match target.iter_mut().find(|existing| key_of(existing, &keys) == wanted) {
                            Some(existing) => merge_value(place.item(), existing, item),
                            None => target.push(item.clone()),
                        }
                    }
                }
            }
        }
        wanted => *live = wanted.clone(),
    }
}

/// Removes the fields of `gone`; what holds fields of `kept` stays.
pub(super) fn remove(object: &mut Value, gone: &Fields, kept: &Fields) {
    let nothing = Fields::default();
    for (key, inner) in &gone.below {
        let kept = kept.below.get(key).unwrap_or(&nothing);
        let whole = inner.own && kept.is_empty();
        if let Some(field) = key.strip_prefix("f:") {
            let Some(map) = object.as_object_mut() else { continue };
            if !whole && let Some(value) = map.get_mut(field) {
                remove(value, inner, kept);
            }
            // What held only those fields goes with them.
            let emptied = map.get(field).is_some_and(|value| match value {
                Value::Object(map) => map.is_empty(),
                Value::Array(list) => list.is_empty(),
                _ => false,
            });
            if whole || (emptied && kept.is_empty()) {
                map.shift_remove(field);
            }
        } else if let Some(list) = object.as_array_mut() {
            let keys = key.strip_prefix("k:").and_then(|keys| serde_json::from_str::<Value>(keys).ok());
            let value = key.strip_prefix("v:").and_then(|value| serde_json::from_str::<Value>(value).ok());
            let is_it = |item: &Value| match (&keys, &value) {
                (Some(keys), _) => has_keys(item, keys),
                (_, value) => value.as_ref() == Some(item),
            };
            if whole {
                list.retain(|item| !is_it(item));
            } else if let Some(item) = list.iter_mut().find(|item| is_it(item)) {
                remove(item, inner, kept);
            }
        }
    }
}

fn has_keys(item: &Value, keys: &Value) -> bool {
    keys.as_object().into_iter().flatten().all(|(key, wanted)| match item.get(key) {
        Some(value) => value == wanted,
        None => key == "protocol" && wanted == "TCP",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::Kinds;

    fn deployment(containers: Value) -> Value {
        json!({ "metadata": { "name": "d", "labels": { "a": "1" } },
            "spec": { "template": { "spec": { "containers": containers } } } })
    }

    #[test]
    fn the_fields_of_an_object() {
        let kind = Kinds::default().find("apps", "v1", "deployments").unwrap();
        let fields = of(&kind, &deployment(json!([{ "name": "a", "args": ["x"], "ports": [] }])));
        let container = json!({ ".": {}, "f:name": {}, "f:args": {} });
        assert_eq!(
            fields.to_value(),
            json!({
                "f:metadata": { "f:labels": { "f:a": {} } },
                "f:spec": { "f:template": { "f:spec": { "f:containers": { "k:{\"name\":\"a\"}": container } } } },
            })
        );
        assert_eq!(Fields::read(&fields.to_value()), fields);
        let expected = [".metadata.labels.a", ".spec.template.spec.containers[name=\"a\"]"];
        assert_eq!(fields.paths()[..2], expected);
    }

    #[test]
    fn what_is_new_is_named_with_what_holds_it() {
        let kind = Kinds::default().find("", "v1", "configmaps").unwrap();
        let (old, new) = (json!({ "metadata": {} }), json!({ "metadata": {}, "data": { "a": "1" } }));
        let there = compare(&kind, &old, &new);
        assert_eq!(there.changed.to_value(), json!({ "f:data": { ".": {}, "f:a": {} } }));
        assert!(there.removed.is_empty());
        let back = compare(&kind, &new, &old);
        assert_eq!(back.removed.to_value(), json!({ "f:data": { ".": {}, "f:a": {} } }));
        let more = json!({ "metadata": {}, "data": { "a": "2", "b": "1" } });
        assert_eq!(compare(&kind, &new, &more).changed.paths(), [".data.a", ".data.b"]);
    }

    #[test]
    fn sets_are_subtracted_field_by_field() {
        let one = Fields::read(&json!({ "f:data": { ".": {}, "f:a": {}, "f:b": {} } }));
        let two = Fields::read(&json!({ "f:data": { "f:b": {}, "f:c": {} } }));
        assert_eq!(one.minus(&two).to_value(), json!({ "f:data": { ".": {}, "f:a": {} } }));
        assert_eq!(one.intersection(&two).to_value(), json!({ "f:data": { "f:b": {} } }));
        assert!(one.minus(&one).is_empty());
    }
}
