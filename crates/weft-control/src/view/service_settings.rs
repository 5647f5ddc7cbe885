//! Timeouts, retries and failure accrual, as annotations of Services and routes set them.

use super::requirement::REQUIRE;
use std::{collections::BTreeMap, time::Duration};
use weft_model::{
    outbound::{Backoff, FailureAccrual, Penalty, RetryPolicy, SuccessRate, Timeouts},
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
const SUCCESS_RATE: &str = "balancer.alpha.linkerd.io/failure-accrual-success-rate";
const HONOR_RETRY_AFTER: &str = "balancer.alpha.linkerd.io/failure-accrual-honor-retry-after";
const PENALIZE: &str = "balancer.alpha.linkerd.io/penalize-failures";
const PENALTY: &str = "balancer.alpha.linkerd.io/load-biaser-penalty";
const MAX_RETRY_AFTER: &str = "balancer.alpha.linkerd.io/load-biaser-max-retry-after";

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

/// `None` when no annotation asks for it.
pub fn accrual(annotations: &Annotations) -> Option<FailureAccrual> {
    let rate = match annotations.get(ACCRUAL).map(String::as_str) {
        Some("consecutive") => None,
        Some("unified") => Some(success_rate(annotations)),
        _ => return None,
    };
    let get = |suffix: &str| annotations.get(&format!("{ACCRUAL}-consecutive-{suffix}"));
    let span = |suffix: &str, default: u64| {
        get(suffix).and_then(|t| duration(t)).unwrap_or(Duration::from_secs(default))
    };
    let min = span("min-penalty", 1);
    Some(FailureAccrual {
        max_consecutive: get("max-failures").and_then(|t| t.trim().parse().ok()).unwrap_or(7),
        rate,
        respects_retry_after: annotations.get(HONOR_RETRY_AFTER).and_then(|t| boolean(t)).unwrap_or(false),
        backoff: Backoff {
            min,
            max: span("max-penalty", 60).max(min),
            jitter: get("jitter-ratio").and_then(|t| jitter(t)).unwrap_or(0.5),
        },
        min_ready: 0,
    })
}

fn success_rate(annotations: &Annotations) -> SuccessRate {
    let get = |suffix: &str| annotations.get(&format!("{SUCCESS_RATE}-{suffix}"));
    SuccessRate {
        threshold: get("threshold").and_then(|t| share(t)).unwrap_or(0.8),
        window: get("window").and_then(|t| window(t)).unwrap_or(Duration::from_secs(10)),
        min_requests: get("min-requests").and_then(|t| min_requests(t)).unwrap_or(5),
    }
}

/// How much an endpoint that asks for less traffic is made to look slow; `None` when no annotation asks for it.
pub fn penalty(annotations: &Annotations) -> Option<Penalty> {
    annotations.get(PENALIZE).and_then(|t| boolean(t)).filter(|on| *on)?;
    let span = |name: &str, default: u64| {
        annotations.get(name).and_then(|t| duration(t)).unwrap_or(Duration::from_secs(default))
    };
    Some(Penalty { latency: span(PENALTY, 5), max_retry_after: span(MAX_RETRY_AFTER, 300) })
}

pub(super) fn boolean(text: &str) -> Option<bool> {
    match text.trim() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn jitter(text: &str) -> Option<f32> {
    text.trim().parse().ok().filter(|j| (0.0..=100.0).contains(j))
}

fn share(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|s| (0.0..=1.0).contains(s))
}

/// Proxies refuse a policy with a shorter window.
fn window(text: &str) -> Option<Duration> {
    duration(text).filter(|w| *w >= SuccessRate::SHORTEST)
}

/// Proxies refuse a policy with more.
fn min_requests(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|n| *n <= 1_000_000)
}

