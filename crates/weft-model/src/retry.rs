//! Whether a request is sent again: what its route says, what the request asks for, and what a budget allows.

use crate::outbound::{Backoff, RetryPolicy, Timeouts};
use std::{
    borrow::Cow,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The most of a request's body that is kept where only the request itself asks for retries.
pub const DEFAULT_REQUEST_BYTES: usize = 64 * 1024;

/// Pauses between tries where nobody says otherwise.
pub const DEFAULT_BACKOFF: Backoff =
    Backoff { min: Duration::from_millis(25), max: Duration::from_millis(250), jitter: 1.0 };

impl RetryPolicy {
    /// Is this answer one to be tried again? gRPC's status counts beside HTTP's: a route may list either.
    pub fn wants(&self, status: u16, grpc: Option<u8>) -> bool {
        self.statuses.iter().any(|(from, to)| (*from..=*to).contains(&status))
            || grpc.is_some_and(|code| self.grpc_codes.contains(&code))
    }

    /// The pause before try number `tried` + 1; `random` is from 0 to 1. A server that says when it will be back is believed
    /// where the policy says so, within the same bounds.
    pub fn pause(&self, tried: u16, retry_after: Option<Duration>, random: f32) -> Duration {
        let Backoff { min, max, jitter } = self.backoff;
        let grown = min.saturating_mul(1_u32.checked_shl(tried.saturating_sub(1).into()).unwrap_or(u32::MAX));
        let hint = retry_after.filter(|_| self.respects_retry_after);
        let pause = hint.unwrap_or(grown).clamp(min, max);
        pause + pause.mul_f32((jitter * random).max(0.0))
    }
}

/// What a request asks for by its own `l5d-` headers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    pub statuses: Option<Vec<(u16, u16)>>,
    pub grpc_codes: Option<Vec<u8>>,
    pub limit: Option<u16>,
    pub per_try_timeout: Option<Duration>,
    pub request_timeout: Option<Duration>,
    pub response_timeout: Option<Duration>,
}

impl Asked {
    /// The route's policy with what the request asks for in its place. Without a policy, a request has to name what it
    /// wants tried again.
    pub fn retry<'p>(&self, policy: Option<&'p RetryPolicy>) -> Option<Cow<'p, RetryPolicy>> {
        let conditions = self.statuses.is_some() || self.grpc_codes.is_some();
        if !conditions && self.limit.is_none() && self.per_try_timeout.is_none() {
            return policy.map(Cow::Borrowed);
        }
        let mut own = match policy {
            Some(policy) => policy.clone(),
            None if conditions => RetryPolicy {
                max_retries: 1,
                max_request_bytes: DEFAULT_REQUEST_BYTES,
                statuses: Vec::new(),
                grpc_codes: Vec::new(),
                per_try_timeout: None,
                backoff: DEFAULT_BACKOFF,
                respects_retry_after: false,
            },
            None => return None,
        };
        if let Some(statuses) = &self.statuses {
            own.statuses.clone_from(statuses);
        }
        if let Some(codes) = &self.grpc_codes {
            own.grpc_codes.clone_from(codes);
        }
        own.max_retries = self.limit.unwrap_or(own.max_retries);
        own.per_try_timeout = self.per_try_timeout.or(own.per_try_timeout);
        Some(Cow::Owned(own))
    }

    pub fn timeouts(&self, route: Timeouts) -> Timeouts {
        Timeouts {
            request: self.request_timeout.or(route.request),
            response: self.response_timeout.or(route.response),
            idle: route.idle,
        }
    }
}

/// A list of statuses: `5xx`, `gateway-error`, `503`, `500-504`. `None` where any part of it cannot be read.
pub fn statuses(text: &str) -> Option<Vec<(u16, u16)>> {
    text.split(',').map(|part| status_range(part.trim())).collect()
}

fn status_range(text: &str) -> Option<(u16, u16)> {
    let range = match text {
        "gateway-error" => (502, 504),
        _ if text.eq_ignore_ascii_case("5xx") => (500, 599),
        _ => match text.split_once('-') {
            Some((low, high)) => (low.trim().parse().ok()?, high.trim().parse().ok()?),
            None => {
                let code = text.parse().ok()?;
                (code, code)
            }
        },
    };
    ((100..600).contains(&range.0) && range.0 <= range.1 && range.1 < 600).then_some(range)
}

