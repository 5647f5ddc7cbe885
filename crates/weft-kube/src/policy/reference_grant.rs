//! ReferenceGrant: lets objects of other namespaces refer to objects of this one.

use super::reference::GATEWAY_GROUP;
use crate::{
    kind::Kind,
    meta::{Meta, nullable},
};
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ReferenceGrant {
    pub metadata: Meta,
    pub spec: ReferenceGrantSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReferenceGrantSpec {
    #[serde(deserialize_with = "nullable")]
    pub from: Vec<From>,
    #[serde(deserialize_with = "nullable")]
    pub to: Vec<To>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct From {
    pub group: String,
    pub kind: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct To {
    pub group: String,
    pub kind: String,
    pub name: Option<String>,
}

impl Kind for ReferenceGrant {
    const GROUP: &'static str = GATEWAY_GROUP;
    const VERSION: &'static str = "v1beta1";
    const KIND: &'static str = "ReferenceGrant";
    const PLURAL: &'static str = "referencegrants";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl ReferenceGrant {
    /// Whether objects of `group` and `kind` in `namespace` may refer to this Service of the grant's namespace.
    pub fn allows(&self, group: &str, kind: &str, namespace: &str, service: &str) -> bool {
        let from = |f: &From| f.group == group && f.kind == kind && f.namespace == namespace;
        let to = |t: &To| {
            matches!(t.group.as_str(), "" | "core")
                && t.kind == "Service"
                && t.name.as_deref().is_none_or(|name| name.is_empty() || name == service)
        };
        self.spec.from.iter().any(from) && self.spec.to.iter().any(to)
    }
}
