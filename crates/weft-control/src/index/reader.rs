//! The index as views see it: every look is remembered.

use super::{Index, key::Key, table::Table};
use std::{
    cell::RefCell,
    collections::{BTreeSet, HashSet},
    net::IpAddr,
    sync::Arc,
};
use weft_kube::{
    core::{
        endpoint_slice::EndpointSlice,
        node::{Job, Namespace, Node, ReplicaSet},
        pod::Pod,
        service::Service,
    },
    kind::Kind,
    meta::{Meta, ObjectName},
    policy::{
        authorization::{AuthorizationPolicy, MeshTlsAuthentication, NetworkAuthentication},
        egress_network::EgressNetwork,
        external_workload::ExternalWorkload,
        grpc_route::{GrpcRoute, GrpcRouteRule},
        http_route::{GatewayHttpRoute, HttpRouteRule, PolicyHttpRoute},
        rate_limit::HttpLocalRateLimitPolicy,
        reference_grant::ReferenceGrant,
        route::{ByteRule, ParentRef, Route, TcpRoute, TlsRoute},
        server::Server,
        server_authorization::ServerAuthorization,
        service_profile::ServiceProfile,
    },
};

/// Looks things up and remembers under which keys. A view that only uses this cannot miss a change.
#[derive(Debug)]
pub struct Reader<'i> {
    index: &'i Index,
    keys: RefCell<HashSet<Key>>,
}

/// A route of any kind.
#[derive(Clone, Copy, Debug)]
pub struct RouteRef<'i> {
    pub group: &'static str,
    pub kind: RouteKind,
    pub meta: &'i Meta,
    pub parents: &'i [ParentRef],
    pub hostnames: &'i [String],
    pub rules: Rules<'i>,
    /// What controllers wrote about it.
    pub status: &'i [serde_json::Value],
}

/// Ordered as they are preferred where a port can serve one kind only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteKind {
    Grpc,
    Http,
    Tls,
    Tcp,
}

#[derive(Clone, Copy, Debug)]
pub enum Rules<'i> {
    Http(&'i [HttpRouteRule]),
    Grpc(&'i [GrpcRouteRule]),
    Bytes(&'i [ByteRule]),
}

impl RouteKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            RouteKind::Grpc => "GRPCRoute",
            RouteKind::Http => "HTTPRoute",
            RouteKind::Tls => "TLSRoute",
            RouteKind::Tcp => "TCPRoute",
        }
    }
}

impl<'i> RouteRef<'i> {
    fn new<R>(
        group: &'static str,
        kind: RouteKind,
        route: &'i Route<R>,
        rules: impl FnOnce(&'i [R]) -> Rules<'i>,
    ) -> Self {
        RouteRef {
            group,
            kind,
            meta: &route.metadata,
            parents: &route.spec.parent_refs,
            hostnames: &route.spec.hostnames,
            rules: rules(&route.spec.rules),
            status: &route.status.parents,
        }
    }

    /// Whether they are one object.
    pub fn is(&self, other: &RouteRef<'_>) -> bool {
        (self.kind, self.group) == (other.kind, other.group) && self.meta.key() == other.meta.key()
    }
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

    /// The index itself. For looks, not for views: no key stands for a whole table.
    pub fn index(&self) -> &'i Index {
        self.index
    }

    /// All namespaces. For looks, not for views: no key stands for the whole set.
    pub fn namespaces(&self) -> impl Iterator<Item = &'i Arc<Namespace>> {
        self.index.namespaces.in_namespace("")
    }

    /// Namespaces that have ExternalWorkloads. For looks, not for views, like the next three.
    pub fn namespaces_with_externals(&self) -> BTreeSet<&'i str> {
        self.index.externals.all().map(|external| external.metadata.namespace.as_str()).collect()
    }

    pub fn services_in(&self, namespace: &str) -> impl Iterator<Item = &'i Arc<Service>> {
        self.index.services.in_namespace(namespace)
    }

    pub fn externals_in(&self, namespace: &str) -> impl Iterator<Item = &'i Arc<ExternalWorkload>> {
        self.index.externals.in_namespace(namespace)
    }

    pub fn all_slices(&self) -> impl Iterator<Item = &'i Arc<EndpointSlice>> {
        self.index.slices.all()
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

    /// Routes of all kinds, oldest first.
    pub fn routes(&self, namespace: &str) -> Vec<RouteRef<'i>> {
        self.looks(Key::Routes(namespace.to_owned()));
        let mut routes: Vec<_> = self.index.routes(Some(namespace)).collect();
        routes.sort_by_key(|r| (r.meta.seniority(), r.group, r.kind));
        routes
    }

    pub fn grants(&self, namespace: &str) -> impl Iterator<Item = &'i Arc<ReferenceGrant>> {
        self.looks(Key::Grants(namespace.to_owned()));
        self.index.grants.in_namespace(namespace)
    }

    pub fn egress_networks(&self, namespace: &str) -> impl Iterator<Item = &'i Arc<EgressNetwork>> {
        self.looks(Key::EgressNetworks(namespace.to_owned()));
        self.index.egress_networks.in_namespace(namespace)
    }

    pub fn profile(&self, name: &ObjectName) -> Option<&'i Arc<ServiceProfile>> {
        self.looks(Key::Profile(name.clone()));
        self.index.profiles.get(name)
    }

    pub fn server_authorizations(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = &'i Arc<ServerAuthorization>> {
        self.looks(Key::Authorizations(namespace.to_owned()));
        self.index.server_authorizations.in_namespace(namespace)
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

impl Index {
    /// The routes of one namespace, or of all, in no order that means anything.
    pub(crate) fn routes<'i>(&'i self, namespace: Option<&str>) -> impl Iterator<Item = RouteRef<'i>> {
        let policy = self.policy_routes.among(namespace).map(|r| RouteRef::from(&**r));
        let gateway = self.gateway_routes.among(namespace).map(|r| RouteRef::from(&**r));
        let grpc = self.grpc_routes.among(namespace).map(|r| RouteRef::from(&**r));
        let tls = self.tls_routes.among(namespace).map(|r| RouteRef::from(&**r));
        let tcp = self.tcp_routes.among(namespace).map(|r| RouteRef::from(&**r));
        policy.chain(gateway).chain(grpc).chain(tls).chain(tcp)
    }
}

macro_rules! route_ref {
    ($object:ty, $kind:ident, $rules:ident) => {
        impl<'i> From<&'i $object> for RouteRef<'i> {
            fn from(route: &'i $object) -> Self {
                RouteRef::new(<$object>::GROUP, RouteKind::$kind, &route.0, Rules::$rules)
            }
        }
    };
}
route_ref!(PolicyHttpRoute, Http, Http);
route_ref!(GatewayHttpRoute, Http, Http);
route_ref!(GrpcRoute, Grpc, Grpc);
route_ref!(TlsRoute, Tls, Bytes);
route_ref!(TcpRoute, Tcp, Bytes);
