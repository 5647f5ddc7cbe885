//! EgressNetwork: destinations outside of the cluster, as a parent of routes.

use super::{
    authorization::{NetworkMatch, network_flaw},
    reference::POLICY_GROUP,
    status::Conditions,
};
use crate::{
    kind::Kind,
    meta::{Meta, nullable},
};
use serde::Deserialize;
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct EgressNetwork {
    pub metadata: Meta,
    pub spec: EgressNetworkSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub status: Conditions,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EgressNetworkSpec {
    /// Kept as text: a value of a later version denies, it does not make the object vanish.
    pub traffic_policy: String,
    pub networks: Option<Vec<NetworkMatch>>,
}

impl Kind for EgressNetwork {
    const GROUP: &'static str = POLICY_GROUP;
    const VERSION: &'static str = "v1alpha1";
    const KIND: &'static str = "EgressNetwork";
    const PLURAL: &'static str = "egressnetworks";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl EgressNetwork {
    /// Whether traffic that no route takes may pass.
    pub fn allows(&self) -> bool {
        self.spec.traffic_policy == "Allow"
    }

    /// The length of the longest prefix that contains the address. Without networks of its own it contains what is outside
    /// of the cluster, as little specifically as can be.
    pub fn contains(&self, ip: IpAddr, in_cluster: bool) -> Option<u8> {
        match &self.spec.networks {
            None => (!in_cluster).then_some(0),
            Some(networks) => networks
                .iter()
                .filter(|n| n.cidr.0.contains(&ip) && !n.except.iter().any(|e| e.0.contains(&ip)))
                .map(|n| n.cidr.0.prefix_len())
                .max(),
        }
    }

    /// What is wrong with it, whatever else there is.
    pub fn flaw(&self) -> Option<String> {
        if !matches!(self.spec.traffic_policy.as_str(), "Allow" | "Deny") {
            return Some(format!(
                "spec.trafficPolicy: {:?} is neither Allow nor Deny",
                self.spec.traffic_policy
            ));
        }
        match &self.spec.networks {
            Some(networks) if networks.is_empty() => Some(
                "spec.networks: leave it out for everything outside of the cluster, or give some".to_owned(),
            ),
            Some(networks) => network_flaw("spec.networks", networks),
            None => None,
        }
    }
}
