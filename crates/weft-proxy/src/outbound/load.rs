//! What the requests under way at an endpoint, and those that ended, say about it: its load, and whether to leave it out.

use super::{Worker, endpoint::Member};
use crate::http::body::grpc_status;
use http::{HeaderMap, StatusCode, header};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};
use weft_model::{
    balance::{PeakEwma, cost},
    breaker::{Breaker, Outcome},
    outbound::{EwmaConfig, FailureAccrual},
};

/// An endpoint's record with one worker.
pub(super) struct Standing {
    epoch: Instant,
    ewma: Cell<PeakEwma>,
    pending: Cell<usize>,
    breaker: RefCell<Breaker>,
}

impl Standing {
    pub(super) fn new(worker: &Worker, ewma: EwmaConfig) -> Self {
        Standing {
            epoch: worker.epoch,
            ewma: Cell::new(PeakEwma::new(ewma, worker.now_us())),
            pending: Cell::new(0),
            breaker: RefCell::default(),
        }
    }

    pub(super) fn cost(&self, now_us: u64) -> f64 {
        cost(self.ewma.get().estimate_us(now_us), self.pending.get())
    }

    /// Requests under way.
    pub(super) fn under_way(&self) -> usize {
        self.pending.get()
    }

    /// Bytes of any kind have no answer whose time could be taken: the time of connecting stands for it.
    pub(super) fn connected(&self, took: Duration) {
        self.change(|ewma| ewma.observe(took, self.now()));
    }

    pub(super) fn admits(&self, now: Instant) -> bool {
        self.breaker.borrow().admits(self.at(now))
    }

    /// Since when the application behind it is not asked because it failed, if so.
    pub(super) fn shut(&self) -> Option<Instant> {
        let since_us = self.breaker.borrow().shut_since_us()?;
        Some(self.epoch + Duration::from_micros(since_us))
    }

    fn at(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }

    fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    fn change(&self, change: impl FnOnce(&mut PeakEwma)) {
        let mut ewma = self.ewma.get();
        change(&mut ewma);
        self.ewma.set(ewma);
    }
}

/// A request or connection under way at an endpoint.
pub(crate) struct Load {
    member: Rc<Member>,
    begun: Instant,
    accrual: Option<FailureAccrual>,
    /// What the server said about when to come back.
    retry_after: Cell<Option<Duration>>,
    /// It is the one request that may find out whether the application is well again.
    probes: bool,
}

impl Load {
    pub(super) fn new(member: &Rc<Member>, accrual: Option<&FailureAccrual>) -> Self {
        let begun = Instant::now();
        let standing = &member.standing;
        standing.pending.set(standing.pending.get() + 1);
        let probes = standing.breaker.borrow_mut().begin(standing.at(begun));
        Load {
            member: member.clone(),
            begun,
            accrual: accrual.copied(),
            retry_after: Cell::new(None),
            probes,
        }
    }

    /// The response has begun. `fresh`: on a connection made for it, whose making says nothing about the next request.
    pub(crate) fn answered(&self, worker: &Worker, fresh: bool, status: StatusCode, head: &HeaderMap) {
        let standing = &self.member.standing;
        if !fresh {
            standing.change(|ewma| ewma.observe(self.begun.elapsed(), worker.now_us()));
        }
        self.member.works(worker);
        if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
            self.retry_after.set(retry_after(head));
        }
        let limited = status == StatusCode::TOO_MANY_REQUESTS || is_exhausted(grpc_status(head));
        if limited || self.retry_after.get().is_some() {
            standing.change(|ewma| ewma.penalise(self.retry_after.get(), worker.now_us()));
        }
    }

    /// What the server said about when to come back.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.retry_after.get()
    }

    /// The response is over, and was a success or the application's failure.
    pub(crate) fn classified(&self, success: bool, status: u16, grpc: Option<u8>) {
        let Some(accrual) = &self.accrual else { return };
        let limited = status == 429 || is_exhausted(grpc);
        let outcome = match success {
            _ if limited => Outcome::Limited,
            true => Outcome::Success,
            false => Outcome::Failure,
        };
        let standing = &self.member.standing;
        let (now_us, random) = (standing.now(), rand::random::<f32>());
        standing.breaker.borrow_mut().observe(outcome, accrual, self.retry_after.get(), now_us, random);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let standing = &self.member.standing;
        if self.probes {
            standing.breaker.borrow_mut().end_probe();
        }
        standing.pending.set(standing.pending.get().saturating_sub(1));
    }
}

/// gRPC's RESOURCE_EXHAUSTED.
fn is_exhausted(grpc: Option<u8>) -> bool {
    grpc == Some(8)
}

/// `Retry-After` in seconds (RFC 9110, 10.2.3). Its other form, a date, needs clocks that agree and is not read.
pub(crate) fn retry_after(head: &HeaderMap) -> Option<Duration> {
    let seconds = head.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_in_seconds() {
        for (text, seconds) in
            [("120", Some(120)), (" 5 ", Some(5)), ("-1", None), ("Fri, 31 Dec 1999 23:59:59 GMT", None)]
        {
            let head = HeaderMap::from_iter([(header::RETRY_AFTER, text.parse().unwrap())]);
            assert_eq!(retry_after(&head), seconds.map(Duration::from_secs), "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
