//! What was written before something failed. The HTTP/2 library throws away what waits to be written of a stream when that is
//! reset; a response that breaks off is to be reset only behind the pieces that came before.

use std::{
    cell::{Cell, RefCell},
    task::{Context, Poll, Waker},
};

/// How often a connection's whole output was written. Shared by the connection and the answers on it.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    count: Cell<u64>,
    /// The task that drives the connection.
    connection: RefCell<Option<Waker>>,
    waiting: RefCell<Vec<Waker>>,
}

/// So many flushes from now everything that is queued now was written: one may belong to what was under way already.
const ENOUGH: u64 = 2;

impl Flushes {
    /// The connection is polled by this task.
    pub(super) fn driven_by(&self, cx: &Context<'_>) {
        let mut connection = self.connection.borrow_mut();
        match &mut *connection {
            Some(known) => known.clone_from(cx.waker()),
            None => *connection = Some(cx.waker().clone()),
        }
    }

    /// Nothing is left to be written.
    pub(super) fn flushed(&self) {
        self.count.set(self.count.get() + 1);
        if !self.waiting.borrow().is_empty() {
            self.waiting.take().into_iter().for_each(Waker::wake);
        }
    }

    /// When what is queued now will have been written, for [`Flushes::poll`].
    pub(super) fn mark(&self) -> u64 {
        self.count.get() + ENOUGH
    }

    /// Waits until all that was queued at a mark is written. A client that reads nothing ends its connection by that, and
    /// a connection that ends wakes its answers.
    pub(super) fn poll(&self, mark: u64, cx: &Context<'_>) -> Poll<()> {
        if self.count.get() >= mark {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        drop(waiting);
        // A connection that is polled flushes, even where it has nothing to write.
        if let Some(connection) = &*self.connection.borrow() {
            connection.wake_by_ref();
        }
        Poll::Pending
    }
}
