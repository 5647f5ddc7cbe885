//! The age of an answer, where the configuration limits it: a controller that says nothing new on an open stream may have
//! lost the subscription, and traffic keeps the answer in use.

use std::{future::pending, pin::Pin, time::Duration};
use tokio::time::{Instant, Sleep, sleep};

/// Says when an answer has become too old.
pub(super) struct Age(Option<(Duration, Pin<Box<Sleep>>)>);

impl Age {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Age(limit.map(|limit| (limit, Box::pin(sleep(limit)))))
    }

    /// An answer came.
    pub(super) fn renewed(&mut self) {
        if let Some((limit, timer)) = &mut self.0 {
            timer.as_mut().reset(Instant::now() + *limit);
        }
    }

    /// Resolves when the answer is too old, and again as long as none comes. Cancel-safe.
    pub(super) async fn over(&mut self) {
        match &mut self.0 {
            Some((_, timer)) => timer.as_mut().await,
            None => pending().await,
        }
        self.renewed();
    }
}
