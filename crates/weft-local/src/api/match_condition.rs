//! `matchConditions` of webhooks: the few expressions that this API can evaluate.
//!
//! A real server evaluates CEL. Here it is one comparison of a label or an annotation, perhaps negated, which is what
//! the mesh's own webhooks use; a configuration with any other expression is refused when it is written.

use serde_json::Value;

use super::error::FieldError;
use super::meta;

/// What of CEL is understood, for the refusal.
const UNDERSTOOD: &str = "unsupported by this API, which evaluates only \
    object.metadata.?annotations[?'KEY'].orValue('') (or ?labels) with == 'VALUE', != 'VALUE' or in ['VALUE', …], \
    perhaps as !(…)";

/// An expression that can be evaluated.
#[derive(Debug, PartialEq, Eq)]
struct Condition<'e> {
    negated: bool,
    /// `annotations` or `labels`.
    map: &'e str,
    key: &'e str,
    /// What the entry is when there is none.
    otherwise: &'e str,
    /// It holds if the entry is one of these…
    values: Vec<&'e str>,
    /// …or, for `!=`, if it is none of them.
    differs: bool,
}

/// Whether all conditions of a webhook hold; of a deleted object, as it was.
pub(super) fn hold(hook: &Value, object: &Value) -> bool {
    meta::items(hook, "/matchConditions").iter().all(|condition| {
        // Everything in the store was accepted by `validate`.
        Condition::parse(meta::text(condition, "/expression")).is_none_or(|condition| condition.holds(object))
    })
}

/// What is wrong with the conditions of a configuration's webhooks.
pub(super) fn validate(configuration: &Value, errors: &mut Vec<FieldError>) {
    for (i, hook) in meta::items(configuration, "/webhooks").iter().enumerate() {
        for (j, condition) in meta::items(hook, "/matchConditions").iter().enumerate() {
            let expression = meta::text(condition, "/expression");
            let at = format!("webhooks[{i}].matchConditions[{j}]");
            if meta::text(condition, "/name").is_empty() {
                errors.push(FieldError::required(format!("{at}.name"), ""));
            }
            if Condition::parse(expression).is_none() {
                errors.push(FieldError::invalid(format!("{at}.expression"), expression, UNDERSTOOD));
            }
        }
    }
}

impl<'e> Condition<'e> {
    fn parse(expression: &'e str) -> Option<Self> {
        let text = expression.trim();
        if let Some(inner) = text.strip_prefix("!(") {
            let inner = Self::parse(inner.strip_suffix(')')?)?;
            return Some(Condition { negated: !inner.negated, ..inner });
        }
        let text = text.strip_prefix("object.metadata.?")?;
        let (map, text) = text.split_once("[?")?;
        if map != "annotations" && map != "labels" {
            return None;
        }
        let (key, text) = literal(text)?;
        let (otherwise, text) = literal(text.strip_prefix("].orValue(")?)?;
        let text = text.strip_prefix(')')?.trim_start();
        let (values, differs) = if let Some(value) = text.strip_prefix("==") {
            (vec![last(value)?], false)
        } else if let Some(value) = text.strip_prefix("!=") {
            (vec![last(value)?], true)
        } else {
            let list = text.strip_prefix("in")?.trim_start().strip_prefix('[')?.strip_suffix(']')?;
            (list.split(',').map(last).collect::<Option<_>>()?, false)
        };
        Some(Condition { negated: false, map, key, otherwise, values, differs })
    }

    fn holds(&self, object: &Value) -> bool {
        let entry = object["metadata"][self.map][self.key].as_str().unwrap_or(self.otherwise);
        // Each of the two turns the answer round.
        self.values.contains(&entry) ^ self.differs ^ self.negated
    }
}

/// A string at the beginning, and what follows it. Escapes are not understood, so that nothing is misread.
fn literal(text: &str) -> Option<(&str, &str)> {
    let (value, rest) = text.strip_prefix('\'')?.split_once('\'')?;
    (!value.contains('\\')).then_some((value, rest))
}

/// A string and nothing else.
fn last(text: &str) -> Option<&str> {
    literal(text.trim()).filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ENTRY: &str = "object.metadata.?annotations[?'a/b'].orValue('')";

    fn object(value: &str) -> Value {
        json!({ "metadata": { "annotations": { "a/b": value } } })
    }

    #[test]
    fn an_entry_is_compared_as_cel_would() {
        for (condition, holds) in [
            (format!("{ENTRY} == 'x'"), [true, false, false]),
            (format!("{ENTRY} != 'x'"), [false, true, true]),
            (format!("{ENTRY} in ['x', 'y']"), [true, true, false]),
            (format!("!({ENTRY} in ['x','y'])"), [false, false, true]),
            (format!("!({ENTRY} != 'x')"), [true, false, false]),
            ("object.metadata.?labels[?'a/b'].orValue('x') == 'x'".to_owned(), [true, true, true]),
        ] {
            let hook = json!({ "matchConditions": [{ "name": "n", "expression": condition }] });
            let found = [object("x"), object("y"), json!({ "metadata": {} })].map(|o| hold(&hook, &o));
            assert_eq!(found, holds, "{condition}");
        }
        assert!(hold(&json!({}), &json!({})));
        let both = json!({ "matchConditions": [
            { "name": "a", "expression": format!("{ENTRY} in ['x', 'y']") },
            { "name": "b", "expression": format!("{ENTRY} != 'y'") },
        ] });
        assert!(hold(&both, &object("x")) && !hold(&both, &object("y")));
    }

    #[test]
    fn anything_else_is_refused_and_the_refusal_says_what_is_not() {
        for expression in [
            "",
            "true",
            "request.name == 'x'",
            "object.metadata.name == 'x'",
            "object.metadata.?annotations[?'a'].orValue('') == 'x' || true",
            "object.metadata.?annotations[?'a'].orValue('') == 'x\\'",
            "object.metadata.?finalizers[?'a'].orValue('') == 'x'",
            "object.metadata.?annotations[?'a'].orValue('') in ['x', y]",
            "!(object.metadata.?annotations[?'a'].orValue('') == 'x'",
        ] {
            let hook = json!({ "matchConditions": [{ "name": "n", "expression": expression }] });
            let mut errors = Vec::new();
            validate(&json!({ "webhooks": [{}, hook] }), &mut errors);
            let [error] = &errors[..] else { panic!("{expression}: {errors:?}") };
            let text = format!("{error:?}");
            assert!(text.contains("webhooks[1].matchConditions[0].expression"), "{text}");
            assert!(text.contains("orValue"), "{text}");
        }
    }
}
