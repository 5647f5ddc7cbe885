//! Who holds an address.

use super::workload::pod_identity;
use crate::{config::ControllerConfig, index::reader::Reader};
use std::{cmp::Reverse, net::IpAddr};
use weft_kube::{
    core::{pod::Pod, service::Service},
    policy::external_workload::ExternalWorkload,
};

/// What an address stands for now.
#[derive(Clone, Copy, Debug)]
pub enum Holder<'i> {
    Service(&'i Service),
    Pod(&'i Pod),
    /// Two pods claim it and nothing tells them apart; whichever answers may be the wrong one.
    Contested(&'i Pod, &'i Pod),
    /// A container's port, published on its machine's address.
    HostPort(&'i Pod, u16),
    External(&'i ExternalWorkload),
    Node,
    Nobody,
}

pub fn holder<'i>(
    reader: &Reader<'i>,
    config: &ControllerConfig,
    ip: IpAddr,
    port: Option<u16>,
) -> Holder<'i> {
    if let Some(service) = reader.service_at(ip) {
        return Holder::Service(service);
    }
    match pod_at(reader, config, ip) {
        Holder::Nobody => {}
        found => return found,
    }
    if let Some(external) = reader.external_at(ip) {
        return Holder::External(external);
    }
    let published = port.and_then(|port| {
        reader.host_pods_at(ip).filter(|pod| !pod.is_finished()).find_map(|pod| {
            let ports = pod.all_containers().flat_map(|c| &c.ports);
            let exposed = ports.into_iter().find(|p| p.host_port == Some(port) && p.is_tcp())?;
            Some((&**pod, exposed.container_port))
        })
    });
    match published {
        Some((pod, port)) => Holder::HostPort(pod, port),
        None if reader.node_at(ip).is_some() => Holder::Node,
        None => Holder::Nobody,
    }
}

/// The pod that holds an address. Pod objects outlive their addresses, so several may claim one: finished pods and pods
/// in their machine's network never hold it; a pod on a machine that is there beats one whose machine is gone; one that
/// is not being deleted beats one that is; the newest beats older ones on other machines. Two on one machine that differ
/// in identity contest it.
fn pod_at<'i>(reader: &Reader<'i>, config: &ControllerConfig, ip: IpAddr) -> Holder<'i> {
    let mut claims: Vec<(bool, bool, &'i Pod)> = reader
        .pods_at(ip)
        .filter(|pod| !pod.is_finished() && !pod.spec.host_network)
        .map(|pod| {
            let orphaned = reader.node(&pod.spec.node_name).is_none();
            (orphaned, pod.is_terminating(), &**pod)
        })
        .collect();
    claims.sort_by_key(|(orphaned, leaving, pod)| {
        let meta = &pod.metadata;
        (*orphaned, *leaving, Reverse(meta.creation_timestamp), meta.namespace.as_str(), meta.name.as_str())
    });
    let mut claims = claims.into_iter();
    let Some((orphaned, leaving, best)) = claims.next() else { return Holder::Nobody };
    // Equal in everything that could tell them apart, and different in what matters.
    let rival = claims
        .filter(|(o, l, pod)| {
            (*o, *l) == (orphaned, leaving)
                && (pod.spec.node_name == best.spec.node_name
                    || pod.metadata.creation_timestamp == best.metadata.creation_timestamp)
        })
        .find(|(.., pod)| pod_identity(pod, config) != pod_identity(best, config));
    match rival {
        Some((.., rival)) => Holder::Contested(best, rival),
        None => Holder::Pod(best),
    }
}
