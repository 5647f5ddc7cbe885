//! Inbound: one accepted connection, from `accept` to its last byte. Read top to bottom.

mod direct;
mod gateway;
mod http;
pub mod limit;
mod opaque;
pub(crate) mod refuse;
pub(crate) mod withdraw;

use crate::{
    accept,
    connect::{Millis, Role, Target},
    deadline::within,
    detect::{self, Protocol},
    http::pool::Pool,
    io::{Io, Transport},
    mesh::Mesh,
    metrics::labels::Labels,
    outbound,
    record::Story,
    report::{self, Who},
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    identity::{ClientTls, Identity, NoTls},
    inbound::{Protocol as PolicyProtocol, ServerPolicy},
    outbound::Http2Client,
};
use weft_net::{
    prefixed::Prefixed,
    socket::{self, Accepted, Listener},
};
use weft_tls::{handshake, hello::Hello};
use weft_wire::record::Direction;

/// What the inbound connections of one worker share.
pub(crate) struct Worker {
    pub(crate) mesh: Arc<Mesh>,
    apps: RefCell<HashMap<SocketAddr, Rc<Pool>>>,
    pub(crate) in_flight: Cell<usize>,
    /// What a gateway sends on goes out here.
    gateway: Option<Rc<outbound::Worker>>,
}

/// A connection that was accepted and understood so far.
pub(crate) struct Connection {
    pub(crate) worker: Rc<Worker>,
    pub(crate) story: Rc<Story>,
    pub(crate) client: SocketAddr,
    pub(crate) tls: ClientTls,
    /// The application's address.
    pub(crate) app: SocketAddr,
}

/// Connections of pods come and go; a pool that nobody used for a while is given up.
const SWEEP: Duration = Duration::from_secs(1);

/// Serves a listener on this worker until the drain is over. Must run in a local runtime: connections stay on it.
pub async fn serve(mesh: Arc<Mesh>, listener: Listener) {
    let gateway = gateway::outbound(&mesh);
    let sweeping_gateway = gateway.clone().map(|gateway| tokio::task::spawn_local(outbound::sweep(gateway)));
    let worker =
        Rc::new(Worker { mesh: mesh.clone(), apps: RefCell::default(), in_flight: Cell::new(0), gateway });
    let sweeping = tokio::task::spawn_local(sweep(worker.clone()));
    let phases = mesh.metrics.phases().clone();
    accept::run(listener, mesh.drain.clone(), phases, |accepted| connection(worker.clone(), accepted)).await;
    sweeping.abort();
    sweeping_gateway.inspect(tokio::task::JoinHandle::abort);
}

async fn sweep(worker: Rc<Worker>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let now = Instant::now();
        worker.apps.borrow_mut().retain(|_, pool| {
            pool.sweep(now);
            Rc::strong_count(pool) > 1 || !pool.is_empty()
        });
    }
}

/// One connection; its story ends exactly once.
pub(crate) async fn connection(worker: Rc<Worker>, accepted: Accepted) {
    let mesh = worker.mesh.clone();
    // Nobody redirects a connection to the proxy's own port. Any other must say where it was going: to take this end's
    // address for it would be to apply another port's policy.
    let own = accepted.local.port() == mesh.config.inbound.listen.port();
    let dst = accepted.original_dst.or(own.then_some(accepted.local));
    let (client, target) = (accepted.client, dst.unwrap_or(accepted.local));
    let story = Rc::new(mesh.recorder.story(Direction::Inbound, client, Some(target)));
    let ended = tokio::select! {
        biased; // a drain must never be recorded as a reset
        () = mesh.drain.stopped() => Err(Fault::new(Code::Draining).in_phase(Phase::Accept)),
        ended = relay(worker, accepted, dst, story.clone()) => ended,
    };
    let how = match &ended {
        Ok(()) => "closed",
        Err(fault) if fault.code() == Code::ClientSilent => {
            report::silent(&mesh.metrics, &story, Direction::Inbound)
        }
        Err(fault) => {
            let who = Who { client, target: &target };
            report::connection_failed(&mesh.metrics, &story, Direction::Inbound, who, fault);
            fault.code().id()
        }
    };
    story.ended(how);
}