/// A list of gRPC statuses by name, of those that a retry can help.
pub fn grpc_codes(text: &str) -> Option<Vec<u8>> {
    let code = |name: &str| {
        Some(match name.to_ascii_lowercase().as_str() {
            "cancelled" => 1,
            "deadline-exceeded" => 4,
            "resource-exhausted" => 8,
            "internal" => 13,
            "unavailable" => 14,
            _ => return None,
        })
    };
    text.split(',').map(|part| code(part.trim())).collect()
}

/// A duration as Linkerd writes it: a whole number and a unit, or a bare 0.
pub fn duration(text: &str) -> Option<Duration> {
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

/// How many retries a service may cost beside its requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryBudget {
    /// Retries that a request pays for.
    pub ratio: f32,
    /// Retries that are free, so that a quiet service can be retried at all.
    pub min_per_second: u32,
    /// For how long a request counts.
    pub ttl: Duration,
}

/// The state of a [`RetryBudget`], shared by the workers of a proxy. `now` is time since any fixed start.
///
/// Deposits are kept in slots, each with the number of its time span, so that what is old drops out by itself. A
/// withdrawal looks at all slots and takes from the newest one; two workers that look at the same moment may both take
/// the last token, which is all that the absence of a lock costs.
#[derive(Debug)]
pub struct Bucket {
    budget: RetryBudget,
    slot: Duration,
    slots: [AtomicU64; SLOTS],
}

const SLOTS: usize = 10;
/// One retry, so that small ratios have whole parts.
const TOKEN: i64 = 1_000;

impl PartialEq for Bucket {
    /// Two buckets are the same if their rules are: what is in them is not configuration.
    fn eq(&self, other: &Self) -> bool {
        self.budget == other.budget
    }
}

impl Bucket {
    pub fn new(budget: RetryBudget) -> Self {
        let slot = (budget.ttl / SLOTS as u32).max(Duration::from_millis(1));
        Bucket { budget, slot, slots: Default::default() }
    }

    /// A first try.
    pub fn deposit(&self, now: Duration) {
        self.change((f64::from(self.budget.ratio.max(0.0)) * TOKEN as f64) as i64, now);
    }

    /// A retry, if there is a token left for it.
    pub fn withdraw(&self, now: Duration) -> bool {
        let number = self.number(now);
        let live = |slot: &AtomicU64| {
            let (of, balance) = unpack(slot.load(Relaxed));
            if number.wrapping_sub(of) < SLOTS as u32 { balance } else { 0 }
        };
        let free = f64::from(self.budget.min_per_second) * self.budget.ttl.as_secs_f64() * TOKEN as f64;
        if self.slots.iter().map(live).sum::<i64>().saturating_add(free as i64) < TOKEN {
            return false;
        }
        self.change(-TOKEN, now);
        true
    }

    /// Slots are numbered from one: a slot that was never written is old.
    fn number(&self, now: Duration) -> u32 {
        ((now.as_micros() / self.slot.as_micros()) as u32).wrapping_add(SLOTS as u32)
    }

    fn change(&self, by: i64, now: Duration) {
        let number = self.number(now);
        let slot = &self.slots[number as usize % SLOTS];
        let change = |packed| {
            let (of, balance) = unpack(packed);
            let balance = if of == number { balance } else { 0 };
            Some(pack(number, balance.saturating_add(by)))
        };
        // It is never declined.
        let _always = slot.fetch_update(Relaxed, Relaxed, change);
    }
}

fn pack(number: u32, balance: i64) -> u64 {
    let balance = balance.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    u64::from(number) << 32 | u64::from(balance.cast_unsigned())
}

