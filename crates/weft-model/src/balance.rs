//! Choosing an endpoint: peak EWMA of the latency times the load, of two candidates the cheaper (P2C).

use crate::outbound::{EwmaConfig, Penalty};
use std::time::Duration;

/// A latency estimate that jumps up at once and forgets slowly. Times are microseconds since any fixed start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeakEwma {
    rtt_us: f64,
    stamp_us: u64,
    decay_us: f64,
    penalty: Option<Penalty>,
}

/// No endpoint is believed to be faster than this, so that a lucky first answer does not draw all traffic.
const FLOOR_US: f64 = 1_000.0;

/// Costs are compared in steps of a quarter: smaller differences are noise, and must not send everything to one of two
/// equals.
const STEP: f64 = 1.25;

impl PeakEwma {
    pub fn new(config: EwmaConfig, now_us: u64) -> Self {
        PeakEwma {
            rtt_us: (config.default_rtt.as_micros() as f64).max(FLOOR_US),
            stamp_us: now_us,
            decay_us: (config.decay.as_micros() as f64).max(1.0),
            penalty: config.penalty,
        }
    }

    /// Takes one measured latency.
    pub fn observe(&mut self, rtt: Duration, now_us: u64) {
        let rtt = (rtt.as_micros() as f64).max(FLOOR_US);
        self.decay_to(now_us, rtt);
        self.rtt_us = self.rtt_us.max(rtt);
    }

    /// The endpoint asked for less traffic, perhaps for `retry_after`: it counts as slow for a while.
    pub fn penalise(&mut self, retry_after: Option<Duration>, now_us: u64) {
        if let Some(penalty) = self.penalty {
            self.observe(retry_after.unwrap_or(penalty.latency).min(penalty.max_retry_after), now_us);
        }
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

/// The cost by which two candidates are compared, in steps.
pub fn cost(estimate_us: f64, pending: usize) -> f64 {
    ((estimate_us * (pending as f64 + 1.0)).max(1.0).ln() / STEP.ln()).floor()
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

/// The shares of endpoints that are not all alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// The sum of the weights up to and with each endpoint.
    sums: Vec<u64>,
}

impl Weights {
    /// `None` where all weights are equal, which is the ordinary case, or none is more than zero.
    pub fn new(weights: impl Iterator<Item = u32> + Clone) -> Option<Self> {
        let mut others = weights.clone();
        let first = others.next()?;
        if others.all(|weight| weight == first) {
            return None;
        }
        let sums = weights.scan(0, |sum, weight| {
            *sum += u64::from(weight);
            Some(*sum)
        });
        Some(Weights { sums: sums.collect() })
    }

    /// Picks one by comparing two random candidates, which may be the same: where costs are equal, each endpoint is picked as
    /// often as its weight says. `random` yields numbers below its argument.
    pub fn pick_two(&self, mut random: impl FnMut(u64) -> u64, cost: impl Fn(usize) -> f64) -> usize {
        let total = self.sums.last().copied().unwrap_or(0);
        let mut draw = || {
            let at = random(total);
            self.sums.partition_point(|sum| *sum <= at)
        };
        let (first, second) = (draw(), draw());
        if first != second && cost(second) < cost(first) { second } else { first }
    }
}

#[cfg(test)]
mod tests;