/// The inbound data path. Each `?` returns a `Fault`: stable code, evidence, cause chain.
async fn relay(
    worker: Rc<Worker>,
    accepted: Accepted,
    dst: Option<SocketAddr>,
    story: Rc<Story>,
) -> Result<(), Fault> {
    let config = &worker.mesh.config;
    let (client, local) = (accepted.client, accepted.local);
    let stream = Prefixed::new(accepted.stream);

    // 1. Where was it going? The proxy's own port takes what other proxies send under a transport header.
    let dst = dst.ok_or_else(|| {
        Fault::new(Code::NoOriginalDst).in_phase(Phase::Accept).peer(client).fact("accepted_at", local)
    })?;
    if dst.port() == config.inbound.listen.port() {
        return Box::pin(direct::relay(worker, stream, client, local, story)).await;
    }
    if !config.inbound.ips.is_empty() && !config.inbound.ips.contains(&dst.ip()) && !dst.ip().is_loopback() {
        return Err(Fault::new(Code::NotOurAddress)
            .in_phase(Phase::Accept)
            .peer(client)
            .fact("address", dst));
    }

    // 2. One policy watch for the whole connection.
    let policy = worker.mesh.discovery.inbound(dst.port());
    let now = policy.borrow().clone();

    // 3. An opaque port: bytes are moved untouched, TLS and all.
    if now.protocol == PolicyProtocol::Opaque {
        let tls = ClientTls::None(NoTls::PortSkipped);
        story.tls(NoTls::PortSkipped.as_str());
        story.event(Phase::Detect, "the port is opaque: its bytes are not looked at");
        let io = Io::new(stream.map(Transport::Plain));
        let connection = Connection { worker, story, client, tls, app: dst };
        return Box::pin(opaque::relay(connection, io, policy)).await;
    }

    // 4. TLS: is it meant for this workload, for the application, or is there none?
    let (io, tls) = authenticate(&worker.mesh, stream, client, &story).await?;
    let connection = Connection { worker, story, client, tls, app: dst };

    // 5. Which protocol is inside?
    let (io, protocol) = understand(&connection, io, &now).await?;
    connection.story.protocol(protocol.as_str());
    connection.story.event(Phase::Detect, protocol.as_str());

    // 6. Decide and forward: per connection, or per request.
    match protocol {
        Protocol::Opaque => Box::pin(opaque::relay(connection, io, policy)).await,
        Protocol::Http1 | Protocol::Http2 => http::relay(connection, io, protocol, policy, None).await,
    }
}

/// TLS detection and, where the client asks for this workload's own name, the handshake.
async fn authenticate(
    mesh: &Arc<Mesh>,
    mut stream: Prefixed<TcpStream>,
    client: SocketAddr,
    story: &Story,
) -> Result<(Io, ClientTls), Fault> {
    let limit = mesh.config.inbound.detect_timeout;
    let begun = Instant::now();
    let hello = detect::client_hello(&mut stream, limit).await.map_err(|fault| fault.peer(client))?;
    mesh.metrics.phase(Phase::Detect, begun.elapsed());
    tracing::debug!(spans = story.spans(), sz = stream.prefix().len(), "Peeked bytes from TCP stream");
    let plain = |stream: Prefixed<TcpStream>| Io::new(stream.map(Transport::Plain));
    match hello {
        Hello::Client { sni: Some(sni), weft } if is_own_name(mesh, &sni) => {
            let handshake = own_handshake(mesh, stream, Hailed { direct: false, weft }, client, story);
            let (io, identity, _) = Box::pin(handshake).await?;
            Ok((io, ClientTls::Terminated(identity)))
        }
        // Another workload's name: an address was reused, and no application would know what to do with it.
        Hello::Client { sni: Some(sni), .. } if is_mesh_name(&sni) => {
            Err(refuse_name(mesh, stream.get_mut(), client, &sni).await)
        }
        Hello::Client { sni: Some(sni), .. } => {
            story.tls("passthrough");
            story.event(Phase::Detect, "TLS for the application: passed on unread");
            Ok((plain(stream), ClientTls::Passthrough { sni }))
        }
        Hello::Client { sni: None, .. } | Hello::NotTls | Hello::Incomplete => {
            let reason = if client.ip().is_loopback() { NoTls::Loopback } else { NoTls::NoTlsFromRemote };
            story.tls(reason.as_str());
            story.event(Phase::Detect, "the client sends no TLS");
            Ok((plain(stream), ClientTls::None(reason)))
        }
    }
}

