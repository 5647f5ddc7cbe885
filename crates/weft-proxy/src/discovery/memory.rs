//! Workloads that proved to be meshed: none of them is dialled in plaintext again while it lives.
//!
//! Only a proof is remembered, never an answer's claim, and no recall keeps a memory alive: what proof has put here, the
//! controller's word, evidence to the contrary, or time takes away again.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use weft_fault::Code;
use weft_model::{identity::PeerIdentity, outbound::Endpoint};

/// Remembered addresses; beyond it the oldest go first.
const ENTRIES: usize = 16_384;
/// How long after its last proof a workload is remembered.
const KEEP: Duration = Duration::from_secs(3_600);
/// A peer that is said to have no identity, and that takes no TLS so often and for so long, has changed indeed.
const REFUTED_TIMES: u32 = 3;
const REFUTED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Memory {
    meshed: HashMap<SocketAddr, Seen>,
}

#[derive(Debug)]
struct Seen {
    endpoint: Arc<Endpoint>,
    proved: Instant,
    /// When an answer last named no identity for it.
    bare: Option<Instant>,
    refuted: Option<(Instant, u32)>,
}

impl Memory {
    /// A peer has just proved the identity that it is known by here.
    pub(crate) fn proved(&mut self, endpoint: &Arc<Endpoint>, now: Instant) {
        debug_assert!(endpoint.identity.id().is_some());
        if self.meshed.len() >= ENTRIES && !self.meshed.contains_key(&endpoint.addr) {
            let oldest = self.meshed.iter().min_by_key(|(_, seen)| seen.proved).map(|(addr, _)| *addr);
            oldest.map(|addr| self.meshed.remove(&addr));
        }
        let seen = Seen { endpoint: endpoint.clone(), proved: now, bare: None, refuted: None };
        self.meshed.insert(endpoint.addr, seen);
    }

    /// What an endpoint without an identity proved to be before, if it is still the same workload.
    pub(crate) fn recall(&mut self, endpoint: &Endpoint, now: Instant) -> Option<Arc<Endpoint>> {
        let seen = self.meshed.get_mut(&endpoint.addr)?;
        if now.saturating_duration_since(seen.proved) > KEEP || !same_pod(&seen.endpoint, endpoint) {
            self.meshed.remove(&endpoint.addr);
            return None;
        }
        seen.bare = Some(now);
        Some(seen.endpoint.clone())
    }

    /// The controller said in as many words that there is no proxy.
    pub(crate) fn forget(&mut self, addr: SocketAddr) {
        self.meshed.remove(&addr);
    }

    /// A connection that relied on an identity failed as it does where no proxy is. Says whether that was the last that
    /// was needed: the address is forgotten.
    pub(crate) fn refuted(&mut self, addr: SocketAddr, why: Code, now: Instant) -> bool {
        let Some(seen) = self.meshed.get_mut(&addr) else { return false };
        if !refutes(why, &seen.endpoint) {
            return false;
        }
        let (since, times) = seen.refuted.get_or_insert((now, 0));
        *times += 1;
        let long = now.saturating_duration_since(*since) >= REFUTED_FOR;
        // While answers name the identity, nothing is recalled, and there is nothing to forget.
        let still_bare = seen.bare.is_some_and(|bare| bare >= *since);
        let over = *times >= REFUTED_TIMES && long && still_bare;
        if over {
            self.meshed.remove(&addr);
        }
        over
    }

    /// Drops what is too old.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.meshed.retain(|_, seen| now.saturating_duration_since(seen.proved) <= KEEP);
    }
}

/// Does a failure to connect say that there is no proxy, or another workload? A port of the application's own may be
/// refused by an application that starts anew; the proxy's port is not.
fn refutes(why: Code, endpoint: &Endpoint) -> bool {
    match why {
        Code::PeerNotTls | Code::HandshakeEof | Code::ConnectionReset | Code::IdentityMismatch => true,
        Code::ConnectRefused => endpoint.transport_port.is_some(),
        _ => false,
    }
}

/// An address may be given to another pod. An answer that names no pod is taken to be about the same one.
fn same_pod(known: &Endpoint, new: &Endpoint) -> bool {
    ["pod", "namespace"].iter().all(|label| match (known.labels.get(*label), new.labels.get(*label)) {
        (Some(known), Some(new)) => known == new,
        _ => true,
    })
}

