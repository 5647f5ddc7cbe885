//! Inbound HTTP: every request is decided on its own.

use super::{
    Connection,
    gateway::{By, Gateway},
    limit::Limiter,
    withdraw::{self, Held, Hold},
};
use crate::{
    detect::Protocol,
    http::{
        body::{Body, Watch, grpc_status},
        client::Unanswered,
        filters::{self, Outcome},
        headers::{self, View},
        instead::{self, InFlight, NoAnswer},
        orig_proto,
        pool::{Failed, Lease},
        respond::{Audience, Detail, refusal},
        server::{self, Closing, Service},
        upgrade::{self, Upgrading},
        wellformed,
    },
    io::Io,
    latest::Latest,
    metrics::{
        Count, Flavour, Metrics,
        exchange::Exchange,
        labels::Labels,
        route::InboundRoute,
        series::{Counter, HttpSeries},
    },
    observe::{self, Watching},
    report::{self, Who},
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use std::{
    cell::{Cell, RefCell},
    error::Error,
    pin::pin,
    rc::Rc,
    sync::Arc,
    time::Instant,
};
use tokio::sync::watch;
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    http::Filter,
    identity::ClientTls,
    inbound::{Caller, Permit, Rule, ServerPolicy, authorize_http},
};
use weft_wire::record::Direction;

/// The HTTP side of one connection.
struct Requests {
    connection: Rc<Connection>,
    /// What comes here is for others.
    gateway: Option<Gateway>,
    policy: Latest<ServerPolicy>,
    /// The value of `l5d-client-id`.
    client_id: Option<HeaderValue>,
    detail: Detail,
    closing: Closing,
    counted: RefCell<Vec<Rc<Counted>>>,
    /// The policy last seen, and what it makes this client pass.
    limiter: RefCell<Option<(Arc<ServerPolicy>, Option<Limiter>)>>,
    /// The story has the way to the application.
    reached: Cell<bool>,
}

/// The counters of one permit, so that a request formats no label.
struct Counted {
    permit: Permit,
    /// What is under way by this permit.
    hold: Rc<Hold>,
    flavour: Flavour,
    /// Empty unless series are kept apart by it.
    authority: Box<str>,
    allowed: Arc<Counter>,
    series: Arc<HttpSeries>,
    by_route: Arc<InboundRoute>,
}

/// A request, as far as its answer depends on it.
#[derive(Clone, Copy)]
struct Asked {
    begun: Instant,
    is_grpc: bool,
    /// It is HTTP/1, and came over HTTP/2.
    carried: bool,
}

/// More permits than this on one connection: the oldest counters are looked up again.
const COUNTED: usize = 32;

