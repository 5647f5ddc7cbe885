//! As much of OpenAPI as clients need to trust this server with validation.
//!
//! `kubectl` looks up in `/openapi/v3` whether PATCH takes `fieldValidation` and `dryRun`, and then leaves validation
//! to the server. The documents name paths, kinds and those parameters; schemas are those of custom kinds only, so
//! `kubectl explain` knows no fields of built-in kinds.

use http::header::HeaderMap;
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::Api;
use super::kinds::Kind;
use super::respond::{self, Body, Shown};

/// `/openapi/v2`: a document without definitions. Clients that ask for its protobuf form get an empty message, which
/// is how an empty document is encoded.
pub(super) fn v2(headers: &HeaderMap) -> Response<Body> {
    let accept = headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
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

/// `/openapi/v3` and the documents below it.
pub(super) fn v3(api: &Api, path: &str) -> Response<Body> {
    let kinds = api.kinds.all();
    if path == "/openapi/v3" {
        let mut paths = Map::new();
        for kind in &kinds {
            let root = root(kind);
            paths.insert(root.clone(), json!({ "serverRelativeURL": format!("/openapi/v3/{root}") }));
        }
        return Shown::JSON.answer(StatusCode::OK, &json!({ "paths": paths }));
    }
    let wanted = path.trim_start_matches("/openapi/v3/");
    let own: Vec<_> = kinds.iter().filter(|kind| root(kind) == wanted).collect();
    if own.is_empty() {
        let mut response = Response::new(respond::full(""));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    }
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for kind in own {
        let scope = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("/{wanted}{scope}/{}", kind.plural);
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
        let mut schema = kind.schema().cloned().unwrap_or_else(|| json!({ "type": "object" }));
        schema["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
        schemas.insert(schema_name(kind), schema);
    }
    let document = json!({
        "openapi": "3.0.0",
        "info": { "title": "Kubernetes", "version": "v1.36.0" },
        "paths": paths,
        "components": { "schemas": schemas },
    });
    Shown::JSON.answer(StatusCode::OK, &document)
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

/// `example.org/v1` Widget is `org.example.v1.Widget`.
fn schema_name(kind: &Kind) -> String {
    let group: Vec<&str> =
        if kind.group.is_empty() { vec!["core"] } else { kind.group.rsplit('.').collect() };
    format!("{}.{}.{}", group.join("."), kind.version, kind.kind)
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
