//! Requests for objects of one kind: from the query and the body to a verb, and its answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::auth::User;
use super::body::{media_type, read_applied, read_object, read_patch};
use super::delete::{DeleteOptions, Deleted, Propagation};
use super::error::{ApiError, FieldError};
use super::kinds::Kind;
use super::read::{At, Filter};
use super::request::{Address, Query, parse_number};
use super::respond::{self, Asked, Body, Shown};
use super::selector::{FieldSelector, LabelSelector};
use super::update::Part;
use super::write::Write;
use super::{Api, apply, meta, watch};

/// A request for a resource that exists.
pub(super) struct Call<'a> {
    pub api: &'a Arc<Api>,
    pub user: &'a User,
    pub kind: Arc<Kind>,
    pub address: Address,
    pub query: Query,
}

impl Call<'_> {
    pub(super) async fn main(&self, request: Request<Bytes>) -> Result<Response<Body>, ApiError> {
        let named = !self.address.name.is_empty();
        let method = request.method().clone();
        if self.address.watch || (method == Method::GET && !named && self.query.flag("watch")) {
            let shown = Shown::negotiate(request.headers(), self.query.get("includeObject"), Asked::Watch)?;
            let mut filter = self.filter()?;
            filter.name = (self.address.watch && named).then(|| self.address.name.clone());
            let body = watch::open(self.api, &self.kind, self.namespace(), filter, shown, &self.query)?;
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            return Ok(response);
        }
        let asked = match (&method, named) {
            (&Method::GET, false) => Asked::List(&self.kind.list_kind),
            (&Method::DELETE, false) => Asked::Anything,
            _ => Asked::One(&self.kind.kind),
        };
        let shown = Shown::negotiate(request.headers(), self.query.get("includeObject"), asked)?;
        match (method, named) {
            (Method::GET, true) => {
                let object = self.api.get(&self.kind, &self.address.namespace, &self.address.name)?;
                Ok(shown.answer(StatusCode::OK, &shown.object(&self.kind, &object)))
            }
            (Method::GET, false) => self.list(shown).await,
            (Method::POST, false) => self.create(request, shown).await,
            (Method::PUT, true) => self.update(request, shown, Part::Main).await,
            (Method::PATCH, true) => self.patch(request, shown, Part::Main).await,
            (Method::DELETE, true) => self.delete(request, shown).await,
            (Method::DELETE, false) if self.kind.plural != "namespaces" => {
                self.delete_all(request, shown).await
            }
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    pub(super) async fn part(&self, request: Request<Bytes>, part: Part) -> Result<Response<Body>, ApiError> {
        let shown = Shown::negotiate(request.headers(), None, Asked::One(&self.kind.kind))?;
        match *request.method() {
            Method::GET => {
                let object = self.api.get(&self.kind, &self.address.namespace, &self.address.name)?;
                Ok(shown.answer(StatusCode::OK, &shown.object(&self.kind, &object)))
            }
            Method::PUT => self.update(request, shown, part).await,
            Method::PATCH => self.patch(request, shown, part).await,
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn namespace(&self) -> Option<&str> {
        self.address.namespaced.then_some(self.address.namespace.as_str())
    }

    fn filter(&self) -> Result<Filter, ApiError> {
        let selectable: Vec<&str> = self.kind.selectable.iter().map(String::as_str).collect();
        Ok(Filter {
            labels: LabelSelector::parse(self.query.get("labelSelector").unwrap_or(""))?,
            fields: FieldSelector::parse(
                self.query.get("fieldSelector").unwrap_or(""),
                &selectable,
                self.kind.is_custom(),
            )?,
            name: None,
        })
    }

    /// Who writes; one who names no field manager is named after the program.
    fn write(&self, request: &Request<Bytes>, options: &str) -> Result<Write<'_>, ApiError> {
        let manager = self.query.field_manager(options)?;
        let agent = request.headers().get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or("");
        let program: String = agent.split('/').next().unwrap_or("").chars().take(128).collect();
        let applied = media_type(request) == "application/apply-patch+yaml";
        Ok(Write {
            manager: if manager.is_empty() && !applied { program } else { manager.to_owned() },
            manager_named: !manager.is_empty(),
            dry_run: self.query.dry_run(options)?,
            validation: self.query.field_validation(options)?,
            ..Write::by(self.user)
        })
    }

    async fn list(&self, shown: Shown) -> Result<Response<Body>, ApiError> {
        let at = self.list_state().await?;
        let limit = self.query.number("limit")?.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0);
        let token = self.query.get("continue");
        let page = self.api.list(&self.kind, self.namespace(), &self.filter()?, at, limit, token)?;
        Ok(shown.answer(StatusCode::OK, &shown.list(&self.kind, &page)))
    }

    /// Which state a list may show, by `resourceVersion` and `resourceVersionMatch`.
    async fn list_state(&self) -> Result<At, ApiError> {
        let version = self.query.get("resourceVersion").unwrap_or("");
        let matching = self.query.get("resourceVersionMatch").unwrap_or("");
        let field = "resourceVersionMatch";
        let mut errors = Vec::new();
        if !matching.is_empty() {
            if version.is_empty() {
                let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
                errors.push(FieldError::forbidden(field, why));
            }
            if !["Exact", "NotOlderThan"].contains(&matching) {
                errors.push(FieldError::unsupported(field, matching, &["Exact", "NotOlderThan", ""]));
            }
            if matching == "Exact" && version == "0" {
                let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                errors.push(FieldError::forbidden(field, why));
            }
        }
        if self.query.get("sendInitialEvents").is_some() {
            let why = "sendInitialEvents is forbidden for list";
            errors.push(FieldError::forbidden("sendInitialEvents", why));
        }
        if !errors.is_empty() {
            return Err(ApiError::invalid("ListOptions.meta.k8s.io", "", &errors));
        }
        if version.is_empty() || version == "0" {
            return Ok(At::Now);
        }
        let revision: u64 = version.parse().map_err(|_| {
            let why = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
            ApiError::bad_request(format!(
                "invalid resource version: resourceVersion: Invalid value: {version:?}: {why}"
            ))
        })?;
        self.wait_for(revision).await?;
        let exact = matching == "Exact" || (matching.is_empty() && self.query.get("limit").is_some());
        Ok(if exact { At::Exactly(revision) } else { At::Now })
    }

    /// Waits a little for a revision that is not there yet, then says so.
    async fn wait_for(&self, revision: u64) -> Result<(), ApiError> {
        let mut seen = self.api.store.subscribe();
        let reached = seen.wait_for(|current| *current >= revision);
        if tokio::time::timeout(Duration::from_secs(3), reached).await.is_ok() {
            return Ok(());
        }
        let current = self.api.store.revision();
        let message = format!("Timeout: Too large resource version: {revision}, current: {current}");
        let mut error = ApiError::new(504, "Timeout", message);
        *error.details = json!({ "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }], "retryAfterSeconds": 1 });
        error.retry_after = Some(1);
        Err(error)
    }

    async fn create(&self, request: Request<Bytes>, shown: Shown) -> Result<Response<Body>, ApiError> {
        let mut write = self.write(&request, "CreateOptions")?;
        // Whatever the body is: clients send some of these kinds in forms that are not read.
        if let Some(refusal) = self.kind.not_run() {
            return Err(refusal);
        }
        let read = read_object(&request, &self.kind.kind)?;
        write.noticed = read.noticed;
        let object = self.api.create(&self.kind, &self.address.namespace, read.object, &mut write).await?;
        let mut response = shown.answer(StatusCode::CREATED, &shown.object(&self.kind, &object));
        respond::warn(&mut response, &write.warnings);
        Ok(response)
    }

    async fn update(
        &self,
        request: Request<Bytes>,
        shown: Shown,
        part: Part,
    ) -> Result<Response<Body>, ApiError> {
        let mut write = self.write(&request, "UpdateOptions")?;
        let read = read_object(&request, &self.kind.kind)?;
        write.noticed = read.noticed;
        let body = read.object;
        let (namespace, name) = (&self.address.namespace, &self.address.name);
        let change = |_: &Value| Ok(body.clone());
        let object = self.api.update(&self.kind, namespace, name, part, change, &mut write).await?;
        let mut response = shown.answer(StatusCode::OK, &shown.object(&self.kind, &object));
        respond::warn(&mut response, &write.warnings);
        Ok(response)
    }

    async fn patch(
        &self,
        request: Request<Bytes>,
        shown: Shown,
        part: Part,
    ) -> Result<Response<Body>, ApiError> {
        let media = media_type(&request);
        let mut write = self.write(&request, "PatchOptions")?;
        let (namespace, name) = (&self.address.namespace, &self.address.name);
        if media == "application/apply-patch+yaml" {
            let wanted = read_applied(request.body())?;
            let force = self.query.flag("force");
            let applied =
                apply::apply(self.api, &self.kind, namespace, name, part, wanted, force, &mut write);
            let (created, object) = applied.await?;
            let status = if created { StatusCode::CREATED } else { StatusCode::OK };
            let mut response = shown.answer(status, &shown.object(&self.kind, &object));
            respond::warn(&mut response, &write.warnings);
            return Ok(response);
        }
        if self.query.get("force").is_some() {
            let error = FieldError::forbidden("force", "may not be specified for non-apply patch");
            return Err(ApiError::invalid("PatchOptions.meta.k8s.io", "", &[error]));
        }
        let patch = read_patch(&media, &self.kind, request.body())?;
        write.patched = true;
        let change = |object: &Value| patch.apply(&self.kind, object);
        let object = self.api.update(&self.kind, namespace, name, part, change, &mut write).await?;
        let mut response = shown.answer(StatusCode::OK, &shown.object(&self.kind, &object));
        respond::warn(&mut response, &write.warnings);
        Ok(response)
    }

    pub(super) async fn scale(&self, request: Request<Bytes>) -> Result<Response<Body>, ApiError> {
        let (namespace, name) = (&self.address.namespace, &self.address.name);
        let shown =
            Shown::negotiate(request.headers(), self.query.get("includeObject"), Asked::One("Scale"))?;
        let mut write = self.write(&request, "UpdateOptions")?;
        let scale = match *request.method() {
            Method::GET => {
                let object = self.api.get(&self.kind, namespace, name)?;
                Api::scale_of(&self.kind, &object)
            }
            Method::PUT => {
                let body = read_object(&request, "Scale")?.object;
                let change = |_: &Value| Ok(body.clone());
                self.api.update_scale(&self.kind, namespace, name, change, &mut write).await?
            }
            Method::PATCH => {
                let media = media_type(&request);
                let patch = read_patch(&media, &self.kind, request.body())?;
                let change = |scale: &Value| {
                    // A patch without a version means whatever is current.
                    let mut scale = scale.clone();
                    meta::metadata_mut(&mut scale).remove("resourceVersion");
                    patch.apply(&self.kind, &scale)
                };
                self.api.update_scale(&self.kind, namespace, name, change, &mut write).await?
            }
            _ => return Err(ApiError::method_not_allowed()),
        };
        Ok(shown.answer(StatusCode::OK, &shown.scale(scale)))
    }

    /// Binds a pod to a node: schedulers of others may do so.
    pub(super) async fn bind(&self, request: Request<Bytes>) -> Result<Response<Body>, ApiError> {
        let mut write = self.write(&request, "CreateOptions")?;
        let body = read_object(&request, "Binding")?.object;
        let node = meta::text(&body, "/target/name").to_owned();
        let (namespace, name) = (&self.address.namespace, &self.address.name);
        let change = |pod: &Value| {
            let bound = meta::text(pod, "/spec/nodeName");
            if !bound.is_empty() {
                let why = format!("pod {name} is already assigned to node {bound:?}");
                return Err(ApiError::conflict("pods/binding", name, &why));
            }
            let mut pod = pod.clone();
            pod["spec"]["nodeName"] = json!(node);
            let conditions = meta::object_mut(&mut pod, "status").entry("conditions").or_insert(json!([]));
            if let Some(conditions) = conditions.as_array_mut() {
                conditions.retain(|condition| condition["type"] != "PodScheduled");
                conditions.push(json!({
                    "type": "PodScheduled", "status": "True", "lastProbeTime": null,
                    "lastTransitionTime": meta::now(),
                }));
            }
            Ok(pod)
        };
        self.api.update(&self.kind, namespace, name, Part::Binding, change, &mut write).await?;
        let status =
            json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
        Ok(Shown::JSON.answer(StatusCode::CREATED, &status))
    }

    async fn delete(&self, request: Request<Bytes>, shown: Shown) -> Result<Response<Body>, ApiError> {
        let mut write = self.write(&request, "DeleteOptions")?;
        let options = self.delete_options(&request, &mut write)?;
        let (namespace, name) = (&self.address.namespace, &self.address.name);
        let deleted = self.api.delete(&self.kind, namespace, name, &options, &mut write).await?;
        let whole = ["pods", "services", "serviceaccounts"].contains(&&*self.kind.resource);
        let mut response = match &deleted {
            Deleted::Gone(object) if !whole => {
                let mut details = json!({ "name": meta::name(object) });
                if !self.kind.group.is_empty() {
                    details["group"] = json!(self.kind.group);
                }
                details["kind"] = json!(self.kind.plural);
                details["uid"] = json!(meta::uid(object));
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
                });
                Shown::JSON.answer(StatusCode::OK, &status)
            }
            deleted => shown.answer(StatusCode::OK, &shown.object(&self.kind, deleted.object())),
        };
        respond::warn(&mut response, &write.warnings);
        Ok(response)
    }

    async fn delete_all(&self, request: Request<Bytes>, shown: Shown) -> Result<Response<Body>, ApiError> {
        let mut write = self.write(&request, "DeleteOptions")?;
        let options = self.delete_options(&request, &mut write)?;
        let page = self.api.list(&self.kind, self.namespace(), &self.filter()?, At::Now, 0, None)?;
        for object in &page.items {
            let deleted = self
                .api
                .delete(&self.kind, meta::namespace(object), meta::name(object), &options, &mut write)
                .await;
            match deleted {
                // Gone in the meantime is gone.
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(shown.answer(StatusCode::OK, &shown.list(&self.kind, &page)))
    }

    /// `DeleteOptions` from the query, or from the body where it has one.
    fn delete_options(
        &self,
        request: &Request<Bytes>,
        write: &mut Write<'_>,
    ) -> Result<DeleteOptions, ApiError> {
        let mut options = DeleteOptions {
            grace: self.query.get("gracePeriodSeconds").map(parse_number).transpose()?,
            propagation: self.query.get("propagationPolicy").map(Propagation::parse).transpose()?,
            ..DeleteOptions::default()
        };
        if request.body().is_empty() {
            return Ok(options);
        }
        let given = read_object(request, "DeleteOptions")?.object;
        if let Some(kind) = given["kind"].as_str()
            && kind != "DeleteOptions"
        {
            let version = meta::text(&given, "/apiVersion");
            let message = format!("no kind {kind:?} is registered for version {version:?}");
            return Err(ApiError::bad_request(message));
        }
        options.grace = meta::int(&given, "/gracePeriodSeconds").or(options.grace);
        if let Some(policy) = given["propagationPolicy"].as_str() {
            options.propagation = Some(Propagation::parse(policy)?);
        } else if given["orphanDependents"] == json!(true) {
            options.propagation = Some(Propagation::Orphan);
        }
        let precondition = |field: &str| given["preconditions"][field].as_str().map(str::to_owned);
        options.uid = precondition("uid");
        options.resource_version = precondition("resourceVersion");
        write.dry_run |= meta::items(&given, "/dryRun").contains(&json!("All"));
        Ok(options)
    }
}
