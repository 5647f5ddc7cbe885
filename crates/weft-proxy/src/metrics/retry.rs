//! What is counted of requests that are sent again: `outbound_{http,grpc}_route_retry_*`.

use super::{part::series, series::Counter};

series! {
    /// Retries of one route.
    pub struct Retries {
        requests: Counter = Counter::default(), "_requests_total", "Requests sent again";
        successes: Counter = Counter::default(), "_successes_total", "Requests that a retry brought an answer for";
        limit_exceeded: Counter = Counter::default(), "_limit_exceeded_total", "Requests that failed with their tries used up";
        overflow: Counter = Counter::default(), "_overflow_total", "Retries that the budget did not allow";
    }
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
