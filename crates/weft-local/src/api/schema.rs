//! Structural schemas of custom resources: pruning, defaults, validation. Rules in CEL are in `rules`.

use serde_json::{Map, Value, json};

use super::error::FieldError;
use super::meta;

/// Schemas may be deep, objects too; neither may exhaust the stack.
const DEPTH: usize = 64;

/// Removes fields that the schema does not know, and notes their paths.
pub(super) fn prune(schema: &Value, object: &mut Value, unknown: &mut Vec<String>) {
    let Some(fields) = object.as_object_mut() else { return };
    // The envelope is not part of the schema.
    let envelope: Vec<(String, Value)> = ["apiVersion", "kind", "metadata"]
        .iter()
        .filter_map(|key| fields.remove(*key).map(|value| ((*key).to_owned(), value)))
        .collect();
    prune_value(schema, object, "", unknown, DEPTH);
    let rest = std::mem::take(meta::object_mut_self(object));
    let fields = meta::object_mut_self(object);
    fields.extend(envelope);
    fields.extend(rest);
}

fn prune_value(schema: &Value, value: &mut Value, at: &str, unknown: &mut Vec<String>, depth: usize) {
    if depth == 0 {
        return;
    }
    let preserve = schema["x-kubernetes-preserve-unknown-fields"] == json!(true);
    match value {
        Value::Object(map) => {
            let properties = schema["properties"].as_object();
            let additional =
                schema.get("additionalProperties").filter(|additional| **additional != json!(false));
            map.retain(|key, value| {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                let inner = properties.and_then(|properties| properties.get(key));
                if let Some(inner) = inner.or(additional.filter(|a| a.is_object())) {
                    prune_value(inner, value, &path, unknown, depth - 1);
                    return true;
                }
                if preserve || additional.is_some() {
                    return true;
                }
                unknown.push(path);
                false
            });
        }
        Value::Array(list) => {
            for (i, item) in list.iter_mut().enumerate() {
                prune_value(&schema["items"], item, &format!("{at}[{i}]"), unknown, depth - 1);
            }
        }
        _ => {}
    }
}

/// Sets the defaults of absent fields.
pub(super) fn apply_defaults(schema: &Value, value: &mut Value) {
    default_value(schema, value, DEPTH);
}

fn default_value(schema: &Value, value: &mut Value, depth: usize) {
    if depth == 0 {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
                // A null where none is allowed counts as nothing.
                if map.get(key).is_some_and(Value::is_null) && inner["nullable"] != json!(true) {
                    map.shift_remove(key);
                }
                if !map.contains_key(key)
                    && let Some(default) = inner.get("default")
                {
                    map.insert(key.clone(), default.clone());
                }
                if let Some(value) = map.get_mut(key) {
                    default_value(inner, value, depth - 1);
                }
            }
            if let Some(inner) = schema.get("additionalProperties").filter(|inner| inner.is_object()) {
                map.values_mut().for_each(|value| default_value(inner, value, depth - 1));
            }
        }
        Value::Array(list) => {
            list.iter_mut().for_each(|item| default_value(&schema["items"], item, depth - 1))
        }
        _ => {}
    }
}

/// Everything in which an object departs from its schema.
pub(super) fn validate(schema: &Value, object: &Value, errors: &mut Vec<FieldError>) {
    let before = errors.len();
    check(schema, object, "", errors, DEPTH);
    let blocking = [
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    ];
    if errors[before..].iter().any(|error| blocking.contains(&error.reason)) && has_rules(schema, DEPTH) {
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors \
                   to complete validation";
        errors.push(FieldError::invalid("<nil>", Value::Null, why));
    }
}

fn has_rules(schema: &Value, depth: usize) -> bool {
    if depth == 0 {
        return false;
    }
    match schema {
        Value::Object(map) => {
            map.contains_key("x-kubernetes-validations")
                || map.values().any(|inner| has_rules(inner, depth - 1))
        }
        Value::Array(list) => list.iter().any(|inner| has_rules(inner, depth - 1)),
        _ => false,
    }
}

/// What keeps a schema from being structural, and defaults that do not fit it.
pub(super) fn validate_schema(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    check_structure(schema, at, "at the root", errors, DEPTH);
}