fn unpack(packed: u64) -> (u32, i64) {
    ((packed >> 32) as u32, i64::from((packed as u32).cast_signed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> RetryPolicy {
        RetryPolicy {
            max_retries: 3,
            max_request_bytes: 10,
            statuses: vec![(500, 599)],
            grpc_codes: vec![14],
            per_try_timeout: Some(Duration::from_secs(1)),
            backoff: Backoff { min: Duration::from_millis(10), max: Duration::from_millis(35), jitter: 1.0 },
            respects_retry_after: true,
        }
    }

    #[test]
    fn either_status_may_want_a_retry() {
        for (status, grpc, wanted) in [
            (200, None, false),
            (503, None, true),
            (200, Some(14), true),
            (200, Some(13), false),
            (429, None, false),
        ] {
            assert_eq!(policy().wants(status, grpc), wanted, "{status} {grpc:?}");
        }
    }

    #[test]
    fn pauses_grow_to_their_limit_and_a_hint_stays_within_it() {
        let ms = |tried, hint: Option<u64>, random| {
            policy().pause(tried, hint.map(Duration::from_millis), random).as_millis()
        };
        assert_eq!(
            [ms(1, None, 0.0), ms(2, None, 0.0), ms(3, None, 0.0), ms(60, None, 0.0)],
            [10, 20, 35, 35]
        );
        assert_eq!(ms(1, None, 1.0), 20);
        assert_eq!([ms(1, Some(30), 0.0), ms(1, Some(1), 0.0), ms(1, Some(60_000), 0.0)], [30, 10, 35]);
        let deaf = RetryPolicy { respects_retry_after: false, ..policy() };
        assert_eq!(deaf.pause(1, Some(Duration::from_millis(30)), 0.0).as_millis(), 10);
    }

    #[test]
    fn lists_are_read_whole_or_not_at_all() {
        assert_eq!(statuses("gateway-error, 429,500-501"), Some(vec![(502, 504), (429, 429), (500, 501)]));
        assert_eq!(statuses("5xx"), Some(vec![(500, 599)]));
        for bad in ["", "5xx,", "600", "9-8", "x", "500-", "99999999999"] {
            assert_eq!(statuses(bad), None, "{bad}");
        }
        assert_eq!(grpc_codes("Unavailable, internal"), Some(vec![14, 13]));
        assert_eq!(grpc_codes("unavailable,ok"), None);
        for (text, read) in [
            ("0", Some(0)),
            ("300ms", Some(300)),
            ("2s", Some(2000)),
            ("5", None),
            ("1.5s", None),
            ("-1s", None),
        ] {
            assert_eq!(duration(text), read.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn a_request_changes_what_it_names_and_starts_from_defaults() {
        let nothing = Asked::default();
        assert_eq!(nothing.retry(None), None);
        assert!(matches!(nothing.retry(Some(&policy())), Some(Cow::Borrowed(_))));
        let more = Asked { limit: Some(7), ..Asked::default() };
        assert_eq!(more.retry(None), None, "nothing says what to try again");
        let changed = more.retry(Some(&policy())).unwrap().into_owned();
        assert_eq!(changed, RetryPolicy { max_retries: 7, ..policy() });
        let own = Asked { statuses: Some(vec![(503, 503)]), ..Asked::default() };
        let own = own.retry(None).unwrap();
        assert_eq!((own.max_retries, own.max_request_bytes, own.backoff), (1, 65_536, DEFAULT_BACKOFF));
        let asked = Asked { request_timeout: Some(Duration::from_secs(1)), ..Asked::default() };
        let route = Timeouts { request: None, response: Some(Duration::from_secs(9)), idle: None };
        assert_eq!(asked.timeouts(route), Timeouts { request: Some(Duration::from_secs(1)), ..route });
    }

    fn bucket(ratio: f32, min_per_second: u32) -> Bucket {
        Bucket::new(RetryBudget { ratio, min_per_second, ttl: Duration::from_secs(10) })
    }

    fn drain(bucket: &Bucket, now: Duration) -> usize {
        (0..10_000).take_while(|_| bucket.withdraw(now)).count()
    }

    #[test]
    fn requests_pay_for_retries_and_are_forgotten() {
        let start = Duration::from_secs(1_000);
        let paid = bucket(0.2, 0);
        assert_eq!(drain(&paid, start), 0);
        (0..50).for_each(|_| paid.deposit(start));
        assert_eq!(drain(&paid, start), 10);
        (0..50).for_each(|_| paid.deposit(start));
        assert_eq!(drain(&paid, start + Duration::from_secs(9)), 10, "still within its time");
        (0..50).for_each(|_| paid.deposit(start));
        assert_eq!(drain(&paid, start + Duration::from_secs(20)), 0, "too old");
    }

    #[test]
    fn some_retries_are_free_and_what_was_taken_comes_back() {
        let start = Duration::from_secs(3);
        let free = bucket(0.0, 2);
        assert_eq!(drain(&free, start), 20);
        assert_eq!(drain(&free, start + Duration::from_secs(9)), 0);
        assert_eq!(drain(&free, start + Duration::from_secs(11)), 20);
    }

    #[test]
    fn packing_keeps_both_parts() {
        for (number, balance) in [(0, 0), (7, -5), (u32::MAX, i64::from(i32::MAX)), (1, i64::from(i32::MIN))]
        {
            assert_eq!(unpack(pack(number, balance)), (number, balance));
        }
        assert_eq!(unpack(pack(1, i64::MAX)).1, i64::from(i32::MAX));
    }
}
