//! Workloads that were seen meshed: none of them is dialled in plaintext again while it lives.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use weft_model::{identity::PeerIdentity, outbound::Endpoint};

/// Remembered addresses; beyond it the oldest go first.
const ENTRIES: usize = 16_384;
/// How long after it was last seen meshed, or last asked about, a workload is remembered.
const KEEP: Duration = Duration::from_secs(600);
/// A peer that was said to have no identity and that refused TLS, each so often and for so long, has changed indeed.
const REFUTED_TIMES: u32 = 3;
const REFUTED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Memory {
    meshed: HashMap<SocketAddr, Seen>,
}

#[derive(Debug)]
struct Seen {
    endpoint: Arc<Endpoint>,
    last: Instant,
    refuted: Option<(Instant, u32)>,
}

impl Memory {
    /// An answer with an identity.
    pub(crate) fn saw(&mut self, endpoint: &Arc<Endpoint>, now: Instant) {
        debug_assert!(endpoint.identity.id().is_some());
        if self.meshed.len() >= ENTRIES && !self.meshed.contains_key(&endpoint.addr) {
            let oldest = self.meshed.iter().min_by_key(|(_, seen)| seen.last).map(|(addr, _)| *addr);
            oldest.map(|addr| self.meshed.remove(&addr));
        }
        self.meshed.insert(endpoint.addr, Seen { endpoint: endpoint.clone(), last: now, refuted: None });
    }

    /// What an endpoint without an identity was before, if it is still the same workload.
    pub(crate) fn recall(&mut self, endpoint: &Endpoint, now: Instant) -> Option<Arc<Endpoint>> {
        let seen = self.meshed.get_mut(&endpoint.addr)?;
        if now.saturating_duration_since(seen.last) > KEEP || !same_pod(&seen.endpoint, endpoint) {
            self.meshed.remove(&endpoint.addr);
            return None;
        }
        seen.last = now;
        Some(seen.endpoint.clone())
    }

    /// The controller said in as many words that there is no proxy.
    pub(crate) fn forget(&mut self, addr: SocketAddr) {
        self.meshed.remove(&addr);
    }

    /// A handshake with a remembered identity failed because the peer speaks no TLS.
    pub(crate) fn refuted(&mut self, addr: SocketAddr, now: Instant) {
        let Some(seen) = self.meshed.get_mut(&addr) else { return };
        let (since, times) = seen.refuted.get_or_insert((now, 0));
        *times += 1;
        if *times >= REFUTED_TIMES && now.saturating_duration_since(*since) >= REFUTED_FOR {
            self.meshed.remove(&addr);
        }
    }

    /// Drops what is too old.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.meshed.retain(|_, seen| now.saturating_duration_since(seen.last) <= KEEP);
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
        memory.saw(&endpoint(Some("web-1"), true), now);
        assert!(memory.recall(&endpoint(Some("web-1"), false), now).is_some());
        assert!(memory.recall(&endpoint(None, false), now).is_some());
        assert!(memory.recall(&endpoint(Some("db-0"), false), now).is_none());
        assert!(memory.recall(&endpoint(Some("web-1"), false), now).is_none(), "forgotten with the address");
    }

    #[test]
    fn it_ends_with_time_and_with_proof() {
        let now = Instant::now();
        let mut memory = Memory::default();
        memory.saw(&endpoint(None, true), now);
        assert!(memory.recall(&endpoint(None, false), now + KEEP + Duration::from_secs(1)).is_none());
        memory.saw(&endpoint(None, true), now);
        let addr = endpoint(None, true).addr;
        memory.refuted(addr, now);
        memory.refuted(addr, now);
        memory.refuted(addr, now);
        assert!(
            memory.recall(&endpoint(None, false), now).is_some(),
            "three times within a moment is one time"
        );
        memory.refuted(addr, now + REFUTED_FOR);
        assert!(memory.recall(&endpoint(None, false), now).is_none());
    }
}
