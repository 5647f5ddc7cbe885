//! Refusals of the API: an HTTP status with Kubernetes' `reason`, message and details.

use serde_json::{Value, json};

/// A `metav1.Status` that reports failure.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    /// `details` of the Status, or `Null`.
    pub details: Box<Value>,
    /// `metadata.continue`: how to go on with a list whose state is forgotten.
    pub next: Option<String>,
    /// The `Retry-After` header.
    pub retry_after: Option<u32>,
}

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Box::new(Value::Null),
            next: None,
            retry_after: None,
        }
    }

    pub fn with_details(mut self, details: Value) -> Self {
        *self.details = details;
        self
    }

    /// 400 BadRequest.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 404 for an object; `resource` is the group resource, like `deployments.apps`.
    pub fn not_found(resource: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{resource} \"{name}\" not found")).about(resource, name)
    }

    /// 404 for a path that names no resource.
    pub fn no_such_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").with_details(json!({}))
    }

    /// 405.
    pub fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .with_details(json!({}))
    }

    /// 409 for a create.
    pub fn already_exists(resource: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{resource} \"{name}\" already exists")).about(resource, name)
    }

    /// 409 for a lost race, or a failed precondition.
    pub fn conflict(resource: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// 409 for an update of something that changed in between.
    pub fn modified(resource: &str, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// 403 for an object.
    pub fn forbidden(resource: &str, name: &str, why: &str) -> Self {
        let what = if name.is_empty() { resource.to_owned() } else { format!("{resource} \"{name}\"") };
        Self::new(403, "Forbidden", format!("{what} is forbidden: {why}")).about(resource, name)
    }

    /// 401.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 410: the asked-for history is no longer kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 422 with one cause per field. `kind` may carry its group: `Scale.autoscaling`.
    pub fn invalid(kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let mut texts: Vec<String> = Vec::new();
        for error in errors {
            let text = format!("{}: {}", error.field, error.message);
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let all = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let causes: Vec<Value> = errors
            .iter()
            .map(|e| json!({ "reason": e.reason, "message": e.message, "field": e.field }))
            .collect();
        let (kind_only, group) = kind.split_once('.').unwrap_or((kind, ""));
        let mut details = json!({});
        if !name.is_empty() {
            details["name"] = json!(name);
        }
        if !group.is_empty() {
            details["group"] = json!(group);
        }
        if !kind_only.is_empty() {
            details["kind"] = json!(kind_only);
        }
        details["causes"] = json!(causes);
        Self::new(422, "Invalid", format!("{kind} \"{name}\" is invalid: {all}")).with_details(details)
    }

    /// Names the object in the details; `resource` may carry its group.
    fn about(self, resource: &str, name: &str) -> Self {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let mut details = json!({});
        if !name.is_empty() {
            details["name"] = json!(name);
        }
        if !group.is_empty() {
            details["group"] = json!(group);
        }
        details["kind"] = json!(plural);
        self.with_details(details)
    }

    /// 500 InternalError, with the prefix and the cause a real server writes.
    pub fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let details = json!({ "causes": [{ "message": message }] });
        Self::new(500, "InternalError", format!("Internal error occurred: {message}")).with_details(details)
    }

    /// The body of the answer.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if let Some(next) = &self.next {
            status["metadata"]["continue"] = json!(next);
        }
        if !self.details.is_null() {
            status["details"] = Value::clone(&self.details);
        }
        status["code"] = json!(self.code);
        status
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

/// One wrong field of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    pub reason: &'static str,
    pub field: String,
    pub message: String,
}

impl FieldError {
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let message =
            if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Self { reason: "FieldValueRequired", field: field.into(), message }
    }

    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl AsRef<str>) -> Self {
        let message = format!("Invalid value: {}: {}", value.into(), detail.as_ref());
        Self { reason: "FieldValueInvalid", field: field.into(), message }
    }

    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        let message = format!("Duplicate value: {}", value.into());
        Self { reason: "FieldValueDuplicate", field: field.into(), message }
    }

    pub fn unsupported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> Self {
        let quoted: Vec<String> = supported.iter().map(|s| format!("\"{s}\"")).collect();
        let message = format!("Unsupported value: {}: supported values: {}", value.into(), quoted.join(", "));
        Self { reason: "FieldValueNotSupported", field: field.into(), message }
    }

    pub fn forbidden(field: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self {
            reason: "FieldValueForbidden",
            field: field.into(),
            message: format!("Forbidden: {}", detail.as_ref()),
        }
    }

    pub fn not_found(field: impl Into<String>, value: impl Into<Value>) -> Self {
        let message = format!("Not found: {}", value.into());
        Self { reason: "FieldValueNotFound", field: field.into(), message }
    }
}
