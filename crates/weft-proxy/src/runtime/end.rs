//! Who tells the process to end, and how urgently.

use std::future::pending;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

/// Signals, and the admin server's word.
pub(super) struct Orders {
    signals: Option<Signals>,
    admin: mpsc::Receiver<()>,
}

struct Signals {
    term: Signal,
    int: Signal,
}

impl Orders {
    pub(super) fn new(admin: mpsc::Receiver<()>) -> Self {
        let signals = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            (Ok(term), Ok(int)) => Some(Signals { term, int }),
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(%error, "signals cannot be caught");
                None
            }
        };
        Orders { signals, admin }
    }

    /// Waits for the order to end. Cancel-safe.
    pub(super) async fn asked(&mut self) {
        let Some(Signals { term, int }) = &mut self.signals else {
            self.admin.recv().await;
            return;
        };
        tokio::select! {
            _ = term.recv() => tracing::info!("SIGTERM"),
            _ = int.recv() => tracing::info!("SIGINT"),
            _ = self.admin.recv() => tracing::info!("shutdown asked for at the admin port"),
        }
    }

    /// Waits until somebody does not want to wait for the end any more: an interrupt, which a person sends. Orchestrators repeat
    /// SIGTERM without meaning more by it.
    pub(super) async fn insisted(&mut self) {
        let Some(Signals { term, int }) = &mut self.signals else { return pending().await };
        loop {
            tokio::select! {
                _ = term.recv() => tracing::info!("SIGTERM again: shutting down already"),
                _ = int.recv() => return,
            }
        }
    }
}
