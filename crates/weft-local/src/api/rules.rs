//! Rules in CEL of custom kinds (`x-kubernetes-validations`).
//!
//! A real server refuses definitions whose rules could cost too much, and stops a rule that does. Here the rules of an object
//! that is too large for them are not evaluated, nor are rules whose outcome could not be the real server's: of these, whoever
//! writes the definition is warned.

use kube_cel::cel::Program;
use kube_cel::{CompiledSchema, ErrorKind, Validator, compile_schema};
use serde_json::Value;

use super::error::FieldError;
use super::meta;

/// Schemas may be deep.
const DEPTH: usize = 64;

/// The most values in an object that is looked at, by how deep an expression's loops are nested: each loop may go over all of
/// them. Deeper ones are not evaluated at all.
const VALUES: [usize; 4] = [20_000, 20_000, 1_000, 100];

const RULES: &str = "x-kubernetes-validations";

/// The rules of one version of a custom kind.
#[derive(Debug, Default)]
pub struct Rules(Option<Compiled>);

#[derive(Debug)]
struct Compiled {
    schema: CompiledSchema,
    /// How deep the loops of its rules are nested at most.
    loops: usize,
}

impl Rules {
    /// Compiles those rules of a schema that can be evaluated.
    pub(super) fn of(schema: &Value) -> Self {
        let mut kept = schema.clone();
        let loops = prepare(&mut kept, false, DEPTH);
        Self(loops.map(|loops| Compiled { schema: compile_schema(&kept), loops }))
    }

    /// The rules that an object breaks; `old` is what an update replaces.
    pub(super) fn check(&self, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        let Some(Compiled { schema, loops }) = &self.0 else { return };
        if ![Some(object), old].into_iter().flatten().all(|object| affordable(*loops, object)) {
            tracing::debug!(loops, "an object is too large for its rules, which are not evaluated");
            return;
        }
        let Err(broken) = Validator::new().validate_compiled(schema, object, old) else { return };
        for error in broken.into_vec() {
            let counts = [ErrorKind::ValidationFailure, ErrorKind::InvalidResult, ErrorKind::EvaluationError];
            if !counts.contains(&error.kind) {
                tracing::debug!(rule = error.rule, why = error.message, "a rule was not evaluated");
                continue;
            }
            // What was stored in spite of a rule may stay as it is.
            let about_change = error.rule.contains("oldSelf");
            let unchanged =
                old.is_some_and(|old| at(old, &error.field_path) == at(object, &error.field_path));
            if unchanged && !about_change {
                continue;
            }
            let (reason, says) = match error.reason.as_deref() {
                Some("FieldValueForbidden") => ("FieldValueForbidden", "Forbidden"),
                Some("FieldValueRequired") => ("FieldValueRequired", "Required value"),
                Some("FieldValueDuplicate") => ("FieldValueDuplicate", "Duplicate value"),
                _ => ("FieldValueInvalid", "Invalid value"),
            };
            let field = if error.field_path.is_empty() { "<nil>".to_owned() } else { error.field_path };
            errors.push(FieldError { reason, field, message: format!("{says}: {}", error.message) });
        }
    }
}

/// Takes out of a schema the rules that are not to be evaluated. Of the others, how deep their loops are nested at most.
fn prepare(schema: &mut Value, in_list: bool, depth: usize) -> Option<usize> {
    if depth == 0 {
        return None;
    }
    let mut deepest = None;
    for (key, inner) in schema.as_object_mut()? {
        let found = match (key.as_str(), inner) {
            (RULES, Value::Array(rules)) => {
                rules.retain(|rule| fits(rule["rule"].as_str().unwrap_or(""), in_list));
                rules.iter().map(|rule| loops(rule["rule"].as_str().unwrap_or(""))).max()
            }
            ("properties", Value::Object(properties)) => {
                properties.values_mut().filter_map(|inner| prepare(inner, in_list, depth - 1)).max()
            }
            ("items", inner) => prepare(inner, true, depth - 1),
            ("additionalProperties", inner) => prepare(inner, in_list, depth - 1),
            ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                list.iter_mut().filter_map(|inner| prepare(inner, in_list, depth - 1)).max()
            }
            _ => None,
        };
        deepest = deepest.max(found);
    }
    deepest
}

fn fits(rule: &str, in_list: bool) -> bool {
    why_not(rule, in_list).is_none()
}

/// Macros that the library does not expand.
const NO_MACROS: [&str; 7] =
    ["sortBy", "bind", "transformList", "transformMap", "transformMapEntry", "optMap", "optFlatMap"];

