//! HTTPRoute, of Linkerd's group and of the Gateway API: one shape, two kinds.

use crate::{
    kind::Kind,
    meta::{Meta, ObjectName, nullable},
};
use serde::Deserialize;

use super::reference::{GATEWAY_GROUP, POLICY_GROUP};

/// Equality leaves out the status: what controllers wrote there changes nothing about the route.
#[derive(Clone, Debug, Deserialize)]
pub struct HttpRoute {
    pub metadata: Meta,
    pub spec: HttpRouteSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub status: HttpRouteStatus,
}

impl PartialEq for HttpRoute {
    fn eq(&self, other: &Self) -> bool {
        self.metadata == other.metadata && self.spec == other.spec
    }
}

/// One entry per parent and controller, as they stand: most are other controllers'.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HttpRouteStatus {
    #[serde(deserialize_with = "nullable")]
    pub parents: Vec<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteSpec {
    #[serde(deserialize_with = "nullable")]
    pub parent_refs: Vec<ParentRef>,
    #[serde(deserialize_with = "nullable")]
    pub hostnames: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub rules: Vec<HttpRouteRule>,
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
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteRule {
    #[serde(deserialize_with = "nullable")]
    pub matches: Vec<HttpRouteMatch>,
    #[serde(deserialize_with = "nullable")]
    pub filters: Vec<HttpRouteFilter>,
    #[serde(deserialize_with = "nullable")]
    pub backend_refs: Vec<BackendRef>,
    pub timeouts: Option<HttpRouteTimeouts>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteMatch {
    pub path: Option<ValueMatch>,
    #[serde(deserialize_with = "nullable")]
    pub headers: Vec<NamedMatch>,
    #[serde(deserialize_with = "nullable")]
    pub query_params: Vec<NamedMatch>,
    pub method: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ValueMatch {
    pub r#type: Option<String>,
    pub value: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NamedMatch {
    pub r#type: Option<String>,
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteFilter {
    pub r#type: String,
    pub request_header_modifier: Option<HeaderModifier>,
    pub response_header_modifier: Option<HeaderModifier>,
    pub request_redirect: Option<RequestRedirect>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HeaderModifier {
    #[serde(deserialize_with = "nullable")]
    pub set: Vec<Header>,
    #[serde(deserialize_with = "nullable")]
    pub add: Vec<Header>,
    #[serde(deserialize_with = "nullable")]
    pub remove: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Header {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestRedirect {
    pub scheme: Option<String>,
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
    pub port: Option<u16>,
    pub status_code: Option<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathModifier {
    pub r#type: String,
    pub replace_full_path: Option<String>,
    pub replace_prefix_match: Option<String>,
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
    pub filters: Vec<HttpRouteFilter>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteTimeouts {
    pub request: Option<String>,
    pub backend_request: Option<String>,
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

    pub fn resolve(&self, local: &str) -> ObjectName {
        ObjectName::new(self.namespace.as_deref().unwrap_or(local), &self.name)
    }
}

/// HTTPRoute of `policy.linkerd.io`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct PolicyHttpRoute(pub HttpRoute);

/// HTTPRoute of `gateway.networking.k8s.io`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct GatewayHttpRoute(pub HttpRoute);

impl Kind for PolicyHttpRoute {
    const GROUP: &'static str = POLICY_GROUP;
    const VERSION: &'static str = "v1beta3";
    const KIND: &'static str = "HTTPRoute";
    const PLURAL: &'static str = "httproutes";
    fn meta(&self) -> &Meta {
        &self.0.metadata
    }
}

impl Kind for GatewayHttpRoute {
    const GROUP: &'static str = GATEWAY_GROUP;
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "HTTPRoute";
    const PLURAL: &'static str = "httproutes";
    fn meta(&self) -> &Meta {
        &self.0.metadata
    }
}
