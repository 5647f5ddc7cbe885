//! HTTPRoute, of Linkerd's group and of the Gateway API: one shape, two kinds.

use super::{
    reference::{GATEWAY_GROUP, POLICY_GROUP},
    route::{BackendRef, route_kind},
};
use crate::meta::nullable;
use serde::Deserialize;

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
    pub name: Option<String>,
    /// Fields that this build does not know.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
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
    pub url_rewrite: Option<UrlRewrite>,
    pub request_mirror: Option<RequestMirror>,
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

/// Replaces host or path on the way to the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UrlRewrite {
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
}

/// Sends a copy elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestMirror {
    pub backend_ref: BackendRef,
    pub percent: Option<u32>,
    pub fraction: Option<Fraction>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Fraction {
    pub numerator: u32,
    pub denominator: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteTimeouts {
    pub request: Option<String>,
    pub backend_request: Option<String>,
}

route_kind!(
    /// HTTPRoute of `policy.linkerd.io`.
    PolicyHttpRoute, POLICY_GROUP, "v1beta3", "HTTPRoute", "httproutes", HttpRouteRule
);
route_kind!(
    /// HTTPRoute of `gateway.networking.k8s.io`.
    GatewayHttpRoute, GATEWAY_GROUP, "v1", "HTTPRoute", "httproutes", HttpRouteRule
);
