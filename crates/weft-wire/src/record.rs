//! What the flight recorder keeps and the journal receives: served as JSON on admin ports, read by `weft explain`.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::SocketAddr};
use weft_fault::{FaultRecord, Phase};

/// The path on a proxy's admin port under which it serves [`Connections`].
pub const CONNECTIONS_PATH: &str = "/weft/connections";

/// Which way a connection crosses the pod's border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Inbound,
    Outbound,
}

impl Direction {
    pub const fn as_str(self) -> &'static str {
        match self {
            Direction::Inbound => "inbound",
            Direction::Outbound => "outbound",
        }
    }
}

/// The answer at [`CONNECTIONS_PATH`]: newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// `namespace/name` of the pod, as far as the proxy knows.
    pub pod: String,
    pub identity: String,
    /// The recorder's clock when it answered, so that a reader can line up two machines.
    pub now_unix_ms: u64,
    /// Records that were forgotten to make room since the proxy started.
    pub forgotten: u64,
    pub connections: Vec<ConnectionRecord>,
}

/// One connection, from `accept` to its last byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// Unique per proxy; handed on to the peer proxy where both are weft.
    pub id: String,
    /// The id under which the peer proxy recorded the same connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_id: Option<String>,
    pub direction: Direction,
    pub client: SocketAddr,
    /// The address the client dialled, before any redirect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<SocketAddr>,
    /// What that address stands for: `store.shop.svc.cluster.local:80`, or the policy object that answers for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The last endpoint that was dialled for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<SocketAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_identity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_identity: Option<String>,
    /// `mutual`, `passthrough`, or Linkerd's reason for there being none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The policy object that decided last, and the authorization that allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization: Option<String>,
    pub started_unix_ms: u64,
    /// Absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    pub events: Vec<Event>,
    /// Events that found no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub events_dropped: u64,
    pub requests: u64,
    /// Responses by HTTP status.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub statuses: BTreeMap<u16, u64>,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// How it ended, in words; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The last failure, be it of the connection or of one of its requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultRecord>,
    /// How many failures there were.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub faults: u64,
    /// Requests that were answered below 400 since the last failure: with any, the failure is over.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub good_since_fault: u64,
    /// Microseconds since the connection began when it last answered a request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub answered_us: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A step of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Microseconds since the connection began, by the monotonic clock.
    pub at_us: u64,
    pub phase: Phase,
    pub text: String,
}

/// One line of the journal: something changed, or something failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    pub at_unix_ms: u64,
    /// Who says so: `namespace/pod`, or `controller`.
    pub source: String,
    /// What it is about: an object, a service, an address.
    pub subject: String,
    pub kind: EntryKind,
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultRecord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    Change,
    Fault,
}

/// The controller's answer to "may this caller reach this port", from the same functions that the proxies use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// `namespace/name` of the server pod.
    pub pod: String,
    pub allowed: bool,
    /// Allowed only because the policy audits.
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

/// The callers that one authorization allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepts {
    /// `authorizationpolicy/shop/store`.
    pub name: String,
    pub networks: Vec<String>,
    /// `any`, `any mesh TLS`, `any mesh identity`, or identities and suffixes.
    pub clients: Vec<String>,
}
