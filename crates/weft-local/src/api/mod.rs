//! The in-memory Kubernetes API: what `kubectl`, the controller, the node agent and any other client talk to.
//!
//! A request goes through `server` (connection, authentication, routing) to the verbs: `read`, `create`, `update`,
//! `delete`, `watch`. These work on [`Api`], which the controllers use directly. [`ApiServer`] is the way in.

pub mod auth;
pub mod error;
pub mod kinds;
pub mod kubelet;
pub mod meta;
pub mod selector;
pub mod store;
pub mod tls;

mod admission;
mod apply;
mod body;
mod call;
mod connect;
mod crd;
mod create;
pub mod delete;
mod discovery;
mod fields;
pub mod left_out;
mod managers;
mod match_condition;
mod openapi;
mod patch;
mod places;
mod port_forward;
mod ports;
mod protobuf;
mod proxy;
pub mod read;
mod request;
mod respond;
mod reviews;
pub mod rules;
mod schema;
mod server;
mod shape;
mod table;
mod tokens;
pub mod update;
mod watch;
mod websocket;
pub mod write;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use ipnet::Ipv4Net;
use parking_lot::Mutex;
use serde_json::{Value, json};
use weft_fault::Fault;

use auth::User;
use kinds::Kinds;
use kubelet::Kubelet;
use store::Store;
use tls::Authority;
use tokens::TokenSigner;

pub use server::ApiServer;

/// What an API server is told at start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses by which clients reach it, beside loopback: the node's, the `kubernetes` Service's.
    pub addresses: Vec<IpAddr>,
    /// Further names for its certificate.
    pub names: Vec<String>,
    /// Where Services get their cluster IPs from.
    pub service_range: Ipv4Net,
    /// The node to which every new pod is bound at once. Without one, pods stay unbound.
    pub node: Option<String>,
    /// Where the `kubernetes` Service leads: an address of this server that pods can reach.
    pub advertise: Option<std::net::SocketAddr>,
    /// Whether [`crate::controllers`] run on this server.
    pub controllers: bool,
    /// Further static bearer tokens, for tests.
    pub tokens: Vec<(String, User)>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            names: Vec::new(),
            service_range: Ipv4Net::new_assert([10, 78, 0, 0].into(), 16),
            node: Some("weft".to_owned()),
            advertise: None,
            controllers: true,
            tokens: Vec::new(),
        }
    }
}

/// The objects and everything that acts on them, without the network.
pub struct Api {
    pub store: Store,
    pub kinds: Kinds,
    pub config: Config,
    /// Serialises the choice of cluster IPs.
    addresses: Mutex<()>,
    tokens: TokenSigner,
    authority: Authority,
    admin_token: String,
    kubelet: OnceLock<Arc<dyn Kubelet>>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").field("revision", &self.store.revision()).finish_non_exhaustive()
    }
}

impl Api {
    fn new(config: Config) -> Result<Self, Fault> {
        let authority = Authority::generate(&config.names, &config.addresses)?;
        let random: [u8; 32] = rand::random();
        let admin_token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let api = Self {
            store: Store::default(),
            kinds: Kinds::default(),
            config,
            addresses: Mutex::new(()),
            tokens: TokenSigner::generate(),
            authority,
            admin_token,
            kubelet: OnceLock::new(),
        };
        for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            api.seed(
                "namespaces",
                json!({
                    "kind": "Namespace",
                    "apiVersion": "v1",
                    "metadata": { "name": namespace, "labels": { "kubernetes.io/metadata.name": namespace } },
                    "spec": { "finalizers": ["kubernetes"] },
                    "status": { "phase": "Active" },
                }),
            );
            if api.config.controllers {
                api.furnish_namespace(namespace);
            }
        }
        api.seed(
            "servicecidrs.networking.k8s.io",
            json!({
                "kind": "ServiceCIDR",
                "apiVersion": "networking.k8s.io/v1",
                "metadata": { "name": "kubernetes" },
                "spec": { "cidrs": [api.config.service_range.to_string()] },
                "status": { "conditions": [{
                    "type": "Ready", "status": "True", "reason": "", "lastTransitionTime": meta::now(),
                    "message": "Kubernetes default Service CIDR is ready",
                }] },
            }),
        );
        if let Some(advertise) = api.config.advertise {
            api.seed_own_service(advertise);
        }
        api.seed(
            "clusterroles.rbac.authorization.k8s.io",
            json!({
                "kind": "ClusterRole",
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "metadata": { "name": "cluster-admin" },
                "rules": [
                    { "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] },
                    { "verbs": ["*"], "nonResourceURLs": ["*"] },
                ],
            }),
        );
        Ok(api)
    }

