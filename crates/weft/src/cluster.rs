//! What a cluster holds of a control plane.

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::Client;
use serde_json::Value;
use weft_control::{
    authority::{ISSUER_SECRET, ROOTS_CONFIG_MAP, ROOTS_KEY},
    bootstrap::IdentityFiles,
    install::{
        objects::{CONFIG_MAP, CREATED_BY, OVERRIDES_KEY, OVERRIDES_SECRET},
        yaml,
    },
    trust_roots::NAMESPACE_ROOTS,
};
use weft_fault::{Code, Fault};
use weft_kube::api::{self, ApiError};

/// Objects of one answer; more come in further ones.
const PAGE: usize = 500;

/// Whose control plane a namespace holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Nothing,
    Weft,
    /// Somebody else's, with the Deployments it runs as.
    Other(Vec<String>),
}

pub(crate) async fn existing(client: &Client, namespace: &str) -> Result<Existing> {
    let config = get(client, &format!("/api/v1/namespaces/{namespace}/configmaps/{CONFIG_MAP}")).await?;
    let by = config.as_ref().and_then(|c| c["metadata"]["annotations"][CREATED_BY].as_str());
    if by.is_some_and(|by| by.starts_with("weft/")) {
        return Ok(Existing::Weft);
    }
    let mut found = Vec::new();
    for name in ["linkerd-destination", "linkerd-identity", "linkerd-proxy-injector"] {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
        found.extend(get(client, &path).await?.map(|_| name.to_owned()));
    }
    Ok(if config.is_some() || !found.is_empty() { Existing::Other(found) } else { Existing::Nothing })
}

/// What was asked for beyond the defaults when the control plane was installed; `None` if that was not by a command line.
pub(crate) async fn overrides(client: &Client, namespace: &str) -> Result<Option<Value>> {
    let path = format!("/api/v1/namespaces/{namespace}/secrets/{OVERRIDES_SECRET}");
    let Some(secret) = get(client, &path).await? else { return Ok(None) };
    let found =
        overrides_of(&secret).with_context(|| format!("reading secret {namespace}/{OVERRIDES_SECRET}"))?;
    Ok(Some(found))
}

/// The settings in use, whoever installed them.
pub(crate) async fn settings(client: &Client, namespace: &str) -> Result<Value> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{CONFIG_MAP}");
    let Some(config) = get(client, &path).await? else {
        return Err(Fault::new(Code::NotInstalled).about(namespace).into());
    };
    let text = config["data"]["values"].as_str().unwrap_or_default();
    yaml::parse(text)
        .map_err(|why| Fault::new(Code::BadManifest).about(CONFIG_MAP).fact("problem", why).into())
}

/// The same, from the Secret as an object.
pub(crate) fn overrides_of(secret: &Value) -> Result<Value> {
    let Some(text) = text(secret, OVERRIDES_KEY) else { return Ok(Value::Null) };
    yaml::parse(&text)
        .map_err(|why| Fault::new(Code::BadManifest).about(OVERRIDES_SECRET).fact("problem", why).into())
}

/// One entry of a Secret.
fn text(secret: &Value, key: &str) -> Option<String> {
    if let Some(plain) = secret["stringData"][key].as_str() {
        return Some(plain.to_owned());
    }
    String::from_utf8(STANDARD.decode(secret["data"][key].as_str()?).ok()?).ok()
}

/// The issuer and the trust anchors in use; an empty text for what is not there.
pub(crate) async fn identity(client: &Client, namespace: &str) -> Result<IdentityFiles> {
    let secret = get(client, &format!("/api/v1/namespaces/{namespace}/secrets/{ISSUER_SECRET}")).await?;
    let roots = get(client, &format!("/api/v1/namespaces/{namespace}/configmaps/{ROOTS_CONFIG_MAP}")).await?;
    Ok(identity_of(&secret.into_iter().chain(roots).collect::<Vec<_>>()))
}

