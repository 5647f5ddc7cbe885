//! Filters of a policy that the stock protocol has no words for: asked of a controller that is weft's.

use super::{context::Context, judge::Answer};
use linkerd2_proxy_api::outbound::TrafficSpec;
use std::{
    future::{pending, poll_fn},
    pin::Pin,
    sync::Arc,
    time::Duration,
};
use weft_model::{
    extension::{Extension, extend, is_incomplete},
    outbound::OutboundPolicy,
};

type Asking = Pin<Box<dyn Future<Output = Option<Vec<Extension>>> + Send>>;

/// Until it is known what they are, the requests of their rules fail.
const AGAIN: Duration = Duration::from_secs(5);

/// The question about one policy's filters.
pub(super) struct Extending {
    cx: Arc<Context>,
    target: TrafficSpec,
    asking: Option<Asking>,
    /// The policy is held back for the answer: it is asked for the first time, and that is short.
    holds: bool,
}

impl Extending {
    pub(super) fn new(cx: Arc<Context>, target: TrafficSpec) -> Self {
        Extending { cx, target, asking: None, holds: false }
    }

    /// A policy came. Asks, if it holds filters of no kind.
    pub(super) fn begin(&mut self, policy: &Answer<OutboundPolicy>) {
        let incomplete = match policy {
            Answer::Known(policy) => is_incomplete(&mut OutboundPolicy::clone(policy)),
            _ => false,
        };
        self.holds = incomplete && self.cx.confirmer.is_worth_asking();
        self.asking = self.holds.then(|| self.ask(Duration::ZERO));
    }

    fn ask(&self, delay: Duration) -> Asking {
        let (cx, target) = (self.cx.clone(), self.target.clone());
        Box::pin(async move {
            tokio::time::sleep(delay).await;
            cx.confirmer.extensions(target).await
        })
    }

    pub(super) fn holds(&self) -> bool {
        self.holds
    }

    /// Waits for the answer and puts it into the policy. Cancel-safe.
    pub(super) async fn done(&mut self, policy: &mut Answer<OutboundPolicy>) {
        let Some(asking) = &mut self.asking else { return pending().await };
        let answer = poll_fn(|cx| asking.as_mut().poll(cx)).await;
        self.holds = false;
        self.asking = match (&answer, &mut *policy) {
            (Some(extensions), Answer::Known(known)) => {
                let mut whole = OutboundPolicy::clone(known);
                extend(&mut whole, extensions);
                *known = Arc::new(whole);
                None
            }
            (Some(_), _) => None,
            (None, _) => Some(self.ask(AGAIN)),
        };
    }
}
