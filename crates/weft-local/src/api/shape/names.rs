//! What names, labels and keys may look like, with the texts a real server refuses them with.

use serde_json::{Map, Value};

use crate::api::error::FieldError;
use crate::api::meta;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
    and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
    'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

fn is_label(text: &str) -> bool {
    let alnum = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.iter().all(|&b| alnum(b) || b == b'-')
        && bytes.first().is_some_and(|&b| alnum(b))
        && bytes.last().is_some_and(|&b| alnum(b))
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.iter().all(|&b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}

/// Why the text is no DNS label.
pub(super) fn label(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    (!is_label(text)).then(|| LABEL.to_owned())
}

/// Why the text is no DNS subdomain.
pub(super) fn subdomain(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some("must be no more than 253 bytes".to_owned());
    }
    (!text.split('.').all(is_label)).then(|| SUBDOMAIN.to_owned())
}

/// Why the text is no key of a ConfigMap or Secret.
pub(super) fn config_key(text: &str) -> Option<String> {
    // Keys become the names of files; those that begin with two dots are the volume's own.
    let ok = !text.is_empty()
        && text != "."
        && !text.starts_with("..")
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    (!ok).then(|| CONFIG_KEY.to_owned())
}

/// Why the text is no key of a label.
pub(in crate::api) fn label_key(text: &str) -> Option<String> {
    qualified_name(text)
}

/// Why the text is no value of a label.
pub(in crate::api) fn label_value(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    (!text.is_empty() && !is_name_part(text)).then(|| LABEL_VALUE.to_owned())
}

/// Why the text is no label or annotation key.
fn qualified_name(text: &str) -> Option<String> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if name.contains('/') {
        return Some(format!(
            "a qualified name {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
            QUALIFIED.trim_start_matches("name part ")
        ));
    }
    if let Some(prefix) = prefix
        && let Some(why) = subdomain(prefix)
    {
        return Some(format!("prefix part {why}"));
    }
    if name.len() > 63 {
        return Some("name part must be no more than 63 bytes".to_owned());
    }
    (!is_name_part(name)).then(|| QUALIFIED.to_owned())
}

/// A map of labels, or a selector's.
pub(super) fn labels(field: &str, labels: Option<&Map<String, Value>>, errors: &mut Vec<FieldError>) {
    for (key, value) in labels.into_iter().flatten() {
        if let Some(why) = qualified_name(key) {
            errors.push(FieldError::invalid(field, key.as_str(), why));
        }
        let value = value.as_str().unwrap_or("");
        if let Some(why) = label_value(value) {
            errors.push(FieldError::invalid(field, value, why));
        }
    }
}

/// The metadata of any object; `label_name` for kinds whose names end up as one DNS label.
pub(super) fn metadata(object: &Value, label_name: bool, rbac_name: bool, errors: &mut Vec<FieldError>) {
    let name = meta::name(object);
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if rbac_name {
        // RBAC names may be like `system:discovery`: only what breaks a path is refused.
        if name.contains('/') || name.contains('%') || name == "." || name == ".." {
            errors.push(FieldError::invalid("metadata.name", name, "may not contain '/' or '%'"));
        }
    } else if let Some(why) = if label_name { label(name) } else { subdomain(name) } {
        errors.push(FieldError::invalid("metadata.name", name, why));
    }
    labels("metadata.labels", meta::labels(object), errors);
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let mut size = 0;
    for (key, value) in annotations.into_iter().flatten() {
        if let Some(why) = qualified_name(&key.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", key.as_str(), why));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > 256 * 1024 {
        errors.push(FieldError {
            reason: "FieldValueTooLong",
            field: "metadata.annotations".into(),
            message: "Too long: may not be more than 262144 bytes".into(),
        });
    }
    for (i, finalizer) in meta::finalizers(object).into_iter().enumerate() {
        if let Some(why) = qualified_name(finalizer) {
            errors.push(FieldError::invalid("metadata.finalizers", finalizer, why));
        }
        if !finalizer.contains('/') && !["foregroundDeletion", "orphan", "kubernetes"].contains(&finalizer) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(format!("metadata.finalizers[{i}]"), finalizer, why));
        }
    }
    let owners = meta::items(object, "/metadata/ownerReferences");
    for owner in owners {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if meta::text(owner, &format!("/{field}")).is_empty() {
                let path = format!("metadata.ownerReferences.{field}");
                errors.push(FieldError::invalid(path, "", "must not be empty"));
            }
        }
    }
    let controllers: Vec<String> = owners
        .iter()
        .filter(|owner| owner["controller"] == true)
        .map(|owner| format!("{}/{}", meta::text(owner, "/kind"), meta::text(owner, "/name")))
        .collect();
    if let [one, other, ..] = controllers.as_slice() {
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {one} and {other}"
        );
        // Shown in the order of a real server's fields.
        let shown: Vec<String> = owners.iter().map(shown_owner).collect();
        errors.push(FieldError {
            reason: "FieldValueInvalid",
            field: "metadata.ownerReferences".into(),
            message: format!("Invalid value: [{}]: {why}", shown.join(",")),
        });
    }
}

fn shown_owner(owner: &Value) -> String {
    let fields = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let shown: Vec<String> = fields
        .iter()
        .filter_map(|field| owner.get(*field).map(|value| format!("\"{field}\":{value}")))
        .collect();
    format!("{{{}}}", shown.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert!(label("web-1").is_none() && label("1web").is_none());
        assert!(
            label("Web").is_some() && label("a.b").is_some() && label("-a").is_some() && label("").is_some()
        );
        assert!(subdomain("a.b-c.d").is_none());
        assert!(subdomain("a..b").is_some() && subdomain("A").is_some());
        assert!(config_key("key.name").is_none() && config_key(".hidden").is_none());
        assert!(config_key("..").is_some() && config_key(".").is_some() && config_key("..data").is_some());
        assert!(qualified_name("linkerd.io/inject").is_none());
        assert!(
            qualified_name("a b").is_some()
                && qualified_name("a/b/c").is_some()
                && qualified_name("/b").is_some()
        );
    }
}
