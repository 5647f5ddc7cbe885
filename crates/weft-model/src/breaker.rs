//! Leaving an endpoint out while its application fails. Times are microseconds since any fixed start.

use crate::outbound::{FailureAccrual, SuccessRate};
use std::time::Duration;

/// How an exchange ended, as a breaker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Failure,
    /// The application asked for less (429, gRPC's resource exhausted): it works, but it is no success either. It lowers the
    /// rate and fails a probe, and it is no failure in a row.
    Limited,
}

/// Shuts an endpoint after failures; then one request at a time finds out whether it is well.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    in_a_row: u32,
    window: Window,
    shut: Option<Shut>,
    probing: bool,
}

#[derive(Clone, Copy, Debug)]
struct Shut {
    since_us: u64,
    until_us: u64,
    pause: Duration,
}

impl Breaker {
    /// May a request go there now?
    pub fn admits(&self, now_us: u64) -> bool {
        self.shut.is_none_or(|shut| now_us >= shut.until_us && !self.probing)
    }

    /// Since when it is shut, if so.
    pub fn shut_since_us(&self) -> Option<u64> {
        self.shut.map(|shut| shut.since_us)
    }

    /// A request goes there; says whether it is the probe. The probe must be ended.
    pub fn begin(&mut self, now_us: u64) -> bool {
        let probes = !self.probing && self.shut.is_some_and(|shut| now_us >= shut.until_us);
        self.probing |= probes;
        probes
    }

    pub fn end_probe(&mut self) {
        self.probing = false;
    }

    /// An exchange ended. `retry_after`: how long the application asked to be left alone; `others`: endpoints of the same name
    /// whose breakers are not shut; `random`: from 0 to 1.
    pub fn observe(
        &mut self,
        outcome: Outcome,
        accrual: &FailureAccrual,
        retry_after: Option<Duration>,
        others: impl FnOnce() -> usize,
        now_us: u64,
        random: f32,
    ) {
        let backoff = accrual.backoff;
        let hint = retry_after.filter(|_| accrual.respects_retry_after);
        let first = hint.unwrap_or(backoff.min).clamp(backoff.min, backoff.max);
        let (since_us, pause) = match self.shut {
            // Requests that were under way when it shut tell nothing new.
            Some(shut) if now_us < shut.until_us => return,
            Some(_) if outcome == Outcome::Success => {
                *self = Breaker { probing: self.probing, ..Breaker::default() };
                return;
            }
            Some(shut) => (shut.since_us, (shut.pause * 2).max(first).min(backoff.max)),
            None => {
                if !self.trips(outcome, accrual, now_us) {
                    return;
                }
                // What counted towards it stays counted: the next failure asks again whether it can be spared.
                if accrual.min_ready > 0 && others() < accrual.min_ready as usize {
                    return;
                }
                (now_us, first)
            }
        };
        let pause_us = (pause.as_micros() as f64) * f64::from(1.0 + backoff.jitter * random);
        self.shut = Some(Shut { since_us, until_us: now_us.saturating_add(pause_us as u64), pause });
    }

    fn trips(&mut self, outcome: Outcome, accrual: &FailureAccrual, now_us: u64) -> bool {
        match outcome {
            Outcome::Success => self.in_a_row = 0,
            Outcome::Failure => self.in_a_row = self.in_a_row.saturating_add(1),
            Outcome::Limited => {}
        }
        let in_a_row = accrual.max_consecutive > 0 && self.in_a_row >= accrual.max_consecutive;
        let too_low = accrual.rate.as_ref().is_some_and(|rate| {
            self.window.count(outcome == Outcome::Success, rate, now_us);
            outcome != Outcome::Success && self.window.is_too_low(rate)
        });
        in_a_row || too_low
    }
}

const BUCKETS: usize = 10;

/// Successes and requests of the last while, in ten buckets.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    buckets: [Bucket; BUCKETS],
    /// The number of the newest bucket.
    newest: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    successes: u32,
    requests: u32,
}

impl Window {
    fn count(&mut self, success: bool, rate: &SuccessRate, now_us: u64) {
        let length = (rate.window.max(SuccessRate::SHORTEST).as_micros() as u64 / BUCKETS as u64).max(1);
        let now = (now_us / length).max(self.newest);
        // What was not counted in for a whole window is as good as empty.
        for gone in (self.newest + 1..=now).take(BUCKETS) {
            self.buckets[(gone % BUCKETS as u64) as usize] = Bucket::default();
        }
        if now - self.newest >= BUCKETS as u64 {
            self.buckets = Default::default();
        }
        self.newest = now;
        let bucket = &mut self.buckets[(now % BUCKETS as u64) as usize];
        bucket.requests = bucket.requests.saturating_add(1);
        bucket.successes = bucket.successes.saturating_add(u32::from(success));
    }