/// Why a rule is not evaluated, if it is not.
fn why_not(rule: &str, in_list: bool) -> Option<&'static str> {
    if loops(rule) >= VALUES.len() {
        return Some("its loops are nested too deep");
    }
    if in_list && rule.contains("oldSelf") {
        // They would be compared with those of the same place, not of the same key: better not at all.
        return Some("it compares items of a list with what they were");
    }
    let Ok(program) = Program::compile(rule) else {
        return Some("it cannot be read, or has optional fields");
    };
    let functions = program.references();
    NO_MACROS
        .iter()
        .any(|name| functions.has_function(name))
        .then_some("it has a macro that is not known here")
}

/// The rules of a definition's schemas that are not evaluated: where each stands, and why.
pub(super) fn not_evaluated(definition: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (i, version) in meta::items(definition, "/spec/versions").iter().enumerate() {
        let at = format!("spec.versions[{i}].schema.openAPIV3Schema");
        walk(&version["schema"]["openAPIV3Schema"], &at, false, DEPTH, &mut found);
    }
    found
}

fn walk(schema: &Value, at: &str, in_list: bool, depth: usize, found: &mut Vec<String>) {
    if depth == 0 {
        return found.push(format!("{at}: weft evaluates no rules this deep"));
    }
    for (key, inner) in schema.as_object().into_iter().flatten() {
        match (key.as_str(), inner) {
            (RULES, Value::Array(rules)) => {
                for (i, rule) in rules.iter().enumerate() {
                    if let Some(why) = why_not(rule["rule"].as_str().unwrap_or(""), in_list) {
                        found.push(format!("{at}.{RULES}[{i}].rule: weft does not evaluate it: {why}"));
                    }
                }
            }
            ("properties", Value::Object(properties)) => {
                for (name, inner) in properties {
                    walk(inner, &format!("{at}.properties[{name}]"), in_list, depth - 1, found);
                }
            }
            ("items", inner) => walk(inner, &format!("{at}.items"), true, depth - 1, found),
            ("additionalProperties", inner) => {
                walk(inner, &format!("{at}.additionalProperties"), in_list, depth - 1, found);
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                for (i, inner) in list.iter().enumerate() {
                    walk(inner, &format!("{at}.{key}[{i}]"), in_list, depth - 1, found);
                }
            }
            _ => {}
        }
    }
}

/// How deep an expression's loops are nested.
pub(super) fn loops(expression: &str) -> usize {
    const LOOPS: [&str; 9] = [
        "all",
        "exists",
        "exists_one",
        "existsOne",
        "map",
        "filter",
        "sortBy",
        "transformList",
        "transformMap",
    ];
    let (mut open, mut deepest, mut quote) = (Vec::new(), 0, None);
    let mut escaped = false;
    for (at, c) in expression.char_indices() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(end), c) if end == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(') => {
                let before = expression[..at].trim_end();
                let name = before.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
                open.push(name.is_some_and(|name| LOOPS.contains(&name)));
                deepest = deepest.max(open.iter().filter(|is_loop| **is_loop).count());
            }
            (None, ')') => drop(open.pop()),
            _ => {}
        }
    }
    deepest
}

/// Whether an expression with so many loops in each other may go over an object.
pub(super) fn affordable(loops: usize, object: &Value) -> bool {
    VALUES.get(loops).is_some_and(|most| is_small(object, &mut most.clone()))
}

/// Whether an object has no more values than are left.
fn is_small(value: &Value, left: &mut usize) -> bool {
    let Some(rest) = left.checked_sub(1) else { return false };
    *left = rest;
    match value {
        Value::Object(map) => map.values().all(|inner| is_small(inner, left)),
        Value::Array(list) => list.iter().all(|inner| is_small(inner, left)),
        _ => true,
    }
}

