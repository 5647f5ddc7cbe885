//! EndpointSlices for ExternalWorkloads: what the endpoint controller of a cluster does for pods.
//!
//! A slice's name follows from its Service, address family and ports, so that two writers, or one that is behind,
//! cannot make two of it. Nothing is remembered between two looks at the index: what is there is compared with what
//! should be, and the difference is written.

use crate::{
    authority::every,
    index::{reader::Reader, store::Store},
    lease::Leadership,
};
use kube::Client;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, time::sleep};
use weft_kube::{
    api::{self, ApiError},
    backoff::Backoff,
    core::{
        endpoint_slice::{EndpointSlice, MANAGED_BY, SERVICE_NAME},
        service::{IntOrString, Service, ServicePort},
    },
    kind::Kind,
    meta::ObjectName,
    policy::external_workload::ExternalWorkload,
};

/// Whoever holds it writes. Linkerd's controllers contend for the same one.
pub const LEASE: &str = "linkerd-destination-endpoint-write";
const MANAGER: &str = "linkerd-external-workloads-controller";
/// As many endpoints as fit in one slice.
const SLICE_SIZE: usize = 100;

/// A change of the API that is due.
#[derive(Clone, Debug, PartialEq)]
enum Write {
    Create(ObjectName, Value),
    /// From this version only.
    Replace(ObjectName, String, Value),
    Delete(ObjectName),
}

/// Keeps the slices in step while this replica is the one that writes. Runs until dropped.
pub async fn write(
    client: Client,
    store: Arc<Store>,
    mut synced: watch::Receiver<bool>,
    mut leadership: Leadership,
) {
    // From half an index, slices would be deleted whose workloads are only not known yet.
    if synced.wait_for(|synced| *synced).await.is_err() {
        return;
    }
    let mut timer = every(Duration::from_secs(1));
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    loop {
        timer.tick().await;
        leadership.held().await;
        let mut failed = false;
        for write in store.look(|reader, _| due(reader)) {
            if !leadership.holds() {
                break;
            }
            match send(&client, &write).await {
                Ok(()) => {}
                // The index is behind the API: seen again at the next tick.
                Err(error) if matches!(error.code(), Some(404 | 409)) => {}
                Err(error) => {
                    let name = write.name();
                    tracing::warn!(slice = %name, %error, "the slice of ExternalWorkloads could not be written");
                    failed = true;
                }
            }
        }
        if failed {
            sleep(backoff.next_delay()).await;
        } else {
            backoff.reset();
        }
    }
}

impl Write {
    fn name(&self) -> &ObjectName {
        match self {
            Write::Create(name, _) | Write::Replace(name, ..) | Write::Delete(name) => name,
        }
    }
}

async fn send(client: &Client, write: &Write) -> Result<(), ApiError> {
    let ObjectName { namespace, name } = write.name();
    let collection = EndpointSlice::path(Some(namespace));
    let path = format!("{collection}/{name}");
    match write {
        Write::Create(_, object) => api::create(client, &collection, object).await.map(drop),
        Write::Replace(_, version, object) => {
            let mut patch = object.clone();
            patch["metadata"]["resourceVersion"] = json!(version);
            api::merge(client, &path, &patch).await.map(drop)
        }
        Write::Delete(_) => api::delete(client, &path).await,
    }
}

/// The difference between what is and what should be. What is new comes first: a workload that moves between two slices
/// is in one of them at any time.
fn due(reader: &Reader<'_>) -> Vec<Write> {
    let mut ours: BTreeMap<ObjectName, &Arc<EndpointSlice>> = reader
        .all_slices()
        .filter(|slice| slice.metadata.label(MANAGED_BY) == Some(MANAGER))
        .map(|slice| (slice.metadata.key(), slice))
        .collect();
    let mut writes = Vec::new();
    for namespace in reader.namespaces_with_externals().into_iter().filter(|ns| *ns != "kube-system") {
        for service in reader.services_in(namespace) {
            for (name, object) in wanted(reader, service) {
                match ours.remove(&name) {
                    None => writes.push(Write::Create(name, object)),
                    Some(slice) if is_like(slice, &object) => {}
                    Some(slice) => {
                        writes.push(Write::Replace(name, slice.metadata.resource_version.clone(), object));
                    }
                }
            }
        }
    }
    writes.extend(ours.into_keys().map(Write::Delete));
    writes
}

