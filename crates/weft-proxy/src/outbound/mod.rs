//! Outbound: one connection of the own application, from `accept` to its last byte. Read top to bottom.

pub(crate) mod balance;
pub(crate) mod endpoint;
mod first;
pub(crate) mod http;
pub(crate) mod load;
pub(crate) mod opaque;

use crate::{
    accept,
    connect::Millis,
    deadline::within,
    detect::{self, Protocol},
    discovery::{Destination, Lookup},
    io::{Io, Transport},
    latest::Latest,
    mesh::Mesh,
    metrics::{Count, labels::Labels},
    record::Story,
    report::{self, Who},
};
use balance::Balancer;
use endpoint::{Member, Siblings};
use first::Early;
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    net::SocketAddr,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    identity::NoTls,
    outbound::{
        Backend, BackendKind, ConnectionKey, Distribution, Endpoint, EwmaConfig, OutboundProtocol,
        ProtocolHint,
    },
};
use weft_net::{
    prefixed::Prefixed,
    socket::{Accepted, Listener},
};
use weft_tls::hello::Hello;
use weft_wire::record::Direction;

/// What the outbound connections of one worker share.
pub(crate) struct Worker {
    pub(crate) mesh: Arc<Mesh>,
    epoch: Instant,
    /// By name; one for each way to take the load of its endpoints, mostly one.
    balancers: RefCell<HashMap<String, Vec<Rc<Balancer>>>>,
    /// Fixed endpoints, by what a connection to them depends on and whether guessing is allowed.
    forwards: RefCell<HashMap<(ConnectionKey, bool), Rc<Member>>>,
    pub(crate) in_flight: Cell<usize>,
    /// Copies of requests under way.
    pub(crate) mirrors: Cell<usize>,
}

/// A connection of the application.
pub(crate) struct Connection {
    pub(crate) worker: Rc<Worker>,
    pub(crate) story: Rc<Story>,
    pub(crate) client: SocketAddr,
    pub(crate) dst: SocketAddr,
    pub(crate) destination: Latest<Destination>,
    /// Where somebody else has a say in how long an upgraded connection lasts: a gateway's policy.
    pub(crate) until: Option<Until>,
}

/// Makes a future that resolves when an upgraded connection has to end.
pub(crate) type Until = Rc<dyn Fn() -> Pin<Box<dyn Future<Output = ()>>>>;

fn request_failed(worker: &Worker, story: &Story, client: SocketAddr, dst: SocketAddr, fault: &Fault) {
    let who = Who { client, target: &dst };
    report::request_failed(&worker.mesh.metrics, story, Direction::Outbound, who, fault);
}

impl Connection {
    /// Reports a request's failure.
    fn request_failed(&self, fault: &Fault) {
        request_failed(&self.worker, &self.story, self.client, self.dst, fault);
    }

    /// The newest answer. One that cannot be used before an identity is known is waited for, as long as a request waits
    /// for an endpoint.
    pub(crate) async fn usable_destination(&self) -> Arc<Destination> {
        self.usable(&self.destination).await
    }

    /// The same for another destination than the original one.
    async fn usable(&self, latest: &Latest<Destination>) -> Arc<Destination> {
        let destination = latest.get();
        if !destination.awaits_identity {
            return destination;
        }
        let mut watch = latest.watch();
        let known = watch.wait_for(|destination| !destination.awaits_identity);
        let limit = self.worker.mesh.config.outbound.failfast_timeout;
        // In vain: whoever dials says why it must not.
        let _in_time = tokio::time::timeout(limit, known).await;
        latest.get()
    }
}

/// How long the first connection to a name waits for its endpoints to say that they are opaque. What it would do next, if
/// it were HTTP, is to wait for the same answer.
const HINT_WAIT: Duration = Duration::from_secs(1);
const SWEEP: Duration = Duration::from_secs(1);
/// For fixed endpoints, where nothing is chosen.
const ANY_EWMA: EwmaConfig = EwmaConfig::DEFAULT;

/// Serves a listener on this worker until the drain is over. Must run in a local runtime: connections stay on it.
pub async fn serve(mesh: Arc<Mesh>, listener: Listener) {
    let worker = Worker::new(mesh.clone());
    let sweeping = tokio::task::spawn_local(sweep(worker.clone()));
    let phases = mesh.metrics.phases().clone();
    accept::run(listener, mesh.drain.clone(), phases, |accepted| connection(worker.clone(), accepted)).await;
    sweeping.abort();
}

