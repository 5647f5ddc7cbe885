//! Requests that their route, or they themselves, want sent again, and how long an answer may take.

use super::{Answer, NoAnswer, Requests, Way, ask::Kind};
use crate::{
    deadline::{Late, within},
    http::{
        body::{Body, fails, grpc_status},
        pool,
        replay::{Replay, peek_trailers},
    },
};
use http::Request;
use std::time::{Duration, Instant};
use weft_fault::{Code, Fault, Phase, Retry};
use weft_model::outbound::RetryPolicy;

impl Requests {
    /// Sends a request, and sends it again as long as that is wanted, possible and paid for.
    pub(super) async fn send_and_retry(
        &self,
        request: Request<Body>,
        way: &Way<'_>,
    ) -> Result<Answer, NoAnswer> {
        match way.retry.as_deref().filter(|policy| policy.max_retries > 0 && !way.kind.upgrades) {
            Some(policy) => Box::pin(self.try_and_retry(request, way, policy)).await,
            None if way.timeouts.response.is_some() => Box::pin(self.try_once(request, way)).await,
            None => self.send(request, way).await,
        }
    }

    /// One try whose answer is waited for from the request's last byte on: its body is watched, and not kept.
    async fn try_once(&self, request: Request<Body>, way: &Way<'_>) -> Result<Answer, NoAnswer> {
        let (head, body) = request.into_parts();
        let passing = Replay::new(body, 0);
        self.send_in_time(Request::from_parts(head, passing.read()), way, &passing, None).await
    }

    async fn try_and_retry(
        &self,
        request: Request<Body>,
        way: &Way<'_>,
        policy: &RetryPolicy,
    ) -> Result<Answer, NoAnswer> {
        let metrics = &self.connection.worker.mesh.metrics;
        let retries = &way.counted.retries;
        let budget = way.service.and_then(|service| service.routes.budget.as_deref());
        if let Some(budget) = budget {
            budget.deposit(metrics.uptime());
        }
        let (head, body) = request.into_parts();
        let head = Request::from_parts(head, Body::empty());
        let kept = Replay::new(body, policy.max_request_bytes);
        let mut tried = 0;
        loop {
            let last = tried == policy.max_retries;
            let request = pool::copy_of(&head).map(|_| kept.read());
            let begun = Instant::now();
            let per_try = policy.per_try_timeout.filter(|_| !last && kept.is_kept());
            let result = self.send_in_time(request, way, &kept, per_try).await;
            let (result, wanted) = wants_retry(policy, way, &kept, result).await;
            if !wanted {
                if tried > 0 && result.is_ok() {
                    retries.succeeded();
                }
                return result;
            }
            if let Some(service) = &way.counted.service {
                service.retryable.add(1);
            }
            if last {
                retries.limit_exceeded();
                return result;
            }
            if !kept.is_kept() {
                return result;
            }
            if budget.is_some_and(|budget| !budget.withdraw(metrics.uptime())) {
                retries.overflow();
                if let Some(service) = &way.counted.service {
                    service.skipped.add(1);
                }
                return result;
            }
            tried += 1;
            let hint = result.as_ref().ok().and_then(|answer| answer.load.retry_after());
            self.tell_retry(&result, tried);
            discard(result, begun);
            tokio::time::sleep(policy.pause(tried, hint, rand::random())).await;
            retries.sent();
        }
    }

    /// One try. `passing`: its request's body, whose end begins the time that the route gives the server to answer.
    async fn send_in_time(
        &self,
        request: Request<Body>,
        way: &Way<'_>,
        passing: &Replay,
        per_try: Option<Duration>,
    ) -> Result<Answer, NoAnswer> {
        let sending = self.send(request, way);
        let answering = async {
            match way.timeouts.response {
                None => Ok(sending.await),
                Some(limit) => after(passing.whole(), limit, sending).await.map_err(|late| (limit, late)),
            }
        };
        let answered = match per_try {
            None => answering.await,
            Some(limit) => within(limit, answering).await.unwrap_or_else(|late| Err((limit, late))),
        };
        answered.unwrap_or_else(|(limit, late)| {
            way.waits.out_of_time(passing.is_whole());
            Err(self.late(Code::ResponseHeadersTimeout, limit, late).fact("timeout", "response").into())
        })
    }

    pub(super) fn late(&self, code: Code, limit: Duration, late: Late) -> Fault {
        Fault::new(code)
            .in_phase(Phase::ResponseHeaders)
            .about(self.connection.dst)
            .fact("limit_ms", limit.as_millis())
            .fact("waited_ms", late.waited.as_millis())
    }

