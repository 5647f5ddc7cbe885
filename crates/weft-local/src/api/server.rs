//! The way in: connections, authentication, and from a request to a verb.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use weft_fault::Fault;

use super::auth::{self, Action, User};
use super::delete::{DeleteOptions, Deleted, Propagation};
use super::error::{ApiError, FieldError};
use super::kinds::Kind;
use super::patch::Patch;
use super::read::{At, Filter};
use super::request::{Address, Query, parse_number};
use super::respond::{self, Body, Shown};
use super::selector::{FieldSelector, LabelSelector};
use super::update::Part;
use super::write::Write;
use super::{Api, Config, apply, connect, discovery, meta, openapi, protobuf, proxy, reviews, tls, watch};

/// The largest body that is read, as on a real server.
const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// How long a client may take over its TLS handshake, and over its request's body.
const PATIENCE: Duration = Duration::from_secs(10);
const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// How long an HTTP/1 connection may take until its next request is complete; so long may it idle.
const IDLE: Duration = Duration::from_secs(90);

/// How many connections one listener serves at a time; more wait.
const CONNECTIONS: usize = 1024;

/// A Kubernetes API server in memory. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ApiServer {
    api: Arc<Api>,
}

impl ApiServer {
    /// Makes a server with nothing in it but what every cluster has.
    pub fn new(config: Config) -> Result<Self, Fault> {
        Ok(Self { api: Arc::new(Api::new(config)?) })
    }

    /// The objects, for use within this process.
    pub fn api(&self) -> &Arc<Api> {
        &self.api
    }

    /// A kubeconfig for the administrator. Keep the file that holds it 0600.
    pub fn kubeconfig(&self, address: SocketAddr) -> String {
        tls::kubeconfig(&format!("https://{address}"), self.api.authority(), self.api.admin_token())
    }

    /// Serves a listener until the future is dropped. May be called for several.
    pub async fn serve(&self, listener: TcpListener) {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let acceptor = self.api.authority.acceptor();
        // Connections end with this future.
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let permit = room.clone().acquire_owned().await.expect("the semaphore is never closed");
            let (socket, peer) = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Out of descriptors, most likely: wait for some to be free.
                        tracing::warn!(%error, "API connection not accepted");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                },
                Some(_) = connections.join_next() => continue,
            };
            let _ = socket.set_nodelay(true);
            let (api, acceptor) = (self.api.clone(), acceptor.clone());
            connections.spawn(async move {
                let _permit = permit;
                let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, acceptor.accept(socket)).await else {
                    tracing::debug!(%peer, "TLS handshake with an API client failed");
                    return;
                };
                let service = service_fn(move |request| {
                    let api = api.clone();
                    async move { Ok::<_, std::convert::Infallible>(handle(&api, request).await) }
                });
                // The protocol is what was negotiated: to guess it from the first bytes would wait for those for ever.
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let mut builder = if http2 { builder.http2_only() } else { builder.http1_only() };
                builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
                builder.http2().timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(30));
                let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                if let Err(error) = served {
                    tracing::debug!(%peer, error, "API connection ended");
                }
            });
        }
    }

    /// Serves an ephemeral port on loopback in a task of its own: for tests.
    pub async fn spawn_on_loopback(&self) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind((IpAddr::from([127, 0, 0, 1]), 0)).await?;
        let address = listener.local_addr()?;
        let server = self.clone();
        tokio::spawn(async move { server.serve(listener).await });
        Ok(address)
    }
}

/// Answers one request; every refusal becomes a Status.
async fn handle(api: &Arc<Api>, request: Request<Incoming>) -> Response<Body> {
    let head = request.method() == Method::HEAD;
    match route(api, request).await {
        Ok(response) if head => response.map(|_| respond::full("")),
        Ok(response) => response,
        Err(error) => {
            let mut response = respond::failure(&error);
            if error.code == 401 {
                let challenge = HeaderValue::from_static("Basic realm=\"kubernetes-master\"");
                response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            }
            response
        }
    }
}

