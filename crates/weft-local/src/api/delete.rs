//! Deleting objects: grace periods, finalizers, propagation.

use std::sync::Arc;

use serde_json::{Value, json};

use super::admission::{self, Operation};
use super::error::{ApiError, FieldError};
use super::kinds::Kind;
use super::store::Refused;
use super::update::Attempt;
use super::write::Write;
use super::{Api, meta};

/// `DeleteOptions`, from the query or the body.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    pub grace: Option<i64>,
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

impl Propagation {
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        match text {
            "Orphan" => Ok(Self::Orphan),
            "Background" => Ok(Self::Background),
            "Foreground" => Ok(Self::Foreground),
            other => {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                let error = FieldError::unsupported("propagationPolicy", other, &supported);
                Err(ApiError::invalid("DeleteOptions.meta.k8s.io", "", &[error]))
            }
        }
    }
}

/// What became of the object.
#[derive(Debug)]
pub enum Deleted {
    Gone(Arc<Value>),
    /// It stays until finalizers or the node agent have done their part.
    Pending(Arc<Value>),
}

impl Deleted {
    pub fn object(&self) -> &Arc<Value> {
        match self {
            Self::Gone(object) | Self::Pending(object) => object,
        }
    }
}

impl Api {
    pub async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
        write: &mut Write<'_>,
    ) -> Result<Deleted, ApiError> {
        let protected = ["default", "kube-system"];
        if &*kind.resource == "namespaces" && protected.contains(&name) {
            return Err(ApiError::forbidden("namespaces", name, "this namespace may not be deleted"));
        }
        loop {
            let old = self.get(kind, namespace, name)?;
            check_preconditions(kind, &old, options)?;
            admission::mutate(self, kind, Operation::Delete, "", Value::Null, Some(&old), write).await?;
            admission::validate(self, kind, Operation::Delete, "", None, Some(&old), write).await?;
            match self.try_delete(kind, &old, options, write.dry_run) {
                // Each round another writer made progress, so this ends.
                Err(Attempt::Raced) => tokio::task::yield_now().await,
                Err(Attempt::Failed(error)) => return Err(error),
                Ok(deleted) => return Ok(deleted),
            }
        }
    }

    fn try_delete(
        &self,
        kind: &Kind,
        old: &Arc<Value>,
        options: &DeleteOptions,
        dry_run: bool,
    ) -> Result<Deleted, Attempt> {
        let mut object = Value::clone(old);
        let grace = grace_period(kind, old, options);
        let already = meta::int(old, "/metadata/deletionGracePeriodSeconds");
        if meta::deleting(old) && already.is_none_or(|already| grace >= already) {
            // Nothing new, unless nothing holds it.
            if grace > 0 || !meta::finalizers(old).is_empty() || namespace_held(kind, old) {
                return Ok(Deleted::Pending(old.clone()));
            }
        }
        let metadata = meta::metadata_mut(&mut object);
        let finalizer = match options.propagation {
            Some(Propagation::Foreground) => Some("foregroundDeletion"),
            Some(Propagation::Orphan) => Some("orphan"),
            Some(Propagation::Background) | None => None,
        };
        if let Some(finalizer) = finalizer {
            let list = metadata.entry("finalizers").or_insert(json!([]));
            if let Some(list) = list.as_array_mut()
                && !list.iter().any(|held| held == finalizer)
            {
                list.push(json!(finalizer));
            }
        }
        let at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(grace);
        metadata.insert("deletionTimestamp".into(), json!(meta::time(at)));
        let held = !meta::finalizers(&object).is_empty() || grace > 0 || namespace_held(kind, &object);
        let metadata = meta::metadata_mut(&mut object);
        if &*kind.resource != "namespaces" {
            metadata.insert("deletionGracePeriodSeconds".into(), json!(grace));
        }
        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64)
            && !meta::deleting(old)
        {
            metadata.insert("generation".into(), json!(generation + 1));
        }
        let seen = meta::resource_version(old);
        if !held {
            if &*kind.resource != "pods" {
                // What never waited is shown as it was.
                object = Value::clone(old);
            }
            if dry_run {
                return Ok(Deleted::Gone(Arc::new(object)));
            }
            if &*kind.resource == "pods" {
                // Watchers see first that the pod is to go, then that it has gone: two revisions, as everywhere.
                let last = self.store.replace(&kind.resource, seen, object).map_err(|_| Attempt::Raced)?;
                let seen = meta::resource_version(&last);
                return Ok(Deleted::Gone(self.remove(kind, seen, Value::clone(&last))?));
            }
            return Ok(Deleted::Gone(self.remove(kind, seen, object)?));
        }
        if &*kind.resource == "namespaces" {
            object["status"]["phase"] = json!("Terminating");
        }
        if dry_run {
            return Ok(Deleted::Pending(Arc::new(object)));
        }
        let stored = self.store.replace(&kind.resource, seen, object).map_err(|refused| match refused {
            Refused::Stale => Attempt::Raced,
            Refused::Missing | Refused::Exists => {
                Attempt::Failed(ApiError::not_found(&kind.resource, meta::name(old)))
            }
        })?;
        Ok(Deleted::Pending(stored))
    }
}

/// A namespace stays until its content is gone.
fn namespace_held(kind: &Kind, object: &Value) -> bool {
    &*kind.resource == "namespaces" && !meta::items(object, "/spec/finalizers").is_empty()
}

/// How long the node agent has. Only pods that may run somewhere have a grace period.
fn grace_period(kind: &Kind, object: &Value, options: &DeleteOptions) -> i64 {
    if &*kind.resource != "pods" || meta::text(object, "/spec/nodeName").is_empty() {
        return 0;
    }
    if ["Succeeded", "Failed"].contains(&meta::text(object, "/status/phase")) && options.grace.is_none() {
        return 0;
    }
    let own = meta::int(object, "/spec/terminationGracePeriodSeconds").unwrap_or(30);
    let wanted = options.grace.unwrap_or(own).max(0);
    // A later request can only shorten it.
    match meta::int(object, "/metadata/deletionGracePeriodSeconds") {
        Some(already) if options.grace.is_none() => already,
        _ => wanted,
    }
}

fn check_preconditions(kind: &Kind, object: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
    let name = meta::name(object);
    if let Some(uid) = &options.uid
        && uid != meta::uid(object)
    {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been \
             deleted and then recreated",
            meta::uid(object)
        );
        return Err(ApiError::conflict(&kind.qualified(), name, &why));
    }
    if let Some(version) = &options.resource_version
        && version != meta::resource_version(object)
    {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). \
             The object might have been modified",
            meta::resource_version(object)
        );
        return Err(ApiError::conflict(&kind.qualified(), name, &why));
    }
    Ok(())
}
