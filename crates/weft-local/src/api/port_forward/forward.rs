//! One connection to a port of a pod, whatever carries its bytes to the client.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, SinkExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::api::kubelet::Kubelet;
use crate::api::websocket::SocketError;

/// How many pieces wait for the client.
pub(super) const QUEUE: usize = 16;

/// How many pieces of a client's stream wait for the pod: each stream has a queue of its own, and a session many streams.
pub(super) const INPUT: usize = 4;

/// How long the port may take to accept.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a side that takes no bytes may hold up the others of its session, which share one connection.
const STALL: Duration = Duration::from_secs(120);

/// How much is read from a pod at once, and the most that is written to it at once.
const PIECE: usize = 32 * 1024;

/// The pod.
pub(super) struct Target {
    pub(super) kubelet: Arc<dyn Kubelet>,
    pub(super) pod: String,
    pub(super) uid: String,
    /// Where the pod is that only stands for something on the node: no sandbox of the node agent's holds its ports.
    pub(super) mirrored_at: Option<IpAddr>,
}

impl Target {
    /// Connects as a node's agent does: to the loopback of the pod, past whatever guards its address.
    async fn connect(&self, port: u16) -> Result<TcpStream, String> {
        let connecting = match self.mirrored_at {
            Some(ip) => self.kubelet.dial(ip, port),
            None => self.kubelet.connect(&self.uid, port),
        };
        let connected = timeout(CONNECT, connecting).await;
        let error = match connected {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        // The words by which clients tell a port that nobody listens on from a pod that is gone.
        let why = match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            io::ErrorKind::TimedOut => "connection timed out".to_owned(),
            _ => error.to_string(),
        };
        Err(format!(
            "error forwarding port {port} to pod {}, uid {}: failed to connect to localhost:{port} inside the pod: \
             dial tcp4 127.0.0.1:{port}: connect: {why}",
            self.pod, self.uid
        ))
    }
}

/// What a connection has for the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Output {
    Data(Bytes),
    /// It was not made, or not kept.
    Failed(String),
    /// Nothing comes any more.
    Ended,
}

/// Carries bytes until the pod has closed the connection. The client's end of input is the end of `input`.
pub(super) async fn run<T>(
    target: &Target,
    port: u16,
    mut input: mpsc::Receiver<Bytes>,
    output: mpsc::Sender<T>,
    say: impl Fn(Output) -> T,
) {
    // The session may be over: then nobody is left to be told.
    match target.connect(port).await {
        Ok(stream) => {
            let (mut from_pod, mut to_pod) = stream.into_split();
            // It owns its ends: once the pod takes no more, the client's bytes are refused rather than kept.
            let up = async move {
                while let Some(data) = input.recv().await {
                    to_pod.write_all(&data).await?;
                }
                to_pod.shutdown().await
            };
            let down = async {
                let mut buffer = vec![0; PIECE];
                while let Ok(n @ 1..) = from_pod.read(&mut buffer).await {
                    if output.send(say(Output::Data(Bytes::copy_from_slice(&buffer[..n])))).await.is_err() {
                        return;
                    }
                }
            };
            tokio::pin!(up, down);
            tokio::select! {
                () = &mut down => {}
                // The client has ended its half, or the pod takes no more; what it still says is wanted.
                _ = &mut up => down.await,
            }
        }
        Err(why) => drop(output.send(say(Output::Failed(why))).await),
    }
    let _ = output.send(say(Output::Ended)).await;
}

/// What became of input.
pub(super) enum Delivered {
    Taken,
    /// The connection is over: what is left is dropped, as on a closed pipe.
    Closed,
    Stalled,
}

/// Waits until a connection has room for what a client has sent.
///
/// Small copies are what waits: a slice of one byte would keep the whole message that it came in, which may have a megabyte.
pub(super) async fn deliver(input: &mpsc::Sender<Bytes>, data: &[u8]) -> Delivered {
    for piece in data.chunks(PIECE) {
        match timeout(STALL, input.send(Bytes::copy_from_slice(piece))).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Delivered::Closed,
            Err(_) => return Delivered::Stalled,
        }
    }
    Delivered::Taken
}

/// Keeps what a client has sent for a connection that is not made yet; false if that is too much.
pub(super) fn keep(input: &mpsc::Sender<Bytes>, data: &[u8]) -> bool {
    data.chunks(PIECE).all(|piece| input.try_send(Bytes::copy_from_slice(piece)).is_ok())
}

/// Why a connection is ended that takes nothing.
pub(super) fn stalled() -> String {
    format!("the pod has read nothing for {} s, which held up the other connections", STALL.as_secs())
}

/// Sends a message to a client that reads.
pub(super) async fn send(
    sink: &mut (impl Sink<Message, Error = SocketError> + Unpin),
    message: Message,
) -> Result<(), SocketError> {
    match timeout(STALL, sink.send(message)).await {
        Ok(sent) => sent,
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
    }
}

/// Tells the client that the session is over. One that no longer reads is not waited for.
pub(super) async fn close(
    sink: &mut (impl Sink<Message, Error = SocketError> + Unpin),
    code: CloseCode,
    reason: &str,
) {
    let frame = CloseFrame { code, reason: reason.into() };
    let _ = timeout(Duration::from_secs(5), sink.send(Message::Close(Some(frame)))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a queue holds does not depend on how a client cuts its bytes, and does not keep its messages alive.
    #[tokio::test]
    async fn what_waits_is_small_and_owned() {
        let message = Bytes::from(vec![7; INPUT * PIECE]);
        let (input, mut waiting) = mpsc::channel(INPUT);
        assert!(matches!(deliver(&input, &message).await, Delivered::Taken));
        assert!(!keep(&input, &message[..1]), "the queue is full");
        while let Ok(piece) = waiting.try_recv() {
            assert!(piece.len() <= PIECE && piece.is_unique());
        }
        assert!(keep(&input, &message[..1]) && !keep(&input, &message));
        drop(waiting);
        assert!(matches!(deliver(&input, &message).await, Delivered::Closed));
    }
}
