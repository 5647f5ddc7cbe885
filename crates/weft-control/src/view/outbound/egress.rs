//! Addresses outside of the cluster: which EgressNetwork speaks for one, and what is done where none does.

use super::parent::{FALLBACK, Otherwise, Parent};
use crate::{
    config::ControllerConfig,
    index::reader::Reader,
    view::routes::{Declared, Outlet, ParentKind},
};
use std::{cmp::Reverse, net::SocketAddr, sync::Arc};
use weft_kube::{kind::Kind, meta::ObjectName, policy::egress_network::EgressNetwork};
use weft_model::{
    identity::PeerIdentity,
    meta::{Meta, Resource},
    outbound::{Backend, BackendKind, Endpoint, OutboundPolicy},
};

/// The EgressNetwork for an address, as clients of one namespace see it: those of their own namespace if it has any, else the
/// global ones; the most specific, then the oldest.
pub fn network_of<'i>(
    reader: &Reader<'i>,
    config: &ControllerConfig,
    addr: SocketAddr,
    client_namespace: &str,
) -> Option<&'i EgressNetwork> {
    let own: Vec<_> = reader.egress_networks(client_namespace).collect();
    let all = match own.is_empty() {
        true => reader.egress_networks(&config.global_egress_namespace).collect(),
        false => own,
    };
    let in_cluster = config.in_cluster(addr.ip());
    all.into_iter()
        .filter_map(|network| Some((network, network.contains(addr.ip(), in_cluster)?)))
        .min_by_key(|(network, prefix)| (Reverse(*prefix), network.metadata.seniority()))
        .map(|(network, _)| &**network)
}

pub(super) fn by_network(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    network: &EgressNetwork,
    addr: SocketAddr,
    client_namespace: &str,
) -> OutboundPolicy {
    let name = network.metadata.key();
    let meta = Arc::new(Meta::Resource(Resource {
        group: EgressNetwork::GROUP.to_owned(),
        kind: EgressNetwork::KIND.to_owned(),
        namespace: name.namespace.clone(),
        name: name.name.clone(),
        section: String::new(),
        port: addr.port(),
    }));
    let parent = Parent {
        reader,
        config,
        outlet: Outlet {
            kind: ParentKind::EgressNetwork,
            name: &name,
            port: Some(addr.port()),
            declared: Declared::Nothing,
        },
        annotations: &network.metadata.annotations,
        backend: forward(meta.clone(), addr),
        otherwise: if network.allows() { Otherwise::Allow } else { Otherwise::Deny },
        client_namespace,
    };
    OutboundPolicy { meta, protocol: parent.protocol() }
}

/// No EgressNetwork speaks for it: forwarded to where it was going.
pub(super) fn fallback(reader: &Reader<'_>, config: &ControllerConfig, addr: SocketAddr) -> OutboundPolicy {
    let meta = Arc::new(Meta::default_named(FALLBACK));
    let name = ObjectName::default();
    let parent = Parent {
        reader,
        config,
        outlet: Outlet {
            kind: ParentKind::EgressNetwork,
            name: &name,
            port: Some(addr.port()),
            declared: Declared::Nothing,
        },
        annotations: &Default::default(),
        backend: forward(meta.clone(), addr),
        otherwise: Otherwise::Fallback,
        client_namespace: "",
    };
    OutboundPolicy { meta, protocol: parent.protocol() }
}

fn forward(meta: Arc<Meta>, addr: SocketAddr) -> Backend {
    let endpoint = Arc::new(Endpoint::bare(addr, PeerIdentity::Unmeshed));
    Backend { meta, kind: BackendKind::Forward(endpoint) }
}