async fn route(api: &Arc<Api>, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let path = request.uri().path().to_owned();
    let query = Query::parse(request.uri().query().unwrap_or(""));
    let user = authenticate(api, &request)?;
    let address = Address::parse(&path);
    if let Some(address) = &address
        && ["pods", "services"].contains(&address.plural.as_str())
        && ["exec", "attach", "proxy"].contains(&address.subresource.as_str())
    {
        return stream(api, &user, address, &query, request).await;
    }
    // Read before anything is decided, so that a refusal does not cost the client its connection.
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts, read_body(body).await?);
    let Some(address) = address else {
        let action = Action { verb: "get", path: Some(&path), ..Action::default() };
        if !auth::may(&api.store, &user, &action) {
            return Err(action.refusal(&user));
        }
        return outside_resources(api, &request, &path);
    };
    let kind = api.kinds.find(&address.group, &address.version, &address.plural);
    let verb = verb_of(request.method(), &address, &query);
    allow(api, &user, verb, &address)?;
    if reviews::is_review(&address) {
        if request.method() != Method::POST {
            return Err(ApiError::method_not_allowed());
        }
        let body = read_object(&request)?;
        let answer = reviews::review(api, &user, &address, body)?;
        return Ok(Shown::JSON.answer(StatusCode::CREATED, &answer));
    }
    let Some(kind) = kind else {
        return Err(ApiError::no_such_resource());
    };
    if kind.namespaced && !address.namespaced && !address.name.is_empty() && !address.watch {
        return Err(ApiError::no_such_resource());
    }
    if !kind.namespaced && address.namespaced {
        return Err(ApiError::no_such_resource());
    }
    let call = Call { api, user: &user, kind, address, query };
    match call.address.subresource.as_str() {
        "" => call.main(request).await,
        "status" if call.kind.status => call.part(request, Part::Status).await,
        "finalize" if call.kind.plural == "namespaces" => call.part(request, Part::Finalize).await,
        "scale" if call.kind.scale => call.scale(request).await,
        "token" if call.kind.plural == "serviceaccounts" => {
            let body = read_object(&request)?;
            let answer = reviews::issue_token(api, &call.address, &body)?;
            Ok(Shown::JSON.answer(StatusCode::CREATED, &answer))
        }
        "binding" if call.kind.plural == "pods" => call.bind(request).await,
        "log" if call.kind.plural == "pods" => connect::logs(api, &call.address, &call.query).await,
        "portforward" if call.kind.plural == "pods" => Err(connect::no_port_forward(api, &call.address)),
        _ => Err(ApiError::no_such_resource()),
    }
}

/// Requests whose bodies are streams.
async fn stream(
    api: &Arc<Api>,
    user: &User,
    address: &Address,
    query: &Query,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let known = api.kinds.find(&address.group, &address.version, &address.plural).is_some();
    if !known || !address.namespaced {
        return Err(ApiError::no_such_resource());
    }
    match address.subresource.as_str() {
        "proxy" => {
            // A port or scheme is no part of the name that roles speak of.
            let name =
                address.name.split(':').find(|part| !["", "http", "https"].contains(part)).unwrap_or("");
            let named = Address { name: name.to_owned(), ..address.clone() };
            allow(api, user, verb_of(request.method(), address, query), &named)?;
            proxy::forward(api, address, request).await
        }
        "exec" | "attach" if address.plural == "pods" => {
            // Opening a shell is a creation, whatever the method of the upgrade is.
            allow(api, user, "create", address)?;
            connect::upgrade(api, address, query, request)
        }
        _ => Err(ApiError::no_such_resource()),
    }
}

/// Refuses what the user may not do.
fn allow(api: &Api, user: &User, verb: &str, address: &Address) -> Result<(), ApiError> {
    let action = Action {
        verb,
        group: &address.group,
        resource: &address.plural,
        subresource: &address.subresource,
        namespace: &address.namespace,
        name: &address.name,
        path: None,
    };
    if auth::may(&api.store, user, &action) { Ok(()) } else { Err(action.refusal(user)) }
}

/// Who calls. Health and version are open to everybody, like on a real server.
fn authenticate(api: &Api, request: &Request<Incoming>) -> Result<User, ApiError> {
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or("");
    let token = match header.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Some(token.trim()),
        _ => None,
    };
    let Some(token) = token.filter(|token| !token.is_empty()) else {
        let open = ["/healthz", "/livez", "/readyz", "/version"];
        if header.is_empty() && open.contains(&request.uri().path()) {
            return Ok(User { name: "system:anonymous".into(), ..User::default() });
        }
        return Err(ApiError::unauthorized());
    };
    let same = |known: &str| {
        aws_lc_rs::constant_time::verify_slices_are_equal(known.as_bytes(), token.as_bytes()).is_ok()
    };
    if same(&api.admin_token) {
        return Ok(User::admin());
    }
    if let Some((_, user)) = api.config.tokens.iter().find(|(known, _)| same(known)) {
        return Ok(user.clone());
    }
    match auth::service_account(&api.tokens, &api.store, token, &[]) {
        Ok((user, _)) => Ok(user),
        Err(why) => {
            tracing::debug!(why = why.0, "API token refused");
            Err(ApiError::unauthorized())
        }
    }
}

