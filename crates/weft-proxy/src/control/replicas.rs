//! The replicas of one service: a task for each address, which connects, waits for the connection's end and connects
//! again. No connection is ever open without a task that drives it.

use super::{Dialer, State, Whom, backoff, connection, dns::Resolved, jittered};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use weft_fault::{Fault, FaultRecord};
use weft_tls::credentials::Client as TlsClient;

/// A connection that lasted so long was a good one.
const LASTED: Duration = Duration::from_secs(5);
/// After a name was not found.
const RESOLVE_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// While nothing is connected, the name may have moved: it is resolved so often, whatever the last answer said.
const RESOLVE_WHILE_DOWN: Duration = Duration::from_secs(2);

enum Event {
    Up(SocketAddr, connection::Connection),
    Down(SocketAddr, Fault),
}

/// Keeps connections to all replicas, until nobody holds the service any more.
pub(super) async fn keep_up(dialer: Dialer, publish: watch::Sender<Arc<State>>) {
    let dialer = Arc::new(dialer);
    // More than a replica's worth each; a task waits for its event to be taken.
    let (events, mut happened) = mpsc::channel(64);
    let mut tasks: HashMap<SocketAddr, AbortOnDropHandle<()>> = HashMap::new();
    let mut state = State::clone(&publish.borrow());
    let mut failures = 0;
    let mut resolved = Instant::now();
    let mut asking: Option<Asking> = None;
    let timer = tokio::time::sleep(Duration::ZERO);
    tokio::pin!(timer);
    loop {
        tokio::select! {
            // 1. Where are they? What was known stays known until there is a better answer.
            () = &mut timer, if asking.is_none() => {
                let dialer = dialer.clone();
                asking = Some(Box::pin(async move { dialer.resolve().await }));
            }
            found = next(&mut asking) => {
                asking = None;
                resolved = Instant::now();
                let again = match found {
                    Ok(Resolved { addrs, valid, .. }) => {
                        failures = 0;
                        state.unresolved = None;
                        let before = tasks.len();
                        let removed = tasks.keys().filter(|addr| !addrs.contains(addr)).count();
                        replace(&dialer, &addrs, &mut tasks, &events);
                        if let Some(counts) = &dialer.counts {
                            counts.replicas(before == 0, tasks.len() + removed - before, removed);
                        }
                        valid
                    }
                    Err(fault) => {
                        failures += 1;
                        if u32::is_power_of_two(failures) {
                            tracing::warn!(service = dialer.name, failures, "{fault:?}");
                        }
                        state.unresolved = Some(Arc::new(fault.record()));
                        backoff(RESOLVE_AGAIN, failures)
                    }
                };
                timer.as_mut().reset(tokio::time::Instant::now() + again);
            }
            // 2. What became of the connections?
            Some(event) = happened.recv() => match event {
                Event::Up(addr, connection) => {
                    state.failed.remove(&addr);
                    state.up.retain(|up| up.peer() != addr);
                    state.up.push(connection);
                }
                Event::Down(addr, fault) => {
                    if state.up.iter().any(|up| up.peer() == addr) && state.up.len() == 1 {
                        state.since = Instant::now();
                    }
                    state.up.retain(|up| up.peer() != addr);
                    state.failed.insert(addr, Arc::new(fault.record()));
                    if state.up.is_empty() {
                        let soon = tokio::time::Instant::from(resolved + RESOLVE_WHILE_DOWN);
                        let next = timer.deadline().min(soon.max(tokio::time::Instant::now()));
                        timer.as_mut().reset(next);
                    }
                }
            },
            () = publish.closed() => return,
        }
        // A task that was given up may have sent its last event before.
        state.up.retain(|up| tasks.contains_key(&up.peer()));
        state.failed.retain(|addr, _| tasks.contains_key(addr));
        if let Some(counts) = &dialer.counts {
            counts.connected(tasks.len(), state.up.len());
        }
        publish.send_replace(Arc::new(state.clone()));
    }
}

type Asking = Pin<Box<dyn Future<Output = Result<Resolved, Fault>> + Send>>;

/// The answer about the name, if it is being asked for. Cancel-safe.
async fn next(asking: &mut Option<Asking>) -> Result<Resolved, Fault> {
    match asking {
        Some(asking) => asking.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Starts tasks for new addresses and ends those of addresses that are gone. What is under way on a connection that is
/// let go ends by itself.
fn replace(
    dialer: &Arc<Dialer>,
    addrs: &BTreeSet<SocketAddr>,
    tasks: &mut HashMap<SocketAddr, AbortOnDropHandle<()>>,
    events: &mpsc::Sender<Event>,
) {
    tasks.retain(|addr, _| addrs.contains(addr));
    for addr in addrs {
        tasks.entry(*addr).or_insert_with(|| {
            AbortOnDropHandle::new(tokio::spawn(replica(dialer.clone(), *addr, events.clone())))
        });
    }
}

/// Connects to one address for as long as it is one of the service's.
async fn replica(dialer: Arc<Dialer>, peer: SocketAddr, events: mpsc::Sender<Event>) {
    let mut failures = 0;
    loop {
        let tls = match &dialer.whom {
            _ if dialer.addr.name.is_none() => None,
            Whom::Anyone(anchors) => Some(TlsClient::anonymous(&anchors.current())),
            Whom::Certified(identity) => Some(identity.clone().first().await.client().clone()),
        };
        let fault = match connection::connect(&dialer.addr, peer, tls.as_ref()).await {
            Ok((connection, ended)) => {
                let connection = connection.counted(dialer.counts.clone());
                tracing::debug!(service = dialer.name, %peer, "connected");
                let up = Instant::now();
                if events.send(Event::Up(peer, connection)).await.is_err() {
                    return;
                }
                let fault = ended.await;
                // A peer that accepts and hangs up at once is as good as one that refuses.
                if up.elapsed() >= LASTED {
                    failures = 0;
                }
                fault
            }
            Err(fault) => fault,
        };
        failures += 1;
        // Each attempt fails alike: the first and then ever rarer ones are told.
        if u32::is_power_of_two(failures) {
            tracing::warn!(service = dialer.name, failures, "{fault:?}");
        }
        if events.send(Event::Down(peer, fault)).await.is_err() {
            return;
        }
        tokio::time::sleep(jittered(dialer.backoff, failures)).await;
    }
}

/// Why nothing is connected, from what every replica said: the address and code of each, and the last in full.
pub(super) fn tried(failed: &BTreeMap<SocketAddr, Arc<FaultRecord>>) -> Option<String> {
    let shown: Vec<String> = failed.iter().map(|(addr, fault)| format!("{addr} {}", fault.code)).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}
