//! Outbound bytes of any kind: one endpoint per connection.

use super::{Connection, balance::Queue, endpoint::Member};
use crate::{
    discovery::Destination,
    io::{Io, Refused},
    metrics::{Balanced, Transport, balancer::Closed, labels::Labels},
    report::{self, Who},
};
use std::{
    cell::Cell,
    io,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    http::HostMatch,
    identity::PeerIdentity,
    outbound::{
        BackendKind, Distribution, OpaqueRoute, OpaqueRoutes, OutboundProtocol, Refusal, RouteBackend,
    },
};
use weft_net::copy::{self, CopyError, Side};
use weft_wire::record::Direction;
use words::Heard;

mod words;

/// Endpoints that are tried for one connection.
const TRIES: usize = 3;

/// `early`: a server that spoke before the client did, and the connection on which it spoke.
pub(super) async fn relay(
    connection: Connection,
    mut io: Io,
    sni: Option<String>,
    early: Option<(Rc<Member>, Io)>,
) -> Result<(), Fault> {
    let ended = forward(&connection, &mut io, sni, early).await;
    if ended.is_err() {
        // The application must not take an orderly end for a complete answer.
        io.abort();
    }
    ended
}

/// As [`relay`], for a connection that others own.
pub(crate) async fn forward(
    connection: &Connection,
    io: &mut Io,
    sni: Option<String>,
    early: Option<(Rc<Member>, Io)>,
) -> Result<(), Fault> {
    // 1. The route, and what it allows.
    let destination = connection.usable_destination().await;
    let routing = connection.story.timed(Phase::Route);
    let routes = destination.policy.protocol.opaque();
    let route = route(&routes, sni.as_deref());
    drop(routing);
    let route =
        route.ok_or_else(|| Fault::new(Code::NoRouteMatches).in_phase(Phase::Route).about(connection.dst))?;
    let (transport, balanced) = match &destination.policy.protocol {
        OutboundProtocol::Tls(_) => (Transport::Tls, Balanced::Tls),
        _ => (Transport::Tcp, Balanced::Tcp),
    };
    let labels = Labels::new().object("parent", &destination.policy.meta).route(&route.meta);
    let counted = connection.worker.mesh.metrics.transport_route(transport, &labels);
    counted.open();
    let ended = take(connection, io, &destination, route, balanced, early).await;
    counted.close(match &ended {
        Ok(()) => Closed::Orderly,
        Err(fault) => match fault.code() {
            Code::EgressDenied => Closed::Forbidden,
            Code::BackendInvalid | Code::NoBackend => Closed::InvalidBackend,
            Code::PolicyInvalid => Closed::InvalidPolicy,
            _ => Closed::Unexpected,
        },
    });
    ended
}

/// A connection on its route.
async fn take(
    connection: &Connection,
    io: &mut Io,
    destination: &Destination,
    route: &OpaqueRoute,
    balanced: Balanced,
    early: Option<(Rc<Member>, Io)>,
) -> Result<(), Fault> {
    if let Some(refusal) = &route.refuses {
        return Err(refused(refusal, connection.dst).fact("route", &route.meta));
    }
    // A ServiceProfile's shares take bytes as well as requests; its routes do not.
    let shares = destination.service.as_ref().and_then(|service| service.shares.as_ref());
    let chosen = connection.choose(shares.unwrap_or(&route.backends));
    let backend = chosen.map_err(|fault| fault.fact("route", &route.meta))?;
    connection.story.event(Phase::Route, format!("{}, to {}", route.meta, backend.backend.meta));

    // 2. An endpoint that takes the connection. Nothing was sent before it does, so others may be tried.
    let (member, server) = match early {
        Some((member, server)) => {
            member.tell(&connection.story);
            connection.story.event(Phase::Detect, "the server spoke first");
            (member, server)
        }
        None => connection.connect(backend, destination.strict, balanced).await?,
    };
    io.accept().await?;
    let _load = member.load(balanced, None);
    let (mut server, refused) = Heard::new(server, connection.may_be_refused(&member));

    // 3. Copy, until both ends have ended or the endpoint turns out to be another than it was dialled as.
    let received = Cell::new(0_u64);
    let mut passed = |side, count: usize| {
        if side == Side::Server {
            received.set(received.get() + count as u64);
        }
    };
    let _copying = connection.story.timed(Phase::Copy);
    tokio::select! {
        biased;
        fault = connection.outdated(backend, &member) => Err(fault),
        copied = copy::both_ways(io, &mut server, &mut passed) => {
            copied.map_err(|error| {
                // Nor must the server, for a complete request.
                server.get_mut().abort();
                connection.broken(&member, error, received.get())
            })
        }
        // After the copying, which has passed the refusal on: the next connection is made right.
        () = refused.heard() => {
            connection.refused(&member);
            Ok(())
        }
    }
}