/// Whether the slice says what we would write, as far as we would.
fn is_like(slice: &EndpointSlice, object: &Value) -> bool {
    let Ok(wanted) = serde_json::from_value::<EndpointSlice>(object.clone()) else { return false };
    let labelled = wanted.metadata.labels.iter().all(|(key, value)| slice.metadata.label(key) == Some(value));
    labelled
        && slice.metadata.owner_references == wanted.metadata.owner_references
        && slice.endpoints == wanted.endpoints
        && slice.ports == wanted.ports
}

/// The slices of one Service, by name.
fn wanted(reader: &Reader<'_>, service: &Service) -> BTreeMap<ObjectName, Value> {
    let mut slices = BTreeMap::new();
    if service.is_external_name() || service.spec.selector.is_empty() {
        return slices;
    }
    // Workloads whose ports differ (a named port may have another number in each) cannot share a slice.
    let mut groups: BTreeMap<Group, Vec<(&ExternalWorkload, IpAddr)>> = BTreeMap::new();
    for external in reader.externals_in(&service.metadata.namespace) {
        let labels = &external.metadata.labels;
        if !service.spec.selector.iter().all(|(key, value)| labels.get(key) == Some(value)) {
            continue;
        }
        let ports: Vec<PortNumber> =
            service.spec.ports.iter().filter_map(|port| number(port, external)).collect();
        for v6 in families(service) {
            if let Some(ip) = external.ips().into_iter().find(|ip| ip.is_ipv6() == v6) {
                groups.entry((v6, ports.clone())).or_default().push((external, ip));
            }
        }
    }
    for ((v6, ports), workloads) in groups {
        let group = fingerprint(v6, &ports);
        for (n, part) in workloads.chunks(SLICE_SIZE).enumerate() {
            let meta = &service.metadata;
            let name = format!("linkerd-external-{}-{group:08x}-{n}", meta.name);
            let object = slice(service, &name, v6, &ports, part);
            slices.insert(ObjectName::new(&meta.namespace, name), object);
        }
    }
    slices
}

/// The families that the Service is reached by: those of its addresses; both, if it has none.
fn families(service: &Service) -> BTreeSet<bool> {
    let own: BTreeSet<bool> = service.cluster_ips().iter().map(IpAddr::is_ipv6).collect();
    if own.is_empty() { BTreeSet::from([false, true]) } else { own }
}

/// Name, number and protocol.
type PortNumber = (String, u16, String);
/// Whether the addresses are IPv6, and the ports.
type Group = (bool, Vec<PortNumber>);

fn number(port: &ServicePort, external: &ExternalWorkload) -> Option<PortNumber> {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let number = match &port.target_port {
        None => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => {
            let same = |p: &&weft_kube::policy::external_workload::PortSpec| {
                p.name == *name && p.protocol.as_deref().unwrap_or("TCP") == protocol
            };
            external.spec.ports.iter().find(same)?.port
        }
    };
    Some((port.name.clone(), number, protocol.to_owned()))
}

/// Tells groups of one Service apart in names; equal groups have equal ones in every version that hashes alike, and a
/// difference costs one rewrite.
fn fingerprint(v6: bool, ports: &[PortNumber]) -> u32 {
    let mut hasher = DefaultHasher::new();
    (v6, ports).hash(&mut hasher);
    #[expect(clippy::cast_possible_truncation)]
    let short = hasher.finish() as u32;
    short
}

fn slice(
    service: &Service,
    name: &str,
    v6: bool,
    ports: &[PortNumber],
    workloads: &[(&ExternalWorkload, IpAddr)],
) -> Value {
    let meta = &service.metadata;
    let mut labels = json!({SERVICE_NAME: meta.name, MANAGED_BY: MANAGER});
    if service.is_headless() {
        labels["service.kubernetes.io/headless"] = json!("");
    }
    let ports: Vec<Value> = ports
        .iter()
        .map(|(name, port, protocol)| json!({"name": name, "port": port, "protocol": protocol}))
        .collect();
    let endpoints: Vec<Value> = workloads
        .iter()
        .map(|(external, ip)| {
            let (ready, meta) = (external.ready, &external.metadata);
            json!({"addresses": [ip], "conditions": {"ready": ready, "serving": ready, "terminating": false},
                "targetRef": {"kind": "ExternalWorkload", "namespace": meta.namespace, "name": meta.name,
                    "uid": meta.uid}})
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": meta.namespace, "labels": labels,
            // It goes with its Service.
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": meta.name, "uid": meta.uid,
                "controller": true, "blockOwnerDeletion": true}]},
        "addressType": if v6 { "IPv6" } else { "IPv4" },
        "endpoints": endpoints, "ports": ports,
    })
}

#[cfg(test)]
mod tests;