fn check_structure(schema: &Value, at: &str, role: &str, errors: &mut Vec<FieldError>, depth: usize) {
    if depth == 0 || errors.len() > 100 {
        return;
    }
    let free = ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"];
    let typed = !meta::text(schema, "/type").is_empty() || free.iter().any(|key| schema[*key] == json!(true));
    if !typed {
        errors.push(FieldError::required(format!("{at}.type"), &format!("must not be empty {role}")));
    }
    if let Some(default) = schema.get("default") {
        let mut found = Vec::new();
        check(schema, default, "", &mut found, DEPTH);
        errors.extend(found.into_iter().map(|error| FieldError { field: format!("{at}.default"), ..error }));
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let role = "for specified object fields";
        check_structure(inner, &format!("{at}.properties[{name}]"), role, errors, depth - 1);
    }
    if let Some(inner) = schema.get("additionalProperties").filter(|inner| inner.is_object()) {
        let role = "for specified object fields";
        check_structure(inner, &format!("{at}.additionalProperties"), role, errors, depth - 1);
    }
    if let Some(inner) = schema.get("items").filter(|inner| inner.is_object()) {
        check_structure(inner, &format!("{at}.items"), "for specified array items", errors, depth - 1);
    }
}

fn check(schema: &Value, value: &Value, at: &str, errors: &mut Vec<FieldError>, depth: usize) {
    if depth == 0 || errors.len() > 100 {
        return;
    }
    let field = if at.is_empty() { "<nil>" } else { at };
    if value.is_null() && schema["nullable"] == json!(true) {
        return;
    }
    let int_or_string = schema["x-kubernetes-int-or-string"] == json!(true);
    if int_or_string {
        if !value.is_string() && value.as_i64().is_none() {
            let why = format!("{at} in body must be of type integer,string: \"{}\"", type_of(value));
            errors.push(type_error(field, value, &why));
        }
        return;
    }
    let fits = schema["type"].as_str().is_none_or(|wanted| has_type(value, wanted));
    if !fits {
        let wanted = meta::text(schema, "/type");
        let why = format!("{at} in body must be of type {wanted}: \"{}\"", type_of(value));
        errors.push(type_error(field, value, &why));
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let texts: Vec<String> =
            allowed.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        errors.push(FieldError::unsupported(field, value.clone(), &texts));
    }
    if !fits {
        return;
    }
    match value {
        Value::String(text) => check_text(schema, text, at, field, errors),
        Value::Number(number) => check_number(schema, number, at, field, errors),
        Value::Array(list) => {
            let length = list.len() as u64;
            if schema["maxItems"].as_u64().is_some_and(|max| length > max) {
                let message = format!("Too many: {length}: must have at most {} items", schema["maxItems"]);
                errors.push(FieldError { reason: "FieldValueTooMany", field: field.into(), message });
            }
            if schema["minItems"].as_u64().is_some_and(|min| length < min) {
                let why = format!("{at} in body should have at least {} items", schema["minItems"]);
                errors.push(FieldError::invalid(field, length, why));
            }
            check_keys(schema, list, at, errors);
            for (i, item) in list.iter().enumerate() {
                check(&schema["items"], item, &format!("{at}[{i}]"), errors, depth - 1);
            }
        }
        Value::Object(map) => check_object(schema, map, at, errors, depth),
        _ => {}
    }
    check_alternatives(schema, value, at, errors, depth);
}

fn check_text(schema: &Value, text: &str, at: &str, field: &str, errors: &mut Vec<FieldError>) {
    let length = text.chars().count() as u64;
    // One reason is enough: of length and pattern, only the first that fails is named.
    if schema["maxLength"].as_u64().is_some_and(|max| length > max) {
        let message = format!("Too long: may not be more than {} bytes", schema["maxLength"]);
        errors.push(FieldError { reason: "FieldValueTooLong", field: field.into(), message });
    } else if schema["minLength"].as_u64().is_some_and(|min| length < min) {
        let why = format!("{at} in body should be at least {} chars long", schema["minLength"]);
        errors.push(FieldError::invalid(field, text, why));
    } else if let Some(pattern) = schema["pattern"].as_str()
        // A pattern beyond this engine's syntax cannot be checked here; a real server will.
        && let Ok(pattern) = regex::Regex::new(pattern)
        && !pattern.is_match(text)
    {
        let why = format!("{at} in body should match '{}'", pattern.as_str());
        errors.push(FieldError::invalid(field, text, why));
    }
    if schema["format"] == "date-time" && text.parse::<jiff::Timestamp>().is_err() {
        let why = format!("{at} in body must be of type date-time: {text:?}");
        let error = FieldError::invalid(field, text, why);
        errors.push(FieldError { reason: "FieldValueTypeInvalid", ..error });
    }
}