    fn is_too_low(&self, rate: &SuccessRate) -> bool {
        let sum = |of: fn(&Bucket) -> u32| self.buckets.iter().map(|b| u64::from(of(b))).sum::<u64>();
        let requests = sum(|b| b.requests);
        requests >= u64::from(rate.min_requests.max(1))
            && (sum(|b| b.successes) as f64) < rate.threshold * requests as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::Backoff;

    const SECOND: u64 = 1_000_000;

    fn accrual(max_consecutive: u32, rate: Option<SuccessRate>) -> FailureAccrual {
        let backoff = Backoff { min: Duration::from_secs(1), max: Duration::from_secs(3), jitter: 0.0 };
        FailureAccrual { max_consecutive, rate, backoff, respects_retry_after: true, min_ready: 0 }
    }

    fn rate(min_requests: u32) -> Option<SuccessRate> {
        Some(SuccessRate { threshold: 0.8, window: Duration::from_secs(10), min_requests })
    }

    fn feed(breaker: &mut Breaker, accrual: &FailureAccrual, outcomes: &[Outcome], now_us: u64) {
        for outcome in outcomes {
            breaker.observe(*outcome, accrual, None, || 0, now_us, 0.0);
        }
    }

    use Outcome::{Failure, Limited, Success};

    #[test]
    fn failures_in_a_row_shut_it_and_one_probe_at_a_time_opens_it() {
        let (mut breaker, accrual) = (Breaker::default(), accrual(3, None));
        feed(&mut breaker, &accrual, &[Failure, Failure, Success, Failure, Limited, Failure], 0);
        assert!(breaker.admits(0), "a success in between starts anew, a refused surplus does neither");
        feed(&mut breaker, &accrual, &[Failure], 0);
        assert!(!breaker.admits(SECOND - 1));
        // A late success of a request from before is no probe.
        feed(&mut breaker, &accrual, &[Success], 1);
        assert!(!breaker.admits(SECOND - 1));
        assert!(breaker.admits(SECOND) && breaker.begin(SECOND));
        assert!(!breaker.admits(SECOND) && !breaker.begin(SECOND), "one probe");
        feed(&mut breaker, &accrual, &[Limited], SECOND);
        breaker.end_probe();
        assert!(!breaker.admits(3 * SECOND - 1) && breaker.admits(3 * SECOND), "twice as long");
        assert!(breaker.begin(3 * SECOND));
        feed(&mut breaker, &accrual, &[Success], 3 * SECOND);
        breaker.end_probe();
        assert!(breaker.admits(3 * SECOND) && breaker.shut_since_us().is_none());
        feed(&mut breaker, &accrual, &[Failure, Failure], 3 * SECOND);
        assert!(breaker.admits(3 * SECOND), "the count began anew");
    }

    #[test]
    fn a_low_rate_shuts_it_once_there_are_enough_requests() {
        let accrual = accrual(0, rate(10));
        let mut breaker = Breaker::default();
        feed(&mut breaker, &accrual, &[Failure; 9], 0);
        assert!(breaker.admits(0), "too few to tell");
        feed(&mut breaker, &accrual, &[Limited], 0);
        assert!(!breaker.admits(0));
        // Eight of ten is not below the threshold.
        let mut breaker = Breaker::default();
        feed(&mut breaker, &accrual, &[Success; 8], 0);
        feed(&mut breaker, &accrual, &[Failure; 2], 0);
        assert!(breaker.admits(0));
        feed(&mut breaker, &accrual, &[Failure], 0);
        assert!(!breaker.admits(0));
    }

    #[test]
    fn what_is_older_than_the_window_counts_no_more() {
        let accrual = accrual(0, rate(5));
        for (later, shut) in [(9 * SECOND, true), (10 * SECOND, false), (1000 * SECOND, false)] {
            let mut breaker = Breaker::default();
            feed(&mut breaker, &accrual, &[Failure; 4], 0);
            feed(&mut breaker, &accrual, &[Failure], later);
            assert_eq!(breaker.admits(later), !shut, "{later}");
        }
    }

    #[test]
    fn one_that_cannot_be_spared_stays_in_until_another_is_there() {
        let accrual = FailureAccrual { min_ready: 2, ..accrual(1, None) };
        let mut breaker = Breaker::default();
        breaker.observe(Failure, &accrual, None, || 1, 0, 0.0);
        assert!(breaker.admits(0));
        breaker.observe(Failure, &accrual, None, || 2, 0, 0.0);
        assert!(!breaker.admits(0));
        // What is shut already is no question of sparing.
        breaker.begin(SECOND);
        breaker.observe(Failure, &accrual, None, || 0, SECOND, 0.0);
        assert!(!breaker.admits(2 * SECOND));
    }

    #[test]
    fn the_application_may_say_how_long_within_bounds() {
        for (asked, from_us) in [(2, 2 * SECOND), (0, SECOND), (600, 3 * SECOND)] {
            let mut breaker = Breaker::default();
            let asked = Some(Duration::from_secs(asked));
            breaker.observe(Failure, &accrual(1, None), asked, || 0, 0, 0.0);
            assert!(!breaker.admits(from_us - 1) && breaker.admits(from_us), "{asked:?}");
        }
        let mut breaker = Breaker::default();
        let deaf = FailureAccrual { respects_retry_after: false, ..accrual(1, None) };
        breaker.observe(Failure, &deaf, Some(Duration::from_secs(2)), || 0, 0, 0.0);
        assert!(breaker.admits(SECOND));
    }
}
