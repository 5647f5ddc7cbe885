//! GRPCRoute of the Gateway API.

use super::{
    http_route::{HttpRouteFilter, NamedMatch},
    reference::GATEWAY_GROUP,
    route::{BackendRef, route_kind},
};
use crate::meta::nullable;
use serde::Deserialize;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteRule {
    #[serde(deserialize_with = "nullable")]
    pub matches: Vec<GrpcRouteMatch>,
    #[serde(deserialize_with = "nullable")]
    pub filters: Vec<HttpRouteFilter>,
    #[serde(deserialize_with = "nullable")]
    pub backend_refs: Vec<BackendRef>,
    pub name: Option<String>,
    /// Fields that this build does not know.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GrpcRouteMatch {
    pub method: Option<MethodMatch>,
    #[serde(deserialize_with = "nullable")]
    pub headers: Vec<NamedMatch>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MethodMatch {
    pub r#type: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub service: String,
    #[serde(deserialize_with = "nullable")]
    pub method: String,
}

route_kind!(
    /// gRPC calls.
    GrpcRoute, GATEWAY_GROUP, "v1", "GRPCRoute", "grpcroutes", GrpcRouteRule
);
