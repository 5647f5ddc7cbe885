//! Label and field selectors.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::{meta, shape};

/// One term of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Term {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    /// Greater than the number, or less.
    Compared(String, std::cmp::Ordering, i64),
}

/// A parsed label selector; all terms must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Term>);

impl LabelSelector {
    /// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for part in split_outside_brackets(text) {
            let part = part.trim();
            if part.is_empty() {
                continue;
            }
            let term = parse_term(part).ok_or_else(|| format!("found '{part}', expected: a selector"));
            let refuse = |why| ApiError::bad_request(format!("unable to parse requirement: {why}"));
            terms.push(term.and_then(check_term).map_err(refuse)?);
        }
        Ok(Self(terms))
    }

    /// A `metav1.LabelSelector`, or a plain map of labels under `matchLabels`.
    pub fn from_object(selector: &Value) -> Self {
        let mut terms = Vec::new();
        if let Some(labels) = selector["matchLabels"].as_object() {
            terms.extend(equalities(labels));
        }
        for expression in meta::items(selector, "/matchExpressions") {
            let key = meta::text(expression, "/key").to_owned();
            let values = meta::items(expression, "/values")
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect();
            terms.push(match meta::text(expression, "/operator") {
                "In" => Term::In(key, values),
                "NotIn" => Term::NotIn(key, values),
                "Exists" => Term::Exists(key),
                _ => Term::Absent(key),
            });
        }
        Self(terms)
    }

    /// A map of labels, as in a Service's selector.
    pub fn from_labels(labels: &Map<String, Value>) -> Self {
        Self(equalities(labels).collect())
    }

    pub fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        let value = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
        self.0.iter().all(|term| match term {
            Term::In(key, values) => value(key).is_some_and(|v| values.iter().any(|wanted| wanted == v)),
            Term::NotIn(key, values) => value(key).is_none_or(|v| values.iter().all(|wanted| wanted != v)),
            Term::Exists(key) => value(key).is_some(),
            Term::Absent(key) => value(key).is_none(),
            Term::Compared(key, order, number) => {
                value(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v.cmp(number) == *order)
            }
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, term) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match term {
                Term::In(key, values) if values.len() == 1 => write!(f, "{key}={}", values[0])?,
                Term::In(key, values) => write!(f, "{key} in ({})", values.join(","))?,
                Term::NotIn(key, values) if values.len() == 1 => write!(f, "{key}!={}", values[0])?,
                Term::NotIn(key, values) => write!(f, "{key} notin ({})", values.join(","))?,
                Term::Exists(key) => f.write_str(key)?,
                Term::Absent(key) => write!(f, "!{key}")?,
                Term::Compared(key, std::cmp::Ordering::Greater, number) => write!(f, "{key}>{number}")?,
                Term::Compared(key, _, number) => write!(f, "{key}<{number}")?,
            }
        }
        Ok(())
    }
}

