//! Shutting down in order: readiness goes off, connections are asked to end, and after the grace period they are cut.

use tokio::sync::watch;

/// How far a shutdown has come. Phases only advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Running,
    /// Not ready any more. Listeners still accept, and every connection ends at its next pause: HTTP/2 sends GOAWAY,
    /// HTTP/1 answers with `connection: close`.
    Draining,
    /// The grace period is over, or nothing is left: listeners close and connections are cut.
    Stopped,
}

/// Starts the phases; owned by the runtime.
#[derive(Debug)]
pub struct Signal(watch::Sender<Phase>);

/// Sees the phases; cloned into every connection.
#[derive(Clone, Debug)]
pub struct Watch(watch::Receiver<Phase>);

pub fn channel() -> (Signal, Watch) {
    let (send, receive) = watch::channel(Phase::Running);
    (Signal(send), Watch(receive))
}

impl Signal {
    /// Advances to `phase`; going back is ignored.
    pub fn advance(&self, phase: Phase) {
        self.0.send_if_modified(|now| {
            let forward = phase > *now;
            if forward {
                *now = phase;
            }
            forward
        });
    }
}

impl Watch {
    pub fn phase(&self) -> Phase {
        *self.0.borrow()
    }

    /// Waits until connections should end. Cancel-safe.
    pub async fn draining(&self) {
        self.reached(Phase::Draining).await;
    }

    /// Waits until connections must end. Cancel-safe.
    pub async fn stopped(&self) {
        self.reached(Phase::Stopped).await;
    }

    async fn reached(&self, phase: Phase) {
        let mut watch = self.0.clone();
        // The signal lives as long as the process: its loss means that the process is ending.
        let _ended = watch.wait_for(|now| *now >= phase).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn phases_only_advance() {
        let (signal, watch) = channel();
        assert_eq!(watch.phase(), Phase::Running);
        signal.advance(Phase::Draining);
        watch.draining().await;
        signal.advance(Phase::Running);
        assert_eq!(watch.phase(), Phase::Draining);
        signal.advance(Phase::Stopped);
        watch.stopped().await;
    }
}
