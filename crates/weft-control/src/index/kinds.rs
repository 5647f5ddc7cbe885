//! For each kind: its table, the keys it is found under, and its changes in words.

use super::{
    Index,
    key::{Key, Links},
    table::Table,
};
use crate::journal::words;
use std::{collections::BTreeSet, net::IpAddr};
use weft_kube::{
    core::{
        endpoint_slice::EndpointSlice,
        node::{Job, Namespace, Node, ReplicaSet},
        pod::Pod,
        service::Service,
    },
    kind::Kind,
    meta::ObjectName,
    policy::{
        authorization::{AuthorizationPolicy, MeshTlsAuthentication, NetworkAuthentication},
        egress_network::EgressNetwork,
        external_workload::ExternalWorkload,
        grpc_route::GrpcRoute,
        http_route::{GatewayHttpRoute, PolicyHttpRoute},
        rate_limit::HttpLocalRateLimitPolicy,
        reference_grant::ReferenceGrant,
        route::{TcpRoute, TlsRoute},
        server::Server,
        server_authorization::ServerAuthorization,
        service_profile::ServiceProfile,
    },
};

pub trait Indexed: Kind + PartialEq {
    /// Changes go into the journal.
    const JOURNALED: bool;
    /// And into its part that outlives the controller.
    const LASTING: bool = false;

    fn table(index: &mut Index) -> &mut Table<Self>;
    /// Every key under which a view can find this object.
    fn keys(&self, keys: &mut BTreeSet<Key>);
    fn link(&self, _name: &ObjectName, _links: &mut Links) {}
    fn unlink(&self, _name: &ObjectName, _links: &mut Links) {}

    /// A change in words. `old` differs from `new`.
    fn describe(old: Option<&Self>, new: &Self) -> Option<String> {
        if Self::JOURNALED { written(old, new) } else { None }
    }
}

/// Who changed it, and what is different. Nothing if only its status is.
fn written<K: Kind>(old: Option<&K>, new: &K) -> Option<String> {
    let mut details = Vec::new();
    if let Some(old) = old.map(Kind::meta) {
        let meta = new.meta();
        details = words::metadata(old, meta);
        // Kinds without generations have no status here.
        if old.generation != meta.generation || (meta.generation == 0 && details.is_empty()) {
            details.push("its rules changed".to_owned());
        }
        if details.is_empty() {
            return None;
        }
    }
    Some(words::written(old, new, details))
}

macro_rules! by_namespace {
    ($kind:ty, $table:ident, $key:ident) => {
        impl Indexed for $kind {
            const JOURNALED: bool = true;
            const LASTING: bool = true;
            fn table(index: &mut Index) -> &mut Table<Self> {
                &mut index.$table
            }
            fn keys(&self, keys: &mut BTreeSet<Key>) {
                keys.insert(Key::$key(self.meta().namespace.clone()));
            }
        }
    };
}
by_namespace!(Server, servers, Servers);
by_namespace!(AuthorizationPolicy, authorizations, Authorizations);
by_namespace!(ServerAuthorization, server_authorizations, Authorizations);
by_namespace!(PolicyHttpRoute, policy_routes, Routes);
by_namespace!(GatewayHttpRoute, gateway_routes, Routes);
by_namespace!(GrpcRoute, grpc_routes, Routes);
by_namespace!(TlsRoute, tls_routes, Routes);
by_namespace!(TcpRoute, tcp_routes, Routes);
by_namespace!(ReferenceGrant, grants, Grants);
by_namespace!(EgressNetwork, egress_networks, EgressNetworks);
by_namespace!(HttpLocalRateLimitPolicy, rate_limits, RateLimits);

macro_rules! by_name {
    ($kind:ty, $table:ident, $key:ident, $journaled:literal) => {
        impl Indexed for $kind {
            const JOURNALED: bool = $journaled;
            const LASTING: bool = $journaled;
            fn table(index: &mut Index) -> &mut Table<Self> {
                &mut index.$table
            }
            fn keys(&self, keys: &mut BTreeSet<Key>) {
                keys.insert(Key::$key(self.meta().key()));
            }
        }
    };
}
by_name!(ReplicaSet, replica_sets, ReplicaSet, false);
by_name!(Job, jobs, Job, false);
by_name!(MeshTlsAuthentication, mesh_tls, MeshTls, true);
by_name!(NetworkAuthentication, networks, Network, true);
by_name!(ServiceProfile, profiles, Profile, true);

impl Indexed for Namespace {
    const JOURNALED: bool = true;
    const LASTING: bool = true;
    fn table(index: &mut Index) -> &mut Table<Self> {
        &mut index.namespaces
    }
    fn keys(&self, keys: &mut BTreeSet<Key>) {
        keys.insert(Key::Namespace(self.metadata.name.clone()));
    }
}

impl Indexed for Node {
    const JOURNALED: bool = false;
    fn table(index: &mut Index) -> &mut Table<Self> {
        &mut index.nodes
    }
    fn keys(&self, keys: &mut BTreeSet<Key>) {
        keys.insert(Key::Node(self.metadata.name.clone()));
        keys.extend(self.addresses().into_iter().map(Key::At));
    }
    fn link(&self, name: &ObjectName, links: &mut Links) {
        for ip in self.addresses() {
            links.nodes_at.add(ip, name);
        }
    }
    fn unlink(&self, name: &ObjectName, links: &mut Links) {
        for ip in self.addresses() {
            links.nodes_at.remove(&ip, name);
        }
    }
}

