//! Long work of the agent, in short turns: the data path keeps most of what the proxy may use.

use crate::config::cores::cpu_quota;
use std::time::{Duration, Instant};

/// A turn. Short beside a millisecond, which is what a request may wait behind it where agent and worker share a core.
const TURN: Duration = Duration::from_micros(500);
/// Such work takes no more than one part in so many of a CPU, or of the quota if that is less.
const PARTS: u32 = 4;
/// A quota so small, in thousandths of a CPU, is not divided further: the work has to end some day.
const LEAST_QUOTA: u64 = 50;

/// Keeps count of how long others were not let run.
#[derive(Debug)]
pub(super) struct Breath {
    since: Instant,
    /// So many times as long as a turn took is rested after it.
    rest: u32,
}

impl Breath {
    /// Reads the quota, which may have changed since the last time.
    pub(super) fn new() -> Self {
        Breath { since: Instant::now(), rest: rest(cpu_quota()) }
    }

    /// Called after each bit of work: lets others run, and rests once a turn is over.
    pub(super) async fn take(&mut self) {
        let busy = self.since.elapsed();
        if busy < TURN {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(busy * self.rest).await;
            self.since = Instant::now();
        }
    }

    /// Time that somebody else took is no work.
    pub(super) fn waited(&mut self, time: Duration) {
        self.since += time;
    }
}

fn rest(quota: Option<u64>) -> u32 {
    let thousandths = quota.unwrap_or(1000).clamp(LEAST_QUOTA, 1000);
    let parts = u64::from(PARTS) * 1000 / thousandths;
    u32::try_from(parts).unwrap_or(u32::MAX).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::rest;

    #[test]
    fn a_quarter_of_a_cpu_or_of_the_quota() {
        assert_eq!(rest(None), 3);
        assert_eq!(rest(Some(2500)), 3);
        assert_eq!(rest(Some(500)), 7);
        assert_eq!(rest(Some(200)), 19);
        assert_eq!(rest(Some(0)), rest(Some(50)));
    }
}
