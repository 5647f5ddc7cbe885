//! The agent's side of discovery: takes the workers' questions, runs a task for each, and lets go of what is idle.

use super::{
    Ask, EndpointsState, Known, Progress, Shared, Snapshot,
    context::Context,
    destination,
    destination::Subject,
    endpoints,
    list::{About, InUse},
    ports,
};
use parking_lot::Mutex;
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::Hash,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{broadcast, mpsc, watch},
    task::AbortHandle,
};
use weft_fault::Code;
use weft_model::inbound::ServerPolicy;

/// Destinations, names and ports that are watched at a time, each. More is a scan: what is idle longest goes first.
const WATCHED: usize = 10_000;
const BATCH: usize = 256;
const SWEEP: Duration = Duration::from_secs(1);
/// An address is asked about for the sake of a doubt at most so often.
const DOUBT_EVERY: Duration = Duration::from_millis(500);
const DOUBTS: usize = 1_024;

/// Why an answer may be wrong.
#[derive(Clone, Debug)]
pub(super) enum Doubt {
    /// Evidence against what is known about an address.
    Evidence { addr: SocketAddr, why: Code },
    /// Somebody wants to have it anew.
    Anew(About),
}

/// Sends one value to all who asked the same question before they could see each other's.
pub(super) struct Publishers<T>(Arc<Mutex<Vec<watch::Sender<T>>>>);

impl<T> Clone for Publishers<T> {
    fn clone(&self) -> Self {
        Publishers(self.0.clone())
    }
}

impl<T: Clone> Publishers<T> {
    fn new(first: watch::Sender<T>) -> Self {
        Publishers(Arc::new(Mutex::new(vec![first])))
    }

    pub(super) fn publish(&self, value: T) {
        for sender in &*self.0.lock() {
            sender.send_replace(value.clone());
        }
    }

    fn join(&self, late: watch::Sender<T>) {
        let mut senders = self.0.lock();
        let now = senders.first().map(|first| first.borrow().clone());
        if let Some(now) = now {
            late.send_replace(now);
        }
        senders.push(late);
    }

    fn subscribe(&self) -> watch::Receiver<T> {
        self.0.lock().first().expect("the first publisher is never removed").subscribe()
    }

    /// Receivers other than the snapshot's one.
    fn is_in_use(&self) -> bool {
        let mut senders = self.0.lock();
        let mut at = 0;
        senders.retain(|sender| {
            at += 1;
            at == 1 || sender.receiver_count() > 0
        });
        senders.iter().map(watch::Sender::receiver_count).sum::<usize>() > 1
    }
}

/// Something that is watched.
struct Slot<T> {
    known: Arc<Known<T>>,
    publishers: Publishers<T>,
    task: AbortHandle,
    /// Out of the snapshot since the last sweep: if nobody found it before, it goes.
    leaving: bool,
    in_use: Box<dyn Fn() -> bool + Send>,
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The slots of one kind, and the snapshot through which workers find them.
struct Table<K, T> {
    slots: HashMap<K, Slot<T>>,
    changed: bool,
}

impl<K: Hash + Eq + Clone + Ord, T: Clone> Table<K, T> {
    fn new() -> Self {
        Table { slots: HashMap::new(), changed: false }
    }

    /// Joins a question to the slot that answers it already.
    fn join(&mut self, key: &K, sender: watch::Sender<T>) -> Result<(), watch::Sender<T>> {
        let Some(slot) = self.slots.get_mut(key) else { return Err(sender) };
        slot.publishers.join(sender);
        self.changed |= std::mem::take(&mut slot.leaving);
        Ok(())
    }

    fn insert(
        &mut self,
        key: K,
        publishers: Publishers<T>,
        task: AbortHandle,
        in_use: Box<dyn Fn() -> bool + Send>,
        now_ms: u64,
    ) {
        if self.slots.len() >= WATCHED {
            let idle = self.slots.iter().filter(|(_, slot)| !(slot.in_use)());
            let oldest = idle.min_by_key(|(_, slot)| slot.known.used_ms()).map(|(key, _)| key.clone());
            match oldest {
                Some(oldest) => drop(self.slots.remove(&oldest)),
                // Everything is in use: the newcomer is not answered, and its asker is told so by its deadline.
                None => {
                    task.abort();
                    return;
                }
            }
        }
        let known = Arc::new(Known::new(publishers.subscribe(), now_ms));
        self.slots.insert(key, Slot { known, publishers, task, leaving: false, in_use });
        self.changed = true;
    }

