//! The process: what it starts, in which order and on which thread, and how it ends.

mod end;

use crate::{
    admin::{self, Admin},
    certify::{
        self, Certifier,
        anchors::{Anchors, EVERY},
    },
    config::{Config, ControlAddr, Sockets},
    control::{Dialer, Service, Whom, counts::Counts, report},
    discovery::{self, Discovery},
    drain, identity,
    log::Log,
    mesh::Mesh,
    metrics::{ControlService, Metrics},
    observe,
    record::Recorder,
    vital,
    watchdog::{self, Heart},
};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use weft_fault::{Code, Fault, Phase};
use weft_net::socket::Options;
use weft_tls::bundle::TrustBundle;

/// Linkerd's exit code for a configuration that cannot be used (`EX_USAGE`).
const EXIT_CONFIG: u8 = 64;
/// A drain is over when nothing was open for so long: the application may still be about to say something.
const QUIET: Duration = Duration::from_millis(500);
/// Connections on which nothing moved for so long are idle.
const STILL: Duration = Duration::from_secs(2);
/// How long callers may take to learn that this pod is going: a few times what a controller needs to tell them.
const MOVE_AWAY: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);
/// What connections get for their last words when they are cut.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Runs a proxy, configured by the environment, until it is told to end.
pub fn main() -> ExitCode {
    // 1. The configuration. Every mistake is told, on stderr: there is no log yet.
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(faults) => {
            for fault in faults {
                eprintln!("{fault:?}");
            }
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    let issuer = match issuer(&config) {
        Ok(issuer) => issuer,
        Err(fault) => {
            eprintln!("{fault:?}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    let log = match Log::start(&config.log) {
        Ok(log) => Arc::new(log),
        Err(why) => {
            let fault = Fault::new(Code::BadVariable).in_phase(Phase::Start).about("LINKERD2_PROXY_LOG");
            eprintln!("{:?}", fault.fact("why", why));
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        identity = %config.identity.local_name,
        workers = config.workers,
        "weft-proxy"
    );
    if let Some(mark) = config.socket_mark
        && let Err(error) = weft_net::socket::mark_own_connections(mark)
    {
        let fault = Fault::new(Code::BadVariable).in_phase(Phase::Start);
        let fault = fault.about("LINKERD2_PROXY_WEFT_SOCKET_MARK").fact("value", mark);
        tracing::error!("{:?}", fault.fact("needs", "the capability NET_RAW").because(error));
        return ExitCode::from(EXIT_CONFIG);
    }
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if let Issuer::ControlPlane(_, anchors) = &issuer {
        anchors.warnings().iter().for_each(|warning| tracing::warn!("trust anchors: {warning}"));
    }

    // 2. The agent's thread is this one.
    vital::this_thread();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "no runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(config, issuer, log)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            tracing::error!("{fault:?}");
            ExitCode::FAILURE
        }
    }
}

/// Who certifies this proxy.
enum Issuer {
    /// The identity service, whose own certificate leads to these anchors, as those of all peers do.
    ControlPlane(ControlAddr, TrustBundle),
    /// The SPIRE agent behind this socket, which hands over its trust domain's anchors, too.
    Spire(PathBuf),
}

fn issuer(config: &Config) -> Result<Issuer, Fault> {
    let settings = &config.identity;
    match (&settings.spire, &config.control.identity) {
        (None, Some(addr)) => {
            let anchors =
                Anchors::first(settings.trust_anchors_file.as_deref(), &settings.trust_anchors_pem)?;
            Ok(Issuer::ControlPlane(addr.clone(), anchors))
        }
        (Some(socket), _) => Ok(Issuer::Spire(socket.clone())),
        // The configuration has one or the other.
        (None, None) => {
            Err(Fault::new(Code::Invariant).in_phase(Phase::Start).about("an issuer of certificates"))
        }
    }
}

/// A listening socket of the data path.
enum Socket {
    Inbound(TcpListener),
    Outbound(TcpListener),
}

async fn run(config: Config, issuer: Issuer, log: Arc<Log>) -> Result<(), Fault> {
    // 1. Sockets first: whoever connects early waits in the queue instead of being refused.
    let mut sockets = vec![Socket::Inbound(bind(config.inbound.listen, config.inbound.sockets)?)];
    for addr in &config.outbound.listen {
        match bind(*addr, config.outbound.sockets) {
            Ok(socket) => sockets.push(Socket::Outbound(socket)),
            // The second address is for IPv6, which a machine may lack.
            Err(fault) if sockets.len() > 1 => tracing::warn!("{fault:?}"),
            Err(fault) => return Err(fault),
        }
    }
    let admin_listener = admin::listen(config.admin, config.inbound.sockets.backlog)
        .map_err(|e| cannot_listen(config.admin, e))?;

    // 2. What everybody sees.
    let metrics = Metrics::new(config.metrics_retain_idle);
    let (recorder, journal) = Recorder::new(metrics.clone(), config.pod_name(), &config.identity.local_name);
    let (identity, publisher) = identity::Handle::new(config.identity.local_name.clone());
    let (shared, questions) = discovery::Shared::new(discovery::Defaults {
        policy: config.inbound.default_policy.clone(),
        with_identity: config.inbound.identity_policy.clone(),
        identity_ports: config.inbound.identity_ports.clone(),
        opaque_ports: config.inbound.opaque_ports.clone(),
    });
    let (drain_signal, drain) = drain::channel();
    let hearts: Vec<Arc<Heart>> = (0..config.workers).map(|n| Heart::new(format!("worker-{n}"))).collect();
    let agents_heart = Heart::new("agent".into());
    let watched = hearts.iter().chain([&agents_heart]).cloned().collect();
    let gaps = watchdog::start(watched, metrics.clone(), recorder.clone())
        .map_err(|e| Fault::new(Code::StartFailed).in_phase(Phase::Start).about("watchdog").because(e))?;
    let (observers, unstarted) = observe::prepare(&config, &metrics, io::stderr())?;
    let mesh = Arc::new(Mesh {
        observers: Arc::new(observers),
        discovery: Discovery::new(shared.clone()),
        identity,
        metrics,
        recorder,
        drain,
        gaps,
        limits: Default::default(),
        config,
    });

    // 3. The agent's tasks.
    tokio::spawn(agents_heart.beat());
    let (shutdown, asked_by_admin) = mpsc::channel(1);
    let admin = Admin::new(mesh.clone(), log, shutdown);
    tokio::spawn(admin::serve(admin.clone(), admin_listener));
    unstarted.start(&mesh);
    let services = start_agent(&mesh, issuer, publisher, journal, Asked { shared, questions });
    // It is set here only.
    let _once = admin.control.set(services);

    // 4. Accept at once: whoever is early is held for a while, and told why if it was in vain. Ready with a certificate.
    let workers = start_workers(&mesh, &sockets, hearts)?;
    admin.serving.store(true, Ordering::Relaxed);
    let mut end = end::Orders::new(asked_by_admin);
    let certified = tokio::select! {
        _credentials = mesh.identity.clone().first() => true,
        () = end.asked() => false,
    };
    if certified {
        mesh.metrics.phase(Phase::Start, mesh.metrics.uptime());
        tracing::info!("ready");
        end.asked().await;
    }

    // 5. Unready at once, and all goes on; then existing connections to their end; then the rest is cut, or earlier where
    //    somebody insists. A proxy that never was ready has nothing to bring to an end.
    tracing::info!(open = mesh.recorder.open(), "shutting down");
    drain_signal.advance(drain::Phase::Unready);
    if certified {
        let begun = Instant::now();
        let grace = mesh.config.shutdown_grace;
        let draining = async {
            moved_away(&mesh.recorder, MOVE_AWAY.min(grace / 2)).await;
            tracing::info!(open = mesh.recorder.open(), "draining");
            drain_signal.advance(drain::Phase::Draining);
            drained(&mesh.recorder, begun, grace).await;
        };
        tokio::select! {
            () = draining => {}
            () = end.insisted() => {
                tracing::warn!(open = mesh.recorder.open(), "SIGINT while shutting down: connections are cut");
            }
        }
    }
    drain_signal.advance(drain::Phase::Stopped);
    let cut = Instant::now();
    while cut.elapsed() < LAST_WORDS && (mesh.recorder.open() > 0 || workers.iter().any(|w| !w.is_finished()))
    {
        tokio::time::sleep(LOOK).await;
    }
    tracing::info!("stopped");
    Ok(())
}

/// The workers' questions, and where the answers go.
struct Asked {
    shared: Arc<discovery::Shared>,
    questions: mpsc::Receiver<discovery::Ask>,
}

/// Everything of the agent that talks to the control plane.
fn start_agent(
    mesh: &Arc<Mesh>,
    issuer: Issuer,
    publisher: identity::Publisher,
    journal: mpsc::Receiver<weft_wire::record::JournalEntry>,
    asked: Asked,
) -> Vec<Service> {
    let config = &mesh.config;
    let service = |service: ControlService, addr: &ControlAddr, whom| {
        let counts = Some(Counts::of(&mesh.metrics, service, addr));
        Service::start(Dialer { counts, ..Dialer::for_proxy(config, service.as_str(), addr, whom) })
    };
    let mut services = Vec::new();
    let (settings, metrics, recorder) =
        (config.identity.clone(), mesh.metrics.clone(), mesh.recorder.clone());
    match issuer {
        Issuer::ControlPlane(addr, anchors) => {
            let anchors = match settings.trust_anchors_file.clone() {
                Some(file) => Anchors::follow(file, anchors, EVERY, recorder.clone()),
                None => Anchors::fixed(anchors),
            };
            let service = service(ControlService::Identity, &addr, Whom::Anyone(anchors.clone()));
            services.push(service.clone());
            let certifier = Certifier { settings, anchors, service, metrics, recorder };
            tokio::spawn(certifier.run(publisher));
        }
        Issuer::Spire(socket) => {
            tokio::spawn(async move {
                certify::spire::run(settings, &socket, publisher, metrics, recorder).await;
            });
        }
    }

    let certified = || Whom::Certified(mesh.identity.clone());
    let destination = service(ControlService::Destination, &config.control.destination, certified());
    let policy = service(ControlService::Policy, &config.control.policy, certified());
    services.extend([destination.clone(), policy.clone()]);
    tokio::spawn(report::run(destination.clone(), config.pod_name(), journal, mesh.metrics.clone()));
    let cx = discovery::context::Context {
        confirmer: discovery::context::Confirmer::new(destination.clone(), config.control.context.clone()),
        destination,
        policy,
        workload: config.control.workload.clone(),
        token: config.control.context.clone(),
        profile_networks: config.profile_networks.clone(),
        cluster_networks: config.cluster_networks.clone(),
        limits: config.control.limits(),
        max_age: config.outbound.discovery_max_age,
        memory: Default::default(),
        recorder: mesh.recorder.clone(),
    };
    let idle = discovery::agent::Idle {
        outbound: config.outbound.discovery_idle,
        inbound: config.inbound.discovery_idle,
        permanent: config.inbound.ports.clone(),
    };
    tokio::spawn(discovery::agent::run(Arc::new(cx), asked.shared, asked.questions, idle));

    let metrics = mesh.metrics.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(metrics.retire_every()).await;
            metrics.retire().await;
        }
    });
    services
}

