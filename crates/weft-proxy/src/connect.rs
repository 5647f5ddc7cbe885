//! Connecting: to the application beside us, or to a peer and its proof of identity.

use crate::{
    deadline::STALL,
    io::{Io, Transport},
    mesh::Mesh,
    metrics::series::TcpSeries,
    record::Story,
};
use futures_util::FutureExt as _;
use std::{
    cell::Cell,
    fmt, io,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{io::AsyncWriteExt, time::sleep};
use tokio_util::task::AbortOnDropHandle;
use weft_fault::{Code, Fault, Phase};
use weft_model::{identity::Identity, outbound::Http2Client};
use weft_net::{prefixed::Prefixed, socket};
use weft_tls::handshake::{self, Offer};
use weft_wire::transport_header::{Session, TransportHeader};

/// Where a connection goes, and what it has to be when it is there.
pub(crate) struct Target {
    pub(crate) addr: SocketAddr,
    /// The application behind the address, for messages: differs from `addr` where a proxy's own port is dialled.
    pub(crate) names: SocketAddr,
    pub(crate) role: Role,
    pub(crate) tls: Option<Tls>,
    /// Why there is no TLS, where there is none.
    pub(crate) plain: &'static str,
    pub(crate) limit: Duration,
    pub(crate) http2: Http2Client,
    /// What attempts that were given up learnt of the way there.
    pub(crate) way: Way,
    pub(crate) options: socket::Options,
    pub(crate) series: Arc<TcpSeries>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The application in this pod.
    App,
    /// A pod, or a host outside the mesh.
    Peer,
}

/// The kernel says that nobody answers at an address in more time than a connection attempt has (the neighbour is asked three
/// times, a second each). So one attempt at a time goes on after it was given up, only to hear that; the next one to miss
/// its deadline is told apart from one whose packets are dropped.
#[derive(Default)]
pub(crate) struct Way {
    listens: Cell<bool>,
    unreachable: Cell<Option<Instant>>,
}

/// So long an attempt that was given up is listened to.
const LISTENS: Duration = Duration::from_secs(4);
/// And so long what it heard is believed.
const BELIEVED: Duration = Duration::from_secs(30);

impl Way {
    fn is_unreachable(&self) -> bool {
        self.unreachable.get().is_some_and(|heard| heard.elapsed() < BELIEVED)
    }

    /// Takes what became of an attempt.
    fn hear(&self, code: Option<Code>) {
        self.listens.set(false);
        match code {
            Some(Code::Unreachable) => self.unreachable.set(Some(Instant::now())),
            // Still nothing, or it was answered in the end.
            _ => self.unreachable.set(None),
        }
    }
}

/// How a peer proves itself.
pub(crate) struct Tls {
    pub(crate) id: Identity,
    pub(crate) server_name: Identity,
    /// Write a transport header for this port and name.
    pub(crate) header: Option<(u16, Option<String>)>,
}

/// What will be spoken, as the transport header announces it: that can depend on who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sessions {
    any: Option<Session>,
    weft: Option<Session>,
}

impl Sessions {
    pub(crate) const OPAQUE: Self = Sessions { any: None, weft: None };
    pub(crate) const HTTP1: Self = Sessions { any: Some(Session::Http1), weft: Some(Session::Http1) };
    pub(crate) const HTTP2: Self = Sessions { any: Some(Session::Http2), weft: Some(Session::Http2) };
    /// HTTP/1 that only a weft proxy takes as it is.
    pub(crate) const CARRIED: Self = Sessions { any: Some(Session::Http2), weft: Some(Session::Http1) };

    /// Does it depend on who answers?
    pub(crate) fn differ(self) -> bool {
        self.any != self.weft
    }
}

/// How a connection came about: told to the story of whoever asked for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    begun: Instant,
    tcp: Duration,
    tls: Option<MadeTls>,
    /// The peer is a weft proxy.
    pub(crate) weft: bool,
}

#[derive(Clone, Copy, Debug)]
struct MadeTls {
    took: Duration,
    group: &'static str,
    header: Option<u16>,
}

impl Made {
    pub(crate) fn tell(&self, story: &Story, target: &Target) {
        let connected = self.begun + self.tcp;
        let what = match target.role {
            Role::App => "to the application at ",
            Role::Peer => "to ",
        };
        let text = format!("connected {what}{} in {}", target.addr, Millis(self.tcp));
        story.event_at(connected, Phase::Connect, text);
        match (&self.tls, &target.tls) {
            (Some(made), Some(tls)) => {
                let secured = connected + made.took;
                let text = format!("TLS with {} in {} (1.3, {})", tls.id, Millis(made.took), made.group);
                story.event_at(secured, Phase::TlsConnect, text);
                if let Some(port) = made.header {
                    story.event_at(secured, Phase::TransportHeader, format!("sent, for port {port}"));
                }
            }
            _ if target.role == Role::Peer => {
                story.event_at(connected, Phase::TlsConnect, format!("no TLS: {}", target.plain));
            }
            _ => {}
        }
    }
}

