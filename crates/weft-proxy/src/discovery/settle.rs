//! Endpoints without an identity: what is done about each, and until when.

use super::{context::Context, memory::is_open};
use futures_util::{StreamExt, stream};
use std::{
    collections::{BTreeSet, HashMap},
    future::{pending, poll_fn},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};
use tokio::time::Sleep;
use weft_fault::Code;
use weft_model::{identity::PeerIdentity, outbound::Endpoint};
use weft_wire::mesh::State;

/// What the controller said in as many words.
#[derive(Clone, Debug)]
pub(crate) enum Confirmed {
    Meshed(Arc<Endpoint>),
    Unmeshed,
    Unknown,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A confirmation came: look at the answers again.
    Look,
    /// Ask the questions again: an identity is still missing.
    AskAgain,
}

/// Delays in milliseconds between questions for an identity that is missing. The first is shorter than what a request waits
/// for that was refused (`outbound::http::words`): an answer that was wrong by milliseconds costs it nothing.
const AGAIN: [u64; 14] =
    [180, 320, 500, 500, 500, 500, 500, 1_000, 2_000, 4_000, 4_000, 8_000, 16_000, 30_000];
/// A confirmed "no proxy here" is true of a moment only.
const CONFIRM_AGAIN: Duration = Duration::from_secs(30);
/// Endpoints of one name that are asked about; so many without a mark are a service outside of the mesh.
const CONFIRM_MOST: usize = 256;
const CONFIRM_AT_ONCE: usize = 8;

type Confirming = Pin<Box<dyn Future<Output = Vec<(SocketAddr, Option<Confirmed>)>> + Send>>;

/// Settles the identities of one destination's or one name's endpoints.
pub(crate) struct Settling {
    cx: Arc<Context>,
    /// For logs.
    subject: String,
    confirmed: HashMap<SocketAddr, Confirmed>,
    confirming: Option<Confirming>,
    again: Option<Pin<Box<Sleep>>>,
    attempts: usize,
    /// Addresses whose identity is an open question, since the last [`Settling::begin`].
    open: BTreeSet<SocketAddr>,
    unmeshed: bool,
    told: BTreeSet<SocketAddr>,
}

impl Settling {
    pub(crate) fn new(cx: Arc<Context>, subject: String) -> Self {
        Settling {
            cx,
            subject,
            confirmed: HashMap::new(),
            confirming: None,
            again: None,
            attempts: 0,
            open: BTreeSet::new(),
            unmeshed: false,
            told: BTreeSet::new(),
        }
    }

    /// Before the endpoints of an answer are settled one by one. What was confirmed about others is dropped.
    pub(crate) fn begin(&mut self, still: impl Fn(&SocketAddr) -> bool) {
        self.confirmed.retain(|addr, _| still(addr));
        self.open.clear();
        self.unmeshed = false;
    }

    /// The endpoint as the data path may use it.
    pub(crate) fn settle(&mut self, endpoint: &Arc<Endpoint>) -> Arc<Endpoint> {
        if endpoint.identity.id().is_some() {
            if self.told.remove(&endpoint.addr) {
                tracing::info!(target = self.subject, endpoint = %endpoint.addr, "its identity is known now");
            }
            return endpoint.clone();
        }
        if !is_open(endpoint) {
            self.cx.memory.lock().forget(endpoint.addr);
            return endpoint.clone();
        }
        if !self.cx.in_cluster(endpoint.addr.ip()) {
            return with_identity(endpoint, PeerIdentity::Unmeshed);
        }
        match self.confirmed.get(&endpoint.addr) {
            Some(Confirmed::Meshed(confirmed)) => {
                return Arc::new(Endpoint {
                    labels: endpoint.labels.clone(),
                    weight: endpoint.weight,
                    ..Endpoint::clone(confirmed)
                });
            }
            Some(Confirmed::Unmeshed) => {
                self.unmeshed = true;
                self.cx.memory.lock().forget(endpoint.addr);
                return with_identity(endpoint, PeerIdentity::Unmeshed);
            }
            Some(Confirmed::Unknown) | None => {}
        }
        self.open.insert(endpoint.addr);
        let remembered = self.cx.memory.lock().recall(endpoint, Instant::now());
        if self.told.insert(endpoint.addr) {
            let (code, use_) = told(remembered.is_some(), self.cx.confirmer.is_weft());
            let reason = match &endpoint.identity {
                PeerIdentity::Unknown(why) => why.as_str(),
                _ => "",
            };
            tracing::warn!(
                code = code.id(),
                target = self.subject,
                endpoint = %endpoint.addr,
                reason,
                "no identity for an in-cluster address: {use_}"
            );
        }
        remembered.unwrap_or_else(|| endpoint.clone())
    }

