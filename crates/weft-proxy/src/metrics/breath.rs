//! Long work of the agent, in short turns: of a proxy with a CPU quota, the data path keeps most.

use std::time::{Duration, Instant};

/// A turn. Short beside a millisecond, which is what a request may wait behind it where agent and worker share a core.
const TURN: Duration = Duration::from_micros(500);
/// So many times as long as a turn took is rested after it.
const REST: u32 = 3;

/// Keeps count of how long others were not let run.
#[derive(Debug)]
pub(super) struct Breath {
    since: Instant,
}

impl Breath {
    pub(super) fn new() -> Self {
        Breath { since: Instant::now() }
    }

    /// Called after each bit of work: lets others run, and rests once a turn is over.
    pub(super) async fn take(&mut self) {
        let busy = self.since.elapsed();
        if busy < TURN {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(busy * REST).await;
            self.since = Instant::now();
        }
    }

    /// Time that somebody else took is no work.
    pub(super) fn waited(&mut self, time: Duration) {
        self.since += time;
    }
}
