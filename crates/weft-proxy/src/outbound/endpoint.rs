//! One endpoint as a worker knows it: its connections, its load, its failures.

use super::{
    Worker,
    load::{Load, Standing},
};
use crate::{
    connect::{Role, Target, Tls},
    http::pool::Pool,
    mesh::Mesh,
    metrics::{Balanced, Count, labels::Labels, series::HttpSeries},
    record::Story,
    report,
};
use std::{
    cell::{Cell, RefCell},
    rc::{Rc, Weak},
    sync::Arc,
    time::{Duration, Instant},
};
use weft_fault::{Code, Fault, FaultRecord};
use weft_model::{
    identity::{NoTls, PeerIdentity, Unknown},
    outbound::{Endpoint, EwmaConfig, FailureAccrual, ProtocolHint},
};
use weft_net::socket;

/// An endpoint in use. A label edit replaces `endpoint` alone; anything that connections depend on makes a new member.
pub(crate) struct Member {
    endpoint: RefCell<Arc<Endpoint>>,
    /// `Err`: its identity is not known, and guessing is not allowed.
    pub(crate) pool: Result<Rc<Pool>, Unknown>,
    pub(crate) series: RefCell<Arc<HttpSeries>>,
    pub(crate) meshed: bool,
    /// Why there is no TLS, where the endpoint has no identity.
    unidentified: NoTls,
    pub(super) standing: Standing,
    /// When the last proof of its identity was passed on, by the worker's clock.
    proof_told_us: Cell<Option<u64>>,
    /// So many requests that it refuses in plaintext wait for its identity to become known.
    waits: Cell<u8>,
    down: RefCell<Option<Down>>,
}

/// The endpoints of one name on one worker, as each of them sees them. Empty for one that stands alone.
pub(super) type Siblings = Weak<RefCell<Vec<Rc<Member>>>>;

/// Connecting failed, and how often in a row.
#[derive(Clone)]
pub(crate) struct Down {
    pub(crate) since: Instant,
    pub(crate) tried: Instant,
    until: Instant,
    pause: Duration,
    pub(crate) last: Arc<FaultRecord>,
}

/// Short waits for an identity that may be in vain, of one endpoint.
const WAITS: u8 = 4;

/// Where no endpoint is up, one that failed is tried again after this long, whatever its backoff: the first to come back
/// is found at once.
pub(crate) const LAST_RESORT: Duration = Duration::from_millis(100);

/// A proof of identity is worth so little so soon after the last one that it is not passed on.
const PROOF_EVERY_US: u64 = 30_000_000;

impl Member {
    pub(crate) fn new(
        worker: &Worker,
        endpoint: Arc<Endpoint>,
        name: &str,
        strict: bool,
        ewma: EwmaConfig,
        siblings: Siblings,
        unidentified: NoTls,
    ) -> Rc<Self> {
        let mesh = &worker.mesh;
        let config = &mesh.config.outbound;
        let (pool, labels, meshed) = match target(mesh, &endpoint, strict, unidentified) {
            Ok((target, labels)) => {
                let meshed = target.tls.is_some();
                let limits = (config.pool_idle_timeout, config.max_idle_per_endpoint);
                (Ok(Pool::new(mesh.clone(), target, limits.0, limits.1)), labels, meshed)
            }
            Err(unknown) => (Err(unknown), Labels::new().with("direction", "outbound"), false),
        };
        let series = mesh.metrics.http(&request_labels(labels, name, &endpoint));
        Rc::new(Member {
            endpoint: RefCell::new(endpoint),
            pool,
            series: RefCell::new(series),
            meshed,
            unidentified,
            standing: Standing::new(worker.epoch, ewma, siblings),
            proof_told_us: Cell::new(None),
            waits: Cell::new(WAITS),
            down: RefCell::default(),
        })
    }

    pub(crate) fn endpoint(&self) -> Arc<Endpoint> {
        self.endpoint.borrow().clone()
    }

    /// Takes over labels and weight of an endpoint whose connections are the same.
    pub(crate) fn relabel(&self, mesh: &Mesh, endpoint: &Arc<Endpoint>, name: &str) {
        if Arc::ptr_eq(&*self.endpoint.borrow(), endpoint) || **self.endpoint.borrow() == **endpoint {
            return;
        }
        let labels = tcp_labels(mesh, endpoint, self.unidentified);
        *self.series.borrow_mut() = mesh.metrics.http(&request_labels(labels, name, endpoint));
        *self.endpoint.borrow_mut() = endpoint.clone();
        self.proof_told_us.set(None);
    }

