//! Shutting down in order: readiness goes off and everything works on, then connections are asked to end, and after the
//! grace period they are cut.

use std::time::Duration;
use tokio::sync::watch;

/// What an HTTP/2 connection that begins in the drain gets.
const NEWCOMER: Duration = Duration::from_secs(1);

/// How far a shutdown has come. Phases only advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Running,
    /// Not ready any more, and nothing else: callers learn of it by discovery and move away, and the application, which
    /// may still be at work, calls out as before.
    Unready,
    /// Listeners still accept, and every connection ends at its next pause: HTTP/2 sends GOAWAY, HTTP/1 answers with
    /// `connection: close`.
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

    /// As [`Watch::draining`], for an HTTP/2 connection that begins now. In a drain it is let live for a moment: told to go
    /// before its first request, its client would only connect again, and again. Cancel-safe.
    pub async fn draining_newcomer(&self) {
        if self.phase() == Phase::Draining {
            tokio::time::sleep(NEWCOMER).await;
        }
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

    #[tokio::test(start_paused = true)]
    async fn phases_only_advance() {
        let (signal, watch) = channel();
        assert_eq!(watch.phase(), Phase::Running);
        signal.advance(Phase::Unready);
        // Nothing is asked to end yet.
        let asked = tokio::time::timeout(Duration::from_secs(3_600), watch.draining()).await;
        assert!(asked.is_err());
        signal.advance(Phase::Draining);
        watch.draining().await;
        signal.advance(Phase::Running);
        assert_eq!(watch.phase(), Phase::Draining);
        let moment = tokio::time::timeout(NEWCOMER / 2, watch.draining_newcomer()).await;
        assert!(moment.is_err());
        watch.draining_newcomer().await;
        signal.advance(Phase::Stopped);
        watch.stopped().await;
    }
}