/// What is wrong with the annotations of these groups, one line each: the name, the value and what is expected.
pub fn problems(annotations: &Annotations) -> Vec<String> {
    let ours = |name: &str| {
        let groups = [
            "retry.linkerd.io/",
            "timeout.linkerd.io/",
            "balancer.linkerd.io/",
            "balancer.alpha.linkerd.io/",
        ];
        name == REQUIRE || groups.iter().any(|group| name.starts_with(group))
    };
    let mut found = Vec::new();
    for (name, value) in annotations.iter().filter(|(name, _)| ours(name)) {
        let consecutive = name.strip_prefix(ACCRUAL).and_then(|n| n.strip_prefix("-consecutive-"));
        let rate = name.strip_prefix(SUCCESS_RATE).and_then(|n| n.strip_prefix('-'));
        let (good, expected) = match (name.as_str(), consecutive, rate) {
            (REQUEST | RESPONSE | IDLE | RETRY_TIMEOUT | PENALTY | MAX_RETRY_AFTER, ..) => {
                (duration(value).is_some(), DURATION)
            }
            (RETRY_HTTP, ..) => {
                (statuses(value).is_some(), "5xx, gateway-error, a status or a range such as 500-504")
            }
            (RETRY_GRPC, ..) => (
                grpc_codes(value).is_some(),
                "cancelled, deadline-exceeded, internal, resource-exhausted, unavailable",
            ),
            (RETRY_LIMIT, ..) => (value.trim().parse::<u16>().is_ok(), "a number up to 65535"),
            (ACCRUAL, ..) => (matches!(value.as_str(), "consecutive" | "unified"), "consecutive or unified"),
            (HONOR_RETRY_AFTER | PENALIZE | REQUIRE, ..) => (boolean(value).is_some(), "true or false"),
            (_, Some("max-failures"), _) => (value.trim().parse::<u32>().is_ok(), "a number"),
            (_, Some("min-penalty"), _) => (duration(value).is_some(), DURATION),
            (_, Some("max-penalty"), _) => {
                (duration(value).is_some_and(|d| !d.is_zero()), "a duration above zero, such as 60s")
            }
            (_, Some("jitter-ratio"), _) => (jitter(value).is_some(), "a number from 0 to 100"),
            (_, _, Some("threshold")) => (share(value).is_some(), "a number from 0 to 1"),
            (_, _, Some("window")) => (window(value).is_some(), "a duration of 10ms or more"),
            (_, _, Some("min-requests")) => (min_requests(value).is_some(), "a number up to 1000000"),
            _ => {
                found.push(format!("{name}: there is no such annotation"));
                continue;
            }
        };
        if !good {
            found.push(format!("{name}: {value:?} is not {expected}"));
        }
    }
    found
}

const DURATION: &str = "a whole number with ms, s, m, h or d, such as 300ms";

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

    #[test]
    fn the_unified_mode_and_penalties() {
        let accrual = accrual(&annotations(&[
            (ACCRUAL, "unified"),
            (&format!("{SUCCESS_RATE}-threshold"), "0.9"),
            (&format!("{SUCCESS_RATE}-min-requests"), "100"),
            (HONOR_RETRY_AFTER, "true"),
        ]))
        .unwrap();
        let rate = accrual.rate.unwrap();
        assert_eq!((rate.threshold, rate.window, rate.min_requests), (0.9, Duration::from_secs(10), 100));
        assert!(accrual.respects_retry_after && accrual.max_consecutive == 7);
        assert_eq!(penalty(&annotations(&[(PENALTY, "1s")])), None);
        let penalty = penalty(&annotations(&[(PENALIZE, "true"), (PENALTY, "1s")])).unwrap();
        assert_eq!(
            (penalty.latency, penalty.max_retry_after),
            (Duration::from_secs(1), Duration::from_secs(300))
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_what_is_expected() {
        let good = annotations(&[
            (REQUEST, "0"),
            (RETRY_HTTP, "5xx,429"),
            (ACCRUAL, "unified"),
            ("config.linkerd.io/opaque-ports", "x"),
        ]);
        assert!(problems(&good).is_empty());
        for (name, value, expected) in [
            (REQUEST, "1.5s", "whole number"),
            (RETRY_HTTP, "600", "5xx"),
            (RETRY_GRPC, "ok", "unavailable"),
            (RETRY_LIMIT, "-1", "number"),
            (REQUIRE, "yes", "true or false"),
            (ACCRUAL, "on", "unified"),
            (&format!("{SUCCESS_RATE}-window"), "1ms", "10ms"),
            (&format!("{ACCRUAL}-consecutive-max-penalty"), "0", "above zero"),
            ("retry.linkerd.io/htpp", "5xx", "no such annotation"),
        ] {
            let found = problems(&annotations(&[(name, value)]));
            assert!(
                found.len() == 1 && found[0].starts_with(name) && found[0].contains(expected),
                "{found:?}"
            );
        }
    }
}
