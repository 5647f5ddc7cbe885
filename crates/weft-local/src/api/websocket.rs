//! WebSockets between this server and its clients: how they are opened, and messages that begin with a channel's number.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::error::ApiError;
use super::respond::{self, Body};

pub(super) type Socket = WebSocketStream<TokioIo<Upgraded>>;
pub(super) type SocketError = tokio_tungstenite::tungstenite::Error;

/// The largest message that a client may send.
const MESSAGE_LIMIT: usize = 1024 * 1024;

/// A client that has gone without a word is noticed by this.
pub(super) const PING_EVERY: Duration = Duration::from_secs(20);

/// What a client asked for: the first protocol in this server's order that it offers.
pub(super) struct Handshake {
    pub(super) protocol: &'static str,
    key: String,
}

impl Handshake {
    pub(super) fn of(request: &Request<Incoming>, spoken: &[&'static str]) -> Result<Self, ApiError> {
        let header = |name: &http::HeaderName| {
            request
                .headers()
                .get_all(name)
                .iter()
                .filter_map(|value| value.to_str().ok())
                .collect::<Vec<_>>()
                .join(",")
        };
        if !header(&UPGRADE).eq_ignore_ascii_case("websocket") {
            // The older SPDY protocol ends here; kubectl 1.31 and newer begin with WebSockets.
            return Err(ApiError::bad_request(
                "Upgrade request required: to a WebSocket (kubectl 1.31 or newer)",
            ));
        }
        let offered = header(&SEC_WEBSOCKET_PROTOCOL);
        let offered: Vec<&str> = offered.split(',').map(str::trim).collect();
        let protocol = spoken.iter().find(|known| offered.contains(known)).ok_or_else(|| {
            ApiError::bad_request(format!(
                "none of the offered protocols {offered:?} is spoken: {spoken:?} are"
            ))
        })?;
        let key = header(&SEC_WEBSOCKET_KEY);
        if key.is_empty() {
            return Err(ApiError::bad_request("Sec-WebSocket-Key is missing"));
        }
        Ok(Self { protocol, key })
    }

    /// The answer after which the connection is a WebSocket.
    pub(super) fn response(&self) -> Result<Response<Body>, ApiError> {
        let mut response = Response::new(respond::full(""));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(self.protocol));
        let accept = HeaderValue::from_str(&derive_accept_key(self.key.as_bytes()))
            .map_err(|e| ApiError::internal(e.to_string()))?;
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        Ok(response)
    }
}

/// The WebSocket of a request, once its answer was sent; `None` if the client went first.
pub(super) async fn accept(request: Request<Incoming>) -> Option<Socket> {
    let upgraded = match hyper::upgrade::on(request).await {
        Ok(upgraded) => upgraded,
        Err(error) => {
            tracing::debug!(%error, "upgrade to a WebSocket failed");
            return None;
        }
    };
    let config =
        WebSocketConfig::default().max_message_size(Some(MESSAGE_LIMIT)).max_frame_size(Some(MESSAGE_LIMIT));
    Some(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await)
}

/// Data of a channel.
pub(super) fn message(channel: u8, data: &[u8]) -> Message {
    let mut bytes = BytesMut::with_capacity(data.len() + 1);
    bytes.extend_from_slice(&[channel]);
    bytes.extend_from_slice(data);
    Message::Binary(bytes.freeze())
}

/// The channel of a client's message, and its data.
pub(super) fn channel(message: &Bytes) -> Option<(u8, Bytes)> {
    Some((*message.first()?, message.slice(1..)))
}
