//! Timeouts, retries and failure accrual, as annotations of Services and routes set them.

use std::{collections::BTreeMap, time::Duration};
use weft_model::outbound::{Backoff, FailureAccrual, RetryPolicy, Timeouts};

const REQUEST: &str = "timeout.linkerd.io/request";
const RESPONSE: &str = "timeout.linkerd.io/response";
const IDLE: &str = "timeout.linkerd.io/idle";
const RETRY_HTTP: &str = "retry.linkerd.io/http";
const RETRY_GRPC: &str = "retry.linkerd.io/grpc";
const RETRY_LIMIT: &str = "retry.linkerd.io/limit";
const RETRY_TIMEOUT: &str = "retry.linkerd.io/timeout";
const ACCRUAL: &str = "balancer.linkerd.io/failure-accrual";

type Annotations = BTreeMap<String, String>;

/// Linkerd's durations: a whole number and a unit, or a bare 0.
fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().ok()?;
    let unit_ms = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit_ms).map(Duration::from_millis)
}

/// `None` when no annotation sets any. Zero means no limit.
pub fn timeouts(annotations: &Annotations) -> Option<Timeouts> {
    let any = [REQUEST, RESPONSE, IDLE].iter().any(|name| annotations.contains_key(*name));
    let read = |name: &str| annotations.get(name).and_then(|t| duration(t)).filter(|d| !d.is_zero());
    any.then(|| Timeouts { request: read(REQUEST), response: read(RESPONSE), idle: read(IDLE) })
}

/// `None` when no annotation asks for retries.
pub fn retry(annotations: &Annotations) -> Option<RetryPolicy> {
    let list = |name: &str| -> Vec<String> {
        let text = annotations.get(name).map(String::as_str).unwrap_or_default();
        text.split(',').map(|c| c.trim().to_ascii_lowercase()).filter(|c| !c.is_empty()).collect()
    };
    let statuses: Vec<(u16, u16)> = list(RETRY_HTTP).iter().filter_map(|c| statuses(c)).collect();
    let grpc_codes: Vec<u8> = list(RETRY_GRPC).iter().filter_map(|c| grpc_code(c)).collect();
    if statuses.is_empty() && grpc_codes.is_empty() {
        return None;
    }
    Some(RetryPolicy {
        max_retries: annotations.get(RETRY_LIMIT).and_then(|t| t.trim().parse().ok()).unwrap_or(1),
        max_request_bytes: 64 * 1024,
        statuses,
        grpc_codes,
        per_try_timeout: annotations.get(RETRY_TIMEOUT).and_then(|t| duration(t)).filter(|d| !d.is_zero()),
        backoff: Backoff { min: Duration::from_millis(25), max: Duration::from_millis(250), jitter: 1.0 },
    })
}

fn statuses(text: &str) -> Option<(u16, u16)> {
    let range = match text {
        "5xx" => (500, 599),
        "gateway-error" => (502, 504),
        _ => match text.split_once('-') {
            Some((low, high)) => (low.parse().ok()?, high.parse().ok()?),
            None => {
                let code = text.parse().ok()?;
                (code, code)
            }
        },
    };
    ((100..600).contains(&range.0) && range.0 <= range.1 && range.1 < 600).then_some(range)
}

fn grpc_code(text: &str) -> Option<u8> {
    Some(match text {
        "cancelled" => 1,
        "deadline-exceeded" => 4,
        "resource-exhausted" => 8,
        "internal" => 13,
        "unavailable" => 14,
        _ => return None,
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
    Some(FailureAccrual::Consecutive {
        max_failures: get("max-failures").and_then(|t| t.trim().parse().ok()).unwrap_or(7),
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
        let Some(FailureAccrual::Consecutive { max_failures, backoff }) = accrual(&annotations(&[
            (ACCRUAL, "consecutive"),
            (&format!("{ACCRUAL}-consecutive-max-failures"), "3"),
        ])) else {
            panic!("accrual");
        };
        assert_eq!(
            (max_failures, backoff.min, backoff.max),
            (3, Duration::from_secs(1), Duration::from_secs(60))
        );
    }
}
