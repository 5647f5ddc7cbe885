//! What all writes have in common.

use serde_json::Value;

use super::auth::User;
use super::error::{ApiError, FieldError};
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

/// Whose the written fields are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tracking {
    /// The manager's, as far as they change.
    #[default]
    Updated,
    /// Noted already: the manager applied them.
    Applied,
}

/// Who writes, and how.
#[derive(Debug)]
pub struct Write<'a> {
    pub user: &'a User,
    /// The field manager.
    pub manager: String,
    /// Whether the client named it, rather than being named after itself.
    pub manager_named: bool,
    pub tracking: Tracking,
    pub dry_run: bool,
    pub validation: FieldValidation,
    /// Whether the object was made by a patch: what is wrong with it is then said of the patch.
    pub patched: bool,
    /// The subresource that stands for a part of the object: `scale`.
    pub through: &'static str,
    /// What was odd about the body as text.
    pub noticed: Vec<String>,
    /// Sent back in `Warning` headers.
    pub warnings: Vec<String>,
}

impl<'a> Write<'a> {
    pub fn by(user: &'a User) -> Self {
        Self {
            user,
            manager: "weft".to_owned(),
            manager_named: false,
            tracking: Tracking::Updated,
            dry_run: false,
            validation: FieldValidation::Warn,
            patched: false,
            through: "",
            noticed: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// What is wrong with a body's types or fields, as an answer: of a patch it is said that the patched object is
    /// invalid, of anything else that the request is bad.
    pub(super) fn undecodable(&self, object: &Value, why: ApiError) -> ApiError {
        if !self.patched {
            return why;
        }
        let reason =
            why.message.split_once(" cannot be handled as a ").and_then(|(_, rest)| rest.split_once(": "));
        let reason = reason.map_or(why.message.as_str(), |(_, reason)| reason);
        let error = FieldError::invalid("patch", object.to_string(), reason);
        ApiError::invalid("", "", &[error])
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
    let (given, name) = (meta::text(body, "/apiVersion"), meta::text(body, "/kind"));
    let (expected, version) = (kind.api_version(), given.rsplit('/').next().unwrap_or(given));
    if !name.is_empty() && name != kind.kind {
        return Err(ApiError::bad_request(format!(
            "{name} in version \"{version}\" cannot be handled as a {}: it is another kind",
            kind.kind
        )));
    }
    if !given.is_empty() && given != expected {
        return Err(ApiError::bad_request(format!(
            "{} in version \"{version}\" cannot be handled as a {}: the path says version \"{expected}\"",
            kind.kind, kind.kind
        )));
    }
    Ok(())
}

/// Turns unknown fields, and what else was odd about the body, into warnings, or into a refusal if the client asked
/// for that.
pub fn note_unknown(kind: &Kind, unknown: Vec<String>, write: &mut Write<'_>) -> Result<(), ApiError> {
    let mut texts = std::mem::take(&mut write.noticed);
    texts.extend(unknown.iter().map(|field| format!("unknown field {field:?}")));
    if texts.is_empty() || write.validation == FieldValidation::Ignore {
        return Ok(());
    }
    if write.validation == FieldValidation::Strict {
        let (kind, version) = (&kind.kind, &kind.version);
        return Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
            texts.join(", ")
        )));
    }
    write.warnings.extend(texts);
    Ok(())
}
