//! HTTP, one request at a time: what both directions share.

mod alive;
pub(crate) mod body;
pub(crate) mod client;
pub(crate) mod filters;
mod flood;
mod flushes;
mod frames;
pub(crate) mod h1;
pub(crate) mod headers;
pub(crate) mod instead;
pub(crate) mod orig_proto;
pub(crate) mod pool;
mod push;
pub(crate) mod replay;
pub(crate) mod respond;
pub(crate) mod server;
mod stall;
pub(crate) mod upgrade;
pub(crate) mod wellformed;

/// Spawns on the worker that runs: nothing of a connection ever moves to another thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnWorker;

impl<F> hyper::rt::Executor<F> for OnWorker
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}
