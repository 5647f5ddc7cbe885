//! The ways in which views look for objects.

use std::{collections::BTreeMap, net::IpAddr};
use weft_kube::meta::ObjectName;

/// One question that a view asked of the index. A change of the answer is a change of an object with that key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Pod(ObjectName),
    Service(ObjectName),
    External(ObjectName),
    Node(String),
    Namespace(String),
    ReplicaSet(ObjectName),
    Job(ObjectName),
    MeshTls(ObjectName),
    Network(ObjectName),
    Profile(ObjectName),
    /// Whatever holds this address.
    At(IpAddr),
    /// The slices of a Service.
    Slices(ObjectName),
    /// All Servers (authorizations, routes, rate limits) of a namespace.
    Servers(String),
    Authorizations(String),
    Routes(String),
    RateLimits(String),
    Grants(String),
    EgressNetworks(String),
}

/// Names by what they are found under besides their own. Kept in step with the tables, object by object.
#[derive(Debug, Default)]
pub struct Links {
    pub(super) pods_at: Multimap<IpAddr>,
    /// By the address of the machine, for pods with host ports.
    pub(super) host_pods_at: Multimap<IpAddr>,
    pub(super) services_at: Multimap<IpAddr>,
    pub(super) nodes_at: Multimap<IpAddr>,
    pub(super) externals_at: Multimap<IpAddr>,
    pub(super) slices_of: Multimap<ObjectName>,
}

/// A key has one name as a rule, and never many: a sorted list is small and fast enough.
#[derive(Debug)]
pub(super) struct Multimap<Q>(BTreeMap<Q, Vec<ObjectName>>);

impl<Q> Default for Multimap<Q> {
    fn default() -> Self {
        Multimap(BTreeMap::new())
    }
}

impl<Q: Ord> Multimap<Q> {
    pub(super) fn add(&mut self, key: Q, name: &ObjectName) {
        let names = self.0.entry(key).or_default();
        if let Err(at) = names.binary_search(name) {
            names.reserve_exact(1);
            names.insert(at, name.clone());
        }
    }

    pub(super) fn remove(&mut self, key: &Q, name: &ObjectName) {
        if let Some(names) = self.0.get_mut(key) {
            if let Ok(at) = names.binary_search(name) {
                names.remove(at);
            }
            if names.is_empty() {
                self.0.remove(key);
            }
        }
    }

    pub(super) fn get<'m>(&'m self, key: &Q) -> impl Iterator<Item = &'m ObjectName> + use<'m, Q> {
        self.0.get(key).into_iter().flatten()
    }
}
