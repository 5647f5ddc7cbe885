//! Beside an ingress: requests name the service that they are for, since the ingress has chosen a pod of its own.

use super::{Requests, ask::Kind};
use crate::{discovery::Destination, http::headers, latest::Latest};
use http::HeaderValue;
use std::{rc::Rc, sync::Arc, time::Instant};
use weft_fault::{Code, Fault, Phase};

/// More names than this on one connection: the oldest is looked up again.
const NAMED: usize = 32;

impl Requests {
    /// Where a request is going: to the service that it names, or to the original destination.
    pub(super) async fn destination(&self, kind: &Kind) -> Result<Arc<Destination>, Fault> {
        let connection = &self.connection;
        let ingress = connection.worker.mesh.config.outbound.ingress_mode;
        match kind.dst_override.as_ref().filter(|_| ingress) {
            None => Ok(connection.usable_destination().await),
            Some(name) => {
                let named = self.named(name).await?;
                Ok(connection.usable(&named).await)
            }
        }
    }

    /// A name's destination, looked up once per connection and then followed.
    async fn named(&self, name: &HeaderValue) -> Result<Rc<Latest<Destination>>, Fault> {
        let known = self.named.borrow().iter().find(|(known, _)| known == name).map(|(_, at)| at.clone());
        if let Some(known) = known {
            return Ok(known);
        }
        let text = String::from_utf8_lossy(name.as_bytes());
        let parsed = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let Some((host, Ok(port))) = parsed.map(|(host, port)| (host, port.parse::<u16>())) else {
            let fault = Fault::new(Code::BadRequest).in_phase(Phase::Route);
            return Err(fault.fact("header", headers::DST_OVERRIDE).fact("value", format!("{text:?}")));
        };
        let mesh = &self.connection.worker.mesh;
        let deadline = Instant::now() + mesh.config.outbound.failfast_timeout;
        let host = host.to_ascii_lowercase();
        if !mesh.config.asks_about(&host) {
            let fault = Fault::new(Code::NameNotKnown).in_phase(Phase::Discover).about(&text);
            return Err(fault.fact("suffixes", mesh.config.profile_suffixes.join(" ")));
        }
        let found = Rc::new(Latest::new(mesh.discovery.by_name(&host, port, deadline).await?));
        let mut all = self.named.borrow_mut();
        if all.len() == NAMED {
            all.remove(0);
        }
        all.push((name.clone(), found.clone()));
        Ok(found)
    }
}
