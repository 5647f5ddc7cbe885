//! Inbound bytes of any kind: decided once per connection, and again whenever the policy changes.

use super::Connection;
use crate::{
    detect,
    io::{Io, errno},
    metrics::{Count, labels::Labels},
};
use std::{cell::Cell, sync::Arc, time::Duration};
use tokio::sync::watch;
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    identity::ClientTls,
    inbound::{Caller, Permit, ServerPolicy, authorize_tcp},
};
use weft_net::copy::{self, Side};

/// How long a refusal waits for its client to show that it only probed. Servers that speak first would be silent longer.
const PROBE: Duration = Duration::from_millis(100);

pub(super) async fn relay(
    connection: Connection,
    mut io: Io,
    policy: watch::Receiver<Arc<ServerPolicy>>,
) -> Result<(), Fault> {
    let ended = forward(&connection, &mut io, policy).await;
    if let Err(fault) = &ended {
        // The client must not take an orderly end for a complete answer.
        io.refuse(fault).await;
    }
    ended
}

async fn forward(
    connection: &Connection,
    io: &mut Io,
    mut policy: watch::Receiver<Arc<ServerPolicy>>,
) -> Result<(), Fault> {
    let story = &connection.story;
    story.endpoint(connection.app);

    // 1. May it?
    permit(connection, io, &mut policy).await?;

    // 2. Dial the application before any byte is promised to the caller.
    let pool = connection.worker.app(connection.app);
    let (mut app, made) = pool.dial(crate::connect::Sessions::OPAQUE).await?;
    pool.tell(story, Some(made));
    io.accept().await?;

    // 3. Copy until both sides have ended, or the permit is withdrawn.
    let sent = Cell::new(0_u64);
    let mut passed = |side, count: usize| {
        if side == Side::Client {
            sent.set(sent.get() + count as u64);
        }
    };
    let _copying = story.timed(Phase::Copy);
    tokio::select! {
        biased;
        fault = withdrawn(connection, &mut policy) => Err(fault),
        copied = copy::both_ways(io, &mut app, &mut passed) => copied.map_err(|error| {
            // The application must not take an orderly end for a complete request.
            app.abort();
            let (side, reset) = (error.side, errno(&error.error) == "ECONNRESET");
            let code = match side {
                // Probes leave like that.
                Side::Client if reset && sent.get() == 0 => Code::ClientSilent,
                _ if reset => Code::ConnectionReset,
                _ => Code::NetworkIo,
            };
            Fault::new(code).in_phase(Phase::Copy).because(error).fact("side", match side {
                Side::Client => "client",
                Side::Server => "application",
            })
        }),
    }
}

/// Decides about a connection whose bytes nobody will look at, and counts it from then on.
pub(super) async fn permit(
    connection: &Connection,
    io: &mut Io,
    policy: &mut watch::Receiver<Arc<ServerPolicy>>,
) -> Result<(), Fault> {
    let now = policy.borrow_and_update().clone();
    let permit = connection.authorize(&now, io).await?;
    connection.story.decided(&now.meta, Some(permit.authorization()));
    let allowed = format!("allowed by {} of {}", permit.authorization(), now.meta);
    connection.story.event(Phase::Authorize, allowed);
    connection.count(io, &now);
    Ok(())
}

impl Connection {
    async fn authorize(&self, policy: &ServerPolicy, io: &mut Io) -> Result<Permit, Fault> {
        let caller = Caller { addr: self.client.ip(), tls: &self.tls };
        let labels =
            || Labels::new().target(self.app).server(&policy.meta, self.app.port()).client_tls(&self.tls);
        let metrics = &self.worker.mesh.metrics;
        let deciding = self.story.timed(Phase::Authorize);
        let decided = authorize_tcp(policy, &caller);
        drop(deciding);
        match decided {
            Ok(permit) => {
                self.audited(policy, &permit);
                let labels = labels().policy("authz", permit.authorization());
                metrics.counter(Count::InboundTcpAuthzAllow, &labels).add(1);
                Ok(permit)
            }
            Err(denied) => {
                let plain = matches!(self.tls, ClientTls::None(_));
                if plain && detect::left_silently(io.stream(), PROBE).await {
                    return Err(Fault::new(Code::ClientSilent).in_phase(Phase::Authorize));
                }
                metrics.counter(Count::InboundTcpAuthzDeny, &labels()).add(1);
                self.story.decided(&policy.meta, None);
                Err(self.denied(policy, &denied))
            }
        }
    }
}

/// Returns when a changed policy does not allow the connection any more. One that goes on allowing it is no interruption.
pub(super) async fn withdrawn(
    connection: &Connection,
    policy: &mut watch::Receiver<Arc<ServerPolicy>>,
) -> Fault {
    loop {
        if policy.changed().await.is_err() {
            // No further policy will come: the last one stands.
            return std::future::pending().await;
        }
        let now = policy.borrow_and_update().clone();
        let caller = Caller { addr: connection.client.ip(), tls: &connection.tls };
        if let Err(denied) = authorize_tcp(&now, &caller) {
            return connection.withdrawn(&now, &denied);
        }
    }
}