/// A duration for people.
pub(crate) struct Millis(pub(crate) Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.0.as_secs_f64() * 1e3)
    }
}

/// How far an attempt has come: read by whoever holds its deadline.
#[derive(Clone, Copy)]
enum Step {
    Tcp,
    Tls,
    Header,
}

/// Connects, to the application once more if this process stood still meanwhile. (Towards peers that is for whoever has others
/// to choose from.)
pub(crate) async fn dial(
    mesh: &Arc<Mesh>,
    target: &Rc<Target>,
    sessions: Sessions,
) -> Result<(Io, Made), Fault> {
    match dial_once(mesh, target, sessions).await {
        Err(fault) if fault.code() == Code::Stalled && target.role == Role::App => {
            tracing::debug!(%fault, "connecting once more");
            dial_once(mesh, target, sessions).await
        }
        done => done,
    }
}

/// Connects in a task of its own, which does not wait for any queue: the ClientHello is written as soon as TCP is up.
/// The deadline is kept here, outside; an attempt that has missed it writes nothing any more.
async fn dial_once(mesh: &Arc<Mesh>, target: &Rc<Target>, sessions: Sessions) -> Result<(Io, Made), Fault> {
    let begun = Instant::now();
    let deadline = begun + target.limit;
    let step = Rc::new(Cell::new(Step::Tcp));
    let attempt = attempt(mesh.clone(), target.clone(), sessions, deadline, step.clone());
    let mut attempt = AbortOnDropHandle::new(tokio::task::spawn_local(attempt));
    let in_time = tokio::select! {
        biased;
        () = sleep(target.limit) => {
            // Both were due when this process came to run again: what is done by then counts.
            tokio::task::yield_now().await;
            (&mut attempt).now_or_never()
        }
        ended = &mut attempt => Some(ended),
    };
    let fault = match in_time {
        Some(Ok(Ok(made))) => return Ok(made),
        Some(Ok(Err(fault))) => fault,
        Some(Err(panicked)) => Fault::new(Code::Invariant).in_phase(Phase::Connect).because(panicked),
        None => {
            let fault = overrun(target, step.get(), begun, deadline);
            if matches!(step.get(), Step::Tcp) && !target.way.listens.replace(true) {
                let target = target.clone();
                tokio::task::spawn_local(async move {
                    let ended = tokio::time::timeout(LISTENS, attempt).await;
                    target
                        .way
                        .hear(ended.ok().and_then(Result::ok).and_then(|ended| Some(ended.err()?.code())));
                });
            }
            fault
        }
    };
    Err(fault.peer(target.names))
}

async fn attempt(
    mesh: Arc<Mesh>,
    target: Rc<Target>,
    sessions: Sessions,
    deadline: Instant,
    step: Rc<Cell<Step>>,
) -> Result<(Io, Made), Fault> {
    let begun = Instant::now();

    // 1. TCP.
    // Not to an endpoint that lacks the identity it must have: nothing of this may reach it.
    if let Some(requirement) = target.tls.as_ref().and_then(|tls| tls.id.is_unmet()) {
        let fault = Fault::new(Code::IdentityRequired).in_phase(Phase::Connect).fact("found", "none");
        return Err(match requirement {
            Some(by) => fault.fact("required-by", format!("annotation weft.dev/require-identity of {by}")),
            None => fault,
        });
    }
    let own = target.role == Role::Peer && target.addr.ip().is_loopback() && !mesh.config.outbound.loopback;
    if own || mesh.config.is_own_listener(target.addr) {
        return Err(Fault::new(Code::ConnectionLoop).in_phase(Phase::Connect).peer(target.addr));
    }
    let tcp = socket::connect(target.addr, target.options).await;
    let tcp = tcp
        .map_err(|error| Fault::new(refusal(&error, target.role)).in_phase(Phase::Connect).because(error))?;
    let took = begun.elapsed();
    mesh.metrics.phase(Phase::Connect, took);
    let mut made = Made { begun, tcp: took, tls: None, weft: false };
    // 2. TLS. If this process stood still meanwhile, the peer has given up or will: say nothing, dial again.
    let Some(tls) = &target.tls else {
        let mut io = Io::plain(tcp);
        io.count(target.series.clone().open());
        return Ok((io, made));
    };
    if Instant::now() >= deadline {
        return Err(overrun(&target, Step::Tls, begun, deadline));
    }

    step.set(Step::Tls);
    let handshake_begun = Instant::now();
    let Some(credentials) = mesh.identity.current() else {
        return Err(Fault::new(Code::NoCertificateYet).in_phase(Phase::TlsConnect));
    };
    let offer = match &tls.header {
        Some(_) => Offer::Transport,
        None if mesh.config.outbound.weft_http1 => Offer::Weft,
        None => Offer::Nothing,
    };
    let connected = handshake::connect(credentials.client(), tcp, &tls.id, &tls.server_name, offer).await?;
    let took = handshake_begun.elapsed();
    mesh.metrics.phase(Phase::TlsConnect, took);
    let header = tls.header.as_ref().filter(|_| connected.transport).map(|(port, _)| *port);
    made.tls = Some(MadeTls { took, group: connected.group, header });
    made.weft = connected.weft;
    let session = if made.weft { sessions.weft } else { sessions.any };
    let mut stream = Box::new(connected.stream);

    // 3. The transport header, only if the peer agreed to it.
    if let (Some((port, name)), true) = (&tls.header, connected.transport) {
        step.set(Step::Header);
        let header = TransportHeader { port: *port, name: name.clone(), session };
        let written = stream.write_all(&header.encode()).await;
        written
            .map_err(|error| Fault::new(Code::NetworkIo).in_phase(Phase::TransportHeader).because(error))?;
    }
    let mut io = Io::new(Prefixed::new(Transport::Connected(stream)));
    if header.is_some() && made.weft && session.is_none() {
        io.await_answer();
    }
    io.count(target.series.clone().open());
    Ok((io, made))
}

