//! Outbound HTTP: every request is routed, balanced and retried on its own.

use super::{Connection, endpoint::Member, load::Load, request_failed};
use crate::{
    deadline::within,
    detect::Protocol,
    discovery::Destination,
    http::{
        body::{Body, ByClasses, Limits, Tell, Watch, grpc_status},
        filters::{self, Outcome},
        headers,
        instead::{self, InFlight, NoAnswer},
        orig_proto,
        pool::Lease,
        respond::{Audience, Detail, refusal},
        server::{self, Closing, Service},
        upgrade::{self, Upgrading},
        wellformed,
    },
    io::Io,
    latest::Latest,
    metrics::{
        Flavour, Metrics,
        exchange::{Attempt, Exchange, Sent},
    },
};
use ask::Kind;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use route::{ByService, Counted, Route};
use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    error::Error,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::Instant,
};
use waits::Waits;
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    http::Filter,
    meta::Meta,
    outbound::{
        FailureAccrual, HttpRoutes, HttpRule, OutboundPolicy, OutboundProtocol, RetryPolicy, RouteBackend,
        Timeouts,
    },
};

mod ask;
mod idle;
mod ingress;
mod mirror;
pub(super) mod refusing;
mod retry;
mod route;
mod send;
mod waits;
mod withdrawn;
mod words;

/// Endpoints that are tried for one request.
const TRIES: usize = 3;

/// The HTTP side of one connection.
pub(crate) struct Requests {
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
    /// Destinations that requests named.
    named: RefCell<Vec<(HeaderValue, Rc<Latest<Destination>>)>>,
    /// The policy of bytes last seen, and its routes for requests.
    of_bytes: RefCell<Option<(Arc<OutboundPolicy>, Rc<HttpRoutes>)>>,
}

pub(super) async fn relay(connection: Connection, io: Io, protocol: Protocol) -> Result<(), Fault> {
    let mesh = connection.worker.mesh.clone();
    let detail = if mesh.config.outbound.informational_headers { Detail::Full } else { Detail::Nothing };
    let requests = requests(connection, detail);
    let serving = server::serve(io, protocol, mesh.config.outbound_server(), &mesh.drain, requests.clone());
    tokio::select! {
        biased;
        ended = serving => ended,
        never = requests.close_when_withdrawn() => match never {},
    }
}

/// What answers the requests of one connection.
pub(crate) fn requests(connection: Connection, detail: Detail) -> Rc<Requests> {
    let connection_id = HeaderValue::try_from(connection.story.id()).ok();
    Rc::new(Requests {
        connection,
        closing: Closing::default(),
        detail,
        connection_id,
        told: Cell::new(None),
        reached: RefCell::default(),
        routed: Cell::new(false),
        counted: RefCell::default(),
        named: RefCell::default(),
        of_bytes: RefCell::default(),
    })
}

/// Endpoints of which one connection's story tells.
const REACHED: usize = 8;

/// Where a request goes, and what its route makes of it.
struct Way<'r> {
    kind: &'r Kind,
    route: &'r Meta,
    backend: &'r RouteBackend,
    strict: bool,
    accrual: Option<&'r FailureAccrual>,
    timeouts: Timeouts,
    retry: Option<Cow<'r, RetryPolicy>>,
    service: Option<ByService<'r>>,
    counted: &'r Counted,
    /// The end of the request's body, if it has one.
    sent: Option<Arc<Sent>>,
    waits: Waits,
}

/// A server's answer, and what hangs on its end.
struct Answer {
    response: Response<Body>,
    lease: Option<Lease>,
    load: Load,
    member: Rc<Member>,
    attempt: Attempt,
}

