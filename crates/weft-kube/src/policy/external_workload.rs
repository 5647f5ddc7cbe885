//! `ExternalWorkload`: a meshed process outside the cluster.

use crate::{
    kind::Kind,
    meta::{Meta, nullable},
};
use serde::Deserialize;
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ExternalWorkload {
    pub metadata: Meta,
    pub spec: ExternalWorkloadSpec,
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
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct WorkloadIp {
    pub ip: String,
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

    /// The port on which its proxy accepts transport headers.
    pub fn inbound_port(&self) -> u16 {
        self.spec.ports.iter().find(|p| p.name == "linkerd-proxy").map_or(4143, |p| p.port)
    }
}