    /// Puts an object into the store past all checks, unless there is one already.
    fn seed(&self, resource: &str, mut object: Value) {
        let metadata = meta::metadata_mut(&mut object);
        metadata.insert("uid".into(), json!(uuid::Uuid::new_v4().to_string()));
        metadata.insert("creationTimestamp".into(), json!(meta::now()));
        // Existing already is fine: whoever was first made the same.
        let _ = self.store.insert(&resource.into(), object);
    }

    /// The `kubernetes` Service, by which pods find this server. It has the first address of the range.
    fn seed_own_service(&self, advertise: std::net::SocketAddr) {
        let ip = self.config.service_range.hosts().next().unwrap_or(self.config.service_range.addr());
        let labels = json!({ "component": "apiserver", "provider": "kubernetes" });
        self.seed("services", json!({
            "kind": "Service",
            "apiVersion": "v1",
            "metadata": { "name": "kubernetes", "namespace": "default", "labels": labels },
            "spec": {
                "ports": [{ "name": "https", "protocol": "TCP", "port": 443, "targetPort": advertise.port() }],
                "clusterIP": ip.to_string(),
                "clusterIPs": [ip.to_string()],
                "type": "ClusterIP",
                "sessionAffinity": "None",
                "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack",
                "internalTrafficPolicy": "Cluster",
            },
            "status": { "loadBalancer": {} },
        }));
        self.seed(
            "endpoints",
            json!({
                "kind": "Endpoints",
                "apiVersion": "v1",
                "metadata": {
                    "name": "kubernetes", "namespace": "default",
                    "labels": { "endpointslice.kubernetes.io/skip-mirror": "true" },
                },
                "subsets": [{
                    "addresses": [{ "ip": advertise.ip().to_string() }],
                    "ports": [{ "name": "https", "port": advertise.port(), "protocol": "TCP" }],
                }],
            }),
        );
        self.seed(
            "endpointslices.discovery.k8s.io",
            json!({
                "kind": "EndpointSlice",
                "apiVersion": "discovery.k8s.io/v1",
                "metadata": {
                    "name": "kubernetes", "namespace": "default", "generation": 1,
                    "labels": { "kubernetes.io/service-name": "kubernetes" },
                },
                "addressType": "IPv4",
                "endpoints": [{ "addresses": [advertise.ip().to_string()], "conditions": { "ready": true } }],
                "ports": [{ "name": "https", "protocol": "TCP", "port": advertise.port() }],
            }),
        );
    }

    /// Gives a namespace what every namespace has: the `default` ServiceAccount and the API's authority.
    pub fn furnish_namespace(&self, namespace: &str) {
        self.seed(
            "serviceaccounts",
            json!({
                "kind": "ServiceAccount",
                "apiVersion": "v1",
                "metadata": { "name": "default", "namespace": namespace },
            }),
        );
        self.seed("configmaps", json!({
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "metadata": {
                "name": "kube-root-ca.crt",
                "namespace": namespace,
                "annotations": {
                    "kubernetes.io/description": "The certificate authority of the Kubernetes API, for clients in pods.",
                },
            },
            "data": { "ca.crt": self.authority.certificate },
        }));
    }

    /// The certificate that clients must trust, as PEM.
    pub fn authority(&self) -> &str {
        &self.authority.certificate
    }

    /// The administrator's bearer token.
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// Connects the node agent. Only the first one counts.
    pub fn set_kubelet(&self, kubelet: Arc<dyn Kubelet>) {
        if self.kubelet.set(kubelet).is_err() {
            tracing::warn!("a second node agent was refused");
        }
    }
}
