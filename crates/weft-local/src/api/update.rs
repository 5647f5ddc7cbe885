//! Changing objects: update, patch, the status and scale subresources.

use std::sync::Arc;

use serde_json::{Value, json};

use super::admission::{self, Operation};
use super::error::{ApiError, FieldError};
use super::kinds::Kind;
use super::store::Refused;
use super::write::{Tracking, Write, check_envelope, note_unknown};
use super::{Api, managers, meta, ports, read, shape};

/// How often a change without a precondition is tried again when somebody else was faster.
const ATTEMPTS: usize = 8;

/// Which part of an object a request addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Main,
    Status,
    /// A namespace's `…/finalize`.
    Finalize,
    /// A pod's `…/binding`, with the condition that goes with it.
    Binding,
}

impl Part {
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Finalize => "finalize",
            Self::Binding => "binding",
        }
    }
}

impl Api {
    /// Changes an object: `change` makes the wanted object from the current one, and is asked again if a race was
    /// lost and the client has not said which version it means.
    pub async fn update(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        part: Part,
        change: impl Fn(&Value) -> Result<Value, ApiError>,
        write: &mut Write<'_>,
    ) -> Result<Arc<Value>, ApiError> {
        for _ in 0..ATTEMPTS {
            let old = self.get(kind, namespace, name)?;
            let wanted = change(&old)?;
            let warned = write.warnings.len();
            match self.try_update(kind, namespace, name, part, &old, wanted, write).await {
                Err(Attempt::Raced) => write.warnings.truncate(warned),
                Err(Attempt::Failed(error)) => return Err(error),
                Ok(object) => return Ok(object),
            }
        }
        Err(ApiError::modified(&kind.resource, name))
    }

