//! What is known about a port of a pod: its identity, its protocol, its labels.

use super::beside::Workload;
use crate::{
    config::{ADMIN_PORT, CONTROL_PORT, ControllerConfig},
    index::reader::Reader,
    ports::PortSet,
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};
use weft_kube::{
    core::pod::{INBOUND_ADDR, Pod},
    meta::{Meta, ObjectName},
    policy::external_workload::ExternalWorkload,
};
use weft_model::{
    identity::{Identity, PeerIdentity},
    meta,
    outbound::{Endpoint, Http2Client, ProtocolHint},
};

pub const CONTROL_NS_LABEL: &str = "linkerd.io/control-plane-ns";
const SKIP_INBOUND_PORTS: &str = "config.linkerd.io/skip-inbound-ports";
const PROXY_CONTAINER: &str = "linkerd-proxy";

/// Whether this control plane injected the pod. It does not depend on readiness or phase: the proxy answers before the
/// application does.
pub fn is_meshed(pod: &Pod, config: &ControllerConfig) -> bool {
    pod.metadata.label(CONTROL_NS_LABEL) == Some(&config.control_namespace)
}

/// The identity of the pod's proxy.
pub fn pod_identity(pod: &Pod, config: &ControllerConfig) -> PeerIdentity {
    if !is_meshed(pod, config) {
        return PeerIdentity::Unmeshed;
    }
    match config.identities().service_account(&pod.metadata.namespace, pod.service_account()) {
        Some(id) => PeerIdentity::Meshed { server_name: id.clone(), id },
        // A ServiceAccount that makes no DNS label gets no certificate either.
        None => PeerIdentity::Unmeshed,
    }
}

/// The endpoint of one port of a pod. `client_zone` decides the locality label.
pub fn pod_endpoint(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    pod: &Pod,
    addr: SocketAddr,
    client_zone: Option<&str>,
) -> Endpoint {
    let port = addr.port();
    let skipped = pod
        .metadata
        .annotation(SKIP_INBOUND_PORTS)
        // As the redirect was set up: not at all by a list that it could not read.
        .is_some_and(|text| PortSet::numbers(text).is_ok_and(|skipped| skipped.contains_number(port)));
    let identity = if skipped { PeerIdentity::Unmeshed } else { pod_identity(pod, config) };
    let meshed = matches!(identity, PeerIdentity::Meshed { .. });
    let opaque = Workload::Pod(pod).is_opaque(reader, config, port);
    let here = zone_of(reader, Some(&pod.spec.node_name));
    let own_port = matches!(port, CONTROL_PORT | ADMIN_PORT);
    Endpoint {
        addr,
        hint: match (meshed, opaque) {
            (false, _) => ProtocolHint::Unknown,
            (true, true) => ProtocolHint::Opaque,
            (true, false) => ProtocolHint::H2,
        },
        transport_port: (meshed && !own_port && (opaque || config.transport_header))
            .then(|| inbound_port(pod))
            .flatten(),
        identity,
        authority_override: None,
        weight: weight(config, client_zone, here),
        labels: Arc::new(pod_labels(reader, pod, client_zone)),
        meta: Some(Arc::new(meta::Meta::Resource(meta::Resource {
            group: "core".to_owned(),
            kind: "Pod".to_owned(),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            section: String::new(),
            port,
        }))),
        http2: if meshed { config.http2 } else { Http2Client::default() },
    }
}

/// The port on which the pod's proxy accepts connections that were not redirected.
fn inbound_port(pod: &Pod) -> Option<u16> {
    let proxy = pod.all_containers().find(|c| c.name == PROXY_CONTAINER)?;
    let addr = proxy.env.iter().find(|e| e.name == INBOUND_ADDR)?.value.as_deref()?;
    addr.parse::<SocketAddr>().ok().map(|a| a.port())
}

