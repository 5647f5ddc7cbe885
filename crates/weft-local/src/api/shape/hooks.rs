//! Webhook configurations: validation.

use serde_json::Value;

use super::names;
use crate::api::error::FieldError;
use crate::api::meta;

pub(super) fn validate(configuration: &Value, errors: &mut Vec<FieldError>) {
    for (i, hook) in meta::items(configuration, "/webhooks").iter().enumerate() {
        let at = format!("webhooks[{i}]");
        let name = meta::text(hook, "/name");
        if name.split('.').count() < 3 {
            let why = "should be a domain with at least three segments separated by dots";
            errors.push(FieldError::invalid(format!("{at}.name"), name, why));
        } else if let Some(why) = names::subdomain(name) {
            errors.push(FieldError::invalid(format!("{at}.name"), name, why));
        }
        for (j, rule) in meta::items(hook, "/rules").iter().enumerate() {
            validate_rule(&format!("{at}.rules[{j}]"), rule, errors);
        }
        let effects = meta::text(hook, "/sideEffects");
        if effects.is_empty() {
            let why = "must specify one of None, NoneOnDryRun";
            errors.push(FieldError::required(format!("{at}.sideEffects"), why));
        } else if !["None", "NoneOnDryRun"].contains(&effects) {
            let field = format!("{at}.sideEffects");
            errors.push(FieldError::unsupported(field, effects, &["None", "NoneOnDryRun"]));
        }
        validate_client(&format!("{at}.clientConfig"), &hook["clientConfig"], errors);
        let versions = meta::items(hook, "/admissionReviewVersions");
        let field = format!("{at}.admissionReviewVersions");
        if versions.is_empty() {
            errors.push(FieldError::required(field, "must specify one of v1, v1beta1"));
        } else if !versions.iter().any(|version| version == "v1" || version == "v1beta1") {
            let why = "must include at least one of v1, v1beta1";
            errors.push(FieldError::invalid(field, versions.to_vec(), why));
        }
    }
}

fn validate_rule(at: &str, rule: &Value, errors: &mut Vec<FieldError>) {
    let operations = meta::items(rule, "/operations");
    if operations.is_empty() {
        errors.push(FieldError::required(format!("{at}.operations"), ""));
    }
    for (k, operation) in operations.iter().filter_map(Value::as_str).enumerate() {
        let known = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
        if !known.contains(&operation) {
            errors.push(FieldError::unsupported(format!("{at}.operations[{k}]"), operation, &known));
        }
    }
    for list in ["apiGroups", "apiVersions", "resources"] {
        if meta::items(rule, &format!("/{list}")).is_empty() {
            errors.push(FieldError::required(format!("{at}.{list}"), ""));
        }
    }
}

fn validate_client(at: &str, config: &Value, errors: &mut Vec<FieldError>) {
    let url = config["url"].as_str();
    if url.is_some() == config["service"].is_object() {
        errors.push(FieldError::required(at, "exactly one of url or service is required"));
        return;
    }
    let Some(url) = url else { return };
    let scheme = url.split("://").next().filter(|_| url.contains("://")).unwrap_or("");
    if scheme != "https" {
        let why = "'https' is the only allowed URL scheme; desired format: https://host[/path]";
        errors.push(FieldError::invalid(format!("{at}.url"), scheme, why));
    }
}