/// Takes in endpoint changes without traffic, closes what is idle, and gives up what nobody uses.
pub(crate) async fn sweep(worker: Rc<Worker>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let now = Instant::now();
        let idle = worker.mesh.config.outbound.discovery_idle.max(SWEEP);
        let balancers: Vec<_> = worker.balancers.borrow().values().flatten().cloned().collect();
        for balancer in balancers {
            balancer.refresh(&worker);
            balancer.count_endpoints();
            for member in balancer.members() {
                if let Ok(pool) = &member.pool {
                    pool.sweep(now);
                }
            }
        }
        // A connection may hold one for longer: it finds its way back by the name.
        worker.balancers.borrow_mut().retain(|_, balancers| {
            balancers.retain(|balancer| {
                Rc::strong_count(balancer) > 1
                    || now.saturating_duration_since(balancer.used.get()) < idle
                    || balancer.members().iter().any(|m| m.pool.as_ref().is_ok_and(|pool| !pool.is_empty()))
            });
            !balancers.is_empty()
        });
        worker.forwards.borrow_mut().retain(|_, member| {
            let empty = match &member.pool {
                Ok(pool) => {
                    pool.sweep(now);
                    pool.is_empty()
                }
                Err(_) => true,
            };
            Rc::strong_count(member) > 1 || !empty || member.down().is_some_and(|d| d.tried + idle > now)
        });
    }
}

/// One connection; its story ends exactly once.
pub(crate) async fn connection(worker: Rc<Worker>, accepted: Accepted) {
    let mesh = worker.mesh.clone();
    let (client, dst) = (accepted.client, accepted.original_dst);
    let story = Rc::new(mesh.recorder.story(Direction::Outbound, client, dst));
    let ended = tokio::select! {
        biased; // a drain must never be recorded as a reset
        () = mesh.drain.stopped() => Err(Fault::new(Code::Draining).in_phase(Phase::Accept)),
        ended = relay(worker, accepted, story.clone()) => ended,
    };
    let how = match &ended {
        Ok(()) => "closed",
        Err(fault) if fault.code() == Code::ClientSilent => {
            report::silent(&mesh.metrics, &story, Direction::Outbound)
        }
        Err(fault) => {
            let target = dst.unwrap_or(client);
            let who = Who { client, target: &target };
            report::connection_failed(&mesh.metrics, &story, Direction::Outbound, who, fault);
            fault.code().id()
        }
    };
    story.ended(how);
}