fn pod_labels(reader: &Reader<'_>, pod: &Pod, client_zone: Option<&str>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut put = |name: &str, value: &str| {
        if !value.is_empty() {
            labels.insert(name.to_owned(), value.to_owned());
        }
    };
    put("pod", &pod.metadata.name);
    put("namespace", &pod.metadata.namespace);
    put("serviceaccount", pod.service_account());
    put("control_plane_ns", pod.metadata.label(CONTROL_NS_LABEL).unwrap_or_default());
    put("pod_template_hash", pod.metadata.label("pod-template-hash").unwrap_or_default());
    if let Some((kind, name)) = owner(reader, &pod.metadata) {
        put(&kind, &name);
    }
    let zone = reader.node(&pod.spec.node_name).and_then(|n| n.zone());
    put("zone", zone.unwrap_or_default());
    put(
        "zone_locality",
        match (zone, client_zone) {
            (Some(here), Some(there)) if here == there => "local",
            (Some(_), Some(_)) => "remote",
            _ => "unknown",
        },
    );
    labels
}

/// The workload that a pod belongs to, as kind in lower case and name: `("deployment", "store")`.
pub fn owner(reader: &Reader<'_>, pod: &Meta) -> Option<(String, String)> {
    let owner = pod.controller()?;
    let name = ObjectName::new(&pod.namespace, &owner.name);
    let above = match owner.kind.as_str() {
        "ReplicaSet" => reader.replica_set(&name).and_then(|rs| rs.metadata.controller()),
        "Job" => reader.job(&name).and_then(|job| job.metadata.controller()),
        _ => None,
    };
    let owner = above.unwrap_or(owner);
    Some((owner.kind.to_ascii_lowercase(), owner.name.clone()))
}

/// An endpoint nearby can be made to count for more.
fn weight(config: &ControllerConfig, client_zone: Option<&str>, zone: Option<&str>) -> u32 {
    let near = client_zone.is_some() && client_zone == zone;
    if config.zone_weights && near { 100_000 } else { 10_000 }
}

/// The endpoint of a meshed process outside the cluster.
pub fn external_endpoint(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    external: &ExternalWorkload,
    addr: SocketAddr,
) -> Endpoint {
    let tls = &external.spec.mesh_tls;
    let identity = match (Identity::parse(&tls.identity), Identity::parse(&tls.server_name)) {
        (Ok(id), Ok(server_name)) => PeerIdentity::Meshed { id, server_name },
        _ => PeerIdentity::Unknown(weft_model::identity::Unknown::Malformed),
    };
    let meshed = matches!(identity, PeerIdentity::Meshed { .. });
    let opaque = Workload::External(external).is_opaque(reader, config, addr.port());
    let ObjectName { namespace, name } = external.metadata.key();
    Endpoint {
        identity,
        hint: match (meshed, opaque) {
            (false, _) => ProtocolHint::Unknown,
            (true, true) => ProtocolHint::Opaque,
            (true, false) => ProtocolHint::H2,
        },
        transport_port: (meshed && (opaque || config.transport_header)).then(|| external.inbound_port()),
        labels: Arc::new(
            [("external_workload".to_owned(), name.clone()), ("namespace".to_owned(), namespace.clone())]
                .into(),
        ),
        meta: Some(Arc::new(meta::Meta::Resource(meta::Resource {
            group: "workload.linkerd.io".to_owned(),
            kind: "ExternalWorkload".to_owned(),
            namespace,
            name,
            section: String::new(),
            port: addr.port(),
        }))),
        http2: if meshed { config.http2 } else { Http2Client::default() },
        ..Endpoint::bare(addr, PeerIdentity::Unmeshed)
    }
}

/// The zone of the node that a client runs on.
pub fn zone_of<'i>(reader: &Reader<'i>, node: Option<&str>) -> Option<&'i str> {
    reader.node(node?).and_then(|n| n.zone())
}

/// Whether an address belongs to the family that is served.
pub fn served_family(config: &ControllerConfig, ip: IpAddr) -> bool {
    ip.is_ipv4() || config.ipv6
}
