//! Timeouts, retries and failure accrual, as annotations of Services and routes set them.

use std::{collections::BTreeMap, time::Duration};
use weft_model::{
    outbound::{Backoff, FailureAccrual, RetryPolicy, Timeouts},
    retry::{DEFAULT_BACKOFF, DEFAULT_REQUEST_BYTES, duration, grpc_codes, statuses},
};

const REQUEST: &str = "timeout.linkerd.io/request";
const RESPONSE: &str = "timeout.linkerd.io/response";
const IDLE: &str = "timeout.linkerd.io/idle";
const RETRY_HTTP: &str = "retry.linkerd.io/http";
const RETRY_GRPC: &str = "retry.linkerd.io/grpc";
const RETRY_LIMIT: &str = "retry.linkerd.io/limit";
const RETRY_TIMEOUT: &str = "retry.linkerd.io/timeout";
const ACCRUAL: &str = "balancer.linkerd.io/failure-accrual";

type Annotations = BTreeMap<String, String>;

/// `None` when no annotation sets any. Zero means no limit.
pub fn timeouts(annotations: &Annotations) -> Option<Timeouts> {
    let any = [REQUEST, RESPONSE, IDLE].iter().any(|name| annotations.contains_key(*name));
    let read = |name: &str| annotations.get(name).and_then(|t| duration(t)).filter(|d| !d.is_zero());
    any.then(|| Timeouts { request: read(REQUEST), response: read(RESPONSE), idle: read(IDLE) })
}

/// `None` when no annotation asks for retries.
pub fn retry(annotations: &Annotations) -> Option<RetryPolicy> {
    // What can be read of a list counts.
    let parts = |name: &str| annotations.get(name).map(String::as_str).unwrap_or_default().split(',');
    let statuses: Vec<(u16, u16)> = parts(RETRY_HTTP).filter_map(statuses).flatten().collect();
    let grpc_codes: Vec<u8> = parts(RETRY_GRPC).filter_map(grpc_codes).flatten().collect();
    if statuses.is_empty() && grpc_codes.is_empty() {
        return None;
    }
    Some(RetryPolicy {
        max_retries: annotations.get(RETRY_LIMIT).and_then(|t| t.trim().parse().ok()).unwrap_or(1),
        max_request_bytes: DEFAULT_REQUEST_BYTES,
        statuses,
        grpc_codes,
        per_try_timeout: annotations.get(RETRY_TIMEOUT).and_then(|t| duration(t)).filter(|d| !d.is_zero()),
        backoff: DEFAULT_BACKOFF,
        respects_retry_after: false,
    })
}

pub fn accrual(annotations: &Annotations) -> Option<FailureAccrual> {
    if annotations.get(ACCRUAL).map(String::as_str) != Some("consecutive") {
        return None;
    }
    let get = |suffix: &str| annotations.get(&format!("{ACCRUAL}-consecutive-{suffix}"));
    let span = |suffix: &str, default: u64| {
        get(suffix).and_then(|t| duration(t)).unwrap_or(Duration::from_secs(default))
    };
    let min = span("min-penalty", 1);
    Some(FailureAccrual {
        max_consecutive: get("max-failures").and_then(|t| t.trim().parse().ok()).unwrap_or(7),
        rate: None,
        respects_retry_after: false,
        backoff: Backoff {
            min,
            max: span("max-penalty", 60).max(min),
            jitter: get("jitter-ratio")
                .and_then(|t| t.trim().parse().ok())
                .filter(|j| (0.0..=100.0).contains(j))
                .unwrap_or(0.5),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> Annotations {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn timeouts_replace_wholesale() {
        assert_eq!(timeouts(&annotations(&[])), None);
        let set = timeouts(&annotations(&[(REQUEST, "300ms"), (IDLE, "0")])).unwrap();
        assert_eq!((set.request, set.response, set.idle), (Some(Duration::from_millis(300)), None, None));
        assert_eq!(duration("1.5s"), None);
        assert_eq!(duration("5"), None);
    }

    #[test]
    fn retries_need_a_condition() {
        assert_eq!(retry(&annotations(&[(RETRY_LIMIT, "3")])), None);
        let policy = retry(&annotations(&[
            (RETRY_HTTP, "gateway-error, 429,600,9-8"),
            (RETRY_GRPC, "Unavailable,x"),
            (RETRY_LIMIT, "3"),
        ]))
        .unwrap();
        assert_eq!(policy.statuses, [(502, 504), (429, 429)]);
        assert_eq!(policy.grpc_codes, [14]);
        assert_eq!(policy.max_retries, 3);
    }

    #[test]
    fn accrual_is_opt_in() {
        assert_eq!(accrual(&annotations(&[])), None);
        let Some(FailureAccrual { max_consecutive, backoff, .. }) = accrual(&annotations(&[
            (ACCRUAL, "consecutive"),
            (&format!("{ACCRUAL}-consecutive-max-failures"), "3"),
        ])) else {
            panic!("accrual");
        };
        assert_eq!(
            (max_consecutive, backoff.min, backoff.max),
            (3, Duration::from_secs(1), Duration::from_secs(60))
        );
    }
}
