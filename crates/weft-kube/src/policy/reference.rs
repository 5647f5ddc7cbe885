//! References from one object to another.

use crate::meta::{ObjectName, nullable};
use serde::Deserialize;

pub const POLICY_GROUP: &str = "policy.linkerd.io";
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ObjectRef {
    #[serde(deserialize_with = "nullable")]
    pub group: String,
    pub kind: String,
    pub name: String,
    pub namespace: Option<String>,
}

impl ObjectRef {
    /// Whether it names this kind; the core group may be written `core`.
    pub fn is(&self, group: &str, kind: &str) -> bool {
        let own = if self.group == "core" { "" } else { &self.group };
        own.eq_ignore_ascii_case(group) && self.kind.eq_ignore_ascii_case(kind)
    }

    /// The object, in `local` unless the reference says otherwise.
    pub fn resolve(&self, local: &str) -> ObjectName {
        ObjectName::new(self.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or(local), &self.name)
    }
}
