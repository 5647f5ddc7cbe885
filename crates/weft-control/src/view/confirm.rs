//! Whether an address is meshed, in as many words: what `linkerd2-proxy-api` cannot say.

use super::{
    address::{Holder, holder},
    workload::{external_endpoint, pod_endpoint},
};
use crate::{config::ControllerConfig, index::reader::Reader};
use std::net::SocketAddr;
use weft_kube::core::pod::Pod;
use weft_model::{identity::PeerIdentity, outbound::Endpoint};

/// The answer about one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmed {
    pub state: State,
    /// `namespace/name` of the pod that holds the address.
    pub pod: Option<String>,
    /// Why, in words.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Meshed(Box<Endpoint>),
    Unmeshed,
    /// Not known (yet): whoever asks must not take it for unmeshed.
    Unknown,
}

pub fn confirm(reader: &Reader<'_>, config: &ControllerConfig, addr: SocketAddr) -> Confirmed {
    match holder(reader, config, addr.ip(), Some(addr.port())) {
        Holder::Pod(pod) => of_pod(pod, pod_endpoint(reader, config, pod, addr, None)),
        Holder::HostPort(pod, port) => {
            let inside = SocketAddr::new(addr.ip(), port);
            let endpoint = pod_endpoint(reader, config, pod, inside, None);
            of_pod(pod, Endpoint { addr, transport_port: None, ..endpoint })
        }
        Holder::Contested(a, b) => {
            let reason = format!("the address is also claimed by {}", b.metadata.key());
            Confirmed { state: State::Unknown, pod: Some(a.metadata.key().to_string()), reason }
        }
        Holder::External(external) => {
            let endpoint = external_endpoint(reader, config, external, addr);
            of_endpoint(endpoint, None, &format!("ExternalWorkload {}", external.metadata.key()))
        }
        Holder::Service(service) => {
            let reason =
                format!("the address is that of Service {}, not of a workload", service.metadata.key());
            Confirmed { state: State::Unmeshed, pod: None, reason }
        }
        Holder::Node => plain(State::Unmeshed, "the address is a machine's"),
        Holder::Nobody if !config.in_cluster(addr.ip()) => {
            plain(State::Unmeshed, "the address is outside the cluster's networks")
        }
        Holder::Nobody => plain(State::Unknown, "no pod with this address is known"),
    }
}

fn of_pod(pod: &Pod, endpoint: Endpoint) -> Confirmed {
    let reason = match endpoint.identity {
        PeerIdentity::Meshed { .. } => "the pod was injected",
        PeerIdentity::Unmeshed => "the pod was not injected, or skips this port",
        PeerIdentity::Unknown(why) => why.as_str(),
    };
    of_endpoint(endpoint, Some(pod.metadata.key().to_string()), reason)
}

fn of_endpoint(endpoint: Endpoint, pod: Option<String>, reason: &str) -> Confirmed {
    let state = match endpoint.identity {
        PeerIdentity::Meshed { .. } => State::Meshed(Box::new(endpoint)),
        PeerIdentity::Unmeshed => State::Unmeshed,
        PeerIdentity::Unknown(_) => State::Unknown,
    };
    Confirmed { state, pod, reason: reason.to_owned() }
}

fn plain(state: State, reason: &str) -> Confirmed {
    Confirmed { state, pod: None, reason: reason.to_owned() }
}
