//! Values: what an operator may set, checked by name and form, merged over the defaults.

pub mod set;
pub mod table;
#[cfg(test)]
mod tests;

use self::table::{Form, Row, TABLE};
use crate::ports::PortSet;
use ipnet::IpNet;
use serde_json::{Map, Value};
use std::{fmt, net::IpAddr, time::Duration};
use weft_fault::{Code, Fault, nearest::nearest};

/// A complete set: every row of the table has a value of its form.
#[derive(Clone, Debug, PartialEq)]
pub struct Values(Value);

/// What is wrong with one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    Unknown { path: String, nearest: Option<&'static str> },
    Form { path: String, found: String, wanted: String },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Unknown { path, nearest: Some(nearest) } => {
                write!(f, "{path}: no such value; the nearest is {nearest}")
            }
            Problem::Unknown { path, nearest: None } => write!(f, "{path}: no such value"),
            Problem::Form { path, found, wanted } => write!(f, "{path}: {found} is not {wanted}"),
        }
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Fault {
        let fault = Fault::new(Code::BadValue);
        match problem {
            Problem::Unknown { path, nearest } => {
                let fault = fault.about(path).fact("problem", "no value has this name");
                nearest.into_iter().fold(fault, |fault, nearest| fault.fact("nearest", nearest))
            }
            Problem::Form { path, found, wanted } => {
                fault.about(path).fact("found", found).fact("expected", wanted)
            }
        }
    }
}

impl Values {
    pub fn defaults(ha: bool) -> Values {
        let mut tree = Value::Object(Map::new());
        for row in TABLE {
            let text = if ha { row.ha.unwrap_or(row.default) } else { row.default };
            place(&mut tree, row.path, text);
        }
        Values(tree)
    }

    /// The defaults with `overrides` on top. Every problem is found, not only the first.
    pub fn with(overrides: &Value, ha: bool) -> Result<Values, Vec<Problem>> {
        let mut problems = Vec::new();
        check("", overrides, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut values = Values::defaults(ha);
        merge(&mut values.0, overrides);
        // What was set to `null` falls back, so that the set stays complete.
        let defaults = Values::defaults(ha);
        for row in TABLE {
            if values.get(row.path).is_null() {
                *at(&mut values.0, row.path) = defaults.get(row.path).clone();
            }
        }
        Ok(values)
    }

    /// The same for values that somebody else wrote: what is not known or unusable is left out and returned.
    pub fn with_known(overrides: &Value) -> (Values, Vec<Problem>) {
        let mut overrides = overrides.clone();
        let mut problems = Vec::new();
        check("", &overrides, &mut problems);
        for problem in &problems {
            let (Problem::Unknown { path, .. } | Problem::Form { path, .. }) = problem;
            remove(&mut overrides, path);
        }
        let values = Values::with(&overrides, false).unwrap_or_else(|_| Values::defaults(false));
        (values, problems)
    }

    /// What differs from the defaults without `--ha`; keys and certificates are left out.
    pub fn overrides(&self) -> Value {
        let defaults = Values::defaults(false);
        let mut tree = Value::Object(Map::new());
        for row in TABLE {
            let value = self.get(row.path);
            if value != defaults.get(row.path) && !row.path.starts_with("identity.issuer.tls.") {
                *at(&mut tree, row.path) = value.clone();
            }
        }
        tree
    }

    /// Rows that were set and do nothing, with the reason.
    pub fn without_effect(&self) -> Vec<(&'static str, &'static str)> {
        let defaults = Values::defaults(false);
        let set = |row: &&Row| self.get(row.path) != defaults.get(row.path);
        TABLE.iter().filter(set).filter_map(|row| Some((row.path, row.without_effect?))).collect()
    }

    pub fn tree(&self) -> &Value {
        &self.0
    }

    pub fn set(&mut self, path: &str, value: Value) {
        debug_assert!(TABLE.iter().any(|row| row.path == path), "{path}");
        *at(&mut self.0, path) = value;
    }

    /// The value at a path of the table.
    pub fn get(&self, path: &str) -> &Value {
        path.split('.').fold(&self.0, |value, key| &value[key])
    }

    /// Text, or a scalar as text.
    pub fn text(&self, path: &str) -> String {
        match self.get(path) {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            Value::Array(items) => items.iter().map(scalar).collect::<Vec<_>>().join(","),
            other => other.to_string(),
        }
    }

    /// Text, if it is not empty.
    pub fn some(&self, path: &str) -> Option<String> {
        Some(self.text(path)).filter(|text| !text.is_empty())
    }

    pub fn flag(&self, path: &str) -> bool {
        self.get(path).as_bool().unwrap_or_default()
    }

    pub fn number(&self, path: &str) -> i64 {
        self.get(path).as_i64().unwrap_or_default()
    }

    pub fn duration(&self, path: &str) -> Duration {
        duration(&self.text(path)).unwrap_or_default()
    }

    pub fn networks(&self, path: &str) -> Vec<IpNet> {
        networks(&self.text(path)).unwrap_or_default()
    }
}

fn scalar(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The place of a path, made if it is not there.
fn at<'v>(tree: &'v mut Value, path: &str) -> &'v mut Value {
    path.split('.').fold(tree, |value, key| {
        if !value.is_object() {
            *value = Value::Object(Map::new());
        }
        value.as_object_mut().expect("it was just made an object").entry(key).or_insert(Value::Null)
    })
}