    /// Names this endpoint as the one that a story's connection uses.
    pub(crate) fn tell(&self, story: &Story) {
        let endpoint = self.endpoint.borrow();
        story.endpoint(endpoint.addr);
        match &endpoint.identity {
            PeerIdentity::Meshed { id, .. } if self.meshed => {
                story.server_identity(id);
                story.tls("mutual");
            }
            PeerIdentity::Meshed { .. } => story.tls(NoTls::Loopback.as_str()),
            PeerIdentity::Unmeshed | PeerIdentity::Unknown(_) => {
                story.tls(NoTls::NotProvidedByServiceDiscovery.as_str());
            }
        }
    }

    /// Is it dialled in plaintext although a proxy may be there, and is that worth waiting for?
    pub(crate) fn may_refuse_plaintext(&self) -> bool {
        let unknown = matches!(self.endpoint.borrow().identity, PeerIdentity::Unknown(_));
        !self.meshed && unknown && self.waits.get() > 0
    }

    /// A request waited for the identity. One that waited in vain although a proxy is there for certain (`certain`) is
    /// enough: the next refusals are passed on at once.
    pub(crate) fn waited(&self, found: bool, certain: bool) {
        self.waits.set(match (found, certain) {
            (true, _) => WAITS,
            (false, true) => 0,
            (false, false) => self.waits.get().saturating_sub(1),
        });
    }

    /// Carries HTTP/1 over HTTP/2 to this endpoint?
    pub(crate) fn upgrades_http1(&self) -> bool {
        self.meshed && self.endpoint.borrow().hint == ProtocolHint::H2
    }

    pub(crate) fn cost(&self, of: Balanced, now_us: u64) -> f64 {
        self.standing.cost(of, now_us)
    }

    pub(crate) fn is_up(&self, now: Instant) -> bool {
        self.pool.is_ok()
            && self.down.borrow().as_ref().is_none_or(|down| now >= down.until)
            && self.standing.admits(now)
    }

    /// May it be tried although it is down, because nothing else is up?
    pub(crate) fn is_last_resort(&self, now: Instant) -> bool {
        self.pool.is_ok()
            && self.standing.admits(now)
            && self.down.borrow().as_ref().is_some_and(|d| now.duration_since(d.tried) >= LAST_RESORT)
    }

    /// Since when the application behind it is not asked because it failed, if so.
    pub(crate) fn shut(&self) -> Option<Instant> {
        self.standing.shut()
    }

    pub(crate) fn down(&self) -> Option<Down> {
        self.down.borrow().clone()
    }

    /// A connection could not be made.
    pub(crate) fn failed(&self, worker: &Worker, fault: &Fault) {
        let backoff = worker.mesh.config.outbound.connect_backoff;
        let now = Instant::now();
        let mut down = self.down.borrow_mut();
        let pause = down.as_ref().map_or(backoff.min, |d| (d.pause * 2).min(backoff.max));
        let jitter = pause.mul_f32(backoff.jitter.clamp(0.0, 1.0) * rand::random::<f32>());
        let since = down.as_ref().map_or(now, |d| d.since);
        let last = Arc::new(fault.record());
        *down = Some(Down { since, tried: now, until: now + pause + jitter, pause, last });
        drop(down);
        self.proof_told_us.set(None);
        report::connect_failed(&worker.mesh.recorder, self.endpoint.borrow().addr, fault);
        if speaks_against_discovery(fault.code()) {
            worker.mesh.discovery.doubt(self.endpoint.borrow().addr, fault.code());
        }
    }

    /// A connection was made, or served.
    pub(crate) fn works(&self, worker: &Worker) {
        if self.down.borrow().is_some() {
            *self.down.borrow_mut() = None;
        }
        let now_us = worker.now_us();
        if self.meshed && self.proof_told_us.get().is_none_or(|told| now_us - told >= PROOF_EVERY_US) {
            self.proof_told_us.set(Some(now_us));
            worker.mesh.discovery.proved(self.endpoint());
        }
    }

    /// Counts a request or connection as under way.
    pub(crate) fn load(self: &Rc<Self>, of: Balanced, accrual: Option<&FailureAccrual>) -> Load {
        Load::new(self, of, accrual)
    }
}

