//! CustomResourceDefinitions: once stored, their kinds are served.

use serde_json::{Value, json};

use super::{Api, meta};

/// The status of a definition in the instant before it is served.
pub(super) fn not_yet_established(definition: &Value) -> Value {
    json!({
        "conditions": null,
        "acceptedNames": { "plural": "", "kind": "" },
        "storedVersions": stored_versions(definition),
    })
}

fn stored_versions(definition: &Value) -> Vec<&Value> {
    meta::items(definition, "/spec/versions")
        .iter()
        .filter(|version| version["storage"] == json!(true))
        .map(|version| &version["name"])
        .collect()
}

impl Api {
    /// Serves the kinds of a new definition, and says so in its status.
    pub(super) fn establish(&self, definition: &Value) {
        self.kinds.define(definition);
        let mut object = definition.clone();
        let condition = |kind: &str, reason: &str, message: &str| {
            json!({
                "type": kind, "status": "True", "lastTransitionTime": meta::now(), "reason": reason,
                "message": message,
            })
        };
        object["status"] = json!({
            "conditions": [
                condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ],
            "acceptedNames": definition["spec"]["names"],
            "storedVersions": stored_versions(definition),
        });
        let resource = "customresourcedefinitions.apiextensions.k8s.io".into();
        // If somebody changed it in this instant, the kinds are served all the same; only the status waits.
        if let Err(refused) = self.store.replace(&resource, meta::resource_version(definition), object) {
            tracing::debug!(
                definition = meta::name(definition),
                ?refused,
                "status of a definition not written"
            );
        }
    }

    /// Drops the objects of a definition that is gone, and stops serving it.
    pub(super) fn forget_custom(&self, definition: &Value) {
        let resource: std::sync::Arc<str> = meta::name(definition).into();
        for object in self.store.list(&resource, None).0 {
            // Whoever removed it first did the same.
            let _ = self.store.remove(&resource, meta::resource_version(&object), Value::clone(&object));
        }
        self.kinds.undefine(meta::name(definition));
    }
}