pub(super) async fn relay(
    connection: Connection,
    mut io: Io,
    protocol: Protocol,
    policy: watch::Receiver<Arc<ServerPolicy>>,
    gateway: Option<Gateway>,
) -> Result<(), Fault> {
    let mesh = connection.worker.mesh.clone();
    if gateway.is_none() {
        connection.story.endpoint(connection.app);
    }
    let policy = Latest::new(policy);
    connection.count(&mut io, &policy.get());
    let client_id = connection.tls.client_id().and_then(|id| HeaderValue::from_str(id.as_str()).ok());
    // TLS alone makes no peer: anybody can speak it without a certificate.
    let meshed = connection.tls.client_id().is_some();
    let requests = Rc::new(Requests {
        connection: Rc::new(connection),
        gateway,
        policy,
        client_id,
        // Strangers learn the code and no more: it tells a mesh peer that came in plaintext by mistake what to doubt.
        detail: if meshed { Detail::Full } else { Detail::Code },
        closing: Closing::default(),
        counted: RefCell::default(),
        limiter: RefCell::default(),
        reached: Cell::new(false),
    });
    let changes = withdraw::each_change(&requests.policy, |now| requests.recheck(now));
    tokio::select! {
        biased;
        never = changes => match never {},
        ended = server::serve(io, protocol, mesh.config.inbound_server(), &mesh.drain, requests.clone()) => ended,
    }
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
        let observers = &connection.worker.mesh.observers;
        let watching = observers.inbound(&mut request, connection.client, &connection.tls, connection.app);
        let answered = {
            let answering = pin!(self.answer(request, begun, audience.grpc, watching.as_ref()));
            observe::measured(watching.as_ref(), answering).await
        };
        let (response, fault) = match answered {
            Ok(response) => (response, None),
            Err(none) => {
                match instead::tell(none, audience, &self.closing, |fault| report_failed(connection, fault)) {
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
        report_failed(connection, fault);
        let audience = Audience { grpc: false, version: Version::HTTP_11, detail: self.detail };
        let response = refusal(fault, audience);
        connection.story.request(response.status().as_u16());
        response
    }

    fn metrics(&self) -> &Metrics {
        &self.connection.worker.mesh.metrics
    }

    fn abandoned(&self, fault: &Fault) {
        report_failed(&self.connection, fault);
    }

    fn of_proxy(&self) -> bool {
        self.connection.tls.client_id().is_some()
    }

    fn closing(&self) -> &Closing {
        &self.closing
    }
}

pub(super) fn report_failed(connection: &Connection, fault: &Fault) {
    let who = Who { client: connection.client, target: &connection.app };
    let metrics = &connection.worker.mesh.metrics;
    report::request_failed(metrics, &connection.story, Direction::Inbound, who, fault);
}

impl Requests {
    /// Ends what is under way by permits that the new policy would not give.
    fn recheck(&self, now: &ServerPolicy) {
        let mut withdrawn = Vec::new();
        self.counted.borrow_mut().retain(|counted| {
            // Nothing is under way by it: the next request is decided anew.
            if Rc::strong_count(&counted.hold) == 1 {
                return true;
            }
            let Some(why) = self.connection.recheck(now, &counted.permit) else { return true };
            counted.hold.withdraw(&why);
            withdrawn.push(why);
            false
        });
        withdrawn.iter().for_each(|fault| report_failed(&self.connection, fault));
    }

    async fn answer(
        &self,
        request: Request<Body>,
        begun: Instant,
        is_grpc: bool,
        watching: Option<&Watching>,
    ) -> Result<Response<Body>, NoAnswer> {
        let worker = &self.connection.worker;
        let _in_flight = InFlight::admit(&worker.in_flight, worker.mesh.config.inbound.max_in_flight)?;
        wellformed::check(&request)?;
        let mut request = request;

        // 1. What was sent, before a proxy carried it over HTTP/2?
        let carried =
            if request.version() == Version::HTTP_2 { orig_proto::restore(&mut request) } else { None };

        // 2. May it? One immutable view for the whole decision.
        let policy = self.policy.get();
        let (permit, rule) = self.authorize(&policy, &request)?;
        if let Some(watching) = watching {
            watching.routed(permit.route().map(|route| &**route));
        }
        let flavour = match &policy.protocol {
            weft_model::inbound::Protocol::Grpc(_) => Flavour::Grpc,
            _ => Flavour::Http,
        };
        let mesh = &self.connection.worker.mesh;
        let authority = match headers::authority(&request) {
            Some(authority) if mesh.config.inbound.authority_labels => authority,
            _ => "",
        };
        let counted = self.counters(&policy, &permit, flavour, authority);
        let asked = Asked { begun, is_grpc, carried: carried.is_some() };
        counted.allowed.add(1);
        counted.series.request();
        let mut exchange =
            Exchange::inbound(&counted.by_route, mesh.metrics.phases(), flavour == Flavour::Grpc, begun);
        let request = request.map(|body| body.counted(&mut exchange, false));
        let hold = counted.hold.clone();
        let answered = tokio::select! {
            biased;
            answered = self.forward(request, asked, &policy, rule, &counted) => answered,
            why = hold.withdrawn() => Err(NoAnswer::Reported(why)),
        };
        match answered {
            Ok(response) => {
                let (status, grpc) = (response.status().as_u16(), grpc_status(response.headers()));
                Ok(response.map(|body| body.by_route(exchange, status, grpc)))
            }
            Err(none) => {
                // Inbound families do not say which error.
                exchange.fail("");
                counted.series.failed(none.word(), None);
                Err(none)
            }
        }
    }

    /// A request that was let in.
    async fn forward(
        &self,
        mut request: Request<Body>,
        asked: Asked,
        policy: &Arc<ServerPolicy>,
        rule: Option<&Rule>,
        counted: &Counted,
    ) -> Result<Response<Body>, NoAnswer> {
        let connection = &self.connection;
        let worker = &connection.worker;

        // 3. What the route changes, and what ends at this hop.
        let (filters, matches) = rule.map_or((&[][..], &[][..]), |rule| (&rule.filters, &rule.matches));
        match filters::request(filters, &mut request, matches) {
            Outcome::Forward => {}
            Outcome::Answer(response) => return Ok(*response),
            Outcome::Inject(injected) => return Err(NoAnswer::Injected(injected)),
            Outcome::Refuse(fault) => return Err(fault.into()),
        }
        // A probe that is told to come again later ends the pod. Probes come from outside of the mesh.
        let probes =
            counted.permit.is_by_probe_route() && !matches!(connection.tls, ClientTls::Terminated(_));
        if !probes {
            self.limit(policy)?;
        }
        if let Some(gateway) = &self.gateway {
            let response = Box::pin(self.pass_on(gateway, request, &counted.permit)).await?;
            return Ok(self.told(response, None, filters, asked, counted));
        }
        let upgrades = !asked.carried && headers::wants_upgrade(&request);
        let connects = upgrades && request.method() == Method::CONNECT;
        let client_upgrade = upgrades.then(|| Upgrading::of_request(&mut request));
        self.own_headers(&mut request, upgrades);

        // 4. The application.
        let app = worker.app(connection.app);
        let version = request.version();
        let sent = if version == Version::HTTP_2 {
            if request.uri().authority().is_none() {
                headers::absolute_form(&mut request, &connection.app.to_string());
            }
            app.send_h2(request).await
        } else {
            app.send_h1(request, upgrades || version == Version::HTTP_10).await
        };
        let answered = sent.map_err(|failed| self.failed(failed, version))?;
        if !self.reached.replace(true) {
            app.tell(&connection.story, answered.made);
        }

        // 5. Its answer, watched to the last byte.
        let mut response = answered.response;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            || (connects && response.status().is_success())
        {
            let server = Upgrading::of_response(&mut response);
            if let Some(client) = client_upgrade {
                // It outlives the HTTP connection, and looks out for itself.
                let (policy, permit) = (self.policy.watch(), counted.permit.clone());
                let (connection, drain) = (self.connection.clone(), worker.mesh.drain.clone());
                let story = connection.story.clone();
                let withdrawn = async move {
                    let why = connection.outlasts(policy, &permit).await;
                    report_failed(&connection, &why);
                };
                upgrade::bridge(client, server, story, drain, withdrawn);
            }
            return Ok(response);
        }
        headers::strip_hop_by_hop(response.headers_mut(), false);
        // These are the mesh's words: an application must not be able to speak for its proxy.
        response.headers_mut().remove(headers::PROXY_ERROR);
        response.headers_mut().remove(headers::PROXY_CONNECTION);
        let response = response.map(Body::of_outsider);
        Ok(self.told(response, answered.lease, filters, asked, counted))
    }

    /// An answer as the client gets it, watched to its last byte.
    fn told(
        &self,
        mut response: Response<Body>,
        lease: Option<Lease>,
        filters: &[Filter],
        asked: Asked,
        counted: &Counted,
    ) -> Response<Body> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return response;
        }
        filters::response(filters, response.headers_mut());
        if asked.carried {
            orig_proto::mark_response(&mut response);
        }
        let watch = Box::new(Watch {
            series: counted.series.clone(),
            begun: asked.begun,
            status: response.status().as_u16(),
            grpc: if asked.is_grpc { grpc_status(response.headers()) } else { None },
            is_grpc: asked.is_grpc,
            lease,
            load: None,
            limits: None,
            service: None,
            exchange: None,
            attempt: None,
            late: false,
            held: Some(Held::new(counted.hold.clone())),
        });
        response.map(|body| body.relayed().watched(watch))
    }

    /// Through a gateway to another service.
    async fn pass_on(
        &self,
        gateway: &Gateway,
        mut request: Request<Body>,
        permit: &Permit,
    ) -> Result<Response<Body>, NoAnswer> {
        self.learn_peer_id(request.headers_mut());
        let by = By { connection: &self.connection, policy: self.policy.watch(), permit };
        match gateway.request(request.map(Body::relayed), by).await? {
            Ok(mut response) => {
                if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                    headers::strip_hop_by_hop(response.headers_mut(), false);
                }
                Ok(response)
            }
            Err(error) => {
                let reset = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason);
                Err(NoAnswer::Reset(reset.unwrap_or(h2::Reason::INTERNAL_ERROR)))
            }
        }
    }

    /// Takes a share of the port's rate limit, if it has one.
    fn limit(&self, policy: &Arc<ServerPolicy>) -> Result<(), Fault> {
        let connection = &self.connection;
        let mut limiter = self.limiter.borrow_mut();
        if !limiter.as_ref().is_some_and(|(seen, _)| Arc::ptr_eq(seen, policy)) {
            let limits = &connection.worker.mesh.limits;
            let found = limits.limiter(connection.app.port(), policy, connection.tls.client_id());
            *limiter = Some((policy.clone(), found));
        }
        let Some((_, Some(limiter))) = &*limiter else { return Ok(()) };
        limiter.admit().map_err(|whose| {
            let labels = Labels::new().target(connection.app).server(&policy.meta, connection.app.port());
            connection.worker.mesh.metrics.counter(Count::InboundRateLimit, &labels).add(1);
            Fault::new(Code::RateLimited)
                .in_phase(Phase::Authorize)
                .about(connection.app)
                .peer(connection.client)
                .fact("limit", whose)
        })
    }

    fn authorize<'p>(
        &self,
        policy: &'p ServerPolicy,
        request: &Request<Body>,
    ) -> Result<(Permit, Option<&'p Rule>), Fault> {
        let connection = &self.connection;
        let caller = Caller { addr: connection.client.ip(), tls: &connection.tls };
        let host = headers::host(headers::authority(request).unwrap_or_default());
        let view = View(request.headers());
        let deciding = Instant::now();
        let decided = authorize_http(policy, &caller, &headers::parts(request, &host, &view));
        connection.story.phases().observe(Phase::Authorize, deciding.elapsed());
        match decided {
            Ok((permit, chosen)) => Ok((permit, chosen.map(|chosen| chosen.rule))),
            Err(denied) => {
                connection.story.decided(&policy.meta, None);
                Err(connection.asker().request_denied(&connection.worker.mesh.metrics, policy, &denied))
            }
        }
    }

    /// The counters that belong to a permit; also tells the story when another one decided than before.
    fn counters(
        &self,
        policy: &ServerPolicy,
        permit: &Permit,
        flavour: Flavour,
        authority: &str,
    ) -> Rc<Counted> {
        let mut all = self.counted.borrow_mut();
        if let Some(found) =
            all.iter().find(|c| c.permit == *permit && c.flavour == flavour && *c.authority == *authority)
        {
            return found.clone();
        }
        let connection = &self.connection;
        connection.story.decided(permit.server(), Some(permit.authorization()));
        let allowed = format!("allowed by {} of {}", permit.authorization(), permit.server());
        connection.story.event(Phase::Authorize, allowed);
        connection.audited(policy, permit);
        let mut labels = connection.asker().labels(permit);
        let metrics = &connection.worker.mesh.metrics;
        let by_route = Labels::new()
            .policy("parent", permit.server())
            .with("parent_port", connection.app.port())
            .inbound_route(permit.route().map(|route| &**route));
        let allowed = metrics.counter(Count::InboundHttpAuthzAllow, &labels);
        labels = labels.with("direction", "inbound");
        if !authority.is_empty() {
            labels = labels.with("authority", authority);
        }
        let series = metrics.http(&labels);
        if all.len() >= COUNTED {
            // Never one by which something is under way: a change of the policy must find it.
            if let Some(free) = all.iter().position(|c| Rc::strong_count(&c.hold) == 1) {
                all.remove(free);
            }
        }
        let counted = Rc::new(Counted {
            permit: permit.clone(),
            hold: Rc::default(),
            flavour,
            authority: authority.into(),
            allowed,
            series,
            by_route: metrics.inbound_route(flavour, &by_route),
        });
        all.push(counted.clone());
        counted
    }

    /// The client's proxy says which of its connections this is.
    fn learn_peer_id(&self, headers: &mut HeaderMap) {
        if let Some(id) = headers.remove(headers::CONNECTION_ID)
            && let Ok(id) = id.to_str()
        {
            self.connection.story.peer_id(id);
        }
    }

    fn own_headers(&self, request: &mut Request<Body>, upgrades: bool) {
        let headers = request.headers_mut();
        headers::strip_hop_by_hop(headers, upgrades);
        headers.remove(headers::PROXY_ERROR);
        headers.remove(headers::PROXY_CONNECTION);
        headers.remove(headers::DST_CANONICAL);
        self.learn_peer_id(headers);
        match &self.client_id {
            Some(id) => {
                headers.insert(headers::CLIENT_ID, id.clone());
            }
            None => {
                headers.remove(headers::CLIENT_ID);
            }
        }
    }

    fn failed(&self, failed: Failed, version: Version) -> NoAnswer {
        match failed {
            Failed::Unsent(fault, _) => fault.about(self.connection.app).into(),
            Failed::Sent(Unanswered { reset: Some(reason), .. }) if version == Version::HTTP_2 => {
                NoAnswer::Reset(reason)
            }
            Failed::Sent(unanswered) => unanswered.fault.about(self.connection.app).into(),
        }
    }
}
