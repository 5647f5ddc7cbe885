//! How a recorded answer and a given one are compared: placeholders are bound at first sight and must keep their value.

use std::cell::RefCell;
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use regex::Regex;
use serde_json::{Map, Value, json};

/// Texts that quote another implementation's types: only their presence is compared.
const RELAXED: [&str; 11] = [
    "json: cannot unmarshal",
    "strconv.",
    "StorageError",
    "Go struct field",
    "Go value",
    "in scheme \"",
    "unable to parse requirement",
    "yaml: ",
    "converting (",
    "(*core.",
    "&value.",
];

/// One place where two answers differ.
#[derive(Debug)]
pub(crate) struct Difference {
    pub at: String,
    pub expected: String,
    pub got: String,
}

/// The placeholders seen so far in one transcript.
#[derive(Debug, Default, Clone)]
pub(crate) struct Bindings(BTreeMap<String, String>);

/// What a placeholder may stand for, and whether it stands for the same thing everywhere.
fn pattern(name: &str) -> (&'static str, bool) {
    let uuid = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}";
    let class = name.split(['-', ':']).next().unwrap_or(name).trim_end_matches(|c: char| c.is_ascii_digit());
    match class {
        "rv" if name == "rv" => (r"\d+", false),
        "rv" | "listrv" | "bookmarkrv" => (r"\d+", true),
        "currentrv" => (r"\d+", false),
        "uid" | "uuid" => (uuid, true),
        "gen" => ("[bcdfghjklmnpqrstvwxz2456789]{5}", true),
        "clusterip" => (r"10\.96\.\d+\.\d+", true),
        "nodeport" => (r"3[0-2]\d{3}", true),
        "token" => (r"[\w-]+\.[\w-]+\.[\w-]+", true),
        "time" => (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", false),
        "microtime" => (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", false),
        // A column of dates shows one or the other.
        "age" => (r"\d+[smhdy](?:\d+[smhd])?|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", false),
        "continue" | "iat" => (r"(?s).+", true),
        _ => (r"(?s).*", false),
    }
}

/// A text in pieces: what stands there, and the names of placeholders.
enum Piece<'a> {
    Text(&'a str),
    Placeholder(&'a str),
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, after)) = after.split_once('}') else { break };
        if !before.is_empty() {
            pieces.push(Piece::Text(before));
        }
        pieces.push(Piece::Placeholder(name));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest));
    }
    pieces
}

