//! The injector's webhook: AdmissionReview in, JSON patch out.

use super::{
    decide::{Annotations, Decision, decide},
    inject::{About, inject},
    validate,
};
use crate::{
    authority::{Authorities, Authority},
    index::store::Store,
    serve::http::{Answer, json as json_answer, text},
    view::workload,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, StatusCode, request::Parts};
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use weft_kube::{api, core::node::Namespace, kind::Kind, meta::Meta};
use weft_tls::certificate::sha256_hex;

pub struct Webhook {
    client: Client,
    store: Arc<Store>,
    authorities: Authorities,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AdmissionRequest {
    uid: String,
    kind: GroupKind,
    namespace: String,
    operation: String,
    object: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GroupKind {
    group: String,
    kind: String,
}

impl Webhook {
    pub fn new(client: Client, store: Arc<Store>, authorities: Authorities) -> Self {
        Webhook { client, store, authorities }
    }

    pub async fn answer(&self, request: Parts, body: Bytes) -> Answer {
        if request.method != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "an AdmissionReview is POSTed here\n");
        }
        let review: Value = match serde_json::from_slice(&body) {
            Ok(review) => review,
            Err(error) => return text(StatusCode::BAD_REQUEST, format!("not JSON: {error}\n")),
        };
        let version = match review["apiVersion"].as_str() {
            Some(version @ ("admission.k8s.io/v1" | "admission.k8s.io/v1beta1")) => version,
            _ => return text(StatusCode::BAD_REQUEST, "not an AdmissionReview of a known version\n"),
        };
        let asked = match AdmissionRequest::deserialize(&review["request"]) {
            Ok(asked) => asked,
            Err(error) => {
                return text(StatusCode::BAD_REQUEST, format!("the request cannot be read: {error}\n"));
            }
        };
        let (group, kind) = (asked.kind.group.as_str(), asked.kind.kind.as_str());
        if let Some(verdict) = validate::check(group, kind, &asked.object, self.store.config.identities()) {
            let response = verdict.response(&asked.uid);
            return json_answer(
                &json!({"apiVersion": version, "kind": "AdmissionReview", "response": response}),
            );
        }
        // Without trust anchors no proxy could start: the caller's failure policy decides.
        let Some(authority) = self.authorities.current() else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "the issuer is not loaded yet\n");
        };
        let mut response = json!({"uid": asked.uid, "allowed": true});
        if let Some(patch) = self.patch(&asked, &authority).await {
            response["patch"] = json!(STANDARD.encode(patch.to_string()));
            response["patchType"] = json!("JSONPatch");
        }
        json_answer(&json!({"apiVersion": version, "kind": "AdmissionReview", "response": response}))
    }

    /// `None`: nothing to change.
    async fn patch(&self, asked: &AdmissionRequest, authority: &Authority) -> Option<Value> {
        if !(asked.kind.group.is_empty() && asked.kind.kind == "Pod" && asked.operation == "CREATE") {
            return None;
        }
        let namespace = self.namespace(&asked.namespace).await;
        let pod = &asked.object;
        let annotations = match decide(pod, &namespace) {
            Decision::Inject(annotations) => annotations,
            Decision::Skip(why) => {
                tracing::debug!(namespace = asked.namespace, pod = %name(pod), why, "not injected");
                return None;
            }
        };
        let roots = authority.roots.to_pem();
        let injected = inject(
            pod,
            &self.store.config,
            &annotations,
            &About {
                namespace: &asked.namespace,
                owner: self.owner(pod, &asked.namespace),
                roots: &roots,
                roots_sha256: &sha256_hex(roots.as_bytes()),
            },
        );
        tracing::info!(namespace = asked.namespace, pod = %name(pod), "injected");
        serde_json::to_value(json_patch::diff(pod, &injected)).ok()
    }

    /// The namespace's annotations; asked of the API if the namespace is so new that the index has not heard of it.
    async fn namespace(&self, name: &str) -> Annotations {
        let known =
            self.store.look(|reader, _| reader.namespace(name).map(|n| n.metadata.annotations.clone()));
        if let Some(annotations) = known {
            return annotations;
        }
        match api::get::<Namespace>(&self.client, &format!("{}/{name}", Namespace::path(None))).await {
            Ok(namespace) => namespace.metadata.annotations,
            Err(error) => {
                tracing::warn!(name, %error, "the namespace of a new pod cannot be read");
                Annotations::new()
            }
        }
    }

    /// The workload a pod will belong to. Its ReplicaSet may be as new as the pod, then the names tell.
    fn owner(&self, pod: &Value, namespace: &str) -> Option<(String, String)> {
        let mut meta = Meta::deserialize(&pod["metadata"]).ok()?;
        namespace.clone_into(&mut meta.namespace);
        let (kind, name) = self.store.look(|reader, _| workload::owner(reader, &meta))?;
        let hash = meta.label("pod-template-hash").unwrap_or_default();
        match (kind.as_str(), name.strip_suffix(hash).and_then(|n| n.strip_suffix('-'))) {
            ("replicaset", Some(deployment)) if !hash.is_empty() => {
                Some(("deployment".to_owned(), deployment.to_owned()))
            }
            _ => Some((kind, name)),
        }
    }
}

fn name(pod: &Value) -> String {
    let meta = &pod["metadata"];
    meta["name"].as_str().or(meta["generateName"].as_str()).unwrap_or("?").to_owned()
}
