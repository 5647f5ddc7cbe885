//! What objects look like: decoding, defaults and validation, kind by kind.

mod hooks;
mod moments;
mod names;
mod pod;
mod quantity;
mod service;
mod workload;

use base64::Engine;
use serde_json::{Map, Value, json};

use super::error::{ApiError, FieldError};
use super::kinds::{Form, Kind};
use super::match_condition;
use super::meta::{self, default};
use super::{rules, schema};

pub(super) use moments::default_event;
pub(super) use names::{label_key, label_value};
pub(super) use pod::{admit as admit_pod, quality_of_service};
pub(super) use service::{keep_address, settle_families};
pub(super) use workload::admit_job;

/// An object as decoded, and the fields nobody knows.
pub(super) struct Decoded {
    pub object: Value,
    pub unknown: Vec<String>,
}

/// Checks the types of an object's fields and drops those it must not have. `apiVersion` and `kind` are set.
pub(super) fn decode(kind: &Kind, object: &Value) -> Result<Decoded, ApiError> {
    let mut unknown = Vec::new();
    let mut decoded = match &kind.form {
        Form::BuiltIn(typed) => {
            let refuse = |why: String| {
                let (version, kind) = (&kind.version, &kind.kind);
                ApiError::bad_request(format!(
                    "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"
                ))
            };
            if let Some(why) = moments::unreadable_time(kind, object) {
                return Err(refuse(why));
            }
            let mut decoded = (typed.decode)(object).map_err(|why| refuse(undecodable(&why)))?;
            note_unknown(object, &decoded, "", &mut unknown);
            tidy_decoded(kind, object, &mut decoded);
            decoded
        }
        Form::Custom(_) => {
            let mut pruned = object.clone();
            if let Some(schema) = kind.schema() {
                schema::prune(schema, &mut pruned, &mut unknown);
            }
            unknown.sort();
            pruned
        }
    };
    let fields = meta::object_mut_self(&mut decoded);
    fields.insert("apiVersion".into(), json!(kind.api_version()));
    fields.insert("kind".into(), json!(kind.kind));
    let metadata = meta::metadata_mut(&mut decoded);
    // Nothing and an empty map or list are the same in metadata, and written as nothing.
    for field in ["labels", "annotations", "finalizers", "ownerReferences", "creationTimestamp"] {
        let empty = metadata.get(field).is_some_and(|value| match value {
            Value::Null => true,
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        });
        if empty {
            metadata.remove(field);
        }
    }
    unknown.retain(|field| field != "apiVersion" && field != "kind");
    Ok(Decoded { object: decoded, unknown })
}

/// Why a field could not be read; what is no base64 is named by its first wrong byte, as a real server does.
fn undecodable(why: &str) -> String {
    let offset = why.contains("Invalid ").then(|| why.split_once("offset ")).flatten();
    let offset = offset.map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    offset.map_or_else(|| why.to_owned(), |byte| format!("illegal base64 data at input byte {byte}"))
}

/// Where the types of this library write something else than a real server does.
fn tidy_decoded(kind: &Kind, given: &Value, decoded: &mut Value) {
    match kind.plural.as_str() {
        // A selector that nobody gave is written as an empty one, which would select everything.
        "deployments" | "replicasets" if given.pointer("/spec/selector").is_none() => {
            if let Some(spec) = decoded.get_mut("spec").and_then(Value::as_object_mut) {
                spec.remove("selector");
            }
        }
        // Bounds in schemas are numbers of any kind there, but written as they were given.
        "customresourcedefinitions" => whole_numbers(decoded),
        _ => {}
    }
}

fn whole_numbers(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(whole_numbers),
        Value::Object(map) => map.values_mut().for_each(whole_numbers),
        Value::Number(number) => {
            // Beyond this a float no longer holds every whole number.
            let exact = number.as_f64().filter(|f| number.is_f64() && f.fract() == 0.0 && f.abs() < 9e15);
            if let Some(whole) = exact.and_then(|f| format!("{f:.0}").parse::<i64>().ok()) {
                *value = json!(whole);
            }
        }
        _ => {}
    }
}

