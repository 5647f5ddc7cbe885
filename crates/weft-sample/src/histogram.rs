//! Latencies in a fixed number of buckets: each is at most 1/32 wider than what it holds.

use std::time::Duration;

/// 32 buckets for each power of two of microseconds, up to about 70 minutes.
const SUB: u32 = 32;
const BUCKETS: usize = 28 * SUB as usize;

#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: Box::new([0; BUCKETS]), total: 0, max: Duration::ZERO }
    }
}

impl Histogram {
    pub(crate) fn add(&mut self, took: Duration) {
        self.counts[bucket(u32::try_from(took.as_micros()).unwrap_or(u32::MAX))] += 1;
        self.total += 1;
        self.max = self.max.max(took);
    }

    pub(crate) fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts.iter()) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn max(&self) -> Duration {
        self.max
    }

    /// The upper edge of the bucket in which the given share (0 to 1) of all values ends.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let rank = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_micros(upper(at)).min(self.max);
            }
        }
        self.max
    }
}

fn bucket(micros: u32) -> usize {
    if micros < SUB {
        return micros as usize;
    }
    let power = micros.ilog2() - SUB.ilog2();
    let within = (micros >> power) - SUB;
    (((power + 1) * SUB + within) as usize).min(BUCKETS - 1)
}

fn upper(bucket: usize) -> u64 {
    let (bucket, sub) = (bucket as u64, u64::from(SUB));
    if bucket < sub {
        return bucket;
    }
    let power = bucket / sub - 1;
    ((sub + bucket % sub + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_into_a_bucket_that_holds_it_closely() {
        for micros in (0..200_000).chain([u32::MAX / 2, 60_000_000]) {
            let high = upper(bucket(micros));
            assert!(high >= u64::from(micros), "{micros}: {high}");
            assert!(high <= u64::from(micros) + u64::from(micros) / 32 + 1, "{micros}: {high}");
        }
        assert!(bucket(u32::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles() {
        let mut all = Histogram::default();
        assert_eq!(all.quantile(0.5), Duration::ZERO);
        for millis in 1..=100 {
            all.add(Duration::from_millis(millis));
        }
        let p50 = all.quantile(0.5).as_micros();
        assert!((50_000..=52_000).contains(&p50), "{p50}");
        assert_eq!(all.quantile(1.0), Duration::from_millis(100));
    }
}
