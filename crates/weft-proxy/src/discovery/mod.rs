//! What the data path knows about destinations and ports, and how it asks.
//!
//! Workers read snapshots and never wait for a lock that is held while something is computed. Only the agent thread asks
//! the controller and publishes. Results carry their age and a generation, and no result without an identity is for ever.

mod age;
pub(crate) mod agent;
pub(crate) mod context;
mod destination;
mod endpoints;
mod extend;
pub mod fixed;
pub(crate) mod judge;
pub(crate) mod list;
mod memory;
pub(crate) mod ports;
mod settle;
#[cfg(test)]
mod tests;

use arc_swap::ArcSwap;
use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use tokio::sync::{mpsc, oneshot, watch};
use weft_fault::{Code, Fault, FaultRecord, Phase};
use weft_model::{
    inbound::{Protocol, ServerPolicy},
    outbound::{Endpoint, Endpoints, OutboundPolicy},
    profile::{Profile, ServiceRoutes},
};

/// The answer for one original destination. Replaced whole: keep the receiver and look again when it changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Destination {
    pub addr: SocketAddr,
    /// Grows with each change of this destination's answer.
    pub generation: u64,
    pub learned: Instant,
    pub profile: Option<Arc<Profile>>,
    /// Routes of the profile that are in force instead of the policy's.
    pub service: Option<Arc<ServiceRoutes>>,
    /// The controller's policy, or one made from the profile, or a plain forward to the address.
    pub policy: Arc<OutboundPolicy>,
    pub in_cluster: bool,
    /// An endpoint of unknown identity must not be dialled in plaintext: the controller is one that can say more, or the
    /// endpoint's own proxy refused plaintext.
    pub strict: bool,
    /// For that reason the answer cannot be used yet; the agent is asking. Worth waiting for, briefly.
    pub awaits_identity: bool,
}

/// What is known about the endpoints of a name.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointsState {
    pub generation: u64,
    /// Since when `lookup` has been so.
    pub since: Instant,
    pub lookup: Lookup,
    /// As in [`Destination::strict`].
    pub strict: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Lookup {
    /// No usable answer so far, and the last failure if an attempt has failed.
    Pending(Option<Arc<FaultRecord>>),
    Answered(Endpoints),
    /// The controller refuses to resolve this name. It is asked again all the same, less often.
    Refused(Arc<FaultRecord>),
}

impl EndpointsState {
    pub fn pending() -> Self {
        EndpointsState { generation: 0, since: Instant::now(), lookup: Lookup::Pending(None), strict: false }
    }
}

/// How far the question about an original destination has come.
#[derive(Clone, Debug)]
pub(crate) enum Progress {
    Asking {
        since: Instant,
        last: Option<Arc<FaultRecord>>,
    },
    /// There is nothing behind a name, so far as the controller knows. It is asked again.
    Refused(Arc<FaultRecord>),
    Answered(watch::Receiver<Arc<Destination>>),
}

/// What the data path asks of the agent. A question carries the sender of the channel whose receiver the asker holds.
#[derive(Debug)]
pub(crate) enum Ask {
    Destination(SocketAddr, watch::Sender<Progress>),
    Named(String, u16, watch::Sender<Progress>),
    Endpoints(String, watch::Sender<Arc<EndpointsState>>),
    Inbound(u16, watch::Sender<Arc<ServerPolicy>>),
    Doubt(SocketAddr, Code),
    /// What is known about this is asked for anew, whatever it is.
    Anew(list::About),
    /// Which answers connections hold.
    InUse(oneshot::Sender<list::InUse>),
    Proved(Arc<Endpoint>),
}

/// Questions that may wait for the agent. More than this many new destinations at once is a scan, not traffic.
pub(crate) const ASK_QUEUE: usize = 4_096;

/// The handle that workers hold.
#[derive(Clone, Debug)]
pub struct Discovery {
    shared: Arc<Shared>,
}

/// What holds for ports until the controller speaks.
#[derive(Debug)]
pub(crate) struct Defaults {
    pub(crate) policy: Arc<ServerPolicy>,
    /// Of ports that let in nobody without an identity.
    pub(crate) with_identity: Arc<ServerPolicy>,
    pub(crate) identity_ports: BTreeSet<u16>,
    /// Ports whose bytes are not to be looked at.
    pub(crate) opaque_ports: BTreeSet<u16>,
}