/// Collects the paths in `given` that are not in `kept`.
fn note_unknown(given: &Value, kept: &Value, at: &str, unknown: &mut Vec<String>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (key, value) in given {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                match kept.get(key) {
                    Some(kept) => note_unknown(value, kept, &path, unknown),
                    // A null, or an empty list the type leaves out, is no field.
                    None if value.is_null() || value.as_array().is_some_and(Vec::is_empty) => {}
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(kept)) => {
            for (i, (given, kept)) in given.iter().zip(kept).enumerate() {
                note_unknown(given, kept, &format!("{at}[{i}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Sets what the object leaves open.
pub(super) fn apply_defaults(kind: &Kind, object: &mut Value) {
    if let Some(schema) = kind.schema() {
        schema::apply_defaults(schema, object);
        return;
    }
    match kind.plural.as_str() {
        "pods" => {
            pod::default_spec(meta::object_mut(object, "spec"));
            pod::default_status(object);
        }
        "events" if kind.group.is_empty() => default_event(meta::object_mut_self(object)),
        "poddisruptionbudgets" => {
            let status = meta::object_mut(object, "status");
            for count in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
                default(status, count, 0);
            }
        }
        "services" => service::default_service(object),
        "endpointslices" => service::default_slice(object),
        "endpoints" => service::default_endpoints(object),
        "deployments" => workload::default_deployment(object),
        "replicasets" => workload::default_replica_set(object),
        "jobs" => workload::default_job(object),
        "networkpolicies" => default_network_policy(meta::object_mut(object, "spec")),
        "namespaces" => {
            let name = meta::name(object).to_owned();
            let labels = meta::metadata_mut(object).entry("labels").or_insert(Value::Null);
            if !name.is_empty() {
                meta::object_mut_self(labels).insert("kubernetes.io/metadata.name".into(), json!(name));
            }
        }
        "secrets" => {
            if let Some(plain) = object.get("stringData").and_then(Value::as_object).cloned() {
                let data = meta::object_mut(object, "data");
                for (key, value) in plain {
                    let value = value.as_str().unwrap_or("");
                    let encoded = base64::engine::general_purpose::STANDARD.encode(value);
                    data.insert(key, json!(encoded));
                }
                meta::object_mut_self(object).remove("stringData");
            }
            default(meta::object_mut_self(object), "type", "Opaque");
        }
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => {
            let mutating = kind.plural.starts_with("mutating");
            for hook in object.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
                default_webhook(hook, mutating);
            }
        }
        "customresourcedefinitions" => default_definition(object),
        "rolebindings" | "clusterrolebindings" => {
            for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
                if subject["kind"] != "ServiceAccount"
                    && let Some(subject) = subject.as_object_mut()
                {
                    default(subject, "apiGroup", "rbac.authorization.k8s.io");
                }
            }
        }
        _ => {}
    }
}

fn default_webhook(hook: &mut Value, mutating: bool) {
    let Some(hook) = hook.as_object_mut() else { return };
    default(hook, "failurePolicy", "Fail");
    default(hook, "matchPolicy", "Equivalent");
    default(hook, "namespaceSelector", json!({}));
    default(hook, "objectSelector", json!({}));
    default(hook, "timeoutSeconds", 10);
    if mutating {
        default(hook, "reinvocationPolicy", "Never");
    }
    for rule in hook.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(rule) = rule.as_object_mut() {
            default(rule, "scope", "*");
        }
    }
    if let Some(service) = hook.get_mut("clientConfig").and_then(|config| config.get_mut("service"))
        && let Some(service) = service.as_object_mut()
    {
        default(service, "port", 443);
    }
}

/// A policy is about traffic in, and about traffic out if it says anything of that.
fn default_network_policy(spec: &mut Map<String, Value>) {
    for rules in ["ingress", "egress"] {
        for rule in spec.get_mut(rules).and_then(Value::as_array_mut).into_iter().flatten() {
            for port in rule.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(port) = port.as_object_mut() {
                    default(port, "protocol", "TCP");
                }
            }
        }
    }
    let out = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
    let types = if out { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
    if spec.get("policyTypes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        spec.insert("policyTypes".into(), types);
    }
}

fn default_definition(definition: &mut Value) {
    let spec = meta::object_mut(definition, "spec");
    default(spec, "conversion", json!({ "strategy": "None" }));
    let names = meta::object_mut_self(spec.entry("names").or_insert(Value::Null));
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or("").to_owned();
    default(names, "singular", kind.to_lowercase());
    default(names, "listKind", format!("{kind}List"));
}

/// Everything wrong with an object; `old` is what an update replaces.
pub(super) fn validate(kind: &Kind, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let label_name = matches!(kind.plural.as_str(), "namespaces" | "services");
    names::metadata(object, label_name, kind.group == "rbac.authorization.k8s.io", &mut errors);
    if let Some(schema) = kind.schema() {
        schema::validate(schema, object, &mut errors);
        check_scale(kind, object, &mut errors);
        // Rules may rely on what the schema says.
        if errors.is_empty() {
            kind.rules.check(object, old, &mut errors);
        }
        return errors;
    }
    match kind.plural.as_str() {
        "pods" => {
            let policies = ["Always", "OnFailure", "Never"];
            pod::validate_spec("spec", &object["spec"], &policies, &mut errors);
            if let Some(old) = old {
                pod::validate_update(object, old, &mut errors);
            }
        }
        "services" => service::validate_service(object, old, &mut errors),
        "endpointslices" => service::validate_slice(object, old, &mut errors),
        "endpoints" => service::validate_endpoints(object, &mut errors),
        "deployments" | "replicasets" => workload::validate_replicated(object, old, &mut errors),
        "jobs" => workload::validate_job(object, old, &mut errors),
        "configmaps" | "secrets" => validate_data(object, old, &mut errors),
        "leases" => moments::validate_lease(object, &mut errors),
        "events" => moments::validate_event(kind, object, old, &mut errors),
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => {
            hooks::validate(object, &mut errors);
            match_condition::validate(object, &mut errors);
        }
        "customresourcedefinitions" => validate_definition(object, &mut errors),
        "roles" | "clusterroles" => {
            for (i, rule) in meta::items(object, "/rules").iter().enumerate() {
                if meta::items(rule, "/verbs").is_empty() {
                    let why = "verbs must contain at least one value";
                    errors.push(FieldError::required(format!("rules[{i}].verbs"), why));
                }
            }
        }
        "rolebindings" | "clusterrolebindings" => {
            if meta::text(object, "/roleRef/name").is_empty() {
                errors.push(FieldError::required("roleRef.name", ""));
            }
            if old.is_some_and(|old| old["roleRef"] != object["roleRef"]) {
                let shown = object["roleRef"].clone();
                errors.push(FieldError::invalid("roleRef", shown, "cannot change roleRef"));
            }
        }
        _ => {}
    }
    errors
}

/// The replicas of a custom kind that can be scaled must be a number.
fn check_scale(kind: &Kind, object: &Value, errors: &mut Vec<FieldError>) {
    let Form::Custom(version) = &kind.form else { return };
    let path = meta::text(version, "/subresources/scale/specReplicasPath");
    let Some(value) = object.pointer(&path.replace('.', "/")).filter(|_| !path.is_empty()) else { return };
    let (shown, sort) = match value {
        Value::String(text) => (text.clone(), "string"),
        Value::Bool(flag) => (flag.to_string(), "bool"),
        Value::Number(number) if number.as_i64().is_none() => (number.to_string(), "float64"),
        _ => return,
    };
    let why = format!("{path} accessor error: {shown} is of the type {sort}, expected int64");
    errors.push(FieldError::invalid(path, 0, why));
}

/// Everything wrong with an object whose status was written.
pub(super) fn validate_status(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(schema) = kind.schema() {
        schema::validate(schema, object, &mut errors);
    } else if kind.plural == "services"
        && object["spec"]["type"] != "LoadBalancer"
        && !meta::items(object, "/status/loadBalancer/ingress").is_empty()
    {
        let why = "may only be used when `spec.type` is 'LoadBalancer'";
        errors.push(FieldError::forbidden("status.loadBalancer.ingress", why));
    }
    errors
}

/// What is accepted but should be known.
pub(super) fn warnings(kind: &Kind, object: &Value) -> Vec<String> {
    let warning = match kind.plural.as_str() {
        "endpointslices" if object["addressType"] == "FQDN" => {
            Some("spec.addressType: FQDN endpoints are deprecated")
        }
        "secrets" if object["type"] == "kubernetes.io/tls" => {
            let decoded =
                base64::engine::general_purpose::STANDARD.decode(meta::text(object, "/data/tls.crt"));
            let pem = decoded.is_ok_and(|raw| String::from_utf8_lossy(&raw).contains("-----BEGIN "));
            (!pem).then_some("tls: failed to find any PEM data in certificate input")
        }
        "customresourcedefinitions" => return rules::not_evaluated(object),
        _ => None,
    };
    warning.into_iter().map(str::to_owned).collect()
}

fn validate_data(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if let Some(old) = old
        && old["type"] != object["type"]
    {
        errors.push(FieldError::invalid("type", object["type"].clone(), "field is immutable"));
    }
    for map in ["data", "binaryData"] {
        for key in object.get(map).and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key) {
            if let Some(why) = names::config_key(key) {
                errors.push(FieldError::invalid(format!("{map}[{key}]"), key.as_str(), why));
            }
            if map == "data" && object["binaryData"].get(key).is_some() {
                let why = "duplicate of key present in binaryData";
                errors.push(FieldError::invalid(format!("data[{key}]"), key.as_str(), why));
            }
        }
    }
    if object["type"] == "kubernetes.io/tls" {
        for key in ["tls.crt", "tls.key"] {
            if object["data"].get(key).is_none() {
                errors.push(FieldError::required(format!("data[{key}]"), ""));
            }
        }
    }
    if let Some(old) = old
        && old["immutable"] == json!(true)
    {
        for field in ["data", "binaryData"] {
            if old[field] != object[field] {
                errors.push(FieldError::forbidden(field, "field is immutable when `immutable` is set"));
            }
        }
    }
}

fn validate_definition(definition: &Value, errors: &mut Vec<FieldError>) {
    let expected =
        format!("{}.{}", meta::text(definition, "/spec/names/plural"), meta::text(definition, "/spec/group"));
    let name = meta::name(definition);
    if name != expected {
        errors.push(FieldError::invalid("metadata.name", name, "must be spec.names.plural+\".\"+spec.group"));
    }
    for field in ["plural", "kind"] {
        if meta::text(definition, &format!("/spec/names/{field}")).is_empty() {
            errors.push(FieldError::required(format!("spec.names.{field}"), ""));
        }
    }
    let scopes = ["Cluster", "Namespaced"];
    let scope = meta::text(definition, "/spec/scope");
    if !scopes.contains(&scope) {
        errors.push(FieldError::unsupported("spec.scope", scope, &scopes));
    }
    let versions = meta::items(definition, "/spec/versions");
    for (i, version) in versions.iter().enumerate() {
        match version.pointer("/schema/openAPIV3Schema") {
            None => {
                errors.push(FieldError::required(format!("spec.versions[{i}].schema.openAPIV3Schema"), ""));
            }
            // A real server speaks of a single version as of all.
            Some(schema) if versions.len() == 1 => {
                schema::validate_schema(schema, "spec.validation.openAPIV3Schema", errors);
            }
            Some(schema) => {
                let at = format!("spec.versions[{i}].schema.openAPIV3Schema");
                schema::validate_schema(schema, &at, errors);
            }
        }
    }
    if versions.iter().filter(|version| version["storage"] == json!(true)).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", definition["spec"]["versions"].clone(), why));
    }
}
