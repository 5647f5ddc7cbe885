//! Reading the bodies of requests: objects and patches.

use std::cell::RefCell;

use bytes::Bytes;
use http::Request;
use http::header::CONTENT_TYPE;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::kinds::Kind;
use super::left_out;
use super::patch::Patch;
use super::protobuf;

/// How much of a body that cannot be read is shown, in bytes.
const EXCERPT: usize = 30;

/// An object, and which of its fields stood there twice.
#[derive(Debug)]
pub(super) struct Read {
    pub object: Value,
    pub noticed: Vec<String>,
}

pub(super) fn media_type(request: &Request<Bytes>) -> String {
    let value = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    value.split(';').next().unwrap_or("").trim().to_owned()
}

/// Reads a body that is an object, in JSON or YAML; `kind` is what it should be.
pub(super) fn read_object(request: &Request<Bytes>, kind: &str) -> Result<Read, ApiError> {
    let body = request.body();
    let unreadable = |why: String| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: \
             {why} ({})",
            excerpt(body)
        ))
    };
    let unsupported = || {
        let message = "the body of the request was in an unknown format - accepted media types include: application/json, \
             application/yaml";
        ApiError::new(415, "UnsupportedMediaType", message)
    };
    let plain = |object| Read { object, noticed: Vec::new() };
    match media_type(request).as_str() {
        "" | "application/json" => parse(body).map_err(|e| unreadable(parse_error(body, &e))),
        "application/yaml" => {
            let text = std::str::from_utf8(body).map_err(|e| unreadable(e.to_string()))?;
            serde_saphyr::from_str(text).map(plain).map_err(|e| unreadable(e.to_string()))
        }
        "application/vnd.kubernetes.protobuf" => protobuf::decode(body).map(plain).ok_or_else(|| {
            let mut refusal = unsupported();
            refusal.message = format!("{}; {}", refusal.message, left_out::in_protobuf(kind));
            refusal
        }),
        _ => Err(unsupported()),
    }
}

fn excerpt(body: &[u8]) -> String {
    match body.len() {
        0 => "<empty>".to_owned(),
        length if length <= EXCERPT => String::from_utf8_lossy(body).into_owned(),
        _ => format!("{} ...", String::from_utf8_lossy(&body[..EXCERPT])),
    }
}

pub(super) fn read_patch(media: &str, kind: &Kind, body: &[u8]) -> Result<Patch, ApiError> {
    let known = [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ];
    if !known.contains(&media) {
        return Err(
            ApiError::new(415, "UnsupportedMediaType", "415: Unsupported Media Type").with_details(json!({}))
        );
    }
    let read = parse(body)
        .map_err(|e| ApiError::bad_request(format!("error decoding patch: {}", parse_error(body, &e))))?;
    tracing::trace!(kind = kind.kind, media, "patch read");
    Ok(match media {
        "application/json-patch+json" => Patch::Json(read.object),
        "application/merge-patch+json" => Patch::Merge(read.object),
        _ => Patch::Strategic(read.object),
    })
}

pub(super) fn read_applied(body: &[u8]) -> Result<Value, ApiError> {
    let unreadable = |why: String| ApiError::bad_request(format!("error decoding YAML: {why}"));
    let text = std::str::from_utf8(body).map_err(|e| unreadable(e.to_string()))?;
    serde_saphyr::from_str(text).map_err(|e| unreadable(e.to_string()))
}

/// Parses JSON. Of a field that stands there twice the last one counts, and that it did is noticed.
fn parse(body: &[u8]) -> serde_json::Result<Read> {
    let noticed = RefCell::new(Vec::new());
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let object = Noticing { at: String::new(), noticed: &noticed }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Read { object, noticed: noticed.into_inner() })
}

struct Noticing<'a> {
    at: String,
    noticed: &'a RefCell<Vec<String>>,
}

impl<'de> DeserializeSeed<'de> for Noticing<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Noticing<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(json!(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(json!(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(json!(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(json!(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(json!(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = access.next_element_seed(Noticing {
            at: format!("{}[{}]", self.at, list.len()),
            noticed: self.noticed,
        })? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let at = if self.at.is_empty() { key.clone() } else { format!("{}.{key}", self.at) };
            let value = access.next_value_seed(Noticing { at: at.clone(), noticed: self.noticed })?;
            // A bound: what is odd a hundred times is odd enough.
            if map.insert(key, value).is_some() && self.noticed.borrow().len() < 100 {
                self.noticed.borrow_mut().push(format!("duplicate field {at:?}"));
            }
        }
        Ok(Value::Object(map))
    }
}

/// Why JSON could not be read, in the words of a real server.
pub(super) fn parse_error(body: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    let text = String::from_utf8_lossy(body);
    let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or("");
    let place = line.as_bytes().get(error.column().saturating_sub(1)).copied().map(char::from);
    let said = error.to_string();
    let (Some(found), where_) = (
        place,
        [
            ("expected value", "looking for beginning of value"),
            ("expected ident", "in literal"),
            ("key must be a string", "looking for beginning of object key string"),
            ("expected `:`", "after object key"),
            ("expected `,` or `}`", "after object key:value pair"),
            ("expected `,` or `]`", "after array element"),
            ("trailing comma", "looking for beginning of object key string"),
            ("trailing characters", "after top-level value"),
        ],
    ) else {
        return said;
    };
    match where_.iter().find(|(known, _)| said.starts_with(known)) {
        Some((_, place)) => format!("invalid character '{found}' {place}"),
        None => said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_stand_there_twice_are_noticed() {
        let read = parse(br#"{"data":{"a":"1","a":"2"},"list":[{"x":1,"x":[]}]}"#).unwrap();
        assert_eq!(read.object, json!({ "data": { "a": "2" }, "list": [{ "x": [] }] }));
        assert_eq!(read.noticed, ["duplicate field \"data.a\"", "duplicate field \"list[0].x\""]);
        assert!(parse(b"{} {}").is_err() && parse(b"").is_err());
    }

    #[test]
    fn what_is_no_json_is_named_by_the_character() {
        let why = |body: &[u8]| parse_error(body, &parse(body).unwrap_err());
        assert_eq!(why(b"{nope"), "invalid character 'n' looking for beginning of object key string");
        assert_eq!(why(b"{\"a\":"), "unexpected end of JSON input");
        assert_eq!(why(b"ii"), "invalid character 'i' looking for beginning of value");
        assert_eq!(excerpt(b""), "<empty>");
    }
}
