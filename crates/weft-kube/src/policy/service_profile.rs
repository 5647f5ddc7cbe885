//! `ServiceProfile`: routes, retries and shares of a service's traffic, as clients apply them.

use super::status::Conditions;
use crate::{
    core::service::IntOrString,
    kind::Kind,
    meta::{Meta, nullable},
};
use serde::Deserialize;
use std::{collections::BTreeMap, time::Duration};
use weft_model::{
    http::{PathMatch, Pattern},
    profile::{Condition, ProfileRoute, ResponseClass, ResponseCondition},
    retry::RetryBudget,
};

/// A condition that is nested deeper is not one that a person wrote.
const DEPTH: usize = 32;

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ServiceProfile {
    pub metadata: Meta,
    #[serde(default, deserialize_with = "nullable")]
    pub spec: ServiceProfileSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub status: Conditions,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceProfileSpec {
    #[serde(deserialize_with = "nullable")]
    pub routes: Vec<RouteSpec>,
    pub retry_budget: Option<Budget>,
    #[serde(deserialize_with = "nullable")]
    pub dst_overrides: Vec<WeightedDst>,
    #[serde(deserialize_with = "nullable")]
    pub opaque_ports: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteSpec {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    pub condition: Option<RequestMatch>,
    #[serde(deserialize_with = "nullable")]
    pub response_classes: Vec<ResponseClassSpec>,
    #[serde(deserialize_with = "nullable")]
    pub is_retryable: bool,
    pub timeout: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestMatch {
    pub all: Option<Vec<RequestMatch>>,
    pub any: Option<Vec<RequestMatch>>,
    pub not: Option<Box<RequestMatch>>,
    pub path_regex: Option<String>,
    pub method: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResponseClassSpec {
    pub condition: Option<ResponseMatch>,
    #[serde(deserialize_with = "nullable")]
    pub is_failure: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResponseMatch {
    pub all: Option<Vec<ResponseMatch>>,
    pub any: Option<Vec<ResponseMatch>>,
    pub not: Option<Box<ResponseMatch>>,
    pub status: Option<StatusRange>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatusRange {
    pub min: Option<u16>,
    pub max: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    pub retry_ratio: f32,
    pub min_retries_per_second: u32,
    pub ttl: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct WeightedDst {
    pub authority: String,
    pub weight: IntOrString,
}

/// What a profile says, read whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    pub routes: Vec<ProfileRoute>,
    pub budget: Option<RetryBudget>,
    /// Authority as written, and weight in thousandths.
    pub shares: Vec<(String, u32)>,
}

impl Kind for ServiceProfile {
    const GROUP: &'static str = "linkerd.io";
    const VERSION: &'static str = "v1alpha2";
    const KIND: &'static str = "ServiceProfile";
    const PLURAL: &'static str = "serviceprofiles";
    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl ServiceProfile {
    /// The profile, or the field that makes it unusable and why. Routes are tried in order, so leaving one out would give its
    /// requests to another: a profile is taken as a whole or not at all.
    pub fn read(&self) -> Result<Read, String> {
        let spec = &self.spec;
        let routes = spec.routes.iter().enumerate().map(|(at, route)| {
            route.read().map_err(|why| format!("spec.routes[{at}] ({}): {why}", route.name))
        });
        let shares = spec
            .dst_overrides
            .iter()
            .enumerate()
            .map(|(at, share)| share.read().map_err(|why| format!("spec.dstOverrides[{at}]: {why}")));
        Ok(Read {
            routes: routes.collect::<Result<_, _>>()?,
            budget: spec.retry_budget.as_ref().map(Budget::read).transpose()?,
            shares: shares.collect::<Result<_, _>>()?,
        })
    }
}

impl ServiceProfile {
    /// What is wrong with it, whatever else there is. It then has no effect.
    pub fn flaw(&self) -> Option<String> {
        let name = &self.metadata.name;
        let label = |l: &str| {
            let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            !l.is_empty() && l.len() <= 63 && l.bytes().all(inner) && !l.starts_with('-') && !l.ends_with('-')
        };
        if !name.contains('.') || !name.split('.').all(label) {
            return Some(format!(
                "metadata.name: {name:?} is no name of a service such as store.shop.svc.cluster.local"
            ));
        }
        let ports = self.spec.opaque_ports.iter().position(|p| !is_port_or_range(p));
        if let Some(at) = ports {
            return Some(format!(
                "spec.opaquePorts[{at}]: {:?} is no port or range of ports",
                self.spec.opaque_ports[at]
            ));
        }
        self.read().err()
    }
}

fn is_port_or_range(text: &str) -> bool {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    matches!((low.trim().parse::<u16>(), high.trim().parse::<u16>()), (Ok(low), Ok(high)) if low <= high)
}

impl RouteSpec {
    fn read(&self) -> Result<ProfileRoute, String> {
        if self.name.is_empty() {
            return Err("name: a route needs a name".to_owned());
        }
        let condition = self.condition.as_ref().ok_or("condition: a route needs a condition")?;
        let classes = self.response_classes.iter().enumerate().map(|(at, class)| {
            let condition = class.condition.as_ref().ok_or("it needs a condition".to_owned());
            let condition = condition.and_then(|c| c.read(DEPTH));
            match condition {
                Ok(condition) => Ok(ResponseClass { condition, is_failure: class.is_failure }),
                Err(why) => Err(format!("responseClasses[{at}].condition: {why}")),
            }
        });
        let timeout = self.timeout.as_deref().filter(|t| !t.is_empty()).map(|text| {
            duration(text).ok_or_else(|| format!("timeout: {text:?} is no duration such as 300ms or 1m30s"))
        });
        Ok(ProfileRoute {
            condition: condition.read(DEPTH).map_err(|why| format!("condition: {why}"))?,
            classes: classes.collect::<Result<_, _>>()?,
            labels: BTreeMap::from([("route".to_owned(), self.name.clone())]),
            retryable: self.is_retryable,
            timeout: timeout.transpose()?.filter(|t| !t.is_zero()),
        })
    }
}

const NEEDS_ONE: &str = "it needs a condition: all, any, not, pathRegex or method";

impl RequestMatch {
    /// Several fields at one level must all hold.
    fn read(&self, depth: usize) -> Result<Condition, String> {
        let depth = depth.checked_sub(1).ok_or("it is nested too deeply")?;
        let mut all = Vec::new();
        if let Some(inner) = &self.all {
            all.push(Condition::All(inner.iter().map(|c| c.read(depth)).collect::<Result<_, _>>()?));
        }
        if let Some(inner) = &self.any {
            all.push(Condition::Any(inner.iter().map(|c| c.read(depth)).collect::<Result<_, _>>()?));
        }
        if let Some(inner) = &self.not {
            all.push(Condition::Not(Box::new(inner.read(depth)?)));
        }
        if let Some(text) = self.path_regex.as_deref().filter(|t| !t.is_empty()) {
            let pattern =
                Pattern::new(text).map_err(|e| format!("pathRegex {text:?} cannot be used: {e}"))?;
            all.push(Condition::Path(PathMatch::Regex(pattern)));
        }
        if let Some(method) = self.method.as_deref().filter(|m| !m.is_empty()) {
            if http::Method::from_bytes(method.as_bytes()).is_err() {
                return Err(format!("method: {method:?} is no method"));
            }
            all.push(Condition::Method(method.to_owned()));
        }
        one_or_all(all, Condition::All).ok_or_else(|| NEEDS_ONE.to_owned())
    }
}

impl ResponseMatch {
    fn read(&self, depth: usize) -> Result<ResponseCondition, String> {
        let depth = depth.checked_sub(1).ok_or("it is nested too deeply")?;
        let mut all = Vec::new();
        if let Some(inner) = &self.all {
            all.push(ResponseCondition::All(inner.iter().map(|c| c.read(depth)).collect::<Result<_, _>>()?));
        }
        if let Some(inner) = &self.any {
            all.push(ResponseCondition::Any(inner.iter().map(|c| c.read(depth)).collect::<Result<_, _>>()?));
        }
        if let Some(inner) = &self.not {
            all.push(ResponseCondition::Not(Box::new(inner.read(depth)?)));
        }
        if let Some(range) = self.status {
            let (min, max) = (range.min.unwrap_or(100), range.max.unwrap_or(599));
            if !(100..600).contains(&min) || !(100..600).contains(&max) || min > max {
                return Err(format!("status: {min} to {max} is no range between 100 and 599"));
            }
            all.push(ResponseCondition::Status(min, max));
        }
        let needs = || "it needs a condition: all, any, not or status".to_owned();
        one_or_all(all, ResponseCondition::All).ok_or_else(needs)
    }
}

fn one_or_all<T>(mut all: Vec<T>, join: impl Fn(Vec<T>) -> T) -> Option<T> {
    match all.len() {
        0 | 1 => all.pop(),
        _ => Some(join(all)),
    }
}

impl Budget {
    fn read(&self) -> Result<RetryBudget, String> {
        if !(0.0..=1000.0).contains(&self.retry_ratio) {
            return Err(format!(
                "spec.retryBudget.retryRatio: {} is not between 0 and 1000",
                self.retry_ratio
            ));
        }
        let ttl = duration(&self.ttl)
            .filter(|ttl| (Duration::from_secs(1)..=Duration::from_secs(60)).contains(ttl));
        let ttl =
            ttl.ok_or_else(|| format!("spec.retryBudget.ttl: {:?} is not between 1s and 60s", self.ttl))?;
        Ok(RetryBudget { ratio: self.retry_ratio, min_per_second: self.min_retries_per_second, ttl })
    }
}

impl WeightedDst {
    fn read(&self) -> Result<(String, u32), String> {
        if self.authority.parse::<http::uri::Authority>().is_err() {
            return Err(format!("authority: {:?} is no name with a port", self.authority));
        }
        let weight = match &self.weight {
            IntOrString::Int(whole) => Some(u32::from(*whole) * 1000),
            IntOrString::String(text) => match text.strip_suffix('m') {
                Some(thousandths) => thousandths.parse().ok(),
                None => text
                    .parse::<f64>()
                    .ok()
                    .filter(|w| (0.0..=4e6).contains(w))
                    .map(|w| (w * 1000.0).round() as u32),
            },
        };
        let bad = || format!("weight: {:?} is no number, nor thousandths such as 500m", self.weight);
        Ok((self.authority.clone(), weight.ok_or_else(bad)?))
    }
}

/// A duration as Go writes it: `300ms`, `1.5s`, `1m30s`.
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0.0_f64;
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(|b| !b.is_ascii_digit() && *b != b'.').count();
        let unit = match &rest[..letters] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        rest = &rest[letters..];
        total += number * unit;
    }
    Duration::try_from_secs_f64(total).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(spec: Value) -> Result<Read, String> {
        let object = json!({"metadata": {"name": "a.b.svc.cluster.local"}, "spec": spec});
        serde_json::from_value::<ServiceProfile>(object).unwrap().read()
    }

    #[test]
    fn a_profile_as_people_write_it() {
        let profile = read(json!({
            "routes": [{
                "name": "GET /books/{id}",
                "condition": {"method": "GET", "pathRegex": "/books/[^/]*"},
                "responseClasses": [
                    {"condition": {"status": {"min": 500, "max": 599}}, "isFailure": true},
                    {"condition": {"not": {"status": {"max": 299}}}},
                ],
                "isRetryable": true,
                "timeout": "1.5s",
            }],
            "retryBudget": {"retryRatio": 0.2, "minRetriesPerSecond": 10, "ttl": "10s"},
            "dstOverrides": [{"authority": "v2.shop.svc.cluster.local", "weight": "500m"},
                {"authority": "v1.shop.svc.cluster.local:80", "weight": 2}],
        }))
        .unwrap();
        let route = &profile.routes[0];
        assert!(matches!(&route.condition, Condition::All(both) if both.len() == 2));
        assert_eq!(route.classes[0].condition, ResponseCondition::Status(500, 599));
        assert_eq!((route.retryable, route.timeout), (true, Some(Duration::from_millis(1500))));
        assert_eq!(profile.budget.unwrap().ttl, Duration::from_secs(10));
        let weights: Vec<u32> = profile.shares.iter().map(|(_, w)| *w).collect();
        assert_eq!(weights, [500, 2000]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let route = |extra: Value| {
            let mut route = json!({"name": "r", "condition": {"method": "GET"}});
            for (key, value) in extra.as_object().unwrap() {
                route[key] = value.clone();
            }
            json!({"routes": [route]})
        };
        for (spec, reason) in [
            (route(json!({"condition": {}})), "spec.routes[0] (r): condition"),
            (route(json!({"condition": {"pathRegex": "("}})), "pathRegex"),
            (route(json!({"timeout": "5"})), "timeout"),
            (
                route(json!({"responseClasses": [{"condition": {"status": {"min": 500, "max": 400}}}]})),
                "responseClasses[0].condition: status",
            ),
            (
                json!({"retryBudget": {"retryRatio": -1.0, "minRetriesPerSecond": 1, "ttl": "10s"}}),
                "retryRatio",
            ),
            (json!({"retryBudget": {"retryRatio": 0.1, "minRetriesPerSecond": 1, "ttl": "x"}}), "ttl"),
            (json!({"dstOverrides": [{"authority": "a b", "weight": 1}]}), "spec.dstOverrides[0]: authority"),
            (json!({"dstOverrides": [{"authority": "a", "weight": "x"}]}), "weight"),
        ] {
            let error = read(spec).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
