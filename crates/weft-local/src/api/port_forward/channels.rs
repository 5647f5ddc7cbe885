//! Ports as channels of a WebSocket: of the `n`th port that was asked for, channel `2n` has the data and channel `2n + 1`
//! the error. Each begins with the port's number. A connection is made to every port at once, and there is one each.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::forward::{self, Delivered, INPUT, Output, QUEUE, Target};
use crate::api::error::ApiError;
use crate::api::request::Query;
use crate::api::websocket::{PING_EVERY, Socket, SocketError, channel, message};

/// The numbers of channels are bytes.
const PORTS: usize = 64;

/// The ports that a request names.
pub(super) fn ports(query: &Query) -> Result<Vec<u16>, ApiError> {
    let mut ports = Vec::new();
    for text in query.all("ports").iter().flat_map(|list| list.split(',')) {
        match text.trim().parse() {
            Ok(0) | Err(_) => {
                return Err(ApiError::bad_request(format!("unable to parse {text:?} as a port")));
            }
            Ok(port) => ports.push(port),
        }
    }
    match ports.len() {
        0 => Err(ApiError::bad_request("query parameter \"ports\" is required")),
        1..=PORTS => Ok(ports),
        many => Err(ApiError::bad_request(format!("{many} ports are too many: {PORTS} may be forwarded"))),
    }
}

/// Serves a session until every connection is over, or the client goes.
pub(super) async fn serve(socket: Socket, target: Arc<Target>, ports: &[u16]) -> Result<(), SocketError> {
    let (mut sink, stream) = socket.split();
    let (output, mut queued) = mpsc::channel::<(u8, Output)>(QUEUE);
    let (mut inputs, mut forwards) = (Vec::new(), JoinSet::new());
    for (data, &port) in (0_u8..).step_by(2).zip(ports) {
        for channel in [data, data + 1] {
            forward::send(&mut sink, message(channel, &port.to_le_bytes())).await?;
        }
        let (input, from_client) = mpsc::channel(INPUT);
        inputs.push(input);
        let (target, output) = (target.clone(), output.clone());
        forwards.spawn(async move {
            forward::run(&target, port, from_client, output, move |what| (data, what)).await;
        });
    }
    // Dropped here: the queue ends with the last connection.
    let stall = output.downgrade();
    drop(output);
    let write = async {
        let mut ping = tokio::time::interval(PING_EVERY);
        loop {
            let next = tokio::select! {
                queued = queued.recv() => match queued {
                    Some((data, Output::Data(bytes))) => message(data, &bytes),
                    Some((data, Output::Failed(why))) => message(data + 1, why.as_bytes()),
                    // There is no word for the end of one connection.
                    Some((_, Output::Ended)) => continue,
                    None => return Ok(()),
                },
                _ = ping.tick() => Message::Ping(Bytes::new()),
            };
            forward::send(&mut sink, next).await?;
        }
    };
    let ended = tokio::select! {
        written = write => written.map(|()| (CloseCode::Normal, "")),
        read = read(stream, &inputs, &stall) => read,
    };
    let (code, reason) = ended?;
    forward::close(&mut sink, code, reason).await;
    Ok(())
}

/// Hands the client's bytes to the connections; returns how the session is to be closed.
async fn read(
    mut stream: impl Stream<Item = Result<Message, SocketError>> + Unpin,
    inputs: &[mpsc::Sender<Bytes>],
    output: &mpsc::WeakSender<(u8, Output)>,
) -> Result<(CloseCode, &'static str), SocketError> {
    while let Some(received) = stream.next().await {
        let bytes = match received? {
            Message::Binary(bytes) => bytes,
            Message::Close(_) => break,
            Message::Text(_) => return Ok((CloseCode::Unsupported, "channels hold binary messages")),
            _ => continue,
        };
        let Some((channel, data)) = channel(&bytes) else { continue };
        let Some(input) = inputs.get(usize::from(channel / 2)) else {
            return Ok((CloseCode::Protocol, "there is no such channel"));
        };
        // Errors are this side's to send.
        if channel % 2 == 1 || data.is_empty() {
            continue;
        }
        if let Delivered::Stalled = forward::deliver(input, &data).await {
            if let Some(output) = output.upgrade() {
                let _ = output.send((channel, Output::Failed(forward::stalled()))).await;
            }
            return Ok((CloseCode::Away, "a pod reads nothing"));
        }
    }
    Ok((CloseCode::Normal, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_and_wanted() {
        let of = |text: &str| ports(&Query::parse(text)).map_err(|error| error.to_string());
        assert_eq!(of("ports=80&ports=8080,9").unwrap(), [80, 8080, 9]);
        for (query, why) in [
            ("", "required"),
            ("ports=", "unable to parse \"\" as a port"),
            ("ports=http", "unable to parse \"http\""),
            ("ports=0", "unable to parse \"0\""),
            ("ports=65536", "unable to parse \"65536\""),
        ] {
            let refused = of(query).unwrap_err();
            assert!(refused.contains(why), "{query}: {refused}");
        }
        assert!(of(&["ports=1"; 65].join("&")).unwrap_err().contains("too many"));
    }
}
