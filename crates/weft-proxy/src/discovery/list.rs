//! What is known, as a list for people: what was asked, what came of it, how old that is and whether anybody uses it.
//!
//! Workers notice nothing of it: the list is made from the snapshots that they read, each value copied out of its channel before
//! anything is written about it. Whether connections hold an answer is the agent's knowledge; it is asked.

use super::{
    Ask, Destination, Discovery, EndpointsState, Known, Lookup, Progress, Shared, judge::each_endpoint,
};
use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;
use weft_fault::FaultRecord;
use weft_model::{
    identity::PeerIdentity,
    inbound::ServerPolicy,
    outbound::{Endpoint, Endpoints, ProtocolHint},
};
use weft_wire::cached::{Cached, CachedEndpoint, State, What};

/// The agent is busy with questions of traffic first.
const AGENT_PATIENCE: Duration = Duration::from_secs(1);
/// Endpoints of one answer that are listed, and of all together.
const ENDPOINTS: usize = 100;
const ENDPOINTS_IN_ALL: usize = 5_000;
/// Labels that say which endpoint it is.
const LABELS: [&str; 3] = ["namespace", "pod", "service"];

/// What connections hold, as only the agent knows.
#[derive(Debug, Default)]
pub(crate) struct InUse {
    pub(crate) destinations: HashSet<SocketAddr>,
    pub(crate) named: HashSet<String>,
    pub(crate) endpoints: HashSet<String>,
    pub(crate) ports: HashSet<u16>,
}

/// What an answer is about, where one is to be had anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Addr(SocketAddr),
    /// `host:port`.
    Name(Arc<str>),
}

impl About {
    pub(crate) fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| About::Name(text.into()), About::Addr)
    }
}

impl Discovery {
    /// The answers that concern `subject` (an address, a name or a port; all of them without), those last looked for first; at most
    /// `limit`, and how many there are.
    pub(crate) async fn list(&self, subject: Option<&str>, limit: usize) -> (usize, Vec<Cached>) {
        let shared = &self.shared;
        let (send, in_use) = oneshot::channel();
        shared.ask(Ask::InUse(send));
        let in_use = tokio::time::timeout(AGENT_PATIENCE, in_use).await.ok().and_then(Result::ok);
        let in_use = in_use.unwrap_or_default();

        let mut all = Vec::new();
        for (addr, known) in shared.destinations.load_full().iter() {
            all.push(entry(shared, addr.to_string(), known, in_use.destinations.contains(addr), destination));
        }
        for (name, known) in shared.named.load_full().iter() {
            all.push(entry(shared, name.clone(), known, in_use.named.contains(name), destination));
        }
        for (name, known) in shared.endpoints.load_full().iter() {
            all.push(entry(shared, name.clone(), known, in_use.endpoints.contains(name), endpoints));
        }
        for (port, known) in shared.ports.load_full().iter() {
            let answered = known.receiver.has_changed().unwrap_or(false);
            let read = |policy: Arc<ServerPolicy>| server(&policy, answered);
            all.push(entry(shared, port.to_string(), known, in_use.ports.contains(port), read));
        }
        if let Some(subject) = subject {
            all.retain(|cached| concerns(cached, subject));
        }
        all.sort_by(|a, b| a.idle_ms.cmp(&b.idle_ms).then_with(|| a.subject.cmp(&b.subject)));
        let total = all.len();
        all.truncate(limit);
        shorten(&mut all);
        (total, all)
    }

    /// Has the answers that concern `about` asked for anew, and says which they are.
    pub(crate) async fn refresh(&self, about: &str) -> Vec<String> {
        let (_, concerned) = self.list(Some(about), usize::MAX).await;
        let concerned = concerned.into_iter().filter(|cached| cached.what != What::Policy);
        let subjects: Vec<String> = concerned.map(|cached| cached.subject).collect();
        if !subjects.is_empty() {
            self.shared.ask(Ask::Anew(About::parse(about)));
        }
        subjects
    }
}

fn concerns(cached: &Cached, subject: &str) -> bool {
    cached.subject == subject
        // A name's port may be left out, and so may the domain of the cluster.
        || cached.subject.strip_prefix(subject).is_some_and(|rest| rest.starts_with([':', '.']))
        || cached.endpoints.iter().any(|endpoint| endpoint.addr.to_string() == subject)
}

/// Keeps the list within its bounds.
fn shorten(all: &mut [Cached]) {
    let mut room = ENDPOINTS_IN_ALL;
    for cached in all {
        let keep = cached.endpoints.len().min(ENDPOINTS).min(room);
        cached.more_endpoints = cached.endpoints.len() - keep;
        cached.endpoints.truncate(keep);
        room -= keep;
    }
}

/// One answer, as far as its own kind says.
struct Told {
    what: What,
    state: State,
    since: Option<Instant>,
    generation: Option<u64>,
    source: Option<String>,
    profile: Option<String>,
    reason: Option<Arc<FaultRecord>>,
    strict: bool,
    endpoints: Vec<CachedEndpoint>,
}

impl Told {
    fn new(what: What, state: State) -> Self {
        Told {
            what,
            state,
            since: None,
            generation: None,
            source: None,
            profile: None,
            reason: None,
            strict: false,
            endpoints: Vec::new(),
        }
    }
}