    /// Lets go of what nobody used for `idle`: out of the snapshot first, away a sweep later, so that a worker that
    /// found it in between keeps it.
    fn sweep(&mut self, idle: Duration, now_ms: u64, keep: impl Fn(&K) -> bool) {
        let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let mut changed = false;
        self.slots.retain(|key, slot| {
            let used = (slot.in_use)() || now_ms.saturating_sub(slot.known.used_ms()) <= idle_ms || keep(key);
            let gone = !used && slot.leaving;
            changed |= slot.leaving == used;
            slot.leaving = !used;
            !gone
        });
        self.changed |= changed;
    }

    fn in_use(&self) -> HashSet<K> {
        self.slots.iter().filter(|(_, slot)| (slot.in_use)()).map(|(key, _)| key.clone()).collect()
    }

    /// Publishes what changed, once for a whole batch.
    fn store(&mut self, snapshot: &Snapshot<K, T>) {
        if std::mem::take(&mut self.changed) {
            let stay = self.slots.iter().filter(|(_, slot)| !slot.leaving);
            snapshot.store(Arc::new(stay.map(|(key, slot)| (key.clone(), slot.known.clone())).collect()));
        }
    }
}

/// How long unused answers are kept.
pub(crate) struct Idle {
    pub(crate) outbound: Duration,
    pub(crate) inbound: Duration,
    /// Ports that are watched from the start and for good.
    pub(crate) permanent: BTreeSet<u16>,
}

struct Agent {
    cx: Arc<Context>,
    shared: Arc<Shared>,
    idle: Idle,
    destinations: Table<SocketAddr, Progress>,
    named: Table<String, Progress>,
    endpoints: Table<String, Arc<EndpointsState>>,
    ports: Table<u16, Arc<ServerPolicy>>,
    doubts: broadcast::Sender<Doubt>,
    doubted: HashMap<SocketAddr, Instant>,
}

/// Answers questions for as long as the process lives.
pub(crate) async fn run(
    cx: Arc<Context>,
    shared: Arc<Shared>,
    mut questions: mpsc::Receiver<Ask>,
    idle: Idle,
) {
    let mut agent = Agent {
        cx,
        shared,
        idle,
        destinations: Table::new(),
        named: Table::new(),
        endpoints: Table::new(),
        ports: Table::new(),
        doubts: broadcast::Sender::new(DOUBTS),
        doubted: HashMap::new(),
    };
    for port in agent.idle.permanent.clone() {
        agent.port(port, watch::channel(agent.shared.default_policy(port)).0);
    }
    agent.store();
    let mut sweep = tokio::time::interval(SWEEP);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            taken = questions.recv_many(&mut batch, BATCH) => {
                if taken == 0 {
                    return;
                }
                for ask in batch.drain(..) {
                    agent.take(ask);
                }
            }
            _ = sweep.tick() => agent.sweep(),
        }
        agent.store();
    }
}

impl Agent {
    fn take(&mut self, ask: Ask) {
        match ask {
            Ask::Destination(addr, sender) => self.destination(addr, sender),
            Ask::Named(name, port, sender) => self.named(name, port, sender),
            Ask::Endpoints(path, sender) => self.name(path, sender),
            Ask::Inbound(port, sender) => self.port(port, sender),
            Ask::Doubt(addr, why) => self.doubt(addr, why),
            Ask::Anew(about) => self.anew(about),
            // Whoever asked may be gone.
            Ask::InUse(asker) => drop(asker.send(self.in_use())),
            Ask::Proved(endpoint) => self.cx.memory.lock().proved(&endpoint, Instant::now()),
        }
    }

    fn destination(&mut self, addr: SocketAddr, sender: watch::Sender<Progress>) {
        let Err(sender) = self.destinations.join(&addr, sender) else { return };
        let publishers = Publishers::new(sender);
        let out = Arc::new(destination::Out::new(publishers.clone()));
        let subject = Subject::Addr(addr);
        let watching = destination::watch(self.cx.clone(), subject, out.clone(), self.doubts.subscribe());
        let task = tokio::spawn(watching).abort_handle();
        let (waiting, now) = (publishers.clone(), self.shared.now_ms());
        let in_use = Box::new(move || out.is_in_use() || waiting.is_in_use());
        self.destinations.insert(addr, publishers, task, in_use, now);
    }

