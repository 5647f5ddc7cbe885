//! The index as views see it: every look is remembered.

use super::{Index, key::Key, table::Table};
use std::{cell::RefCell, collections::HashSet, net::IpAddr, sync::Arc};
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
        external_workload::ExternalWorkload,
        http_route::HttpRoute,
        rate_limit::HttpLocalRateLimitPolicy,
        reference::{GATEWAY_GROUP, POLICY_GROUP},
        server::Server,
    },
};

/// Looks things up and remembers under which keys. A view that only uses this cannot miss a change.
#[derive(Debug)]
pub struct Reader<'i> {
    index: &'i Index,
    keys: RefCell<HashSet<Key>>,
}

/// A route and the group of its kind.
#[derive(Clone, Copy, Debug)]
pub struct GroupedRoute<'i> {
    pub group: &'static str,
    pub route: &'i HttpRoute,
}

impl<'i> Reader<'i> {
    pub fn new(index: &'i Index) -> Self {
        Reader { index, keys: RefCell::default() }
    }

    /// What was looked at.
    pub fn into_keys(self) -> HashSet<Key> {
        self.keys.into_inner()
    }

    fn looks(&self, key: Key) {
        self.keys.borrow_mut().insert(key);
    }

    fn all<'n, K>(
        table: &'i Table<K>,
        names: impl Iterator<Item = &'n ObjectName>,
    ) -> impl Iterator<Item = &'i Arc<K>> {
        names.filter_map(|name| table.get(name))
    }

    pub fn pod(&self, name: &ObjectName) -> Option<&'i Arc<Pod>> {
        self.looks(Key::Pod(name.clone()));
        self.index.pods.get(name)
    }

    pub fn pods_at(&self, ip: IpAddr) -> impl Iterator<Item = &'i Arc<Pod>> {
        self.looks(Key::At(ip));
        Self::all(&self.index.pods, self.index.links.pods_at.get(&ip))
    }

    /// Pods with host ports on the machine with this address.
    pub fn host_pods_at(&self, ip: IpAddr) -> impl Iterator<Item = &'i Arc<Pod>> {
        self.looks(Key::At(ip));
        Self::all(&self.index.pods, self.index.links.host_pods_at.get(&ip))
    }

    pub fn service(&self, name: &ObjectName) -> Option<&'i Arc<Service>> {
        self.looks(Key::Service(name.clone()));
        self.index.services.get(name)
    }

    /// The Service with this cluster IP.
    pub fn service_at(&self, ip: IpAddr) -> Option<&'i Arc<Service>> {
        self.looks(Key::At(ip));
        Self::all(&self.index.services, self.index.links.services_at.get(&ip)).next()
    }

    pub fn slices_of(&self, service: &ObjectName) -> impl Iterator<Item = &'i Arc<EndpointSlice>> {
        self.looks(Key::Slices(service.clone()));
        Self::all(&self.index.slices, self.index.links.slices_of.get(service))
    }

    pub fn node(&self, name: &str) -> Option<&'i Arc<Node>> {
        self.looks(Key::Node(name.to_owned()));
        self.index.nodes.get(&ObjectName::new("", name))
    }

    pub fn node_at(&self, ip: IpAddr) -> Option<&'i Arc<Node>> {
        self.looks(Key::At(ip));
        Self::all(&self.index.nodes, self.index.links.nodes_at.get(&ip)).next()
    }

    pub fn namespace(&self, name: &str) -> Option<&'i Arc<Namespace>> {
        self.looks(Key::Namespace(name.to_owned()));
        self.index.namespaces.get(&ObjectName::new("", name))
    }

    /// All pods. For looks, not for views: no key stands for the whole set.
    pub fn all_pods(&self) -> impl Iterator<Item = &'i Arc<Pod>> {
        self.index.pods.all()
    }

    /// The routes of all namespaces. For looks, not for views: no key stands for the whole set.
    pub fn all_routes(&self) -> impl Iterator<Item = GroupedRoute<'i>> {
        let policy =
            self.index.policy_routes.all().map(|r| GroupedRoute { group: POLICY_GROUP, route: &r.0 });
        let gateway =
            self.index.gateway_routes.all().map(|r| GroupedRoute { group: GATEWAY_GROUP, route: &r.0 });
        policy.chain(gateway)
    }

    /// All namespaces. For looks, not for views: no key stands for the whole set.
    pub fn namespaces(&self) -> impl Iterator<Item = &'i Arc<Namespace>> {
        self.index.namespaces.in_namespace("")
    }

    pub fn replica_set(&self, name: &ObjectName) -> Option<&'i Arc<ReplicaSet>> {
        self.looks(Key::ReplicaSet(name.clone()));
        self.index.replica_sets.get(name)
    }

    pub fn job(&self, name: &ObjectName) -> Option<&'i Arc<Job>> {
        self.looks(Key::Job(name.clone()));
        self.index.jobs.get(name)
    }

    pub fn servers(&self, namespace: &str) -> impl Iterator<Item = &'i Arc<Server>> {
        self.looks(Key::Servers(namespace.to_owned()));
        self.index.servers.in_namespace(namespace)
    }

    pub fn authorizations(&self, namespace: &str) -> impl Iterator<Item = &'i Arc<AuthorizationPolicy>> {
        self.looks(Key::Authorizations(namespace.to_owned()));
        self.index.authorizations.in_namespace(namespace)
    }

    pub fn mesh_tls(&self, name: &ObjectName) -> Option<&'i Arc<MeshTlsAuthentication>> {
        self.looks(Key::MeshTls(name.clone()));
        self.index.mesh_tls.get(name)
    }

    pub fn network(&self, name: &ObjectName) -> Option<&'i Arc<NetworkAuthentication>> {
        self.looks(Key::Network(name.clone()));
        self.index.networks.get(name)
    }

    /// HTTPRoutes of both groups, oldest first.
    pub fn routes(&self, namespace: &str) -> Vec<GroupedRoute<'i>> {
        self.looks(Key::Routes(namespace.to_owned()));
        let policy = self.index.policy_routes.in_namespace(namespace);
        let gateway = self.index.gateway_routes.in_namespace(namespace);
        let mut routes: Vec<_> = policy
            .map(|r| GroupedRoute { group: POLICY_GROUP, route: &r.0 })
            .chain(gateway.map(|r| GroupedRoute { group: GATEWAY_GROUP, route: &r.0 }))
            .collect();
        routes.sort_by_key(|r| (r.route.metadata.seniority(), r.group));
        routes
    }

    pub fn rate_limits(&self, namespace: &str) -> impl Iterator<Item = &'i Arc<HttpLocalRateLimitPolicy>> {
        self.looks(Key::RateLimits(namespace.to_owned()));
        self.index.rate_limits.in_namespace(namespace)
    }

    pub fn external(&self, name: &ObjectName) -> Option<&'i Arc<ExternalWorkload>> {
        self.looks(Key::External(name.clone()));
        self.index.externals.get(name)
    }

    pub fn external_at(&self, ip: IpAddr) -> Option<&'i Arc<ExternalWorkload>> {
        self.looks(Key::At(ip));
        Self::all(&self.index.externals, self.index.links.externals_at.get(&ip)).next()
    }
}
