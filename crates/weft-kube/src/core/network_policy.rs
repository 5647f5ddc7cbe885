use super::{pod::Pod, service::IntOrString};
use crate::{
    kind::Kind,
    meta::{Meta, nullable},
    selector::LabelSelector,
};
use ipnet::IpNet;
use serde::Deserialize;
use weft_model::{
    network_policy::{self as model, PortMatch, Protocol},
    selector::Labels,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NetworkPolicy {
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub spec: NetworkPolicySpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicySpec {
    #[serde(deserialize_with = "nullable")]
    pub pod_selector: LabelSelector,
    pub policy_types: Option<Vec<PolicyType>>,
    #[serde(deserialize_with = "nullable")]
    pub ingress: Vec<IngressRule>,
    #[serde(deserialize_with = "nullable")]
    pub egress: Vec<EgressRule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum PolicyType {
    Ingress,
    Egress,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    #[serde(deserialize_with = "nullable")]
    pub from: Vec<Peer>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EgressRule {
    #[serde(deserialize_with = "nullable")]
    pub to: Vec<Peer>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Peer {
    pub pod_selector: Option<LabelSelector>,
    pub namespace_selector: Option<LabelSelector>,
    pub ip_block: Option<IpBlock>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct IpBlock {
    pub cidr: IpNet,
    #[serde(default, deserialize_with = "nullable")]
    pub except: Vec<IpNet>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Port {
    pub protocol: Option<PortProtocol>,
    pub port: Option<IntOrString>,
    pub end_port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PortProtocol {
    Tcp,
    Udp,
    Sctp,
}

impl Kind for NetworkPolicy {
    const GROUP: &'static str = "networking.k8s.io";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "NetworkPolicy";
    const PLURAL: &'static str = "networkpolicies";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl NetworkPolicy {
    /// What it decides.
    pub fn to_model(&self) -> model::NetworkPolicy {
        let spec = &self.spec;
        // As the API server defaults it: egress is covered where rules for it are written, or where it is named.
        let named = spec.policy_types.as_ref().filter(|types| !types.is_empty());
        let covers = |kind, by_default| named.map_or(by_default, |types| types.contains(&kind));
        let ingress = || spec.ingress.iter().map(|rule| to_rule(&rule.from, &rule.ports)).collect();
        let egress = || spec.egress.iter().map(|rule| to_rule(&rule.to, &rule.ports)).collect();
        model::NetworkPolicy {
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
            pods: spec.pod_selector.clone().into(),
            ingress: covers(PolicyType::Ingress, true).then(ingress),
            egress: covers(PolicyType::Egress, !spec.egress.is_empty()).then(egress),
        }
    }
}

fn to_rule(peers: &[Peer], ports: &[Port]) -> model::Rule {
    model::Rule {
        peers: peers.iter().map(Peer::to_model).collect(),
        ports: ports.iter().map(Port::to_model).collect(),
    }
}

impl Peer {
    fn to_model(&self) -> model::Peer {
        match &self.ip_block {
            Some(block) => model::Peer::Block { network: block.cidr, except: block.except.clone() },
            None => model::Peer::Pods {
                namespaces: self.namespace_selector.clone().map(Into::into),
                pods: self.pod_selector.clone().unwrap_or_default().into(),
            },
        }
    }
}

impl Port {
    fn to_model(&self) -> model::Port {
        let port = match &self.port {
            None => PortMatch::Any,
            Some(IntOrString::Int(from)) => PortMatch::Range(*from, self.end_port.unwrap_or(*from)),
            Some(IntOrString::String(name)) => PortMatch::Named(name.clone()),
        };
        let protocol = match self.protocol {
            None | Some(PortProtocol::Tcp) => Protocol::Tcp,
            Some(PortProtocol::Udp) => Protocol::Udp,
            Some(PortProtocol::Sctp) => Protocol::Sctp,
        };
        model::Port { protocol, port }
    }
}

/// The pod as policies see it, in a namespace with these labels.
pub fn pod_to_model(pod: &Pod, namespace_labels: &Labels) -> model::Pod {
    let ports = pod.all_containers().flat_map(|c| &c.ports).filter(|port| !port.name.is_empty());
    let protocol = |name: Option<&str>| match name {
        None | Some("TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(_) => None,
    };
    model::Pod {
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        labels: (*pod.metadata.labels).clone(),
        namespace_labels: namespace_labels.clone(),
        ips: if pod.is_finished() { Vec::new() } else { pod.ips() },
        host_network: pod.spec.host_network,
        ports: ports
            .filter_map(|port| {
                Some((port.name.clone(), protocol(port.protocol.as_deref())?, port.container_port))
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests;
