//! `ServiceProfile`, as far as it is used: its existence is shown in profiles, its routes are not applied yet.

use crate::{kind::Kind, meta::Meta};
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ServiceProfile {
    pub metadata: Meta,
}

impl Kind for ServiceProfile {
    const GROUP: &'static str = "linkerd.io";
    const VERSION: &'static str = "v1alpha2";
    const KIND: &'static str = "ServiceProfile";
    const PLURAL: &'static str = "serviceprofiles";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
