//! OpenAPI documents: what `kubectl explain` shows, and by which clients trust this server with validation.
//!
//! `kubectl` looks up in `/openapi/v3` whether PATCH takes `fieldValidation` and `dryRun`, and then leaves validation
//! to the server. The documents name paths, kinds and those parameters, and hold every kind's schema: of built-in kinds
//! the one that comes with its type, of custom kinds that of their definition.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::Api;
use super::kinds::{Form, Kind, Kinds};
use super::respond::{self, Body, Shown};

const ROOT: &str = "/openapi/v3";

/// `/openapi/v2`: a document without definitions. Clients that ask for its protobuf form get an empty message, which
/// is how an empty document is encoded.
pub(super) fn v2(headers: &HeaderMap) -> Response<Body> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
    if accept.contains("proto-openapi.spec.v2") && !accept.contains("application/json") {
        return respond::answer(
            StatusCode::OK,
            "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
            "",
        );
    }
    let document = json!({
        "swagger": "2.0",
        "info": { "title": "Kubernetes", "version": "v1.36.0" },
        "paths": {},
        "definitions": {},
    });
    Shown::JSON.answer(StatusCode::OK, &document)
}

/// The document of one group version.
#[derive(Clone)]
struct Document {
    body: Bytes,
    /// Of its content, as clients repeat it: what they asked for with it they may keep.
    hash: String,
}

/// The documents of built-in kinds, which are the same as long as this program runs.
static BUILT_IN: LazyLock<BTreeMap<String, Document>> = LazyLock::new(|| documents(&Kinds::default().all()));

