//! What the requests under way at an endpoint, and those that ended, say about it: its load, and whether to leave it out.

use super::{
    Worker,
    endpoint::{Member, Siblings},
};
use crate::{http::body::grpc_status, metrics::Balanced};
use http::{HeaderMap, StatusCode, header};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant, SystemTime},
};
use weft_model::{
    balance::{PeakEwma, cost},
    breaker::{Breaker, Outcome},
    outbound::{EwmaConfig, FailureAccrual},
};

/// An endpoint's record with one worker.
pub(super) struct Standing {
    epoch: Instant,
    requests: Work,
    /// Bytes of any kind: they may go to a name that takes requests, too, and the times of the two say nothing of each other.
    connections: Work,
    breaker: RefCell<Breaker>,
    /// The endpoints of the same name, this one among them.
    siblings: Siblings,
}

/// What is under way of one kind, and how long such things take.
struct Work {
    ewma: Cell<PeakEwma>,
    pending: Cell<usize>,
}

impl Work {
    fn new(ewma: EwmaConfig, now_us: u64) -> Self {
        Work { ewma: Cell::new(PeakEwma::new(ewma, now_us)), pending: Cell::new(0) }
    }

    fn cost(&self, now_us: u64) -> f64 {
        cost(self.ewma.get().estimate_us(now_us), self.pending.get())
    }

    fn change(&self, change: impl FnOnce(&mut PeakEwma)) {
        let mut ewma = self.ewma.get();
        change(&mut ewma);
        self.ewma.set(ewma);
    }
}

impl Standing {
    pub(super) fn new(epoch: Instant, ewma: EwmaConfig, siblings: Siblings) -> Self {
        let now_us = u64::try_from(epoch.elapsed().as_micros()).unwrap_or(u64::MAX);
        Standing {
            epoch,
            requests: Work::new(ewma, now_us),
            connections: Work::new(ewma, now_us),
            breaker: RefCell::default(),
            siblings,
        }
    }

    fn work(&self, of: Balanced) -> &Work {
        match of {
            Balanced::Http => &self.requests,
            Balanced::Tcp | Balanced::Tls => &self.connections,
        }
    }

    pub(super) fn cost(&self, of: Balanced, now_us: u64) -> f64 {
        self.work(of).cost(now_us)
    }

    /// Requests under way.
    pub(super) fn under_way(&self) -> usize {
        self.requests.pending.get()
    }

    /// Bytes of any kind have no answer whose time could be taken: the time of connecting stands for it.
    pub(super) fn connected(&self, took: Duration) {
        self.connections.change(|ewma| ewma.observe(took, self.now()));
    }

    pub(super) fn admits(&self, now: Instant) -> bool {
        self.breaker.borrow().admits(self.at(now))
    }

    /// Since when the application behind it is not asked because it failed, if so.
    pub(super) fn shut(&self) -> Option<Instant> {
        let since_us = self.breaker.borrow().shut_since_us()?;
        Some(self.epoch + Duration::from_micros(since_us))
    }

    fn judge(&self, outcome: Outcome, accrual: &FailureAccrual, retry_after: Option<Duration>) {
        let (now_us, random) = (self.now(), rand::random::<f32>());
        // Looked at only where a breaker is about to shut, and has such a limit.
        let others = || self.siblings.upgrade().map_or(0, |siblings| self.in_use_among(&siblings.borrow()));
        self.breaker.borrow_mut().observe(outcome, accrual, retry_after, others, now_us, random);
    }

    fn in_use_among(&self, siblings: &[Rc<Member>]) -> usize {
        let others =
            siblings.iter().map(|member| &member.standing).filter(|other| !std::ptr::eq(*other, self));
        others.filter(|other| other.shut().is_none()).count()
    }

    /// The endpoint had a whole request and did not answer it in the time that the route gives.
    pub(super) fn hung(&self, accrual: &FailureAccrual) {
        self.judge(Outcome::Failure, accrual, None);
    }

    fn at(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }

    fn now(&self) -> u64 {
        self.at(Instant::now())
    }
}

