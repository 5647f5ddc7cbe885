//! What all routes have in common: parents, hosts, rules, backends and the status that controllers share.

use super::reference::{GATEWAY_GROUP, POLICY_GROUP};
use crate::meta::{Meta, ObjectName, nullable};
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(bound(deserialize = "R: Deserialize<'de> + Default"))]
pub struct Route<R> {
    pub metadata: Meta,
    pub spec: RouteSpec<R>,
    #[serde(default, deserialize_with = "nullable")]
    pub status: RouteStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "R: Deserialize<'de> + Default"))]
pub struct RouteSpec<R> {
    #[serde(deserialize_with = "nullable")]
    pub parent_refs: Vec<ParentRef>,
    /// TCPRoutes have none.
    #[serde(deserialize_with = "nullable")]
    pub hostnames: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub rules: Vec<R>,
}

/// One entry per parent and controller, as they stand: most are other controllers'.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RouteStatus {
    #[serde(deserialize_with = "nullable")]
    pub parents: Vec<serde_json::Value>,
}

/// What controllers wrote there changes nothing about the route.
impl PartialEq for RouteStatus {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentRef {
    pub group: Option<String>,
    pub kind: Option<String>,
    pub namespace: Option<String>,
    pub name: String,
    pub section_name: Option<String>,
    pub port: Option<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BackendRef {
    pub group: Option<String>,
    pub kind: Option<String>,
    pub name: String,
    pub namespace: Option<String>,
    pub port: Option<u16>,
    pub weight: Option<u32>,
    #[serde(deserialize_with = "nullable")]
    pub filters: Vec<super::http_route::HttpRouteFilter>,
}

/// A rule of a TLSRoute or TCPRoute.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ByteRule {
    #[serde(deserialize_with = "nullable")]
    pub backend_refs: Vec<BackendRef>,
}

impl ParentRef {
    /// Whether it names this kind. A parent without group and kind is a Gateway.
    pub fn is(&self, group: &str, kind: &str) -> bool {
        let own = match self.group.as_deref() {
            None => GATEWAY_GROUP,
            Some("core") => "",
            Some(group) => group,
        };
        own == group && self.kind.as_deref().unwrap_or("Gateway") == kind
    }

    pub fn resolve(&self, local: &str) -> ObjectName {
        ObjectName::new(self.namespace.as_deref().unwrap_or(local), &self.name)
    }
}

impl BackendRef {
    pub fn is_service(&self) -> bool {
        matches!(self.group.as_deref(), None | Some("" | "core"))
            && self.kind.as_deref().is_none_or(|k| k == "Service")
    }

    pub fn is_egress_network(&self) -> bool {
        self.group.as_deref() == Some(POLICY_GROUP) && self.kind.as_deref() == Some("EgressNetwork")
    }

    pub fn resolve(&self, local: &str) -> ObjectName {
        ObjectName::new(self.namespace.as_deref().unwrap_or(local), &self.name)
    }
}

/// A kind of route: its name, group, version, kind, plural and the type of its rules.
macro_rules! route_kind {
    ($(#[$doc:meta])* $name:ident, $group:expr, $version:literal, $kind:literal, $plural:literal, $rule:ty) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub crate::policy::route::Route<$rule>);

        impl crate::kind::Kind for $name {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = $version;
            const KIND: &'static str = $kind;
            const PLURAL: &'static str = $plural;
            fn meta(&self) -> &crate::meta::Meta {
                &self.0.metadata
            }
        }
    };
}
pub(super) use route_kind;

route_kind!(
    /// Connections by the server names of their handshakes.
    TlsRoute, GATEWAY_GROUP, "v1alpha2", "TLSRoute", "tlsroutes", ByteRule
);
route_kind!(
    /// Connections of any kind.
    TcpRoute, GATEWAY_GROUP, "v1alpha2", "TCPRoute", "tcproutes", ByteRule
);
