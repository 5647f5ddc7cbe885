//! Creating objects.

use std::sync::Arc;

use serde_json::{Value, json};

use super::admission::{self, Operation};
use super::error::{ApiError, FieldError};
use super::kinds::Kind;
use super::store::Refused;
use super::write::{Tracking, Write, check_envelope, note_unknown};
use super::{Api, crd, managers, meta, ports, read, shape};

impl Api {
    /// Creates an object: decode, default, admit, validate, store.
    pub async fn create(
        &self,
        kind: &Kind,
        namespace: &str,
        body: Value,
        write: &mut Write<'_>,
    ) -> Result<Arc<Value>, ApiError> {
        check_envelope(kind, &body)?;
        if let Some(refusal) = kind.not_run() {
            return Err(refusal);
        }
        let given = meta::namespace(&body);
        if kind.namespaced && !given.is_empty() && given != namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if !meta::resource_version(&body).is_empty() {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(ApiError::new(500, "", message));
        }
        let decoded = shape::decode(kind, &body)?;
        note_unknown(kind, decoded.unknown, write)?;
        let mut object = decoded.object;
        strip(kind, namespace, &mut object);
        self.check_namespace(kind, namespace, meta::name(&object))?;

        shape::apply_defaults(kind, &mut object);
        if write.tracking == Tracking::Updated {
            managers::note_update(kind, &write.manager, "", None, &mut object);
        }
        self.admit(kind, namespace, &mut object)?;
        let before = object.clone();
        let operation = Operation::Create;
        let mut object = admission::mutate(self, kind, operation, "", object, None, write).await?;
        if object != before {
            object = shape::decode(kind, &object)?.object;
            shape::apply_defaults(kind, &mut object);
            self.admit(kind, namespace, &mut object)?;
        }
        begin_life(kind, &mut object);
        self.settle(kind, &mut object);
        let errors = shape::validate(kind, &object, None);
        if !errors.is_empty() {
            return Err(ApiError::invalid(&kind.qualified(), meta::name(&object), &errors));
        }
        admission::validate(self, kind, operation, "", Some(&object), None, write).await?;
        write.warnings.extend(shape::warnings(kind, &object));
        self.insert(kind, object, write.dry_run)
    }

    /// What the API server's own admission does to a new object.
    fn admit(&self, kind: &Kind, namespace: &str, object: &mut Value) -> Result<(), ApiError> {
        if &*kind.resource != "pods" {
            return Ok(());
        }
        let wanted = match meta::text(object, "/spec/serviceAccountName") {
            "" => "default",
            name => name,
        };
        let mut account = self.store.get("serviceaccounts", namespace, wanted);
        if account.is_none() && self.config.controllers {
            // The controller may not have come round to a new namespace yet.
            self.furnish_namespace(namespace);
            account = self.store.get("serviceaccounts", namespace, wanted);
        }
        let Some(account) = account else {
            let why = format!(
                "error looking up service account {namespace}/{wanted}: serviceaccount \"{wanted}\" not found"
            );
            return Err(ApiError::forbidden("pods", meta::name(object), &why));
        };
        shape::admit_pod(object, Some(&account));
        Ok(())
    }

    /// Sets what follows from the finished specification.
    fn settle(&self, kind: &Kind, object: &mut Value) {
        match &*kind.resource {
            "pods" => {}
            "jobs.batch" => return shape::admit_job(object),
            "services" => return shape::settle_families(object),
            "customresourcedefinitions.apiextensions.k8s.io" => {
                object["status"] = crd::not_yet_established(object);
                return;
            }
            "namespaces" => {
                object["spec"] = json!({ "finalizers": ["kubernetes"] });
                object["status"] = json!({ "phase": "Active" });
                return shape::apply_defaults(kind, object);
            }
            _ => return,
        }
        let quality = shape::quality_of_service(object);
        object["status"] = json!({ "phase": "Pending", "qosClass": quality });
        // There is one node, so nothing is to be scheduled.
        if let Some(node) = &self.config.node
            && meta::text(object, "/spec/nodeName").is_empty()
        {
            object["spec"]["nodeName"] = json!(node);
            object["status"]["conditions"] = json!([{
                "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": meta::now(),
            }]);
        }
    }

    /// Content is only accepted in namespaces that exist and stay.
    fn check_namespace(&self, kind: &Kind, namespace: &str, name: &str) -> Result<(), ApiError> {
        if !kind.namespaced {
            return Ok(());
        }
        let Some(found) = self.store.get("namespaces", "", namespace) else {
            return Err(ApiError::not_found("namespaces", namespace));
        };
        if meta::deleting(&found) {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut error = ApiError::forbidden(&kind.resource, name, &why);
            error.details["causes"] = json!([{
                "reason": "NamespaceTerminating",
                "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace",
            }]);
            return Err(error);
        }
        Ok(())
    }

