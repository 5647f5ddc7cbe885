//! Choosing an endpoint of a name, and saying why there is none.

use super::{
    Worker,
    endpoint::{Down, Member},
};
use crate::{
    deadline::within,
    discovery::{self, EndpointsState, Lookup},
    latest::Latest,
    metrics::{self, Balanced, labels::Labels},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    balance::{Weights, pick_two},
    identity::{NoTls, Unknown},
    meta::Meta,
    outbound::{ConnectionKey, Endpoints, EwmaConfig},
};

/// Services that one balancer is counted for at a time.
const COUNTED: usize = 16;

/// The endpoints of one name on one worker.
pub(crate) struct Balancer {
    pub(crate) path: String,
    pub(super) ewma: EwmaConfig,
    state: Latest<EndpointsState>,
    /// The state that `members` were made of.
    seen: RefCell<Option<Arc<EndpointsState>>>,
    members: Rc<RefCell<Vec<Rc<Member>>>>,
    /// `None`: all have the same.
    weights: RefCell<Option<Weights>>,
    pub(crate) used: Cell<Instant>,
    /// Who waits for the first answer.
    waiting: Cell<usize>,
    /// Its families, once for each service that it serves; mostly one.
    counted: RefCell<Vec<Counted>>,
}

struct Counted {
    of: (Arc<Meta>, Arc<Meta>, Balanced),
    endpoints: metrics::balancer::Endpoints,
}

impl Balancer {
    pub(crate) fn new(worker: &Worker, path: &str, ewma: EwmaConfig) -> Rc<Self> {
        Rc::new(Balancer {
            path: path.to_owned(),
            ewma,
            state: Latest::new(worker.mesh.discovery.endpoints(path)),
            seen: RefCell::default(),
            members: Rc::default(),
            weights: RefCell::default(),
            used: Cell::new(Instant::now()),
            waiting: Cell::new(0),
            counted: RefCell::default(),
        })
    }

