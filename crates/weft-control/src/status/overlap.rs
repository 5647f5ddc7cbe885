//! Objects of one kind that claim the same thing. One of them wins; people are told which.

use super::condition::Condition;
use crate::{index::reader::Reader, view::beside::Workload};
use std::{collections::BTreeSet, net::IpAddr, sync::Arc};
use weft_kube::{
    core::service::IntOrString,
    policy::{authorization::NetworkMatch, egress_network::EgressNetwork, server::Server},
};

/// How many names a message lists.
const SHOWN: usize = 3;

/// Where a Server meets others.
#[derive(Debug, Default)]
pub(super) struct ServerOverlap {
    /// `workload:port` that it selects and an older one has.
    lost: BTreeSet<String>,
    /// That it selects and nobody older does.
    kept: usize,
    /// The other Servers.
    others: BTreeSet<String>,
    wins: bool,
}

pub(super) fn of_server(reader: &Reader<'_>, server: &Server) -> ServerOverlap {
    let namespace = &server.metadata.namespace;
    let others: Vec<&Arc<Server>> =
        reader.servers(namespace).filter(|s| s.metadata.name != server.metadata.name).collect();
    let mut found = ServerOverlap::default();
    if others.is_empty() {
        return found;
    }
    let index = reader.index();
    let pods = index.pods.in_namespace(namespace).filter(|p| !p.is_finished()).map(|p| Workload::Pod(p));
    let externals = index.externals.in_namespace(namespace).map(|e| Workload::External(e));
    for workload in pods.chain(externals).filter(|w| w.is_selected_by(server)) {
        let Some(port) = port_of(server, workload) else { continue };
        let rivals =
            others.iter().filter(|s| workload.is_selected_by(s) && port_of(s, workload) == Some(port));
        let mut lost = false;
        for rival in rivals {
            found.others.insert(rival.metadata.name.clone());
            let older = rival.metadata.seniority() < server.metadata.seniority();
            lost |= older;
            found.wins |= !older;
        }
        if lost {
            found.lost.insert(format!("{}:{port}", workload.meta().name));
        } else {
            found.kept += 1;
        }
    }
    found
}

/// The port of this workload that the Server is about.
fn port_of(server: &Server, workload: Workload<'_>) -> Option<u16> {
    match &server.spec.port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => name.parse().ok().or_else(|| workload.named_port(name)),
    }
}

impl ServerOverlap {
    /// An older Server has every port that it selects: it decides nothing.
    pub(super) fn is_void(&self) -> bool {
        self.kept == 0 && !self.lost.is_empty()
    }

    pub(super) fn condition(&self) -> Option<Condition> {
        let others = some(self.others.iter());
        if !self.lost.is_empty() {
            let lost = some(self.lost.iter());
            let message = format!("Server {others} selects {lost}, too, and decides there, being older");
            return Some(Condition::conflicted("ServerOverlap", message));
        }
        self.wins.then(|| {
            let message = format!(
                "Server {others} selects some of the same ports; this one decides there, being older"
            );
            Condition::conflicted("ServerOverlap", message)
        })
    }
}

fn some<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    let count = names.len();
    let shown: Vec<&str> = names.take(SHOWN).map(String::as_str).collect();
    match count.checked_sub(SHOWN).filter(|more| *more > 0) {
        Some(more) => format!("{} and {more} more", shown.join(", ")),
        None => shown.join(", "),
    }
}

/// An older EgressNetwork of the namespace that contains the same network, so that this one never decides about it.
pub(super) fn of_egress_network(reader: &Reader<'_>, network: &EgressNetwork) -> Option<Condition> {
    let older = reader.egress_networks(&network.metadata.namespace).filter(|other| {
        other.metadata.name != network.metadata.name
            && other.metadata.seniority() < network.metadata.seniority()
    });
    let shared = |other: &EgressNetwork| -> Option<String> {
        match (&other.spec.networks, &network.spec.networks) {
            (None, None) => Some("everything outside of the cluster".to_owned()),
            (Some(theirs), Some(ours)) => ours
                .iter()
                .find(|own| theirs.iter().any(|t| t.cidr == own.cidr && t.except == own.except))
                .map(|own: &NetworkMatch| own.cidr.0.to_string()),
            _ => None,
        }
    };
    older.into_iter().find_map(|other| {
        let message = format!(
            "EgressNetwork {} contains {}, too, and decides there, being older",
            other.metadata.name,
            shared(other)?
        );
        Some(Condition::conflicted("EgressNetworkOverlap", message))
    })
}

/// The part of an EgressNetwork that lies in the cluster.
pub(super) fn with_cluster(network: &EgressNetwork, cluster: &[ipnet::IpNet]) -> Option<String> {
    let networks = network.spec.networks.as_ref()?;
    networks.iter().enumerate().find_map(|(at, own)| {
        let net = own.cidr.0;
        let inside = cluster.iter().find(|c| {
            let (wide, narrow) = if c.prefix_len() <= net.prefix_len() { (*c, &net) } else { (&net, *c) };
            wide.contains(narrow) && !own.except.iter().any(|e| e.0.contains(narrow))
        })?;
        let first: IpAddr = inside.addr();
        Some(format!(
            "spec.networks[{at}].cidr: {net} overlaps the cluster's own network {inside} ({first} …), whose pods and \
             Services it does not decide about: put that into except"
        ))
    })
}
