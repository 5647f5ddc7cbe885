//! `metadata.managedFields`: who set which fields of an object, by which operation.

use serde_json::{Map, Value, json};

use super::fields::{self, Fields};
use super::kinds::Kind;
use super::meta;

/// How many managers an object remembers that have updated it; older ones are put together.
const UPDATERS: usize = 10;

/// The name of those that were put together.
const ANCIENT: &str = "ancient-changes";

/// The manager of what an object had before anybody applied it.
pub(super) const BEFORE_APPLY: &str = "before-first-apply";

/// One manager's fields.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub manager: String,
    pub operation: &'static str,
    pub version: String,
    pub subresource: String,
    /// When the manager last changed something.
    pub time: Option<String>,
    pub fields: Fields,
}

impl Entry {
    pub(super) fn new(kind: &Kind, manager: &str, operation: &'static str, subresource: &str) -> Self {
        Self {
            manager: manager.to_owned(),
            operation,
            version: kind.api_version(),
            subresource: subresource.to_owned(),
            time: None,
            fields: Fields::default(),
        }
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.version == other.version
            && self.subresource == other.subresource
    }

    /// The manager as a conflict names it.
    pub(super) fn shown(&self) -> String {
        let mut shown = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            shown.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == "Update" {
            shown.push_str(&format!(" using {}", self.version));
        }
        shown
    }

    fn read(entry: &Value) -> Option<Self> {
        let operation = match meta::text(entry, "/operation") {
            "Apply" => "Apply",
            "Update" => "Update",
            _ => return None,
        };
        Some(Self {
            manager: meta::text(entry, "/manager").to_owned(),
            operation,
            version: meta::text(entry, "/apiVersion").to_owned(),
            subresource: meta::text(entry, "/subresource").to_owned(),
            time: entry["time"].as_str().map(str::to_owned),
            fields: Fields::read(&entry["fieldsV1"]),
        })
    }

    fn to_value(&self) -> Value {
        let mut entry = Map::new();
        entry.insert("manager".into(), json!(self.manager));
        entry.insert("operation".into(), json!(self.operation));
        entry.insert("apiVersion".into(), json!(self.version));
        if let Some(time) = &self.time {
            entry.insert("time".into(), json!(time));
        }
        entry.insert("fieldsType".into(), json!("FieldsV1"));
        entry.insert("fieldsV1".into(), self.fields.to_value());
        if !self.subresource.is_empty() {
            entry.insert("subresource".into(), json!(self.subresource));
        }
        Value::Object(entry)
    }
}

/// The managers of an object.
pub(super) fn read(object: &Value) -> Vec<Entry> {
    meta::items(object, "/metadata/managedFields").iter().filter_map(Entry::read).collect()
}

/// Writes the managers that own something.
pub(super) fn write(object: &mut Value, mut managers: Vec<Entry>) {
    managers.retain(|entry| !entry.fields.is_empty());
    managers.sort_by(|a, b| {
        let key = |entry: &Entry| {
            (entry.operation, entry.time.clone(), entry.manager.clone(), entry.version.clone())
        };
        key(a).cmp(&key(b))
    });
    let metadata = meta::metadata_mut(object);
    if managers.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".into(), managers.iter().map(Entry::to_value).collect());
    }
}

/// Notes that a manager created an object, or changed it from `old`, without applying it.
pub(super) fn note_update(
    kind: &Kind,
    manager: &str,
    subresource: &str,
    old: Option<&Value>,
    new: &mut Value,
) {
    let given = meta::items(new, "/metadata/managedFields");
    let reset = new["metadata"].get("managedFields").is_some()
        && given.iter().all(|entry| entry.as_object().is_some_and(Map::is_empty));
    let mut managers = read(new);
    // Once nobody manages an object, nobody does until it is applied.
    if reset || (managers.is_empty() && old.is_some()) {
        meta::metadata_mut(new).remove("managedFields");
        return;
    }
    let found = match old {
        Some(old) => fields::compare(kind, old, new),
        None => fields::compare(kind, &unset(kind, new), new),
    };
    if found.changed.is_empty() && found.removed.is_empty() {
        return;
    }
    let mut mine = Entry::new(kind, manager, "Update", subresource);
    for entry in &mut managers {
        entry.fields = entry.fields.minus(&found.removed);
        if !entry.is(&mine) {
            entry.fields = entry.fields.minus(&found.changed);
        }
    }
    if !found.changed.is_empty() {
        if let Some(at) = managers.iter().position(|entry| entry.is(&mine)) {
            mine.fields = managers.remove(at).fields;
        }
        mine.fields.union(&found.changed);
        // A real server notes no time for changes through `…/scale`.
        mine.time = (subresource != "scale").then(meta::now);
        managers.push(mine);
    }
    put_together(kind, &mut managers);
    write(new, managers);
}

