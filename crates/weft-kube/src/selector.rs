//! Label selectors (`matchLabels`, `matchExpressions`) as the API writes them.

use crate::meta::nullable;
use serde::Deserialize;
use std::{collections::BTreeMap, ops::Deref};
use weft_model::selector::{self, Selector};

/// See [`Selector`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Written")]
pub struct LabelSelector(Selector);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    #[serde(deserialize_with = "nullable")]
    match_labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    match_expressions: Vec<Requirement>,
}

#[derive(Deserialize)]
struct Requirement {
    key: String,
    operator: Operator,
    #[serde(default, deserialize_with = "nullable")]
    values: Vec<String>,
}

#[derive(Deserialize)]
#[serde(remote = "selector::Operator")]
enum OperatorDef {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Operator(#[serde(with = "OperatorDef")] selector::Operator);

impl From<Written> for LabelSelector {
    fn from(written: Written) -> Self {
        let labels = written.match_labels.into_iter().map(|(key, value)| selector::Requirement {
            key,
            operator: selector::Operator::In,
            values: vec![value],
        });
        let expressions = written.match_expressions.into_iter().map(|r| selector::Requirement {
            key: r.key,
            operator: r.operator.0,
            values: r.values,
        });
        LabelSelector(Selector { requirements: labels.chain(expressions).collect() })
    }
}

impl From<LabelSelector> for Selector {
    fn from(selector: LabelSelector) -> Self {
        selector.0
    }
}

impl Deref for LabelSelector {
    type Target = Selector;
    fn deref(&self) -> &Selector {
        &self.0
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
        check(json!({"matchLabels": null, "matchExpressions": null}), true);
        check(json!({"matchLabels": {"app": "web"}}), true);
        check(json!({"matchLabels": {"app": "web", "x": "y"}}), false);
        check(json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["front"]}]}), true);
        check(json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["y"]}]}), true);
        check(json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), false);
        check(json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true);
    }
}
