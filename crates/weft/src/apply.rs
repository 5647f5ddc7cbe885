//! Brings objects into the cluster: server-side apply, as `kubectl apply --server-side` does it.

use crate::manifest::{Document, Step};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::{ApiCapabilities, ApiResource, Scope, pinned_kind},
};
use serde_json::{Value, json};
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
        let (api, name) = self.api(object).await?;
        let params = PatchParams::apply(self.manager).force().validation_strict();
        api.patch(&name, &params, &Patch::Apply(remembering(object))).await.map_err(Refused::Object)?;
        Ok(())
    }

    /// Whether there is an object of this kind, namespace and name; of a kind that is not served there is none.
    pub(crate) async fn exists(&mut self, object: &Value) -> kube::Result<bool> {
        match self.api(object).await {
            Ok((api, name)) => Ok(api.get_metadata_opt(&name).await?.is_some()),
            Err(Refused::Kind(_) | Refused::Object(_)) => Ok(false),
        }
    }

    /// Deletes it, and in the background whatever it owns; gone already is fine.
    pub(crate) async fn remove(&mut self, object: &Value) -> kube::Result<()> {
        let Ok((api, name)) = self.api(object).await else { return Ok(()) };
        match api.delete(&name, &DeleteParams::background()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop),
        }
    }

    /// Where objects like this one are, and this one's name.
    async fn api(&mut self, object: &Value) -> Result<(Api<DynamicObject>, String), Refused> {
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
        Ok((api, text(&object["metadata"]["name"])))
    }
}

/// The object with itself in the annotation that `kubectl apply` compares with, so that it can go on from here.
fn remembering(object: &Value) -> Value {
    const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    /// Annotations may have 256 KiB together.
    const LARGEST: usize = 200 * 1024;
    let mut object = object.clone();
    let mut text = object.to_string();
    text.push('\n');
    // Metadata of another shape is left for the API to refuse.
    if text.len() <= LARGEST
        && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && let Value::Object(annotations) = metadata.entry("annotations").or_insert_with(|| json!({}))
        && !annotations.contains_key(LAST_APPLIED)
    {
        annotations.insert(LAST_APPLIED.into(), text.into());
    }
    object
}

/// Applies each document in order. Every failure is told, with file and line.
pub(crate) async fn documents(client: &Client, documents: &[Document]) -> Vec<Fault> {
    let mut applier = Applier::new(client.clone(), "weft-up");
    let mut faults = Vec::new();
    for document in documents {
        let at = |line| format!("{}:{line}", document.file.display());
        match applier.apply(&document.object).await {
            Ok(()) => {}
            Err(Refused::Kind(error)) => {
                let problem = format!("the API serves no {} of {}", document.kind(), document.api_version());
                faults.push(
                    Fault::new(Code::BadManifest)
                        .about(at(document.line(&[Step::Key("kind")])))
                        .fact("problem", problem)
                        .because(error),
                );
            }
            Err(Refused::Object(error)) => {
                let answer = api_message(&error);
                faults.push(
                    Fault::new(Code::BadManifest)
                        .about(at(document.line_of(field_in(&answer).unwrap_or("metadata"))))
                        .fact("object", format!("{}/{}", document.kind().to_lowercase(), document.name()))
                        .fact("answer", answer),
                );
            }
        }
    }
    faults
}

/// The first field that an answer of the API names.
fn field_in(answer: &str) -> Option<&str> {
    let separators = |c: char| c.is_whitespace() || matches!(c, '"' | ',' | ':');
    // After the sentence's beginning, which names the object.
    let (_, rest) = answer.split_once(": ")?;
    rest.split(separators)
        .map(|word| word.trim_start_matches('['))
        .find(|word| ["spec.", "metadata.", "data[", "data."].iter().any(|start| word.starts_with(start)))
}

/// The API server's own sentence, without the library's wrapping.
pub(crate) fn api_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_that_is_wrong() {
        let of = |answer| field_in(answer);
        let two =
            "Pod \"a.b\" is invalid: [spec.containers[0].image: Required value, spec.x: Required value]";
        assert_eq!(of(two), Some("spec.containers[0].image"));
        let unknown = "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.x\"";
        assert_eq!(of(unknown), Some("spec.x"));
        assert_eq!(of("ConfigMap \"a\" is invalid: data[../x]: Invalid value"), Some("data[../x]"));
        assert_eq!(of("namespaces \"absent\" not found"), None);
    }

    #[test]
    fn kubectl_apply_finds_what_it_compares_with() {
        let given = json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
        let applied = remembering(&given);
        let annotation =
            &applied["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
        assert_eq!(serde_json::from_str::<Value>(annotation.as_str().unwrap()).unwrap(), given);
        assert_eq!(remembering(&applied), applied);
        let odd = json!({"metadata": {"name": "a", "annotations": 5}});
        assert_eq!(remembering(&odd), odd);
        let large = json!({"metadata": {"name": "a"}, "data": {"k": "v".repeat(300_000)}});
        assert_eq!(remembering(&large), large);
    }
}
