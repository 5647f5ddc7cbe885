//! Admission webhooks: which are asked, how, and what their answers do.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::error::ApiError;
use super::kinds::Kind;
use super::selector::LabelSelector;
use super::write::Write;
use super::{Api, match_condition, meta, shape, tls};

/// The largest answer of a webhook that is read.
const ANSWER_LIMIT: usize = 3 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }

    fn options(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Delete => "DeleteOptions",
        }
    }
}

/// One request as webhooks see it.
struct Review<'a> {
    kind: &'a Kind,
    operation: Operation,
    subresource: &'a str,
    object: Option<&'a Value>,
    old: Option<&'a Value>,
}

/// Asks the mutating webhooks, one after the other, and returns the object as they left it.
pub(super) async fn mutate(
    api: &Api,
    kind: &Kind,
    operation: Operation,
    subresource: &str,
    mut object: Value,
    old: Option<&Value>,
    write: &mut Write<'_>,
) -> Result<Value, ApiError> {
    let hooks = webhooks(api, "mutatingwebhookconfigurations.admissionregistration.k8s.io", kind);
    // How often the object had been changed when each had answered: who asks for it is asked once more after that.
    let mut answered: Vec<Option<usize>> = vec![None; hooks.len()];
    let mut changes = 0;
    for (again, i) in (0..hooks.len()).map(|i| (false, i)).chain((0..hooks.len()).map(|i| (true, i))) {
        let hook = &hooks[i];
        let missed = answered[i].is_some_and(|seen| seen < changes);
        if again && !(missed && hook["reinvocationPolicy"] == "IfNeeded") {
            continue;
        }
        let present = (operation != Operation::Delete).then_some(&object);
        let review = Review { kind, operation, subresource, object: present, old };
        if !concerns(api, hook, &review, write) {
            continue;
        }
        let answer = ask(api, hook, &review, write).await?;
        answered[i] = Some(changes);
        let Some(answer) = answer else { continue };
        let Some(patch) = answer["patch"].as_str().filter(|_| operation != Operation::Delete) else {
            continue;
        };
        let name = meta::text(hook, "/name");
        if answer["patchType"] != "JSONPatch" {
            let why = "webhook returned response.patch but not response.patchType";
            return Err(failed(name, &format!("received invalid webhook response: {why}")));
        }
        let patched = base64::engine::general_purpose::STANDARD
            .decode(patch)
            .map_err(|e| e.to_string())
            .and_then(|raw| serde_json::from_slice::<json_patch::Patch>(&raw).map_err(|e| e.to_string()))
            .and_then(|patch| {
                let mut patched = object.clone();
                json_patch::patch(&mut patched, &patch).map_err(|e| unfit(&patch, &e))?;
                Ok(patched)
            });
        let mut patched = patched.map_err(ApiError::internal)?;
        // The next one sees the defaults of what this one added.
        shape::apply_defaults(kind, &mut patched);
        changes += usize::from(patched != object);
        answered[i] = Some(changes);
        object = patched;
    }
    Ok(object)
}

/// Why a patch does not fit, in the words of a real server where they are known.
fn unfit(patch: &json_patch::Patch, error: &json_patch::PatchError) -> String {
    use json_patch::PatchOperation::{Add, Copy, Move, Remove, Replace, Test};
    let name = match patch.0.get(error.operation) {
        Some(Add(_)) => "add",
        Some(Remove(_)) => "remove",
        Some(Replace(_)) => "replace",
        Some(Move(_)) => "move",
        Some(Copy(_)) => "copy",
        Some(Test(_)) => return format!("testing value {} failed: test failed", error.path),
        None => return error.to_string(),
    };
    let path = error.path.to_string();
    format!("{name} operation does not apply: doc is missing path: {path:?}: missing value")
}