fn equalities(labels: &Map<String, Value>) -> impl Iterator<Item = Term> {
    labels.iter().map(|(key, value)| Term::In(key.clone(), vec![value.as_str().unwrap_or("").to_owned()]))
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Keys and values must be such that an object could have them.
fn check_term(term: Term) -> Result<Term, String> {
    let (key, values): (&String, &[String]) = match &term {
        Term::In(key, values) | Term::NotIn(key, values) => (key, values),
        Term::Exists(key) | Term::Absent(key) | Term::Compared(key, ..) => (key, &[]),
    };
    if let Some(why) = shape::label_key(key) {
        return Err(format!("key: Invalid value: {key:?}: {why}"));
    }
    for (i, value) in values.iter().enumerate() {
        if let Some(why) = shape::label_value(value) {
            return Err(format!("values[{i}][{key}]: Invalid value: {value:?}: {why}"));
        }
    }
    Ok(term)
}

fn parse_term(part: &str) -> Option<Term> {
    let key_ok = |key: &str| !key.is_empty() && !key.contains([' ', '(', ')', '=', '!']);
    if let Some(key) = part.strip_prefix('!') {
        let key = key.trim();
        return key_ok(key).then(|| Term::Absent(key.to_owned()));
    }
    if let Some((key, value)) = part.split_once("!=") {
        let key = key.trim();
        return key_ok(key).then(|| Term::NotIn(key.to_owned(), vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = part.split_once('=') {
        let key = key.trim();
        let value = value.strip_prefix('=').unwrap_or(value).trim();
        return (key_ok(key) && !value.contains(['=', ' ']))
            .then(|| Term::In(key.to_owned(), vec![value.to_owned()]));
    }
    for (sign, order) in [('>', std::cmp::Ordering::Greater), ('<', std::cmp::Ordering::Less)] {
        if let Some((key, number)) = part.split_once(sign) {
            let (key, number) = (key.trim(), number.trim().parse().ok()?);
            return key_ok(key).then(|| Term::Compared(key.to_owned(), order, number));
        }
    }
    let Some((key, rest)) = part.split_once(char::is_whitespace) else {
        return key_ok(part).then(|| Term::Exists(part.to_owned()));
    };
    let rest = rest.trim();
    let (negated, list) = match rest.strip_prefix("notin") {
        Some(list) => (true, list),
        None => (false, rest.strip_prefix("in")?),
    };
    let list = list.trim().strip_prefix('(')?.strip_suffix(')')?;
    let values = list.split(',').map(|value| value.trim().to_owned()).collect();
    key_ok(key).then(|| if negated { Term::NotIn(key.into(), values) } else { Term::In(key.into(), values) })
}

/// A parsed field selector: path, wanted value, and whether they must be equal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<(String, String, bool)>);

impl FieldSelector {
    /// Parses `metadata.name=a,status.phase!=Running`; `supported` names the fields beside name and namespace.
    /// Built-in kinds without such fields are refused in other words.
    pub fn parse(text: &str, supported: &[&str], custom: bool) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (field, value, equal) = if let Some((field, value)) = part.split_once("!=") {
                (field, value, false)
            } else if let Some((field, value)) = part.split_once('=') {
                (field, value.strip_prefix('=').unwrap_or(value), true)
            } else {
                return Err(ApiError::bad_request(format!(
                    "invalid selector: '{text}'; can't understand '{part}'"
                )));
            };
            if !["metadata.name", "metadata.namespace"].contains(&field) && !supported.contains(&field) {
                let message = match supported {
                    [] if !custom => format!(
                        "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                    ),
                    _ => format!("field label not supported: {field}"),
                };
                return Err(ApiError::bad_request(message));
            }
            terms.push((field.to_owned(), value.to_owned(), equal));
        }
        Ok(Self(terms))
    }

    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(field, wanted, equal)| {
            let pointer = format!("/{}", field.replace('.', "/"));
            let text = match object.pointer(&pointer) {
                Some(Value::String(text)) => text.clone(),
                None | Some(Value::Null) => String::new(),
                Some(other) => other.to_string(),
            };
            (text == *wanted) == *equal
        })
    }

    /// The name that a selector pins, whatever else stands in it: whoever may read the object of that name may list and
    /// watch it.
    pub fn pinned(text: &str) -> Option<&str> {
        let name = text.split(',').find_map(|term| term.strip_prefix("metadata.name="))?;
        Some(name.strip_prefix('=').unwrap_or(name))
    }

    /// The name that this selector pins, if it does.
    pub fn name(&self) -> Option<&str> {
        self.0
            .iter()
            .find(|(field, _, equal)| field == "metadata.name" && *equal)
            .map(|(_, name, _)| name.as_str())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_name_is_pinned_by_equality_alone() {
        assert_eq!(FieldSelector::pinned("metadata.name=a"), Some("a"));
        assert_eq!(FieldSelector::pinned("type=x,metadata.name==a"), Some("a"));
        assert_eq!(FieldSelector::pinned("metadata.name!=a"), None);
        assert_eq!(FieldSelector::pinned(""), None);
    }

    #[test]
    fn label_terms() {
        let labels = json!({ "app": "web", "tier": "front", "n": "4" });
        let labels = labels.as_object();
        for (text, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier!=back", true),
            ("app in (web, api)", true),
            ("app notin (web,api)", false),
            ("app", true),
            ("!app", false),
            ("!other,app=web", true),
            ("other!=x", true),
            ("app=api", false),
            ("n > 3,n<5", true),
            ("n>4", false),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap().matches(labels), expected, "{text}");
        }
        for text in ["a b", "a in b", "=x", "a in (b"] {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn field_terms() {
        let pod = json!({ "metadata": { "name": "a" }, "spec": {}, "status": { "phase": "Running" } });
        let supported = ["status.phase", "spec.nodeName"];
        let check = |text: &str| FieldSelector::parse(text, &supported, false).unwrap().matches(&pod);
        assert!(check("metadata.name=a,status.phase!=Failed"));
        assert!(check("spec.nodeName="));
        assert!(!check("spec.nodeName=n"));
        assert!(FieldSelector::parse("spec.x=1", &supported, false).is_err());
    }
}