    #[allow(clippy::too_many_arguments)] // one step of `update`, which has them all
    async fn try_update(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        part: Part,
        old: &Value,
        wanted: Value,
        write: &mut Write<'_>,
    ) -> Result<Arc<Value>, Attempt> {
        check_envelope(kind, &wanted)?;
        let given = meta::name(&wanted);
        if given != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            ))
            .into());
        }
        let given = meta::namespace(&wanted);
        if kind.namespaced && !given.is_empty() && given != namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            )
            .into());
        }
        let version = meta::resource_version(&wanted);
        if version.is_empty() && !kind.unconditional && !write.patched && write.through.is_empty() {
            let error = FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
            let mut error = ApiError::invalid(&kind.resource, name, &[error]);
            error.details["kind"] = json!(kind.plural);
            return Err(error.into());
        }
        if !version.is_empty() && version != meta::resource_version(old) {
            return Err(ApiError::modified(&kind.resource, name).into());
        }
        let uid = meta::uid(&wanted);
        if !uid.is_empty() && uid != meta::uid(old) {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                meta::uid(old)
            );
            return Err(ApiError::conflict(&kind.resource, name, &why).into());
        }

        let decoded = shape::decode(kind, &wanted).map_err(|why| write.undecodable(&wanted, why))?;
        note_unknown(kind, decoded.unknown, write).map_err(|why| write.undecodable(&wanted, why))?;
        let mut object = merge_parts(kind, part, old, decoded.object);
        shape::apply_defaults(kind, &mut object);
        if write.tracking == Tracking::Updated {
            let sub = if write.through.is_empty() { part.subresource() } else { write.through };
            managers::note_update(kind, &write.manager, sub, Some(old), &mut object);
        }
        if part == Part::Main {
            let (operation, sub) = (Operation::Update, part.subresource());
            let before = object.clone();
            object = admission::mutate(self, kind, operation, sub, object, Some(old), write).await?;
            if object != before {
                object = merge_parts(kind, part, old, shape::decode(kind, &object)?.object);
                shape::apply_defaults(kind, &mut object);
            }
        }
        check_metadata(kind, &wanted, &object, old)?;
        if part == Part::Status {
            let errors = shape::validate_status(kind, &object);
            if !errors.is_empty() {
                return Err(ApiError::invalid(&kind.qualified(), name, &errors).into());
            }
        } else {
            let errors = shape::validate(kind, &object, Some(old));
            if !errors.is_empty() {
                return Err(ApiError::invalid(&kind.qualified(), name, &errors).into());
            }
        }
        let sub = part.subresource();
        admission::validate(self, kind, Operation::Update, sub, Some(&object), Some(old), write).await?;
        write.warnings.extend(shape::warnings(kind, &object));
        if object == *old {
            return Ok(Arc::new(object));
        }
        if write.dry_run {
            return Ok(Arc::new(object));
        }
        self.replace(kind, old, object).map(|stored| read::in_version(kind, stored))
    }

    fn replace(&self, kind: &Kind, old: &Value, object: Value) -> Result<Arc<Value>, Attempt> {
        let seen = meta::resource_version(old);
        let mut object = read::as_stored(kind, object);
        if ready_to_go(kind, &object) {
            // The last finalizer went: the answer is the object as it was about to be.
            let answer = Arc::new(object.clone());
            self.remove(kind, seen, object)?;
            return Ok(answer);
        }
        let addresses = (&*kind.resource == "services").then(|| self.addresses.lock());
        if addresses.is_some() {
            self.assign_cluster_ip(&mut object)?;
            ports::assign(self, &mut object)?;
        }
        let stored = self.store.replace(&kind.resource, seen, object).map_err(|refused| match refused {
            Refused::Stale => Attempt::Raced,
            Refused::Missing | Refused::Exists => {
                Attempt::Failed(ApiError::not_found(&kind.resource, meta::name(old)))
            }
        })?;
        drop(addresses);
        if &*kind.resource == "customresourcedefinitions.apiextensions.k8s.io" {
            self.kinds.define(&stored);
        }
        Ok(stored)
    }

    /// Removes an object for good, and what depends on it in this server.
    pub(super) fn remove(&self, kind: &Kind, seen: &str, object: Value) -> Result<Arc<Value>, Attempt> {
        let name = meta::name(&object).to_owned();
        let removed = self.store.remove(&kind.resource, seen, object).map_err(|refused| match refused {
            Refused::Stale => Attempt::Raced,
            Refused::Missing | Refused::Exists => Attempt::Failed(ApiError::not_found(&kind.resource, &name)),
        })?;
        if &*kind.resource == "customresourcedefinitions.apiextensions.k8s.io" {
            self.forget_custom(&removed);
        }
        Ok(removed)
    }

    /// `…/scale` of a workload, as `autoscaling/v1` Scale.
    pub fn scale_of(kind: &Kind, object: &Value) -> Value {
        let paths = ScalePaths::of(kind);
        let metadata = &object["metadata"];
        let mut scale = json!({
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {
                "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"],
            },
            "spec": {},
            "status": { "replicas": object.pointer(&paths.status).and_then(Value::as_i64).unwrap_or(0) },
        });
        if let Some(replicas) = object.pointer(&paths.spec).and_then(Value::as_i64).filter(|n| *n != 0) {
            scale["spec"]["replicas"] = json!(replicas);
        }
        let selector = match (&paths.selector, kind.is_custom()) {
            (Some(pointer), _) => meta::text(object, pointer).to_owned(),
            (None, true) => String::new(),
            (None, false) => {
                super::selector::LabelSelector::from_object(&object["spec"]["selector"]).to_string()
            }
        };
        if !selector.is_empty() {
            scale["status"]["selector"] = json!(selector);
        }
        scale
    }

    /// Sets the replicas of a workload through its `…/scale`.
    pub async fn update_scale(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        change: impl Fn(&Value) -> Result<Value, ApiError>,
        write: &mut Write<'_>,
    ) -> Result<Value, ApiError> {
        let paths = ScalePaths::of(kind);
        let set = |object: &Value| {
            let scale = change(&Self::scale_of(kind, object))?;
            let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
            if replicas < 0 {
                let why = "must be greater than or equal to 0";
                let error = FieldError::invalid("spec.replicas", replicas, why);
                return Err(ApiError::invalid("Scale.autoscaling", name, &[error]));
            }
            let mut object = object.clone();
            let version = meta::resource_version(&scale);
            if !version.is_empty() {
                object["metadata"]["resourceVersion"] = json!(version);
            }
            set_pointer(&mut object, &paths.spec, json!(replicas));
            Ok(object)
        };
        write.through = "scale";
        let object = self.update(kind, namespace, name, Part::Main, set, write).await?;
        Ok(Self::scale_of(kind, &object))
    }
}