    fn named(&mut self, name: String, port: u16, sender: watch::Sender<Progress>) {
        let Err(sender) = self.named.join(&name, sender) else { return };
        let publishers = Publishers::new(sender);
        let out = Arc::new(destination::Out::new(publishers.clone()));
        let subject = Subject::Name(name.clone(), port);
        let watching = destination::watch(self.cx.clone(), subject, out.clone(), self.doubts.subscribe());
        let task = tokio::spawn(watching).abort_handle();
        let (waiting, now) = (publishers.clone(), self.shared.now_ms());
        let in_use = Box::new(move || out.is_in_use() || waiting.is_in_use());
        self.named.insert(name, publishers, task, in_use, now);
    }

    fn name(&mut self, path: String, sender: watch::Sender<Arc<EndpointsState>>) {
        let Err(sender) = self.endpoints.join(&path, sender) else { return };
        let publishers = Publishers::new(sender);
        let watching =
            endpoints::watch(self.cx.clone(), path.clone(), publishers.clone(), self.doubts.subscribe());
        let task = tokio::spawn(watching).abort_handle();
        let held = publishers.clone();
        let now = self.shared.now_ms();
        self.endpoints.insert(path, publishers, task, Box::new(move || held.is_in_use()), now);
    }

    fn port(&mut self, port: u16, sender: watch::Sender<Arc<ServerPolicy>>) {
        let Err(sender) = self.ports.join(&port, sender) else { return };
        let publishers = Publishers::new(sender);
        let task = tokio::spawn(ports::watch(self.cx.clone(), port, publishers.clone())).abort_handle();
        let held = publishers.clone();
        let now = self.shared.now_ms();
        self.ports.insert(port, publishers, task, Box::new(move || held.is_in_use()), now);
    }

    fn doubt(&mut self, addr: SocketAddr, why: Code) {
        let now = Instant::now();
        let forgotten = self.cx.memory.lock().refuted(addr, why, now);
        if forgotten {
            tracing::warn!(%addr, code = why.id(), "no proxy there any more: it is not held to be meshed");
        }
        let recently =
            self.doubted.get(&addr).is_some_and(|at| now.saturating_duration_since(*at) < DOUBT_EVERY);
        if (recently && !forgotten) || self.doubted.len() >= DOUBTS {
            return;
        }
        self.doubted.insert(addr, now);
        tracing::debug!(%addr, code = why.id(), "asked about again");
        // Without a receiver nothing is watched that could be doubted.
        drop(self.doubts.send(Doubt::Evidence { addr, why }));
    }

    /// Forgets what was proved of an address, too: whoever asks for this holds all that is known to be wrong.
    fn anew(&mut self, about: About) {
        if let About::Addr(addr) = &about {
            self.cx.memory.lock().forget(*addr);
        }
        tracing::info!(?about, "asked about anew");
        drop(self.doubts.send(Doubt::Anew(about)));
    }

    fn in_use(&self) -> InUse {
        InUse {
            destinations: self.destinations.in_use(),
            named: self.named.in_use(),
            endpoints: self.endpoints.in_use(),
            ports: self.ports.in_use(),
        }
    }

    fn sweep(&mut self) {
        let now = self.shared.now_ms();
        self.destinations.sweep(self.idle.outbound, now, |_| false);
        self.named.sweep(self.idle.outbound, now, |_| false);
        self.endpoints.sweep(self.idle.outbound, now, |_| false);
        self.ports.sweep(self.idle.inbound, now, |port| self.idle.permanent.contains(port));
        let at = Instant::now();
        self.doubted.retain(|_, doubted| at.saturating_duration_since(*doubted) < DOUBT_EVERY);
        self.cx.memory.lock().sweep(at);
    }

    fn store(&mut self) {
        self.destinations.store(&self.shared.destinations);
        self.named.store(&self.shared.named);
        self.endpoints.store(&self.shared.endpoints);
        self.ports.store(&self.shared.ports);
    }
}
