//! Views as JSON, for people and tools that diagnose. Model types have no JSON form of their own.

use crate::view::{endpoints::EndpointsView, profile::ProfileView};
use serde_json::{Value, json};
use weft_model::{
    identity::PeerIdentity,
    inbound::{Protocol, ServerPolicy},
    outbound::{Endpoint, Endpoints, ProtocolHint},
};

pub(super) fn endpoints(view: &EndpointsView) -> Value {
    match view {
        EndpointsView::ExternalName => json!({"exists": true, "externalName": true, "endpoints": []}),
        EndpointsView::Endpoints(Endpoints::NoSuchService) => json!({"exists": false, "endpoints": []}),
        EndpointsView::Endpoints(Endpoints::Known(all)) => {
            json!({"exists": true, "endpoints": all.iter().map(|e| endpoint(e)).collect::<Vec<_>>()})
        }
    }
}

pub(super) fn profile(view: &ProfileView) -> Value {
    match view {
        ProfileView::NoSuchName => json!({"exists": false}),
        ProfileView::Profile(profile) => json!({
            "exists": true,
            "name": profile.fully_qualified_name,
            "opaque": profile.opaque,
            "parent": profile.parent.as_ref().map(ToString::to_string),
            "endpoint": profile.endpoint.as_deref().map(endpoint),
        }),
    }
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let (state, identity) = match &endpoint.identity {
        PeerIdentity::Meshed { id, .. } => ("meshed", Some(id.to_string())),
        PeerIdentity::Unmeshed => ("unmeshed", None),
        PeerIdentity::Unknown(_) => ("unknown", None),
    };
    json!({
        "addr": endpoint.addr.to_string(),
        "state": state,
        "identity": identity,
        "protocol": match endpoint.hint {
            ProtocolHint::Unknown => "unknown",
            ProtocolHint::H2 => "h2",
            ProtocolHint::Opaque => "opaque",
        },
        "transportPort": endpoint.transport_port,
        "authorityOverride": endpoint.authority_override,
        "weight": endpoint.weight,
        "labels": *endpoint.labels,
        "resource": endpoint.meta.as_ref().map(ToString::to_string),
    })
}

pub(super) fn policy(policy: &ServerPolicy) -> Value {
    let (protocol, routes) = match &policy.protocol {
        Protocol::Detect { http, .. } => ("detect", http.routes.as_slice()),
        Protocol::Http1(http) => ("http/1", http.routes.as_slice()),
        Protocol::Http2(http) => ("http/2", http.routes.as_slice()),
        Protocol::Grpc(http) => ("grpc", http.routes.as_slice()),
        Protocol::Opaque => ("opaque", &[][..]),
        Protocol::Tls => ("tls", &[][..]),
        Protocol::Unreadable(_) => ("unreadable", &[][..]),
    };
    json!({
        "server": policy.meta.to_string(),
        "protocol": protocol,
        "audit": policy.audit,
        "authorizations": policy.authorizations.iter().map(|a| a.meta.to_string()).collect::<Vec<_>>(),
        "routes": routes.iter().map(|route| json!({
            "route": route.meta.to_string(),
            "rules": route.rules.len(),
            "authorizations": route.authorizations.iter().map(|a| a.meta.to_string()).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}
