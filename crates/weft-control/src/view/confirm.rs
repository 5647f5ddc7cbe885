//! Whether an address is meshed, in as many words: what `linkerd2-proxy-api` cannot say.

use super::{
    address::{Holder, holder},
    workload::pod_endpoint,
};
use crate::{config::ControllerConfig, index::reader::Reader};
use std::net::SocketAddr;
use weft_model::identity::PeerIdentity;

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
    Meshed {
        id: String,
        server_name: String,
    },
    Unmeshed,
    /// Not known (yet): whoever asks must not take it for unmeshed.
    Unknown,
}

pub fn confirm(reader: &Reader<'_>, config: &ControllerConfig, addr: SocketAddr) -> Confirmed {
    let answer = |state, pod: Option<&weft_kube::core::pod::Pod>, reason: &str| Confirmed {
        state,
        pod: pod.map(|p| p.metadata.key().to_string()),
        reason: reason.to_owned(),
    };
    let of_pod = |pod: &weft_kube::core::pod::Pod, port: u16| {
        let endpoint = pod_endpoint(reader, config, pod, SocketAddr::new(addr.ip(), port), None);
        match endpoint.identity {
            PeerIdentity::Meshed { id, server_name } => answer(
                State::Meshed { id: id.to_string(), server_name: server_name.to_string() },
                Some(pod),
                "the pod was injected",
            ),
            PeerIdentity::Unmeshed => {
                answer(State::Unmeshed, Some(pod), "the pod was not injected, or skips this port")
            }
            PeerIdentity::Unknown(why) => answer(State::Unknown, Some(pod), why.as_str()),
        }
    };
    match holder(reader, config, addr.ip(), Some(addr.port())) {
        Holder::Pod(pod) => of_pod(pod, addr.port()),
        Holder::HostPort(pod, port) => of_pod(pod, port),
        Holder::Contested(a, b) => {
            answer(State::Unknown, Some(a), &format!("the address is also claimed by {}", b.metadata.key()))
        }
        Holder::External(external) => answer(
            State::Meshed {
                id: external.spec.mesh_tls.identity.clone(),
                server_name: external.spec.mesh_tls.server_name.clone(),
            },
            None,
            "an ExternalWorkload has this address",
        ),
        Holder::Service(service) => answer(
            State::Unmeshed,
            None,
            &format!("the address is that of Service {}, not of a workload", service.metadata.key()),
        ),
        Holder::Node => answer(State::Unmeshed, None, "the address is a machine's"),
        Holder::Nobody if !config.in_cluster(addr.ip()) => {
            answer(State::Unmeshed, None, "the address is outside the cluster's networks")
        }
        Holder::Nobody => answer(State::Unknown, None, "no pod with this address is known"),
    }
}
