//! What is known of a mesh at one moment, and what could not be read.

#[cfg(test)]
pub(crate) mod healthy;
mod identity;
mod unread;

pub use identity::{Hook, Issuer, Roots};
pub use unread::{Right, Unread};

use crate::prom::Sample;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use weft_kube::{
    core::{endpoint_slice::EndpointSlice, network_policy::NetworkPolicy, pod, service::Service},
    meta::{Meta, ObjectName},
    policy::{
        authorization::{AuthorizationPolicy, MeshTlsAuthentication, NetworkAuthentication},
        server::Server,
        server_authorization::ServerAuthorization,
    },
};
use weft_wire::record::{ConnectionRecord, JournalEntry};

/// What somebody said, or why nobody did.
pub type Read<T> = Result<T, Unread>;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    pub control_namespace: String,
    pub cni_namespace: String,
    /// Only the data plane of this namespace.
    pub namespace: Option<String>,
    /// A CNI plugin is wanted, whatever the settings say.
    pub cni_enabled: bool,
    /// Of this program.
    pub own_version: String,
    /// What everything should be at.
    pub expected_version: Option<String>,
    /// Extensions whose commands are on this machine.
    pub commands: BTreeSet<String>,
}

/// Everything that checks look at.
#[derive(Clone, Debug)]
pub struct Facts {
    pub asked: Asked,
    pub now_unix_ms: u64,
    /// Whether there is a client at all.
    pub client: Result<(), String>,
    /// The API server's version, as it writes it.
    pub kubernetes: Read<String>,
    /// How far the API server's clock is ahead of this machine's.
    pub api_clock: Read<Skew>,
    pub namespaces: Read<Vec<Meta>>,
    pub nodes: Read<Vec<Node>>,
    /// Names of CustomResourceDefinitions.
    pub definitions: Read<BTreeSet<String>>,
    pub plane: ControlPlane,
    pub pods: Read<Vec<Pod>>,
    pub services: Read<Vec<Service>>,
    pub slices: Read<Vec<EndpointSlice>>,
    pub policies: Policies,
    /// By name, every meshed pod that runs.
    pub proxies: BTreeMap<ObjectName, Read<Proxy>>,
    /// `None` for a control plane that is not weft's.
    pub controller: Option<Read<Controller>>,
    pub cni: Cni,
    /// What the user may do before an installation; only asked for then.
    pub rights: Read<Vec<(Right, bool)>>,
}

/// Whose control plane it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// Of `weft up`: the controller is a process, not a pod.
    Local,
    Weft,
    Linkerd,
}

/// Objects of the control plane.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    pub config: Read<Option<Config>>,
    /// In its namespace.
    pub accounts: Read<BTreeSet<String>>,
    pub cluster_roles: Read<BTreeSet<String>>,
    pub cluster_role_bindings: Read<BTreeSet<String>>,
    pub mutating: Read<BTreeSet<String>>,
    pub validating: Read<BTreeSet<String>>,
    pub workloads: Read<Vec<Workload>>,
    pub roots: Read<Option<Roots>>,
    pub issuer: Read<Option<Issuer>>,
    /// Certificates of the webhooks, as in [`super::names::HOOKS`].
    pub hooks: [Read<Option<Hook>>; 3],
}

/// `linkerd-config`.
#[derive(Clone, Debug)]
pub struct Config {
    pub created_by: String,
    /// Empty if they could not be parsed: see `flaw`.
    pub values: Value,
    pub flaw: Option<String>,
}

/// A Deployment or a ReplicaSet.
#[derive(Clone, Debug)]
pub struct Workload {
    pub kind: &'static str,
    pub name: String,
    pub wanted: u64,
    pub ready: u64,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub ready: bool,
    pub runtime: String,
    pub networks: Vec<String>,
}

/// A pod, and what its status says beyond what decisions need.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    pub object: pod::Pod,
    pub ready: bool,
    /// When that last changed.
    pub ready_since_unix_ms: Option<u64>,
    /// Why it is not: in the kubelet's words.
    pub waiting: Option<String>,
    /// Why no node takes it.
    pub unschedulable: Option<String>,
    pub proxy: Option<ProxyContainer>,
}

#[derive(Clone, Debug, Default)]
pub struct ProxyContainer {
    pub ready: bool,
    /// Its image, with the tag.
    pub image: String,
    /// Fingerprints of the trust anchors that are in its environment, where they are.
    pub anchors: Option<BTreeSet<String>>,
}

/// Objects that decide about traffic.
#[derive(Clone, Debug)]
pub struct Policies {
    pub servers: Read<Vec<Server>>,
    pub server_authorizations: Read<Vec<ServerAuthorization>>,
    pub authorization_policies: Read<Vec<AuthorizationPolicy>>,
    pub mesh_tls: Read<Vec<MeshTlsAuthentication>>,
    pub networks: Read<Vec<NetworkAuthentication>>,
    /// Kind, namespace, name.
    pub routes: Read<BTreeSet<(String, ObjectName)>>,
    pub accounts: Read<BTreeSet<ObjectName>>,
    pub network_policies: Read<Vec<NetworkPolicy>>,
    /// Policies that are of no shape that is known, and what is wrong.
    pub unreadable: Vec<String>,
    /// Definitions of other engines, with how many objects there are.
    pub engines: Read<Vec<(String, usize)>>,
}

