//! Manifests with places that values fill.
//!
//! A template is JSON in which an object with one key that begins with `$` stands for something else. It is read in two
//! ways: `fill` puts values in, for `weft install`; `helm` writes the same as the text of a chart's template.

use super::values::Values;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use weft_tls::certificate::sha256_hex;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The value at a path.
pub fn value(path: &str) -> Value {
    json!({"$value": path})
}

/// The first of several values that is not empty.
pub fn first(paths: &[&str]) -> Value {
    json!({"$first": paths})
}

/// Who made the objects: this program's command line, or helm.
pub fn created_by() -> Value {
    json!({"$createdBy": true})
}

/// The text at a path, in base64.
pub fn base64(path: &str) -> Value {
    json!({"$base64": path})
}

/// The control plane's namespace.
pub fn namespace() -> Value {
    json!({"$namespace": true})
}

/// The texts of several parts, one after the other.
pub fn text(parts: &[Value]) -> Value {
    json!({"$text": parts})
}

/// One of two, by whether a value is empty, false or zero.
pub fn when(path: &str, then: Value, otherwise: Value) -> Value {
    json!({"$when": {"path": path, "then": then, "else": otherwise}})
}

/// One of two, by whether a value is this text.
pub fn when_is(path: &str, text: &str, then: Value, otherwise: Value) -> Value {
    json!({"$when": {"path": path, "is": text, "then": then, "else": otherwise}})
}

/// These entries, and those of the map at a path that are not among them.
pub fn merged(entries: Value, path: &str) -> Value {
    json!({"$merge": {"entries": entries, "path": path}})
}

/// All values but the issuer's key and certificate, as YAML text.
pub fn config() -> Value {
    json!({"$config": true})
}

/// A text that changes with any value.
pub fn checksum() -> Value {
    json!({"$checksum": true})
}

/// What a template's places are filled from.
#[derive(Clone, Copy, Debug)]
pub struct Fill<'v> {
    pub values: &'v Values,
    pub namespace: &'v str,
}

/// The one key of a marker, and what stands behind it.
fn marker(template: &Value) -> Option<(&str, &Value)> {
    let map = template.as_object().filter(|map| map.len() == 1)?;
    map.iter().next().filter(|(key, _)| key.starts_with('$')).map(|(key, inner)| (key.as_str(), inner))
}

impl Fill<'_> {
    /// The template with values; entries that became `null` are left out.
    pub fn fill(&self, template: &Value) -> Value {
        if let Some((key, inner)) = marker(template) {
            return self.place(key, inner);
        }
        match template {
            Value::Object(map) => Value::Object(
                map.iter()
                    .map(|(key, inner)| (key.clone(), self.fill(inner)))
                    .filter(|(_, inner)| !inner.is_null())
                    .collect::<Map<_, _>>(),
            ),
            Value::Array(items) => {
                Value::Array(items.iter().map(|i| self.fill(i)).filter(|i| !i.is_null()).collect())
            }
            other => other.clone(),
        }
    }

    fn place(&self, key: &str, inner: &Value) -> Value {
        let path = inner.as_str().unwrap_or_default();
        match key {
            "$value" => self.values.get(path).clone(),
            "$first" => {
                let paths = inner.as_array().into_iter().flatten().filter_map(Value::as_str);
                let found = paths.map(|path| self.values.get(path)).find(|value| truthy(value));
                found.cloned().unwrap_or_default()
            }
            "$base64" => json!(STANDARD.encode(self.values.text(path))),
            "$namespace" => json!(self.namespace),
            "$createdBy" => json!(format!("weft/cli {VERSION}")),
            "$text" => {
                let parts = inner.as_array().into_iter().flatten().map(|part| match self.fill(part) {
                    Value::String(text) => text,
                    Value::Null => String::new(),
                    other => other.to_string(),
                });
                json!(parts.collect::<String>())
            }
            "$when" => {
                let found = self.values.get(inner["path"].as_str().unwrap_or_default());
                let holds = match &inner["is"] {
                    Value::Null => truthy(found),
                    wanted => found == wanted,
                };
                self.fill(&inner[if holds { "then" } else { "else" }])
            }
            "$merge" => {
                let mut all = self.values.get(inner["path"].as_str().unwrap_or_default()).clone();
                super::values::merge(&mut all, &self.fill(&inner["entries"]));
                all
            }
            "$config" => json!(super::yaml::to_string(&without_keys(self.values))),
            "$checksum" => json!(sha256_hex(without_keys(self.values).to_string().as_bytes())),
            other => unreachable!("the functions of this module make no {other}"),
        }
    }
}

