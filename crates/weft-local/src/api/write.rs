//! What all writes have in common.

use serde_json::Value;

use super::auth::User;
use super::error::ApiError;
use super::kinds::Kind;
use super::meta;

/// What to do about fields that nobody knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FieldValidation {
    #[default]
    Warn,
    Strict,
    Ignore,
}

/// Who writes, and how.
#[derive(Debug)]
pub struct Write<'a> {
    pub user: &'a User,
    pub dry_run: bool,
    pub validation: FieldValidation,
    /// Sent back in `Warning` headers.
    pub warnings: Vec<String>,
}

impl<'a> Write<'a> {
    pub fn by(user: &'a User) -> Self {
        Self { user, dry_run: false, validation: FieldValidation::Warn, warnings: Vec::new() }
    }
}

/// The body's `apiVersion` and `kind` must be the path's, if it has them.
pub fn check_envelope(kind: &Kind, body: &Value) -> Result<(), ApiError> {
    if !body.is_object() {
        let message = format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: \
             it is not an object",
            kind.kind
        );
        return Err(ApiError::bad_request(message));
    }
    let (version, name) = (meta::text(body, "/apiVersion"), meta::text(body, "/kind"));
    let expected = kind.api_version();
    if !name.is_empty() && name != kind.kind {
        return Err(ApiError::bad_request(format!(
            "{name} in version \"{version}\" cannot be handled as a {}: it is another kind",
            kind.kind
        )));
    }
    if !version.is_empty() && version != expected {
        return Err(ApiError::bad_request(format!(
            "{} in version \"{version}\" cannot be handled as a {}: the path says version \"{expected}\"",
            kind.kind, kind.kind
        )));
    }
    Ok(())
}

/// Turns unknown fields into warnings, or into a refusal if the client asked for that.
pub fn note_unknown(kind: &Kind, unknown: Vec<String>, write: &mut Write<'_>) -> Result<(), ApiError> {
    if unknown.is_empty() || write.validation == FieldValidation::Ignore {
        return Ok(());
    }
    let texts: Vec<String> = unknown.iter().map(|field| format!("unknown field {field:?}")).collect();
    if write.validation == FieldValidation::Strict {
        let (kind, version) = (&kind.kind, kind.api_version());
        return Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
            texts.join(", ")
        )));
    }
    write.warnings.extend(texts);
    Ok(())
}