/// Whether a text is wholly of a pattern. Compiling one takes long, and there are few.
fn is_of(pattern: &'static str, text: &str) -> bool {
    thread_local!(static KNOWN: RefCell<BTreeMap<&'static str, Regex>> = RefCell::default());
    KNOWN.with_borrow_mut(|known| {
        let compiled =
            known.entry(pattern).or_insert_with(|| Regex::new(&format!("^(?:{pattern})$")).unwrap());
        compiled.is_match(text)
    })
}

impl Bindings {
    pub(crate) fn bind(&mut self, name: &str, value: impl Into<String>) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// A request's text with what is known in place of placeholders.
    pub(crate) fn fill(&self, text: &str) -> String {
        pieces(text)
            .into_iter()
            .map(|piece| match piece {
                Piece::Text(text) => text.to_owned(),
                Piece::Placeholder(name) => self.value(name).unwrap_or_else(|| format!("${{{name}}}")),
            })
            .collect()
    }

    fn value(&self, name: &str) -> Option<String> {
        if let Some(token) = name.strip_suffix(":tampered").and_then(|name| self.0.get(name)) {
            return Some(format!("{}AAAA", &token[..token.len() - 4]));
        }
        self.0.get(name).cloned()
    }

    /// A request's body; a port that is one placeholder is a number.
    pub(crate) fn fill_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                let filled = self.fill(text);
                match filled.parse::<u16>() {
                    Ok(number) if text.starts_with("${nodeport-") => json!(number),
                    _ => Value::String(filled),
                }
            }
            Value::Array(list) => list.iter().map(|item| self.fill_value(item)).collect(),
            Value::Object(map) => {
                map.iter().map(|(key, value)| (self.fill(key), self.fill_value(value))).collect()
            }
            other => other.clone(),
        }
    }

    /// Compares, binding what is seen for the first time.
    pub(crate) fn unify(&mut self, expected: &Value, got: &Value, at: &str, found: &mut Vec<Difference>) {
        match (expected, got) {
            (Value::Object(expected), Value::Object(got)) => self.unify_maps(expected, got, at, found),
            (Value::Array(expected), Value::Array(got)) => {
                for (i, (expected, got)) in expected.iter().zip(got).enumerate() {
                    self.unify(expected, got, &format!("{at}/{i}"), found);
                }
                if expected.len() != got.len() {
                    let shown = |list: &[Value]| format!("{} elements {}", list.len(), short(&json!(list)));
                    found.push(Difference { at: at.into(), expected: shown(expected), got: shown(got) });
                }
            }
            (Value::String(text), Value::String(given)) => {
                if !self.unify_text(text, given) {
                    found.push(differ(at, expected, got));
                }
            }
            (Value::String(text), Value::Number(number)) if text.contains("${") => {
                if !self.unify_number(text, number) {
                    found.push(differ(at, expected, got));
                }
            }
            _ if expected == got => {}
            _ => found.push(differ(at, expected, got)),
        }
    }

    fn unify_maps(
        &mut self,
        expected: &Map<String, Value>,
        got: &Map<String, Value>,
        at: &str,
        found: &mut Vec<Difference>,
    ) {
        let mut keys = Vec::new();
        for (key, value) in expected {
            let key = self.fill(key);
            match got.get(&key) {
                Some(given) => self.unify(value, given, &format!("{at}/{key}"), found),
                None => found.push(Difference {
                    at: format!("{at}/{key}"),
                    expected: short(value),
                    got: "(absent)".into(),
                }),
            }
            keys.push(key);
        }
        for (key, value) in got.iter().filter(|(key, _)| !keys.contains(key)) {
            found.push(Difference {
                at: format!("{at}/{key}"),
                expected: "(absent)".into(),
                got: short(value),
            });
        }
    }

    fn unify_number(&mut self, text: &str, number: &serde_json::Number) -> bool {
        if let Some(later) = text.strip_prefix("${iat}+") {
            let base = self.0.get("iat").and_then(|iat| iat.parse::<i64>().ok());
            return number.as_i64().zip(base).is_some_and(|(n, base)| (n - base).to_string() == later);
        }
        self.unify_text(text, &number.to_string())
    }

    fn unify_text(&mut self, text: &str, given: &str) -> bool {
        if RELAXED.iter().any(|quoted| text.contains(quoted)) {
            return true;
        }
        if !text.contains("${") {
            return text == given;
        }
        let pieces = pieces(text);
        let (mut rest, mut fits) = (given, true);
        for (i, piece) in pieces.iter().enumerate() {
            let known = match piece {
                Piece::Text(text) => Some((*text).to_owned()),
                Piece::Placeholder(name) => self.value(name),
            };
            if let Some(known) = known {
                let Some(after) = rest.strip_prefix(&*known) else { return false };
                rest = after;
                continue;
            }
            let Piece::Placeholder(name) = piece else { continue };
            // It ends where the next piece begins.
            let end = match pieces.get(i + 1) {
                Some(Piece::Text(next)) => rest.find(next),
                Some(Piece::Placeholder(next)) => self.value(next).and_then(|next| rest.find(&next)),
                None => Some(rest.len()),
            };
            let Some(end) = end else { return false };
            let (pattern, binds) = pattern(name);
            if !is_of(pattern, &rest[..end]) {
                return false;
            }
            if binds {
                fits &= self.is_plausible(name, &rest[..end]);
                self.0.insert((*name).to_owned(), rest[..end].to_owned());
            }
            rest = &rest[end..];
        }
        fits && rest.is_empty()
    }

    /// Revisions are ordered as their numbers are, and two ids are two.
    fn is_plausible(&self, name: &str, value: &str) -> bool {
        let revision = |name: &str| name.strip_prefix("rv").and_then(|n| n.parse::<u32>().ok());
        let number: u64 = value.parse().unwrap_or(0);
        self.0.iter().all(|(other, known)| {
            let known_number: u64 = known.parse().unwrap_or(0);
            match (revision(name), revision(other)) {
                (Some(mine), Some(theirs)) => mine.cmp(&theirs) == number.cmp(&known_number),
                (None, Some(_)) if name.starts_with("listrv") => number >= known_number,
                _ => !(name.starts_with("uid-") && other.starts_with("uid-") && known == value),
            }
        })
    }

    /// Compares the parts of the tokens in an answer.
    pub(crate) fn unify_tokens(&mut self, decoded: &Value, found: &mut Vec<Difference>) {
        for (placeholder, parts) in decoded.as_object().into_iter().flatten() {
            let token = self.fill(placeholder);
            let mut read = token.split('.').map(|part| {
                let raw = URL_SAFE_NO_PAD.decode(part).unwrap_or_default();
                serde_json::from_slice::<Value>(&raw).unwrap_or(Value::Null)
            });
            let header = read.next().unwrap_or(Value::Null);
            let payload = read.next().unwrap_or(Value::Null);
            self.bind("iat", payload["iat"].to_string());
            self.unify(&parts["header"], &header, "/header", found);
            self.unify(&parts["payload"], &payload, "/payload", found);
        }
    }
}

