//! Choosing an endpoint: peak EWMA of the latency times the load, of two candidates the cheaper (P2C).

use crate::outbound::EwmaConfig;
use std::time::Duration;

/// A latency estimate that jumps up at once and forgets slowly. Times are microseconds since any fixed start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeakEwma {
    rtt_us: f64,
    stamp_us: u64,
    decay_us: f64,
}

/// No endpoint is believed to be faster than this, so that a lucky first answer does not draw all traffic.
const FLOOR_US: f64 = 1_000.0;

impl PeakEwma {
    pub fn new(config: EwmaConfig, now_us: u64) -> Self {
        PeakEwma {
            rtt_us: (config.default_rtt.as_micros() as f64).max(FLOOR_US),
            stamp_us: now_us,
            decay_us: (config.decay.as_micros() as f64).max(1.0),
        }
    }

    /// Takes one measured latency.
    pub fn observe(&mut self, rtt: Duration, now_us: u64) {
        let rtt = (rtt.as_micros() as f64).max(FLOOR_US);
        self.decay_to(now_us, rtt);
        self.rtt_us = self.rtt_us.max(rtt);
    }

    /// The estimate now, without changing it: it sinks towards the floor while nothing is measured.
    pub fn estimate_us(&self, now_us: u64) -> f64 {
        let mut copy = *self;
        copy.decay_to(now_us, FLOOR_US);
        copy.rtt_us
    }

    fn decay_to(&mut self, now_us: u64, towards: f64) {
        let elapsed = now_us.saturating_sub(self.stamp_us) as f64;
        let keep = (-elapsed / self.decay_us).exp();
        self.rtt_us = self.rtt_us * keep + towards * (1.0 - keep);
        self.stamp_us = self.stamp_us.max(now_us);
    }
}

/// The cost by which two candidates are compared.
pub fn cost(estimate_us: f64, pending: usize) -> f64 {
    estimate_us * (pending as f64 + 1.0)
}

/// Picks one of `len` by comparing two different random candidates. `random` yields numbers below its argument.
pub fn pick_two(
    len: usize,
    mut random: impl FnMut(usize) -> usize,
    cost: impl Fn(usize) -> f64,
) -> Option<usize> {
    match len {
        0 => None,
        1 => Some(0),
        _ => {
            let first = random(len);
            let second = (first + 1 + random(len - 1)) % len;
            Some(if cost(second) < cost(first) { second } else { first })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: EwmaConfig =
        EwmaConfig { default_rtt: Duration::from_millis(30), decay: Duration::from_secs(10) };

    #[test]
    fn a_peak_counts_at_once_and_is_forgotten_slowly() {
        let mut ewma = PeakEwma::new(CONFIG, 0);
        ewma.observe(Duration::from_millis(500), 1_000);
        assert!(ewma.estimate_us(1_000) >= 500_000.0);
        assert!(ewma.estimate_us(10_001_000) < 200_000.0);
        assert!(ewma.estimate_us(1_000_000_000) < 1_100.0);
    }

    #[test]
    fn a_clock_that_goes_back_does_no_harm() {
        let mut ewma = PeakEwma::new(CONFIG, 1_000_000);
        ewma.observe(Duration::from_millis(5), 0);
        assert!(ewma.estimate_us(0).is_finite());
    }

    #[test]
    fn two_choices_are_always_two() {
        for len in 2..6 {
            for first in 0..len {
                for second in 0..len - 1 {
                    let mut answers = [first, second].into_iter();
                    let picked =
                        pick_two(len, |_| answers.next().unwrap(), |i| if i == first { 2.0 } else { 1.0 })
                            .unwrap();
                    assert_ne!(picked, first);
                }
            }
        }
        assert_eq!(pick_two(0, |_| 0, |_| 0.0), None);
        assert_eq!(pick_two(1, |_| 0, |_| 0.0), Some(0));
    }
}