fn is_own_name(mesh: &Mesh, sni: &str) -> bool {
    mesh.config.identity.server_name.as_str().eq_ignore_ascii_case(sni)
}

fn is_mesh_name(sni: &str) -> bool {
    Identity::parse(sni).is_ok_and(|id| id.service_account().is_some())
}

/// A fatal unrecognized_name alert, before any key is agreed on (RFC 8446, 6.2).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
const ALERT_LIMIT: Duration = Duration::from_secs(1);

/// Refuses a ClientHello for somebody else. The client is a proxy with an outdated answer: an alert tells it more than a
/// closed connection.
async fn refuse_name(mesh: &Mesh, stream: &mut TcpStream, client: SocketAddr, seen: &str) -> Fault {
    let alert = within(ALERT_LIMIT, stream.write_all(&UNRECOGNIZED_NAME)).await;
    tracing::debug!(%client, ?alert, "refused a foreign server name");
    let fault = Fault::new(Code::ForeignServerName).in_phase(Phase::TlsAccept).peer(client);
    fault.fact("expected", &mesh.config.identity.server_name).fact("seen", seen)
}

/// What is known of a client before its handshake.
#[derive(Clone, Copy)]
struct Hailed {
    /// It dialled the proxy's own port.
    direct: bool,
    /// What its hello offers as a weft proxy.
    weft: handshake::Offer,
}

/// What both ends agreed on beside the identities.
#[derive(Clone, Copy)]
struct Agreed {
    /// A transport header follows.
    transport: bool,
    /// The client is a weft proxy.
    weft: bool,
}

/// Terminates TLS, waiting for the first certificate if there is none yet.
async fn own_handshake(
    mesh: &Arc<Mesh>,
    stream: Prefixed<TcpStream>,
    hailed: Hailed,
    client: SocketAddr,
    story: &Story,
) -> Result<(Io, Option<Identity>, Agreed), Fault> {
    let limit = mesh.config.inbound.detect_timeout;
    let begun = Instant::now();
    let accepting = async {
        let credentials = match mesh.identity.current() {
            Some(credentials) => Some(credentials),
            None => mesh.identity.clone().changed().await,
        };
        let credentials = credentials.ok_or(Code::NoCertificateYet)?;
        handshake::accept(&credentials, hailed.direct, hailed.weft, stream).await
    };
    let accepted = within(limit, accepting).await.map_err(|late| {
        let has = mesh.identity.current().is_some();
        let code = if has { Code::HandshakeTimeout } else { Code::NoCertificateYet };
        detect::waited(Fault::new(code).in_phase(Phase::TlsAccept), late)
    });
    let accepted = accepted.and_then(|inner| inner).map_err(|fault| fault.peer(client))?;
    let took = begun.elapsed();
    mesh.metrics.phase(Phase::TlsAccept, took);
    story.tls("mutual");
    let (took, group) = (Millis(took), accepted.group);
    match &accepted.client {
        Some(id) => {
            story.client_identity(id);
            story.event(Phase::TlsAccept, format!("TLS with {id} in {took} (1.3, {group})"));
        }
        None => story.event(Phase::TlsAccept, format!("TLS without an identity in {took} (1.3, {group})")),
    }
    let transport = Transport::Accepted(Box::new(accepted.stream));
    let agreed = Agreed { transport: accepted.transport, weft: accepted.weft };
    Ok((Io::new(Prefixed::new(transport)), accepted.client, agreed))
}