/// What a proxy said.
#[derive(Clone, Debug, Default)]
pub struct Proxy {
    /// What it counts, as far as checks look at it.
    pub samples: Vec<Sample>,
    /// The same counters some seconds later; only of proxies that keep no records.
    pub later: Option<(f64, Vec<Sample>)>,
    /// What it remembers of connections; `None` for a stock proxy.
    pub connections: Option<Vec<ConnectionRecord>>,
    pub clock: Option<Skew>,
}

/// What weft's controller said.
#[derive(Clone, Debug)]
pub struct Controller {
    /// `None`: ready; otherwise what it waits for.
    pub waits: Option<String>,
    pub clock: Option<Skew>,
    /// What it counts.
    pub samples: Vec<Sample>,
    /// The last minutes of its journal.
    pub journal: Read<Vec<JournalEntry>>,
    /// What it would answer about a Service's port.
    pub endpoints: Vec<ServiceView>,
    /// Ports that were not asked about, since there are so many.
    pub not_asked: usize,
}

#[derive(Clone, Debug)]
pub struct ServiceView {
    pub service: ObjectName,
    pub port: u16,
    /// Address and identity, which is empty where it gives none.
    pub endpoints: Read<Vec<(String, String)>>,
}

/// How far a clock is ahead of this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    pub ahead_ms: i64,
    /// It may be as much more or less: headers tell seconds, and a question takes its time.
    pub within_ms: u64,
}

/// What there is of a CNI plugin.
#[derive(Clone, Debug)]
pub struct Cni {
    pub config_map: Read<bool>,
    pub account: Read<bool>,
    pub daemon_set: Read<Option<Workload>>,
}

impl Facts {
    /// Whose control plane it is; `None` where there is none.
    pub fn plane(&self) -> Read<Option<Plane>> {
        let config = self.plane.config.as_ref()?;
        Ok(config.as_ref().map(|config| match config.created_by.as_str() {
            by if by.starts_with("weft/up") => Plane::Local,
            by if by.starts_with("weft/") => Plane::Weft,
            _ => Plane::Linkerd,
        }))
    }

    /// A setting, by its path.
    pub fn setting(&self, path: &[&str]) -> Read<Option<&Value>> {
        let config = self.plane.config.as_ref()?;
        let found = config.as_ref().map(|config| path.iter().fold(&config.values, |at, key| &at[key]));
        Ok(found.filter(|value| !value.is_null()))
    }

    /// Pods that a proxy was put into, of the namespace that was asked for.
    pub fn meshed_pods(&self) -> Read<impl Iterator<Item = &Pod>> {
        let pods = self.pods.as_ref()?;
        Ok(pods.iter().filter(|pod| pod.is_meshed(&self.asked.control_namespace) && self.is_asked(pod)))
    }

    /// Whether a pod is within what was asked for.
    pub fn is_asked(&self, pod: &Pod) -> bool {
        self.asked.namespace.as_ref().is_none_or(|only| *only == pod.object.metadata.namespace)
    }

    /// The same by `namespace/name`.
    pub fn is_asked_name(&self, pod: &str) -> bool {
        let namespace = pod.split_once('/').map_or("", |(namespace, _)| namespace);
        self.asked.namespace.as_ref().is_none_or(|only| only == namespace)
    }

    /// Pods of the control plane.
    pub fn control_pods(&self) -> Read<impl Iterator<Item = &Pod>> {
        let pods = self.pods.as_ref()?;
        Ok(pods.iter().filter(|pod| {
            let meta = &pod.object.metadata;
            meta.namespace == self.asked.control_namespace
                && meta.label(super::names::COMPONENT).is_some()
                && !pod.object.is_finished()
        }))
    }

    /// Extensions that have a namespace.
    pub fn extensions(&self) -> BTreeSet<String> {
        let namespaces = self.namespaces.iter().flatten();
        namespaces
            .filter_map(|namespace| namespace.label(super::names::EXTENSION))
            .map(str::to_owned)
            .collect()
    }

    /// The trust domain of identities.
    pub fn trust_domain(&self) -> String {
        let found = self.setting(&["identityTrustDomain"]).ok().flatten().and_then(Value::as_str);
        found.filter(|domain| !domain.is_empty()).unwrap_or("cluster.local").to_owned()
    }

    /// The identity that a pod's proxy must prove.
    pub fn identity_of(&self, pod: &Pod) -> String {
        let (account, namespace) = (pod.object.service_account(), &pod.object.metadata.namespace);
        let control = &self.asked.control_namespace;
        format!("{account}.{namespace}.serviceaccount.identity.{control}.{}", self.trust_domain())
    }
}

impl Pod {
    pub fn name(&self) -> ObjectName {
        self.object.metadata.key()
    }

    /// Whether a proxy of this control plane was put into it, and it has not ended.
    pub fn is_meshed(&self, control_namespace: &str) -> bool {
        let of = self.object.metadata.label(super::names::CONTROL_NS);
        of == Some(control_namespace) && self.proxy.is_some() && !self.object.is_finished()
    }

    /// Whether it should answer now.
    pub fn runs(&self) -> bool {
        self.object.status.phase == "Running" && !self.object.is_terminating()
    }
}

impl Proxy {
    /// The samples of one family.
    pub fn family<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Sample> {
        self.samples.iter().filter(move |sample| sample.name == name)
    }

    /// The value of a family without labels.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.family(name).next().map(|sample| sample.value)
    }
}
