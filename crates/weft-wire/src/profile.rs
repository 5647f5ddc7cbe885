//! `io.linkerd.proxy.destination.DestinationProfile`: what `GetProfile` says.

use crate::{
    common::{Invalid, duration_to_api, meta_from_api, meta_to_api, optional_duration},
    destination::{endpoint_from_api, endpoint_to_api},
    matches,
};
use linkerd2_proxy_api::destination as api;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};
use weft_model::{
    http::PathMatch,
    profile::{Condition, Override, Profile, ProfileRoute, ResponseClass, ResponseCondition, ServiceProfile},
    retry::RetryBudget,
};

/// A condition that is nested deeper is not one that a person wrote.
const DEPTH: usize = 32;

/// Stock proxies want a budget even where nothing is retried.
const BUDGET: RetryBudget = RetryBudget { ratio: 0.2, min_per_second: 10, ttl: Duration::from_secs(10) };

pub fn to_api(profile: &Profile) -> api::DestinationProfile {
    let budget = profile.service.budget.unwrap_or(BUDGET);
    api::DestinationProfile {
        fully_qualified_name: profile.fully_qualified_name.clone().unwrap_or_default(),
        opaque_protocol: profile.opaque,
        routes: profile.service.routes.iter().map(route_to_api).collect(),
        retry_budget: Some(api::RetryBudget {
            retry_ratio: budget.ratio,
            min_retries_per_second: budget.min_per_second,
            ttl: Some(duration_to_api(budget.ttl)),
        }),
        dst_overrides: profile
            .service
            .overrides
            .iter()
            .map(|share| api::WeightedDst {
                authority: share.authority.clone(),
                weight: share.weight,
                backend_ref: share.meta.as_deref().map(meta_to_api),
            })
            .collect(),
        endpoint: profile.endpoint.as_deref().map(endpoint_to_api),
        parent_ref: profile.parent.as_deref().map(meta_to_api),
        profile_ref: None,
    }
}

fn route_to_api(route: &ProfileRoute) -> api::Route {
    api::Route {
        condition: Some(condition_to_api(&route.condition)),
        response_classes: route
            .classes
            .iter()
            .map(|class| api::ResponseClass {
                condition: Some(response_to_api(&class.condition)),
                is_failure: class.is_failure,
            })
            .collect(),
        metrics_labels: route.labels.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        is_retryable: route.retryable,
        timeout: route.timeout.map(duration_to_api),
    }
}

fn condition_to_api(condition: &Condition) -> api::RequestMatch {
    use api::request_match::{Match, Seq};
    let seq = |all: &[Condition]| Seq { matches: all.iter().map(condition_to_api).collect() };
    api::RequestMatch {
        r#match: Some(match condition {
            Condition::All(all) => Match::All(seq(all)),
            Condition::Any(any) => Match::Any(seq(any)),
            Condition::Not(not) => Match::Not(Box::new(condition_to_api(not))),
            Condition::Path(path) => Match::Path(api::PathMatch { regex: as_regex(path) }),
            Condition::Method(method) => Match::Method(matches::method_to_api(method)),
        }),
    }
}

/// The protocol knows expressions only.
fn as_regex(path: &PathMatch) -> String {
    match path {
        PathMatch::Regex(re) => re.as_str().to_owned(),
        PathMatch::Exact(path) => regex::escape(path),
        PathMatch::Prefix(path) => format!("{}(/.*)?", regex::escape(path.trim_end_matches('/'))),
    }
}

fn response_to_api(condition: &ResponseCondition) -> api::ResponseMatch {
    use api::response_match::{Match, Seq};
    let seq = |all: &[ResponseCondition]| Seq { matches: all.iter().map(response_to_api).collect() };
    api::ResponseMatch {
        r#match: Some(match condition {
            ResponseCondition::All(all) => Match::All(seq(all)),
            ResponseCondition::Any(any) => Match::Any(seq(any)),
            ResponseCondition::Not(not) => Match::Not(Box::new(response_to_api(not))),
            ResponseCondition::Status(min, max) => {
                Match::Status(api::HttpStatusRange { min: (*min).into(), max: (*max).into() })
            }
        }),
    }
}

