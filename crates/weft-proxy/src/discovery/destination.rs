//! Watches one destination, an original one or one that is named: two questions, one answer.

use super::{
    Destination, Progress,
    age::Age,
    agent::{Doubt, Publishers},
    context::Context,
    extend::Extending,
    judge::{Answer, combine, combine_named, each_endpoint, map_endpoints},
    list::About,
    memory::is_open,
    settle::{Due, Settling},
};
use crate::control::lookup::{Failure, Lookup, Told};
use linkerd2_proxy_api::outbound::traffic_spec;
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    fmt,
    future::pending,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{broadcast, watch};
use weft_fault::{Code, Fault};
use weft_model::{
    meta::Meta,
    outbound::OutboundPolicy,
    profile::{Profile, ServiceRoutes},
};
use weft_wire::common::Invalid;

/// A peer's proxy that refused plaintext has proved that the answer is wrong. New connections wait for a better one, but
/// no longer than this.
const HOLD_REFUTED: Duration = Duration::from_secs(10);

/// Where the answer goes.
pub(super) struct Out {
    progress: Publishers<Progress>,
    answer: Mutex<Option<watch::Sender<Arc<Destination>>>>,
}

impl Out {
    pub(super) fn new(progress: Publishers<Progress>) -> Self {
        Out { progress, answer: Mutex::new(None) }
    }

    /// Connections hold the answer, beside the one receiver that the progress carries.
    pub(super) fn is_in_use(&self) -> bool {
        self.answer.lock().as_ref().is_some_and(|answer| answer.receiver_count() > 1)
    }

    fn publish(&self, destination: Destination) {
        let mut answer = self.answer.lock();
        match &*answer {
            Some(sender) => drop(sender.send_replace(Arc::new(destination))),
            None => {
                let (sender, receiver) = watch::channel(Arc::new(destination));
                *answer = Some(sender);
                self.progress.publish(Progress::Answered(receiver));
            }
        }
    }

    /// Lets new connections wait; those that have the answer see its changes all the same.
    fn hold(&self, since: Instant, why: &Fault) {
        self.progress.publish(Progress::Asking { since, last: Some(Arc::new(why.record())) });
    }

    fn release(&self) {
        if let Some(answer) = &*self.answer.lock() {
            self.progress.publish(Progress::Answered(answer.subscribe()));
        }
    }

    fn is_answered(&self) -> bool {
        self.answer.lock().is_some()
    }
}

/// What is asked about.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    Addr(SocketAddr),
    /// `host:port`.
    Name(String, u16),
}

impl Subject {
    /// A name has no address of its own.
    fn addr(&self) -> SocketAddr {
        match self {
            Subject::Addr(addr) => *addr,
            Subject::Name(_, port) => SocketAddr::from(([0, 0, 0, 0], *port)),
        }
    }

    fn target(&self) -> traffic_spec::Target {
        match self {
            Subject::Addr(addr) => traffic_spec::Target::Addr((*addr).into()),
            Subject::Name(name, _) => traffic_spec::Target::Authority(name.clone()),
        }
    }

    /// Whether it is about this subject, or about an address that the answer names.
    fn is_about(&self, about: &About, own: &BTreeSet<SocketAddr>) -> bool {
        match (about, self) {
            (About::Addr(addr), _) => own.contains(addr),
            (About::Name(about), Subject::Name(name, _)) => name == &**about,
            (About::Name(_), Subject::Addr(_)) => false,
        }
    }

