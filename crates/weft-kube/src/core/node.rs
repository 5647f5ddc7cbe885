use crate::{
    kind::Kind,
    meta::{Meta, nullable},
};
use serde::Deserialize;
use std::{collections::BTreeMap, net::IpAddr};

/// The node label that names its zone.
const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    pub address: String,
}

impl Node {
    pub fn zone(&self) -> Option<&str> {
        self.metadata.label(ZONE)
    }
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.status.addresses.iter().filter_map(|a| a.address.parse().ok()).collect()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub data: BTreeMap<String, String>,
}

/// `data` is base64, as on the wire. No `Debug` output of the values.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Secret {
    pub metadata: Meta,
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub data: BTreeMap<String, String>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({})", self.metadata.key())
    }
}

macro_rules! metadata_only {
    ($($name:ident),*) => {$(
        /// Only metadata is read.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        pub struct $name {
            pub metadata: Meta,
        }
    )*};
}
metadata_only!(Namespace, ReplicaSet, Job);

macro_rules! kind {
    ($name:ident, $group:literal, $plural:literal, $metadata_only:literal) => {
        impl Kind for $name {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = "v1";
            const KIND: &'static str = stringify!($name);
            const PLURAL: &'static str = $plural;
            const METADATA_ONLY: bool = $metadata_only;
            fn meta(&self) -> &Meta {
                &self.metadata
            }
        }
    };
}
kind!(Node, "", "nodes", false);
kind!(Namespace, "", "namespaces", true);
kind!(ConfigMap, "", "configmaps", false);
kind!(Secret, "", "secrets", false);
kind!(ReplicaSet, "apps", "replicasets", true);
kind!(Job, "batch", "jobs", true);
