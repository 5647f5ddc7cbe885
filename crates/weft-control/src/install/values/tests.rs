use super::{
    set::{Typing, assign},
    table::TABLE,
    *,
};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeSet;

fn set(texts: &[&str]) -> Result<Value, String> {
    let mut tree = json!({});
    for text in texts {
        assign(&mut tree, text, Typing::Guess)?;
    }
    Ok(tree)
}

#[test]
fn the_table_is_whole() {
    let mut paths = BTreeSet::new();
    for row in TABLE {
        assert!(paths.insert(row.path), "{} stands twice", row.path);
        for default in [Some(row.default), row.ha].into_iter().flatten() {
            let value: Value = serde_json::from_str(default).unwrap_or_else(|e| panic!("{}: {e}", row.path));
            assert!(value.is_null() || fits(row.form, &value), "{}: {value}", row.path);
        }
        let inside = TABLE.iter().find(|other| other.path.starts_with(&format!("{}.", row.path)));
        assert!(inside.is_none(), "{} holds {}", row.path, inside.map_or("", |r| r.path));
    }
    assert!(Values::with(&json!({}), true).is_ok());
    assert_eq!(Values::defaults(true).number("controllerReplicas"), 3);
}

#[test]
fn helm_syntax() {
    assert_eq!(set(&["a.b=c,d=1"]).unwrap(), json!({"a": {"b": "c"}, "d": 1}));
    assert_eq!(set(&["a={x,1,true}"]).unwrap(), json!({"a": ["x", 1, true]}));
    assert_eq!(set(&["a={}"]).unwrap(), json!({"a": []}));
    assert_eq!(set(&["a[1].b=x,a[0].b=y"]).unwrap(), json!({"a": [{"b": "y"}, {"b": "x"}]}));
    assert_eq!(set(&[r"a=1\,2"]).unwrap(), json!({"a": "1,2"}));
    assert_eq!(set(&[r"a.b\.c/d=e"]).unwrap(), json!({"a": {"b.c/d": "e"}}));
    assert_eq!(set(&["a=007,b=null,c=-3,d="]).unwrap(), json!({"a": "007", "b": null, "c": -3, "d": ""}));
    assert_eq!(set(&["a.b=1", "a.c=2"]).unwrap(), json!({"a": {"b": 1, "c": 2}}));
    let mut text = json!({});
    assign(&mut text, "a=1", Typing::Text).unwrap();
    assert_eq!(text, json!({"a": "1"}));
    for (wrong, problem) in [
        ("a", "no ="),
        ("", "empty"),
        ("=1", "empty"),
        ("a={x", "not closed"),
        ("a[x]=1", "no index"),
        ("a[99999999]=1", "beyond"),
        ("a[0=1", "no index"),
        ("a={x}y", "follows"),
    ] {
        let said = set(&[wrong]).unwrap_err();
        assert!(said.contains(problem), "{wrong}: {said}");
    }
}

proptest! {
    #[test]
    fn whatever_is_written_is_read_or_refused(text in "[a-z.=,{}\\[\\]0-9\\\\ ]{0,24}") {
        let mut tree = json!({});
        let _ = assign(&mut tree, &text, Typing::Guess);
    }

    #[test]
    fn overrides_round_trip(replicas in 0_i64..9, level in "[a-z=,]{0,12}", skip in proptest::bool::ANY) {
        let overrides = json!({"controllerReplicas": replicas, "cniEnabled": skip, "proxy": {"logLevel": level},
            "nodeSelector": {"a.b/c": "d"}});
        let values = Values::with(&overrides, false).unwrap();
        prop_assert_eq!(Values::with(&values.overrides(), false).unwrap(), values);
    }
}

#[test]
fn problems_name_the_value() {
    let problems = |overrides: Value| -> Vec<String> {
        Values::with(&overrides, false).unwrap_err().iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        problems(json!({"proxy": {"loglevel": "x"}, "controllerReplicas": "many", "xyz": {"a": 1}})),
        [
            "proxy.loglevel: no such value; the nearest is proxy.logLevel",
            "controllerReplicas: many is not a whole number",
            "xyz: no such value",
        ]
    );
    assert_eq!(problems(json!({"proxy": 5})), ["proxy: 5 is not a map"]);
    assert_eq!(
        problems(json!({"proxy": {"inboundConnectTimeout": "1 second"}, "clusterNetworks": "10/8"})).len(),
        2
    );
    let fault = Fault::from(Problem::Unknown { path: "a".to_owned(), nearest: Some("b") });
    assert_eq!(fault.code(), Code::BadValue);
}

#[test]
fn what_linkerd_knows_and_weft_has_not_is_accepted_and_told() {
    let values = Values::with(
        &json!({"proxyInit": {"iptablesMode": "legacy"}, "policyController": {"resources": {"cpu": {"limit": 1}}}}),
        false,
    )
    .unwrap();
    let told: Vec<_> = values.without_effect().into_iter().map(|(path, _)| path).collect();
    assert_eq!(told, ["policyController.resources", "proxyInit.iptablesMode"]);
}

#[test]
fn values_of_somebody_else_are_taken_as_far_as_they_are_known() {
    let (values, problems) =
        Values::with_known(&json!({"clusterDomain": "c.local", "new": {"x": 1}, "controllerReplicas": "x"}));
    assert_eq!(values.text("clusterDomain"), "c.local");
    assert_eq!(values.number("controllerReplicas"), 1);
    assert_eq!(problems.len(), 2);
}

#[test]
fn null_means_the_default_again() {
    let values = Values::with(&json!({"proxy": {"logLevel": null}, "nodeSelector": null}), false).unwrap();
    assert_eq!(values, Values::defaults(false));
}

#[test]
fn durations_as_go_writes_them() {
    for (text, expected) in [
        ("24h0m0s", Some(86_400_000)),
        ("1m30s", Some(90_000)),
        ("500ms", Some(500)),
        ("5", None),
        ("", None),
        ("s", None),
        ("99999999999999999999h", None),
    ] {
        assert_eq!(duration(text).map(|d| d.as_millis()), expected, "{text}");
    }
}
