//! Inbound bytes of any kind: decided once per connection, and again whenever the policy changes.

use super::Connection;
use crate::{
    io::{Io, errno},
    metrics::{Count, labels::Labels},
};
use std::{cell::Cell, sync::Arc};
use tokio::sync::watch;
use weft_fault::{Code, Fault, Phase};
use weft_model::inbound::{Caller, ServerPolicy, authorize_tcp};
use weft_net::copy::{self, Side};

pub(super) async fn relay(
    connection: Connection,
    mut io: Io,
    mut policy: watch::Receiver<Arc<ServerPolicy>>,
) -> Result<(), Fault> {
    let story = &connection.story;

    // 1. May it?
    let now = policy.borrow_and_update().clone();
    let permit = connection.authorize(&now)?;
    story.decided(&now.meta, Some(permit.authorization()));
    connection.count(&mut io, &now);

    // 2. Dial the application before any byte is promised to the caller.
    let mut app = connection.worker.app(connection.app).dial(None).await?;
    story.event(Phase::Connect, "connected to the application");

    // 3. Copy until both sides have ended, or the permit is withdrawn.
    let (up, down) = (Cell::new(0_u64), Cell::new(0_u64));
    let mut passed = |side, count: usize| {
        let bytes = if side == Side::Client { &up } else { &down };
        bytes.set(bytes.get() + count as u64);
    };
    let ended = tokio::select! {
        biased;
        fault = withdrawn(&connection, &mut policy) => Err(fault),
        copied = copy::both_ways(&mut io, &mut app, &mut passed) => copied.map_err(|error| {
            let side = error.side;
            let code = if errno(&error.error) == "ECONNRESET" { Code::ConnectionReset } else { Code::NetworkIo };
            Fault::new(code).in_phase(Phase::Copy).because(error).fact("side", match side {
                Side::Client => "client",
                Side::Server => "application",
            })
        }),
    };
    story.bytes(up.get(), down.get());
    ended
}

impl Connection {
    fn authorize(&self, policy: &ServerPolicy) -> Result<weft_model::inbound::Permit, Fault> {
        let caller = Caller { addr: self.client.ip(), tls: &self.tls };
        let labels =
            || Labels::new().with("target_addr", self.app).policy("srv", &policy.meta).client_tls(&self.tls);
        let metrics = &self.worker.mesh.metrics;
        match authorize_tcp(policy, &caller) {
            Ok(permit) => {
                let labels = labels().policy("authz", permit.authorization());
                metrics.counter(Count::InboundTcpAuthzAllow, &labels).add(1);
                Ok(permit)
            }
            Err(denied) => {
                metrics.counter(Count::InboundTcpAuthzDeny, &labels()).add(1);
                Err(self.denied(&denied))
            }
        }
    }
}

/// Returns when a changed policy does not allow the connection any more. One that goes on allowing it is no interruption.
async fn withdrawn(connection: &Connection, policy: &mut watch::Receiver<Arc<ServerPolicy>>) -> Fault {
    loop {
        if policy.changed().await.is_err() {
            // No further policy will come: the last one stands.
            return std::future::pending().await;
        }
        let now = policy.borrow_and_update().clone();
        let caller = Caller { addr: connection.client.ip(), tls: &connection.tls };
        if let Err(denied) = authorize_tcp(&now, &caller) {
            let labels = Labels::new()
                .with("target_addr", connection.app)
                .policy("srv", &now.meta)
                .client_tls(&connection.tls);
            connection.worker.mesh.metrics.counter(Count::InboundTcpAuthzTerminate, &labels).add(1);
            return Fault::new(Code::PermitWithdrawn)
                .in_phase(Phase::Copy)
                .peer(connection.client)
                .because(connection.denied(&denied));
        }
    }
}
