//! Copies of requests for another service. Nobody waits for them, and nothing that becomes of them is told to anybody but
//! the metrics.

use super::{Requests, ask::Kind, send};
use crate::{
    http::{body::Body, pool, replay::Replay},
    metrics::{Balanced, Count, labels::Labels},
    outbound::{Worker, balance::Queue, load::Load},
};
use http::Request;
use http_body_util::BodyExt;
use std::{cell::Cell, rc::Rc, time::Duration};
use weft_model::{
    http::{Filter, Mirror},
    outbound::EwmaConfig,
};

/// The most of a request that is copied; a longer one is not.
const MOST: usize = 64 * 1024;
/// From the request's head to the end of the copy's answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Copies under way on one worker; more are not made.
const AT_ONCE: usize = 256;

impl Requests {
    /// Copies the request for whom its route wants to have a copy; the request goes on as if nothing happened.
    pub(super) fn mirror(
        &self,
        request: Request<Body>,
        kind: &Kind,
        filters: [&[Filter]; 2],
    ) -> Request<Body> {
        let drawn = filters.into_iter().flatten().filter_map(|filter| match filter {
            Filter::Mirror(mirror) if rand::random::<f64>() < mirror.fraction => Some(mirror),
            _ => None,
        });
        let mut drawn = drawn.peekable();
        if drawn.peek().is_none() || kind.upgrades {
            return request;
        }
        let (head, body) = request.into_parts();
        let head = Request::from_parts(head, Body::empty());
        let kept = Rc::new(Replay::new(body, MOST));
        for mirror in drawn {
            let worker = self.connection.worker.clone();
            let copy = Copy { request: pool::copy_of(&head), kept: kept.clone(), kind: kind.copied() };
            let (mirror, under_way) = (mirror.clone(), UnderWay::new(&worker));
            tokio::task::spawn_local(async move {
                let outcome = match under_way {
                    None => "overload",
                    Some(_under_way) => {
                        let sending = Box::pin(copy.send(&worker, &mirror));
                        tokio::time::timeout(LIMIT, sending).await.unwrap_or("timeout")
                    }
                };
                let labels = Labels::new().object("backend", &mirror.meta).with("outcome", outcome);
                worker.mesh.metrics.counter(Count::Mirrored, &labels).add(1);
            });
        }
        head.map(|_| kept.read())
    }
}

struct Copy {
    request: Request<Body>,
    kept: Rc<Replay>,
    kind: Kind,
}

impl Copy {
    /// What became of it, in a word.
    async fn send(self, worker: &Rc<Worker>, mirror: &Mirror) -> &'static str {
        if !self.kept.whole().await || !self.kept.is_kept() {
            return "incomplete";
        }
        let request = self.request.map(|_| self.kept.copy());
        let picked = worker
            .balancer(&mirror.path, EwmaConfig::DEFAULT)
            .pick(worker, &[], Queue { of: Balanced::Http, limit: LIMIT, capacity: AT_ONCE })
            .await;
        let Ok(member) = picked else { return "no endpoint" };
        let load = Load::new(&member, Balanced::Http, None);
        let Ok(mut answered) = send::exchange(&member, request, &self.kind).await else { return "failed" };
        let (status, head) = (answered.response.status(), answered.response.headers());
        load.answered(worker, answered.made.is_some(), status, head);
        while let Some(frame) = answered.response.body_mut().frame().await {
            if frame.is_err() {
                return "failed";
            }
        }
        if let Some(lease) = answered.lease {
            lease.end(true);
        }
        "answered"
    }
}

/// Counts a copy that is under way.
struct UnderWay(Rc<Worker>);

impl UnderWay {
    fn new(worker: &Rc<Worker>) -> Option<Self> {
        let mirrors: &Cell<usize> = &worker.mirrors;
        (mirrors.get() < AT_ONCE).then(|| {
            mirrors.set(mirrors.get() + 1);
            UnderWay(worker.clone())
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.mirrors.set(self.0.mirrors.get().saturating_sub(1));
    }
}
