//! Requests that the route wants sent again.

use super::{Answer, Kind, NoAnswer, Requests, Way};
use crate::{
    deadline::within,
    http::{
        body::{Body, grpc_status},
        pool,
    },
};
use http::Request;
use weft_fault::{Code, Fault, Phase};
use weft_model::outbound::{HttpRule, RetryPolicy};

impl Requests {
    /// Sends again what the route wants sent again, while the request's body can be repeated, which is when it has none.
    pub(super) async fn send_and_retry(
        &self,
        request: Request<Body>,
        way: &Way<'_>,
        rule: &HttpRule,
    ) -> Result<Answer, NoAnswer> {
        let policy = rule.retry.as_ref().filter(|_| is_repeatable(&request, way.kind));
        let Some(policy) = policy else { return self.send(request, way).await };
        let mut pause = policy.backoff.min;
        for tries in 0..=policy.max_retries {
            let last = tries == policy.max_retries;
            let sending = self.send(pool::copy_of(&request), way);
            let result = match policy.per_try_timeout.filter(|_| !last) {
                None => sending.await,
                Some(limit) => match within(limit, sending).await {
                    Ok(result) => result,
                    Err(late) => Err(self.late(limit, late).into()),
                },
            };
            if last || !wants_retry(policy, way.kind, &result) {
                return result;
            }
            if let Ok(answer) = &result {
                // The answer is thrown away; what it says of the endpoint is not.
                let grpc = grpc_status(answer.response.headers());
                answer.load.classified(false, answer.response.status().as_u16(), grpc);
            }
            drop(result);
            let jitter = pause.mul_f32(policy.backoff.jitter.clamp(0.0, 1.0) * rand::random::<f32>());
            tokio::time::sleep(pause + jitter).await;
            pause = (pause * 2).min(policy.backoff.max);
        }
        Err(Fault::new(Code::Invariant).in_phase(Phase::Queue).into())
    }
}

/// Can the request be sent a second time, whatever became of the first?
pub(super) fn is_repeatable(request: &Request<Body>, kind: &Kind) -> bool {
    request.body().is_empty() && !kind.upgrades
}

/// Does the route want this outcome tried again? Only answers that are complete in their head can tell.
fn wants_retry(policy: &RetryPolicy, kind: &Kind, result: &Result<Answer, NoAnswer>) -> bool {
    match result {
        Ok(answer) if kind.grpc => {
            grpc_status(answer.response.headers()).is_some_and(|code| policy.grpc_codes.contains(&code))
        }
        Ok(answer) => {
            let status = answer.response.status().as_u16();
            policy.statuses.iter().any(|(from, to)| (*from..=*to).contains(&status))
        }
        // No answer in time, or an endpoint that was lost while it worked on it: the route asked for more tries.
        Err(NoAnswer::Fault(fault)) => matches!(
            fault.code(),
            Code::ResponseTimeout
                | Code::UpstreamReset
                | Code::UpstreamGoaway
                | Code::AllEndpointsFailing
                | Code::ConnectRefused
                | Code::ConnectTimeout
        ),
        Err(NoAnswer::Reset(reason)) => *reason == h2::Reason::REFUSED_STREAM,
    }
}
