//! All watched objects, by name and by the ways in which views look for them.
//!
//! Changes are applied in order, whole objects at a time. A change names the [`Key`]s under which its object, old and
//! new, can be found; views remember the keys they looked under. Nothing else decides what has to be computed again, so
//! no event handler can forget somebody.

pub mod feed;
pub mod key;
pub mod kinds;
#[cfg(test)]
mod property;
pub mod reader;
pub mod registry;
pub mod store;
pub mod table;
#[cfg(test)]
pub(crate) mod tests;

use crate::index::{
    key::{Key, Links},
    kinds::Indexed,
    table::Table,
};
use std::{collections::BTreeSet, sync::Arc};
use weft_kube::{
    core::{
        endpoint_slice::EndpointSlice,
        node::{Job, Namespace, Node, ReplicaSet},
        pod::Pod,
        service::Service,
    },
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
    watch::Event,
};

#[derive(Debug, Default)]
pub struct Index {
    pub(crate) pods: Table<Pod>,
    pub(crate) services: Table<Service>,
    pub(crate) slices: Table<EndpointSlice>,
    pub(crate) nodes: Table<Node>,
    pub(crate) namespaces: Table<Namespace>,
    pub(crate) replica_sets: Table<ReplicaSet>,
    pub(crate) jobs: Table<Job>,
    pub(crate) servers: Table<Server>,
    pub(crate) authorizations: Table<AuthorizationPolicy>,
    pub(crate) server_authorizations: Table<ServerAuthorization>,
    pub(crate) mesh_tls: Table<MeshTlsAuthentication>,
    pub(crate) networks: Table<NetworkAuthentication>,
    pub(crate) policy_routes: Table<PolicyHttpRoute>,
    pub(crate) gateway_routes: Table<GatewayHttpRoute>,
    pub(crate) grpc_routes: Table<GrpcRoute>,
    pub(crate) tls_routes: Table<TlsRoute>,
    pub(crate) tcp_routes: Table<TcpRoute>,
    pub(crate) grants: Table<ReferenceGrant>,
    pub(crate) egress_networks: Table<EgressNetwork>,
    pub(crate) rate_limits: Table<HttpLocalRateLimitPolicy>,
    pub(crate) externals: Table<ExternalWorkload>,
    pub(crate) profiles: Table<ServiceProfile>,
    pub(crate) links: Links,
}

/// What one event did.
#[derive(Debug, Default)]
pub struct Applied {
    pub touched: BTreeSet<Key>,
    pub notes: Vec<Note>,
}

/// A change in words, for the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub subject: String,
    pub text: String,
    /// Belongs into the journal's part that outlives the controller.
    pub lasts: bool,
}

impl Index {
    /// Applies one event of a watch.
    pub fn apply<K: Indexed>(&mut self, event: Event<K>) -> Applied {
        let mut applied = Applied::default();
        match event {
            Event::Applied(object) => self.put(object, true, &mut applied),
            Event::Deleted(name) => self.take::<K>(&name, "deleted", &mut applied),
            Event::Undecodable(bad) => self.unreadable::<K>(&bad, &mut applied),
            Event::Absent => {
                for name in K::table(self).names() {
                    self.take::<K>(&name, "deleted, its kind is gone", &mut applied);
                }
            }
            Event::Replaced(objects) => {
                let mut gone: BTreeSet<ObjectName> = K::table(self).names().into_iter().collect();
                // What was there when the controller began is not a change.
                let begins = gone.is_empty();
                for object in objects {
                    match object {
                        Ok(object) => {
                            gone.remove(&object.meta().key());
                            self.put(Arc::new(object), !begins, &mut applied);
                        }
                        Err(bad) => {
                            gone.remove(&bad.meta.key());
                            self.unreadable::<K>(&bad, &mut applied);
                        }
                    }
                }
                for name in gone {
                    self.take::<K>(&name, "deleted", &mut applied);
                }
            }
        }
        applied
    }

    fn put<K: Indexed>(&mut self, mut new: Arc<K>, tell: bool, applied: &mut Applied) {
        let name = new.meta().key();
        K::table(self).share(&name, &mut new);
        let old = K::table(self).put(name.clone(), new.clone());
        if old.as_ref().is_some_and(|old| **old == *new) {
            // Its status changed, or nothing.
            return;
        }
        if let Some(old) = &old {
            old.keys(&mut applied.touched);
            old.unlink(&name, &mut self.links);
        }
        new.keys(&mut applied.touched);
        new.link(&name, &mut self.links);
        if tell {
            applied.note::<K>(&name, K::describe(old.as_deref(), &new));
        }
    }

    fn take<K: Indexed>(&mut self, name: &ObjectName, how: &str, applied: &mut Applied) {
        if let Some(old) = K::table(self).take(name) {
            old.keys(&mut applied.touched);
            old.unlink(name, &mut self.links);
            applied.note::<K>(name, K::JOURNALED.then(|| how.to_owned()));
        }
    }

    fn unreadable<K: Indexed>(&mut self, bad: &weft_kube::kind::Undecodable, applied: &mut Applied) {
        let name = bad.meta.key();
        self.take::<K>(&name, "replaced by one that cannot be read", applied);
        tracing::warn!(kind = K::KIND, %name, reason = bad.reason, "this object cannot be read and is ignored");
        applied.note::<K>(&name, Some(format!("cannot be read and is ignored: {}", bad.reason)));
    }
}

impl Applied {
    fn note<K: Indexed>(&mut self, name: &ObjectName, text: Option<String>) {
        if let Some(text) = text {
            self.notes.push(Note { subject: format!("{} {name}", K::KIND), text, lasts: K::LASTING });
        }
    }
}