/// The outbound data path.
async fn relay(worker: Rc<Worker>, accepted: Accepted, story: Rc<Story>) -> Result<(), Fault> {
    let mesh = worker.mesh.clone();
    let limit = mesh.config.outbound.detect_timeout;
    let client = accepted.client;
    let mut stream = Prefixed::new(accepted.stream);

    // 1. Where did the application dial?
    let dst = accepted.original_dst.ok_or_else(|| Fault::new(Code::NoOriginalDst).in_phase(Phase::Accept))?;
    if mesh.config.is_own_listener(dst) {
        return Err(Fault::new(Code::ConnectionLoop).in_phase(Phase::Accept).about(dst));
    }

    // 2. What is that? An application that starts before the proxy can forward is held, not refused.
    let begun = Instant::now();
    let found = discover(&mesh, dst, begun + limit).await;
    let destination = match found {
        Ok(destination) => Latest::new(destination),
        Err(fault) => {
            return Box::pin(http::refusing::refuse_all(worker, stream, client, dst, story, fault)).await;
        }
    };
    mesh.metrics.phase(Phase::Discover, begun.elapsed());
    let now = destination.get();
    story.service(&now.policy.meta);
    let connection = Connection { worker, story, client, dst, destination, until: None };
    connection.story.event(Phase::Discover, connection.found(&now));

    // 3. Which protocol? The destination may say so; the bytes say the rest.
    let mut early = None;
    let opaque_by_profile = now.profile.as_ref().is_some_and(|profile| profile.opaque);
    let (protocol, sni) = match &now.policy.protocol {
        // Whatever the address is, a request may be for another service.
        _ if mesh.config.outbound.ingress_mode => (detect::protocol(&mut stream, limit).await?.0, None),
        _ if opaque_by_profile => (Protocol::Opaque, None),
        OutboundProtocol::Opaque(_) => (Protocol::Opaque, None),
        OutboundProtocol::Http1(_) => (Protocol::Http1, None),
        OutboundProtocol::Http2(_) | OutboundProtocol::Grpc(_) => (Protocol::Http2, None),
        OutboundProtocol::Tls(_) => match detect::client_hello(&mut stream, limit).await? {
            Hello::Client { sni: Some(sni), .. } => (Protocol::Opaque, Some(sni)),
            Hello::Client { sni: None, .. } | Hello::NotTls | Hello::Incomplete => {
                let fault = Fault::new(Code::NoServerName).in_phase(Phase::Detect).about(dst);
                return Err(fault.fact("seen", "no server name"));
            }
        },
        OutboundProtocol::Detect { .. } => {
            let begun = Instant::now();
            let (detected, spoken) = match Early::of(&connection, &now) {
                None => (detect::protocol(&mut stream, limit).await, None),
                // Whoever speaks first decides.
                Some(server) => tokio::select! {
                    biased;
                    detected = detect::protocol(&mut stream, limit) => (detected, None),
                    () = server.speaks() => (Ok((Protocol::Opaque, None)), server.taken()),
                },
            };
            early = spoken;
            let labels = Labels::new().object("parent", &now.policy.meta);
            report::detected(&mesh.metrics, Direction::Outbound, &labels, &detected, begun.elapsed());
            let (protocol, late) = detected?;
            if let Some(late) = late {
                let text =
                    format!("no protocol told after {} ms: treated as opaque", late.waited.as_millis());
                connection.story.event(Phase::Detect, text);
            }
            // What the endpoints declare wins over what the bytes look like.
            let declared = protocol != Protocol::Opaque && connection.is_declared_opaque(&now).await;
            (if declared { Protocol::Opaque } else { protocol }, None)
        }
    };
    connection.story.protocol(protocol.as_str());
    connection.story.event(Phase::Detect, protocol.as_str());
    let known = match &now.policy.protocol {
        _ if opaque_by_profile => "opaq",
        OutboundProtocol::Opaque(_) => "opaq",
        OutboundProtocol::Http1(_) => "http/1",
        OutboundProtocol::Http2(_) | OutboundProtocol::Grpc(_) => "http/2",
        OutboundProtocol::Tls(_) => "tls",
        OutboundProtocol::Detect { .. } => "detect",
    };
    let labels = Labels::new().with("protocol", known).object("parent", &now.policy.meta);
    mesh.metrics.counter(Count::OutboundProtocolConnections, &labels).add(1);
    let mut io = Io::new(stream.map(Transport::Plain));
    let labels = Labels::new().with("direction", "outbound").with("peer", "src").target(dst);
    io.count(mesh.metrics.tcp(&labels.server_tls(Err(NoTls::Loopback))).open());
    io.tell(connection.story.bytes());
    drop(now);

    // 4. Forward: per request, or once.
    match protocol {
        Protocol::Opaque => Box::pin(opaque::relay(connection, io, sni, early)).await,
        Protocol::Http1 | Protocol::Http2 => http::relay(connection, io, protocol).await,
    }
}

/// Waits for the first certificate and the destination's first answer, for both together until `deadline`.
async fn discover(
    mesh: &Mesh,
    dst: SocketAddr,
    deadline: Instant,
) -> Result<tokio::sync::watch::Receiver<Arc<Destination>>, Fault> {
    let answered = mesh.discovery.destination(dst, deadline);
    if mesh.identity.current().is_some() {
        return answered.await;
    }
    let mut identity = mesh.identity.clone();
    let limit = deadline.saturating_duration_since(Instant::now());
    let certified = within(limit, identity.changed());
    let (answered, certified) = tokio::join!(answered, certified);
    if let Err(late) = certified
        && mesh.identity.current().is_none()
    {
        return Err(Fault::new(Code::NoCertificateYet)
            .in_phase(Phase::Discover)
            .about(dst)
            .fact("waited_ms", late.waited.as_millis()));
    }
    answered
}

impl Worker {
    pub(crate) fn new(mesh: Arc<Mesh>) -> Rc<Self> {
        Rc::new(Worker {
            mesh,
            epoch: Instant::now(),
            balancers: RefCell::default(),
            forwards: RefCell::default(),
            in_flight: Cell::new(0),
            mirrors: Cell::new(0),
        })
    }

