//! From start to SIGTERM to the end, the same for every serving role.

use crate::{Error, text::say};
use std::time::Duration;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Where a program is in its life. Only ever moves downward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    /// Readiness is off, but callers that have not noticed yet are still served.
    Leaving,
    /// No new connections; those that are open finish what they do.
    Closing,
}

/// Flags of every serving role.
#[derive(clap::Args, Debug, Clone)]
pub struct LifecycleOptions {
    /// How long to keep serving after SIGTERM with readiness off, so that callers can turn elsewhere
    #[arg(long, env = "SHOP_DRAIN", default_value = "2s", value_parser = crate::text::duration)]
    pub drain: Duration,
    /// How long requests in flight may then take to finish
    #[arg(long, env = "SHOP_GRACE", default_value = "10s", value_parser = crate::text::duration)]
    pub grace: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Lifecycle {
    stage: watch::Receiver<Stage>,
    grace: Duration,
}

impl Lifecycle {
    /// Begins to watch for SIGTERM and SIGINT.
    pub(crate) fn start(role: &'static str, options: &LifecycleOptions) -> Result<Self, Error> {
        let mut term = signal(SignalKind::terminate()).map_err(Error::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
        let (to, stage) = watch::channel(Stage::Serving);
        let drain = options.drain;
        tokio::spawn(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
            say(role, format_args!("asked to end: not ready any more, serving {drain:?} longer"));
            to.send_replace(Stage::Leaving);
            tokio::time::sleep(drain).await;
            to.send_replace(Stage::Closing);
            // The sender lives as long as someone may ask.
            to.closed().await;
        });
        Ok(Lifecycle { stage, grace: options.grace })
    }

    pub(crate) fn ready(&self) -> bool {
        *self.stage.borrow() == Stage::Serving
    }

    /// Returns at SIGTERM.
    pub(crate) async fn leaving(&self) {
        self.reached(Stage::Leaving).await;
    }

    /// Returns when no new connections are to be taken.
    pub(crate) async fn closing(&self) {
        self.reached(Stage::Closing).await;
    }

    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    async fn reached(&self, stage: Stage) {
        // An error means that the signal task is gone, which only happens with the runtime.
        let _ = self.stage.clone().wait_for(|now| *now >= stage).await;
    }
}

#[cfg(test)]
impl Lifecycle {
    /// One that the test ends.
    pub(crate) fn for_test() -> (Self, impl FnOnce()) {
        let (to, stage) = watch::channel(Stage::Serving);
        let end = move || {
            to.send_replace(Stage::Closing);
            // Kept until the receivers are gone, as in `start`.
            tokio::spawn(async move { to.closed().await });
        };
        (Lifecycle { stage, grace: Duration::from_secs(5) }, end)
    }
}
