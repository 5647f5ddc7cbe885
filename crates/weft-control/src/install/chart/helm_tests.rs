//! The charts' templates read back by as much of Helm as they use: what comes out must be what `weft install` prints.

use super::files;
use crate::install::{
    control_plane, objects,
    template::helm,
    values::{Values, merge},
    yaml,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use weft_tls::certificate::sha256_hex;

/// A part of a template.
enum Part<'t> {
    Text(&'t str),
    Action(&'t str),
}

/// Text and actions; `{{-` takes the white space before it.
fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("{{") {
        let (before, action) = (&rest[..at], &rest[at + 2..]);
        let end = action.find("}}").expect("an action is closed");
        let (before, action, after) = match action.strip_prefix('-') {
            Some(action) => (before.trim_end(), &action[..end - 1], &action[end + 1..]),
            None => (before, &action[..end], &action[end + 2..]),
        };
        parts.extend([Part::Text(before), Part::Action(action.trim())]);
        rest = after;
    }
    parts.push(Part::Text(rest));
    parts
}

struct Helm<'v> {
    values: &'v Value,
}

impl Helm<'_> {
    fn render(&self, text: &str) -> String {
        let mut out = String::new();
        // For each open block: whether it is shown, and whether one of its branches was.
        let mut blocks: Vec<(bool, bool)> = Vec::new();
        for part in parts(text) {
            let shown = blocks.iter().all(|(shown, _)| *shown);
            match part {
                Part::Text(text) if shown => out.push_str(text),
                Part::Action("else") => {
                    let (shown, was) = blocks.last_mut().expect("else is within an if");
                    (*shown, *was) = (!*was, true);
                }
                Part::Action("end") => drop(blocks.pop().expect("end ends something")),
                Part::Action(action) if action.starts_with("if ") => {
                    let holds = shown && truthy(&self.value(&action[3..]));
                    blocks.push((holds, holds));
                }
                Part::Action("with $v := deepCopy .Values") => blocks.push((true, true)),
                Part::Action(r#"$_ := unset $v.identity.issuer "tls""#) => {}
                Part::Action("toYaml $v | toJson") if shown => {
                    let mut copy = self.values.clone();
                    copy["identity"]["issuer"].as_object_mut().expect("a map").remove("tls");
                    out.push_str(&json!(yaml::to_string(&copy)).to_string());
                }
                Part::Action(action) if shown => {
                    let inner = action.strip_suffix("| toJson").expect("values are written as JSON");
                    out.push_str(&self.value(inner).to_string());
                }
                Part::Text(_) | Part::Action(_) => {}
            }
        }
        assert!(blocks.is_empty(), "a block is not closed");
        out
    }

    fn value(&self, expression: &str) -> Value {
        let expression = expression.trim();
        if let Some((inner, filter)) = piped(expression) {
            return match filter {
                "b64enc" => json!(STANDARD.encode(self.value(inner).as_str().expect("a text"))),
                // Its only input is all values.
                "sha256sum" => {
                    let mut copy = self.values.clone();
                    copy["identity"]["issuer"].as_object_mut().expect("a map").remove("tls");
                    json!(sha256_hex(copy.to_string().as_bytes()))
                }
                other => panic!("no filter {other}"),
            };
        }
        let mut words = words(expression);
        match words.remove(0) {
            "coalesce" => words.iter().map(|w| self.value(w)).find(truthy).unwrap_or_default(),
            "eq" => json!(self.value(words[0]) == self.value(words[1])),
            "printf" => json!(words[1..].iter().map(|w| text(&self.value(w))).collect::<String>()),
            "merge" => {
                let (mut all, own) = (self.value(words[1]), self.value(words[0]));
                merge(&mut all, &own);
                all
            }
            "dict" => {
                let pairs = words.chunks(2).map(|pair| (text(&self.value(pair[0])), self.value(pair[1])));
                Value::Object(pairs.collect())
            }
            ".Release.Namespace" => json!("mesh"),
            path if path.starts_with(".Values.") => {
                let at =
                    |value: &Value, key: &str| value.get(key).unwrap_or_else(|| panic!("no {path}")).clone();
                path[8..].split('.').fold(self.values.clone(), |value, key| at(&value, key))
            }
            group if group.starts_with('(') => self.value(&group[1..group.len() - 1]),
            literal => serde_json::from_str(literal).unwrap_or_else(|_| panic!("what is {literal}?")),
        }
    }
}