/// A request or connection under way at an endpoint.
pub(crate) struct Load {
    member: Rc<Member>,
    of: Balanced,
    begun: Instant,
    accrual: Option<FailureAccrual>,
    /// What the server said about when to come back.
    retry_after: Cell<Option<Duration>>,
    /// It is the one request that may find out whether the application is well again.
    probes: bool,
}

impl Load {
    pub(super) fn new(member: &Rc<Member>, of: Balanced, accrual: Option<&FailureAccrual>) -> Self {
        let begun = Instant::now();
        let standing = &member.standing;
        let pending = &standing.work(of).pending;
        pending.set(pending.get() + 1);
        let probes = standing.breaker.borrow_mut().begin(standing.at(begun));
        Load {
            member: member.clone(),
            of,
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
            standing.requests.change(|ewma| ewma.observe(self.begun.elapsed(), worker.now_us()));
        }
        self.member.works(worker);
        if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
            self.retry_after.set(retry_after(head));
        }
        let limited = status == StatusCode::TOO_MANY_REQUESTS || is_exhausted(grpc_status(head));
        if limited || self.retry_after.get().is_some() {
            standing.requests.change(|ewma| ewma.penalise(self.retry_after.get(), worker.now_us()));
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
        self.member.standing.judge(outcome, accrual, self.retry_after.get());
    }

    /// The endpoint took the request, and lost it or broke off its answer.
    pub(crate) fn lost(&self) {
        if let Some(accrual) = &self.accrual {
            self.member.standing.judge(Outcome::Failure, accrual, None);
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let standing = &self.member.standing;
        if self.probes {
            standing.breaker.borrow_mut().end_probe();
        }
        let pending = &standing.work(self.of).pending;
        pending.set(pending.get().saturating_sub(1));
    }
}

/// gRPC's RESOURCE_EXHAUSTED.
fn is_exhausted(grpc: Option<u8>) -> bool {
    grpc == Some(8)
}

/// `Retry-After` (RFC 9110, 10.2.3): seconds, or a date. That is taken from the server's own `Date`, so that clocks need
/// not agree; a server without one is believed to have this clock.
pub(crate) fn retry_after(head: &HeaderMap) -> Option<Duration> {
    let text = |name| head.get(name)?.to_str().ok().map(str::trim);
    let said = text(header::RETRY_AFTER)?;
    if let Ok(seconds) = said.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text| httpdate::parse_http_date(text).ok();
    let now = text(header::DATE).and_then(date).unwrap_or_else(SystemTime::now);
    Some(date(said)?.duration_since(now).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_connecting_say_nothing_about_requests() {
        let standing = Standing::new(Instant::now(), EwmaConfig::DEFAULT, Siblings::new());
        let costs = || [Balanced::Http, Balanced::Tcp].map(|of| standing.cost(of, standing.now()));
        let before = costs();
        standing.connected(Duration::from_secs(60));
        standing.connections.pending.set(5);
        let after = costs();
        assert!(after[0] <= before[0] && after[1] > before[1], "{before:?} {after:?}");
        assert_eq!(standing.under_way(), 0);
    }

    #[test]
    fn retry_after_is_read_in_seconds_or_as_a_date_by_the_servers_clock() {
        let date = ("date", "Fri, 31 Dec 1999 23:59:29 GMT");
        let later = "Fri, 31 Dec 1999 23:59:59 GMT";
        for (text, date, seconds) in [
            ("120", None, Some(120)),
            (" 5 ", Some(date), Some(5)),
            ("-1", None, None),
            ("soon", Some(date), None),
            (later, Some(date), Some(30)),
            // RFC 9110, 5.6.7: two older forms are still read.
            ("Friday, 31-Dec-99 23:59:59 GMT", Some(date), Some(30)),
            ("Fri Dec 31 23:59:59 1999", Some(date), Some(30)),
            ("Fri, 31 Dec 1999 23:59:00 GMT", Some(date), Some(0)),
            // By this clock it is long over.
            (later, None, Some(0)),
        ] {
            let mut head = HeaderMap::from_iter([(header::RETRY_AFTER, text.parse().unwrap())]);
            head.extend(date.map(|(_, date)| (header::DATE, date.parse().unwrap())));
            assert_eq!(retry_after(&head), seconds.map(Duration::from_secs), "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
