//! What is known about one question, and from whom.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use weft_wire::record::{ConnectionRecord, JournalEntry};

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

/// The controller's answer to "may this caller reach this port", from the same functions that the proxies use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// `namespace/name` of the server pod.
    pub pod: String,
    pub allowed: bool,
    #[serde(default)]
    pub audited: bool,
    /// The Server or default policy that decides: `server/shop/store` or `default/deny`.
    pub server: String,
    #[serde(default)]
    pub route: Option<String>,
    /// What allowed it.
    #[serde(default)]
    pub authorization: Option<String>,
    /// The code of the refusal.
    #[serde(default)]
    pub code: Option<String>,
    /// What each authorization in force would accept.
    #[serde(default)]
    pub authorizations: Vec<Accepts>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepts {
    /// `authorizationpolicy/shop/store`.
    pub name: String,
    pub networks: Vec<String>,
    /// `any`, `any mesh TLS`, or identities and suffixes.
    pub clients: Vec<String>,
}

impl PodFacts {
    /// `shop/web-1`.
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
