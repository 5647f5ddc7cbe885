//! Services and namespaces whose endpoints must have an identity: traffic to them fails rather than go in clear.
//!
//! `linkerd2-proxy-api` has no word for it. An endpoint without an identity is given one that nobody has, so that every
//! proxy fails in the handshake; weft's know it and do not even dial.

use super::service_settings::boolean;
use crate::index::reader::Reader;
use std::sync::Arc;
use weft_kube::{core::service::Service, meta::Meta};
use weft_model::{
    identity::{PeerIdentity, Requirement},
    outbound::{Endpoint, Http2Client, ProtocolHint},
};

/// On a Service, or on a namespace for its Services and pods. The Service's own counts for more.
pub const REQUIRE: &str = "weft.dev/require-identity";

/// What cannot be read requires it: whoever wrote it did not mean nothing.
fn requires(meta: &Meta) -> Option<bool> {
    meta.annotation(REQUIRE).map(|text| boolean(text).unwrap_or(true))
}

pub fn of_namespace(reader: &Reader<'_>, namespace: &str) -> Option<Requirement> {
    let required = requires(&reader.namespace(namespace)?.metadata)?;
    required.then(|| Requirement::Namespace(namespace.to_owned()))
}

pub fn of_service(reader: &Reader<'_>, service: &Service) -> Option<Requirement> {
    let meta = &service.metadata;
    match requires(meta) {
        Some(true) => {
            Some(Requirement::Service { namespace: meta.namespace.clone(), name: meta.name.clone() })
        }
        Some(false) => None,
        None => of_namespace(reader, &meta.namespace),
    }
}

/// The endpoint as clients may use it.
pub fn held_to(requirement: Option<&Requirement>, endpoint: Endpoint) -> Endpoint {
    let (Some(requirement), PeerIdentity::Unmeshed | PeerIdentity::Unknown(_)) =
        (requirement, &endpoint.identity)
    else {
        return endpoint;
    };
    let id = requirement.unmet();
    Endpoint {
        identity: PeerIdentity::Meshed { server_name: id.clone(), id },
        hint: ProtocolHint::Unknown,
        transport_port: None,
        http2: Http2Client::default(),
        labels: Arc::clone(&endpoint.labels),
        ..endpoint
    }
}
