//! `matchConditions` of webhooks, which are expressions in CEL.
//!
//! Two forms are evaluated: a comparison of a label or an annotation that may be absent, which is what the mesh's own webhooks
//! use and what the library for CEL has no syntax for; and any other expression about the object, what it was, and the request.
//! A configuration with another expression is refused when it is written.

use std::collections::HashMap;

use kube_cel::KubeCelExt;
use kube_cel::cel::{self, Context, Program};
use serde_json::Value;

use super::error::FieldError;
use super::{meta, rules};

/// What of CEL is understood, for the refusal.
const UNDERSTOOD: &str = "unsupported by this API, which evaluates CEL about `object`, `oldObject` and `request` without optional fields, and \
    object.metadata.?annotations[?'KEY'].orValue('') (or ?labels) with == 'VALUE', != 'VALUE' or in ['VALUE', …], \
    perhaps as !(…)";

/// Variables of a real server that are not given here.
const NOT_GIVEN: [&str; 4] = ["authorizer", "namespaceObject", "params", "variables"];

/// What expressions may be about. Of what there is not, they see null.
#[derive(Clone, Copy)]
pub(super) struct Variables<'a> {
    pub object: &'a Value,
    pub old: &'a Value,
    /// As in an AdmissionReview, without the objects.
    pub request: &'a Value,
}

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

/// Whether all conditions of a webhook hold.
pub(super) fn hold(hook: &Value, variables: Variables<'_>) -> bool {
    meta::items(hook, "/matchConditions").iter().all(|condition| {
        let expression = meta::text(condition, "/expression");
        let result = match Condition::parse(expression) {
            // On a real server, null has no fields, optional or not.
            Some(_) if variables.object.is_null() => Err("there is no object".to_owned()),
            Some(condition) => Ok(condition.holds(variables.object)),
            None => result(expression, variables),
        };
        // One that fails counts as the webhook itself would if it failed: it is asked, or else passed over.
        result.unwrap_or_else(|why| {
            tracing::debug!(expression, why, "a match condition could not be evaluated");
            hook["failurePolicy"] != "Ignore"
        })
    })
}

/// Whether an expression is CEL about nothing but the variables that there are.
fn is_understood(expression: &str) -> bool {
    let Ok(program) = Program::compile(expression) else { return false };
    // An object of any size would be too large for it.
    if !rules::affordable(rules::loops(expression), &Value::Null) {
        return false;
    }
    let named = program.references();
    !NOT_GIVEN.iter().any(|variable| named.has_variable(variable))
}

/// Evaluates an expression that `validate` has accepted.
fn result(expression: &str, variables: Variables<'_>) -> Result<bool, String> {
    let Variables { object, old, request } = variables;
    if ![object, old].iter().all(|object| rules::affordable(rules::loops(expression), object)) {
        return Err("the object is too large for it".to_owned());
    }
    let program = Program::compile(expression).map_err(|e| e.to_string())?;
    let mut context = Context::default().with_all();
    for (name, value) in [("object", object), ("oldObject", old), ("request", request)] {
        context.add_variable_from_value(name, to_cel(value));
    }
    match program.execute(&context) {
        Ok(cel::Value::Bool(holds)) => Ok(holds),
        Ok(other) => Err(format!("it is no truth value: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// JSON as CEL has it. Whole numbers are all of one type.
fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(truth) => cel::Value::Bool(*truth),
        Value::Number(number) => match number.as_i64() {
            Some(number) => cel::Value::Int(number),
            None => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(list) => list.iter().map(to_cel).collect::<Vec<_>>().into(),
        Value::Object(map) => {
            let map: HashMap<String, cel::Value> =
                map.iter().map(|(key, value)| (key.clone(), to_cel(value))).collect();
            map.into()
        }
    }
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
            if Condition::parse(expression).is_none() && !is_understood(expression) {
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

    fn hold(hook: &Value, object: &Value) -> bool {
        super::hold(hook, Variables { object, old: &Value::Null, request: &Value::Null })
    }

    fn result(expression: &str, object: &Value) -> Result<bool, String> {
        super::result(expression, Variables { object, old: &Value::Null, request: &Value::Null })
    }

    /// As users write them: what changed, who asks, and what is asked for.
    #[test]
    fn conditions_may_be_about_what_was_and_about_the_request() {
        let (old, new) = (json!({ "spec": { "replicas": 1 } }), json!({ "spec": { "replicas": 2 } }));
        let request = json!({ "operation": "UPDATE", "name": "a", "userInfo": { "username": "system:node:n", "groups": ["g"] },
            "resource": { "group": "apps", "version": "v1", "resource": "deployments" }, "dryRun": false });
        for (expression, holds) in [
            ("oldObject == null || object.spec.replicas != oldObject.spec.replicas", true),
            ("request.operation == 'UPDATE' && request.resource.group != 'coordination.k8s.io'", true),
            (
                "!('system:nodes' in request.userInfo.groups) && !request.userInfo.username.startsWith('system:node:')",
                false,
            ),
            ("!has(request.subResource) && !request.dryRun && request.name == 'a'", true),
        ] {
            assert!(is_understood(expression), "{expression}");
            let variables = Variables { object: &new, old: &old, request: &request };
            assert_eq!(super::result(expression, variables), Ok(holds), "{expression}");
        }
        // What is deleted is null, in which there are no fields; then the policy counts.
        for (policy, asked) in [("Fail", true), ("Ignore", false)] {
            let condition = json!({ "name": "n", "expression": format!("{ENTRY} == 'x'") });
            let hook = json!({ "failurePolicy": policy, "matchConditions": [condition] });
            assert_eq!(hold(&hook, &Value::Null), asked, "{policy}");
        }
    }

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
    fn other_expressions_about_the_object_are_evaluated() {
        let holds = |expression: &str, policy: &str| {
            let hook = json!({ "failurePolicy": policy, "matchConditions": [{ "name": "n", "expression": expression }] });
            let mut errors = Vec::new();
            validate(&json!({ "webhooks": [hook] }), &mut errors);
            assert!(errors.is_empty(), "{expression}: {errors:?}");
            [object("x"), json!({ "metadata": { "name": "a" } })].map(|object| hold(&hook, &object))
        };
        let has = "!(has(object.metadata.annotations) && 'a/b' in object.metadata.annotations)";
        assert_eq!(holds(has, "Fail"), [false, true]);
        assert_eq!(holds("true", "Fail"), [true, true]);
        assert_eq!(holds("object.metadata.?labels[?'x'].orValue('') == ''", "Fail"), [true, true]);
        let typed = json!({ "spec": { "replicas": 3, "list": [1, null, "a"] } });
        assert_eq!(result("object.spec.replicas + 1 > 3 && object.spec.list.size() == 3", &typed), Ok(true));
        assert!(result("object.spec.list", &typed).is_err());
        // Without the field, the expression fails: then the policy of the webhook counts.
        let fails = "object.metadata.annotations['a/b'] == 'x'";
        assert_eq!(holds(fails, "Fail"), [true, true]);
        assert_eq!(holds(fails, "Ignore"), [true, false]);
    }

    #[test]
    fn anything_else_is_refused_and_the_refusal_says_what_is_not() {
        for expression in [
            "",
            "authorizer.group('').resource('pods').check('get').allowed()",
            "namespaceObject.metadata.name == 'x'",
            "object.metadata.name ==",
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
