//! Conversations with the control plane: HTTP/2 connections to the replicas of each service, kept up for as long as the
//! process lives.

pub mod connection;
pub mod counts;
pub mod dns;
pub mod lookup;
mod replicas;
pub mod report;
#[cfg(test)]
mod tests;

use crate::{
    certify::anchors::Anchors,
    config::{Config, ControlAddr},
    identity,
};
use connection::Connection;
use counts::Counts;
use dns::{Resolved, Resolver};
use rand::{Rng, seq::IndexedRandom};
use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::sync::watch;
use weft_fault::{Code, Fault, FaultRecord, Phase};
use weft_model::outbound::Backoff;
use weft_tls::bundle::TrustBundle;

/// How it stands with the connections to one service.
#[derive(Clone, Debug)]
struct State {
    up: Vec<Connection>,
    /// Since when there has been none.
    since: Instant,
    /// The last failure of each replica that is not connected.
    failed: BTreeMap<SocketAddr, Arc<FaultRecord>>,
    /// Why the name is not known.
    unresolved: Option<Arc<FaultRecord>>,
}

impl State {
    /// The less loaded of two connections: without a request that waits for its answer, if possible. A controller that
    /// accepts and says nothing is chosen once, and not again while that request waits.
    fn pick(&self) -> Option<&Connection> {
        let open: Vec<&Connection> = self.up.iter().filter(|connection| connection.is_open()).collect();
        open.choose_multiple(&mut rand::rng(), 2).copied().min_by_key(|connection| connection.load())
    }
}

/// One service of the control plane. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    name: &'static str,
    /// Shown in faults.
    addr: Arc<str>,
    state: watch::Receiver<Arc<State>>,
    on_loopback: bool,
    /// What has to be there first.
    certificate: Option<identity::Handle>,
    counts: Option<Counts>,
}

/// As whom a service is spoken to, if it is not on loopback.
#[derive(Clone, Debug)]
pub enum Whom {
    /// Whoever: the service's own certificate has to lead to these.
    Anyone(Anchors),
    /// This proxy, once it has a certificate, and by the roots that came with it.
    Certified(identity::Handle),
}

/// What makes connections to a service.
pub struct Dialer {
    pub name: &'static str,
    pub addr: ControlAddr,
    pub whom: Whom,
    /// Between attempts to connect to one replica.
    pub backoff: Backoff,
    pub dns: Resolver,
    pub counts: Option<Counts>,
}

impl Dialer {
    /// Anonymous, with Linkerd's usual delays and the machine's resolvers.
    #[must_use]
    pub fn new(name: &'static str, addr: ControlAddr, anchors: TrustBundle) -> Dialer {
        let backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_secs(60), jitter: 0.1 };
        Dialer {
            name,
            addr,
            whom: Whom::Anyone(Anchors::fixed(anchors)),
            backoff,
            dns: Resolver::system(None, None),
            counts: None,
        }
    }

    /// As the configuration says.
    #[must_use]
    pub fn for_proxy(config: &Config, name: &'static str, addr: &ControlAddr, whom: Whom) -> Dialer {
        let on_loopback = addr.name.is_none();
        Dialer {
            name,
            addr: addr.clone(),
            whom,
            backoff: if on_loopback {
                config.inbound.connect_backoff
            } else {
                config.outbound.connect_backoff
            },
            dns: Resolver::system(config.control.min_ttl, config.control.max_ttl),
            counts: None,
        }
    }

    async fn resolve(&self) -> Result<Resolved, Fault> {
        let found = self.dns.resolve(&self.addr.host, self.addr.port, self.addr.name.is_none()).await;
        if let Some(counts) = self.counts.as_ref().filter(|_| self.addr.host.parse::<IpAddr>().is_err()) {
            counts.resolved(found.as_ref().is_ok_and(|found| found.by_srv), found.is_ok());
        }
        found
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({} at {})", self.name, self.addr)
    }
}

impl Service {
    /// Starts to connect, and returns at once. The tasks end when every clone of the service is gone.
    pub fn start(dialer: Dialer) -> Service {
        let state =
            State { up: Vec::new(), since: Instant::now(), failed: BTreeMap::new(), unresolved: None };
        let (publish, state) = watch::channel(Arc::new(state));
        let service = Service {
            name: dialer.name,
            addr: format!("{}:{}", dialer.addr.host, dialer.addr.port).into(),
            state,
            on_loopback: dialer.addr.name.is_none(),
            certificate: match &dialer.whom {
                Whom::Certified(identity) if dialer.addr.name.is_some() => Some(identity.clone()),
                _ => None,
            },
            counts: dialer.counts.clone(),
        };
        tokio::spawn(replicas::keep_up(dialer, publish));
        service
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Plaintext on loopback: limits on streams do not apply.
    pub fn on_loopback(&self) -> bool {
        self.on_loopback
    }

    /// A connection, waited for until `deadline`.
    pub async fn connection(&self, deadline: Instant) -> Result<Connection, Fault> {
        let begun = Instant::now();
        let patience = deadline.saturating_duration_since(begun);
        let waiting = self.counts.as_ref().map(|counts| counts.asked(patience));
        let connection = self.wait_for_connection(deadline).await;
        if let Some(waiting) = waiting {
            waiting.served(connection.is_ok(), begun.elapsed());
        }
        connection
    }

    async fn wait_for_connection(&self, deadline: Instant) -> Result<Connection, Fault> {
        let mut state = self.state.clone();
        let up = state.wait_for(|state| state.up.iter().any(Connection::is_open));
        if let Ok(Ok(state)) = tokio::time::timeout_at(deadline.into(), up).await
            && let Some(connection) = state.pick()
        {
            return Ok(connection.clone());
        }
        Err(self.down())
    }

    pub fn is_connected(&self) -> bool {
        self.state.borrow().up.iter().any(Connection::is_open)
    }

    /// Why there is no connection now.
    pub fn down(&self) -> Fault {
        let fault = Fault::new(Code::ControllerUnreachable)
            .in_phase(Phase::Control)
            .about(self.name)
            .peer(&self.addr);
        // 1. Without a certificate none is made.
        if let Some(identity) = &self.certificate
            && identity.current().is_none()
        {
            let missing =
                Fault::new(Code::NoCertificateYet).in_phase(Phase::Certify).about(identity.local_name());
            return fault.because(match identity.waiting() {
                Some(why) => missing.because(why.as_cause()),
                None => missing,
            });
        }
        // 2. What was tried.
        let state = self.state.borrow().clone();
        if !state.up.is_empty() {
            return fault;
        }
        let mut fault = fault.since(SystemTime::now() - state.since.elapsed());
        if let Some(tried) = replicas::tried(&state.failed) {
            fault = fault.fact("tried", tried);
        }
        match state
            .unresolved
            .as_ref()
            .filter(|_| state.failed.is_empty())
            .or(state.failed.values().next_back())
        {
            Some(cause) => fault.because(cause.as_cause()),
            None => fault,
        }
    }
}

/// The delay after this many failures: doubled from the first to the last, a part of it random.
pub fn jittered(Backoff { min, max, jitter }: Backoff, failures: u32) -> Duration {
    let doubled = min.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(max);
    let jitter = f64::from(jitter);
    doubled.mul_f64(1.0 - jitter + rand::rng().random::<f64>() * jitter * 2.0)
}

/// As [`jittered`], with a fifth of the delay random.
pub fn backoff((min, max): (Duration, Duration), failures: u32) -> Duration {
    jittered(Backoff { min, max, jitter: 0.1 }, failures)
}