    fn own(&self) -> BTreeSet<SocketAddr> {
        match self {
            Subject::Addr(addr) => BTreeSet::from([*addr]),
            Subject::Name(..) => BTreeSet::new(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Addr(addr) => addr.fmt(f),
            Subject::Name(name, _) => f.write_str(name),
        }
    }
}

/// Runs until it is aborted.
pub(super) async fn watch(
    cx: Arc<Context>,
    subject: Subject,
    out: Arc<Out>,
    mut doubts: broadcast::Receiver<Doubt>,
) {
    let asked = Instant::now();
    let addr = subject.addr();
    let in_cluster = matches!(subject, Subject::Name(..)) || cx.in_cluster(addr.ip());
    let (mut profiles, mut policies) = match &subject {
        Subject::Addr(addr) => (cx.profile(*addr), cx.outbound(*addr)),
        Subject::Name(name, _) => (Some(cx.profile_of_name(name)), cx.outbound_of_name(name)),
    };
    let mut profile: Answer<Profile> = match profiles {
        Some(_) => Answer::Pending(None),
        None => Answer::NotAsked,
    };
    let mut policy: Answer<OutboundPolicy> = Answer::Pending(None);
    let mut settling = Settling::new(cx.clone(), subject.to_string());
    let mut extending = Extending::new(cx.clone(), cx.spec(subject.target()));
    let mut last: Option<Destination> = None;
    let mut own = subject.own();
    let mut refuted: Option<Instant> = None;
    let mut age = Age::new(cx.max_age);

    loop {
        // 1. Wait for news. An answer that is being held back is looked at again from time to time.
        let held = async {
            match (&last, refuted) {
                (None, _) => tokio::time::sleep(Duration::from_millis(250)).await,
                (Some(_), Some(since)) => tokio::time::sleep_until((since + HOLD_REFUTED).into()).await,
                (Some(_), None) => pending().await,
            }
        };
        tokio::select! {
            told = next(&mut profiles) => {
                if told.is_answer() {
                    age.renewed();
                }
                let read = |message| weft_wire::profile::from_api(message);
                take(&mut profile, told, read, |_| true);
            }
            told = policies.next() => {
                if told.is_answer() {
                    age.renewed();
                }
                let read = |message| weft_wire::outbound::from_api(message);
                // A fallback that is withdrawn is gone; an object's policy outlives a controller that starts anew.
                let answers = told.is_answer();
                take(&mut policy, told, read, |known| matches!(*known.meta, Meta::Resource(_)));
                if answers {
                    extending.begin(&policy);
                }
            }
            () = extending.done(&mut policy) => {}
            due = settling.due() => if due == Due::AskAgain {
                ask_again(&mut profiles, &mut policies);
            },
            doubted = doubts.recv() => match doubted {
                Ok(Doubt::Anew(about)) if subject.is_about(&about, &own) => {
                    settling.doubt_all();
                    ask_again(&mut profiles, &mut policies);
                }
                Ok(Doubt::Evidence { addr: doubted, why }) if own.contains(&doubted) => {
                    settling.doubt(doubted);
                    ask_again(&mut profiles, &mut policies);
                    if why == Code::PlaintextRefused && settling.is_open(&doubted) && refuted.is_none() {
                        let since = Instant::now();
                        refuted = Some(since);
                        out.hold(since, &Fault::new(Code::IdentityUnknown).about(doubted).fact("evidence", why));
                    }
                }
                // Missed or foreign doubts change nothing; a closed channel means that the agent is ending.
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => continue,
                Err(broadcast::error::RecvError::Closed) => return,
            },
            () = age.over() => ask_again(&mut profiles, &mut policies),
            () = held => {}
        }

        // 2. Put the answers together.
        if extending.holds() {
            continue;
        }
        let combined = match &subject {
            Subject::Addr(addr) => combine(*addr, &profile, &policy, in_cluster, asked.elapsed()),
            Subject::Name(_, port) => combine_named(*port, &profile, &policy),
        };
        let (profile, policy) = match combined {
            Ok(answers) => answers,
            Err(refused) => {
                if !out.is_answered() {
                    out.progress.publish(match refused {
                        Some(why) => Progress::Refused(why),
                        None => {
                            let last = profile.fault().or(policy.fault()).cloned();
                            Progress::Asking { since: asked, last }
                        }
                    });
                }
                continue;
            }
        };

        // 3. Settle identities that are missing.
        own = subject.own();
        each_endpoint(&policy, &mut |endpoint| {
            own.insert(endpoint.addr);
        });
        settling.begin(|addr| own.contains(addr));
        let policy = {
            let settling = Mutex::new(&mut settling);
            map_endpoints(&policy, &|endpoint| settling.lock().settle(endpoint))
        };
        let profile = profile.map(|profile| match &profile.endpoint {
            Some(endpoint) => {
                Arc::new(Profile { endpoint: Some(settling.settle(endpoint)), ..Profile::clone(&profile) })
            }
            None => profile,
        });
        settling.finish();
        if last.is_none() && settling.is_confirming() {
            continue;
        }

        // 4. Tell the workers, if anything changed.
        let freed = refuted.is_some_and(|since| since.elapsed() >= HOLD_REFUTED || !settling.any_open());
        if freed {
            refuted = None;
        }
        let strict = cx.confirmer.is_weft() || refuted.is_some();
        let mut awaits_identity = false;
        each_endpoint(&policy, &mut |endpoint| awaits_identity |= strict && is_open(endpoint));
        let same = last.as_ref().is_some_and(|last| {
            last.profile == profile
                && *last.policy == policy
                && last.strict == strict
                && last.awaits_identity == awaits_identity
        });
        if !same {
            let service = routes_of(profile.as_deref(), addr.port(), last.as_ref());
            let destination = Destination {
                service,
                addr,
                generation: last.as_ref().map_or(1, |last| last.generation + 1),
                learned: Instant::now(),
                profile,
                policy: Arc::new(policy),
                in_cluster,
                strict,
                awaits_identity,
            };
            last = Some(destination.clone());
            out.publish(destination);
        }
        if freed {
            out.release();
        }
    }
}

/// A profile's routes. Where they are as before, the same ones go on: counters and budgets are theirs.
fn routes_of(profile: Option<&Profile>, port: u16, last: Option<&Destination>) -> Option<Arc<ServiceRoutes>> {
    let before = last.and_then(|last| last.service.as_ref());
    let (name, endpoint) = (profile?.fully_qualified_name.as_deref(), profile?.endpoint.as_ref());
    let now = ServiceRoutes::new(&profile?.service, name, endpoint, port, before.map(|before| &**before))?;
    Some(before.filter(|before| ***before == now).cloned().unwrap_or_else(|| Arc::new(now)))
}

async fn next<M: Send + 'static>(lookup: &mut Option<Lookup<M>>) -> Told<M> {
    match lookup {
        Some(lookup) => lookup.next().await,
        None => pending().await,
    }
}

