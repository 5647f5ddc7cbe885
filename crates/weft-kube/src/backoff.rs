//! Waiting longer after each failure, with jitter so that many clients do not return at once.

use rand::Rng;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub const fn new(min: Duration, max: Duration) -> Self {
        Backoff { min, max, failures: 0 }
    }

    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The next delay: the doubled one, of which half is random.
    pub fn next_delay(&mut self) -> Duration {
        let ceiling = self.min.saturating_mul(1 << self.failures.min(16)).min(self.max);
        self.failures = self.failures.saturating_add(1);
        ceiling.mul_f64(0.5 + rand::rng().random::<f64>() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_ceiling_and_starts_over() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        for _ in 0..40 {
            assert!(backoff.next_delay() <= Duration::from_secs(1));
        }
        assert!(backoff.next_delay() >= Duration::from_millis(500));
        backoff.reset();
        assert!(backoff.next_delay() <= Duration::from_millis(100));
    }
}
