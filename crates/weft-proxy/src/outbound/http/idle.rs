//! A client that stops in the middle of its request, before there is a response whose pieces could be waited for.

use super::{NoAnswer, Way};
use crate::{deadline::Moving, metrics::exchange::Sent};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::Instant;
use weft_fault::{Code, Fault, Phase};

/// Does the work, unless the request's body stands still for as long as the route allows a stream to be idle. Once the
/// request has passed, it is the server that is waited for, and other limits count.
pub(super) fn guarded<'w, F>(way: &'w Way<'_>, work: F) -> Guarded<'w, F> {
    let guard = way.timeouts.idle.zip(way.sent.as_deref());
    let guard = guard.map(|(limit, sent)| Guard { limit, sent, timer: Moving::default() });
    Guarded { work, guard }
}

struct Guard<'w> {
    limit: Duration,
    sent: &'w Sent,
    timer: Moving,
}

pin_project_lite::pin_project! {
    /// A type of its own for the same reason as [`crate::deadline::Within`].
    #[must_use]
    pub(super) struct Guarded<'w, F> {
        #[pin]
        work: F,
        guard: Option<Guard<'w>>,
    }
}

impl<T, F: Future<Output = Result<T, NoAnswer>>> Future for Guarded<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // Work that is done when both are due counts as done.
        if let Poll::Ready(done) = this.work.poll(cx) {
            return Poll::Ready(done);
        }
        let Some(guard) = this.guard else { return Poll::Pending };
        if guard.sent.is_over() {
            *this.guard = None;
            return Poll::Pending;
        }
        ready!(guard.timer.poll(Instant::from(guard.sent.moved_at() + guard.limit), cx));
        let fault = Fault::new(Code::StreamIdle).in_phase(Phase::RequestBody).fact("timeout", "idle");
        Poll::Ready(Err(fault.fact("limit_ms", guard.limit.as_millis()).into()))
    }
}