    fn insert(&self, kind: &Kind, mut object: Value, dry_run: bool) -> Result<Arc<Value>, ApiError> {
        // Held from the choice of an address until it is taken.
        let addresses = (&*kind.resource == "services").then(|| self.addresses.lock());
        if addresses.is_some() {
            self.assign_cluster_ip(&mut object)?;
            ports::assign(self, &mut object)?;
        }
        let name = meta::name(&object).to_owned();
        if let Some(existing) = self.store.get(&kind.resource, meta::namespace(&object), &name) {
            let mut error = ApiError::already_exists(&kind.resource, &name);
            if meta::deleting(&existing) {
                error.message = format!("object is being deleted: {}", error.message);
            }
            return Err(error);
        }
        if dry_run {
            return Ok(Arc::new(object));
        }
        let stored =
            self.store.insert(&kind.resource, read::as_stored(kind, object)).map_err(
                |refused| match refused {
                    Refused::Exists => ApiError::already_exists(&kind.resource, &name),
                    Refused::Missing | Refused::Stale => ApiError::modified(&kind.resource, &name),
                },
            )?;
        drop(addresses);
        if &*kind.resource == "customresourcedefinitions.apiextensions.k8s.io" {
            self.establish(&stored);
        }
        Ok(read::in_version(kind, stored))
    }

    /// Gives a Service its cluster IP, or checks the one it asks for.
    pub(super) fn assign_cluster_ip(&self, service: &mut Value) -> Result<(), ApiError> {
        let wanted = meta::text(service, "/spec/clusterIP").to_owned();
        if service["spec"]["type"] == "ExternalName" || wanted == "None" {
            return Ok(());
        }
        let services = self.store.list("services", None).0;
        let own = (meta::namespace(service), meta::name(service));
        let taken: Vec<&str> = services
            .iter()
            .filter(|other| (meta::namespace(other), meta::name(other)) != own)
            .map(|other| meta::text(other, "/spec/clusterIP"))
            .collect();
        let range = self.config.service_range;
        let refuse = |why: String| {
            let shown = json!([wanted]);
            let error = FieldError::invalid(
                "spec.clusterIPs",
                shown,
                format!("failed to allocate IP {wanted}: {why}"),
            );
            Err(ApiError::invalid("Service", meta::name(service), &[error]))
        };
        let chosen = if wanted.is_empty() {
            // From the second tenth on: low addresses are what people choose by hand (the API, DNS).
            let free = |ip: &std::net::Ipv4Addr| !taken.contains(&ip.to_string().as_str());
            match range.hosts().skip(256).find(free).or_else(|| range.hosts().skip(1).find(free)) {
                Some(ip) => ip.to_string(),
                None => return refuse("range is full".into()),
            }
        } else {
            match wanted.parse::<std::net::Ipv4Addr>() {
                Ok(ip) if range.contains(&ip) => {}
                Ok(_) => return refuse("the provided network does not match the current range".into()),
                Err(_) => return refuse("not a valid IP".into()),
            }
            if taken.contains(&wanted.as_str()) {
                return refuse("provided IP is already allocated".into());
            }
            wanted
        };
        service["spec"]["clusterIP"] = json!(chosen);
        service["spec"]["clusterIPs"] = json!([chosen]);
        Ok(())
    }
}

/// Removes what only the server may say, and what belongs to another subresource.
fn strip(kind: &Kind, namespace: &str, object: &mut Value) {
    let metadata = meta::metadata_mut(object);
    let own = [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "generation",
        "namespace",
    ];
    for field in own {
        metadata.remove(field);
    }
    if kind.namespaced {
        metadata.insert("namespace".into(), json!(namespace));
    }
    // A status comes from whoever runs the object, through its own path; nodes announce themselves whole.
    if kind.status && &*kind.resource != "nodes" {
        let fields = meta::object_mut_self(object);
        fields.remove("status");
        if ["apps", "batch"].contains(&kind.group.as_str()) || &*kind.resource == "pods" {
            fields.insert("status".into(), json!({}));
        }
    }
}

/// Name, id and time of a new object.
fn begin_life(kind: &Kind, object: &mut Value) {
    let metadata = meta::metadata_mut(object);
    let prefix = metadata.get("generateName").and_then(Value::as_str).unwrap_or("").to_owned();
    if metadata.get("name").and_then(Value::as_str).is_none_or(str::is_empty) && !prefix.is_empty() {
        metadata.insert("name".into(), json!(meta::generated_name(&prefix)));
    }
    metadata.insert("uid".into(), json!(uuid::Uuid::new_v4().to_string()));
    metadata.insert("creationTimestamp".into(), json!(meta::now()));
    if kind.generation {
        metadata.insert("generation".into(), json!(1));
    }
}