fn ask_again<A: Send + 'static, B: Send + 'static>(
    profiles: &mut Option<Lookup<A>>,
    policies: &mut Lookup<B>,
) {
    if let Some(profiles) = profiles {
        profiles.ask_again();
    }
    policies.ask_again();
}

/// Takes what a lookup told. `keeps`: whether a known value outlives the controller's word that there is nothing.
pub(super) fn take<M, T: PartialEq>(
    answer: &mut Answer<T>,
    told: Told<M>,
    read: impl FnOnce(M) -> Result<T, Invalid>,
    keeps: impl FnOnce(&T) -> bool,
) {
    // The first failure is told, its repetitions are not.
    let first = *answer == Answer::Pending(None);
    let tell = |fault: &Fault| match first {
        true => tracing::warn!("{fault:?}"),
        false => tracing::debug!("{fault:?}"),
    };
    let refused = match told {
        Told::First(message) | Told::Next(message) => match read(message) {
            Ok(value) => {
                *answer = Answer::Known(Arc::new(value));
                return;
            }
            Err(invalid) => {
                let fault = Fault::from(invalid);
                tracing::warn!("{fault:?}");
                Answer::Refused(Arc::new(fault.record()))
            }
        },
        Told::Slow(fault) => {
            tell(&fault);
            Answer::Pending(Some(Arc::new(fault.record())))
        }
        Told::Failed(Failure { code: Some(tonic::Code::NotFound | tonic::Code::Unimplemented), .. }) => {
            Answer::Absent
        }
        Told::Failed(failure) => {
            tell(&failure.fault);
            let record = Arc::new(failure.fault.record());
            if failure.is_refusal() { Answer::Refused(record) } else { Answer::Pending(Some(record)) }
        }
    };
    // What was known stays known through outages.
    match (&*answer, &refused) {
        (Answer::Known(known), Answer::Absent) if !keeps(known) => *answer = refused,
        (Answer::Known(_), _) => {}
        (Answer::Absent | Answer::Refused(_), Answer::Pending(_)) => {}
        _ => *answer = refused,
    }
}