/// What stands before the last filter, and the filter.
fn piped(expression: &str) -> Option<(&str, &str)> {
    let words = words(expression);
    let [.., "|", filter] = words[..] else { return None };
    let inner = expression.strip_suffix(filter)?.trim_end().strip_suffix('|')?;
    Some((inner.trim_end(), filter))
}

/// Words, with texts and parentheses whole.
fn words(expression: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut depth, mut quoted, mut escaped) = (0, 0, false, false);
    for (at, c) in expression.char_indices().chain([(expression.len(), ' ')]) {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            ' ' if !quoted && depth == 0 => {
                words.extend(Some(&expression[start..at]).filter(|word| !word.is_empty()));
                start = at + 1;
            }
            _ => {}
        }
    }
    words
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

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Without `null`s and empty maps, which mean the same to the API server, and without what says who made it.
fn tidy(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .filter(|(key, _)| *key != objects::CREATED_BY)
                .map(|(key, inner)| (key.clone(), tidy(inner)))
                .filter(|(_, inner)| !inner.is_null() && *inner != json!({}))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(tidy).collect()),
        other => other.clone(),
    }
}

#[test]
fn the_chart_makes_what_install_prints() {
    let text =
        files().into_iter().find(|(path, _)| path.ends_with("control-plane.yaml")).expect("it is there").1;
    let pem = "-----BEGIN X-----\na&<>b\n-----END X-----\n";
    let identity = json!({"issuer": {"tls": {"crtPEM": pem, "keyPEM": pem}}});
    for (ha, overrides) in [
        (false, json!({"identityTrustAnchorsPEM": pem, "identity": identity})),
        (
            true,
            json!({"identityTrustAnchorsPEM": pem, "identity": identity, "priorityClassName": "p",
            "tolerations": [{"key": "a"}], "podLabels": {"team": "x"}, "podAnnotations": {"a/b": "c"},
            "nodeAffinity": {"a": {}}, "imagePullSecrets": [{"name": "s"}],
            "proxyInjector": {"caBundle": pem, "injectCaFrom": "ns/cert"}}),
        ),
        (
            false,
            json!({"identity": {"externalCA": true, "issuer": {"scheme": "kubernetes.io/tls"}},
            "policyValidator": {"injectCaFromSecret": "ns/s", "externalSecret": true}, "cniEnabled": true}),
        ),
    ] {
        let values = Values::with(&overrides, ha).expect("values");
        let rendered = Helm { values: values.tree() }.render(&text);
        let found: Vec<Value> = serde_saphyr::from_multiple::<Value>(&rendered)
            .unwrap_or_else(|error| panic!("{error}\n{rendered}"))
            .iter()
            .filter(|object| !object.is_null())
            .map(tidy)
            .collect();
        let expected: Vec<Value> = control_plane(&values, "mesh")
            .iter()
            .filter(|o| o["kind"] != "Namespace" && o["metadata"]["name"] != objects::OVERRIDES_SECRET)
            .map(tidy)
            .collect();
        assert_eq!(found.len(), expected.len(), "{rendered}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn a_key_without_a_value_is_not_there_at_all() {
    let template =
        json!({"a": crate::install::template::when("cniEnabled", json!("x"), Value::Null), "b": 1});
    let values = Values::defaults(false);
    let rendered = Helm { values: values.tree() }.render(&helm(&template));
    assert_eq!(rendered.trim(), "b: 1");
}