fn truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(n) => n.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

fn without_keys(values: &Values) -> Value {
    let mut tree = values.tree().clone();
    if let Some(issuer) = tree["identity"]["issuer"].as_object_mut() {
        issuer.remove("tls");
    }
    tree
}

/// The template as helm's text: one or more lines of YAML that end with a line end.
pub fn helm(template: &Value) -> String {
    if let Some(("$when", inner)) = marker(template) {
        let otherwise = match &inner["else"] {
            Value::Null => String::new(),
            other => format!("{{{{- else }}}}\n{}", helm(other)),
        };
        return format!(
            "{{{{- if {} }}}}\n{}{otherwise}{{{{- end }}}}\n",
            condition(inner),
            helm(&inner["then"])
        );
    }
    let mut places = Vec::new();
    let text = super::yaml::to_string(&reserve(template, &mut places));
    let mut out = String::with_capacity(text.len());
    // Every place is a word of its own, which stands for its number.
    for line in text.lines() {
        let Some((before, after)) = line.split_once(PLACE) else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let place: usize = after.parse().expect("a place ends its line");
        let Place { text, only_if } = &places[place];
        match only_if {
            None => out.push_str(&format!("{before}{text}\n")),
            // The key as well: a null would take away what the controller wrote.
            Some(condition) => {
                out.push_str(&format!("{{{{- if {condition} }}}}\n{before}{text}\n{{{{- end }}}}\n"));
            }
        }
    }
    out
}

const PLACE: &str = "WEFTPLACE";

/// What stands in a place, and when its line is there at all.
struct Place {
    text: String,
    only_if: Option<String>,
}

