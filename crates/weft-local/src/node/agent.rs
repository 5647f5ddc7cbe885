//! The node agent as a process: what the supervisor tells it, and how it is kept.

use super::Node;
use crate::{
    entry,
    keeper::{self, Keeper, Orders},
    network::Network,
    rights::Rights,
    runtime::{Runtime, client::RuntimeClient},
    supervisor,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::net::UnixStream;
use weft_fault::{Code, Fault, Phase};

const WHAT: &str = "the node agent";

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Of the API, as this machine's inside reaches it. Holds a key: never printed.
    pub(crate) kubeconfig: String,
    pub(crate) network: Network,
    pub(crate) rights: Rights,
    /// Holds `pods` and `stage`.
    pub(crate) state_dir: PathBuf,
    /// The PATH that containers inherit.
    pub(crate) path: Option<String>,
    /// The API server has a controller that gives up nodes which do not say that they are well.
    pub(crate) report: bool,
    /// Since when there is this node.
    pub(crate) since: Timestamp,
}

/// Who keeps an agent running, on a runtime that stays.
pub(crate) fn keeper(mesh: &str, start: Start, runtime: Arc<Runtime>) -> Keeper {
    Keeper {
        what: WHAT,
        role: entry::AGENT,
        mesh: mesh.to_owned(),
        log: start.state_dir.join("agent.log"),
        // It has a deadline of its own, a little shorter, for what its pods say at last.
        last_words: Duration::from_secs(5),
        order: Box::new(move |_| {
            let (ours, theirs) = StdUnixStream::pair()?;
            tokio::spawn(runtime.clone().serve(asynchronous(ours)?));
            Ok(Orders { start: serde_json::to_value(&start)?, socket: Some(theirs.into()) })
        }),
    }
}

fn asynchronous(socket: StdUnixStream) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// Runs as the node agent.
pub(crate) fn run() -> Result<(), Fault> {
    let unable = |e: io::Error| Fault::new(Code::StartFailed).in_phase(Phase::Start).about(WHAT).because(e);
    keeper::run(WHAT, move |start: Start, mut seat| {
        Box::pin(async move {
            let socket: Option<OwnedFd> = seat.socket.take();
            let socket =
                socket.ok_or_else(|| Fault::new(Code::Invariant).about(WHAT).fact("socket", "none"))?;
            let runtime = RuntimeClient::new(asynchronous(socket.into()).map_err(unable)?);
            let client = supervisor::client(&start.kubeconfig).await?;
            let node = Arc::new(Node::new(client, runtime, &start));
            tokio::spawn(node.clone().beat(start.report));
            node.run(seat).await;
            Ok(())
        })
    })
}
