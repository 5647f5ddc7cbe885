//! Label selectors (`matchLabels`, `matchExpressions`).

use crate::meta::nullable;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    #[serde(deserialize_with = "nullable")]
    pub match_labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub match_expressions: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    #[serde(default, deserialize_with = "nullable")]
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl LabelSelector {
    /// An empty selector selects everything.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(k, v)| labels.get(k) == Some(v))
            && self.match_expressions.iter().all(|r| r.holds(labels.get(&r.key)))
    }
}

impl Requirement {
    fn holds(&self, value: Option<&String>) -> bool {
        match self.operator {
            Operator::In => value.is_some_and(|v| self.values.contains(v)),
            Operator::NotIn => value.is_none_or(|v| !self.values.contains(v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_and_expressions_must_all_hold() {
        let labels: BTreeMap<String, String> =
            [("app".to_string(), "web".to_string()), ("tier".to_string(), "front".to_string())].into();
        let check = |selector, expected| {
            let parsed: LabelSelector = serde_json::from_value(selector).unwrap();
            assert_eq!(parsed.selects(&labels), expected, "{parsed:?}");
        };
        check(json!({}), true);
        check(json!({"matchLabels": {"app": "web"}}), true);
        check(json!({"matchLabels": {"app": "web", "x": "y"}}), false);
        check(json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["front"]}]}), true);
        check(json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["y"]}]}), true);
        check(json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), false);
        check(json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true);
    }
}