fn check_number(
    schema: &Value,
    number: &serde_json::Number,
    at: &str,
    field: &str,
    errors: &mut Vec<FieldError>,
) {
    let Some(value) = number.as_f64() else { return };
    for (bound, name) in [("maximum", "Maximum"), ("minimum", "Minimum")] {
        let (format, limit) = match schema["format"].as_str() {
            Some("int32") => ("int32", 2_147_483_648.0),
            _ => ("int64", 9_223_372_036_854_775_808.0),
        };
        // A real server reads bounds as floating-point numbers: the largest integers, rounded up, are none.
        let beyond = |bound: f64| bound >= limit || bound < -limit;
        if schema["type"] == "integer" && schema[bound].as_f64().is_some_and(beyond) {
            let why = format!("{name} boundary value must be of type integer with format {format} in {at}");
            errors.push(FieldError::invalid(field, "", why));
            return;
        }
    }
    if let Some(max) = schema["maximum"].as_f64()
        && (value > max || (schema["exclusiveMaximum"] == json!(true) && value >= max))
    {
        let why = format!("{at} in body should be less than or equal to {}", schema["maximum"]);
        errors.push(FieldError::invalid(field, number.clone(), why));
    }
    if let Some(min) = schema["minimum"].as_f64()
        && (value < min || (schema["exclusiveMinimum"] == json!(true) && value <= min))
    {
        let why = format!("{at} in body should be greater than or equal to {}", schema["minimum"]);
        errors.push(FieldError::invalid(field, number.clone(), why));
    }
}

/// Lists of type map and set hold each key once.
fn check_keys(schema: &Value, list: &[Value], at: &str, errors: &mut Vec<FieldError>) {
    let key_of = |item: &Value| -> Value {
        match schema["x-kubernetes-list-type"].as_str() {
            Some("map") => meta::items(schema, "/x-kubernetes-list-map-keys")
                .iter()
                .filter_map(Value::as_str)
                .map(|key| (key.to_owned(), item[key].clone()))
                .collect::<Map<_, _>>()
                .into(),
            Some("set") => item.clone(),
            _ => Value::Null,
        }
    };
    let keys: Vec<Value> = list.iter().map(key_of).collect();
    for (i, key) in keys.iter().enumerate() {
        if !key.is_null() && keys[..i].contains(key) {
            errors.push(FieldError::duplicate(format!("{at}[{i}]"), key.clone()));
        }
    }
}

fn check_object(
    schema: &Value,
    map: &Map<String, Value>,
    at: &str,
    errors: &mut Vec<FieldError>,
    depth: usize,
) {
    let path = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    for required in meta::items(schema, "/required").iter().filter_map(Value::as_str) {
        if !map.contains_key(required) {
            errors.push(FieldError::required(path(required), ""));
        }
    }
    if schema["maxProperties"].as_u64().is_some_and(|max| map.len() as u64 > max) {
        let message = format!("Too many: {}: must have at most {} items", map.len(), schema["maxProperties"]);
        errors.push(FieldError { reason: "FieldValueTooMany", field: at.to_owned(), message });
    }
    let properties = schema["properties"].as_object();
    for (key, value) in map {
        // The envelope is checked elsewhere.
        if at.is_empty() && ["apiVersion", "kind", "metadata"].contains(&key.as_str()) {
            continue;
        }
        let inner = properties.and_then(|properties| properties.get(key));
        if let Some(inner) = inner.or_else(|| schema.get("additionalProperties")) {
            check(inner, value, &path(key), errors, depth - 1);
        }
    }
}

fn check_alternatives(schema: &Value, value: &Value, at: &str, errors: &mut Vec<FieldError>, depth: usize) {
    let failures = |schema: &Value| {
        let mut found = Vec::new();
        check(schema, value, at, &mut found, depth - 1);
        found
    };
    let fits = |schema: &Value| failures(schema).is_empty();
    let field = "<nil>";
    for inner in meta::items(schema, "/allOf") {
        check(inner, value, at, errors, depth - 1);
    }
    let any = meta::items(schema, "/anyOf");
    if !any.is_empty() && !any.iter().any(fits) {
        let why = format!("{at:?} must validate at least one schema (anyOf)");
        errors.push(FieldError::invalid(field, "", why));
        errors.extend(failures(&any[0]));
    }
    let one = meta::items(schema, "/oneOf");
    let fitting = one.iter().filter(|inner| fits(inner)).count();
    if !one.is_empty() && fitting != 1 {
        let found = match fitting {
            0 => "none valid".to_owned(),
            several => format!("{several} valid alternatives"),
        };
        let why = format!("{at:?} must validate one and only one schema (oneOf). Found {found}");
        errors.push(FieldError::invalid(field, "", why));
        if fitting == 0 {
            errors.extend(failures(&one[0]));
        }
    }
    if let Some(not) = schema.get("not")
        && fits(not)
    {
        let why = format!("{at:?} must not validate the schema (not)");
        errors.push(FieldError::invalid(field, "", why));
    }
}

