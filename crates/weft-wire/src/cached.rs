//! What a proxy holds of the controller's answers: served as JSON on its admin port, read by `weft diagnostics`.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::SocketAddr};
use weft_fault::FaultRecord;

/// The path on a proxy's admin port under which it serves [`Cache`]. A POST there with `?addr=` asks about one address anew.
pub const CACHE_PATH: &str = "/weft/discovery";

/// The answer at [`CACHE_PATH`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cache {
    /// `namespace/name` of the pod, as far as the proxy knows.
    pub pod: String,
    pub now_unix_ms: u64,
    /// Answers that the question concerns; more than are listed, if it was bounded.
    pub total: usize,
    pub answers: Vec<Cached>,
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// What an address or a name stands for: profile and outbound policy.
    Destination,
    /// Who is behind a name.
    Endpoints,
    /// Whom a port of this pod lets in.
    Policy,
}

impl What {
    pub const fn as_str(self) -> &'static str {
        match self {
            What::Destination => "destination",
            What::Endpoints => "endpoints",
            What::Policy => "policy",
        }
    }
}

/// How the matter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// No answer yet.
    Asking,
    Answered,
    /// The controller refuses, or says that there is no such thing.
    Refused,
    /// Answered, and not usable until an identity is known.
    AwaitsIdentity,
    /// No answer yet, and what the configuration says holds.
    Default,
}

impl State {
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Asking => "asking",
            State::Answered => "answered",
            State::Refused => "refused",
            State::AwaitsIdentity => "awaits-identity",
            State::Default => "default",
        }
    }
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cached {
    pub what: What,
    /// The address, the name with its port, or the port.
    pub subject: String,
    pub state: State,
    /// For how long it has been so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// How often the answer has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Since a connection or request last looked for it.
    pub idle_ms: u64,
    /// Connections hold it.
    pub in_use: bool,
    /// The object that answers: `service/shop/store`, `server/shop/store`, `default/…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The profile's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Why there is no answer, or none that is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<FaultRecord>,
    /// Endpoints of unknown identity are not dialled in plaintext.
    #[serde(default)]
    pub strict: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<CachedEndpoint>,
    /// Endpoints that are not listed.
    #[serde(default)]
    pub more_endpoints: usize,
}

/// One address that an answer names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CachedEndpoint {
    pub addr: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Why there is no identity: `unmeshed`, or what is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<String>,
    /// `h2` or `opaque`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The port of its proxy that is dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport_port: Option<u16>,
    pub weight: u32,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// The answer to a POST at [`CACHE_PATH`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refreshed {
    /// The answers that are asked for anew, by what they are about.
    pub asked_again: Vec<String>,
}