fn differ(at: &str, expected: &Value, got: &Value) -> Difference {
    Difference { at: at.to_owned(), expected: short(expected), got: short(got) }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(1500).collect()
}

/// Texts of another project's schemas, and the columns they ask for: only what else is in an answer is compared.
pub(crate) fn forget_wording(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for field in ["message", "columnDefinitions", "cells"] {
                map.remove(field);
            }
            map.values_mut().for_each(forget_wording);
        }
        Value::Array(list) => list.iter_mut().for_each(forget_wording),
        _ => {}
    }
}

/// Both sides without what is not compared.
pub(crate) fn normalise(value: &mut Value, keep_managed: bool) {
    match value {
        Value::Object(map) => {
            map.remove("storageVersionHash");
            map.remove("causesSorted");
            if keep_managed {
                if let Some(Value::Array(managers)) = map.get_mut("managedFields") {
                    managers.sort_by_key(|entry| {
                        let text = |field: &str| entry[field].as_str().unwrap_or("").to_owned();
                        (text("manager"), text("operation"), text("subresource"), text("apiVersion"))
                    });
                }
            } else {
                map.remove("managedFields");
            }
            for column in map.get_mut("columnDefinitions").and_then(Value::as_array_mut).into_iter().flatten()
            {
                // Descriptions of columns are for people, and kubectl does not print them.
                column["description"] = json!("");
            }
            map.values_mut().for_each(|value| normalise(value, keep_managed));
        }
        Value::Array(list) => list.iter_mut().for_each(|item| normalise(item, keep_managed)),
        _ => {}
    }
}

/// Several errors on a custom resource come in no fixed order: both sides are sorted.
pub(crate) fn sort_causes(body: &mut Value) {
    let Some(causes) = body["details"]["causes"].as_array_mut() else { return };
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap_or("").to_owned();
    causes.sort_by_key(|cause| (text(cause, "field"), text(cause, "message")));
    let texts: Vec<String> =
        causes.iter().map(|cause| format!("{}: {}", text(cause, "field"), text(cause, "message"))).collect();
    let message = body["message"].as_str().unwrap_or("");
    let head = message.split(" is invalid: ").next().unwrap_or("").to_owned();
    body["message"] = json!(format!("{head} is invalid: [{}]", texts.join(", ")));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(bindings: &mut Bindings, expected: Value, got: Value) -> usize {
        let mut found = Vec::new();
        bindings.unify(&expected, &got, "", &mut found);
        found.len()
    }

    #[test]
    fn placeholders_keep_their_values_and_revisions_their_order() {
        let mut bindings = Bindings::default();
        let of = |expected: &str| json!({ "v": expected });
        assert_eq!(differences(&mut bindings, of("a ${rv2} b"), of("a 20 b")), 0);
        assert_eq!(differences(&mut bindings, of("${rv2}"), of("21")), 1);
        assert_eq!(differences(&mut bindings, of("${rv3}"), of("19")), 1);
        assert_eq!(differences(&mut bindings, of("${time}"), of("2026-01-01T00:00:00Z")), 0);
        assert_eq!(differences(&mut bindings, of("${time}"), of("now")), 1);
        assert_eq!(bindings.fill("x=${rv2}&y=${rv9}"), "x=20&y=${rv9}");
    }

    #[test]
    fn absent_null_and_empty_are_three_things() {
        let mut bindings = Bindings::default();
        for (expected, got) in [
            (json!({}), json!({ "a": null })),
            (json!({ "a": null }), json!({ "a": [] })),
            (json!([]), json!([1])),
        ] {
            assert_eq!(differences(&mut bindings, expected, got), 1);
        }
    }
}