/// Why one attempt did not succeed.
#[derive(Debug)]
pub(super) enum Attempt {
    /// Somebody else was faster.
    Raced,
    Failed(ApiError),
}

impl From<ApiError> for Attempt {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

/// Pointers to the fields that `…/scale` shows.
struct ScalePaths {
    spec: String,
    status: String,
    selector: Option<String>,
}

impl ScalePaths {
    fn of(kind: &Kind) -> Self {
        let super::kinds::Form::Custom(version) = &kind.form else {
            return Self { spec: "/spec/replicas".into(), status: "/status/replicas".into(), selector: None };
        };
        let pointer = |field: &str| {
            let path = meta::text(version, &format!("/subresources/scale/{field}"));
            (!path.is_empty()).then(|| path.replace('.', "/"))
        };
        Self {
            spec: pointer("specReplicasPath").unwrap_or_default(),
            status: pointer("statusReplicasPath").unwrap_or_default(),
            selector: pointer("labelSelectorPath"),
        }
    }
}

fn set_pointer(object: &mut Value, pointer: &str, value: Value) {
    let mut slot = object;
    for key in pointer.split('/').skip(1) {
        slot = meta::object_mut_self(slot).entry(key.to_owned()).or_insert(Value::Null);
    }
    *slot = value;
}

/// Takes from the wanted object what the addressed part may change, and the rest from the old one.
fn merge_parts(kind: &Kind, part: Part, old: &Value, wanted: Value) -> Value {
    let mut object = match part {
        Part::Status => {
            let mut object = old.clone();
            match wanted.get("status") {
                Some(status) => object["status"] = status.clone(),
                None => {
                    meta::object_mut_self(&mut object).remove("status");
                }
            }
            // Built-in kinds take labels and the like along with a status; custom ones do not.
            let along: &[&str] = match &*kind.resource {
                _ if kind.is_custom() => &["managedFields"],
                "deployments.apps" => &["annotations", "finalizers", "managedFields"],
                _ => &["labels", "annotations", "finalizers", "managedFields"],
            };
            for &field in along {
                if field == "managedFields" && wanted["metadata"].get(field).is_none() {
                    continue;
                }
                let metadata = meta::metadata_mut(&mut object);
                match wanted["metadata"].get(field) {
                    Some(value) => metadata.insert(field.to_owned(), value.clone()),
                    None => metadata.remove(field),
                };
            }
            return object;
        }
        Part::Finalize => {
            let mut object = old.clone();
            object["spec"] = wanted.get("spec").cloned().unwrap_or(json!({}));
            if meta::items(&object, "/spec/finalizers").is_empty() {
                meta::object_mut(&mut object, "spec").remove("finalizers");
            }
            for field in ["labels", "annotations"] {
                let metadata = meta::metadata_mut(&mut object);
                match wanted["metadata"].get(field) {
                    Some(value) => metadata.insert(field.to_owned(), value.clone()),
                    None => metadata.remove(field),
                };
            }
            return object;
        }
        Part::Main | Part::Binding => wanted,
    };
    if kind.status && part == Part::Main {
        let fields = meta::object_mut_self(&mut object);
        match old.get("status") {
            Some(status) => fields.insert("status".into(), status.clone()),
            None => fields.remove("status"),
        };
    }
    if &*kind.resource == "namespaces" {
        object["spec"] = old["spec"].clone();
    }
    if &*kind.resource == "services" {
        shape::keep_address(&mut object, old);
    }
    if &*kind.resource == "pods"
        && object["spec"].get("nodeName").is_none()
        && old["spec"].get("nodeName").is_some()
    {
        object["spec"]["nodeName"] = old["spec"]["nodeName"].clone();
    }
    let kept = [
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    ];
    let metadata = meta::metadata_mut(&mut object);
    metadata.remove("selfLink");
    for field in kept {
        match old["metadata"].get(field) {
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.remove(field),
        };
    }
    if !metadata.contains_key("managedFields")
        && let Some(managed) = old["metadata"].get("managedFields")
    {
        metadata.insert("managedFields".into(), managed.clone());
    }
    if kind.generation && specification(kind, &object) != specification(kind, old) {
        let generation = meta::int(old, "/metadata/generation").unwrap_or(0) + 1;
        meta::metadata_mut(&mut object).insert("generation".into(), json!(generation));
    }
    object
}

/// The part of an object whose changes `metadata.generation` counts.
fn specification(kind: &Kind, object: &Value) -> Value {
    let mut object = object.clone();
    // Deployments are the one kind whose annotations count, EndpointSlices the one whose labels do.
    let of_metadata = match &*kind.resource {
        "deployments.apps" => object["metadata"].get("annotations").cloned(),
        "endpointslices.discovery.k8s.io" => object["metadata"].as_object().map(|metadata| {
            let counted = ["labels", "annotations", "ownerReferences", "finalizers"];
            counted.iter().filter_map(|&field| metadata.get(field).cloned()).collect()
        }),
        _ => None,
    };
    let fields = meta::object_mut_self(&mut object);
    for field in ["metadata", "status", "apiVersion", "kind"] {
        fields.remove(field);
    }
    if &*kind.resource == "pods"
        && let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut)
    {
        // Being bound is no change of what the pod is.
        spec.remove("nodeName");
    }
    fields.extend(of_metadata.map(|counted| ("metadata".to_owned(), counted)));
    object
}