/// Whether an endpoint's identity is an open question.
pub(crate) fn is_open(endpoint: &Endpoint) -> bool {
    matches!(endpoint.identity, PeerIdentity::Unknown(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use weft_model::identity::{Identity, Unknown};

    fn endpoint(pod: Option<&str>, meshed: bool) -> Arc<Endpoint> {
        let id = Identity::parse("a.b.serviceaccount.identity.linkerd.cluster.local").unwrap();
        let identity = if meshed {
            PeerIdentity::Meshed { id: id.clone(), server_name: id }
        } else {
            PeerIdentity::Unknown(Unknown::Unmarked)
        };
        let mut endpoint = Endpoint::bare(SocketAddr::from(([10, 0, 0, 1], 80)), identity);
        endpoint.labels = Arc::new(
            pod.map(|pod| ("pod".to_string(), pod.to_string())).into_iter().collect::<BTreeMap<_, _>>(),
        );
        Arc::new(endpoint)
    }

    #[test]
    fn the_same_workload_is_remembered_and_a_new_one_at_its_address_is_not() {
        let now = Instant::now();
        let mut memory = Memory::default();
        memory.proved(&endpoint(Some("web-1"), true), now);
        assert!(memory.recall(&endpoint(Some("web-1"), false), now).is_some());
        assert!(memory.recall(&endpoint(None, false), now).is_some());
        assert!(memory.recall(&endpoint(Some("db-0"), false), now).is_none());
        assert!(memory.recall(&endpoint(Some("web-1"), false), now).is_none(), "forgotten with the address");
    }

    #[test]
    fn recalling_does_not_keep_it_alive() {
        let now = Instant::now();
        let mut memory = Memory::default();
        memory.proved(&endpoint(None, true), now);
        for part in 1..=4 {
            assert!(memory.recall(&endpoint(None, false), now + KEEP / 4 * part).is_some());
        }
        assert!(memory.recall(&endpoint(None, false), now + KEEP + Duration::from_secs(1)).is_none());
    }

    #[test]
    fn evidence_ends_it_if_it_lasts_and_answers_go_on_without_an_identity() {
        let now = Instant::now();
        let later = now + REFUTED_FOR;
        let addr = endpoint(None, true).addr;
        for why in [Code::PeerNotTls, Code::HandshakeEof, Code::ConnectionReset, Code::IdentityMismatch] {
            let mut memory = Memory::default();
            memory.proved(&endpoint(None, true), now);
            assert!((0..5).all(|_| !memory.refuted(addr, why, now)), "many times at once is once");
            assert!(!memory.refuted(addr, why, later), "the answers still name the identity");
            assert!(memory.recall(&endpoint(None, false), later).is_some());
            assert!(memory.refuted(addr, why, later));
            assert!(memory.recall(&endpoint(None, false), later).is_none());
        }
    }

    #[test]
    fn a_refusal_counts_on_the_proxys_port_only_and_a_proof_ends_all_doubt() {
        let now = Instant::now();
        let later = now + REFUTED_FOR;
        let own_port = endpoint(None, true);
        let proxy_port = Arc::new(Endpoint { transport_port: Some(4143), ..Endpoint::clone(&own_port) });
        for (endpoint, forgotten) in [(own_port, false), (proxy_port, true)] {
            let mut memory = Memory::default();
            let addr = endpoint.addr;
            let refuse = |memory: &mut Memory| {
                memory.refuted(addr, Code::ConnectRefused, now);
                memory.refuted(addr, Code::ConnectRefused, now);
                memory.recall(&self::endpoint(None, false), later);
            };
            memory.proved(&endpoint, now);
            refuse(&mut memory);
            memory.proved(&endpoint, now);
            assert!(!memory.refuted(addr, Code::ConnectRefused, later), "counted anew");
            memory.proved(&endpoint, now);
            refuse(&mut memory);
            assert_eq!(memory.refuted(addr, Code::ConnectRefused, later), forgotten);
            assert!(!memory.refuted(addr, Code::HandshakeTimeout, later), "a slow peer may be meshed");
        }
    }
}