/// One thread and one runtime per worker. All share each listening socket.
fn start_workers(
    mesh: &Arc<Mesh>,
    sockets: &[Socket],
    hearts: Vec<Arc<Heart>>,
) -> Result<Vec<std::thread::JoinHandle<()>>, Fault> {
    let mut workers = Vec::with_capacity(hearts.len());
    for (n, heart) in hearts.into_iter().enumerate() {
        let failed = |e: io::Error| {
            Fault::new(Code::StartFailed).in_phase(Phase::Start).about(format!("worker {n}")).because(e)
        };
        let mut own = Vec::with_capacity(sockets.len());
        for socket in sockets {
            own.push(match socket {
                Socket::Inbound(socket) => Socket::Inbound(socket.try_clone().map_err(failed)?),
                Socket::Outbound(socket) => Socket::Outbound(socket.try_clone().map_err(failed)?),
            });
        }
        let mesh = mesh.clone();
        let builder = std::thread::Builder::new().name(format!("worker-{n}"));
        workers.push(builder.spawn(move || worker(mesh, own, heart)).map_err(failed)?);
    }
    Ok(workers)
}

fn worker(mesh: Arc<Mesh>, sockets: Vec<Socket>, heart: Arc<Heart>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => vital::ended("a worker", &error),
    };
    runtime.block_on(async move {
        tokio::task::spawn_local(heart.beat());
        let mut serving = Vec::new();
        for socket in sockets {
            let mesh = mesh.clone();
            let served = match socket {
                Socket::Inbound(socket) => {
                    let sockets = mesh.config.inbound.sockets;
                    weft_net::socket::Listener::new(socket, accepting(sockets))
                        .map(|listener| tokio::task::spawn_local(crate::inbound::serve(mesh, listener)))
                }
                Socket::Outbound(socket) => {
                    let sockets = mesh.config.outbound.sockets;
                    weft_net::socket::Listener::new(socket, accepting(sockets))
                        .map(|listener| tokio::task::spawn_local(crate::outbound::serve(mesh, listener)))
                }
            };
            match served {
                Ok(task) => serving.push(task),
                Err(error) => vital::ended("an accept loop", &error),
            }
        }
        for task in serving {
            if let Err(error) = task.await {
                vital::ended("an accept loop", &error);
            }
        }
    });
}

