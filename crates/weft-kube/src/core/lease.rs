use crate::{
    kind::Kind,
    meta::{Meta, nullable},
};
use serde::Deserialize;

/// Who of several replicas writes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Lease {
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// Empty when the last holder gave it back.
    #[serde(deserialize_with = "nullable")]
    pub holder_identity: String,
    pub lease_duration_seconds: Option<u32>,
    pub acquire_time: Option<String>,
    pub renew_time: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub lease_transitions: u32,
}

impl Kind for Lease {
    const GROUP: &'static str = "coordination.k8s.io";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "Lease";
    const PLURAL: &'static str = "leases";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
