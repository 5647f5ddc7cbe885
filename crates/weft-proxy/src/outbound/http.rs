//! Outbound HTTP: every request is routed, balanced and retried on its own.

use super::{Connection, endpoint::Member, load::Load};
use crate::{
    deadline::{Late, within},
    detect::Protocol,
    http::{
        body::{Body, Limits, Watch, grpc_status},
        filters::{self, Outcome},
        headers::{self, View},
        orig_proto,
        pool::{self, Answered, Failed, Lease},
        respond::{self, Audience, Detail, refusal},
        server::{self, Closing, Service},
        upgrade::{self, Upgrading},
        wellformed,
    },
    io::Io,
    metrics::{
        Balanced, Flavour,
        labels::Labels,
        route::{Exchange, OutboundBackend, OutboundRoute},
    },
    report::{self, Who},
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use std::{
    cell::{Cell, RefCell},
    error::Error,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    identity::Identity,
    meta::Meta,
    outbound::{
        BackendKind, Endpoint, FailureAccrual, HttpRoute, HttpRoutes, HttpRule, OutboundProtocol,
        RouteBackend, find_route,
    },
};
use weft_wire::record::Direction;

pub(super) mod refusing;
mod retry;
mod words;

/// Endpoints that are tried for one request.
const TRIES: usize = 3;

/// The HTTP side of one connection.
struct Requests {
    connection: Connection,
    closing: Closing,
    detail: Detail,
    connection_id: Option<HeaderValue>,
    /// The endpoint that the story names.
    told: Cell<Option<SocketAddr>>,
    /// Those whose connections it tells of.
    reached: RefCell<Vec<SocketAddr>>,
    /// The story has the way of the first request.
    routed: Cell<bool>,
    counted: RefCell<Vec<Rc<Counted>>>,
}

pub(super) async fn relay(connection: Connection, io: Io, protocol: Protocol) -> Result<(), Fault> {
    let mesh = connection.worker.mesh.clone();
    let detail = if mesh.config.outbound.informational_headers { Detail::Full } else { Detail::Nothing };
    let connection_id = HeaderValue::try_from(connection.story.id()).ok();
    let requests = Rc::new(Requests {
        connection,
        closing: Closing::default(),
        detail,
        connection_id,
        told: Cell::new(None),
        reached: RefCell::default(),
        routed: Cell::new(false),
        counted: RefCell::default(),
    });
    server::serve(io, protocol, &mesh.config.outbound.h2, &mesh.drain, requests).await
}

/// Endpoints of which one connection's story tells.
const REACHED: usize = 8;

/// The counters of one route and backend, so that a request formats no label.
struct Counted {
    /// The parent, the route and the backend.
    way: (Arc<Meta>, Arc<Meta>, Arc<Meta>),
    flavour: Flavour,
    route: Arc<OutboundRoute>,
    backend: Arc<OutboundBackend>,
}

/// More ways than this on one connection: the oldest counters are looked up again.
const COUNTED: usize = 16;

/// Why a request has no answer from a server.
enum NoAnswer {
    Fault(Fault),
    Reset(h2::Reason),
}

impl From<Fault> for NoAnswer {
    fn from(fault: Fault) -> Self {
        NoAnswer::Fault(fault)
    }
}

/// What a request is, apart from its head.
struct Kind {
    version: Version,
    grpc: bool,
    upgrades: bool,
    /// The target was absolute, which the server has to see again.
    absolute: bool,
    require: Option<Identity>,
}

/// Where a request goes.
struct Way<'r> {
    kind: &'r Kind,
    backend: &'r RouteBackend,
    strict: bool,
    accrual: Option<&'r FailureAccrual>,
}

/// A server's answer, and what hangs on its end.
struct Answer {
    response: Response<Body>,
    lease: Option<Lease>,
    load: Load,
    member: Rc<Member>,
}