/// What the policy says about the protocol, and what the bytes say where it leaves that open.
async fn understand(
    connection: &Connection,
    mut io: Io,
    policy: &ServerPolicy,
) -> Result<(Io, Protocol), Fault> {
    if matches!(connection.tls, ClientTls::Passthrough { .. }) {
        return Ok((io, Protocol::Opaque));
    }
    let meshed = matches!(connection.tls, ClientTls::Terminated(_));
    let protocol = match &policy.protocol {
        PolicyProtocol::Opaque | PolicyProtocol::Tls => Protocol::Opaque,
        PolicyProtocol::Http2(_) | PolicyProtocol::Grpc(_) if !meshed => Protocol::Http2,
        PolicyProtocol::Http1(_) if !meshed => Protocol::Http1,
        // Peers carry HTTP/1 over HTTP/2, or as it is: look.
        declared @ (PolicyProtocol::Http1(_) | PolicyProtocol::Http2(_) | PolicyProtocol::Grpc(_)) => {
            let limit = connection.worker.mesh.config.inbound.detect_timeout;
            match detect::protocol(io.stream(), limit).await?.0 {
                Protocol::Opaque if matches!(declared, PolicyProtocol::Http1(_)) => Protocol::Http1,
                Protocol::Opaque => Protocol::Http2,
                seen => seen,
            }
        }
        PolicyProtocol::Detect { .. } | PolicyProtocol::Unreadable(_) => {
            let limit = match &policy.protocol {
                PolicyProtocol::Detect { timeout, .. } => *timeout,
                // Nobody gets in, but whoever speaks HTTP is told why.
                _ => connection.worker.mesh.config.inbound.detect_timeout,
            };
            let begun = Instant::now();
            let detected = detect::protocol(io.stream(), limit).await;
            let metrics = &connection.worker.mesh.metrics;
            let labels = Labels::new().server(&policy.meta, connection.app.port());
            report::detected(metrics, Direction::Inbound, &labels, &detected, begun.elapsed());
            let (protocol, late) = detected?;
            if let Some(late) = late {
                connection.story.event(
                    Phase::Detect,
                    format!("no protocol told after {} ms: treated as opaque", late.waited.as_millis()),
                );
            }
            protocol
        }
    };
    Ok((io, protocol))
}

impl Connection {
    /// Counts the connection in the TCP families from now on.
    pub(crate) fn count(&self, io: &mut Io, policy: &ServerPolicy) {
        let labels = Labels::new()
            .with("direction", "inbound")
            .with("peer", "src")
            .target(self.app)
            .client_tls(&self.tls)
            .server(&policy.meta, self.app.port());
        io.count(self.worker.mesh.metrics.tcp(&labels).open());
        io.tell(self.story.bytes());
    }
}

impl Worker {
    /// The connections to one port of the application.
    pub(crate) fn app(self: &Rc<Self>, addr: SocketAddr) -> Rc<Pool> {
        if let Some(pool) = self.apps.borrow().get(&addr) {
            return pool.clone();
        }
        let config = &self.mesh.config.inbound;
        let labels = Labels::new()
            .with("direction", "inbound")
            .with("peer", "dst")
            .target(addr)
            .server_tls(Err(NoTls::Loopback));
        let target = Target {
            addr,
            names: addr,
            role: Role::App,
            tls: None,
            plain: "it is beside the proxy",
            limit: config.connect_timeout,
            http2: Http2Client::default(),
            way: Default::default(),
            options: socket::Options {
                keepalive: config.sockets.connect_keepalive,
                user_timeout: config.sockets.connect_user_timeout,
            },
            series: self.mesh.metrics.tcp(&labels),
        };
        let pool =
            Pool::new(self.mesh.clone(), target, config.pool_idle_timeout, config.max_idle_per_endpoint);
        self.apps.borrow_mut().insert(addr, pool.clone());
        pool
    }
}