/// Everything that is no resource: discovery, schemas, version, health.
fn outside_resources(api: &Api, request: &Request<Bytes>, path: &str) -> Result<Response<Body>, ApiError> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return Err(ApiError::method_not_allowed());
    }
    match path.trim_end_matches('/') {
        "/healthz" | "/livez" | "/readyz" => Ok(respond::plain(StatusCode::OK, "ok")),
        "/version" => Ok(Shown::JSON.answer(StatusCode::OK, &discovery::version())),
        "/openapi/v2" => Ok(openapi::v2(request.headers())),
        path if path.starts_with("/openapi/v3") => Ok(openapi::v3(api, path)),
        path if path.starts_with("/api") => Ok(discovery::answer(api, path, request.headers())),
        _ => Ok(respond::plain(StatusCode::NOT_FOUND, "404 page not found\n")),
    }
}

/// The verb as authorisation names it.
fn verb_of(method: &Method, address: &Address, query: &Query) -> &'static str {
    let named = !address.name.is_empty();
    match *method {
        Method::GET | Method::HEAD if address.watch || (!named && query.flag("watch")) => "watch",
        Method::GET | Method::HEAD if named => "get",
        Method::GET | Method::HEAD => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => "unknown",
    }
}

/// Reads a body within the limits of size and time.
async fn read_body(body: Incoming) -> Result<Bytes, ApiError> {
    let body = Limited::new(body, BODY_LIMIT).collect();
    match tokio::time::timeout(BODY_PATIENCE, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {BODY_LIMIT}"),
        )
        .with_details(json!({}))),
        Ok(Err(error)) => Err(ApiError::bad_request(format!("unable to read the body: {error}"))),
        Err(_) => Err(ApiError::new(408, "Timeout", "the body of the request did not arrive in time")),
    }
}

fn media_type(request: &Request<Bytes>) -> String {
    let value = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    value.split(';').next().unwrap_or("").trim().to_owned()
}

/// Reads a body that is an object, in JSON or YAML.
fn read_object(request: &Request<Bytes>) -> Result<Value, ApiError> {
    let body = request.body();
    let unreadable = |why: String| {
        let shown = if body.is_empty() { "<empty>".to_owned() } else { String::new() };
        ApiError::bad_request(
            format!("couldn't get version/kind; json parse error: {why} {shown}").trim_end(),
        )
    };
    let unsupported = || {
        ApiError::new(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json, \
             application/yaml",
        )
    };
    match media_type(request).as_str() {
        "" | "application/json" => serde_json::from_slice(body).map_err(|e| unreadable(e.to_string())),
        "application/yaml" => {
            let text = std::str::from_utf8(body).map_err(|e| unreadable(e.to_string()))?;
            serde_saphyr::from_str(text).map_err(|e| unreadable(e.to_string()))
        }
        "application/vnd.kubernetes.protobuf" => protobuf::decode(body).ok_or_else(unsupported),
        _ => Err(unsupported()),
    }
}

/// A request for a resource that exists.
struct Call<'a> {
    api: &'a Arc<Api>,
    user: &'a User,
    kind: Arc<Kind>,
    address: Address,
    query: Query,
}

