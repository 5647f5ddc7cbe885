//! Conversations with the control plane: one HTTP/2 connection per service, kept up for as long as the process lives.

pub mod connection;
pub mod lookup;
pub mod report;
#[cfg(test)]
mod tests;

use crate::{config::ControlAddr, identity};
use connection::Connection;
use rand::Rng;
use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::sync::watch;
use weft_fault::{Code, Fault, FaultRecord, Phase};
use weft_tls::{bundle::TrustBundle, credentials::Client as TlsClient};

/// Delays between attempts: doubled from the first to the second, with a fifth of it random.
pub const CONNECT_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// A connection that lasted so long was a good one.
const LASTED: Duration = Duration::from_secs(5);

/// How it stands with the connection to one service.
#[derive(Clone, Debug)]
enum State {
    Down { since: Instant, last: Option<Arc<FaultRecord>> },
    Up(Connection),
}

/// One service of the control plane. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service {
    name: &'static str,
    /// Shown in faults.
    addr: Arc<str>,
    state: watch::Receiver<State>,
    on_loopback: bool,
}

/// What makes a connection to a service.
pub struct Dialer {
    pub name: &'static str,
    pub addr: ControlAddr,
    pub anchors: TrustBundle,
    /// Wait for a certificate and present it; without, the first conversation is anonymous.
    pub present: Option<identity::Handle>,
}

impl Service {
    /// Starts to connect, and returns at once. The task ends when every clone of the service is gone.
    pub fn start(dialer: Dialer) -> Service {
        let (publish, state) = watch::channel(State::Down { since: Instant::now(), last: None });
        let service = Service {
            name: dialer.name,
            addr: format!("{}:{}", dialer.addr.host, dialer.addr.port).into(),
            state,
            on_loopback: dialer.addr.name.is_none(),
        };
        tokio::spawn(keep_up(dialer, publish));
        service
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Plaintext on loopback: limits on streams do not apply.
    pub fn on_loopback(&self) -> bool {
        self.on_loopback
    }

    /// A connection, waited for until `deadline`.
    pub async fn connection(&self, deadline: Instant) -> Result<Connection, Fault> {
        let mut state = self.state.clone();
        let up = state.wait_for(|state| matches!(state, State::Up(connection) if connection.is_open()));
        if let Ok(Ok(state)) = tokio::time::timeout_at(deadline.into(), up).await
            && let State::Up(connection) = &*state
        {
            return Ok(connection.clone());
        }
        Err(self.down())
    }

    pub fn is_connected(&self) -> bool {
        matches!(&*self.state.borrow(), State::Up(connection) if connection.is_open())
    }

    /// Why there is no connection now.
    pub fn down(&self) -> Fault {
        let fault = Fault::new(Code::ControllerUnreachable)
            .in_phase(Phase::Control)
            .about(self.name)
            .peer(&self.addr);
        match &*self.state.borrow() {
            State::Up(_) => fault,
            State::Down { since, last } => {
                let fault = fault.since(SystemTime::now() - since.elapsed());
                match last {
                    Some(cause) => fault.because(cause.as_cause()),
                    None => fault,
                }
            }
        }
    }
}

/// Connects, waits for the connection to end, connects again.
async fn keep_up(dialer: Dialer, publish: watch::Sender<State>) {
    let mut failures = 0;
    let mut since = Instant::now();
    loop {
        let tls = match &dialer.present {
            None => TlsClient::anonymous(&dialer.anchors),
            Some(identity) if dialer.addr.name.is_none() => identity
                .current()
                .map_or_else(|| TlsClient::anonymous(&dialer.anchors), |c| c.client().clone()),
            Some(identity) => tokio::select! {
                credentials = identity.clone().first() => credentials.client().clone(),
                () = publish.closed() => return,
            },
        };
        let connected = tokio::select! {
            connected = connection::connect(&dialer.addr, &tls) => connected,
            () = publish.closed() => return,
        };
        let fault = match connected {
            Ok((connection, ended)) => {
                tracing::debug!(service = dialer.name, peer = %connection.peer(), "connected");
                publish.send_replace(State::Up(connection));
                let up = Instant::now();
                let fault = tokio::select! {
                    fault = ended => fault,
                    () = publish.closed() => return,
                };
                since = Instant::now();
                // A peer that accepts and hangs up at once is as good as one that refuses.
                if up.elapsed() >= LASTED {
                    failures = 0;
                }
                fault
            }
            Err(fault) => fault,
        };
        failures += 1;
        let record = Arc::new(fault.record());
        // Each attempt fails alike: the first and then ever rarer ones are told.
        if u32::is_power_of_two(failures) {
            tracing::warn!(service = dialer.name, failures, "{fault:?}");
        }
        publish.send_replace(State::Down { since, last: Some(record) });
        tokio::select! {
            () = tokio::time::sleep(backoff(CONNECT_BACKOFF, failures)) => {}
            () = publish.closed() => return,
        }
    }
}

/// The delay after this many failures.
pub fn backoff((first, last): (Duration, Duration), failures: u32) -> Duration {
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(last);
    doubled.mul_f64(0.9 + rand::rng().random::<f64>() * 0.2)
}
