//! How objects are shown: whole, as metadata only, or as table rows; as JSON or YAML.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;

use super::error::ApiError;
use super::kinds::Kind;
use super::read::Page;
use super::{meta, table};

/// The body of every answer; watches and logs stream.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

pub(super) fn full(data: impl Into<Bytes>) -> Body {
    Full::new(data.into()).map_err(|never| match never {}).boxed_unsync()
}

/// What the client wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Object,
    Metadata,
    /// With the group version that the client named, and what each row carries.
    Table {
        beta: bool,
        include: Include,
    },
}

/// What a table's rows carry beside their cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Include {
    Nothing,
    Metadata,
    Object,
}

/// The negotiated representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    pub form: Form,
    pub yaml: bool,
}

const OFFERED: &str = "application/json, application/yaml";

/// What a representation is to be of: metadata alone has a form of its own for lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked<'a> {
    /// One object of the kind.
    One(&'a str),
    /// A list of the kind.
    List(&'a str),
    Watch,
    /// Whatever the answer will be.
    Anything,
}

impl Shown {
    pub(super) const JSON: Self = Self { form: Form::Object, yaml: false };

    /// Picks the first representation of the `Accept` header that can be served.
    pub(super) fn negotiate(
        headers: &HeaderMap,
        include: Option<&str>,
        asked: Asked<'_>,
    ) -> Result<Self, ApiError> {
        let streaming = asked == Asked::Watch;
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
        if accept.is_empty() {
            return Ok(Self::JSON);
        }
        let mut understood = false;
        for offer in accept.split(',') {
            let mut parts = offer.split(';').map(str::trim);
            let media = parts.next().unwrap_or("");
            let mut parameters = parts.filter_map(|part| part.split_once('='));
            let parameter = |name: &str| {
                offer
                    .split(';')
                    .filter_map(|part| part.trim().split_once('='))
                    .find(|(key, _)| *key == name)
                    .map(|(_, v)| v)
            };
            let yaml = match media {
                "application/json" | "application/*" | "*/*" => false,
                "application/yaml" if !streaming => true,
                _ => continue,
            };
            understood = true;
            let known = ["v1", "v1beta1"].contains(&parameter("v").unwrap_or("v1"));
            let form = match parameter("as").filter(|_| known) {
                None if parameters.any(|(key, _)| key == "g") => continue,
                None => Form::Object,
                Some(form @ ("PartialObjectMetadata" | "PartialObjectMetadataList")) => {
                    let list = form == "PartialObjectMetadataList";
                    match asked {
                        Asked::List(kind) if !list => {
                            return Err(unfit(&format!(
                                "{form}, but the requested object is a list ({kind})"
                            )));
                        }
                        Asked::One(kind) if list => {
                            return Err(unfit(&format!(
                                "{form}, but the requested object is not a list ({kind})"
                            )));
                        }
                        _ => Form::Metadata,
                    }
                }
                Some("Table") => {
                    let include = match include {
                        Some("None") => Include::Nothing,
                        Some("Object") => Include::Object,
                        None | Some("" | "Metadata") => Include::Metadata,
                        Some(other) => {
                            return Err(ApiError::bad_request(format!(
                                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must \
                                 be 'Metadata', 'Object', 'None', or empty"
                            )));
                        }
                    };
                    Form::Table { beta: parameter("v") == Some("v1beta1"), include }
                }
                Some(_) => continue,
            };
            return Ok(Self { form, yaml });
        }
        if understood {
            let message = format!("only the following media types are accepted: {OFFERED}");
            return Err(ApiError::new(406, "NotAcceptable", message));
        }
        let streams = if streaming { ", application/json;stream=watch" } else { "" };
        let message = format!("406: Not Acceptable\n\nAvailable representations: {OFFERED}{streams}");
        Err(ApiError::new(406, "NotAcceptable", message).with_details(json!({})))
    }

    /// One object as asked for.
    pub(super) fn object(self, kind: &Kind, object: &Arc<Value>) -> Value {
        match self.form {
            Form::Object => Value::clone(object),
            Form::Metadata => partial(object),
            Form::Table { beta, include } => table::of(
                kind,
                std::slice::from_ref(object),
                meta::resource_version(object),
                beta,
                include,
                true,
            ),
        }
    }

    /// A `Scale` as asked for.
    pub(super) fn scale(self, scale: Value) -> Value {
        match self.form {
            Form::Object => scale,
            Form::Metadata => partial(&scale),
            Form::Table { beta, include } => table::of_scale(scale, beta, include),
        }
    }

    /// A list as asked for.
    pub(super) fn list(self, kind: &Kind, page: &Page) -> Value {
        let revision = page.revision.to_string();
        let mut list = match self.form {
            Form::Table { beta, include } => table::of(kind, &page.items, &revision, beta, include, true),
            Form::Object => json!({
                "kind": kind.list_kind,
                "apiVersion": kind.api_version(),
                "metadata": { "resourceVersion": revision },
                "items": page.items.iter().map(|object| bare(kind, object)).collect::<Vec<_>>(),
            }),
            Form::Metadata => json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": { "resourceVersion": revision },
                "items": page.items.iter().map(|object| partial(object)).collect::<Vec<_>>(),
            }),
        };
        if let Some(next) = &page.next {
            list["metadata"]["continue"] = json!(next);
        }
        if let Some(remaining) = page.remaining {
            list["metadata"]["remainingItemCount"] = json!(remaining);
        }
        list
    }

    /// An answer with a body in this representation.
    pub(super) fn answer(self, status: StatusCode, body: &Value) -> Response<Body> {
        if self.yaml
            && let Ok(text) = serde_saphyr::to_string(body)
        {
            return answer(status, "application/yaml", text);
        }
        answer(status, "application/json", to_json(body))
    }
}

fn unfit(what: &str) -> ApiError {
    ApiError::new(406, "NotAcceptable", format!("you requested {what}"))
}

/// Items of built-in lists do not repeat their kind; those of custom lists do.
fn bare(kind: &Kind, object: &Arc<Value>) -> Value {
    let mut object = Value::clone(object);
    if !kind.is_custom() {
        let fields = meta::object_mut_self(&mut object);
        fields.shift_remove("kind");
        fields.shift_remove("apiVersion");
    }
    object
}

pub(super) fn partial(object: &Value) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"] })
}

pub(super) fn to_json(body: &Value) -> String {
    let mut text = body.to_string();
    text.push('\n');
    text
}

pub(super) fn answer(status: StatusCode, media: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

pub(super) fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    answer(status, "text/plain; charset=utf-8", text)
}

pub(super) fn failure(error: &ApiError) -> Response<Body> {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = answer(status, "application/json", to_json(&error.to_status()));
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Adds a `Warning` header before those that are there.
pub(super) fn warn_first(response: &mut Response<Body>, warning: &str) {
    let others: Vec<HeaderValue> =
        response.headers().get_all(http::header::WARNING).iter().cloned().collect();
    response.headers_mut().remove(http::header::WARNING);
    warn(response, &[warning.to_owned()]);
    for other in others {
        response.headers_mut().append(http::header::WARNING, other);
    }
}

/// Adds `Warning` headers.
pub(super) fn warn(response: &mut Response<Body>, warnings: &[String]) {
    // A bound on what a webhook may make us send.
    for warning in warnings.iter().take(50) {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(http::header::WARNING, value);
        }
    }
}
