//! Rate limits of a port: counted for the whole proxy, decided by one atomic per request.

use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};
use weft_model::{
    identity::Identity,
    inbound::{HttpPolicy, Protocol, RateLimit, ServerPolicy},
};

/// The limits in force, shared by the workers. A changed policy starts them anew.
#[derive(Debug, Default)]
pub struct Limits {
    ports: Mutex<HashMap<u16, Port>>,
}

#[derive(Debug)]
struct Port {
    policy: Arc<ServerPolicy>,
    buckets: Arc<Buckets>,
}

/// What one client has to pass: the port's own limit, and the client's.
pub(crate) struct Limiter {
    epoch: Instant,
    total: Option<Arc<Gcra>>,
    client: Option<Arc<Gcra>>,
}

#[derive(Debug)]
struct Buckets {
    epoch: Instant,
    total: Option<Arc<Gcra>>,
    overrides: Vec<Arc<Gcra>>,
    clients: Mutex<HashMap<Option<Identity>, Arc<Gcra>>>,
}

/// More clients than this share the bucket of those without an identity.
const CLIENTS: usize = 10_000;

impl Limits {
    /// What `client` has to pass under this policy; `None`: no limit.
    pub(crate) fn limiter(
        &self,
        port: u16,
        policy: &Arc<ServerPolicy>,
        client: Option<&Identity>,
    ) -> Option<Limiter> {
        let limit = rate_limit(policy)?;
        let buckets = {
            let mut ports = self.ports.lock();
            match ports.get(&port) {
                Some(port) if Arc::ptr_eq(&port.policy, policy) => port.buckets.clone(),
                _ => {
                    let buckets = Arc::new(Buckets::new(limit));
                    ports.insert(port, Port { policy: policy.clone(), buckets: buckets.clone() });
                    buckets
                }
            }
        };
        Some(Limiter {
            epoch: buckets.epoch,
            total: buckets.total.clone(),
            client: buckets.client(limit, client),
        })
    }
}

fn rate_limit(policy: &ServerPolicy) -> Option<&RateLimit> {
    match &policy.protocol {
        Protocol::Detect { http, .. }
        | Protocol::Http1(http)
        | Protocol::Http2(http)
        | Protocol::Grpc(http) => {
            let HttpPolicy { rate_limit, .. } = http;
            rate_limit.as_ref()
        }
        Protocol::Opaque | Protocol::Tls | Protocol::Unreadable(_) => None,
    }
}

impl Buckets {
    fn new(limit: &RateLimit) -> Self {
        Buckets {
            epoch: Instant::now(),
            total: limit.total.map(|rate| Arc::new(Gcra::new(rate))),
            overrides: limit.overrides.iter().map(|(_, rate)| Arc::new(Gcra::new(*rate))).collect(),
            clients: Mutex::default(),
        }
    }

    fn client(&self, limit: &RateLimit, client: Option<&Identity>) -> Option<Arc<Gcra>> {
        let named = |(ids, _): &(std::collections::BTreeSet<Identity>, u32)| {
            client.is_some_and(|id| ids.contains(id))
        };
        if let Some(at) = limit.overrides.iter().position(named) {
            return self.overrides.get(at).cloned();
        }
        let rate = limit.per_identity?;
        let mut clients = self.clients.lock();
        let key =
            client.cloned().filter(|id| clients.len() < CLIENTS || clients.contains_key(&Some(id.clone())));
        Some(clients.entry(key).or_insert_with(|| Arc::new(Gcra::new(rate))).clone())
    }
}

impl Limiter {
    /// Takes one request's share, or says whose limit is used up.
    pub(crate) fn admit(&self) -> Result<(), &'static str> {
        let now_ns = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if self.total.as_ref().is_some_and(|total| !total.admit(now_ns)) {
            return Err("the port's");
        }
        if self.client.as_ref().is_some_and(|client| !client.admit(now_ns)) {
            return Err("the client's");
        }
        Ok(())
    }
}

/// The generic cell rate algorithm: so many a second, all of them at once if need be.
#[derive(Debug)]
struct Gcra {
    period_ns: u64,
    /// When the bucket would be full again, in nanoseconds after the epoch.
    full_at_ns: AtomicU64,
}

const SECOND_NS: u64 = 1_000_000_000;

impl Gcra {
    fn new(per_second: u32) -> Self {
        // A rate of 0 admits nothing: its period exceeds the second that may be used at once.
        let period_ns = SECOND_NS.checked_div(u64::from(per_second)).unwrap_or(2 * SECOND_NS);
        Gcra { period_ns, full_at_ns: AtomicU64::new(0) }
    }

    fn admit(&self, now_ns: u64) -> bool {
        let taken = self.full_at_ns.fetch_update(Relaxed, Relaxed, |full_at| {
            let next = full_at.max(now_ns) + self.period_ns;
            (next <= now_ns + SECOND_NS).then_some(next)
        });
        taken.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_may_be_used_at_once_and_then_the_rate_holds() {
        let bucket = Gcra::new(5);
        let admitted = (0..10).filter(|_| bucket.admit(0)).count();
        assert_eq!(admitted, 5);
        assert!(!bucket.admit(SECOND_NS / 5 - 1));
        assert!(bucket.admit(SECOND_NS / 5));
        assert!(!bucket.admit(SECOND_NS / 5));
        let later: usize = (0..10).filter(|n| bucket.admit(3 * SECOND_NS + n)).count();
        assert_eq!(later, 5);
        assert!(!Gcra::new(0).admit(0));
    }
}