fn entry<T: Clone>(
    shared: &Shared,
    subject: String,
    known: &Known<T>,
    in_use: bool,
    read: impl FnOnce(T) -> Told,
) -> Cached {
    // The channel is locked for as long as this copy takes, and it copies pointers.
    let value = known.receiver.borrow().clone();
    let told = read(value);
    let now = shared.now_ms();
    let asked = Duration::from_millis(now.saturating_sub(known.asked_ms));
    let age = told.since.map_or(asked, |since| since.elapsed());
    Cached {
        what: told.what,
        subject,
        state: told.state,
        age_ms: u64::try_from(age.as_millis()).ok(),
        generation: told.generation,
        idle_ms: now.saturating_sub(known.used_ms()),
        in_use,
        source: told.source,
        profile: told.profile,
        reason: told.reason.map(|reason| FaultRecord::clone(&reason)),
        strict: told.strict,
        endpoints: told.endpoints,
        more_endpoints: 0,
    }
}

fn destination(progress: Progress) -> Told {
    let destination: Arc<Destination> = match progress {
        Progress::Asking { since, last } => {
            return Told { since: Some(since), reason: last, ..Told::new(What::Destination, State::Asking) };
        }
        Progress::Refused(why) => {
            return Told { reason: Some(why), ..Told::new(What::Destination, State::Refused) };
        }
        Progress::Answered(answer) => answer.borrow().clone(),
    };
    let state = if destination.awaits_identity { State::AwaitsIdentity } else { State::Answered };
    let mut told = Told {
        since: Some(destination.learned),
        generation: Some(destination.generation),
        source: Some(destination.policy.meta.to_string()),
        strict: destination.strict,
        ..Told::new(What::Destination, state)
    };
    told.profile = destination.profile.as_ref().and_then(|p| p.fully_qualified_name.clone());
    let mut found = BTreeMap::new();
    let mut see = |endpoint: &Arc<Endpoint>| {
        found.entry(endpoint.addr).or_insert_with(|| cached_endpoint(endpoint));
    };
    if let Some(endpoint) = destination.profile.as_ref().and_then(|profile| profile.endpoint.as_ref()) {
        see(endpoint);
    }
    each_endpoint(&destination.policy, &mut see);
    told.endpoints = found.into_values().collect();
    told
}

fn endpoints(state: Arc<EndpointsState>) -> Told {
    let (how, reason, endpoints) = match &state.lookup {
        Lookup::Pending(last) => (State::Asking, last.clone(), Vec::new()),
        Lookup::Refused(why) => (State::Refused, Some(why.clone()), Vec::new()),
        Lookup::Answered(Endpoints::NoSuchService) => (State::Refused, None, Vec::new()),
        Lookup::Answered(Endpoints::Known(endpoints)) => {
            (State::Answered, None, endpoints.iter().map(|endpoint| cached_endpoint(endpoint)).collect())
        }
    };
    Told {
        since: Some(state.since),
        generation: Some(state.generation),
        strict: state.strict,
        reason,
        endpoints,
        ..Told::new(What::Endpoints, how)
    }
}

fn server(policy: &ServerPolicy, answered: bool) -> Told {
    let state = if answered { State::Answered } else { State::Default };
    Told { source: Some(policy.meta.to_string()), ..Told::new(What::Policy, state) }
}

fn cached_endpoint(endpoint: &Endpoint) -> CachedEndpoint {
    let without = match &endpoint.identity {
        PeerIdentity::Meshed { .. } => None,
        PeerIdentity::Unmeshed => Some("unmeshed"),
        PeerIdentity::Unknown(why) => Some(why.as_str()),
    };
    let label = |name: &str| endpoint.labels.get(name).map(|value| (name.to_owned(), value.clone()));
    CachedEndpoint {
        addr: endpoint.addr,
        identity: endpoint.identity.id().map(ToString::to_string),
        without: without.map(str::to_owned),
        hint: match endpoint.hint {
            ProtocolHint::Unknown => None,
            ProtocolHint::H2 => Some("h2".to_owned()),
            ProtocolHint::Opaque => Some("opaque".to_owned()),
        },
        transport_port: endpoint.transport_port,
        weight: endpoint.weight,
        labels: LABELS.into_iter().filter_map(label).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(subject: &str, endpoints: usize) -> Cached {
        let endpoint = |at: usize| {
            let addr = SocketAddr::from((
                [10, 0, u8::try_from(at / 200).unwrap(), u8::try_from(at % 200).unwrap()],
                80,
            ));
            cached_endpoint(&Endpoint::bare(addr, PeerIdentity::Unmeshed))
        };
        Cached {
            what: What::Endpoints,
            subject: subject.to_owned(),
            state: State::Answered,
            age_ms: None,
            generation: None,
            idle_ms: 0,
            in_use: false,
            source: None,
            profile: None,
            reason: None,
            strict: false,
            endpoints: (0..endpoints).map(endpoint).collect(),
            more_endpoints: 0,
        }
    }

    #[test]
    fn answers_are_found_by_what_they_are_about_and_by_what_they_name() {
        let store = cached("store.shop.svc.cluster.local:80", 2);
        for (subject, concerned) in [
            ("store.shop.svc.cluster.local:80", true),
            ("store.shop.svc.cluster.local", true),
            ("store.shop", true),
            ("store.sho", false),
            ("10.0.0.1:80", true),
            ("10.0.0.1:8", false),
            ("10.0.0.9:80", false),
        ] {
            assert_eq!(concerns(&store, subject), concerned, "{subject}");
        }
    }

    #[test]
    fn the_list_is_bounded_and_says_what_it_leaves_out() {
        let mut all: Vec<Cached> = (0..60).map(|_| cached("a:80", 150)).collect();
        shorten(&mut all);
        assert_eq!((all[0].endpoints.len(), all[0].more_endpoints), (100, 50));
        assert_eq!((all[59].endpoints.len(), all[59].more_endpoints), (0, 150));
        assert_eq!(all.iter().map(|cached| cached.endpoints.len()).sum::<usize>(), ENDPOINTS_IN_ALL);
    }
}
