//! `ExternalWorkload`: a meshed process outside the cluster.

use crate::{
    kind::Kind,
    meta::{Meta, nullable},
};
use serde::{Deserialize, Deserializer};
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ExternalWorkload {
    pub metadata: Meta,
    pub spec: ExternalWorkloadSpec,
    /// Its condition `Ready` is true. Whoever keeps the object says so.
    #[serde(rename = "status", default, deserialize_with = "ready")]
    pub ready: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalWorkloadSpec {
    #[serde(rename = "meshTLS")]
    pub mesh_tls: MeshTls,
    #[serde(default, deserialize_with = "nullable")]
    pub ports: Vec<PortSpec>,
    #[serde(rename = "workloadIPs", default, deserialize_with = "nullable")]
    pub workload_ips: Vec<WorkloadIp>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeshTls {
    pub identity: String,
    pub server_name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PortSpec {
    #[serde(default, deserialize_with = "nullable")]
    pub name: String,
    pub port: u16,
    pub protocol: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct WorkloadIp {
    pub ip: String,
}

fn ready<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        #[serde(deserialize_with = "nullable")]
        conditions: Vec<Condition>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Condition {
        r#type: String,
        status: String,
    }
    let status: Status = nullable(deserializer)?;
    Ok(status.conditions.iter().any(|c| c.r#type == "Ready" && c.status == "True"))
}

impl Kind for ExternalWorkload {
    const GROUP: &'static str = "workload.linkerd.io";
    const VERSION: &'static str = "v1beta1";
    const KIND: &'static str = "ExternalWorkload";
    const PLURAL: &'static str = "externalworkloads";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl ExternalWorkload {
    pub fn ips(&self) -> Vec<IpAddr> {
        self.spec.workload_ips.iter().filter_map(|w| w.ip.parse().ok()).collect()
    }

    /// The number of a named port.
    pub fn named_port(&self, name: &str) -> Option<u16> {
        self.spec.ports.iter().find(|p| p.name == name).map(|p| p.port)
    }

    /// The port on which its proxy accepts transport headers.
    pub fn inbound_port(&self) -> u16 {
        self.named_port("linkerd-proxy").unwrap_or(4143)
    }
}
