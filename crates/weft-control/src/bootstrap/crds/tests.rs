use super::*;
use std::collections::BTreeSet;

/// The rules by which a real API server takes a schema as structural (apiextensions `structural-schema`): every node has a
/// type, defaults fit, and alternatives only say what is required.
fn structural(schema: &Value, at: &str) {
    let object = schema.as_object().unwrap();
    let free = schema["x-kubernetes-int-or-string"] == true;
    assert!(free || object["type"].is_string(), "{at} has no type");
    assert!(at.is_empty() || at == ".metadata" || object["description"].is_string(), "{at} says nothing");
    if let (Some(default), Some(allowed)) = (object.get("default"), object.get("enum")) {
        assert!(allowed.as_array().unwrap().contains(default), "{at}: default");
    }
    for name in object.get("required").and_then(Value::as_array).into_iter().flatten() {
        assert!(
            schema["properties"].get(name.as_str().unwrap()).is_some(),
            "{at}: {name} is required and unknown"
        );
        assert!(schema["properties"][name.as_str().unwrap()].get("default").is_none(), "{at}: {name}");
    }
    for (name, field) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
        structural(field, &format!("{at}.{name}"));
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = object.get(key) {
            structural(inner, &format!("{at}[]"));
        }
    }
    for bound in ["minimum", "maximum"] {
        let Some(value) = object.get(bound).and_then(Value::as_f64) else { continue };
        // Strictly below 2^63 or 2^31, as a floating-point number too.
        let limit = if schema["format"] == "int32" { 31 } else { 63 };
        assert!(schema["type"] != "integer" || value.abs() < f64::from(2).powi(limit), "{at}: {bound}");
    }
    for key in ["oneOf", "anyOf"] {
        for one in object.get(key).and_then(Value::as_array).into_iter().flatten() {
            assert_eq!(one.as_object().unwrap().keys().collect::<Vec<_>>(), ["required"], "{at}");
        }
    }
}

#[test]
fn definitions_are_what_an_api_server_takes() {
    let mut names = BTreeSet::new();
    for object in all() {
        let spec = &object["spec"];
        let name = object["metadata"]["name"].as_str().unwrap();
        assert_eq!(
            name,
            format!("{}.{}", spec["names"]["plural"].as_str().unwrap(), spec["group"].as_str().unwrap())
        );
        assert!(names.insert(name.to_owned()), "{name} twice");
        let versions = spec["versions"].as_array().unwrap();
        assert_eq!(versions.iter().filter(|v| v["storage"] == true).count(), 1, "{name}");
        for version in versions {
            structural(&version["schema"]["openAPIV3Schema"], "");
        }
        assert_ne!(spec["names"]["shortNames"], json!([]), "{name}");
        let approved = object["metadata"]["annotations"].get("api-approved.kubernetes.io").is_some();
        assert_eq!(approved, spec["group"] == GATEWAY, "{name}");
    }
    assert_eq!(names.len(), 16);
}

#[test]
fn what_users_type_is_there() {
    let all: Vec<Value> = all().collect();
    let of = |name: &str| all.iter().find(|o| o["metadata"]["name"] == name).unwrap();
    let server = of("servers.policy.linkerd.io");
    assert_eq!(server["spec"]["names"]["shortNames"][0], "srv");
    let version = &server["spec"]["versions"][0];
    assert_eq!(version["name"], "v1beta3");
    let fields = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    assert_eq!(fields["accessPolicy"]["default"], "deny");
    assert_eq!(version["additionalPrinterColumns"][2]["name"], "Access Policy");
    let route = of("httproutes.gateway.networking.k8s.io");
    let rule = &route["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        ["rules"];
    // Another controller's filters are not ours to refuse.
    let filter = &rule["items"]["properties"]["filters"]["items"];
    assert!(filter["properties"]["type"].get("enum").is_none());
    assert_eq!(filter["x-kubernetes-preserve-unknown-fields"], true);
}