    fn tell_retry(&self, result: &Result<Answer, NoAnswer>, tried: u16) {
        let why = match result {
            Ok(answer) => format!("status {}", answer.response.status()),
            Err(NoAnswer::Fault(fault) | NoAnswer::Reported(fault)) => fault.code().id().to_owned(),
            Err(NoAnswer::Reset(reason)) => reason.to_string(),
            Err(NoAnswer::Injected(injected)) => injected.fault().code().id().to_owned(),
        };
        self.connection.story.event(Phase::ResponseHeaders, format!("{why}: retry {tried}"));
    }
}

/// Waits for `work`, but no longer than `limit` from the moment at which `first` has happened.
async fn after<T>(first: impl Future, limit: Duration, work: impl Future<Output = T>) -> Result<T, Late> {
    tokio::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return Ok(done),
        _ = first => {}
    }
    within(limit, work).await
}

/// Can the request be sent a second time, whatever became of the first?
pub(super) fn is_repeatable(request: &Request<Body>, kind: &Kind) -> bool {
    request.body().is_empty() && !kind.upgrades
}

/// Does the route want this outcome tried again? An answer that came before the request was whole is none that another
/// try could better: the server has read what it wanted to read.
async fn wants_retry(
    policy: &RetryPolicy,
    way: &Way<'_>,
    kept: &Replay,
    result: Result<Answer, NoAnswer>,
) -> (Result<Answer, NoAnswer>, bool) {
    let wants = |status: u16, grpc: Option<u8>| match &way.service {
        Some(service) => service.is_failure(status, grpc.is_some_and(fails)),
        None => policy.wants(status, grpc),
    };
    let mut answer = match result {
        Ok(answer) => answer,
        Err(none @ (NoAnswer::Reported(_) | NoAnswer::Injected(_))) => return (Err(none), false),
        Err(NoAnswer::Reset(reason)) => {
            let refused = reason == h2::Reason::REFUSED_STREAM;
            return (Err(NoAnswer::Reset(reason)), refused);
        }
        Err(NoAnswer::Fault(fault)) => {
            let grpc = way.kind.grpc.then(|| fault.code().grpc());
            let wanted = is_worth_a_retry(&fault, || wants(fault.code().http(), grpc));
            return (Err(NoAnswer::Fault(fault)), wanted);
        }
    };
    if !kept.is_whole() {
        return (Ok(answer), false);
    }
    let status = answer.response.status().as_u16();
    let mut grpc = grpc_status(answer.response.headers()).filter(|_| way.kind.grpc);
    if way.kind.grpc && grpc.is_none() && !wants(status, None) {
        let (head, body) = answer.response.into_parts();
        way.waits.begin(&answer.member, way.accrual);
        let peeked = peek_trailers(body).await;
        way.waits.end();
        let (trailers, body) = match peeked {
            Ok(peeked) => peeked,
            Err(error) => {
                answer.load.lost();
                let fault = Fault::new(Code::UpstreamReset).in_phase(Phase::ResponseBody).because(error);
                let wanted = wants(fault.code().http(), Some(fault.code().grpc()));
                return (Err(fault.into()), wanted);
            }
        };
        grpc = trailers.as_ref().and_then(grpc_status);
        answer.response = http::Response::from_parts(head, body);
    }
    (Ok(answer), wants(status, grpc))
}

/// The answer is thrown away; what it says of the endpoint is not.
fn discard(result: Result<Answer, NoAnswer>, begun: Instant) {
    let Ok(Answer { response, lease, load, member, attempt }) = result else { return };
    let (status, grpc) = (response.status().as_u16(), grpc_status(response.headers()));
    load.classified(false, status, grpc);
    member.series.borrow().response(status, grpc, false, begun.elapsed());
    attempt.end(status, grpc);
    if let Some(lease) = lease {
        lease.end(response.body().is_empty());
    }
}

/// Is a request that got no response sent again? `as_answered`: whether the answer that its client would get is one.
fn is_worth_a_retry(fault: &Fault, as_answered: impl Fn() -> bool) -> bool {
    match fault.code() {
        Code::ResponseHeadersTimeout | Code::UpstreamGoaway => true,
        // The endpoint was lost while it worked on it.
        Code::UpstreamReset => as_answered(),
        // Load that was shed must not come back as load.
        Code::Overloaded => false,
        // No endpoint took it: one may, a little later.
        _ => fault.phase() == Some(Phase::Queue) && fault.retry() != Retry::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shed_load_is_not_sent_again() {
        let queue = |code| Fault::new(code).in_phase(Phase::Queue);
        assert!(is_worth_a_retry(&queue(Code::NoEndpoints), || false));
        assert!(!is_worth_a_retry(&queue(Code::Overloaded), || true));
        assert!(!is_worth_a_retry(&Fault::new(Code::ConnectTimeout).in_phase(Phase::Connect), || true));
        assert!(is_worth_a_retry(&Fault::new(Code::UpstreamReset), || true));
        assert!(!is_worth_a_retry(&Fault::new(Code::UpstreamReset), || false));
    }
}