    /// Microseconds since this worker began: the balancer's clock.
    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) fn balancer(&self, path: &str, ewma: EwmaConfig) -> Rc<Balancer> {
        let same = |balancer: &&Rc<Balancer>| balancer.ewma == ewma;
        if let Some(balancer) = self.balancers.borrow().get(path).and_then(|all| all.iter().find(same)) {
            return balancer.clone();
        }
        let balancer = Balancer::new(self, path, ewma);
        self.balancers.borrow_mut().entry(path.to_owned()).or_default().push(balancer.clone());
        balancer
    }

    /// The connections to a fixed endpoint.
    pub(crate) fn forward(&self, endpoint: &Arc<Endpoint>, strict: bool) -> Rc<Member> {
        let key = (endpoint.connection_key(), strict);
        let name = endpoint.addr.to_string();
        if let Some(member) = self.forwards.borrow().get(&key) {
            member.relabel(&self.mesh, endpoint, &name);
            return member.clone();
        }
        let unidentified = match self.mesh.config.outbound.ingress_mode {
            true => NoTls::IngressWithoutOverride,
            false => NoTls::NotProvidedByServiceDiscovery,
        };
        let member =
            Member::new(self, endpoint.clone(), &name, strict, ANY_EWMA, Siblings::new(), unidentified);
        let mut forwards = self.forwards.borrow_mut();
        // The address is another workload's now, or known better: connections made under the old answer end.
        forwards.retain(|(old, _), member| {
            let same = old.addr == endpoint.addr;
            if same && let Ok(pool) = &member.pool {
                pool.retire();
            }
            !same
        });
        forwards.insert(key, member.clone());
        member
    }

    /// Whether a backend could take a request now, as far as is known.
    pub(crate) fn may_serve(&self, backend: &Backend) -> bool {
        match &backend.kind {
            // What was not tried yet may serve.
            BackendKind::Forward(endpoint) => {
                let (forwards, now) = (self.forwards.borrow(), Instant::now());
                let mut known = forwards.iter().filter(|((key, _), _)| key.addr == endpoint.addr);
                known.all(|(_, member)| member.is_up(now))
            }
            BackendKind::Balance { path, ewma } => self.balancer(path, *ewma).may_serve(self),
            BackendKind::Invalid(_) => false,
        }
    }
}

impl Connection {
    /// What the answer is, in words.
    fn found(&self, destination: &Destination) -> String {
        let what = match main_backend(&destination.policy.protocol).map(|backend| &backend.kind) {
            Some(BackendKind::Forward(endpoint)) => format!("the endpoint {}", endpoint.addr),
            // Asking now lets the answer come while the protocol is found out.
            Some(BackendKind::Balance { path, ewma }) => {
                let balancer = self.worker.balancer(path, *ewma);
                match balancer.refresh(&self.worker).lookup {
                    Lookup::Pending(_) => "its endpoints are asked for".into(),
                    Lookup::Answered(_) => format!("{} endpoints", balancer.members().len()),
                    Lookup::Refused(_) => "its endpoints are refused".into(),
                }
            }
            Some(BackendKind::Invalid(_)) => "its backend cannot be read".into(),
            None => "it has no backend".into(),
        };
        let age = Millis(destination.learned.elapsed());
        format!("{}: {what}; the answer is {age} old", destination.policy.meta)
    }

    /// Do the endpoints of an undetected destination say that their bytes are opaque?
    async fn is_declared_opaque(&self, destination: &Destination) -> bool {
        match main_backend(&destination.policy.protocol).map(|backend| &backend.kind) {
            Some(BackendKind::Forward(endpoint)) => endpoint.hint == ProtocolHint::Opaque,
            Some(BackendKind::Balance { path, ewma }) => {
                let balancer = self.worker.balancer(path, *ewma);
                // A name that is silent for longer is not waited for by each new connection.
                let silent = balancer.refresh(&self.worker).since.elapsed();
                balancer.first_answer(&self.worker, HINT_WAIT.saturating_sub(silent)).await;
                let members = balancer.members();
                !members.is_empty() && members.iter().all(|m| m.endpoint().hint == ProtocolHint::Opaque)
            }
            Some(BackendKind::Invalid(_)) | None => false,
        }
    }
}

/// The backend of a destination that nothing more is known about: the one that bytes of any kind go to, or else the first.
fn main_backend(protocol: &OutboundProtocol) -> Option<&Backend> {
    let backends = match protocol {
        OutboundProtocol::Detect { opaque, .. }
        | OutboundProtocol::Opaque(opaque)
        | OutboundProtocol::Tls(opaque) => opaque.routes.first().map(|route| &route.backends),
        OutboundProtocol::Http1(http) | OutboundProtocol::Http2(http) | OutboundProtocol::Grpc(http) => {
            http.routes.first().and_then(|route| route.rules.first()).map(|rule| &rule.backends)
        }
    };
    let first = match backends? {
        Distribution::FirstAvailable(backends) => backends.first(),
        Distribution::RandomAvailable(backends) => backends.first().map(|(backend, _)| backend),
        Distribution::Empty => None,
    };
    first.map(|backend| &backend.backend)
}
