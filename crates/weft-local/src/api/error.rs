//! Refusals of the API: an HTTP status with Kubernetes' `reason`, message and details.

use serde_json::{Value, json};

/// A `metav1.Status` that reports failure.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    /// `details` of the Status, or `Null`.
    pub details: Value,
}

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null }
    }

    pub fn with_details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    /// 400 BadRequest.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
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
            "reason": self.reason,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
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
