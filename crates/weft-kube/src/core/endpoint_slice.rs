use crate::{
    kind::Kind,
    meta::{Meta, list, nullable},
};
use serde::Deserialize;

/// The label that ties a slice to its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The label that says which controller keeps a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub address_type: String,
    #[serde(deserialize_with = "list")]
    pub endpoints: Vec<EndpointAddress>,
    #[serde(deserialize_with = "list")]
    pub ports: Vec<SlicePort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointAddress {
    #[serde(deserialize_with = "list")]
    pub addresses: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub conditions: Conditions,
    pub hostname: Option<String>,
    pub node_name: Option<String>,
    pub zone: Option<String>,
    pub target_ref: Option<TargetRef>,
    pub hints: Option<Hints>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conditions {
    pub ready: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hints {
    #[serde(deserialize_with = "nullable")]
    pub for_zones: Vec<ForZone>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ForZone {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlicePort {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    pub port: Option<u16>,
    pub protocol: Option<String>,
}

impl Kind for EndpointSlice {
    const GROUP: &'static str = "discovery.k8s.io";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "EndpointSlice";
    const PLURAL: &'static str = "endpointslices";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl EndpointSlice {
    /// The Service that this slice belongs to.
    pub fn service(&self) -> Option<&str> {
        self.metadata.label(SERVICE_NAME)
    }
}

impl EndpointAddress {
    /// Not saying counts as ready.
    pub fn is_ready(&self) -> bool {
        self.conditions.ready != Some(false)
    }
}
