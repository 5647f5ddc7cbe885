//! What a proxy stands beside: a pod, or a process outside the cluster that an ExternalWorkload describes. What their
//! annotations and Servers say about a port is read here, alike for both.

use crate::{config::ControllerConfig, index::reader::Reader, ports::PortSet};
use std::fmt;
use weft_kube::{
    core::pod::Pod,
    meta::{Meta, ObjectName},
    policy::{
        access::Access,
        external_workload::ExternalWorkload,
        server::{ProxyProtocol, Server},
    },
};

pub const DEFAULT_POLICY: &str = "config.linkerd.io/default-inbound-policy";
pub const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";
pub const REQUIRE_IDENTITY: &str = "config.linkerd.io/proxy-require-identity-inbound-ports";

/// Whom a proxy says it stands beside.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkloadName {
    Pod(ObjectName),
    External(ObjectName),
}

/// The object of that name.
#[derive(Clone, Copy, Debug)]
pub enum Workload<'i> {
    Pod(&'i Pod),
    External(&'i ExternalWorkload),
}

impl WorkloadName {
    pub fn object(&self) -> &ObjectName {
        match self {
            WorkloadName::Pod(name) | WorkloadName::External(name) => name,
        }
    }
}

impl fmt::Display for WorkloadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkloadName::Pod(name) => write!(f, "pod {name}"),
            WorkloadName::External(name) => write!(f, "ExternalWorkload {name}"),
        }
    }
}

impl<'i> Workload<'i> {
    pub fn find(reader: &Reader<'i>, name: &WorkloadName) -> Option<Self> {
        match name {
            WorkloadName::Pod(name) => reader.pod(name).map(|pod| Workload::Pod(pod)),
            WorkloadName::External(name) => {
                reader.external(name).map(|external| Workload::External(external))
            }
        }
    }

    pub fn meta(self) -> &'i Meta {
        match self {
            Workload::Pod(pod) => &pod.metadata,
            Workload::External(external) => &external.metadata,
        }
    }

    pub fn named_port(self, name: &str) -> Option<u16> {
        match self {
            Workload::Pod(pod) => pod.named_port(name),
            Workload::External(external) => external.named_port(name),
        }
    }

    pub fn is_selected_by(self, server: &Server) -> bool {
        match self {
            Workload::Pod(pod) => server.selects_pod(&pod.metadata.labels),
            Workload::External(external) => server.selects_external(&external.metadata.labels),
        }
    }

    /// The Servers of the namespace that select it and are about this port.
    fn servers(self, reader: &Reader<'i>, port: u16) -> impl Iterator<Item = &'i Server> {
        let servers = reader.servers(&self.meta().namespace).map(|server| &**server);
        servers.filter(move |s| self.is_selected_by(s) && s.is_port(port, |name| self.named_port(name)))
    }

    /// The Server that speaks for a port: of several, the oldest.
    pub fn server(self, reader: &Reader<'i>, port: u16) -> Option<&'i Server> {
        self.servers(reader, port).min_by_key(|server| server.metadata.seniority())
    }

    /// Its own annotation, else its namespace's. Into pods the injector has copied the namespace's, as it was then; an
    /// ExternalWorkload nobody injects.
    fn annotation(self, reader: &Reader<'i>, name: &str) -> Option<&'i str> {
        self.meta().annotation(name).or_else(|| match self {
            Workload::Pod(_) => None,
            Workload::External(external) => {
                reader.namespace(&external.metadata.namespace)?.metadata.annotation(name)
            }
        })
    }

    fn lists(self, ports: &str, port: u16) -> bool {
        PortSet::parse(ports).contains(port, |name| self.named_port(name))
    }

    /// Whether the port's bytes are opaque by annotation, else by the default list.
    pub fn is_annotated_opaque(self, reader: &Reader<'i>, config: &ControllerConfig, port: u16) -> bool {
        match self.annotation(reader, OPAQUE_PORTS) {
            Some(text) => self.lists(text, port),
            None => config.default_opaque_ports.contains_number(port),
        }
    }

    /// Whether the port's bytes are opaque: by annotation (else the default list), or by a Server.
    pub fn is_opaque(self, reader: &Reader<'i>, config: &ControllerConfig, port: u16) -> bool {
        self.is_annotated_opaque(reader, config, port)
            || self.servers(reader, port).any(|server| server.protocol() == Some(ProxyProtocol::Opaque))
    }

    /// The policy of a port without a Server: the annotation's, else the cluster's; one that cannot be read denies. A
    /// port that requires an identity lets in nobody without one.
    pub fn default_access(self, reader: &Reader<'i>, config: &ControllerConfig, port: u16) -> Access {
        let access = match self.annotation(reader, DEFAULT_POLICY) {
            Some(text) => Access::parse(text).unwrap_or(Access::Deny),
            None => config.default_policy,
        };
        match access {
            Access::Allow { cluster_only, .. } if self.requires_identity(reader, config, port) => {
                Access::Allow { authenticated: true, cluster_only }
            }
            access => access,
        }
    }

    /// Whether an annotation, else the installation's values, list the port among those that need an identity.
    fn requires_identity(self, reader: &Reader<'i>, config: &ControllerConfig, port: u16) -> bool {
        let installed = &config.injection.require_identity_ports;
        self.lists(self.annotation(reader, REQUIRE_IDENTITY).unwrap_or(installed), port)
    }
}