fn accepting(sockets: Sockets) -> Options {
    Options { keepalive: sockets.accept_keepalive, user_timeout: sockets.accept_user_timeout }
}

fn bind(addr: SocketAddr, sockets: Sockets) -> Result<TcpListener, Fault> {
    weft_net::socket::listen(addr, sockets.backlog).map_err(|e| cannot_listen(addr, e))
}

fn cannot_listen(addr: SocketAddr, cause: io::Error) -> Fault {
    Fault::new(Code::StartFailed).in_phase(Phase::Start).about(format!("listening on {addr}")).because(cause)
}

/// Waits until nothing is open or nothing moves any more, or callers have had their time.
async fn moved_away(recorder: &Recorder, limit: Duration) {
    let begun = Instant::now();
    let (mut last, mut since) = (recorder.moved(), begun);
    while begun.elapsed() < limit {
        let quiet = if recorder.open() == 0 { QUIET } else { STILL };
        if since.elapsed() >= quiet {
            return;
        }
        tokio::time::sleep(LOOK).await;
        let now = recorder.moved();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

/// Waits until nothing is open, or the grace period is over.
async fn drained(recorder: &Recorder, begun: Instant, grace: Duration) {
    let mut quiet_since = None;
    while begun.elapsed() < grace {
        quiet_since = if recorder.open() == 0 { quiet_since.or(Some(Instant::now())) } else { None };
        if quiet_since.is_some_and(|since| since.elapsed() >= QUIET) {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
    tracing::warn!(
        open = recorder.open(),
        grace_s = grace.as_secs(),
        "the grace period is over; connections are cut"
    );
}
