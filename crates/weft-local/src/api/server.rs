//! The way in: connections, authentication, and from a request to a verb.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use weft_fault::Fault;

use super::auth::{self, Action, User};
use super::body::read_object;
use super::call::Call;
use super::error::ApiError;
use super::request::{Address, Query};
use super::respond::{self, Body, Shown};
use super::selector::FieldSelector;
use super::update::Part;
use super::{Api, Config, connect, discovery, left_out, openapi, port_forward, proxy, reviews, tls};

/// The largest body that is read, as on a real server.
const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// How much is read of a body that nobody wants.
const DRAINED: usize = 256 * 1024;

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
        Err(error) => respond::failure(&error),
    }
}

async fn route(api: &Arc<Api>, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let path = request.uri().path().to_owned();
    let query = Query::parse(request.uri().query().unwrap_or(""));
    let user = match authenticate(api, &request) {
        Ok(user) => user,
        Err(error) => {
            // A client that is still writing reads its answer only then.
            let _ =
                tokio::time::timeout(PATIENCE, Limited::new(request.into_body(), DRAINED).collect()).await;
            return Err(error);
        }
    };
    let address = Address::parse(&path);
    let user = impersonate(api, user, &request, address.as_ref(), &query)?;
    if let Some(address) = &address
        && ["pods", "services"].contains(&address.plural.as_str())
        && ["exec", "attach", "portforward", "proxy"].contains(&address.subresource.as_str())
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
    match FieldSelector::pinned(query.get("fieldSelector").unwrap_or("")) {
        Some(name) if ["list", "watch", "deletecollection"].contains(&verb) && address.name.is_empty() => {
            allow(api, &user, verb, &Address { name: name.to_owned(), ..address.clone() })?;
        }
        _ => allow(api, &user, verb, &address)?,
    }
    if reviews::is_review(&address) {
        if request.method() != Method::POST {
            return Err(ApiError::method_not_allowed());
        }
        let body = read_object(&request, reviews::kind_of(&address))?.object;
        let answer = reviews::review(api, &user, &address, body)?;
        return Ok(Shown::JSON.answer(StatusCode::CREATED, &answer));
    }
    let Some(kind) = kind else {
        // Built-in groups refuse what they lack; nobody at all answers for others.
        return if api.kinds.is_built_in(&address.group) {
            Err(ApiError::no_such_resource())
        } else {
            Ok(respond::plain(StatusCode::NOT_FOUND, "404 page not found\n"))
        };
    };
    if kind.namespaced && !address.namespaced && !address.name.is_empty() && !address.watch {
        return Err(ApiError::no_such_resource());
    }
    if !kind.namespaced && address.namespaced {
        return Err(ApiError::no_such_resource());
    }
    let deprecated = kind.deprecated.clone();
    let mut response = serve(Call { api, user: &user, kind, address, query }, request).await?;
    if let Some(deprecated) = deprecated {
        respond::warn_first(&mut response, &deprecated);
    }
    Ok(response)
}

/// Answers a request for a resource that exists, or for a part of it.
async fn serve(call: Call<'_>, request: Request<Bytes>) -> Result<Response<Body>, ApiError> {
    let api = call.api;
    match call.address.subresource.as_str() {
        "" => call.main(request).await,
        "status" if call.kind.status => call.part(request, Part::Status).await,
        "finalize" if call.kind.plural == "namespaces" => call.part(request, Part::Finalize).await,
        "scale" if call.kind.scale => call.scale(request).await,
        "token" if call.kind.plural == "serviceaccounts" => {
            let body = read_object(&request, "TokenRequest")?.object;
            let answer = reviews::issue_token(api, &call.address, &body)?;
            Ok(Shown::JSON.answer(StatusCode::CREATED, &answer))
        }
        "binding" if call.kind.plural == "pods" => call.bind(request).await,
        "log" if call.kind.plural == "pods" => connect::logs(api, &call.address, &call.query).await,
        subresource => {
            let part = (call.kind.plural == "pods").then(|| left_out::part_of_pod(subresource)).flatten();
            let Some(refusal) = part else { return Err(ApiError::no_such_resource()) };
            // That there is no such pod comes first.
            api.get(&call.kind, &call.address.namespace, &call.address.name)?;
            Err(refusal)
        }
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
        "exec" | "attach" | "portforward" if address.plural == "pods" => {
            // Opening a shell is a creation, whatever the method of the upgrade is.
            allow(api, user, "create", address)?;
            if address.subresource == "portforward" {
                return port_forward::upgrade(api, address, query, request);
            }
            connect::upgrade(api, address, query, request)
        }
        _ => Err(ApiError::no_such_resource()),
    }
}

fn action_on<'a>(verb: &'a str, address: &'a Address) -> Action<'a> {
    Action {
        verb,
        group: &address.group,
        resource: &address.plural,
        subresource: &address.subresource,
        namespace: &address.namespace,
        name: &address.name,
        path: None,
    }
}

/// Refuses what the user may not do.
fn allow(api: &Api, user: &User, verb: &str, address: &Address) -> Result<(), ApiError> {
    let action = action_on(verb, address);
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

/// Whom the caller acts as: somebody else, where it says so and may.
fn impersonate(
    api: &Api,
    user: User,
    request: &Request<Incoming>,
    address: Option<&Address>,
    query: &Query,
) -> Result<User, ApiError> {
    let values = |name: &str| -> Vec<String> {
        let values = request.headers().get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.map(str::to_owned).collect()
    };
    let (names, mut groups) = (values("impersonate-user"), values("impersonate-group"));
    let Some(name) = names.into_iter().next() else {
        if groups.is_empty() {
            return Ok(user);
        }
        let message = format!("requested {groups:?} without impersonating a user");
        return Err(ApiError::internal(message));
    };
    let may = |resource: &str, name: &str| {
        let action = Action { verb: "impersonate", resource, name, ..Action::default() };
        auth::may(&api.store, &user, &action)
    };
    if !may("users", &name) || !groups.iter().all(|group| may("groups", group)) {
        let Some(address) = address else {
            return Err(Action {
                verb: "impersonate",
                path: Some(request.uri().path()),
                ..Action::default()
            }
            .refusal(&user));
        };
        let verb = format!("impersonate-on:user-info:{}", verb_of(request.method(), address, query));
        return Err(action_on(&verb, address).refusal(&user));
    }
    if name != "system:anonymous" {
        groups.push("system:authenticated".to_owned());
    }
    Ok(User { name, groups, ..User::default() })
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
        path if path.starts_with("/openapi/v3") => Ok(openapi::v3(api, path, request)),
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
