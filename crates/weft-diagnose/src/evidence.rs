//! What is known about one question, and from whom.

use serde::Serialize;
use std::net::IpAddr;
use weft_wire::record::{ConnectionRecord, Decision, JournalEntry};

/// Everything an explanation rests on.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    pub from: Side,
    pub to: Side,
    /// The port on the server's pods.
    pub port: u16,
    pub service: Option<ServiceFacts>,
    /// What the policies say now, per server pod; empty when the controller could not be asked.
    pub decisions: Vec<Decision>,
    pub journal: Vec<JournalEntry>,
    /// What could not be asked, and why: an explanation must say what it does not know.
    pub unanswered: Vec<String>,
    pub now_unix_ms: u64,
}

/// One end.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// `deploy/web`, `pod/web-1`, `svc/store`, as the user would type it.
    pub title: String,
    pub namespace: String,
    pub pods: Vec<PodFacts>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct PodFacts {
    pub namespace: String,
    pub name: String,
    pub ip: Option<IpAddr>,
    pub phase: String,
    pub ready: bool,
    /// When readiness last changed.
    pub ready_changed_unix_ms: Option<u64>,
    /// Why it is not ready, in the kubelet's words: `CrashLoopBackOff: …`.
    pub waiting: Option<String>,
    pub meshed: bool,
    /// The identity of its ServiceAccount, if meshed.
    pub identity: Option<String>,
    /// Its proxy's records, newest first; only those that concern the other side.
    pub records: Vec<ConnectionRecord>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ServiceFacts {
    pub namespace: String,
    pub name: String,
    pub cluster_ip: Option<IpAddr>,
    pub port: Option<u16>,
}

impl PodFacts {
    /// `shop/web-1`.
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
