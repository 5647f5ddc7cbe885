//! One connection to a port of a pod, whatever carries its bytes to the client.

use std::io;
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

/// How many pieces of a stream wait in each direction.
pub(super) const QUEUE: usize = 16;

/// How long the port may take to accept.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a side that takes no bytes may hold up the others of its session, which share one connection.
const STALL: Duration = Duration::from_secs(120);

/// How much is read from a pod at once.
const PIECE: usize = 32 * 1024;

/// The pod.
pub(super) struct Target {
    pub(super) kubelet: Arc<dyn Kubelet>,
    pub(super) pod: String,
    pub(super) uid: String,
}

impl Target {
    /// Connects as a node's agent does: to the loopback of the pod, past whatever guards its address.
    async fn connect(&self, port: u16) -> Result<TcpStream, String> {
        let connected = timeout(CONNECT, self.kubelet.connect(&self.uid, port)).await;
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

/// What became of a piece of input.
pub(super) enum Delivered {
    Taken,
    /// The connection is over: the piece is dropped, as on a closed pipe.
    Closed,
    Stalled,
}

/// Waits until a connection has room for a piece.
pub(super) async fn deliver(input: &mpsc::Sender<Bytes>, data: Bytes) -> Delivered {
    match timeout(STALL, input.send(data)).await {
        Ok(Ok(())) => Delivered::Taken,
        Ok(Err(_)) => Delivered::Closed,
        Err(_) => Delivered::Stalled,
    }
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
