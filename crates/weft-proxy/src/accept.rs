//! The accept loop of one listener on one worker.

use crate::{drain, metrics::phases::Phases};
use std::{
    future::Future,
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;
use weft_fault::Phase;
use weft_net::socket::{Accepted, Listener};

/// Connections of one listener on one worker. More wait in the kernel's queue, where they cost nothing.
const MAX_CONNECTIONS: usize = 65_536;
/// When the process is out of file descriptors, accepting again at once would only spin.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts until the drain is over, and serves each connection in a task of its own on this worker. Connections that are
/// still open then are cut by their own watch of the drain.
pub(crate) async fn run<F>(
    listener: Listener,
    drain: drain::Watch,
    phases: Arc<Phases>,
    serve: impl Fn(Accepted) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let stopped = drain.stopped();
    tokio::pin!(stopped);
    loop {
        let next = async {
            let permit = connections.clone().acquire_owned().await;
            (permit.ok(), listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased;
            () = &mut stopped => return,
            next = next => next,
        };
        match accepted {
            Ok(accepted) => {
                let (accepted_at, phases) = (Instant::now(), phases.clone());
                let serving = serve(accepted);
                tokio::task::spawn_local(async move {
                    // What it waited for this worker, behind what the worker had to do before.
                    phases.observe(Phase::Accept, accepted_at.elapsed());
                    drop(phases);
                    serving.await;
                    drop(permit);
                });
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The client went away between the handshake and accept: no matter.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::NotConnected
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    /// The size of what an async function of two arguments returns, without calling it.
    fn size<A, B, F>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// Every connection holds one of these for as long as it lives. A branch that grows them has to be boxed.
    #[test]
    fn connections_are_small() {
        let (inbound, outbound) = (size(crate::inbound::connection), size(crate::outbound::connection));
        assert!(inbound < 4_096, "an inbound connection takes {inbound} bytes");
        assert!(outbound < 4_096, "an outbound connection takes {outbound} bytes");
    }
}