/// `/openapi/v3` and the documents below it.
pub(super) fn v3(api: &Api, path: &str, request: &Request<Bytes>) -> Response<Body> {
    let custom: Vec<Arc<Kind>> = api.kinds.all().into_iter().filter(|kind| kind.is_custom()).collect();
    if path == ROOT {
        let custom = documents(&custom);
        let paths: Map<String, Value> = BUILT_IN
            .iter()
            .chain(&custom)
            .map(|(root, document)| (root.clone(), json!({ "serverRelativeURL": location(root, document) })))
            .collect();
        return Shown::JSON.answer(StatusCode::OK, &json!({ "paths": paths }));
    }
    let wanted = path.trim_start_matches(ROOT).trim_start_matches('/');
    let own: Vec<_> = custom.into_iter().filter(|kind| root(kind) == wanted).collect();
    match documents(&own).get(wanted).or_else(|| BUILT_IN.get(wanted)) {
        Some(document) => serve(wanted, document, request),
        None => {
            let mut response = Response::new(respond::full(""));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    }
}

fn location(root: &str, document: &Document) -> String {
    format!("{ROOT}/{root}?hash={}", document.hash)
}

/// Answers with a document, or with less for a client that has it.
fn serve(root: &str, document: &Document, request: &Request<Bytes>) -> Response<Body> {
    let tag = format!("\"{}\"", document.hash);
    let known = request.headers().get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let asked = super::request::Query::parse(request.uri().query().unwrap_or(""));
    let asked = asked.get("hash").filter(|hash| !hash.is_empty());
    let mut response = match asked {
        Some(hash) if hash != document.hash => {
            let mut moved = Response::new(respond::full(""));
            *moved.status_mut() = StatusCode::MOVED_PERMANENTLY;
            let to = HeaderValue::from_str(&location(root, document)).expect("names of groups are ASCII");
            moved.headers_mut().insert(header::LOCATION, to);
            return moved;
        }
        _ if known.is_some_and(|known| known.split(',').any(|one| one.trim() == tag)) => {
            let mut same = Response::new(respond::full(""));
            *same.status_mut() = StatusCode::NOT_MODIFIED;
            same
        }
        _ => respond::answer(StatusCode::OK, "application/json", document.body.clone()),
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, HeaderValue::from_str(&tag).expect("a hash in hexadecimal"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    if asked.is_some() {
        headers
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    }
    response
}

/// The documents of some kinds, by their roots.
fn documents(kinds: &[Arc<Kind>]) -> BTreeMap<String, Document> {
    let mut roots: BTreeMap<String, Vec<&Kind>> = BTreeMap::new();
    for kind in kinds {
        roots.entry(root(kind)).or_default().push(kind);
    }
    let document = |(root, kinds): (String, Vec<&Kind>)| {
        let body = Bytes::from(respond::to_json(&document(&root, &kinds)));
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &body);
        let hash = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        (root, Document { body, hash })
    };
    roots.into_iter().map(document).collect()
}

fn document(root: &str, kinds: &[&Kind]) -> Value {
    let mut generator = SchemaSettings::openapi3().into_generator();
    generator.subschema_for::<ObjectMeta>();
    let (mut paths, mut own) = (Map::new(), Map::new());
    for kind in kinds {
        let scope = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("/{root}{scope}/{}", kind.plural);
        paths.insert(
            format!("{collection}/{{name}}"),
            json!({
                "get": operation("get", kind),
                "put": operation("put", kind),
                "patch": operation("patch", kind),
                "delete": operation("delete", kind),
            }),
        );
        paths.insert(collection, json!({ "get": operation("list", kind), "post": operation("post", kind) }));
        match &kind.form {
            Form::BuiltIn(typed) => (typed.define)(&mut generator),
            Form::Custom(_) => drop(own.insert(schema_name(kind), custom_schema(kind))),
        }
    }
    let mut schemas = definitions(generator);
    schemas.extend(own);
    for kind in kinds {
        schemas[&schema_name(kind)]["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
    }
    json!({
        "openapi": "3.0.0",
        "info": { "title": "Kubernetes", "version": "v1.36.0" },
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

/// The schemas of types, with references as OpenAPI 3.0 has them: nothing may stand beside one.
fn definitions(mut generator: SchemaGenerator) -> Map<String, Value> {
    fn wrap(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.values_mut().for_each(wrap);
                if map.len() > 1
                    && let Some(reference) =
                        map.get("$ref").filter(|reference| reference.is_string()).cloned()
                {
                    map.shift_remove("$ref");
                    map.insert("allOf".into(), json!([{ "$ref": reference }]));
                }
            }
            Value::Array(list) => list.iter_mut().for_each(wrap),
            _ => {}
        }
    }
    let mut schemas = generator.take_definitions(false);
    schemas.values_mut().for_each(wrap);
    schemas
}

/// The schema of a definition, with what every object has.
fn custom_schema(kind: &Kind) -> Value {
    let mut schema = kind.schema().cloned().unwrap_or_else(|| json!({ "type": "object" }));
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.entry("apiVersion").or_insert_with(|| json!({ "type": "string" }));
        properties.entry("kind").or_insert_with(|| json!({ "type": "string" }));
        let metadata = format!("#/components/schemas/{}", ObjectMeta::schema_name());
        properties.insert("metadata".into(), json!({ "$ref": metadata }));
    }
    schema
}

/// `api/v1`, `apis/apps/v1`.
fn root(kind: &Kind) -> String {
    if kind.group.is_empty() {
        format!("api/{}", kind.version)
    } else {
        format!("apis/{}", kind.api_version())
    }
}

fn gvk(kind: &Kind) -> Value {
    json!({ "group": kind.group, "version": kind.version, "kind": kind.kind })
}

/// A custom kind `example.org/v1` Widget is `org.example.v1.Widget`.
fn schema_name(kind: &Kind) -> String {
    match &kind.form {
        Form::BuiltIn(typed) => (typed.schema_name)().into_owned(),
        Form::Custom(_) => {
            let group: Vec<&str> = kind.group.rsplit('.').collect();
            format!("{}.{}.{}", group.join("."), kind.version, kind.kind)
        }
    }
}

fn operation(action: &str, kind: &Kind) -> Value {
    let parameter = |name: &str| json!({ "name": name, "in": "query", "schema": { "type": "string" } });
    let parameters: Vec<Value> = match action {
        "post" | "put" | "patch" => {
            ["dryRun", "fieldManager", "fieldValidation", "force"].into_iter().map(parameter).collect()
        }
        "delete" => {
            ["dryRun", "gracePeriodSeconds", "propagationPolicy"].into_iter().map(parameter).collect()
        }
        _ => ["labelSelector", "fieldSelector"].into_iter().map(parameter).collect(),
    };
    let reference = json!({ "$ref": format!("#/components/schemas/{}", schema_name(kind)) });
    json!({
        "operationId": format!("{action}{}{}", kind.version, kind.kind),
        "parameters": parameters,
        "responses": { "200": { "description": "OK", "content": { "application/json": { "schema": reference } } } },
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk(kind),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(root: &str) -> Value {
        serde_json::from_slice(&BUILT_IN[root].body).unwrap()
    }

    /// Every reference leads somewhere, and every kind is found by its group, version and kind.
    #[test]
    fn documents_are_whole() {
        fn references<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(reference)) = map.get("$ref") {
                        assert_eq!(map.len(), 1, "{map:?}");
                        found.push(reference);
                    }
                    map.values().for_each(|inner| references(inner, found));
                }
                Value::Array(list) => list.iter().for_each(|inner| references(inner, found)),
                _ => {}
            }
        }
        for kind in Kinds::default().all() {
            let document = parsed(&root(&kind));
            let schemas = document["components"]["schemas"].as_object().unwrap();
            let of = |schema: &&Value| schema["x-kubernetes-group-version-kind"] == json!([gvk(&kind)]);
            assert_eq!(schemas.values().filter(of).count(), 1, "{}", kind.kind);
            let mut found = Vec::new();
            references(&document, &mut found);
            for reference in found {
                let name = reference.strip_prefix("#/components/schemas/").unwrap();
                assert!(schemas.contains_key(name), "{name}");
            }
        }
    }

    #[test]
    fn fields_have_types_and_descriptions() {
        let document = parsed("api/v1");
        let schemas = &document["components"]["schemas"];
        let port = &schemas["io.k8s.api.core.v1.ContainerPort"]["properties"]["containerPort"];
        assert_eq!((&port["type"], &port["format"]), (&json!("integer"), &json!("int32")));
        assert!(port["description"].as_str().unwrap().contains("port"), "{port}");
        let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
        assert_eq!(containers["items"]["$ref"], "#/components/schemas/io.k8s.api.core.v1.Container");
    }
}
