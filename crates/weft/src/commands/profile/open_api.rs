//! Routes of an OpenAPI description, of version 2 (Swagger) or 3.

use super::literally;
use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use weft_control::install::yaml;

/// The fields of a path that are operations.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

pub(super) fn routes(text: &str) -> Result<Vec<Value>> {
    let description = yaml::parse(text).map_err(anyhow::Error::msg).context("it is neither YAML nor JSON")?;
    let Some(paths) = description["paths"].as_object() else {
        bail!("it has no `paths`: is it an OpenAPI description?");
    };
    let base = base(&description);
    // Sorted, `{` comes after every letter: `/books/new` is tried before `/books/{id}`.
    let paths: BTreeMap<&String, &Value> = paths.iter().collect();
    let mut routes = Vec::new();
    for (path, item) in paths {
        let path = format!("{}/{}", base.trim_end_matches('/'), path.trim_start_matches('/'));
        for method in METHODS {
            if let Some(operation) = item[method].as_object() {
                routes.push(route(&path, &method.to_uppercase(), operation));
            }
        }
    }
    Ok(routes)
}

/// What stands before every path.
fn base(description: &Value) -> String {
    if let Some(base) = description["basePath"].as_str() {
        return base.to_owned();
    }
    let url = description["servers"][0]["url"].as_str().unwrap_or_default();
    let path = match url.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
        None => url,
    };
    path.to_owned()
}

fn route(path: &str, method: &str, operation: &Map<String, Value>) -> Value {
    let mut route = json!({
        "name": format!("{method} {path}"),
        "condition": {"method": method, "pathRegex": regex(path)},
    });
    let classes = classes(operation);
    if !classes.is_empty() {
        route["responseClasses"] = classes.into();
    }
    if operation.get("x-linkerd-retryable").and_then(Value::as_bool) == Some(true) {
        route["isRetryable"] = true.into();
    }
    if let Some(timeout) = operation.get("x-linkerd-timeout").and_then(Value::as_str) {
        route["timeout"] = timeout.into();
    }
    route
}

/// A parameter stands for one part of a path.
fn regex(path: &str) -> String {
    let mut regex = String::new();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('{') {
        literally(before, &mut regex);
        let Some((_, after)) = after.split_once('}') else {
            literally(&rest[before.len()..], &mut regex);
            return regex;
        };
        regex.push_str("[^/]*");
        rest = after;
    }
    literally(rest, &mut regex);
    regex
}

/// The statuses that are described, in order; of these, 500 and above are failures.
fn classes(operation: &Map<String, Value>) -> Vec<Value> {
    let statuses = operation.get("responses").and_then(Value::as_object);
    let mut ranges: Vec<(u16, u16)> =
        statuses.into_iter().flat_map(Map::keys).filter_map(|status| range(status)).collect();
    ranges.sort_unstable();
    let class = |(min, max): (u16, u16)| {
        let mut class = json!({"condition": {"status": {"min": min, "max": max}}});
        if min >= 500 {
            class["isFailure"] = true.into();
        }
        class
    };
    ranges.into_iter().map(class).collect()
}

/// `404`, or `5XX`; `default` is no status.
fn range(status: &str) -> Option<(u16, u16)> {
    if let Ok(status) = status.parse() {
        return (100..600).contains(&status).then_some((status, status));
    }
    let first: u16 = status.strip_suffix("XX").or(status.strip_suffix("xx"))?.parse().ok()?;
    (1..6).contains(&first).then_some((first * 100, first * 100 + 99))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOKS: &str = r#"
openapi: 3.0.1
servers: [{url: "https://books.example/v1/"}]
paths:
  /books/{id}:
    parameters: [{name: id, in: path}]
    get:
      x-linkerd-retryable: true
      x-linkerd-timeout: 300ms
      responses: {"5XX": {}, "404": {}, "200": {}, default: {}}
    delete: {}
  /books/new.html:
    post: {responses: {"201": {}}}
"#;

    #[test]
    fn each_operation_is_a_route() {
        let routes = routes(BOOKS).unwrap();
        let names: Vec<&str> = routes.iter().filter_map(|route| route["name"].as_str()).collect();
        assert_eq!(names, ["POST /v1/books/new.html", "GET /v1/books/{id}", "DELETE /v1/books/{id}"]);
        assert_eq!(routes[0]["condition"], json!({"method": "POST", "pathRegex": r"/v1/books/new\.html"}));
        let get = &routes[1];
        assert_eq!(get["condition"]["pathRegex"], "/v1/books/[^/]*");
        assert_eq!((&get["isRetryable"], &get["timeout"]), (&json!(true), &json!("300ms")));
        assert_eq!(
            get["responseClasses"],
            json!([
                {"condition": {"status": {"min": 200, "max": 200}}},
                {"condition": {"status": {"min": 404, "max": 404}}},
                {"condition": {"status": {"min": 500, "max": 599}}, "isFailure": true},
            ])
        );
        assert_eq!(routes[2].get("responseClasses"), None);
    }

    #[test]
    fn version_two_has_a_base_path_and_json_is_read_too() {
        let text = r#"{"swagger": "2.0", "basePath": "/api", "paths": {"/{a}/x{b": {"get": {}}}}"#;
        let routes = routes(text).unwrap();
        assert_eq!(routes[0]["condition"]["pathRegex"], r"/api/[^/]*/x\{b");
        assert!(super::routes("openapi: 3.0.1").unwrap_err().to_string().contains("no `paths`"));
        assert!(super::routes("[").is_err());
    }
}