/// The deadline is over: who is to blame depends on how far it came and on whether this process ran at all.
fn overrun(target: &Target, step: Step, begun: Instant, deadline: Instant) -> Fault {
    let late = Instant::now().saturating_duration_since(deadline);
    let (phase, code) = match (step, target.role) {
        (Step::Tcp, Role::App) => (Phase::Connect, Code::AppConnectTimeout),
        (Step::Tcp, Role::Peer) if target.way.is_unreachable() => (Phase::Connect, Code::Unreachable),
        (Step::Tcp, Role::Peer) => (Phase::Connect, Code::ConnectTimeout),
        (Step::Tls, _) => (Phase::TlsConnect, Code::HandshakeTimeout),
        (Step::Header, _) => (Phase::TransportHeader, Code::HandshakeTimeout),
    };
    if late > STALL {
        let fault = Fault::new(Code::Stalled).in_phase(phase);
        return fault.fact("stalled_ms", late.as_millis()).fact("waited_ms", begun.elapsed().as_millis());
    }
    Fault::new(code).in_phase(phase).fact("limit_ms", target.limit.as_millis())
}

fn refusal(error: &io::Error, role: Role) -> Code {
    match (error.kind(), role) {
        (io::ErrorKind::ConnectionRefused, Role::App) => Code::AppRefused,
        (io::ErrorKind::ConnectionRefused, Role::Peer) => Code::ConnectRefused,
        (io::ErrorKind::TimedOut, Role::App) => Code::AppConnectTimeout,
        (io::ErrorKind::TimedOut, Role::Peer) => Code::ConnectTimeout,
        (io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable, _) => Code::Unreachable,
        (io::ErrorKind::ConnectionReset, _) => Code::ConnectionReset,
        _ => Code::NetworkIo,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Metrics, labels::Labels};

    fn target() -> Target {
        let addr = SocketAddr::from(([192, 0, 2, 1], 80));
        Target {
            addr,
            names: addr,
            role: Role::Peer,
            tls: None,
            plain: "",
            limit: Duration::from_secs(1),
            http2: Http2Client::default(),
            way: Way::default(),
            options: socket::Options::default(),
            series: Metrics::new(Duration::from_secs(600)).tcp(&Labels::new()),
        }
    }

    #[test]
    fn what_the_kernel_says_has_a_code_for_each_cause() {
        use io::ErrorKind::{
            ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable, Other, TimedOut,
        };
        for (kind, peer, app) in [
            (ConnectionRefused, Code::ConnectRefused, Code::AppRefused),
            (TimedOut, Code::ConnectTimeout, Code::AppConnectTimeout),
            (HostUnreachable, Code::Unreachable, Code::Unreachable),
            (NetworkUnreachable, Code::Unreachable, Code::Unreachable),
            (ConnectionReset, Code::ConnectionReset, Code::ConnectionReset),
            (Other, Code::NetworkIo, Code::NetworkIo),
        ] {
            let error = io::Error::from(kind);
            assert_eq!((refusal(&error, Role::Peer), refusal(&error, Role::App)), (peer, app), "{kind}");
        }
    }

    #[test]
    fn an_address_where_nobody_answers_is_told_from_dropped_packets_once_the_kernel_has_said_so() {
        let (target, now) = (target(), Instant::now());
        let late = || overrun(&target, Step::Tcp, now, now).code();
        assert_eq!(late(), Code::ConnectTimeout);
        target.way.hear(Some(Code::Unreachable));
        assert_eq!(late(), Code::Unreachable);
        assert_eq!(overrun(&target, Step::Tls, now, now).code(), Code::HandshakeTimeout);
        // It answers again, or keeps silent: nothing is known any more.
        target.way.hear(None);
        assert_eq!(late(), Code::ConnectTimeout);
    }
}
