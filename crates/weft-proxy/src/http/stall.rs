//! Clients that ask and do not read. An answer that nobody takes holds its stream, its memory and the server's connection; it
//! is given up when the client has taken nothing of it for a whole limit. Who reads slowly is not: each part that is taken
//! begins the time anew, and a large piece has more of it.

use super::{body::Body, flushes::Flushes, server::Service};
use crate::deadline::Moving;
use bytes::Bytes;
use futures_util::FutureExt as _;
use hyper::{
    body::{Frame, SizeHint},
    rt::Executor,
};
use std::{
    cell::Cell,
    error::Error,
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::Instant;
use weft_fault::{Code, Fault, Phase};

/// So much of a piece may take as long as the limit says.
const STEP: usize = 16 * 1024;

pub(super) fn fault(limit: Duration) -> Fault {
    Fault::new(Code::ReaderStalled).in_phase(Phase::ResponseBody).fact("limit_ms", limit.as_millis())
}

/// A connection to which nothing can be written.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    until: Option<Instant>,
    timer: Moving,
    fired: bool,
}

impl Stuck {
    /// Something was written, or nothing is left to be.
    pub(super) fn moved(&mut self) {
        self.until = None;
    }

    /// Nothing could be written. Is it so for too long?
    pub(super) fn poll(&mut self, limit: Option<Duration>, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(limit) = limit else { return Poll::Pending };
        let until = *self.until.get_or_insert_with(|| Instant::now() + limit);
        ready!(self.timer.poll(until, cx));
        self.fired = true;
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }

    pub(super) fn has_fired(&self) -> bool {
        self.fired
    }
}

thread_local! {
    /// What the answer that this task is writing did last. Set and read within one poll of one task.
    static LAST: Cell<Last> = const { Cell::new(Last::Nothing) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// It was not asked.
    Nothing,
    /// It has nothing to say yet: the server is waited for.
    Waits,
    /// It gave so many bytes, and the client has to make room before it is asked again.
    Gave(usize),
}

fn gave(bytes: usize) {
    LAST.set(match LAST.get() {
        Last::Gave(before) => Last::Gave(before.saturating_add(bytes)),
        _ => Last::Gave(bytes),
    });
}

/// An answer's body over HTTP/2, which tells when it is asked for more. The library asks when the client has room.
pub(super) struct Told {
    body: Body,
    flushes: Rc<Flushes>,
    failed: Option<Failed>,
}

/// The answer breaks off, which is told behind what came before.
struct Failed {
    error: Box<dyn Error + Send + Sync>,
    mark: u64,
}

impl Told {
    /// The head goes out; the body follows as soon as the client has room.
    pub(super) fn new(body: Body, flushes: Rc<Flushes>) -> Self {
        gave(0);
        Told { body, flushes, failed: None }
    }
}

impl hyper::body::Body for Told {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if this.failed.is_none() {
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    gave(frame.data_ref().map_or(0, Bytes::len));
                    return Poll::Ready(Some(Ok(frame)));
                }
                Poll::Ready(None) => {
                    gave(0);
                    return Poll::Ready(None);
                }
                Poll::Pending => {
                    LAST.set(Last::Waits);
                    return Poll::Pending;
                }
                Poll::Ready(Some(Err(error))) => {
                    this.failed = Some(Failed { error, mark: this.flushes.mark() });
                }
            }
        }
        gave(0);
        let Some(Failed { error, mark }) = this.failed.take() else { return Poll::Ready(None) };
        if this.flushes.poll(mark, cx).is_pending() {
            this.failed = Some(Failed { error, mark });
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(error)))
    }

    fn is_end_stream(&self) -> bool {
        self.failed.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Spawns the answers of one HTTP/2 connection, and gives up those that are not taken: dropping one resets its stream.
pub(super) struct Answering<S> {
    pub(super) service: Rc<S>,
    pub(super) limit: Option<Duration>,
}

impl<S> Clone for Answering<S> {
    fn clone(&self) -> Self {
        Answering { service: self.service.clone(), limit: self.limit }
    }
}

impl<S: Service, F> Executor<F> for Answering<S>
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, task: F) {
        let Some(limit) = self.limit else {
            tokio::task::spawn_local(task);
            return;
        };
        let service = self.service.clone();
        let taken = Taken { task, limit, until: None, timer: Moving::default() };
        // No `async` block: it would keep the answer's whole state twice, once as it was given and once as it is polled.
        tokio::task::spawn_local(taken.map(move |ended| {
            if ended.is_err() {
                service.abandoned(&fault(limit));
            }
        }));
    }
}

/// The client does not take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NotTaken;

pin_project_lite::pin_project! {
    /// An answer that has to be taken.
    struct Taken<F> {
        #[pin]
        task: F,
        limit: Duration,
        // When the client must have made room; `None`: it is not waited for.
        until: Option<Instant>,
        timer: Moving,
    }
}

impl<F: Future<Output = ()>> Future for Taken<F> {
    type Output = Result<(), NotTaken>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        LAST.set(Last::Nothing);
        if this.task.poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        match LAST.get() {
            Last::Nothing => {}
            Last::Waits => *this.until = None,
            Last::Gave(bytes) => {
                let steps = u32::try_from(bytes.div_ceil(STEP)).unwrap_or(u32::MAX).max(1);
                *this.until = Instant::now().checked_add(this.limit.saturating_mul(steps));
            }
        }
        let Some(until) = *this.until else { return Poll::Pending };
        this.timer.poll(until, cx).map(|()| Err(NotTaken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    const LIMIT: Duration = Duration::from_secs(60);

    fn taken(task: impl Future<Output = ()>) -> impl Future<Output = Result<(), NotTaken>> {
        Taken { task: Box::pin(task), limit: LIMIT, until: None, timer: Moving::default() }
    }

    /// Waits as the library does, and leaves this behind.
    async fn pauses(last: Last, pause: Duration) {
        let mut timer = Box::pin(tokio::time::sleep(pause));
        let mut first = true;
        poll_fn(|cx| {
            if std::mem::take(&mut first) {
                LAST.set(last);
            }
            timer.as_mut().poll(cx)
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_given_up() {
        let begun = Instant::now();
        assert_eq!(taken(pauses(Last::Gave(10), LIMIT * 9)).await, Err(NotTaken));
        assert_eq!(begun.elapsed().as_secs(), LIMIT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_or_waits_for_the_server_is_not() {
        let slow = async {
            for _ in 0..20 {
                pauses(Last::Gave(10), LIMIT - Duration::from_secs(1)).await;
            }
        };
        assert_eq!(taken(slow).await, Ok(()));
        assert_eq!(taken(pauses(Last::Gave(4 * STEP), LIMIT * 3)).await, Ok(()), "a large piece");
        assert_eq!(taken(pauses(Last::Waits, LIMIT * 9)).await, Ok(()), "the server");
        assert_eq!(taken(pauses(Last::Nothing, LIMIT * 9)).await, Ok(()), "no answer yet");
    }
}