    /// Takes in the newest answer. Endpoints that are gone, or whose connections must be others now, are retired: what is
    /// under way ends in peace, idle connections close at once.
    pub(crate) fn refresh(&self, worker: &Worker) -> Arc<EndpointsState> {
        let state = self.state.get();
        if self.seen.borrow().as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &state)) {
            return state;
        }
        let endpoints = match &state.lookup {
            Lookup::Answered(Endpoints::Known(endpoints)) => endpoints.as_slice(),
            // A name that was known and is not any more: what was there is not dialled again.
            Lookup::Answered(Endpoints::NoSuchService) => &[],
            // No news: what is known stays in use.
            Lookup::Pending(_) | Lookup::Refused(_) => return state,
        };
        let strictness = self.seen.borrow().as_ref().map(|seen| seen.strict);
        let mut old: HashMap<ConnectionKey, Rc<Member>> = self
            .members
            .take()
            .into_iter()
            .map(|member| (member.endpoint().connection_key(), member))
            .collect();
        let (first, mut kept) = (self.seen.borrow().is_none(), 0);
        let mut members = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let known = old.remove(&endpoint.connection_key());
            // Strictness decides whether an unknown identity may be dialled, so a change makes it another member.
            let member = match known.filter(|_| strictness == Some(state.strict)) {
                Some(member) => {
                    kept += 1;
                    member.relabel(&worker.mesh, endpoint, &self.path);
                    member
                }
                None => {
                    let (endpoint, siblings) = (endpoint.clone(), Rc::downgrade(&self.members));
                    Member::new(worker, endpoint, &self.path, state.strict, self.ewma, siblings, NOT_PROVIDED)
                }
            };
            members.push(member);
        }
        for gone in old.values() {
            if let Ok(pool) = &gone.pool {
                pool.retire();
            }
        }
        let added = members.len() - kept;
        for counted in &*self.counted.borrow() {
            counted.endpoints.of().updated(first, added, old.len());
        }
        *self.weights.borrow_mut() = Weights::new(endpoints.iter().map(|endpoint| endpoint.weight));
        *self.members.borrow_mut() = members;
        self.count_endpoints();
        *self.seen.borrow_mut() = Some(state.clone());
        state
    }

    /// Is there any hope of serving a request? A name that is known to have nothing is not.
    pub(crate) fn may_serve(&self, worker: &Worker) -> bool {
        match &self.refresh(worker).lookup {
            Lookup::Pending(_) => true,
            Lookup::Answered(Endpoints::Known(endpoints)) if endpoints.is_empty() => false,
            Lookup::Answered(Endpoints::Known(_)) => {
                let now = Instant::now();
                self.members.borrow().iter().any(|m| m.is_up(now) || m.is_last_resort(now))
            }
            Lookup::Answered(Endpoints::NoSuchService) => false,
            Lookup::Refused(_) => !self.members.borrow().is_empty(),
        }
    }

    /// What counts this balancer's work for one service. Resolved once, found again by a short search.
    pub(crate) fn counts(
        &self,
        worker: &Worker,
        parent: &Arc<Meta>,
        backend: &Arc<Meta>,
        balanced: Balanced,
    ) -> Arc<metrics::balancer::Balancer> {
        let mut all = self.counted.borrow_mut();
        let same = |c: &&Counted| c.of.0 == *parent && c.of.1 == *backend && c.of.2 == balanced;
        if let Some(found) = all.iter().find(same) {
            return found.endpoints.of().clone();
        }
        let labels = Labels::new().object("parent", parent).object("backend", backend);
        let series = worker.mesh.metrics.balancer(balanced, &labels);
        if self.seen.borrow().is_some() {
            series.updated(true, 0, 0);
        }
        if all.len() == COUNTED {
            all.remove(0);
        }
        let of = (parent.clone(), backend.clone(), balanced);
        all.push(Counted { of, endpoints: metrics::balancer::Endpoints::new(&series) });
        drop(all);
        self.count_endpoints();
        series
    }

    /// Says how many endpoints there are and how many may be chosen.
    pub(crate) fn count_endpoints(&self) {
        let (members, now) = (self.members.borrow(), Instant::now());
        let ready = members.iter().filter(|member| member.is_up(now)).count();
        for counted in &mut *self.counted.borrow_mut() {
            counted.endpoints.say(members.len(), ready);
        }
    }

    /// All endpoints, for who must look at each.
    pub(crate) fn members(&self) -> Vec<Rc<Member>> {
        self.members.borrow().clone()
    }

    /// Waits until there is an answer to the name, whatever it is, at most `limit`.
    pub(crate) async fn first_answer(&self, worker: &Worker, limit: Duration) -> Arc<EndpointsState> {
        let mut state = self.refresh(worker);
        if matches!(state.lookup, Lookup::Pending(_)) && self.members.borrow().is_empty() {
            let mut watch = self.state.watch();
            let answered = async {
                let answer = watch.wait_for(|state| !matches!(state.lookup, Lookup::Pending(_))).await;
                answer.is_ok()
            };
            // Late or not: the state itself says what there is.
            let _in_time = within(limit, answered).await;
            state = self.refresh(worker);
        }
        state
    }

    /// An endpoint that was not tried yet. Waits for the first answer to the name as long as `queue` allows; where the answer is
    /// known to be of no use, fails at once and says why.
    pub(crate) async fn pick(
        &self,
        worker: &Worker,
        tried: &[Rc<Member>],
        queue: Queue,
    ) -> Result<Rc<Member>, Fault> {
        self.used.set(Instant::now());
        if self.waiting.get() >= queue.capacity {
            let fault = Fault::new(Code::Overloaded).in_phase(Phase::Queue).about(&self.path);
            return Err(fault.fact("waiting", self.waiting.get()));
        }
        let waits = Waits::new(&self.waiting);
        let state = self.first_answer(worker, queue.limit).await;
        drop(waits);
        self.choose(worker, tried, queue.of).ok_or_else(|| self.nothing(&state, tried))
    }

    fn choose(&self, worker: &Worker, tried: &[Rc<Member>], of: Balanced) -> Option<Rc<Member>> {
        let members = self.members.borrow();
        let now = Instant::now();
        let untried = |member: &Rc<Member>| !tried.iter().any(|t| Rc::ptr_eq(t, member));
        let now_us = worker.now_us();
        if let Some(weights) = &*self.weights.borrow() {
            return weighted(&members, weights, &untried, of, (now, now_us))
                .or_else(|| last_resort(&members, &untried, now));
        }
        // The ordinary case, without an allocation: two random endpoints, both up.
        if tried.is_empty()
            && let Some(at) = pick_two(members.len(), below, |at| members[at].cost(of, now_us))
            && members[at].is_up(now)
        {
            return Some(members[at].clone());
        }
        let up: Vec<_> = members.iter().filter(|m| untried(m) && m.is_up(now)).collect();
        if let Some(at) = pick_two(up.len(), below, |at| up[at].cost(of, now_us)) {
            return Some(up[at].clone());
        }
        last_resort(&members, &untried, now)
    }

    /// Why there is no endpoint, with counts and ages.
    pub(crate) fn nothing(&self, state: &EndpointsState, tried: &[Rc<Member>]) -> Fault {
        let age = state.since.elapsed();
        let since = SystemTime::now() - age;
        let fault = |code| {
            Fault::new(code).in_phase(Phase::Queue).about(&self.path).fact("known_ms", age.as_millis())
        };
        match &state.lookup {
            Lookup::Answered(Endpoints::NoSuchService) => return fault(Code::ServiceUnknown).since(since),
            Lookup::Answered(Endpoints::Known(endpoints)) if endpoints.is_empty() => {
                return fault(Code::NoEndpoints).since(since);
            }
            Lookup::Refused(record) if self.members.borrow().is_empty() => {
                return fault(discovery::refused(record)).because(record.as_cause());
            }
            Lookup::Pending(last) if self.members.borrow().is_empty() => {
                let fault = fault(discovery::unanswered(last.as_deref()));
                return match last {
                    Some(record) => fault.because(record.as_cause()),
                    None => fault,
                };
            }
            _ => {}
        }
        let members = self.members.borrow();
        let unknown: Vec<Unknown> = members.iter().filter_map(|m| m.pool.as_ref().err().copied()).collect();
        if let (Some(first), true) = (unknown.first(), unknown.len() == members.len()) {
            return fault(Code::IdentityUnknown)
                .fact("endpoints", members.len())
                .fact("reason", first.as_str());
        }
        let shut: Vec<Instant> = members.iter().filter_map(|m| m.shut()).collect();
        if !shut.is_empty() && shut.len() + unknown.len() == members.len() {
            let fault = fault(Code::BreakersOpen).fact("endpoints", members.len());
            return match shut.iter().min() {
                Some(first) => fault.fact("open_ms", first.elapsed().as_millis()),
                None => fault,
            };
        }
        let downs: Vec<Down> = members.iter().filter_map(|m| m.down()).collect();
        let mut by_code: BTreeMap<&str, usize> = BTreeMap::new();
        for down in &downs {
            *by_code.entry(down.last.code.as_str()).or_default() += 1;
        }
        // Where all fail alike, that is what failed.
        let alike = match (by_code.first_key_value(), downs.len() == members.len()) {
            (Some((code, count)), true) if *count == downs.len() => Code::find(code),
            _ => None,
        };
        let code = alike.unwrap_or(Code::AllEndpointsFailing);
        let mut fault = fault(code).fact("endpoints", members.len()).fact("tried", tried.len());
        for (code, count) in by_code {
            fault = fault.fact("failing", format!("{count} x {code}"));
        }
        if !shut.is_empty() {
            fault = fault.fact("breakers_open", shut.len());
        }
        if !unknown.is_empty() {
            fault = fault.fact("identity_unknown", unknown.len());
        }
        if let Some(first) = downs.iter().map(|down| down.since).min() {
            fault = fault.fact("down_ms", first.elapsed().as_millis());
        }
        match downs.into_iter().max_by_key(|down| down.tried) {
            Some(down) => fault.because(down.last.as_cause()),
            None => fault,
        }
    }
}

