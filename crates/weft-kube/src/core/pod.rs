use super::service::IntOrString;
use crate::{
    kind::Kind,
    meta::{Meta, Text, list, nullable, some_of},
    shared::Shared,
};
use serde::{Deserialize, Deserializer};
use std::net::IpAddr;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub spec: PodSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    #[serde(deserialize_with = "nullable")]
    pub node_name: String,
    #[serde(deserialize_with = "nullable")]
    pub host_network: bool,
    #[serde(deserialize_with = "nullable")]
    pub service_account_name: String,
    #[serde(deserialize_with = "list")]
    pub containers: Shared<Vec<Container>>,
    #[serde(deserialize_with = "list")]
    pub init_containers: Shared<Vec<Container>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    #[serde(deserialize_with = "list")]
    pub ports: Vec<ContainerPort>,
    /// Only the variables that anybody here reads: an injected proxy has dozens.
    #[serde(deserialize_with = "known_env")]
    pub env: Vec<EnvVar>,
    pub liveness_probe: Option<Probe>,
    pub readiness_probe: Option<Probe>,
    pub startup_probe: Option<Probe>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    pub container_port: u16,
    pub host_port: Option<u16>,
    pub protocol: Option<String>,
}

/// Where a proxy takes connections that were not redirected to it.
pub const INBOUND_ADDR: &str = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR";

fn known_env<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<EnvVar>, D::Error> {
    #[derive(Deserialize)]
    struct Seen<'s> {
        #[serde(borrow)]
        name: Text<'s>,
        #[serde(borrow, default)]
        value: Option<Text<'s>>,
    }
    some_of(deserializer, |seen: Seen<'de>| {
        let known = seen.name.0 == INBOUND_ADDR;
        known.then(|| EnvVar { name: seen.name.into(), value: seen.value.map(String::from) })
    })
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EnvVar {
    pub name: String,
    pub value: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    pub http_get: Option<HttpProbe>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpProbe {
    #[serde(default)]
    pub path: Option<String>,
    pub port: IntOrString,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    #[serde(deserialize_with = "nullable")]
    pub phase: String,
    #[serde(rename = "podIP", deserialize_with = "nullable")]
    pub pod_ip: String,
    #[serde(rename = "podIPs", deserialize_with = "list")]
    pub pod_ips: Vec<PodIp>,
    #[serde(rename = "hostIP", deserialize_with = "nullable")]
    pub host_ip: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: String,
}

impl ContainerPort {
    pub fn is_tcp(&self) -> bool {
        self.protocol.as_deref().is_none_or(|p| p == "TCP")
    }
}

impl Kind for Pod {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "Pod";
    const PLURAL: &'static str = "pods";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
    fn share(&mut self, like: &Self) {
        self.metadata.share(&like.metadata);
        self.spec.containers.share(&like.spec.containers);
        self.spec.init_containers.share(&like.spec.init_containers);
    }
}

impl Pod {
    pub fn ips(&self) -> Vec<IpAddr> {
        let mut ips: Vec<IpAddr> = std::iter::once(&self.status.pod_ip)
            .chain(self.status.pod_ips.iter().map(|p| &p.ip))
            .filter_map(|ip| ip.parse().ok())
            .collect();
        ips.sort();
        ips.dedup();
        ips
    }

    /// Its containers have all ended for good: it holds no address any more.
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Init containers first, as they start first.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.init_containers.iter().chain(self.spec.containers.iter())
    }

    /// The number of a named container port; init containers count (native sidecars serve, too).
    pub fn named_port(&self, name: &str) -> Option<u16> {
        self.all_containers()
            .flat_map(|c| &c.ports)
            .find(|p| p.name == name && p.is_tcp())
            .map(|p| p.container_port)
    }

    pub fn service_account(&self) -> &str {
        if self.spec.service_account_name.is_empty() { "default" } else { &self.spec.service_account_name }
    }
}