/// The same, from objects.
pub(crate) fn identity_of(objects: &[Value]) -> IdentityFiles {
    let named = |name: &str| objects.iter().find(|object| object["metadata"]["name"] == name);
    let entry = |names: [&str; 2]| {
        let secret = named(ISSUER_SECRET)?;
        names.iter().find_map(|name| text(secret, name))
    };
    let roots = named(ROOTS_CONFIG_MAP).and_then(|roots| roots["data"][ROOTS_KEY].as_str());
    IdentityFiles {
        trust_roots: roots.unwrap_or_default().to_owned(),
        issuer_certificate: entry(["crt.pem", "tls.crt"]).unwrap_or_default(),
        issuer_key: entry(["key.pem", "tls.key"]).unwrap_or_default(),
    }
}

/// Pods that have a proxy of this control plane.
pub(crate) async fn meshed_pods(client: &Client, namespace: &str) -> Result<Vec<Value>> {
    list(client, "/api/v1/pods", Some(&format!("linkerd.io/control-plane-ns={namespace}"))).await
}

/// Collections over the whole cluster that control planes keep objects in.
const CLUSTER_KINDS: [&str; 4] = [
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
];
/// And within their namespace: group and version, plural.
const OWN_KINDS: [(&str, &str); 9] = [
    ("/apis/apps/v1", "deployments"),
    ("/apis/batch/v1", "cronjobs"),
    ("/apis/policy/v1", "poddisruptionbudgets"),
    ("/api/v1", "services"),
    ("/api/v1", "configmaps"),
    ("/api/v1", "secrets"),
    ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    ("/api/v1", "serviceaccounts"),
];

/// Every object that says it belongs to the control plane in `namespace`; workloads first.
pub(crate) async fn objects(client: &Client, namespace: &str) -> Result<Vec<Value>> {
    let label = format!("linkerd.io/control-plane-ns={namespace}");
    let mut all = Vec::new();
    for (version, plural) in OWN_KINDS {
        let path = format!("{version}/namespaces/{namespace}/{plural}");
        all.extend(list(client, &path, Some(&label)).await?);
    }
    // Copies of the trust roots, in namespaces with proxies.
    let copies = list(client, "/api/v1/configmaps", Some(&label)).await?;
    let elsewhere = |copy: &Value| {
        copy["metadata"]["name"] == NAMESPACE_ROOTS && copy["metadata"]["namespace"] != namespace
    };
    all.extend(copies.into_iter().filter(elsewhere));
    for path in CLUSTER_KINDS {
        all.extend(list(client, path, Some(&label)).await?);
    }
    Ok(all)
}

/// What names an object, and nothing else of it: enough for `kubectl delete -f -`.
pub(crate) fn named(object: &Value) -> Value {
    let mut meta = serde_json::json!({"name": object["metadata"]["name"]});
    if object["metadata"]["namespace"].is_string() {
        meta["namespace"] = object["metadata"]["namespace"].clone();
    }
    serde_json::json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": meta})
}

/// `None` if there is no such object, or no such kind.
pub(crate) async fn get(client: &Client, path: &str) -> Result<Option<Value>> {
    match api::get::<Value>(client, path).await {
        Ok(object) => Ok(Some(object)),
        Err(ApiError::Status { code: 404, .. }) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {path}")),
    }
}

/// Every object of a collection; none if its kind is not served.
pub(crate) async fn list(client: &Client, path: &str, labels: Option<&str>) -> Result<Vec<Value>> {
    let selector = labels.map(|labels| format!("&labelSelector={}", escaped(labels))).unwrap_or_default();
    let mut all = Vec::new();
    let mut after = String::new();
    loop {
        let page = format!("{path}?limit={PAGE}{selector}{after}");
        let Some(mut answer) = get(client, &page).await? else { return Ok(all) };
        // Lists leave out what the objects' kind is.
        let kind =
            answer["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).unwrap_or_default().to_owned();
        let version = answer["apiVersion"].clone();
        if let Value::Array(items) = answer["items"].take() {
            all.extend(items.into_iter().map(|mut item| {
                item["kind"] = kind.clone().into();
                item["apiVersion"] = version.clone();
                item
            }));
        }
        match answer["metadata"]["continue"].as_str() {
            Some(token) if !token.is_empty() => after = format!("&continue={}", escaped(token)),
            _ => return Ok(all),
        }
    }
}

/// As a part of a query.
fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