/// By weight, among those that are up. Who weighs nothing gets nothing, unless nobody else is up.
fn weighted(
    members: &[Rc<Member>],
    weights: &Weights,
    untried: &dyn Fn(&Rc<Member>) -> bool,
    of: Balanced,
    (now, now_us): (Instant, u64),
) -> Option<Rc<Member>> {
    let draw = |bound| rand::random_range(0..bound);
    let at = weights.pick_two(draw, |at| members[at].cost(of, now_us));
    if let Some(member) = members.get(at).filter(|m| untried(m) && m.is_up(now)) {
        return Some(member.clone());
    }
    let up: Vec<_> = members.iter().filter(|m| untried(m) && m.is_up(now)).collect();
    let cost = |at: usize| up[at].cost(of, now_us);
    let at = match Weights::new(up.iter().map(|m| m.endpoint().weight)) {
        Some(weights) => Some(weights.pick_two(draw, cost)),
        None => pick_two(up.len(), below, cost),
    };
    up.get(at?).map(|member| Rc::clone(member))
}

/// Nothing is up: the one that was tried longest ago.
fn last_resort(
    members: &[Rc<Member>],
    untried: &dyn Fn(&Rc<Member>) -> bool,
    now: Instant,
) -> Option<Rc<Member>> {
    let oldest = |m: &&Rc<Member>| m.down().map(|down| down.tried);
    members.iter().filter(|m| untried(m) && m.is_last_resort(now)).min_by_key(oldest).cloned()
}

/// How long, and how many at a time, may wait for the endpoints of a name.
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    /// What waits.
    pub(crate) of: Balanced,
    pub(crate) limit: Duration,
    pub(crate) capacity: usize,
}

struct Waits<'a>(&'a Cell<usize>);

impl<'a> Waits<'a> {
    fn new(waiting: &'a Cell<usize>) -> Self {
        waiting.set(waiting.get() + 1);
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

const NOT_PROVIDED: NoTls = NoTls::NotProvidedByServiceDiscovery;

fn below(bound: usize) -> usize {
    rand::random_range(0..bound)
}