/// Failures after which what discovery said deserves a second look.
fn speaks_against_discovery(code: Code) -> bool {
    matches!(
        code,
        Code::HandshakeEof
            | Code::HandshakeFailed
            | Code::HandshakeAlert
            | Code::PeerNotTls
            | Code::IdentityMismatch
            | Code::ForeignServerName
            | Code::CertificateUntrusted
            | Code::ConnectRefused
            | Code::ConnectionReset
            | Code::Unreachable
    )
}

/// How to connect to an endpoint; `Err` where its identity is unknown and must not be guessed.
fn target(
    mesh: &Arc<Mesh>,
    endpoint: &Endpoint,
    strict: bool,
    unidentified: NoTls,
) -> Result<(Target, Labels), Unknown> {
    let config = &mesh.config;
    let local = config.inbound.ips.contains(&endpoint.addr.ip());
    let in_cluster = config.in_cluster(endpoint.addr.ip());
    let tls = match &endpoint.identity {
        _ if local => None,
        PeerIdentity::Meshed { id, server_name } => {
            let (name, port) = match &endpoint.authority_override {
                None => (None, Some(endpoint.addr.port())),
                Some(authority) => match authority.rsplit_once(':') {
                    Some((host, port)) => (Some(host.to_owned()), port.parse().ok()),
                    None => (Some(authority.clone()), None),
                },
            };
            let wanted = endpoint.transport_port.is_some() || name.is_some();
            let header = wanted.then(|| (port.unwrap_or(endpoint.addr.port()), name));
            Some(Tls { id: id.clone(), server_name: server_name.clone(), header })
        }
        PeerIdentity::Unknown(why) if strict && in_cluster => return Err(*why),
        PeerIdentity::Unmeshed | PeerIdentity::Unknown(_) => None,
    };
    let plain = match &endpoint.identity {
        _ if local => "the endpoint is in this pod",
        _ if !in_cluster => "the address is outside of the cluster",
        PeerIdentity::Unknown(_) => "its identity is not known",
        PeerIdentity::Unmeshed | PeerIdentity::Meshed { .. } => "there is no proxy, says the controller",
    };
    if tls.is_none() && in_cluster && !local {
        let reason = match &endpoint.identity {
            PeerIdentity::Unknown(why) => {
                report::plaintext(&mesh.recorder, endpoint.addr, why.as_str());
                why.as_str()
            }
            PeerIdentity::Unmeshed | PeerIdentity::Meshed { .. } => "unmeshed",
        };
        mesh.metrics.counter(Count::PlaintextInCluster, &Labels::new().with("reason", reason)).add(1);
    }
    let labels = tcp_labels(mesh, endpoint, unidentified);
    let series = mesh.metrics.tcp(&labels.clone().with("peer", "dst").dst(endpoint.labels.iter()));
    series.costs(|| {
        let zone = endpoint.labels.get("zone_locality").map(String::as_str);
        let zone = zone.filter(|zone| ["local", "remote"].contains(zone)).unwrap_or("unknown");
        ["recv", "send"].map(|op| {
            let labels = Labels::new().with("op", op).with("zone_locality", zone);
            mesh.metrics.counter(Count::TransferCost, &labels)
        })
    });
    let target = Target {
        addr: if local { endpoint.addr } else { endpoint.dial_addr() },
        names: endpoint.addr,
        role: Role::Peer,
        tls,
        plain,
        limit: config.outbound.connect_timeout,
        http2: endpoint.http2,
        way: Default::default(),
        options: socket::Options {
            keepalive: config.outbound.sockets.connect_keepalive,
            user_timeout: config.outbound.sockets.connect_user_timeout,
        },
        series,
    };
    Ok((target, labels))
}

fn tcp_labels(mesh: &Mesh, endpoint: &Endpoint, unidentified: NoTls) -> Labels {
    let local = mesh.config.inbound.ips.contains(&endpoint.addr.ip());
    let tls = match &endpoint.identity {
        _ if local => Err(NoTls::Loopback),
        PeerIdentity::Meshed { id, .. } => Ok(id),
        PeerIdentity::Unmeshed | PeerIdentity::Unknown(_) => Err(unidentified),
    };
    Labels::new().with("direction", "outbound").target(endpoint.addr).server_tls(tls)
}

fn request_labels(labels: Labels, name: &str, endpoint: &Endpoint) -> Labels {
    labels.with("authority", name).dst(endpoint.labels.iter())
}
