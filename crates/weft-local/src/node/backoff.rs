//! How long a container that ended waits before it is started again.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
/// A container that ran this long has recovered: its next restart is as quick as the first.
const RECOVERED: Duration = Duration::from_secs(600);

/// Doubles from 10 s to 5 min. The very first restart does not wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CrashBackoff {
    next: Duration,
}

impl CrashBackoff {
    /// The wait before the restart of a container that has just ended after running for `ran`.
    pub(crate) fn after_run(&mut self, ran: Duration) -> Duration {
        if ran >= RECOVERED {
            self.next = Duration::ZERO;
        }
        let wait = self.next;
        self.next = (wait * 2).clamp(FIRST, LONGEST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_five_minutes_and_resets_after_ten() {
        let mut backoff = CrashBackoff::default();
        let waits: Vec<u64> = (0..8).map(|_| backoff.after_run(Duration::from_secs(1)).as_secs()).collect();
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff.after_run(RECOVERED).as_secs(), 0);
        assert_eq!(backoff.after_run(Duration::ZERO).as_secs(), 10);
    }
}
