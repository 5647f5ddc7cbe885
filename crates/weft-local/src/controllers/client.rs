//! How controllers read and write: the API's own verbs, without HTTP.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::auth::User;
use crate::api::delete::{DeleteOptions, Propagation};
use crate::api::error::ApiError;
use crate::api::kinds::Kind;
use crate::api::update::Part;
use crate::api::write::Write;
use crate::api::{Api, meta};

/// One controller's access to the API, under its own name.
pub(super) struct Client {
    pub(super) api: Arc<Api>,
    user: User,
    name: &'static str,
}

impl Client {
    pub(super) fn new(api: &Arc<Api>, name: &'static str) -> Self {
        Self { api: api.clone(), user: User::controller(name), name }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self, resource: &str) -> Result<Arc<Kind>, ApiError> {
        self.api.kinds.of_resource(resource).ok_or_else(ApiError::no_such_resource)
    }

    pub(super) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.api.store.get(resource, namespace, name)
    }

    pub(super) fn list(&self, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        self.api.store.list(resource, Some(namespace)).0
    }

    /// The objects in a namespace that the given object controls.
    pub(super) fn controlled(&self, resource: &str, owner: &Value) -> Vec<Arc<Value>> {
        let mut objects = self.list(resource, meta::namespace(owner));
        objects.retain(|object| {
            meta::controller_of(object)
                .is_some_and(|reference| meta::text(reference, "/uid") == meta::uid(owner))
        });
        objects
    }

    pub(super) async fn create(
        &self,
        resource: &str,
        namespace: &str,
        object: Value,
    ) -> Result<Arc<Value>, ApiError> {
        self.api.create(&*self.kind(resource)?, namespace, object, &mut Write::by(&self.user)).await
    }

    /// Changes an object in place; `change` edits a copy of the current one.
    pub(super) async fn update(
        &self,
        resource: &str,
        object: &Value,
        part: Part,
        change: impl Fn(&mut Value),
    ) -> Result<Arc<Value>, ApiError> {
        let wanted = |current: &Value| {
            let mut wanted = current.clone();
            change(&mut wanted);
            Ok(wanted)
        };
        let (namespace, name) = (meta::namespace(object), meta::name(object));
        let kind = self.kind(resource)?;
        self.api.update(&kind, namespace, name, part, wanted, &mut Write::by(&self.user)).await
    }

    /// Writes a status, if it differs.
    pub(super) async fn set_status(
        &self,
        resource: &str,
        object: &Value,
        status: Value,
    ) -> Result<(), ApiError> {
        if object["status"] == status {
            return Ok(());
        }
        self.update(resource, object, Part::Status, |object| object["status"] = status.clone()).await?;
        Ok(())
    }

    /// Deletes this very object; that it is gone already is fine.
    pub(super) async fn delete(&self, resource: &str, object: &Value) -> Result<(), ApiError> {
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            uid: Some(meta::uid(object).to_owned()),
            ..DeleteOptions::default()
        };
        let kind = self.kind(resource)?;
        let (namespace, name) = (meta::namespace(object), meta::name(object));
        match self.api.delete(&kind, namespace, name, &options, &mut Write::by(&self.user)).await {
            Err(error) if error.code == 404 || error.code == 409 => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }

    /// Tells users what happened to an object. Best effort: an event that cannot be written is not worth a failure.
    pub(super) async fn event(&self, about: &Value, warning: bool, reason: &str, message: &str) {
        let now = meta::now();
        let namespace = meta::namespace(about);
        let event = json!({
            "metadata": { "generateName": format!("{}.", meta::name(about)) },
            "involvedObject": reference(about),
            "reason": reason,
            "message": message,
            "type": if warning { "Warning" } else { "Normal" },
            "source": { "component": self.name },
            "reportingComponent": self.name,
            "reportingInstance": "",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        // The same again is counted, not repeated.
        let same = self.list("events", namespace).into_iter().find(|old| {
            old["involvedObject"]["uid"] == about["metadata"]["uid"]
                && old["reason"] == reason
                && old["message"] == message
        });
        let written = match same {
            Some(old) => {
                let again = |old: &mut Value| {
                    old["count"] = json!(meta::int(old, "/count").unwrap_or(1) + 1);
                    old["lastTimestamp"] = json!(now);
                };
                self.update("events", &old, Part::Main, again).await
            }
            None => self.create("events", namespace, event).await,
        };
        if let Err(error) = written {
            tracing::debug!(%error, reason, "event not written");
        }
    }
}

/// An object reference, as in an event.
fn reference(object: &Value) -> Value {
    json!({
        "kind": object["kind"], "apiVersion": object["apiVersion"], "namespace": meta::namespace(object),
        "name": meta::name(object), "uid": meta::uid(object), "resourceVersion": meta::resource_version(object),
    })
}

/// An owner reference that makes `owner` the controller.
pub(super) fn controlled_by(owner: &Value) -> Value {
    json!([{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta::name(owner), "uid": meta::uid(owner),
        "controller": true, "blockOwnerDeletion": true,
    }])
}