/// What stands at a path such as `spec.rules[0].name`.
fn at<'v>(object: &'v Value, path: &str) -> Option<&'v Value> {
    path.split(['.', '[']).filter(|part| !part.is_empty()).try_fold(object, |value, part| {
        match part.strip_suffix(']') {
            Some(index) => value.get(index.parse::<usize>().ok()?),
            None => value.get(part),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        let item = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, RULES: [
            { "rule": "self.n > 0", "message": "n is positive" },
            { "rule": "self.n >= oldSelf.n", "message": "n only grows" },
        ] });
        json!({ "type": "object", "properties": { "spec": { "type": "object",
            "properties": {
                "mode": { "type": "string" }, "note": { "type": "string" }, "replicas": { "type": "integer" },
                "list": { "type": "array", "items": item, "maxItems": 5 },
                "many": { "type": "array", "items": { "type": "integer" } },
            },
            RULES: [
                { "rule": "!has(self.note) || self.mode == 'Fast'", "message": "a note needs mode Fast" },
                { "rule": "self.mode == oldSelf.mode || oldSelf.replicas == 0", "message": "mode changes at 0 replicas",
                    "reason": "FieldValueForbidden", "fieldPath": ".mode" },
                { "rule": "!has(self.many) || self.many.all(x, self.many.exists_one(y, x == y))", "message": "costly" },
                { "rule": "this is no rule", "message": "broken" },
                { "rule": "self.list.sortBy(x, x.n).size() == 1", "message": "a macro that is not known" },
            ],
        } } })
    }

    fn broken(object: Value, old: Option<Value>) -> Vec<String> {
        let mut errors = Vec::new();
        Rules::of(&schema()).check(&object, old.as_ref(), &mut errors);
        errors.into_iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
    }

    #[test]
    fn rules_are_evaluated_and_say_what_is_wrong() {
        let spec =
            |mode: &str, n: i32| json!({ "spec": { "mode": mode, "replicas": 1, "list": [{ "n": n }] } });
        assert!(broken(spec("Fast", 1), None).is_empty());
        assert_eq!(broken(spec("Fast", 0), None), ["spec.list[0]: Invalid value: n is positive"]);
        let noted = json!({ "spec": { "mode": "Slow", "note": "x" } });
        assert_eq!(broken(noted.clone(), None), ["spec: Invalid value: a note needs mode Fast"]);
        let changed = broken(spec("Slow", 1), Some(spec("Fast", 1)));
        assert_eq!(changed, ["spec.mode: Forbidden: mode changes at 0 replicas"]);
        // What was stored in spite of a rule may stay, and items of lists are not compared.
        assert!(broken(noted.clone(), Some(noted)).is_empty());
        assert!(broken(spec("Fast", 1), Some(spec("Fast", 2))).is_empty());
    }

    #[test]
    fn rules_that_could_cost_too_much_are_left_out() {
        let twice = |many: Vec<u32>| broken(json!({ "spec": { "mode": "Fast", "many": many } }), None);
        assert_eq!(twice(vec![1, 1]), ["spec: Invalid value: costly"]);
        assert!(twice(vec![1; VALUES[2]]).is_empty());
        for (expression, nested) in [
            ("self.x == 1", 0),
            ("self.all(x, x > 0) && self.exists(x, x > 9)", 1),
            ("self.all(x, size(self.filter(y, (y == x))) == 1)", 2),
            ("self.all(x, 'all(exists(' != x || self.map (y, y).exists_one(z, z == \"a\\\"(\"))", 2),
            ("self.all(a, self.all(b, self.all(c, self.all(d, true))))", 4),
        ] {
            assert_eq!(loops(expression), nested, "{expression}");
            assert_eq!(fits(expression, true), nested < 4);
        }
    }

    #[test]
    fn a_schema_without_rules_costs_nothing() {
        assert!(Rules::of(&json!({ "type": "object" })).0.is_none());
        assert!(Rules::of(&Value::Null).0.is_none());
    }

    #[test]
    fn whoever_defines_rules_is_told_of_those_that_are_not_evaluated() {
        let definition =
            |schema: Value| json!({ "spec": { "versions": [{ "schema": { "openAPIV3Schema": schema } }] } });
        let told = not_evaluated(&definition(schema()));
        let at = "spec.versions[0].schema.openAPIV3Schema.properties[spec]";
        let expected = [
            format!(
                "{at}.properties[list].items.{RULES}[1].rule: weft does not evaluate it: it compares items"
            ),
            format!("{at}.{RULES}[3].rule: weft does not evaluate it: it cannot be read"),
            format!("{at}.{RULES}[4].rule: weft does not evaluate it: it has a macro"),
        ];
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for begin in expected {
            assert!(told.iter().any(|line| line.starts_with(&begin)), "{begin}: {told:?}");
        }
        let optional = json!({ "type": "object", RULES: [{ "rule": "self.?a.orValue(1) == 1" }] });
        assert_eq!(not_evaluated(&definition(optional)).len(), 1);
    }

    /// Every rule of the definitions that weft installs is evaluated.
    #[test]
    fn no_definition_of_ours_has_a_rule_that_is_not_evaluated() {
        let charts =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/weft-crds/templates");
        let mut seen = 0;
        for file in ["crds.yaml", "gateway.yaml"] {
            let text = std::fs::read_to_string(charts.join(file)).unwrap();
            let plain: Vec<&str> = text.lines().filter(|line| !line.contains("{{")).collect();
            for document in plain.join("\n").split("\n---").filter(|document| document.contains("kind:")) {
                let definition: Value = serde_saphyr::from_str(document.trim_start_matches("---")).unwrap();
                assert_eq!(not_evaluated(&definition), [""; 0], "{}", meta::name(&definition));
                seen += 1;
            }
        }
        assert!(seen > 10, "{seen} definitions");
    }

    /// The forms that the Gateway API's own definitions use, which people may install in place of weft's.
    #[test]
    fn the_forms_of_the_gateway_apis_rules_are_evaluated() {
        let reference = json!({ "type": "object", "properties": {
            "group": { "type": "string" }, "kind": { "type": "string" }, "name": { "type": "string" },
            "namespace": { "type": "string" }, "port": { "type": "integer" }, "sectionName": { "type": "string" },
        } });
        let properties = json!({
            "refs": { "type": "array", "items": reference }, "ref": reference, "type": { "type": "string" },
            "value": { "type": "string" }, "rewrite": { "type": "object" }, "list": { "type": "array", "items": { "type": "object",
                "properties": { "type": { "type": "string" }, "path": { "type": "object", "properties": { "type": { "type": "string" } } } } } },
            "request": { "type": "string" }, "backend": { "type": "string" },
        });
        for (rule, holds, fails) in [
            (
                "self.refs.all(a, self.refs.exists_one(b, a.name == b.name && ((!has(a.__namespace__) || a.__namespace__ == '') && \
                 (!has(b.__namespace__) || b.__namespace__ == '') || (has(a.__namespace__) && has(b.__namespace__) && \
                 a.__namespace__ == b.__namespace__)) && (has(a.port) ? (has(b.port) && a.port == b.port) : !has(b.port))))",
                json!({ "refs": [{ "name": "a", "port": 1 }, { "name": "a", "port": 2 }, { "name": "a", "namespace": "n" }] }),
                json!({ "refs": [{ "name": "a", "namespace": "" }, { "name": "a" }] }),
            ),
            (
                "(size(self.ref.group) == 0 && self.ref.kind == 'Service') ? has(self.ref.port) : true",
                json!({ "ref": { "group": "", "kind": "Service", "port": 1 } }),
                json!({ "ref": { "group": "", "kind": "Service" } }),
            ),
            (
                "self.list.filter(f, f.type == 'A').size() <= 1 && !(self.list.exists(f, f.type == 'A') && self.list.exists(f, f.type == 'B'))",
                json!({ "list": [{ "type": "A" }, { "type": "C" }] }),
                json!({ "list": [{ "type": "A" }, { "type": "B" }] }),
            ),
            (
                "self.list.exists_one(f, has(f.path) && f.path.type == 'P') ? ((size(self.refs) != 1 || !has(self.refs[0].name)) ? false : true) : true",
                json!({ "list": [{ "path": { "type": "P" } }], "refs": [{ "name": "a" }] }),
                json!({ "list": [{ "path": { "type": "P" } }], "refs": [{}] }),
            ),
            (
                "!(!has(self.rewrite) && self.type == 'Rewrite')",
                json!({ "type": "Rewrite", "rewrite": {} }),
                json!({ "type": "Rewrite" }),
            ),
            (
                "(self.type in ['Exact', 'Prefix']) ? self.value.startsWith('/') && !self.value.contains('//') && !self.value.endsWith('/..') : true",
                json!({ "type": "Exact", "value": "/a" }),
                json!({ "type": "Prefix", "value": "/a/.." }),
            ),
            (
                "self.value.matches(r\"\"\"^(?i)\\.?[a-z_][a-z_0-9]*(\\.[a-z_][a-z_0-9]*)*$\"\"\")",
                json!({ "value": "a.B_2" }),
                json!({ "value": "a..b" }),
            ),
            (
                "self.value.matches(r\"\"\"^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+$\"\"\")",
                json!({ "value": "/a%2e" }),
                json!({ "value": "/a%2" }),
            ),
            (
                "!(has(self.request) && has(self.backend) && duration(self.request) != duration('0s') && duration(self.backend) > duration(self.request))",
                json!({ "request": "1s", "backend": "500ms" }),
                json!({ "request": "1s", "backend": "1m" }),
            ),
        ] {
            let schema = json!({ "type": "object", "properties": properties, RULES: [{ "rule": rule, "message": "broken" }] });
            assert_eq!(why_not(rule, false), None, "{rule}");
            for (object, broken) in [(holds, 0), (fails, 1)] {
                let mut errors = Vec::new();
                Rules::of(&schema).check(&object, None, &mut errors);
                let said: Vec<_> = errors.iter().map(|error| error.message.as_str()).collect();
                assert_eq!(said, vec!["Invalid value: broken"; broken], "{rule}: {object}");
            }
        }
    }
}
