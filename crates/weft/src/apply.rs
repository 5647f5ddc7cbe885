//! Brings documents into the cluster: server-side apply, as `kubectl apply --server-side` does it.

use crate::manifest::{Document, Step};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::{ApiCapabilities, ApiResource, Scope, pinned_kind},
};
use std::collections::HashMap;
use weft_fault::{Code, Fault};

const MANAGER: &str = "weft-up";

/// Applies each document in order. Every failure is told, with file and line.
pub(crate) async fn apply(
    client: &Client,
    documents: &[Document],
    mut done: impl FnMut(&Document),
) -> Vec<Fault> {
    let mut kinds: HashMap<(String, String), (ApiResource, ApiCapabilities)> = HashMap::new();
    let mut faults = Vec::new();
    for document in documents {
        match apply_one(client, document, &mut kinds).await {
            Ok(()) => done(document),
            Err(fault) => faults.push(fault),
        }
    }
    faults
}

async fn apply_one(
    client: &Client,
    document: &Document,
    kinds: &mut HashMap<(String, String), (ApiResource, ApiCapabilities)>,
) -> Result<(), Fault> {
    let fault = |step: Step<'_>| {
        Fault::new(Code::BadManifest).about(format!("{}:{}", document.file.display(), document.line(&[step])))
    };
    let key = (document.api_version().to_string(), document.kind().to_string());
    if !kinds.contains_key(&key) {
        let (group, version) = key.0.split_once('/').unwrap_or(("", &key.0));
        let found =
            pinned_kind(client, &GroupVersionKind::gvk(group, version, &key.1)).await.map_err(|error| {
                fault(Step::Key("kind"))
                    .fact("problem", format!("the API serves no {} of {}", key.1, key.0))
                    .because(error)
            })?;
        kinds.insert(key.clone(), found);
    }
    let (resource, capabilities) = &kinds[&key];
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), resource),
        Scope::Namespaced => {
            Api::namespaced_with(client.clone(), document.namespace().unwrap_or("default"), resource)
        }
    };
    let params = PatchParams::apply(MANAGER).force();
    api.patch(document.name(), &params, &Patch::Apply(&document.object)).await.map_err(|error| {
        fault(Step::Key("metadata"))
            .fact("object", format!("{}/{}", document.kind().to_lowercase(), document.name()))
            .fact("answer", api_message(&error))
    })?;
    Ok(())
}

/// The API server's own sentence, without the library's wrapping.
pub(crate) fn api_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