fn type_error(field: &str, value: &Value, why: &str) -> FieldError {
    FieldError {
        reason: "FieldValueTypeInvalid",
        field: field.to_owned(),
        message: format!("Invalid value: \"{}\": {why}", type_of(value)),
    }
}

fn has_type(value: &Value, wanted: &str) -> bool {
    match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_i64().is_some() || value.as_u64().is_some(),
        "number" => value.is_number(),
        _ => true,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({ "type": "object", "required": ["spec"], "properties": { "spec": {
            "type": "object",
            "required": ["mode"],
            "properties": {
                "mode": { "type": "string", "enum": ["Fast", "Slow"] },
                "replicas": { "type": "integer", "default": 1, "maximum": 5 },
                "port": { "x-kubernetes-int-or-string": true },
                "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                "target": { "type": "object", "properties": { "a": { "type": "string" }, "b": { "type": "string" } },
                    "oneOf": [{ "required": ["a"] }, { "required": ["b"] }] },
                "rules": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
                    "items": { "type": "object", "properties": { "n": { "type": "string", "pattern": "^[a-z]*$" } } } },
            },
        } } })
    }

    fn fields(object: Value) -> Vec<String> {
        let mut errors = Vec::new();
        validate(&schema(), &object, &mut errors);
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn unknown_fields_are_pruned_and_named() {
        let mut object = json!({ "kind": "X", "metadata": { "name": "a" },
            "spec": { "mode": "Fast", "odd": 1, "free": { "any": 1 }, "rules": [{ "n": "a", "m": 1 }] } });
        let mut unknown = Vec::new();
        prune(&schema(), &mut object, &mut unknown);
        assert_eq!(unknown, ["spec.odd", "spec.rules[0].m"]);
        assert_eq!(object["spec"]["free"], json!({ "any": 1 }));
        assert_eq!(object["metadata"]["name"], "a");
    }

    #[test]
    fn defaults_are_set_where_the_parent_exists() {
        let mut object = json!({ "spec": { "mode": "Fast" } });
        apply_defaults(&schema(), &mut object);
        assert_eq!(object["spec"]["replicas"], 1);
        let mut object = json!({ "spec": { "mode": "Fast", "replicas": null, "port": null } });
        apply_defaults(&schema(), &mut object);
        assert_eq!(object["spec"], json!({ "mode": "Fast", "replicas": 1 }));
    }

    #[test]
    fn departures_are_named() {
        assert!(
            fields(json!({ "spec": { "mode": "Fast", "port": "http", "target": { "a": "x" } } })).is_empty()
        );
        assert_eq!(fields(json!({})), ["spec"]);
        assert_eq!(
            fields(json!({ "spec": { "mode": "Odd", "replicas": 6 } })),
            ["spec.mode", "spec.replicas"]
        );
        assert_eq!(
            fields(json!({ "spec": { "mode": "Fast", "target": { "a": "x", "b": "y" } } })),
            ["<nil>"]
        );
        assert_eq!(fields(json!({ "spec": { "mode": "Fast", "target": {} } })), ["<nil>", "spec.target.a"]);
        let twice =
            json!({ "spec": { "mode": "Fast", "rules": [{ "n": "a" }, { "n": "a" }, { "n": "A" }] } });
        assert_eq!(fields(twice), ["spec.rules[1]", "spec.rules[2].n"]);
        assert_eq!(fields(json!({ "spec": 1 })), ["spec"]);
    }

    #[test]
    fn a_bound_that_the_type_cannot_hold_refuses_every_value() {
        for (maximum, format, fine) in [
            (json!(i64::MAX), "int64", false),
            (json!(i64::from(i32::MAX) + 1), "int32", false),
            (json!(i32::MAX), "int32", true),
            (json!(1_u64 << 62), "int64", true),
        ] {
            let schema = json!({ "type": "integer", "format": format, "maximum": maximum });
            let mut errors = Vec::new();
            validate(&schema, &json!(1), &mut errors);
            assert_eq!(errors.is_empty(), fine, "{maximum} {format}: {errors:?}");
        }
    }
}
