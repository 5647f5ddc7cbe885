//! The newest value of a watched snapshot, without a lock where nothing has changed.

use std::{cell::RefCell, sync::Arc};
use tokio::sync::watch;

/// One connection's view of something the agent publishes.
pub(crate) struct Latest<T> {
    watch: RefCell<watch::Receiver<Arc<T>>>,
    now: RefCell<Arc<T>>,
}

impl<T> Latest<T> {
    pub(crate) fn new(mut watch: watch::Receiver<Arc<T>>) -> Self {
        let now = watch.borrow_and_update().clone();
        Latest { watch: RefCell::new(watch), now: RefCell::new(now) }
    }

    pub(crate) fn get(&self) -> Arc<T> {
        let mut watch = self.watch.borrow_mut();
        // An error means that no further value will come, not that the last one was seen: look again.
        if !matches!(watch.has_changed(), Ok(false)) {
            let newest = watch.borrow_and_update().clone();
            *self.now.borrow_mut() = newest;
        }
        self.now.borrow().clone()
    }

    /// A receiver of its own, for who waits for changes.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<T>> {
        self.watch.borrow().clone()
    }
}