impl Service for Requests {
    async fn call(
        self: Rc<Self>,
        request: Request<Body>,
    ) -> Result<Response<Body>, Box<dyn Error + Send + Sync>> {
        let begun = Instant::now();
        let audience =
            Audience { grpc: headers::is_grpc(&request), version: request.version(), detail: self.detail };
        let connection = &self.connection;
        match self.answer(request, begun, audience.grpc).await {
            Ok(response) => {
                connection.story.request(response.status().as_u16());
                Ok(response)
            }
            Err(NoAnswer::Reset(reason)) => Err(Box::new(h2::Error::from(reason))),
            Err(NoAnswer::Fault(fault)) => {
                let who = Who { client: connection.client, target: &connection.dst };
                let metrics = &connection.worker.mesh.metrics;
                report::request_failed(metrics, &connection.story, Direction::Outbound, who, &fault);
                let response = refusal(&fault, audience);
                connection.story.request(response.status().as_u16());
                if respond::closes(fault.code()) {
                    self.closing.close();
                }
                Ok(response)
            }
        }
    }

    fn closing(&self) -> &Closing {
        &self.closing
    }
}

struct InFlight<'a>(&'a Cell<usize>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl Requests {
    async fn answer(
        &self,
        mut request: Request<Body>,
        begun: Instant,
        grpc: bool,
    ) -> Result<Response<Body>, NoAnswer> {
        let connection = &self.connection;
        let _in_flight = self.admit()?;
        wellformed::check(&request)?;

        // 1. What kind of request is it, and what in its head is for this proxy?
        let kind = self.understand(&mut request, grpc);
        let client_upgrade = kind.upgrades.then(|| Upgrading::of_request(&mut request));

        // 2. Which way? One immutable view for the whole decision.
        let destination = connection.usable_destination().await;
        let (route, rule, accrual) = self.route(&destination.policy.protocol, &request, kind.version)?;
        match filters::request(&rule.filters, &mut request, &rule.matches) {
            Outcome::Forward => {}
            Outcome::Answer(response) => return Ok(*response),
            Outcome::Refuse(fault) => return Err(fault.into()),
        }
        let backend = connection.choose(&rule.backends)?;
        if !self.routed.replace(true) {
            let text = format!("first request: {}, to {}", route.meta, backend.backend.meta);
            connection.story.event(Phase::Route, text);
        }
        match filters::request(&backend.filters, &mut request, &rule.matches) {
            Outcome::Forward => {}
            Outcome::Answer(response) => return Ok(*response),
            Outcome::Refuse(fault) => return Err(fault.into()),
        }

        // 3. An endpoint's answer, in the time that the route gives.
        let way = Way { kind: &kind, backend, strict: destination.strict, accrual };
        let flavour = match &destination.policy.protocol {
            OutboundProtocol::Grpc(_) => Flavour::Grpc,
            _ => Flavour::Http,
        };
        let counted = self.counted(&destination.policy.meta, &route.meta, &backend.backend.meta, flavour);
        let mut exchange =
            Exchange::outbound(&counted.route, &counted.backend, flavour == Flavour::Grpc, begun);
        let request = request.map(|body| body.counted(&mut exchange));
        match self.exchange(request, &way, rule, begun, client_upgrade).await {
            Ok(response) => {
                let (status, grpc) = (response.status().as_u16(), grpc_status(response.headers()));
                Ok(response.map(|body| body.by_route(exchange, status, grpc)))
            }
            Err(none) => {
                exchange.fail(match &none {
                    NoAnswer::Fault(fault) => report::route_error(fault.code()),
                    NoAnswer::Reset(reason) => report::reset_error(*reason),
                });
                Err(none)
            }
        }
    }

