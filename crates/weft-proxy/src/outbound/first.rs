//! Servers that speak first. Where no rule of the mesh looks at the requests of a destination, its server is dialled while the
//! client is still silent; if the server says something, the bytes are nobody's HTTP.

use super::{Connection, endpoint::Member, main_backend};
use crate::{connect::Sessions, discovery::Destination, http::pool::Pool, io::Io};
use std::{cell::RefCell, future::pending, rc::Rc, time::Duration};
use weft_model::{
    meta::Meta,
    outbound::{BackendKind, OutboundProtocol},
};

/// Clients that speak first do so at once: for them, nothing is dialled that is not used.
const SPEAKS_AT_ONCE: Duration = Duration::from_millis(50);
const PEEK: usize = 4 * 1024;

/// A connection to the one server that bytes of a destination go to.
pub(super) struct Early {
    member: Rc<Member>,
    io: RefCell<Option<Io>>,
}

impl Early {
    /// `None` where rules, a choice of endpoints or TLS stand between the client and the server.
    pub(super) fn of(connection: &Connection, destination: &Destination) -> Option<Self> {
        let bare = matches!(*destination.policy.meta, Meta::Default(_))
            && destination.service.is_none()
            && !destination.awaits_identity;
        let OutboundProtocol::Detect { opaque, .. } = &destination.policy.protocol else { return None };
        let allowed = opaque.routes.first().is_some_and(|route| route.refuses.is_none());
        let backend = main_backend(&destination.policy.protocol).filter(|_| bare && allowed)?;
        let BackendKind::Forward(endpoint) = &backend.kind else { return None };
        let member = connection.worker.forward(endpoint, destination.strict);
        let plain = !member.meshed && member.pool.is_ok();
        plain.then(|| Early { member, io: RefCell::new(None) })
    }

    /// Returns when the server has spoken; never, if it does not.
    pub(super) async fn speaks(&self) {
        tokio::time::sleep(SPEAKS_AT_ONCE).await;
        let Some(mut io) = self.dial().await else { return pending().await };
        let spoke = io.stream().fill(PEEK).await;
        let silent = !matches!(spoke, Ok(bytes) if bytes > 0);
        self.io.replace(Some(io));
        if silent {
            // It closed without a word: the client has to speak after all, to a connection of its own.
            self.io.take();
            pending::<()>().await;
        }
    }

    async fn dial(&self) -> Option<Io> {
        let pool: &Rc<Pool> = self.member.pool.as_ref().ok()?;
        // What goes wrong here is found out again, and told, when the client speaks.
        Some(pool.dial(Sessions::OPAQUE).await.ok()?.0)
    }

    /// The connection on which the server has spoken.
    pub(super) fn taken(self) -> Option<(Rc<Member>, Io)> {
        Some((self.member, self.io.take()?))
    }
}