/// A route that refuses everything.
pub(crate) fn refused(refusal: &Refusal, dst: SocketAddr) -> Fault {
    let fault = |code| Fault::new(code).in_phase(Phase::Route).about(dst);
    match refusal {
        Refusal::Forbidden => fault(Code::EgressDenied),
        Refusal::Invalid(why) => fault(Code::BackendInvalid).fact("reason", why),
    }
}

fn route<'r>(routes: &'r OpaqueRoutes, sni: Option<&str>) -> Option<&'r OpaqueRoute> {
    match sni {
        None => routes.routes.first(),
        Some(sni) => routes
            .routes
            .iter()
            .filter_map(|route| Some((HostMatch::best(&route.hosts, sni)?, route)))
            // The first of equals wins: `max_by_key` would take the last.
            .rev()
            .max_by_key(|(specificity, _)| *specificity)
            .map(|(_, route)| route),
    }
}

impl Connection {
    /// One of a route's backends: the first that may serve, or by weight among those that may.
    pub(super) fn choose<'r>(&self, backends: &'r Distribution) -> Result<&'r RouteBackend, Fault> {
        let none = || Fault::new(Code::NoBackend).in_phase(Phase::Route).about(self.dst);
        let worker = &self.worker;
        match backends {
            Distribution::Empty => Err(none()),
            // Without a choice there is nothing to find out.
            Distribution::FirstAvailable(backends) if backends.len() == 1 => Ok(&backends[0]),
            Distribution::FirstAvailable(backends) => backends
                .iter()
                .find(|b| worker.may_serve(&b.backend))
                // Failover is what this distribution is for. If none may serve, the first says why.
                .or(backends.first())
                .ok_or_else(none),
            Distribution::RandomAvailable(backends) => {
                if let [(only, _)] = backends.as_slice() {
                    return Ok(only);
                }
                // A backend that is known to have nothing gets no share: its weight is the others'. Its requests would fail
                // while there are servers that could answer them; once it has endpoints it has its share again.
                let weight = |usable: bool| {
                    let all = backends.iter().filter(|(b, _)| !usable || worker.may_serve(&b.backend));
                    all.map(|(_, weight)| u64::from(*weight)).sum::<u64>()
                };
                let usable = weight(true) > 0;
                let total = weight(usable);
                if total == 0 {
                    return Err(none());
                }
                let mut at = rand::random_range(0..total);
                for (backend, weight) in backends {
                    if usable && !worker.may_serve(&backend.backend) {
                        continue;
                    }
                    match at.checked_sub(u64::from(*weight)) {
                        Some(rest) => at = rest,
                        None => return Ok(backend),
                    }
                }
                Err(none())
            }
        }
    }

    /// The next endpoint to try of a backend.
    pub(super) async fn member(
        &self,
        backend: &RouteBackend,
        strict: bool,
        tried: &[Rc<Member>],
        limit: Duration,
        balanced: Balanced,
    ) -> Result<Rc<Member>, Fault> {
        match &backend.backend.kind {
            BackendKind::Forward(endpoint) => Ok(self.worker.forward(endpoint, strict)),
            BackendKind::Balance { path, ewma } => {
                let balancer = self.worker.balancer(path, *ewma);
                let parent = self.destination.get().policy.meta.clone();
                let series = balancer.counts(&self.worker, &parent, &backend.backend.meta, balanced);
                let (asked, begun) = (series.asked(limit), Instant::now());
                let config = &self.worker.mesh.config.outbound;
                let queue = match balanced {
                    Balanced::Http => config.queue_capacity,
                    Balanced::Tcp | Balanced::Tls => config.tcp_queue_capacity,
                };
                let picked =
                    balancer.pick(&self.worker, tried, Queue { of: balanced, limit, capacity: queue }).await;
                let waited = begun.elapsed();
                asked.served(picked.is_ok(), waited);
                self.worker.mesh.metrics.phase(Phase::Queue, waited);
                picked
            }
            BackendKind::Invalid(why) => {
                let fault = Fault::new(Code::BackendInvalid).in_phase(Phase::Route);
                Err(fault.about(&backend.backend.meta).fact("reason", why))
            }
        }
    }

    /// The fault of a fixed endpoint whose identity is unknown.
    pub(super) fn unknown(&self, member: &Member) -> Fault {
        let endpoint = member.endpoint();
        let fault = Fault::new(Code::IdentityUnknown).in_phase(Phase::Connect).about(endpoint.addr);
        match &member.pool {
            Err(why) => fault.fact("reason", why.as_str()),
            Ok(_) => fault,
        }
    }

    async fn connect(
        &self,
        backend: &RouteBackend,
        strict: bool,
        balanced: Balanced,
    ) -> Result<(Rc<Member>, Io), Fault> {
        let limit = self.worker.mesh.config.outbound.tcp_failfast_timeout;
        let mut tried: Vec<Rc<Member>> = Vec::new();
        let mut last: Option<Fault> = None;
        let mut stalled = false;
        while tried.len() < TRIES {
            let member = match self.member(backend, strict, &tried, limit, balanced).await {
                Ok(member) => member,
                // Others were tried before: the count of them says more than "none is left".
                Err(fault) if last.is_none() => return Err(fault),
                Err(_) => break,
            };
            let Ok(pool) = &member.pool else { return Err(self.unknown(&member)) };
            member.tell(&self.story);
            if let BackendKind::Balance { path, .. } = &backend.backend.kind {
                self.story.concrete(path);
            }
            let begun = Instant::now();
            match pool.dial(crate::connect::Sessions::OPAQUE).await {
                Ok((io, made)) => {
                    member.standing.connected(begun.elapsed());
                    pool.tell(&self.story, Some(made));
                    member.works(&self.worker);
                    return Ok((member, io));
                }
                Err(fault) => {
                    self.story.event(fault.phase().unwrap_or(Phase::Connect), fault.to_string());
                    if fault.code() == Code::Stalled && !stalled {
                        // This process stood still: that says nothing about the endpoint.
                        stalled = true;
                        last = Some(fault);
                        continue;
                    }
                    // Nor does it that others were before us.
                    if fault.code() != Code::ConnectsQueued {
                        member.failed(&self.worker, &fault);
                    }
                    if matches!(backend.backend.kind, BackendKind::Forward(_)) {
                        return Err(fault);
                    }
                    tried.push(member);
                    last = Some(fault);
                }
            }
        }
        Err(match &backend.backend.kind {
            BackendKind::Balance { path, ewma } => {
                let balancer = self.worker.balancer(path, *ewma);
                balancer.nothing(&balancer.refresh(&self.worker), &tried)
            }
            _ => last.unwrap_or_else(|| Fault::new(Code::Invariant)),
        })
    }

    /// Returns when the endpoint, still at its address, has become another: an identity was learned or changed. A
    /// plaintext connection to a pod that is meshed ends then, so that the next one is made right.
    async fn outdated(&self, backend: &RouteBackend, member: &Member) -> Fault {
        let dialled = member.endpoint();
        let changed = |now: Option<&weft_model::outbound::Endpoint>| {
            now.is_some_and(|now| now.identity != dialled.identity && now.identity.id().is_some())
        };
        let now_meshed = match &backend.backend.kind {
            BackendKind::Balance { path, .. } => {
                let mut watch = self.worker.mesh.discovery.endpoints(path);
                loop {
                    let state = watch.borrow_and_update().clone();
                    if let crate::discovery::Lookup::Answered(weft_model::outbound::Endpoints::Known(all)) =
                        &state.lookup
                        && changed(all.iter().find(|e| e.addr == dialled.addr).map(|e| &**e))
                    {
                        break true;
                    }
                    if watch.changed().await.is_err() {
                        break false;
                    }
                }
            }
            _ => {
                let mut watch = self.destination.watch();
                loop {
                    let now = watch.borrow_and_update().clone();
                    if let Some(route) = route(&now.policy.protocol.opaque(), None)
                        && let Ok(RouteBackend { backend, .. }) = self.choose(&route.backends)
                        && let BackendKind::Forward(endpoint) = &backend.kind
                        && endpoint.addr == dialled.addr
                        && changed(Some(endpoint))
                    {
                        break true;
                    }
                    if watch.changed().await.is_err() {
                        break false;
                    }
                }
            }
        };
        if !now_meshed {
            return std::future::pending().await;
        }
        Fault::new(Code::IdentityMismatch)
            .in_phase(Phase::Copy)
            .peer(dialled.addr)
            .fact("expected", dialled.identity.id().map_or("none", |id| id.as_str()))
            .fact("reason", "the endpoint's identity became known while connected")
    }

    /// Was an in-cluster endpoint dialled in plaintext for want of an identity?
    fn may_be_refused(&self, member: &Member) -> bool {
        let endpoint = member.endpoint();
        let in_cluster = self.worker.mesh.config.in_cluster(endpoint.addr.ip());
        !member.meshed && in_cluster && matches!(endpoint.identity, PeerIdentity::Unknown(_))
    }

    /// The endpoint's proxy refused plaintext: it is meshed, whatever is known of it.
    fn refused(&self, member: &Member) {
        let (addr, code) = (member.endpoint().addr, Code::PlaintextRefused);
        self.doubt(addr, code);
        let fault = Fault::new(code)
            .in_phase(Phase::Copy)
            .about(self.dst)
            .peer(addr)
            .fact("reported_by", "the peer's proxy");
        let who = Who { client: self.client, target: &self.dst };
        let metrics = &self.worker.mesh.metrics;
        report::connection_failed(metrics, &self.story, Direction::Outbound, who, &fault);
    }

    fn doubt(&self, addr: SocketAddr, code: Code) {
        let discovery = &self.worker.mesh.discovery;
        discovery.doubt(addr, code);
        if addr != self.dst {
            discovery.doubt(self.dst, code);
        }
    }

    fn broken(&self, member: &Member, error: CopyError, received: u64) -> Fault {
        if let Some(Refused(words)) = error.error.get_ref().and_then(|error| error.downcast_ref()) {
            // As with HTTP, the code that the peer's words begin with is what failed.
            let code = words.split([' ', ':']).next().and_then(Code::find).unwrap_or(Code::PeerReported);
            return Fault::new(code)
                .in_phase(Phase::Copy)
                .about(self.dst)
                .peer(member.endpoint().addr)
                .fact("reported_by", "the peer's proxy")
                .fact("text", words);
        }
        let reset = error.error.kind() == io::ErrorKind::ConnectionReset;
        let code = if reset { Code::ConnectionReset } else { Code::NetworkIo };
        let endpoint = member.endpoint();
        // A meshed pod that was dialled in plaintext and refuses strangers ends the connection just so.
        if reset && error.side == Side::Server && matches!(endpoint.identity, PeerIdentity::Unknown(_)) {
            self.doubt(endpoint.addr, code);
        }
        let side = if error.side == Side::Client { "application" } else { "peer" };
        let refused = reset && error.side == Side::Server && received == 0 && member.meshed;
        let mut fault = Fault::new(code).in_phase(Phase::Copy).about(self.dst).peer(endpoint.addr);
        if refused {
            fault = fault.fact("likely", "the peer's proxy refused the connection or lost its application");
        }
        fault.fact("side", side).fact("received_bytes", received).because(error)
    }
}
