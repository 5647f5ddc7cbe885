//! `…/portforward`: connections of a client to ports of a pod.
//!
//! `kubectl` speaks SPDY/3.1 inside a WebSocket ([`tunnel`]); client libraries send each port's bytes in numbered
//! channels of a WebSocket ([`channels`]). Either way each connection is one [`forward`].

mod channels;
mod forward;
mod spdy;
mod tunnel;

use std::net::IpAddr;
use std::sync::Arc;

use http::header::UPGRADE;
use http::{Request, Response};
use hyper::body::Incoming;
use serde_json::Value;

use super::connect::kubelet;
use super::error::ApiError;
use super::kubelet::MIRROR;
use super::request::{Address, Query};
use super::respond::Body;
use super::websocket::{self, Handshake};
use super::{Api, meta};

/// SPDY frames in the WebSocket's messages, wherever those begin and end.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// In order of preference.
const PROTOCOLS: [&str; 3] = [TUNNEL, "v4.channel.k8s.io", "portforward.k8s.io"];

/// Checks what can be checked, then turns the connection into a WebSocket.
pub(super) fn upgrade(
    api: &Arc<Api>,
    address: &Address,
    query: &Query,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let pod = api
        .store
        .get("pods", &address.namespace, &address.name)
        .ok_or_else(|| ApiError::not_found("pods", &address.name))?;
    if meta::text(&pod, "/spec/nodeName").is_empty() {
        return Err(ApiError::bad_request(format!("pod {} does not have a host assigned", address.name)));
    }
    if !request.headers().contains_key(UPGRADE) {
        return Err(ApiError::bad_request("Upgrade request required"));
    }
    let handshake = Handshake::of(&request, &PROTOCOLS)?;
    // Inside a tunnel each stream names its port.
    let ports = match handshake.protocol {
        TUNNEL => None,
        _ => Some(channels::ports(query)?),
    };
    let target = Arc::new(forward::Target {
        kubelet: kubelet(api)?.clone(),
        pod: address.name.clone(),
        uid: meta::uid(&pod).to_owned(),
        mirrored_at: mirrored_at(&pod),
    });
    tokio::spawn(async move {
        let Some(socket) = websocket::accept(request).await else { return };
        let ended = match ports {
            None => tunnel::serve(socket, target).await,
            Some(ports) => channels::serve(socket, target, &ports).await,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "port-forward session ended early");
        }
    });
    handshake.response()
}

fn mirrored_at(pod: &Value) -> Option<IpAddr> {
    pod["metadata"]["annotations"].get(MIRROR)?;
    meta::text(pod, "/status/podIP").parse().ok()
}
