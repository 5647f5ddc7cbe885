use crate::{
    kind::Kind,
    meta::{Meta, nullable},
};
use serde::Deserialize;
use std::{collections::BTreeMap, net::IpAddr};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    #[serde(rename = "clusterIP", deserialize_with = "nullable")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    pub cluster_ips: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<ServicePort>,
    #[serde(deserialize_with = "nullable")]
    pub selector: BTreeMap<String, String>,
    pub internal_traffic_policy: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    pub port: u16,
    pub target_port: Option<IntOrString>,
    pub protocol: Option<String>,
    pub app_protocol: Option<String>,
}

/// A port by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    Int(u16),
    String(String),
}

impl Kind for Service {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "Service";
    const PLURAL: &'static str = "services";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Service {
    /// The addresses of its own; none when headless or ExternalName.
    pub fn cluster_ips(&self) -> Vec<IpAddr> {
        let mut ips: Vec<IpAddr> = std::iter::once(&self.spec.cluster_ip)
            .chain(&self.spec.cluster_ips)
            .filter_map(|ip| ip.parse().ok())
            .collect();
        ips.sort();
        ips.dedup();
        ips
    }

    pub fn is_external_name(&self) -> bool {
        self.spec.kind == "ExternalName"
    }

    pub fn is_headless(&self) -> bool {
        self.spec.cluster_ip == "None"
    }

    /// The declared TCP port.
    pub fn port(&self, number: u16) -> Option<&ServicePort> {
        self.spec.ports.iter().find(|p| p.port == number && p.is_tcp())
    }
}

impl ServicePort {
    pub fn is_tcp(&self) -> bool {
        self.protocol.as_deref().is_none_or(|p| p == "TCP")
    }
}
