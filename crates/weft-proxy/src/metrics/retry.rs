//! What is counted of requests that are sent again: `outbound_{http,grpc}_route_retry_*`.

use super::{
    families::{Family, Kind, Lines},
    series::{Counter, Series},
};

/// Retries of one route.
#[derive(Debug, Default)]
pub struct Retries {
    requests: Counter,
    successes: Counter,
    limit_exceeded: Counter,
    overflow: Counter,
}

impl Retries {
    /// A request is sent once more.
    pub fn sent(&self) {
        self.requests.add(1);
    }
    /// A retry brought an answer that is not to be tried again.
    pub fn succeeded(&self) {
        self.successes.add(1);
    }
    /// The answer was to be tried again, and the tries are used up.
    pub fn limit_exceeded(&self) {
        self.limit_exceeded.add(1);
    }
    /// The answer was to be tried again, and the budget does not allow it.
    pub fn overflow(&self) {
        self.overflow.add(1);
    }
}

impl Series for Retries {
    const FAMILIES: &'static [Family] = &[
        Family::new("_requests_total", Kind::Counter, &[], "Requests sent again"),
        Family::new("_successes_total", Kind::Counter, &[], "Requests that a retry brought an answer for"),
        Family::new(
            "_limit_exceeded_total",
            Kind::Counter,
            &[],
            "Requests that failed with their tries used up",
        ),
        Family::new("_overflow_total", Kind::Counter, &[], "Retries that the budget did not allow"),
    ];
    fn activity(&self) -> u64 {
        let all = [&self.requests, &self.successes, &self.limit_exceeded, &self.overflow];
        all.iter().map(|counter| counter.value()).sum()
    }
    fn lines(&self, family: usize, to: &mut Lines<'_>) {
        let counter = match family {
            0 => &self.requests,
            1 => &self.successes,
            2 => &self.limit_exceeded,
            _ => &self.overflow,
        };
        to.value("", counter.value());
    }
}