impl Indexed for Pod {
    const JOURNALED: bool = true;
    fn table(index: &mut Index) -> &mut Table<Self> {
        &mut index.pods
    }
    fn keys(&self, keys: &mut BTreeSet<Key>) {
        keys.insert(Key::Pod(self.metadata.key()));
        keys.extend(self.ips().into_iter().chain(host_ip(self)).map(Key::At));
    }
    fn link(&self, name: &ObjectName, links: &mut Links) {
        for ip in self.ips() {
            links.pods_at.add(ip, name);
        }
        if let Some(ip) = host_ip(self) {
            links.host_pods_at.add(ip, name);
        }
    }
    fn unlink(&self, name: &ObjectName, links: &mut Links) {
        for ip in self.ips() {
            links.pods_at.remove(&ip, name);
        }
        if let Some(ip) = host_ip(self) {
            links.host_pods_at.remove(&ip, name);
        }
    }
    fn describe(old: Option<&Self>, new: &Self) -> Option<String> {
        let (phase, ip) = (new.status.phase.as_str(), new.status.pod_ip.as_str());
        let Some(old) = old else {
            return Some(format!("created by {}", new.metadata.last_writer.as_deref().unwrap_or("?")));
        };
        let mut changes = Vec::new();
        if old.status.phase != phase {
            changes.push(format!("phase {} to {phase}", old.status.phase));
        }
        if old.status.pod_ip != ip {
            changes.push(format!("address {:?} to {ip:?}", old.status.pod_ip));
        }
        changes.extend(words::metadata(&old.metadata, &new.metadata));
        (!changes.is_empty()).then(|| changes.join(", "))
    }
}

/// The machine's address, if some container has a host port there.
fn host_ip(pod: &Pod) -> Option<IpAddr> {
    let exposed = pod.all_containers().flat_map(|c| &c.ports).any(|p| p.host_port.is_some_and(|p| p != 0));
    if exposed { pod.status.host_ip.parse().ok() } else { None }
}

impl Indexed for Service {
    const JOURNALED: bool = true;
    fn table(index: &mut Index) -> &mut Table<Self> {
        &mut index.services
    }
    fn keys(&self, keys: &mut BTreeSet<Key>) {
        keys.insert(Key::Service(self.metadata.key()));
        keys.extend(self.cluster_ips().into_iter().map(Key::At));
    }
    fn link(&self, name: &ObjectName, links: &mut Links) {
        for ip in self.cluster_ips() {
            links.services_at.add(ip, name);
        }
    }
    fn unlink(&self, name: &ObjectName, links: &mut Links) {
        for ip in self.cluster_ips() {
            links.services_at.remove(&ip, name);
        }
    }
}

impl Indexed for EndpointSlice {
    const JOURNALED: bool = true;
    fn table(index: &mut Index) -> &mut Table<Self> {
        &mut index.slices
    }
    fn keys(&self, keys: &mut BTreeSet<Key>) {
        keys.extend(service_of(self).map(Key::Slices));
    }
    fn link(&self, name: &ObjectName, links: &mut Links) {
        if let Some(service) = service_of(self) {
            links.slices_of.add(service, name);
        }
    }
    fn unlink(&self, name: &ObjectName, links: &mut Links) {
        if let Some(service) = service_of(self) {
            links.slices_of.remove(&service, name);
        }
    }
    fn describe(old: Option<&Self>, new: &Self) -> Option<String> {
        let ready = |slice: &EndpointSlice| -> BTreeSet<String> {
            slice
                .endpoints
                .iter()
                .filter(|e| e.is_ready())
                .flat_map(|e| e.addresses.iter().cloned())
                .collect()
        };
        let service = new.service().unwrap_or("?");
        let (before, after) = (old.map(ready).unwrap_or_default(), ready(new));
        if old.is_some() && before == after {
            return None;
        }
        let list = |set: BTreeSet<&String>| {
            if set.is_empty() {
                "none".to_owned()
            } else {
                set.into_iter().map(String::as_str).collect::<Vec<_>>().join(" ")
            }
        };
        Some(format!(
            "ready endpoints of service {service}: added {}, removed {}, now {}",
            list(after.difference(&before).collect()),
            list(before.difference(&after).collect()),
            after.len()
        ))
    }
}

fn service_of(slice: &EndpointSlice) -> Option<ObjectName> {
    Some(ObjectName::new(&slice.metadata.namespace, slice.service()?))
}

impl Indexed for ExternalWorkload {
    const JOURNALED: bool = true;
    fn table(index: &mut Index) -> &mut Table<Self> {
        &mut index.externals
    }
    fn keys(&self, keys: &mut BTreeSet<Key>) {
        keys.insert(Key::External(self.metadata.key()));
        keys.extend(self.ips().into_iter().map(Key::At));
    }
    fn link(&self, name: &ObjectName, links: &mut Links) {
        for ip in self.ips() {
            links.externals_at.add(ip, name);
        }
    }
    fn unlink(&self, name: &ObjectName, links: &mut Links) {
        for ip in self.ips() {
            links.externals_at.remove(&ip, name);
        }
    }
}
