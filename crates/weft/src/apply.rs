//! Brings objects into the cluster: server-side apply, as `kubectl apply --server-side` does it.

use crate::manifest::{Document, Step};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::{ApiCapabilities, ApiResource, Scope, pinned_kind},
};
use serde_json::Value;
use std::collections::HashMap;
use weft_fault::{Code, Fault};

/// Applies objects one after the other and remembers which resource serves each kind.
pub(crate) struct Applier {
    client: Client,
    manager: &'static str,
    kinds: HashMap<(String, String), (ApiResource, ApiCapabilities)>,
}

/// Why an object could not be applied.
pub(crate) enum Refused {
    /// The API serves no such kind.
    Kind(kube::Error),
    Object(kube::Error),
}

impl Applier {
    /// `manager` is the field manager that the applied fields belong to.
    pub(crate) fn new(client: Client, manager: &'static str) -> Self {
        Applier { client, manager, kinds: HashMap::new() }
    }

    pub(crate) async fn apply(&mut self, object: &Value) -> Result<(), Refused> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let key = (text(&object["apiVersion"]), text(&object["kind"]));
        if !self.kinds.contains_key(&key) {
            let (group, version) = key.0.split_once('/').unwrap_or(("", &key.0));
            let kind = GroupVersionKind::gvk(group, version, &key.1);
            let found = pinned_kind(&self.client, &kind).await.map_err(Refused::Kind)?;
            self.kinds.insert(key.clone(), found);
        }
        let (resource, capabilities) = &self.kinds[&key];
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Cluster => Api::all_with(self.client.clone(), resource),
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, resource),
        };
        let params = PatchParams::apply(self.manager).force();
        let name = text(&object["metadata"]["name"]);
        api.patch(&name, &params, &Patch::Apply(object)).await.map_err(Refused::Object)?;
        Ok(())
    }
}

/// Applies each document in order. Every failure is told, with file and line.
pub(crate) async fn documents(client: &Client, documents: &[Document]) -> Vec<Fault> {
    let mut applier = Applier::new(client.clone(), "weft-up");
    let mut faults = Vec::new();
    for document in documents {
        let at = |step| format!("{}:{}", document.file.display(), document.line(&[Step::Key(step)]));
        match applier.apply(&document.object).await {
            Ok(()) => {}
            Err(Refused::Kind(error)) => {
                let problem = format!("the API serves no {} of {}", document.kind(), document.api_version());
                faults.push(
                    Fault::new(Code::BadManifest).about(at("kind")).fact("problem", problem).because(error),
                );
            }
            Err(Refused::Object(error)) => faults.push(
                Fault::new(Code::BadManifest)
                    .about(at("metadata"))
                    .fact("object", format!("{}/{}", document.kind().to_lowercase(), document.name()))
                    .fact("answer", api_message(&error)),
            ),
        }
    }
    faults
}

/// The API server's own sentence, without the library's wrapping.
pub(crate) fn api_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
