//! Policies and profiles that are refused when somebody writes them, by the rules with which they would be ignored later.
//!
//! What depends on other objects is for statuses: those may come in any order. Routes of the Gateway API may be meant for
//! other controllers, and are refused only for what no reading of them could mend.

#[cfg(test)]
mod tests;

use crate::{
    index::reader::{RouteRef, Rules},
    view::routes::{ParentKind, flaw},
};
use serde_json::{Value, json};
use weft_kube::{
    kind::Kind,
    policy::{
        authorization::{AuthorizationPolicy, IdentityDomain, MeshTlsAuthentication, NetworkAuthentication},
        egress_network::EgressNetwork,
        grpc_route::GrpcRoute,
        http_route::{GatewayHttpRoute, PolicyHttpRoute},
        rate_limit::HttpLocalRateLimitPolicy,
        reference::{GATEWAY_GROUP, POLICY_GROUP},
        route::{BackendRef, TcpRoute, TlsRoute},
        server::Server,
        server_authorization::ServerAuthorization,
        service_profile::ServiceProfile,
    },
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// With what people should know all the same.
    Allowed(Vec<String>),
    /// The field and the reason.
    Denied(String),
}

impl Verdict {
    /// As an AdmissionReview has it.
    pub fn response(&self, uid: &str) -> Value {
        match self {
            Verdict::Allowed(warnings) if warnings.is_empty() => json!({"uid": uid, "allowed": true}),
            Verdict::Allowed(warnings) => json!({"uid": uid, "allowed": true, "warnings": warnings}),
            Verdict::Denied(why) => json!({"uid": uid, "allowed": false,
                "status": {"code": 400, "reason": "BadRequest", "message": why}}),
        }
    }
}

/// `None` for an object that is not checked: of a foreign kind, or gone.
pub fn check(group: &str, kind: &str, object: &Value, domain: IdentityDomain<'_>) -> Option<Verdict> {
    if object.is_null() {
        return None;
    }
    Some(match (group, kind) {
        (POLICY_GROUP, Server::KIND) => strict(object, Server::flaw),
        (POLICY_GROUP, ServerAuthorization::KIND) => strict(object, |o: &ServerAuthorization| o.flaw(domain)),
        (POLICY_GROUP, AuthorizationPolicy::KIND) => strict(object, AuthorizationPolicy::flaw),
        (POLICY_GROUP, MeshTlsAuthentication::KIND) => strict(object, MeshTlsAuthentication::flaw),
        (POLICY_GROUP, NetworkAuthentication::KIND) => strict(object, NetworkAuthentication::flaw),
        (POLICY_GROUP, HttpLocalRateLimitPolicy::KIND) => strict(object, HttpLocalRateLimitPolicy::flaw),
        (POLICY_GROUP, EgressNetwork::KIND) => strict(object, EgressNetwork::flaw),
        (POLICY_GROUP, PolicyHttpRoute::KIND) => {
            strict(object, |route: &PolicyHttpRoute| own_route(&RouteRef::from(route)))
        }
        ("linkerd.io", ServiceProfile::KIND) => strict(object, ServiceProfile::flaw),
        (GATEWAY_GROUP, GatewayHttpRoute::KIND) => {
            lenient(object, |route: &GatewayHttpRoute| shared_route(&RouteRef::from(route)))
        }
        (GATEWAY_GROUP, GrpcRoute::KIND) => {
            lenient(object, |route: &GrpcRoute| shared_route(&RouteRef::from(route)))
        }
        (GATEWAY_GROUP, TlsRoute::KIND) => {
            lenient(object, |route: &TlsRoute| shared_route(&RouteRef::from(route)))
        }
        (GATEWAY_GROUP, TcpRoute::KIND) => {
            lenient(object, |route: &TcpRoute| shared_route(&RouteRef::from(route)))
        }
        _ => return None,
    })
}

fn strict<K: Kind>(object: &Value, flaw: impl Fn(&K) -> Option<String>) -> Verdict {
    match K::deserialize(object) {
        Err(error) => Verdict::Denied(format!("it cannot be read: {error}")),
        Ok(object) => flaw(&object).map_or(Verdict::Allowed(Vec::new()), Verdict::Denied),
    }
}

fn lenient<K: Kind>(object: &Value, judge: impl Fn(&K) -> Verdict) -> Verdict {
    match K::deserialize(object) {
        Err(error) => {
            Verdict::Allowed(vec![format!("the mesh cannot read this route and ignores it: {error}")])
        }
        Ok(object) => judge(&object),
    }
}

fn parents(route: &RouteRef<'_>) -> Vec<ParentKind> {
    route.parents.iter().filter_map(ParentKind::of).collect()
}

/// A route of our own group. With a parent that we do not know it has no effect, and no rules to break.
fn own_route(route: &RouteRef<'_>) -> Option<String> {
    let portless = route
        .parents
        .iter()
        .position(|p| ParentKind::of(p) == Some(ParentKind::EgressNetwork) && p.port.is_none());
    if let Some(at) = portless {
        return Some(format!("spec.parentRefs[{at}].port: an EgressNetwork as parent needs a port"));
    }
    parents(route).into_iter().find_map(|kind| flaw(route, kind))
}

fn shared_route(route: &RouteRef<'_>) -> Verdict {
    let kinds = parents(route);
    if kinds.is_empty() {
        return Verdict::Allowed(Vec::new());
    }
    if let Some(field) = portless_backend(route) {
        return Verdict::Denied(format!("{field}.port: a Service as backend needs a port"));
    }
    match kinds.into_iter().find_map(|kind| flaw(route, kind)) {
        Some(why) if matches!(route.rules, Rules::Bytes(_)) => Verdict::Denied(why),
        Some(why) => Verdict::Allowed(vec![format!("the mesh does not serve this route: {why}")]),
        None => Verdict::Allowed(Vec::new()),
    }
}

fn portless_backend(route: &RouteRef<'_>) -> Option<String> {
    let all: Vec<&[BackendRef]> = match route.rules {
        Rules::Http(rules) => rules.iter().map(|r| r.backend_refs.as_slice()).collect(),
        Rules::Grpc(rules) => rules.iter().map(|r| r.backend_refs.as_slice()).collect(),
        Rules::Bytes(rules) => rules.iter().map(|r| r.backend_refs.as_slice()).collect(),
    };
    all.iter().enumerate().find_map(|(rule, backends)| {
        let at = backends.iter().position(|b| b.is_service() && b.port.is_none())?;
        Some(format!("spec.rules[{rule}].backendRefs[{at}]"))
    })
}