/// Asks the validating webhooks.
pub(super) async fn validate(
    api: &Api,
    kind: &Kind,
    operation: Operation,
    subresource: &str,
    object: Option<&Value>,
    old: Option<&Value>,
    write: &mut Write<'_>,
) -> Result<(), ApiError> {
    for hook in webhooks(api, "validatingwebhookconfigurations.admissionregistration.k8s.io", kind) {
        let review = Review { kind, operation, subresource, object, old };
        if concerns(api, &hook, &review, write) {
            ask(api, &hook, &review, write).await?;
        }
    }
    Ok(())
}

/// All webhooks of a sort, in the order of their configurations' names. Webhooks are never asked about webhooks.
fn webhooks(api: &Api, resource: &str, kind: &Kind) -> Vec<Value> {
    if kind.group == "admissionregistration.k8s.io" {
        return Vec::new();
    }
    let configurations = api.store.list(resource, None).0;
    configurations.iter().flat_map(|configuration| meta::items(configuration, "/webhooks").to_vec()).collect()
}

fn concerns(api: &Api, hook: &Value, review: &Review<'_>, write: &Write<'_>) -> bool {
    let kind = review.kind;
    let resource = match review.subresource {
        "" => kind.plural.clone(),
        subresource => format!("{}/{subresource}", kind.plural),
    };
    let any_of = |rule: &Value, pointer: &str, wanted: &[&str]| {
        meta::items(rule, pointer)
            .iter()
            .filter_map(Value::as_str)
            .any(|entry| entry == "*" || wanted.contains(&entry))
    };
    let ruled = meta::items(hook, "/rules").iter().any(|rule| {
        let resources = meta::items(rule, "/resources").iter().filter_map(Value::as_str).any(|entry| {
            entry == resource
                || entry == "*/*"
                || (entry == "*" && review.subresource.is_empty())
                || entry.strip_suffix("/*").is_some_and(|plural| plural == kind.plural)
                || entry.strip_prefix("*/").is_some_and(|sub| sub == review.subresource)
        });
        let scope = match meta::text(rule, "/scope") {
            "Namespaced" => kind.namespaced,
            "Cluster" => !kind.namespaced,
            _ => true,
        };
        // matchPolicy Equivalent: another served version of the same resource counts.
        any_of(rule, "/apiGroups", &[&kind.group])
            && (any_of(rule, "/apiVersions", &[&kind.version]) || hook["matchPolicy"] == "Equivalent")
            && any_of(rule, "/operations", &[review.operation.as_str()])
            && resources
            && scope
    });
    if !ruled {
        return false;
    }
    let about = review.object.or(review.old).unwrap_or(&Value::Null);
    let namespace_labels = match (&*kind.resource, kind.namespaced) {
        ("namespaces", _) => meta::labels(about).cloned(),
        (_, true) => api
            .store
            .get("namespaces", "", meta::namespace(about))
            .and_then(|found| meta::labels(&found).cloned()),
        // Selectors of namespaces do not narrow cluster resources.
        (_, false) => {
            return selects(&hook["objectSelector"], about, review.old)
                && conditions_hold(hook, review, write);
        }
    };
    LabelSelector::from_object(&hook["namespaceSelector"]).matches(namespace_labels.as_ref())
        && selects(&hook["objectSelector"], about, review.old)
        && conditions_hold(hook, review, write)
}

fn conditions_hold(hook: &Value, review: &Review<'_>, write: &Write<'_>) -> bool {
    if meta::items(hook, "/matchConditions").is_empty() {
        return true;
    }
    let variables = match_condition::Variables {
        object: review.object.unwrap_or(&Value::Null),
        old: review.old.unwrap_or(&Value::Null),
        request: &request_of(review, write),
    };
    match_condition::hold(hook, variables)
}

fn selects(selector: &Value, object: &Value, old: Option<&Value>) -> bool {
    let selector = LabelSelector::from_object(selector);
    selector.matches(meta::labels(object)) || old.is_some_and(|old| selector.matches(meta::labels(old)))
}