    /// One request's way to an endpoint and its answer's way back.
    async fn exchange(
        &self,
        request: Request<Body>,
        way: &Way<'_>,
        rule: &HttpRule,
        begun: Instant,
        client_upgrade: Option<Upgrading>,
    ) -> Result<Response<Body>, NoAnswer> {
        let connection = &self.connection;
        let Way { kind, backend, .. } = way;

        let connects = kind.upgrades && request.method() == Method::CONNECT;
        let sending = self.send_and_retry(request, way, rule);
        let limit = [rule.timeouts.request, rule.timeouts.response].into_iter().flatten().min();
        let answer = match limit {
            None => sending.await?,
            Some(limit) => match within(limit, sending).await {
                Ok(answer) => answer?,
                Err(late) => return Err(self.late(limit, late).into()),
            },
        };

        // 4. What it says to the application.
        let Answer { mut response, lease, load, member } = answer;
        let carried = kind.version != Version::HTTP_2 && response.version() == Version::HTTP_2;
        if carried {
            orig_proto::downgrade_response(&mut response);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            || (connects && response.status().is_success())
        {
            let server = Upgrading::of_response(&mut response);
            if let Some(client) = client_upgrade {
                upgrade::bridge(
                    client,
                    server,
                    connection.story.clone(),
                    connection.worker.mesh.drain.clone(),
                    std::future::pending(),
                );
            }
            return Ok(response);
        }
        headers::strip_hop_by_hop(response.headers_mut(), false);
        self.remote_words(&mut response, &member);
        filters::response(&rule.filters, response.headers_mut());
        filters::response(&backend.filters, response.headers_mut());
        let watch = Box::new(Watch {
            series: member.series.borrow().clone(),
            begun,
            status: response.status().as_u16(),
            grpc: if kind.grpc { grpc_status(response.headers()) } else { None },
            is_grpc: kind.grpc,
            lease,
            load: Some(load),
            limits: Limits::new(begun, rule.timeouts.request, rule.timeouts.idle),
            exchange: None,
            held: None,
        });
        Ok(response.map(|body| body.watched(watch)))
    }

    /// The counters of a way, resolved once per connection.
    fn counted(
        &self,
        parent: &Arc<Meta>,
        route: &Arc<Meta>,
        backend: &Arc<Meta>,
        flavour: Flavour,
    ) -> Rc<Counted> {
        let way = (parent, route, backend);
        let mut all = self.counted.borrow_mut();
        let same = |c: &&Rc<Counted>| (&c.way.0, &c.way.1, &c.way.2) == way && c.flavour == flavour;
        if let Some(found) = all.iter().find(same) {
            return found.clone();
        }
        let metrics = &self.connection.worker.mesh.metrics;
        let of_route = Labels::new().object("parent", parent).route(route);
        let of_backend = of_route.clone().object("backend", backend);
        let counted = Rc::new(Counted {
            way: (parent.clone(), route.clone(), backend.clone()),
            flavour,
            route: metrics.outbound_route(flavour, &of_route.with("hostname", "")),
            backend: metrics.outbound_backend(flavour, &of_backend),
        });
        if all.len() == COUNTED {
            all.remove(0);
        }
        all.push(counted.clone());
        counted
    }

    fn admit(&self) -> Result<InFlight<'_>, Fault> {
        let worker = &self.connection.worker;
        let limit = worker.mesh.config.outbound.max_in_flight;
        let now = worker.in_flight.get();
        if now >= limit {
            return Err(Fault::new(Code::Overloaded).in_phase(Phase::Queue).fact("limit", limit));
        }
        worker.in_flight.set(now + 1);
        Ok(InFlight(&worker.in_flight))
    }

    fn understand(&self, request: &mut Request<Body>, grpc: bool) -> Kind {
        let version = request.version();
        let upgrades = headers::wants_upgrade(request);
        let absolute = version != Version::HTTP_2 && request.uri().authority().is_some() && !upgrades;
        let head = request.headers_mut();
        let require = head.remove(headers::REQUIRE_ID);
        let require = require.and_then(|value| Identity::parse(value.to_str().ok()?).ok());
        for name in [
            headers::DST_OVERRIDE,
            headers::DST_CANONICAL,
            headers::CLIENT_ID,
            headers::ORIG_PROTO,
            headers::PROXY_ERROR,
            headers::PROXY_CONNECTION,
            headers::CONNECTION_ID,
        ] {
            head.remove(name);
        }
        headers::strip_hop_by_hop(head, upgrades);
        Kind { version, grpc, upgrades, absolute, require }
    }

