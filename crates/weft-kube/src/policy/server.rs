//! `Server`: a port of some workloads, and how its bytes are read.

use super::{access::Access, status::Conditions};
use crate::{
    core::service::IntOrString,
    kind::Kind,
    meta::{Meta, nullable},
    selector::LabelSelector,
};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Server {
    pub metadata: Meta,
    pub spec: ServerSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub status: Conditions,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerSpec {
    pub pod_selector: Option<LabelSelector>,
    pub external_workload_selector: Option<LabelSelector>,
    pub port: IntOrString,
    /// Kept as text: a value of a later version makes this port refuse, not the object vanish.
    pub proxy_protocol: Option<String>,
    pub access_policy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    Unknown,
    Http1,
    Http2,
    Grpc,
    Opaque,
    Tls,
}

impl Kind for Server {
    const GROUP: &'static str = "policy.linkerd.io";
    const VERSION: &'static str = "v1beta3";
    const KIND: &'static str = "Server";
    const PLURAL: &'static str = "servers";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Server {
    pub fn selects_pod(&self, labels: &BTreeMap<String, String>) -> bool {
        self.spec.pod_selector.as_ref().is_some_and(|s| s.selects(labels))
    }

    pub fn selects_external(&self, labels: &BTreeMap<String, String>) -> bool {
        self.spec.external_workload_selector.as_ref().is_some_and(|s| s.selects(labels))
    }

    /// Whether it is about this port of a pod whose named ports `named` looks up.
    pub fn is_port(&self, port: u16, named: impl Fn(&str) -> Option<u16>) -> bool {
        match &self.spec.port {
            IntOrString::Int(number) => *number == port,
            IntOrString::String(name) => match name.parse::<u16>() {
                Ok(number) => number == port,
                Err(_) => named(name) == Some(port),
            },
        }
    }

    /// `None` for a protocol that this build does not know.
    pub fn protocol(&self) -> Option<ProxyProtocol> {
        Some(match self.spec.proxy_protocol.as_deref().unwrap_or("unknown") {
            "unknown" | "" => ProxyProtocol::Unknown,
            "HTTP/1" => ProxyProtocol::Http1,
            "HTTP/2" => ProxyProtocol::Http2,
            "gRPC" => ProxyProtocol::Grpc,
            "opaque" => ProxyProtocol::Opaque,
            "TLS" => ProxyProtocol::Tls,
            _ => return None,
        })
    }

    /// What is allowed besides the authorizations that name this Server; absent and unknown values allow nothing.
    pub fn access(&self) -> Access {
        self.spec.access_policy.as_deref().and_then(Access::parse).unwrap_or(Access::Deny)
    }

    /// What is wrong with it, if anything: the field, the value and what is expected. It then allows nothing.
    pub fn flaw(&self) -> Option<String> {
        let spec = &self.spec;
        let access = spec.access_policy.as_deref().filter(|text| Access::parse(text).is_none());
        match (&spec.pod_selector, &spec.external_workload_selector) {
            (Some(_), Some(_)) => {
                return Some("spec: podSelector and externalWorkloadSelector exclude each other".to_owned());
            }
            (None, None) => {
                return Some("spec: podSelector or externalWorkloadSelector is needed".to_owned());
            }
            (Some(_), None) | (None, Some(_)) => {}
        }
        if self.protocol().is_none() {
            let protocol = spec.proxy_protocol.as_deref().unwrap_or_default();
            return Some(format!(
                "spec.proxyProtocol: {protocol:?} is none of unknown, HTTP/1, HTTP/2, gRPC, opaque, TLS"
            ));
        }
        access.map(|text| format!("spec.accessPolicy: {text:?} is none of {}", Access::NAMES.join(", ")))
    }
}