/// A request as webhooks and conditions see it, without the objects.
fn request_of(review: &Review<'_>, write: &Write<'_>) -> Value {
    let kind = review.kind;
    let about = review.object.or(review.old).unwrap_or(&Value::Null);
    let gvk = json!({ "group": kind.group, "version": kind.version, "kind": kind.kind });
    let gvr = json!({ "group": kind.group, "version": kind.version, "resource": kind.plural });
    let mut options = json!({ "kind": review.operation.options(), "apiVersion": "meta.k8s.io/v1" });
    if write.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    if write.manager_named && review.operation != Operation::Delete {
        options["fieldManager"] = json!(write.manager);
    }
    let mut request = json!({
        "kind": gvk, "resource": gvr, "requestKind": gvk, "requestResource": gvr,
        "operation": review.operation.as_str(),
        "userInfo": write.user.to_info(),
        "dryRun": write.dry_run, "options": options,
    });
    for (field, value) in [("name", meta::name(about)), ("namespace", meta::namespace(about))] {
        if !value.is_empty() {
            request[field] = json!(value);
        }
    }
    if !review.subresource.is_empty() {
        request["subResource"] = json!(review.subresource);
        request["requestSubResource"] = json!(review.subresource);
    }
    request
}

/// Asks one webhook. `None`: it could not be asked, and its policy is to ignore that.
async fn ask(
    api: &Api,
    hook: &Value,
    review: &Review<'_>,
    write: &mut Write<'_>,
) -> Result<Option<Value>, ApiError> {
    let name = meta::text(hook, "/name");
    let uid = uuid::Uuid::new_v4().to_string();
    let mut request = request_of(review, write);
    request["uid"] = json!(uid);
    request["object"] = json!(review.object);
    request["oldObject"] = json!(review.old);
    let body = json!({ "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request });

    let seconds = hook["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30);
    let called =
        tokio::time::timeout(Duration::from_secs(seconds), call(api, hook, seconds, body.to_string()));
    let answer = match called.await {
        Ok(Ok(answer)) => check_answer(answer, &uid),
        Ok(Err(why)) => Err(format!("failed to call webhook: {why}")),
        Err(_) => Err("failed to call webhook: context deadline exceeded".to_owned()),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(why) if hook["failurePolicy"] == "Ignore" => {
            tracing::warn!(webhook = name, why, "admission webhook ignored");
            return Ok(None);
        }
        Err(why) => return Err(failed(name, &why)),
    };
    for warning in meta::items(&answer, "/warnings").iter().filter_map(Value::as_str) {
        write.warnings.push(warning.to_owned());
    }
    if answer["allowed"] == json!(true) {
        return Ok(Some(answer));
    }
    Err(denied(name, &answer["status"]))
}

fn check_answer(review: Value, uid: &str) -> Result<Value, String> {
    let answer = &review["response"];
    if !answer.is_object() {
        return Err("received invalid webhook response: webhook response was absent".to_owned());
    }
    if answer["uid"] != uid {
        return Err(format!(
            "received invalid webhook response: expected response.uid={uid:?}, got {}",
            answer["uid"]
        ));
    }
    Ok(answer.clone())
}

fn failed(name: &str, why: &str) -> ApiError {
    ApiError::internal(format!("failed calling webhook {name:?}: {why}"))
}

fn denied(name: &str, status: &Value) -> ApiError {
    let said = match (meta::text(status, "/message"), meta::text(status, "/reason")) {
        ("", "") => "without explanation".to_owned(),
        ("", reason) => format!(": {reason}"),
        (message, _) => format!(": {message}"),
    };
    let said = said.strip_prefix(": ").map_or_else(|| format!(" {said}"), |text| format!(": {text}"));
    let code = status["code"]
        .as_u64()
        .and_then(|code| u16::try_from(code).ok())
        .filter(|code| (400..600).contains(code));
    // Reasons are a closed set of the API; an unknown one is left out rather than invented.
    let known =
        ["Forbidden", "Invalid", "BadRequest", "Conflict", "NotFound", "Unauthorized", "AlreadyExists"];
    let reason = known.into_iter().find(|reason| status["reason"] == **reason).unwrap_or("");
    let message = format!("admission webhook {name:?} denied the request{said}");
    ApiError::new(code.unwrap_or(400), reason, message).with_details(status["details"].clone())
}

/// Posts a review over HTTPS and reads the answer.
async fn call(api: &Api, hook: &Value, seconds: u64, body: String) -> Result<Value, String> {
    let config = &hook["clientConfig"];
    let target = Target::of(api, config)?;
    let shown = format!("https://{}:{}{}", target.host, target.port, target.path);
    let stream = TcpStream::connect(&target.dial).await.map_err(|e| {
        let why = match e.kind() {
            std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            _ => e.to_string(),
        };
        format!("Post \"{shown}?timeout={seconds}s\": dial tcp {}: connect: {why}", target.dial)
    })?;
    let _ = stream.set_nodelay(true);

    let bundle = base64::engine::general_purpose::STANDARD
        .decode(meta::text(config, "/caBundle"))
        .map_err(|e| format!("caBundle: {e}"))?;
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&bundle)
        .collect::<Result<_, _>>()
        .map_err(|e| format!("caBundle: {e}"))?;
    let client = tls::client(certificates).map_err(|e| format!("caBundle: {e}"))?;
    let server = ServerName::try_from(target.host.clone()).map_err(|e| e.to_string())?;
    let stream = tokio_rustls::TlsConnector::from(Arc::new(client))
        .connect(server, stream)
        .await
        .map_err(|e| format!("Post \"{shown}?timeout={seconds}s\": tls: {e}"))?;

    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let request = Request::post(format!("{}?timeout={seconds}s", target.path))
        .header("host", &target.host)
        .header("content-type", "application/json")
        .header("accept", "application/json, */*")
        .body(Full::new(Bytes::from(body)))
        .map_err(|e| e.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = response.status();
        let body =
            Limited::new(response.into_body(), ANSWER_LIMIT).collect().await.map_err(|e| e.to_string())?;
        if !status.is_success() {
            tracing::debug!(%status, "a webhook answered with an error");
            return Err(
                "an error on the server (\"unknown\") has prevented the request from succeeding".to_owned()
            );
        }
        serde_json::from_slice(&body.to_bytes())
            .map_err(|e| format!("couldn't get version/kind; json parse error: {e}"))
    };
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        ended = connection => match ended {
            // The connection may end right after it delivered the answer.
            Ok(()) => exchange.await,
            Err(e) => Err(e.to_string()),
        },
    }
}

/// Where a webhook is: the name to verify, the address to dial.
struct Target {
    host: String,
    port: u16,
    path: String,
    dial: String,
}

impl Target {
    fn of(api: &Api, config: &Value) -> Result<Self, String> {
        if let Some(url) = config["url"].as_str() {
            let url: http::Uri = url.parse().map_err(|e| format!("{url}: {e}"))?;
            let host = url.host().unwrap_or("").trim_matches(['[', ']']).to_owned();
            let port = url.port_u16().unwrap_or(443);
            let path = url.path_and_query().map_or("/", |path| path.as_str()).to_owned();
            let dial = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
            return Ok(Self { dial, host, port, path });
        }
        let service = &config["service"];
        let (namespace, name) = (meta::text(service, "/namespace"), meta::text(service, "/name"));
        let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
        let path = match meta::text(service, "/path") {
            "" => "/".to_owned(),
            path if path.starts_with('/') => path.to_owned(),
            path => format!("/{path}"),
        };
        let dial = api
            .endpoint_of(namespace, name, &port.to_string())
            .ok_or_else(|| format!("no endpoints available for service \"{name}\""))?;
        Ok(Self { host: format!("{name}.{namespace}.svc"), port, path, dial: dial.to_string() })
    }
}