    fn route<'d>(
        &self,
        protocol: &'d OutboundProtocol,
        request: &Request<Body>,
        version: Version,
    ) -> Result<(&'d HttpRoute, &'d HttpRule, Option<&'d FailureAccrual>), Fault> {
        let routes: &HttpRoutes = match protocol {
            OutboundProtocol::Detect { http2, .. } if version == Version::HTTP_2 => http2,
            OutboundProtocol::Detect { http1, .. } => http1,
            OutboundProtocol::Http1(routes)
            | OutboundProtocol::Http2(routes)
            | OutboundProtocol::Grpc(routes) => routes,
            OutboundProtocol::Opaque(_) | OutboundProtocol::Tls(_) => {
                // The destination became opaque while this connection spoke HTTP: the next one will be opaque.
                self.closing.close();
                return Err(Fault::new(Code::NoRouteMatches)
                    .in_phase(Phase::Route)
                    .about(self.connection.dst)
                    .fact("reason", "the destination has become opaque"));
            }
        };
        let host = headers::host(headers::authority(request).unwrap_or_default());
        let view = View(request.headers());
        let found = find_route(routes, &headers::parts(request, &host, &view));
        found.map(|(route, rule)| (route, rule, routes.accrual.as_ref())).ok_or_else(|| {
            let tried: Vec<_> = routes.routes.iter().take(8).map(|route| route.meta.to_string()).collect();
            Fault::new(Code::NoRouteMatches)
                .in_phase(Phase::Route)
                .about(self.connection.dst)
                .fact("host", &host)
                .fact("tried", tried.join(" "))
        })
    }

    fn late(&self, limit: Duration, late: Late) -> Fault {
        Fault::new(Code::ResponseTimeout)
            .in_phase(Phase::ResponseHeaders)
            .about(self.connection.dst)
            .fact("limit_ms", limit.as_millis())
            .fact("waited_ms", late.waited.as_millis())
    }

    /// Sends the request to one endpoint after another, as long as it is certain that none has begun with it.
    async fn send(&self, mut request: Request<Body>, way: &Way<'_>) -> Result<Answer, NoAnswer> {
        let Way { kind, backend, strict, accrual } = *way;
        let connection = &self.connection;
        let limit = connection.worker.mesh.config.outbound.failfast_timeout;
        let fixed = matches!(backend.backend.kind, BackendKind::Forward(_));
        let mut tried: Vec<Rc<Member>> = Vec::new();
        let mut last: Option<Fault> = None;
        let mut stalls = 0;
        let mut known: Option<Arc<Endpoint>> = None;
        while tried.len() < TRIES {
            let member = match &known {
                Some(endpoint) if fixed => connection.worker.forward(endpoint, strict),
                _ => match connection.member(backend, strict, &tried, limit, Balanced::Http).await {
                    Ok(member) => member,
                    // Others were tried before: the count of them says more than "none is left".
                    Err(fault) if last.is_none() => return Err(fault.into()),
                    Err(_) => break,
                },
            };
            self.check_identity(&member, kind)?;
            let first = self.tell(&member);
            let load = member.load(accrual);
            // Only a peer that may be meshed, for all that is known, can ask to be spoken to otherwise.
            let again =
                known.is_none() && member.may_refuse_plaintext() && retry::is_repeatable(&request, kind);
            let again = again.then(|| pool::copy_of(&request));
            let fault = match self.send_to(&member, request, kind, first).await? {
                Ok(Answered { response, lease, made }) => {
                    let (status, head) = (response.status(), response.headers());
                    load.answered(&connection.worker, made.is_some(), status, head);
                    if let (true, Ok(pool)) = (first && self.reaches(&member), &member.pool) {
                        pool.tell(&connection.story, made);
                    }
                    if let Some(again) = again
                        && words::refuses_plaintext(&response, &member)
                    {
                        known = self.identity_after_refusal(backend, &member, limit).await;
                        if known.is_some() {
                            let text = "the peer refused plaintext; its identity is known now: sent again";
                            connection.story.event(Phase::Discover, text);
                            request = again;
                            continue;
                        }
                    }
                    return Ok(Answer { response, lease, load, member });
                }
                Err((fault, unsent)) => {
                    request = unsent;
                    fault
                }
            };
            connection.story.event(fault.phase().unwrap_or(Phase::Connect), fault.to_string());
            if fault.code() == Code::Stalled && stalls == 0 {
                // This process stood still: that says nothing about the endpoint.
                stalls += 1;
                last = Some(fault);
                continue;
            }
            member.failed(&connection.worker, &fault);
            if fixed {
                if member.endpoint().addr != connection.dst {
                    connection.worker.mesh.discovery.doubt(connection.dst, fault.code());
                }
                return Err(fault.into());
            }
            tried.push(member);
            last = Some(fault);
        }
        Err(match (&backend.backend.kind, last) {
            (BackendKind::Balance { path, ewma }, _) => {
                let balancer = connection.worker.balancer(path, *ewma);
                balancer.nothing(&balancer.refresh(&connection.worker), &tried).into()
            }
            (_, Some(fault)) => fault.into(),
            (_, None) => Fault::new(Code::Invariant).in_phase(Phase::Queue).into(),
        })
    }

    /// One endpoint. The inner error gives the request back, untouched. `first`: this connection did not use it before, so
    /// that the peer's recorder is told which connection of ours this is.
    async fn send_to(
        &self,
        member: &Rc<Member>,
        mut request: Request<Body>,
        kind: &Kind,
        first: bool,
    ) -> Result<Result<Answered, (Fault, Request<Body>)>, NoAnswer> {
        let pool = member.pool.as_ref().map_err(|_| self.connection.unknown(member))?;
        let endpoint = member.endpoint();
        if let Some(authority) = &endpoint.authority_override {
            override_authority(&mut request, authority);
        }
        if first
            && member.meshed
            && let Some(id) = &self.connection_id
        {
            request.headers_mut().insert(headers::CONNECTION_ID, id.clone());
        }
        let carries = kind.version != Version::HTTP_2 && !kind.upgrades && member.upgrades_http1();
        let sent = if carries {
            orig_proto::upgrade(&mut request, kind.absolute, &endpoint.addr.to_string());
            pool.send_h2(request).await
        } else if kind.version == Version::HTTP_2 {
            if request.uri().authority().is_none() {
                headers::absolute_form(&mut request, &endpoint.addr.to_string());
            }
            pool.send_h2(request).await
        } else {
            let alone = kind.upgrades || kind.version == Version::HTTP_10;
            pool.send_h1(request, alone).await
        };
        if !matches!(sent, Err(Failed::Unsent(..))) {
            member.series.borrow().request();
        }
        match sent {
            Ok(answered) => Ok(Ok(answered)),
            Err(Failed::Unsent(fault, mut unsent)) => {
                if carries {
                    orig_proto::restore(&mut *unsent);
                }
                unsent.headers_mut().remove(headers::CONNECTION_ID);
                Ok(Err((fault, *unsent)))
            }
            Err(Failed::Sent(unanswered)) => match unanswered.reset {
                Some(reason) if kind.version == Version::HTTP_2 => Err(NoAnswer::Reset(reason)),
                _ => Err(unanswered.fault.about(self.connection.dst).into()),
            },
        }
    }

    fn check_identity(&self, member: &Member, kind: &Kind) -> Result<(), Fault> {
        let Some(required) = &kind.require else { return Ok(()) };
        let endpoint = member.endpoint();
        let found = endpoint.identity.id();
        if found == Some(required) {
            return Ok(());
        }
        Err(Fault::new(Code::IdentityRequired)
            .in_phase(Phase::Connect)
            .peer(endpoint.addr)
            .fact("required", required)
            .fact("found", found.map_or("none", Identity::as_str)))
    }

    /// Is this endpoint new to the connection, and not the last of too many?
    fn reaches(&self, member: &Member) -> bool {
        let addr = member.endpoint().addr;
        let mut reached = self.reached.borrow_mut();
        let new = reached.len() < REACHED && !reached.contains(&addr);
        if new {
            reached.push(addr);
        }
        new
    }

    /// Tells the story when another endpoint is used than before; says whether that is so.
    fn tell(&self, member: &Member) -> bool {
        let endpoint = member.endpoint();
        if self.told.get() == Some(endpoint.addr) {
            return false;
        }
        self.told.set(Some(endpoint.addr));
        let story = &self.connection.story;
        member.tell(story);
        true
    }
}

/// Gateways are asked for the name that they know.
fn override_authority(request: &mut Request<Body>, authority: &str) {
    let (Ok(parsed), Ok(value)) =
        (authority.parse::<http::uri::Authority>(), HeaderValue::try_from(authority))
    else {
        return;
    };
    let head: &mut HeaderMap = request.headers_mut();
    head.remove(headers::DST_CANONICAL);
    if head.contains_key(header::HOST) {
        head.insert(header::HOST, value);
    }
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    if parts.authority.is_some() {
        parts.authority = Some(parsed);
    }
    *request.uri_mut() = http::Uri::from_parts(parts).unwrap_or_default();
}