impl Service for Requests {
    async fn call(
        self: Rc<Self>,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Box<dyn Error + Send + Sync>> {
        let begun = Instant::now();
        let audience =
            Audience { grpc: headers::is_grpc(&request), version: request.version(), detail: self.detail };
        let connection = &self.connection;
        let watching = connection.worker.mesh.observers.outbound(&mut request, connection.client);
        let (response, fault) = match self.answer(request, begun, audience.grpc).await {
            Ok(response) => (response, None),
            Err(none) => {
                match instead::tell(none, audience, &self.closing, |fault| connection.request_failed(fault)) {
                    Ok((response, code)) => (response, Some(code)),
                    Err(reason) => {
                        watching.into_iter().for_each(|watching| watching.reset(reason));
                        return Err(Box::new(h2::Error::from(reason)));
                    }
                }
            }
        };
        connection.story.request(response.status().as_u16());
        Ok(match watching {
            Some(watching) => watching.answered(response, fault),
            None => response,
        })
    }

    fn refuse(&self, fault: &Fault) -> Response<Body> {
        let connection = &self.connection;
        connection.request_failed(fault);
        let audience = Audience { grpc: false, version: Version::HTTP_11, detail: self.detail };
        let response = refusal(fault, audience);
        connection.story.request(response.status().as_u16());
        response
    }

    fn metrics(&self) -> &Metrics {
        &self.connection.worker.mesh.metrics
    }

    fn abandoned(&self, fault: &Fault) {
        self.connection.request_failed(fault);
    }

    /// Whoever is beside the proxy is an application.
    fn of_proxy(&self) -> bool {
        false
    }

    fn closing(&self) -> &Closing {
        &self.closing
    }
}

/// Applies filters of a rule; `Some`: they answer.
fn filtered(
    destination: &Destination,
    filters: &[Filter],
    request: &mut Request<Body>,
    rule: &HttpRule,
) -> Result<Option<Response<Body>>, NoAnswer> {
    match filters::request(filters, request, &rule.matches) {
        Outcome::Forward => Ok(None),
        Outcome::Answer(response) => Ok(Some(*response)),
        Outcome::Inject(injected) if destination.policy.meta.kind() == "EgressNetwork" => {
            Err(NoAnswer::Injected(injected.by_egress_policy()))
        }
        Outcome::Inject(injected) => Err(NoAnswer::Injected(injected)),
        Outcome::Refuse(fault) => Err(fault.into()),
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
        let worker = &connection.worker;
        let _in_flight = InFlight::admit(&worker.in_flight, worker.mesh.config.outbound.max_in_flight)?;
        wellformed::check(&request)?;

        // 1. What kind of request is it, and what in its head is for this proxy?
        let kind = Kind::of(&mut request, grpc)?;
        let client_upgrade = kind.upgrades.then(|| Upgrading::of_request(&mut request));

        // 2. Which way? One immutable view for the whole decision.
        let destination = self.destination(&kind).await?;
        let routing = Instant::now();
        let routes = self.routes(&destination.policy, kind.version);
        let route = self.route(&destination, &routes, &request)?;
        connection.story.phases().observe(Phase::Route, routing.elapsed());
        let rule = route.rule;
        if let Some(response) = filtered(&destination, &rule.filters, &mut request, rule)? {
            return Ok(response);
        }
        let backend = connection.choose(&rule.backends)?;
        if !self.routed.replace(true) {
            let text = format!("first request: {}, to {}", route.meta, backend.backend.meta);
            connection.story.event(Phase::Route, text);
        }
        if let Some(response) = filtered(&destination, &backend.filters, &mut request, rule)? {
            return Ok(response);
        }
        let flavour = match &destination.policy.protocol {
            OutboundProtocol::Grpc(_) => Flavour::Grpc,
            _ => Flavour::Http,
        };
        let hostname = match headers::authority(&request) {
            Some(authority) if connection.worker.mesh.config.outbound.hostname_labels => {
                headers::host(authority).into_owned()
            }
            _ => String::new(),
        };
        let counted =
            self.counted(&destination.policy.meta, &route, &backend.backend.meta, flavour, &hostname);
        let mut way = self.way(&kind, &destination, &route, backend, &counted);
        if let Some(ByService { routes, .. }) = way.service
            && let Ok(name) = HeaderValue::try_from(&routes.name)
        {
            request.headers_mut().insert(headers::DST_CANONICAL, name);
        }
        let request = self.mirror(request, &kind, [&rule.filters, &backend.filters]);

        // 3. An endpoint's answer, in the time that the route gives.
        if let Some(service) = &counted.service {
            service.asked.request();
        }
        let phases = connection.story.phases();
        let mut exchange = Exchange::outbound(&counted.route, phases, flavour == Flavour::Grpc, begun);
        let timed = way.timeouts.idle.is_some();
        let request = request.map(|body| body.counted(&mut exchange, timed));
        way.sent = exchange.sent();
        match self.exchange(request, &way, rule, begun, client_upgrade).await {
            Ok(response) => {
                let (status, grpc) = (response.status().as_u16(), grpc_status(response.headers()));
                Ok(response.map(|body| body.by_route(exchange, status, grpc)))
            }
            Err(none) => {
                way.waits.out_of_time(exchange.is_sent());
                exchange.fail(none.route_error());
                if let Some(service) = &counted.service {
                    service.asked.failed(none.word(), None);
                }
                Err(none)
            }
        }
    }

    /// The route and what the request asks of it.
    fn way<'r>(
        &self,
        kind: &'r Kind,
        destination: &Destination,
        route: &Route<'r>,
        backend: &'r RouteBackend,
        counted: &'r Counted,
    ) -> Way<'r> {
        let rule = route.rule;
        let asked = kind.asked.as_ref().filter(|_| rule.allow_request_headers);
        Way {
            kind,
            route: route.meta,
            backend,
            strict: destination.strict,
            accrual: route.accrual,
            timeouts: asked.map_or(rule.timeouts, |asked| asked.timeouts(rule.timeouts)),
            retry: match asked {
                None => rule.retry.as_ref().map(Cow::Borrowed),
                Some(asked) => asked.retry(rule.retry.as_ref()),
            },
            service: route.service,
            counted,
            sent: None,
            waits: Waits::default(),
        }
    }

    /// For who outlives the request's answer.
    fn tell_failures(&self) -> Tell {
        let Connection { worker, story, client, dst, .. } = &self.connection;
        let (worker, story, client, dst) = (worker.clone(), story.clone(), *client, *dst);
        Box::new(move |fault| request_failed(&worker, &story, client, dst, fault))
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
        let sending = idle::guarded(way, self.send_and_retry(request, way));
        let answer = match way.timeouts.request {
            None => sending.await?,
            Some(limit) => match within(limit.saturating_sub(begun.elapsed()), sending).await {
                Ok(answer) => answer?,
                Err(late) => {
                    let fault = self.late(Code::ResponseTimeout, limit, late);
                    return Err(fault.fact("timeout", "request").into());
                }
            },
        };

        // 4. What it says to the application.
        let Answer { mut response, lease, load, member, attempt } = answer;
        let carried = kind.version != Version::HTTP_2 && response.version() == Version::HTTP_2;
        if carried {
            orig_proto::downgrade_response(&mut response);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            || (connects && response.status().is_success())
        {
            let server = Upgrading::of_response(&mut response);
            if let Some(client) = client_upgrade {
                let drain = connection.worker.mesh.drain.clone();
                let until = connection.until.as_ref().map(|until| until());
                let ends = async move {
                    match until {
                        Some(until) => until.await,
                        None => std::future::pending().await,
                    }
                };
                upgrade::bridge(client, server, connection.story.clone(), drain, ends);
            }
            return Ok(response);
        }
        headers::strip_hop_by_hop(response.headers_mut(), false);
        self.remote_words(&mut response, &member);
        filters::response(&rule.filters, response.headers_mut());
        filters::response(&backend.filters, response.headers_mut());
        let service = way.service.zip(way.counted.service.as_ref()).map(|(by, counted)| {
            let (classes, series) =
                (by.route.classes.clone(), [&counted.asked, &counted.actual].map(Arc::clone));
            Box::new(ByClasses { classes, series })
        });
        let watch = Box::new(Watch {
            series: member.series.borrow().clone(),
            begun,
            status: response.status().as_u16(),
            grpc: if kind.grpc { grpc_status(response.headers()) } else { None },
            is_grpc: kind.grpc,
            lease,
            load: Some(load),
            limits: Limits::new(begun, way.timeouts.request, way.timeouts.idle, way.sent.clone(), || {
                self.tell_failures()
            }),
            exchange: None,
            attempt: Some(attempt),
            late: false,
            held: None,
            service,
        });
        Ok(response.map(|body| body.watched(watch)))
    }
}
