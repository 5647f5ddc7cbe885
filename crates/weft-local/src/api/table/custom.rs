//! Tables of custom kinds: the columns that their definitions declare.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{age, count, since};
use crate::api::kinds::{Form, Kind};
use crate::api::meta::{self, text};

/// The columns of a custom kind: those it declares, or its age.
pub(super) fn columns(version: &Value) -> Vec<Value> {
    let mut columns = vec![json!({
        "name": "Name", "type": "string", "format": "name", "description": "Name of the object", "priority": 0,
    })];
    let declared = meta::items(version, "/additionalPrinterColumns");
    for column in declared {
        columns.push(json!({
            "name": column["name"], "type": column["type"], "format": text(column, "/format"),
            "description": text(column, "/description"), "priority": count(column, "/priority"),
        }));
    }
    if declared.is_empty() {
        columns
            .push(json!({ "name": "Age", "type": "date", "format": "", "description": "", "priority": 0 }));
    }
    columns
}

pub(super) fn cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let Form::Custom(version) = &kind.form else { return vec![age(object, now)] };
    let declared = meta::items(version, "/additionalPrinterColumns");
    if declared.is_empty() {
        return vec![age(object, now)];
    }
    declared
        .iter()
        .map(|column| {
            let found = json_path(object, text(column, "/jsonPath"));
            match (text(column, "/type"), found) {
                (_, None) => Value::Null,
                ("date", Some(Value::String(time))) => since(&time, now),
                ("string", Some(value)) if !value.is_string() => json!(value.to_string()),
                (_, Some(value)) => value,
            }
        })
        .collect()
}

/// The simple JSON paths that columns use: `.a.b`, `.a[0].b`, `.a[?(@.type=="x")].b`.
fn json_path(object: &Value, path: &str) -> Option<Value> {
    let mut value = object;
    let mut rest = path.trim_start_matches('.');
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (index, after) = inner.split_once(']')?;
            let list = value.as_array()?;
            value = if let Some(filter) = index.strip_prefix("?(@.").and_then(|f| f.strip_suffix(')')) {
                let (field, wanted) = filter.split_once("==")?;
                let wanted = wanted.trim().trim_matches(['"', '\'']);
                list.iter().find(|item| item[field.trim()] == wanted)?
            } else if index == "*" {
                list.first()?
            } else {
                list.get(index.parse::<usize>().ok()?)?
            };
            rest = after.trim_start_matches('.');
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            value = value.get(&rest[..end])?;
            rest = rest[end..].strip_prefix('.').unwrap_or(&rest[end..]);
        }
    }
    Some(value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_columns() {
        let object = json!({ "spec": { "list": [{ "type": "x", "v": 1 }, { "type": "y", "v": 2 }] } });
        assert_eq!(json_path(&object, ".spec.list[1].v"), Some(json!(2)));
        assert_eq!(json_path(&object, ".spec.list[?(@.type==\"x\")].v"), Some(json!(1)));
        assert_eq!(json_path(&object, ".spec.none"), None);
    }
}