/// Puts a default of the table into a tree.
pub(super) fn place(tree: &mut Value, path: &str, json: &str) {
    *at(tree, path) = serde_json::from_str(json).expect("the table's defaults are JSON: a test reads all");
}

fn remove(tree: &mut Value, path: &str) {
    let (parent, key) = match path.rsplit_once('.') {
        Some((parent, key)) => (at(tree, parent), key),
        None => (tree, path),
    };
    if let Some(map) = parent.as_object_mut() {
        map.remove(key);
    }
}

/// As helm merges: maps by key, everything else whole.
pub fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn check(path: &str, value: &Value, problems: &mut Vec<Problem>) {
    if let Some(row) = TABLE.iter().find(|row| row.path == path) {
        // A value that does nothing may be anything.
        if row.without_effect.is_none() && !value.is_null() && !fits(row.form, value) {
            let found = scalar(value);
            let wanted = row.form.says();
            problems.push(Problem::Form { path: path.to_owned(), found, wanted });
        }
        return;
    }
    let below = |row: &&Row| path.is_empty() || row.path.starts_with(&format!("{path}."));
    // A map of Linkerd's that does nothing, one level or more above.
    if TABLE.iter().any(|row| row.without_effect.is_some() && path.starts_with(&format!("{}.", row.path))) {
        return;
    }
    if !TABLE.iter().any(|row| below(&row)) {
        let nearest = nearest(path, TABLE.iter().map(|row| row.path));
        problems.push(Problem::Unknown { path: path.to_owned(), nearest });
        return;
    }
    match value {
        Value::Null => {}
        Value::Object(map) => {
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                check(&path, value, problems);
            }
        }
        other => problems.push(Problem::Form {
            path: path.to_owned(),
            found: scalar(other),
            wanted: "a map".to_owned(),
        }),
    }
}

fn fits(form: Form, value: &Value) -> bool {
    let text = || Some(scalar(value)).filter(|_| !value.is_object() && !value.is_array());
    match form {
        // `--set a=1` and an unquoted `1` in YAML mean the text as well.
        Form::Text | Form::Quantity => text().is_some(),
        Form::OneOf(words) => value.as_str().is_some_and(|text| words.contains(&text)),
        Form::Bool => value.is_boolean(),
        Form::Number => {
            value.as_f64().is_some_and(|n| n.fract() == 0.0 || n.abs() < 1.0) && !value.is_string()
        }
        Form::Duration => text().is_some_and(|text| text.is_empty() || duration(&text).is_some()),
        Form::Ports => text().is_some_and(|text| {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.clone().all(|item| !PortSet::parse(item).to_string().is_empty())
        }),
        Form::Networks => {
            let text = match value {
                Value::Array(items) => items.iter().map(scalar).collect::<Vec<_>>().join(","),
                other => scalar(other),
            };
            networks(&text).is_some()
        }
        Form::List => value.is_array(),
        Form::Map => value.is_object(),
    }
}

/// As Go writes durations: `1h30m`, `500ms`.
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|n| *n > 0)?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit_seconds = match &rest[..unit] {
            "ms" => {
                total = total.checked_add(Duration::from_millis(number))?;
                0
            }
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return None,
        };
        total = total.checked_add(Duration::from_secs(number.checked_mul(unit_seconds)?))?;
        rest = &rest[unit..];
    }
    (!text.is_empty()).then_some(total)
}

fn networks(text: &str) -> Option<Vec<IpNet>> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| item.parse().or_else(|_| item.parse::<IpAddr>().map(IpNet::from)).ok()).collect()
}
