//! Deadlines that are kept outside of the work they limit.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that fires this much too late did not wait for the work: the process did not run (stopped, or starved of
/// CPU), and the work did not get the time it was promised.
pub(crate) const STALL: Duration = Duration::from_millis(500);

/// The work did not end in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) waited: Duration,
    /// How long the process did not run, if it did not.
    pub(crate) stalled: Option<Duration>,
}

/// Waits for `work` at most `limit`. Work that is done when both are due counts as done. After a stall the deadline
/// moves once, so that a process that was stopped does not fail what its peers answered meanwhile.
pub(crate) fn within<F: Future>(limit: Duration, work: F) -> Within<F> {
    let begun = Instant::now();
    Within { work, timer: sleep_until(begun + limit), begun, limit, stalled: None }
}

pin_project_lite::pin_project! {
    /// A type of its own because an async function would hold the work twice: as its argument, and pinned.
    #[must_use]
    pub(crate) struct Within<F> {
        #[pin]
        work: F,
        #[pin]
        timer: Sleep,
        begun: Instant,
        limit: Duration,
        stalled: Option<Duration>,
    }
}

impl<F: Future> Future for Within<F> {
    type Output = Result<F::Output, Late>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(done) = this.work.poll(cx) {
            return Poll::Ready(Ok(done));
        }
        while this.timer.as_mut().poll(cx).is_ready() {
            match (stall(&this.timer), *this.stalled) {
                (Some(gap), None) => {
                    *this.stalled = Some(gap);
                    this.timer.as_mut().reset(Instant::now() + *this.limit);
                }
                (gap, stalled) => {
                    return Poll::Ready(Err(Late { waited: this.begun.elapsed(), stalled: stalled.or(gap) }));
                }
            }
        }
        Poll::Pending
    }
}

/// A deadline that moves with what it waits for. Its timer is armed once, and moved on only when it fires.
#[derive(Debug, Default)]
pub(crate) struct Moving(Option<Pin<Box<Sleep>>>);

impl Moving {
    /// Is it `until`?
    pub(crate) fn poll(&mut self, until: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if until < timer.deadline() {
            timer.as_mut().reset(until);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if until <= timer.deadline() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(until);
        }
        Poll::Pending
    }
}

/// By how much a timer that just fired was late, if that is worth a word.
fn stall(timer: &Sleep) -> Option<Duration> {
    let late = Instant::now().saturating_duration_since(timer.deadline());
    (late > STALL).then_some(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_in_time_wins_and_late_work_is_named() {
        let limit = Duration::from_secs(1);
        assert_eq!(within(limit, async { 7 }).await, Ok(7));
        let late = within(limit, std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(late.stalled, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_moves_both_ways() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut moving = Moving::default();
        for (until, fires) in [(begun + 3 * second, 3), (begun + 5 * second, 5), (begun + 4 * second, 5)] {
            std::future::poll_fn(|cx| moving.poll(until, cx)).await;
            assert_eq!(begun.elapsed(), fires * second);
        }
        let poll = |moving: &mut Moving, secs: u32| {
            moving.poll(begun + secs * second, &mut Context::from_waker(std::task::Waker::noop()))
        };
        assert!(poll(&mut moving, 9).is_pending() && poll(&mut moving, 7).is_pending());
        tokio::time::advance(3 * second).await;
        assert!(poll(&mut moving, 7).is_ready(), "it was moved back before it fired");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_stall_the_deadline_moves_once() {
        let limit = Duration::from_secs(1);
        let (send, receive) = tokio::sync::oneshot::channel();
        let waiting = tokio::spawn(within(limit, receive));
        tokio::task::yield_now().await;
        // The clock jumps: nothing ran meanwhile, as after SIGSTOP.
        tokio::time::advance(Duration::from_secs(10)).await;
        tokio::task::yield_now().await;
        send.send(5).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(Ok(5)));
        let waiting = tokio::spawn(within(limit, std::future::pending::<()>()));
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(waiting.await.unwrap().unwrap_err().stalled.is_some());
    }
}