fn check_metadata(kind: &Kind, wanted: &Value, object: &Value, old: &Value) -> Result<(), ApiError> {
    let deletion = &wanted["metadata"]["deletionTimestamp"];
    if !deletion.is_null() && *deletion != old["metadata"]["deletionTimestamp"] {
        let error = FieldError::invalid("metadata.deletionTimestamp", deletion.clone(), "field is immutable");
        return Err(ApiError::invalid(&kind.qualified(), meta::name(object), &[error.clone(), error]));
    }
    if !meta::deleting(old) {
        return Ok(());
    }
    let before = meta::finalizers(old);
    let added: Vec<&str> = meta::finalizers(object).into_iter().filter(|f| !before.contains(f)).collect();
    if added.is_empty() {
        return Ok(());
    }
    let quoted: Vec<String> = added.iter().map(|finalizer| format!("{finalizer:?}")).collect();
    let why = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        quoted.join(", ")
    );
    // A real server looks twice, and says so twice.
    let error = FieldError::forbidden("metadata.finalizers", why);
    Err(ApiError::invalid(&kind.qualified(), meta::name(object), &[error.clone(), error]))
}

/// Whether nothing holds an object that is being deleted any longer.
fn ready_to_go(kind: &Kind, object: &Value) -> bool {
    meta::deleting(object)
        && meta::finalizers(object).is_empty()
        && meta::int(object, "/metadata/deletionGracePeriodSeconds").unwrap_or(0) == 0
        && (&*kind.resource != "namespaces" || meta::items(object, "/spec/finalizers").is_empty())
}
