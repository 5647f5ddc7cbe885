//! Questions about names that are not the mesh's, passed to the outside's name servers through a socket that was
//! opened there.

use hickory_proto::op::Message;
use parking_lot::Mutex;
use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::UdpSocket, sync::oneshot, time::timeout};

/// How long one server may take; resolvers themselves give up after five seconds.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Answers under way. Beyond, nothing is asked.
const WAITING: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) struct Forwarder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: UdpSocket,
    servers: Vec<SocketAddr>,
    /// By the number under which the question was sent on.
    waiting: Mutex<HashMap<u16, Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    server: SocketAddr,
    query: Message,
    answer: oneshot::Sender<Vec<u8>>,
}

impl Forwarder {
    /// `servers` are tried in order.
    pub(crate) fn start(socket: UdpSocket, servers: Vec<SocketAddr>) -> Self {
        let shared = Arc::new(Shared { socket, servers, waiting: Mutex::default() });
        let receiver = Arc::downgrade(&shared);
        tokio::spawn(async move {
            let mut buffer = vec![0; 65_535];
            // Ends when the last forwarder is gone; a question is what could still wait.
            while let Some(shared) = receiver.upgrade() {
                match timeout(Duration::from_secs(1), shared.socket.recv_from(&mut buffer)).await {
                    Ok(Ok((length, from))) => shared.take(&buffer[..length], from),
                    Ok(Err(error)) => tracing::debug!(%error, "DNS of the outside"),
                    Err(_) => {}
                }
            }
        });
        Forwarder(shared)
    }

    /// The first answer of any server.
    pub(crate) async fn ask(&self, bytes: &[u8], query: &Message) -> Option<Vec<u8>> {
        for server in &self.0.servers {
            let (number, answer) = self.0.enlist(*server, query)?;
            let mut question = bytes.to_vec();
            question[..2].copy_from_slice(&number.to_be_bytes());
            let answer = match self.0.socket.send_to(&question, server).await {
                Ok(_) => timeout(PATIENCE, answer).await.ok().and_then(Result::ok),
                Err(error) => {
                    tracing::debug!(%error, %server, "DNS of the outside");
                    None
                }
            };
            self.0.waiting.lock().remove(&number);
            if let Some(mut answer) = answer {
                answer[..2].copy_from_slice(&query.metadata.id.to_be_bytes());
                return Some(answer);
            }
        }
        None
    }
}

impl Shared {
    /// A number that nobody waits under; random, so that answers cannot be guessed.
    fn enlist(&self, server: SocketAddr, query: &Message) -> Option<(u16, oneshot::Receiver<Vec<u8>>)> {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING {
            return None;
        }
        let number = loop {
            let number: u16 = rand::random();
            if !waiting.contains_key(&number) {
                break number;
            }
        };
        let (to, from) = oneshot::channel();
        waiting.insert(number, Waiting { server, query: query.clone(), answer: to });
        Some((number, from))
    }

    /// Only an answer of the server that was asked, to the question that was asked, counts.
    fn take(&self, bytes: &[u8], from: SocketAddr) {
        let Ok(answer) = Message::from_vec(bytes) else { return };
        let mut waiting = self.waiting.lock();
        let asked = waiting.get(&answer.metadata.id);
        if asked.is_some_and(|w| w.server == from && w.query.queries == answer.queries)
            && let Some(asked) = waiting.remove(&answer.metadata.id)
        {
            let _ = asked.answer.send(bytes.to_vec());
        }
    }
}