/// A route that cannot be read is left out, as its controller's own rules have it: its requests are ordinary ones.
pub fn from_api(profile: api::DestinationProfile) -> Result<Profile, Invalid> {
    let overrides = profile.dst_overrides.into_iter().map(|share| {
        if share.authority.parse::<http::uri::Authority>().is_err() {
            return Err(Invalid::new("profile.dst_overrides.authority", format!("{:?}", share.authority)));
        }
        let meta = share.backend_ref.and_then(|meta| meta_from_api(Some(meta), "profile.backend_ref").ok());
        Ok(Override { authority: share.authority, weight: share.weight, meta })
    });
    Ok(Profile {
        fully_qualified_name: (!profile.fully_qualified_name.is_empty())
            .then_some(profile.fully_qualified_name),
        opaque: profile.opaque_protocol,
        endpoint: profile
            .endpoint
            .map(|endpoint| endpoint_from_api(endpoint, &HashMap::new()).map(Arc::new))
            .transpose()?,
        parent: profile.parent_ref.and_then(|meta| meta_from_api(Some(meta), "profile.parent_ref").ok()),
        service: ServiceProfile {
            overrides: overrides.collect::<Result<_, _>>()?,
            routes: profile.routes.into_iter().filter_map(route_from_api).collect(),
            budget: profile.retry_budget.and_then(budget_from_api),
        },
    })
}

fn budget_from_api(budget: api::RetryBudget) -> Option<RetryBudget> {
    let ttl = optional_duration(budget.ttl, "profile.retry_budget.ttl").ok()??;
    let sane = (0.0..=1_000.0).contains(&budget.retry_ratio) && !ttl.is_zero();
    sane.then_some(RetryBudget {
        ratio: budget.retry_ratio,
        min_per_second: budget.min_retries_per_second,
        ttl,
    })
}

fn route_from_api(route: api::Route) -> Option<ProfileRoute> {
    let classes = route.response_classes.into_iter().filter_map(|class| {
        let condition = response_from_api(class.condition?, DEPTH)?;
        Some(ResponseClass { condition, is_failure: class.is_failure })
    });
    Some(ProfileRoute {
        condition: condition_from_api(route.condition?, DEPTH)?,
        classes: classes.collect(),
        labels: route.metrics_labels.into_iter().collect::<BTreeMap<_, _>>(),
        retryable: route.is_retryable,
        timeout: optional_duration(route.timeout, "profile.route.timeout").ok()?.filter(|t| !t.is_zero()),
    })
}

fn condition_from_api(condition: api::RequestMatch, depth: usize) -> Option<Condition> {
    use api::request_match::{Match, Seq};
    let depth = depth.checked_sub(1)?;
    let seq =
        |seq: Seq| seq.matches.into_iter().map(|one| condition_from_api(one, depth)).collect::<Option<_>>();
    Some(match condition.r#match? {
        Match::All(all) => Condition::All(seq(all)?),
        Match::Any(any) => Condition::Any(seq(any)?),
        Match::Not(not) => Condition::Not(Box::new(condition_from_api(*not, depth)?)),
        Match::Path(path) => {
            Condition::Path(PathMatch::Regex(matches::regex(path.regex.trim(), "profile.path").ok()?))
        }
        Match::Method(method) => Condition::Method(matches::method_from_api(method).ok()?),
    })
}

fn response_from_api(condition: api::ResponseMatch, depth: usize) -> Option<ResponseCondition> {
    use api::response_match::{Match, Seq};
    let depth = depth.checked_sub(1)?;
    let seq =
        |seq: Seq| seq.matches.into_iter().map(|one| response_from_api(one, depth)).collect::<Option<_>>();
    Some(match condition.r#match? {
        Match::All(all) => ResponseCondition::All(seq(all)?),
        Match::Any(any) => ResponseCondition::Any(seq(any)?),
        Match::Not(not) => ResponseCondition::Not(Box::new(response_from_api(*not, depth)?)),
        Match::Status(range) => {
            // An end that is missing is open.
            let end = |n: u32, open: u16| if n == 0 { Some(open) } else { u16::try_from(n).ok() };
            ResponseCondition::Status(end(range.min, 100)?, end(range.max, 599)?)
        }
    })
}