/// What an object had before anybody applied it, as a manager.
pub(super) fn before_apply(kind: &Kind, live: &Value) -> Entry {
    let mut entry = Entry::new(kind, BEFORE_APPLY, "Update", "");
    entry.fields = fields::compare(kind, &unset(kind, live), live).changed;
    entry.time = Some(meta::now());
    entry
}

/// The parts of a built-in kind that are there even when nothing is set in them.
fn unset(kind: &Kind, object: &Value) -> Value {
    let mut unset = json!({ "metadata": {} });
    if kind.is_custom() {
        return unset;
    }
    for pointer in [
        "/spec",
        "/status",
        "/spec/strategy",
        "/spec/template",
        "/spec/template/metadata",
        "/spec/template/spec",
    ] {
        if object.pointer(pointer).is_some() {
            let mut slot = &mut unset;
            for key in pointer.split('/').skip(1) {
                slot = meta::object_mut_self(slot).entry(key).or_insert_with(|| json!({}));
            }
        }
    }
    unset
}

/// Bounds the list: the oldest updaters become one.
fn put_together(kind: &Kind, managers: &mut Vec<Entry>) {
    let updaters = |managers: &[Entry]| {
        let mut found: Vec<usize> =
            (0..managers.len()).filter(|&i| managers[i].operation == "Update").collect();
        found.sort_by_key(|&i| managers[i].time.clone());
        found
    };
    while updaters(managers).len() > UPDATERS {
        let (one, other) = match updaters(managers).as_slice() {
            [one, other, ..] => (*one.min(other), *one.max(other)),
            _ => return,
        };
        let newer = managers.remove(other);
        let older = &mut managers[one];
        older.fields.union(&newer.fields);
        older.manager = ANCIENT.to_owned();
        older.version = kind.api_version();
        older.subresource = String::new();
        older.time = newer.time.max(older.time.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::Kinds;

    fn kind() -> std::sync::Arc<Kind> {
        Kinds::default().find("", "v1", "configmaps").unwrap()
    }

    fn updated(manager: &str, old: Option<&Value>, data: Value) -> Value {
        let mut new = old.cloned().unwrap_or_else(|| json!({ "metadata": { "name": "c" } }));
        new["data"] = data;
        note_update(&kind(), manager, "", old, &mut new);
        new
    }

    fn owners(object: &Value) -> Vec<(String, Vec<String>)> {
        read(object).into_iter().map(|entry| (entry.manager, entry.fields.paths())).collect()
    }

    #[test]
    fn a_change_moves_a_field_to_whoever_made_it() {
        let one = updated("one", None, json!({ "a": "1", "b": "1" }));
        let paths = |fields: &[&str]| fields.iter().map(|&field| field.to_owned()).collect::<Vec<_>>();
        assert_eq!(owners(&one), [("one".to_owned(), paths(&[".data", ".data.a", ".data.b"]))]);
        let two = updated("two", Some(&one), json!({ "a": "2", "b": "1" }));
        let mut found = owners(&two);
        found.sort();
        assert_eq!(
            found,
            [("one".to_owned(), paths(&[".data", ".data.b"])), ("two".to_owned(), paths(&[".data.a"]))]
        );
        assert_eq!(updated("three", Some(&two), json!({ "a": "2", "b": "1" })), two);
    }

    #[test]
    fn the_list_is_bounded() {
        let mut object = updated("first", None, json!({}));
        for i in 0..30 {
            let mut data = object["data"].clone();
            data[format!("k{i}")] = json!("1");
            object = updated(&format!("m{i}"), Some(&object), data);
        }
        assert_eq!(read(&object).len(), UPDATERS);
        assert!(owners(&object).iter().any(|(name, _)| name == ANCIENT));
    }
}
