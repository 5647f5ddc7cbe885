//! What is under way when a policy changes is ended if the new policy would not let it begin.
//!
//! Requests are decided one by one, so an idle HTTP connection may stay: it carries nothing. A response that still comes,
//! a stream, and a connection that stopped being HTTP are another matter.

use super::Connection;
use crate::{
    latest::Latest,
    metrics::{Count, labels::Labels},
};
use std::{
    cell::RefCell,
    convert::Infallible,
    future::pending,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::{Notify, watch};
use weft_fault::{Code, Fault, FaultRecord, Phase};
use weft_model::inbound::{Caller, Denied, Permit, ServerPolicy, still_allowed};

/// Shared by all that one permit allowed on one connection: each exchange holds it for as long as it is under way.
#[derive(Default)]
pub(crate) struct Hold {
    why: RefCell<Option<Arc<FaultRecord>>>,
    notify: Notify,
}

impl Hold {
    pub(super) fn withdraw(&self, why: &Fault) {
        *self.why.borrow_mut() = Some(Arc::new(why.record()));
        self.notify.notify_waiters();
    }

    pub(crate) fn is_withdrawn(&self) -> Option<Fault> {
        self.why.borrow().as_ref().map(|why| why.again())
    }

    /// Waits until the permit is withdrawn. Cancel-safe.
    pub(crate) async fn withdrawn(&self) -> Fault {
        loop {
            // Made before the look, so that nothing falls in between.
            let notified = self.notify.notified();
            if let Some(why) = self.is_withdrawn() {
                return why;
            }
            notified.await;
        }
    }
}

/// A response's share of a [`Hold`]. Waiting costs an allocation, once it has to wait at all.
pub(crate) struct Held {
    hold: Rc<Hold>,
    waiting: Option<Pin<Box<dyn Future<Output = Fault>>>>,
}

impl Held {
    pub(crate) fn new(hold: Rc<Hold>) -> Self {
        Held { hold, waiting: None }
    }

    pub(crate) fn is_withdrawn(&self) -> Option<Fault> {
        self.hold.is_withdrawn()
    }

    pub(crate) fn poll_withdrawn(&mut self, cx: &mut Context<'_>) -> Option<Fault> {
        let hold = &self.hold;
        let waiting = self.waiting.get_or_insert_with(|| {
            let hold = hold.clone();
            Box::pin(async move { hold.withdrawn().await })
        });
        match waiting.as_mut().poll(cx) {
            Poll::Ready(why) => Some(why),
            Poll::Pending => None,
        }
    }
}

/// Tells `look` of every policy that replaces the one in force.
pub(super) async fn each_change(
    policy: &Latest<ServerPolicy>,
    mut look: impl FnMut(&ServerPolicy),
) -> Infallible {
    let mut watch = policy.watch();
    loop {
        let now = next(&mut watch).await;
        look(&now);
    }
}

async fn next(policy: &mut watch::Receiver<Arc<ServerPolicy>>) -> Arc<ServerPolicy> {
    if policy.changed().await.is_err() {
        // No further policy will come: the last one stands.
        return pending().await;
    }
    policy.borrow_and_update().clone()
}

impl Connection {
    /// Why the policy would not allow any more what `permit` did.
    pub(super) fn recheck(&self, now: &ServerPolicy, permit: &Permit) -> Option<Fault> {
        let caller = Caller { addr: self.client.ip(), tls: &self.tls };
        let denied = still_allowed(now, permit, &caller).err()?;
        Some(self.withdrawn(now, &denied))
    }

    /// Waits until a policy does not allow `permit` any more.
    pub(super) async fn outlasts(
        &self,
        policy: watch::Receiver<Arc<ServerPolicy>>,
        permit: &Permit,
    ) -> Fault {
        let mut policy = policy;
        loop {
            let now = next(&mut policy).await;
            if let Some(fault) = self.recheck(&now, permit) {
                return fault;
            }
        }
    }

    pub(super) fn withdrawn(&self, now: &ServerPolicy, denied: &Denied) -> Fault {
        let labels = Labels::new().target(self.app).server(&now.meta, self.app.port()).client_tls(&self.tls);
        self.worker.mesh.metrics.counter(Count::InboundTcpAuthzTerminate, &labels).add(1);
        Fault::new(Code::PermitWithdrawn)
            .in_phase(Phase::Copy)
            .peer(self.client)
            .because(self.denied(now, denied))
    }
}