impl Defaults {
    fn of(&self, port: u16) -> Arc<ServerPolicy> {
        let policy = match self.identity_ports.contains(&port) {
            true => &self.with_identity,
            false => &self.policy,
        };
        match self.opaque_ports.contains(&port) {
            true => Arc::new(ServerPolicy { protocol: Protocol::Opaque, ..ServerPolicy::clone(policy) }),
            false => policy.clone(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) destinations: Snapshot<SocketAddr, Progress>,
    pub(crate) named: Snapshot<String, Progress>,
    pub(crate) endpoints: Snapshot<String, Arc<EndpointsState>>,
    pub(crate) ports: Snapshot<u16, Arc<ServerPolicy>>,
    defaults: Defaults,
    asks: mpsc::Sender<Ask>,
    epoch: Instant,
}

/// What is known, by key: read by workers, replaced by the agent.
pub(crate) type Snapshot<K, T> = ArcSwap<HashMap<K, Arc<Known<T>>>>;

#[derive(Debug)]
pub(crate) struct Known<T> {
    receiver: watch::Receiver<T>,
    /// When it was first asked about, in milliseconds after `Shared::epoch`.
    asked_ms: u64,
    /// When it was last looked for, likewise.
    used: AtomicU64,
}

impl<T> Known<T> {
    pub(crate) fn new(receiver: watch::Receiver<T>, now_ms: u64) -> Self {
        Known { receiver, asked_ms: now_ms, used: AtomicU64::new(now_ms) }
    }

    pub(crate) fn used_ms(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Shared {
    pub(crate) fn new(defaults: Defaults) -> (Arc<Self>, mpsc::Receiver<Ask>) {
        let (asks, questions) = mpsc::channel(ASK_QUEUE);
        let shared = Shared {
            defaults,
            destinations: Snapshot::default(),
            named: Snapshot::default(),
            endpoints: Snapshot::default(),
            ports: Snapshot::default(),
            asks,
            epoch: Instant::now(),
        };
        (Arc::new(shared), questions)
    }

    /// What holds for a port until the controller speaks.
    pub(crate) fn default_policy(&self, port: u16) -> Arc<ServerPolicy> {
        self.defaults.of(port)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn find<K: Hash + Eq, T>(&self, snapshot: &Snapshot<K, T>, key: &K) -> Option<watch::Receiver<T>> {
        let known = snapshot.load();
        let known = known.get(key)?;
        known.used.store(self.now_ms(), Ordering::Relaxed);
        Some(known.receiver.clone())
    }

    /// Hands a question to the agent without waiting. When the queue is full a task waits in the caller's stead; there
    /// are no more of these than connections that ask.
    fn ask(&self, ask: Ask) {
        match self.asks.try_send(ask) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(ask)) => {
                let asks = self.asks.clone();
                // The agent may end first; then the process is ending too.
                tokio::spawn(async move { drop(asks.send(ask).await) });
            }
        }
    }
}

impl Discovery {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Discovery { shared }
    }

    /// The answer for an address that the application dialled. Waits until `deadline` for the first usable one.
    pub async fn destination(
        &self,
        dst: SocketAddr,
        deadline: Instant,
    ) -> Result<watch::Receiver<Arc<Destination>>, Fault> {
        let shared = &self.shared;
        let mut progress = shared.find(&shared.destinations, &dst).unwrap_or_else(|| {
            let (send, receive) = watch::channel(Progress::Asking { since: Instant::now(), last: None });
            shared.ask(Ask::Destination(dst, send));
            receive
        });
        answer(&mut progress, deadline).await.map_err(|fault| fault.about(dst))
    }

    /// The answer for a name. Waits until `deadline` for the first usable one; says at once when there is none to be had:
    /// `UPS-014` or `UPS-020` when the controller refuses to resolve the name, `UPS-019` when it has no answer, `UPS-002` when nothing is behind it.
    pub async fn by_name(
        &self,
        host: &str,
        port: u16,
        deadline: Instant,
    ) -> Result<watch::Receiver<Arc<Destination>>, Fault> {
        let shared = &self.shared;
        let name = format!("{host}:{port}");
        let mut progress = shared.find(&shared.named, &name).unwrap_or_else(|| {
            let (send, receive) = watch::channel(Progress::Asking { since: Instant::now(), last: None });
            shared.ask(Ask::Named(name.clone(), port, send));
            receive
        });
        answer(&mut progress, deadline).await.map_err(|fault| fault.about(name))
    }

    /// The endpoints behind a name (`host:port`), as `Destination.Get` tells them. The receiver's sender is gone only
    /// when the process ends.
    pub fn endpoints(&self, path: &str) -> watch::Receiver<Arc<EndpointsState>> {
        let shared = &self.shared;
        let path = path.to_string();
        shared.find(&shared.endpoints, &path).unwrap_or_else(|| {
            let (send, receive) = watch::channel(Arc::new(EndpointsState::pending()));
            shared.ask(Ask::Endpoints(path, send));
            receive
        })
    }

    /// The policy of a port. Never waits: the configured default holds until the first answer.
    pub fn inbound(&self, port: u16) -> watch::Receiver<Arc<ServerPolicy>> {
        let shared = &self.shared;
        shared.find(&shared.ports, &port).unwrap_or_else(|| {
            let (send, receive) = watch::channel(shared.default_policy(port));
            shared.ask(Ask::Inbound(port, send));
            receive
        })
    }

    /// Evidence against what is known about an address, as an endpoint or as a destination: it is asked for again, at
    /// most twice a second.
    pub fn doubt(&self, addr: SocketAddr, why: Code) {
        // A full queue means that the agent is busy asking already.
        drop(self.shared.asks.try_send(Ask::Doubt(addr, why)));
    }

    /// A handshake has just proved the identity that this endpoint is known by.
    pub fn proved(&self, endpoint: Arc<Endpoint>) {
        // A full queue loses one proof; the next connection brings another.
        drop(self.shared.asks.try_send(Ask::Proved(endpoint)));
    }
}

/// What it is called that there is no answer, by what came instead of one.
pub(crate) fn unanswered(last: Option<&FaultRecord>) -> Code {
    match last.and_then(|last| Code::find(&last.code)) {
        Some(Code::ControllerRefused | Code::ControllerUnavailable | Code::ControllerHungUp) => {
            Code::DiscoveryFailing
        }
        Some(Code::ControllerRejects) => Code::DiscoveryRefused,
        Some(Code::ControllerUnready) => Code::DiscoveryUnready,
        _ => Code::Unresolved,
    }
}

/// What it is called that the controller refuses to answer.
pub(crate) fn refused(why: &FaultRecord) -> Code {
    match Code::find(&why.code) {
        Some(Code::ControllerUnready) => Code::DiscoveryUnready,
        _ => Code::DiscoveryRefused,
    }
}

/// Waits for an answer, or for the word that there is none, until `deadline`.
async fn answer(
    progress: &mut watch::Receiver<Progress>,
    deadline: Instant,
) -> Result<watch::Receiver<Arc<Destination>>, Fault> {
    let decided = progress.wait_for(|now| !matches!(now, Progress::Asking { .. }));
    if let Ok(Ok(now)) = tokio::time::timeout_at(deadline.into(), decided).await {
        match &*now {
            Progress::Answered(receiver) => return Ok(receiver.clone()),
            Progress::Refused(why) => return Err(why.again().in_phase(Phase::Discover)),
            Progress::Asking { .. } => {}
        }
    }
    let unresolved = |code| Fault::new(code).in_phase(Phase::Discover);
    Err(match &*progress.borrow() {
        Progress::Asking { since, last } => {
            let fault =
                unresolved(unanswered(last.as_deref())).fact("waited_ms", since.elapsed().as_millis());
            match last {
                Some(cause) => fault.because(cause.as_cause()),
                None => fault,
            }
        }
        // Decided between the deadline and here: still too late for this caller.
        Progress::Answered(_) | Progress::Refused(_) => unresolved(Code::Unresolved),
    })
}
