//! The injector's webhook: AdmissionReview in, JSON patch out.

use super::{
    decide::{Annotations, Decision, annotations, decide},
    events::{Reason, of_pod},
    inject::{About, Injected, inject},
    metrics::{Asked, Injections, annotation_at},
    opaque, validate,
};
use crate::{
    authority::Authorities,
    events::Events,
    index::store::Store,
    serve::http::{Answer, json as json_answer, text},
    view::workload::{self, CONTROL_NS_LABEL},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, StatusCode, request::Parts};
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use weft_kube::{api, core::node::Namespace, kind::Kind, meta::Meta, shared::Shared};
use weft_tls::certificate::sha256_hex;

pub struct Webhook {
    client: Client,
    events: Events,
    injections: Arc<Injections>,
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
    #[serde(rename = "dryRun")]
    dry_run: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GroupKind {
    group: String,
    kind: String,
}

impl Webhook {
    pub fn new(
        client: Client,
        store: Arc<Store>,
        authorities: Authorities,
        events: Events,
        injections: Arc<Injections>,
    ) -> Self {
        Webhook { events, injections, client, store, authorities }
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
        let mut response = json!({"uid": asked.uid, "allowed": true});
        let patched = match (group, kind, asked.operation.as_str()) {
            ("", "Pod", "CREATE") => match self.pod(&asked).await {
                Ok(patched) => patched,
                Err(answer) => return answer,
            },
            ("", "Service", "CREATE") => self.service(&asked).await,
            _ => None,
        };
        if let Some(Injected { pod, warnings }) = patched {
            let patch = json_patch::diff(&asked.object, &pod);
            response["patch"] = json!(STANDARD.encode(json!(patch).to_string()));
            response["patchType"] = json!("JSONPatch");
            if !warnings.is_empty() {
                response["warnings"] = json!(warnings);
            }
        }
        json_answer(&json!({"apiVersion": version, "kind": "AdmissionReview", "response": response}))
    }

    /// `None`: nothing to change.
    async fn pod(&self, asked: &AdmissionRequest) -> Result<Option<Injected>, Answer> {
        let namespace = self.namespace(&asked.namespace).await;
        let pod = &asked.object;
        let meta = Meta::deserialize(&pod["metadata"]).unwrap_or_default();
        let owner = self.owner(pod, &asked.namespace).map(|(kind, _)| kind).unwrap_or_default();
        let counted = Asked::new(&owner, &asked.namespace, annotation_at(&annotations(pod), &namespace));
        self.injections.asked(&counted);
        let annotations = match decide(pod, &namespace) {
            Decision::Inject(annotations) => annotations,
            Decision::Leave(why) => {
                tracing::debug!(namespace = asked.namespace, pod = %name(pod), %why, "not injected");
                self.injections.answered(&counted, Some(why.word));
                return Ok(self.noted(pod, opaque::for_pod(pod, &namespace, &self.store.config)));
            }
            Decision::Refuse(why) => {
                self.injections.answered(&counted, Some(why.word));
                // An injected pod is asked about again: that is no refusal.
                if meta.label(CONTROL_NS_LABEL).is_none() {
                    tracing::warn!(namespace = asked.namespace, pod = %name(pod), %why, "not injected");
                    let message = format!("No proxy was put into pod {}: {why}", name(pod));
                    self.tell(asked, &meta, Reason::InjectionSkipped, message);
                }
                return Ok(self.noted(pod, opaque::for_pod(pod, &namespace, &self.store.config)));
            }
        };
        // Without trust anchors no proxy could start: the caller's failure policy decides.
        let Some(authority) = self.authorities.current() else {
            return Err(text(StatusCode::SERVICE_UNAVAILABLE, "the issuer is not loaded yet\n"));
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
                by: "proxy-injector",
            },
        );
        tracing::info!(namespace = asked.namespace, pod = %name(pod), "injected");
        self.injections.answered(&counted, None);
        for warning in &injected.warnings {
            tracing::warn!(namespace = asked.namespace, pod = %name(pod), "{warning}");
        }
        let message = format!("A proxy was put into pod {}", name(pod));
        self.tell(asked, &meta, Reason::Injected, message);
        Ok(Some(injected))
    }

    /// A rehearsal leaves no trace.
    fn tell(&self, asked: &AdmissionRequest, pod: &Meta, reason: Reason, message: String) {
        if !asked.dry_run
            && let Some(event) = of_pod(pod, &asked.namespace, reason, message)
        {
            self.events.tell(event);
        }
    }

    async fn service(&self, asked: &AdmissionRequest) -> Option<Injected> {
        let namespace = self.namespace(&asked.namespace).await;
        self.noted(&asked.object, opaque::for_service(&asked.object, &namespace, &self.store.config))
    }

    /// The object with its opaque ports named.
    fn noted(&self, object: &Value, ports: Option<String>) -> Option<Injected> {
        Some(Injected { pod: opaque::annotated(object, &ports?), warnings: Vec::new() })
    }

    /// The namespace's annotations; asked of the API if the namespace is so new that the index has not heard of it.
    async fn namespace(&self, name: &str) -> Shared<Annotations> {
        let known =
            self.store.look(|reader, _| reader.namespace(name).map(|n| n.metadata.annotations.clone()));
        if let Some(annotations) = known {
            return annotations;
        }
        match api::get::<Namespace>(&self.client, &format!("{}/{name}", Namespace::path(None))).await {
            Ok(namespace) => namespace.metadata.annotations,
            Err(error) => {
                tracing::warn!(name, %error, "the namespace of a new pod cannot be read");
                Shared::default()
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
