//! What observers need beside the data path: a port to be asked at, and tasks of the agent.

use super::Observers;
use crate::{
    access_log::AccessLog,
    config::{self, Config},
    control::{Dialer, Service, Whom},
    mesh::Mesh,
    metrics::Metrics,
    tap,
    trace::{self, Tracer, otlp},
};
use std::{io::Write, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::mpsc};
use weft_fault::{Code, Fault, Phase};

/// The tasks that are to be started when there is a mesh.
pub struct Unstarted {
    tap: Option<(config::Tap, TcpListener)>,
    trace: Option<(config::Trace, mpsc::Receiver<otlp::Span>)>,
    batch_wait: Duration,
}

/// How long a span waits for others to be sent with.
const BATCH_WAIT: Duration = Duration::from_secs(10);

/// The observers that the configuration asks for. The lines of the access log go to `lines_to`.
pub fn prepare(
    config: &Config,
    metrics: &Metrics,
    lines_to: impl Write + Send + 'static,
) -> Result<(Observers, Unstarted), Fault> {
    let tap = match &config.tap {
        Some(settings) => {
            let listener = tap::serve::listen(settings, config.inbound.sockets.backlog).map_err(|error| {
                let fault = Fault::new(Code::StartFailed).in_phase(Phase::Start);
                fault.about(format!("listening on {}", settings.listen)).because(error)
            })?;
            Some((settings.clone(), listener))
        }
        None => None,
    };
    let (tracer, trace) = match &config.trace {
        Some(settings) => {
            let (tracer, spans) = Tracer::new(metrics);
            (Some(tracer), Some((settings.clone(), spans)))
        }
        None => (None, None),
    };
    let access_log = config.access_log.clone().map(|settings| AccessLog::start(settings, lines_to));
    Ok((Observers::new(access_log, tracer), Unstarted { tap, trace, batch_wait: BATCH_WAIT }))
}

impl Unstarted {
    /// Where taps are asked for.
    #[must_use]
    pub fn tap_addr(&self) -> Option<SocketAddr> {
        self.tap.as_ref().and_then(|(_, listener)| listener.local_addr().ok())
    }

    /// Sends spans sooner: for tests that have a few.
    #[must_use]
    pub fn with_batch_wait(mut self, wait: Duration) -> Self {
        self.batch_wait = wait;
        self
    }

    /// Starts the tasks on this runtime; they run until it ends.
    pub fn start(self, mesh: &Arc<Mesh>) {
        if let Some((settings, listener)) = self.tap {
            tokio::spawn(tap::serve::run(mesh.clone(), settings, listener));
        }
        if let Some((settings, spans)) = self.trace {
            let whom = Whom::Certified(mesh.identity.clone());
            let dialer = Dialer::for_proxy(&mesh.config, "trace", &settings.collector, whom);
            let collector = Service::start(dialer);
            tokio::spawn(trace::run(
                collector,
                settings.attributes,
                spans,
                mesh.metrics.clone(),
                self.batch_wait,
            ));
        }
    }
}
