//! A node's CNI configuration with and without our plugin: text to text.

use serde_json::{Map, Value, json};

/// The name that configurations use, so that those written for Linkerd keep working.
pub(crate) const TYPE: &str = "linkerd-cni";
/// What a single plugin becomes when its own version says nothing: lists exist from here on.
const LIST_VERSION: &str = "0.3.1";

/// Why a configuration is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotACniConfiguration(pub(crate) String);

/// A list (`.conflist`) with our plugin at its end, as `plugin` says; `None` if it is so already.
pub(crate) fn into_list(text: &str, plugin: &Value) -> Result<Option<String>, NotACniConfiguration> {
    let mut list = object(text)?;
    let Some(plugins) = list.get_mut("plugins").and_then(Value::as_array_mut).filter(|p| !p.is_empty())
    else {
        return Err(NotACniConfiguration("it has no plugins".into()));
    };
    if plugins.last() == Some(plugin) && plugins.iter().filter(|p| is_ours(p)).count() == 1 {
        return Ok(None);
    }
    plugins.retain(|p| !is_ours(p));
    if plugins.is_empty() {
        return Err(NotACniConfiguration("it has no plugin that makes an interface".into()));
    }
    plugins.push(plugin.clone());
    Ok(Some(pretty(&Value::Object(list))))
}

/// A single plugin's configuration (`.conf`) as a list with ours after it.
pub(crate) fn to_list(text: &str, plugin: &Value) -> Result<String, NotACniConfiguration> {
    let mut single = object(text)?;
    if !single.get("type").is_some_and(Value::is_string) {
        return Err(NotACniConfiguration("it names no plugin (`type`)".into()));
    }
    let name = single.shift_remove("name").unwrap_or_else(|| json!("k8s-pod-network"));
    let version = single.shift_remove("cniVersion").unwrap_or_else(|| json!(LIST_VERSION));
    // 0.1.0 and 0.2.0 know no lists.
    let old = version.as_str().is_none_or(|v| v.starts_with("0.1") || v.starts_with("0.2"));
    let version = if old { json!(LIST_VERSION) } else { version };
    Ok(pretty(&json!({"cniVersion": version, "name": name, "plugins": [single, plugin]})))
}

/// A list without our plugin; `None` if it is not in it.
pub(crate) fn without(text: &str) -> Option<String> {
    let mut list = object(text).ok()?;
    let plugins = list.get_mut("plugins")?.as_array_mut()?;
    let before = plugins.len();
    plugins.retain(|p| !is_ours(p));
    (plugins.len() < before).then(|| pretty(&Value::Object(list)))
}

fn is_ours(plugin: &Value) -> bool {
    plugin["type"] == TYPE
}

fn object(text: &str) -> Result<Map<String, Value>, NotACniConfiguration> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(NotACniConfiguration("it is no JSON object".into())),
        Err(e) => Err(NotACniConfiguration(e.to_string())),
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin() -> Value {
        json!({"type": TYPE, "linkerd": {"proxy-uid": 2102}})
    }

    fn types(text: &str) -> Vec<String> {
        let list: Value = serde_json::from_str(text).unwrap();
        list["plugins"].as_array().unwrap().iter().map(|p| p["type"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn our_plugin_stands_last_and_once() {
        let text = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "linkerd-cni"}, {"type": "bridge"}, {"type": "portmap"}]}"#;
        let chained = into_list(text, &plugin()).unwrap().unwrap();
        assert_eq!(types(&chained), ["bridge", "portmap", TYPE]);
        // A second time there is nothing to do; with other settings there is.
        assert_eq!(into_list(&chained, &plugin()), Ok(None));
        let other = json!({"type": TYPE, "linkerd": {"proxy-uid": 7}});
        assert!(into_list(&chained, &other).unwrap().is_some_and(|t| types(&t).len() == 3));
        let reverted = without(&chained).unwrap();
        assert_eq!(types(&reverted), ["bridge", "portmap"]);
        assert_eq!(without(&reverted), None);
    }

    #[test]
    fn a_single_plugin_becomes_a_list() {
        let list =
            to_list(r#"{"cniVersion": "0.2.0", "name": "pods", "type": "bridge", "mtu": 1400}"#, &plugin());
        let list: Value = serde_json::from_str(&list.unwrap()).unwrap();
        assert_eq!((&list["cniVersion"], &list["name"]), (&json!("0.3.1"), &json!("pods")));
        assert_eq!(list["plugins"][0], json!({"type": "bridge", "mtu": 1400}));
        assert_eq!(list["plugins"][1], plugin());
        let newer = to_list(r#"{"cniVersion": "1.0.0", "type": "bridge"}"#, &plugin()).unwrap();
        assert!(newer.contains("\"1.0.0\""), "{newer}");
    }

    #[test]
    fn anything_else_is_left_alone() {
        for text in
            ["", "[]", "{}", r#"{"plugins": []}"#, r#"{"plugins": [{"type": "linkerd-cni"}], "x": 1}"#]
        {
            let chained = into_list(text, &json!({"type": TYPE, "new": true}));
            assert!(chained.is_err(), "{text}");
        }
        assert!(to_list(r#"{"name": "pods"}"#, &plugin()).is_err());
        assert_eq!(without("nonsense"), None);
    }
}