    /// After the endpoints of an answer are settled: arranges what has to happen next.
    pub(crate) fn finish(&mut self) {
        self.told.retain(|addr| self.open.contains(addr));
        let unasked: Vec<SocketAddr> =
            self.open.iter().filter(|addr| !self.confirmed.contains_key(*addr)).copied().collect();
        if !unasked.is_empty() {
            self.confirm(unasked);
        }
        if self.open.is_empty() {
            self.attempts = 0;
            self.again = self.unmeshed.then(|| Box::pin(tokio::time::sleep(CONFIRM_AGAIN)));
        } else if self.again.is_none() {
            let delay = Duration::from_millis(AGAIN[self.attempts.min(AGAIN.len() - 1)]);
            self.attempts += 1;
            // Many destinations that became unknown together are not asked about in step.
            self.again = Some(Box::pin(tokio::time::sleep(delay.mul_f64(0.9 + rand::random::<f64>() * 0.1))));
        }
    }

    /// A confirmation is under way: a first answer had better wait for it, since it is short.
    pub(crate) fn is_confirming(&self) -> bool {
        self.confirming.is_some()
    }

    pub(crate) fn is_open(&self, addr: &SocketAddr) -> bool {
        self.open.contains(addr)
    }

    pub(crate) fn any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// There is evidence against an answer: delays start anew, confirmations count no more.
    pub(crate) fn doubt(&mut self, addr: SocketAddr) {
        self.attempts = 0;
        self.again = None;
        self.confirmed.remove(&addr);
    }

    /// Nothing that was confirmed counts any more.
    pub(crate) fn doubt_all(&mut self) {
        self.attempts = 0;
        self.again = None;
        self.confirmed.clear();
    }

    fn confirm(&mut self, addrs: Vec<SocketAddr>) {
        if self.confirming.is_some() || !self.cx.confirmer.is_worth_asking() {
            return;
        }
        let cx = self.cx.clone();
        let addrs = addrs.into_iter().take(CONFIRM_MOST);
        self.confirming = Some(Box::pin(async move {
            stream::iter(addrs)
                .map(|addr| {
                    let cx = cx.clone();
                    async move { (addr, cx.confirmer.confirm(addr).await) }
                })
                .buffer_unordered(CONFIRM_AT_ONCE)
                .collect()
                .await
        }));
    }

    /// Waits for the next thing to do. Cancel-safe.
    pub(crate) async fn due(&mut self) -> Due {
        if self.confirming.is_none() && self.again.is_none() {
            return pending().await;
        }
        poll_fn(|cx| {
            if let Some(confirming) = &mut self.confirming
                && let Poll::Ready(confirmed) = confirming.as_mut().poll(cx)
            {
                self.confirming = None;
                for (addr, confirmed) in confirmed {
                    match confirmed {
                        Some(confirmed) => drop(self.confirmed.insert(addr, confirmed)),
                        // It could not be asked: what it said before stands.
                        None => drop(self.confirmed.entry(addr).or_insert(Confirmed::Unknown)),
                    }
                }
                return Poll::Ready(Due::Look);
            }
            if let Some(again) = &mut self.again
                && again.as_mut().poll(cx).is_ready()
            {
                self.again = None;
                let mut all: BTreeSet<SocketAddr> = self.confirmed.keys().copied().collect();
                all.extend(&self.open);
                self.confirm(all.into_iter().collect());
                return Poll::Ready(Due::AskAgain);
            }
            Poll::Pending
        })
        .await
    }
}

/// What is said of an address in the cluster without an identity, and what is done with it.
fn told(remembered: bool, asks_weft: bool) -> (Code, &'static str) {
    match (remembered, asks_weft) {
        (true, _) => (Code::MeshedBefore, "its known identity stays in force"),
        (false, true) => (Code::IdentityUnknown, "it is not dialled until it is known"),
        (false, false) => (Code::IdentityUnknown, "it is dialled in plaintext, and asked about again"),
    }
}

fn with_identity(endpoint: &Endpoint, identity: PeerIdentity) -> Arc<Endpoint> {
    Arc::new(Endpoint { identity, ..endpoint.clone() })
}

/// Reads a confirmation.
pub(crate) fn confirmed(response: weft_wire::mesh::ConfirmResponse) -> Confirmed {
    match response.state() {
        State::Unknown => Confirmed::Unknown,
        State::Unmeshed => Confirmed::Unmeshed,
        State::Meshed => {
            let endpoint = response
                .endpoint
                .map(|addr| weft_wire::destination::endpoint_from_api(addr, &HashMap::new()));
            match endpoint {
                Some(Ok(endpoint)) if endpoint.identity.id().is_some() => {
                    Confirmed::Meshed(Arc::new(endpoint))
                }
                // Meshed, but not how: neither plaintext nor TLS would be right.
                _ => Confirmed::Unknown,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_identity_outlives_an_answer_without_one_and_the_log_says_so() {
        assert_eq!(told(true, true).0, Code::MeshedBefore);
        assert_eq!(told(true, false).0, Code::MeshedBefore);
        let (code, use_) = told(false, false);
        assert_eq!((code, use_.contains("plaintext")), (Code::IdentityUnknown, true));
        let (code, use_) = told(false, true);
        assert_eq!((code, use_.contains("not dialled")), (Code::IdentityUnknown, true));
    }
}