impl Call<'_> {
    async fn main(&self, request: Request<Bytes>) -> Result<Response<Body>, ApiError> {
        let named = !self.address.name.is_empty();
        let method = request.method().clone();
        if self.address.watch || (method == Method::GET && !named && self.query.flag("watch")) {
            let shown = Shown::negotiate(request.headers(), self.query.get("includeObject"), true)?;
            let mut filter = self.filter()?;
            filter.name = (self.address.watch && named).then(|| self.address.name.clone());
            let body = watch::open(self.api, &self.kind, self.namespace(), filter, shown, &self.query)?;
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            return Ok(response);
        }
        let shown = Shown::negotiate(request.headers(), self.query.get("includeObject"), false)?;
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

    async fn part(&self, request: Request<Bytes>, part: Part) -> Result<Response<Body>, ApiError> {
        let shown = Shown::negotiate(request.headers(), None, false)?;
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
            fields: FieldSelector::parse(self.query.get("fieldSelector").unwrap_or(""), &selectable)?,
            name: None,
        })
    }

    fn write(&self, options: &str) -> Result<Write<'_>, ApiError> {
        self.query.field_manager(options)?;
        Ok(Write {
            user: self.user,
            dry_run: self.query.dry_run(options)?,
            validation: self.query.field_validation(options)?,
            warnings: Vec::new(),
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
        let mut write = self.write("CreateOptions")?;
        let body = read_object(&request)?;
        let object = self.api.create(&self.kind, &self.address.namespace, body, &mut write).await?;
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
        let mut write = self.write("UpdateOptions")?;
        let body = read_object(&request)?;
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
        let mut write = self.write("PatchOptions")?;
        let (namespace, name) = (&self.address.namespace, &self.address.name);
        if media == "application/apply-patch+yaml" {
            let manager = self.query.field_manager("PatchOptions")?.to_owned();
            let wanted = parse_patch_yaml(request.body())?;
            let force = self.query.flag("force");
            let applied = apply::apply(
                self.api, &self.kind, namespace, name, part, wanted, &manager, force, &mut write,
            );
            let (created, object) = applied.await?;
            let status = if created { StatusCode::CREATED } else { StatusCode::OK };
            let mut response = shown.answer(status, &shown.object(&self.kind, &object));
            respond::warn(&mut response, &write.warnings);
            return Ok(response);
        }
        let patch = read_patch(&media, request.body())?;
        let change = |object: &Value| patch.apply(&self.kind, object);
        let object = self.api.update(&self.kind, namespace, name, part, change, &mut write).await?;
        let mut response = shown.answer(StatusCode::OK, &shown.object(&self.kind, &object));
        respond::warn(&mut response, &write.warnings);
        Ok(response)
    }

    async fn scale(&self, request: Request<Bytes>) -> Result<Response<Body>, ApiError> {
        let (namespace, name) = (&self.address.namespace, &self.address.name);
        let mut write = self.write("UpdateOptions")?;
        let scale = match *request.method() {
            Method::GET => {
                let object = self.api.get(&self.kind, namespace, name)?;
                Api::scale_of(&self.kind, &object)
            }
            Method::PUT => {
                let body = read_object(&request)?;
                let change = |_: &Value| Ok(body.clone());
                self.api.update_scale(&self.kind, namespace, name, change, &mut write).await?
            }
            Method::PATCH => {
                let media = media_type(&request);
                let patch = read_patch(&media, request.body())?;
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
        Ok(Shown::JSON.answer(StatusCode::OK, &scale))
    }

    /// Binds a pod to a node: schedulers of others may do so.
    async fn bind(&self, request: Request<Bytes>) -> Result<Response<Body>, ApiError> {
        let mut write = self.write("CreateOptions")?;
        let body = read_object(&request)?;
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
            Ok(pod)
        };
        self.api.update(&self.kind, namespace, name, Part::Main, change, &mut write).await?;
        let status =
            json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
        Ok(Shown::JSON.answer(StatusCode::CREATED, &status))
    }

    async fn delete(&self, request: Request<Bytes>, shown: Shown) -> Result<Response<Body>, ApiError> {
        let mut write = self.write("DeleteOptions")?;
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
        let mut write = self.write("DeleteOptions")?;
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
        let body = request.body();
        if body.is_empty() {
            return Ok(options);
        }
        let given: Value = serde_json::from_slice(body).map_err(|e| {
            ApiError::bad_request(format!("couldn't get version/kind; json parse error: {e}"))
        })?;
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

fn read_patch(media: &str, body: &[u8]) -> Result<Patch, ApiError> {
    let known = [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ];
    if !known.contains(&media) {
        return Err(
            ApiError::new(415, "UnsupportedMediaType", "415: Unsupported Media Type").with_details(json!({}))
        );
    }
    let value: Value = serde_json::from_slice(body)
        .map_err(|e| ApiError::bad_request(format!("error decoding patch: {e}")))?;
    Ok(match media {
        "application/json-patch+json" => Patch::Json(value),
        "application/merge-patch+json" => Patch::Merge(value),
        _ => Patch::Strategic(value),
    })
}

fn parse_patch_yaml(body: &[u8]) -> Result<Value, ApiError> {
    let unreadable = |why: String| ApiError::bad_request(format!("error decoding YAML: {why}"));
    let text = std::str::from_utf8(body).map_err(|e| unreadable(e.to_string()))?;
    serde_saphyr::from_str(text).map_err(|e| unreadable(e.to_string()))
}