/// Puts a word in for each marker.
fn reserve(template: &Value, places: &mut Vec<Place>) -> Value {
    if let Some((key, inner)) = marker(template) {
        places.push(match key {
            "$when" if inner["else"].is_null() => {
                Place { text: flow(&inner["then"]), only_if: Some(condition(inner)) }
            }
            _ => Place { text: flow(template), only_if: None },
        });
        return json!(format!("{PLACE}{}", places.len() - 1));
    }
    match template {
        Value::Object(map) => {
            Value::Object(map.iter().map(|(key, inner)| (key.clone(), reserve(inner, places))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| reserve(item, places)).collect()),
        other => other.clone(),
    }
}

/// JSON, which is YAML in flow style, with helm's actions inside.
fn flow(template: &Value) -> String {
    if let Some((key, inner)) = marker(template) {
        if key == "$when" {
            let (then, otherwise) = (flow(&inner["then"]), flow(&inner["else"]));
            return format!("{{{{ if {} }}}}{then}{{{{ else }}}}{otherwise}{{{{ end }}}}", condition(inner));
        }
        if key == "$config" {
            return "{{ with $v := deepCopy .Values }}{{ $_ := unset $v.identity.issuer \"tls\" }}{{ toYaml $v | toJson }}{{ end }}"
                .to_owned();
        }
        return format!("{{{{ {} | toJson }}}}", expression(key, inner));
    }
    match template {
        Value::Object(map) => {
            let entries: Vec<String> =
                map.iter().map(|(key, inner)| format!("{}: {}", json!(key), flow(inner))).collect();
            // A space on either side: two braces would open or close an action.
            format!("{{ {} }}", entries.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

fn expression(key: &str, inner: &Value) -> String {
    let path = inner.as_str().unwrap_or_default();
    match key {
        "$value" => format!(".Values.{path}"),
        "$first" => {
            let paths = inner.as_array().into_iter().flatten().filter_map(Value::as_str);
            format!("coalesce {}", paths.map(|path| format!(".Values.{path}")).collect::<Vec<_>>().join(" "))
        }
        "$base64" => format!(".Values.{path} | b64enc"),
        "$namespace" => ".Release.Namespace".to_owned(),
        "$createdBy" => json!(format!("weft/helm {VERSION}")).to_string(),
        "$text" => {
            let parts = inner.as_array().map(Vec::as_slice).unwrap_or_default();
            let pattern = "%v".repeat(parts.len());
            let parts = parts.iter().map(|part| match marker(part) {
                Some((key, inner)) => format!("({})", expression(key, inner)),
                None => part.to_string(),
            });
            format!("printf {} {}", json!(pattern), parts.collect::<Vec<_>>().join(" "))
        }
        "$merge" => {
            let entries = inner["entries"].as_object().into_iter().flatten().map(|(key, entry)| {
                let entry = match marker(entry) {
                    Some((key, inner)) => format!("({})", expression(key, inner)),
                    None => entry.to_string(),
                };
                format!("{} {entry}", json!(key))
            });
            let path = inner["path"].as_str().unwrap_or_default();
            format!("merge (dict {}) .Values.{path}", entries.collect::<Vec<_>>().join(" "))
        }
        "$checksum" => "toJson .Values | sha256sum".to_owned(),
        other => unreachable!("{other} is no expression"),
    }
}

fn condition(inner: &Value) -> String {
    let path = inner["path"].as_str().unwrap_or_default();
    match &inner["is"] {
        Value::Null => format!(".Values.{path}"),
        wanted => format!("eq .Values.{path} {wanted}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &Value, overrides: Value) -> Value {
        let values = Values::with(&overrides, false).unwrap();
        Fill { values: &values, namespace: "mesh" }.fill(template)
    }

    #[test]
    fn places_are_filled() {
        let template = json!({
            "replicas": value("controllerReplicas"),
            "image": text(&[value("proxy.image.name"), json!(":"), first(&["proxy.image.version", "linkerdVersion"])]),
            "ns": namespace(),
            "absent": when("cniEnabled", json!("x"), Value::Null),
            "list": [when("cniEnabled", json!("x"), Value::Null), 1],
            "scheme": when_is("identity.issuer.scheme", "linkerd.io/tls", json!({"a": value("proxy.uid")}), json!(0)),
            "pem": base64("identityTrustAnchorsPEM"),
        });
        assert_eq!(
            filled(
                &template,
                json!({"identityTrustAnchorsPEM": "abc", "proxy": {"image": {"version": "v9"}}})
            ),
            json!({"replicas": 1, "image": "weft.dev/weft-proxy:v9", "ns": "mesh", "list": [1],
                "scheme": {"a": 2102}, "pem": "YWJj"})
        );
    }

    #[test]
    fn keys_are_no_part_of_the_configuration() {
        let overrides = json!({"identity": {"issuer": {"tls": {"keyPEM": "PRIVATE"}}}});
        let filled = filled(&json!({"values": config(), "sum": checksum()}), overrides);
        let text = filled["values"].as_str().unwrap();
        assert!(text.contains("clusterDomain: cluster.local") && !text.contains("PRIVATE"), "{text}");
        assert_eq!(filled["sum"].as_str().unwrap().len(), 64);
    }

    #[test]
    fn the_same_for_helm() {
        let template = when(
            "cniEnabled",
            json!({"a": value("proxy.uid"), "b": {"c": when("cniEnabled", json!({"d": namespace()}), Value::Null)},
                "e": text(&[json!("x-"), namespace()])}),
            Value::Null,
        );
        assert_eq!(
            helm(&template),
            "{{- if .Values.cniEnabled }}\n\
             a: {{ .Values.proxy.uid | toJson }}\n\
             b:\n{{- if .Values.cniEnabled }}\n  c: { \"d\": {{ .Release.Namespace | toJson }} }\n{{- end }}\n\
             e: {{ printf \"%v%v\" \"x-\" (.Release.Namespace) | toJson }}\n\
             {{- end }}\n"
        );
    }
}
