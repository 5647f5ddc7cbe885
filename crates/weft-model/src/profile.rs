//! What is known of a destination besides its policy, and what a ServiceProfile makes of the requests to a service.

use crate::{
    http::{PathMatch, RequestParts},
    meta::Meta,
    outbound::{
        Backend, BackendKind, Distribution, Endpoint, EwmaConfig, HttpRule, RetryPolicy, RouteBackend,
        Timeouts,
    },
    retry::{Bucket, DEFAULT_BACKOFF, DEFAULT_REQUEST_BYTES, RetryBudget},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// What `GetProfile` says about an address. A profile's opaque flag beats the policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    pub fully_qualified_name: Option<String>,
    pub opaque: bool,
    pub endpoint: Option<Arc<Endpoint>>,
    pub parent: Option<Arc<Meta>>,
    /// Routes and shares of a ServiceProfile, if there is one.
    pub service: ServiceProfile,
}

/// One route of a ServiceProfile: the first whose condition holds takes the request.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRoute {
    pub condition: Condition,
    pub classes: Vec<ResponseClass>,
    /// Metric labels, without the prefix `rt_`.
    pub labels: BTreeMap<String, String>,
    pub retryable: bool,
    pub timeout: Option<Duration>,
}

/// What a request has to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
    Path(PathMatch),
    Method(String),
}

impl Condition {
    pub fn holds(&self, request: &RequestParts<'_>) -> bool {
        match self {
            Condition::All(all) => all.iter().all(|one| one.holds(request)),
            Condition::Any(any) => any.iter().any(|one| one.holds(request)),
            Condition::Not(not) => !not.holds(request),
            Condition::Path(path) => path.fits(request.path),
            Condition::Method(method) => method == request.method,
        }
    }
}

/// Answers that a profile calls failures, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseClass {
    pub condition: ResponseCondition,
    pub is_failure: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseCondition {
    All(Vec<ResponseCondition>),
    Any(Vec<ResponseCondition>),
    Not(Box<ResponseCondition>),
    /// Inclusive.
    Status(u16, u16),
}

impl ResponseCondition {
    fn holds(&self, status: u16) -> bool {
        match self {
            ResponseCondition::All(all) => all.iter().all(|one| one.holds(status)),
            ResponseCondition::Any(any) => any.iter().any(|one| one.holds(status)),
            ResponseCondition::Not(not) => !not.holds(status),
            ResponseCondition::Status(from, to) => (*from..=*to).contains(&status),
        }
    }
}

/// Is an answer with this status a failure? The first class that holds decides; `None`: no class does.
pub fn classify(classes: &[ResponseClass], status: u16) -> Option<bool> {
    classes.iter().find(|class| class.condition.holds(status)).map(|class| class.is_failure)
}

/// Another service that takes a share of the requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// `host:port`, as `Destination.Get` is asked for it.
    pub authority: String,
    pub weight: u32,
    pub meta: Option<Arc<Meta>>,
}

/// The parts of a profile that concern routing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceProfile {
    pub routes: Vec<ProfileRoute>,
    pub budget: Option<RetryBudget>,
    pub overrides: Vec<Override>,
}

/// A profile's routes in force for one destination: they replace the policy's.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceRoutes {
    /// `name:port`: what `l5d-dst-canonical` says, and the label `dst`.
    pub name: String,
    pub routes: Vec<ServiceRoute>,
    /// Takes what no route takes.
    pub rest: ServiceRoute,
    /// Shared by all routes, and by all workers.
    pub budget: Option<Arc<Bucket>>,
    /// The shares of the service's overrides; also bytes that are not HTTP go by them.
    pub shares: Option<Distribution>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ServiceRoute {
    /// `None`: any request.
    pub condition: Option<Condition>,
    pub classes: Arc<[ResponseClass]>,
    pub labels: Arc<BTreeMap<String, String>>,
    pub meta: Arc<Meta>,
    pub retryable: bool,
    pub rule: HttpRule,
}

/// However large the budget is: no single request is sent more often.
const MAX_RETRIES: u16 = 10;

impl ServiceRoutes {
    /// The routes of a profile for `port`; `None` where it says nothing about routing, or has no name. `before`: those of the last
    /// answer, whose budget goes on if the rules are the same.
    pub fn new(
        profile: &ServiceProfile,
        name: Option<&str>,
        endpoint: Option<&Arc<Endpoint>>,
        port: u16,
        before: Option<&ServiceRoutes>,
    ) -> Option<Self> {
        if profile.routes.is_empty() && profile.overrides.is_empty() {
            return None;
        }
        let name = format!("{}:{port}", name?.trim_end_matches('.'));
        let balance = |path: &str| BackendKind::Balance { path: path.to_owned(), ewma: EwmaConfig::DEFAULT };
        let backend =
            |meta: Arc<Meta>, kind| RouteBackend { backend: Backend { meta, kind }, filters: Vec::new() };
        let shares = (!profile.overrides.is_empty()).then(|| {
            let share = |share: &Override| {
                let meta = share.meta.clone();
                let meta = meta.unwrap_or_else(|| Arc::new(Meta::default_named(&share.authority)));
                (backend(meta, balance(&share.authority)), share.weight)
            };
            Distribution::RandomAvailable(profile.overrides.iter().map(share).collect())
        });
        let backends = shares.clone().unwrap_or_else(|| {
            let kind = match endpoint {
                Some(endpoint) => BackendKind::Forward(endpoint.clone()),
                None => balance(&name),
            };
            Distribution::FirstAvailable(vec![backend(Arc::new(Meta::default_named(&name)), kind)])
        });
        let rule = |timeout: Option<Duration>, retryable: bool| HttpRule {
            matches: Vec::new(),
            filters: Vec::new(),
            backends: backends.clone(),
            timeouts: Timeouts { request: timeout, ..Timeouts::default() },
            retry: retryable.then(|| RetryPolicy {
                max_retries: MAX_RETRIES,
                max_request_bytes: DEFAULT_REQUEST_BYTES,
                // Its classes decide which answers are failures, not a list.
                statuses: Vec::new(),
                grpc_codes: Vec::new(),
                per_try_timeout: None,
                backoff: DEFAULT_BACKOFF,
                respects_retry_after: false,
            }),
            allow_request_headers: false,
        };
        let meta = |name: &str| Arc::new(Meta::default_named(name));
        let route = |route: &ProfileRoute| ServiceRoute {
            condition: Some(route.condition.clone()),
            classes: route.classes.as_slice().into(),
            labels: Arc::new(route.labels.clone()),
            meta: meta(route.labels.get("route").map_or("profile", String::as_str)),
            retryable: route.retryable,
            rule: rule(route.timeout, route.retryable),
        };
        let budget = profile.budget.map(|budget| Arc::new(Bucket::new(budget)));
        let kept =
            before.and_then(|before| before.budget.as_ref()).filter(|kept| Some(*kept) == budget.as_ref());
        Some(ServiceRoutes {
            routes: profile.routes.iter().map(route).collect(),
            rest: ServiceRoute {
                condition: None,
                classes: Arc::default(),
                labels: Arc::default(),
                meta: meta("default"),
                retryable: false,
                rule: rule(None, false),
            },
            budget: kept.cloned().or(budget),
            shares,
            name,
        })
    }

    pub fn find(&self, request: &RequestParts<'_>) -> &ServiceRoute {
        let fits =
            |route: &&ServiceRoute| route.condition.as_ref().is_none_or(|condition| condition.holds(request));
        self.routes.iter().find(fits).unwrap_or(&self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Pattern;

    fn path(re: &str) -> Condition {
        Condition::Path(PathMatch::Regex(Pattern::new(re).unwrap()))
    }

    fn route(name: &str, condition: Condition) -> ProfileRoute {
        ProfileRoute {
            condition,
            classes: Vec::new(),
            labels: BTreeMap::from([("route".to_owned(), name.to_owned())]),
            retryable: true,
            timeout: Some(Duration::from_secs(1)),
        }
    }

    fn profile() -> ServiceProfile {
        let get = || Condition::Method("GET".into());
        ServiceProfile {
            routes: vec![
                route("books", Condition::All(vec![get(), path("/books/[0-9]+")])),
                route("else", Condition::Any(vec![path("/authors"), Condition::Not(Box::new(get()))])),
            ],
            budget: Some(RetryBudget { ratio: 0.2, min_per_second: 10, ttl: Duration::from_secs(10) }),
            overrides: Vec::new(),
        }
    }

    fn found(routes: &ServiceRoutes, method: &str, path: &str) -> String {
        let none: Vec<(String, String)> = Vec::new();
        let request = RequestParts { method, host: "h", path, query: None, headers: &none };
        routes.find(&request).meta.name().to_owned()
    }

    #[test]
    fn the_first_route_whose_condition_holds_takes_the_request() {
        let routes =
            ServiceRoutes::new(&profile(), Some("web.shop.svc.cluster.local."), None, 80, None).unwrap();
        for (method, path, route) in [
            ("GET", "/books/12", "books"),
            ("GET", "/books/12/x", "default"),
            ("GET", "/authors", "else"),
            ("POST", "/books/12", "else"),
            ("GET", "/", "default"),
        ] {
            assert_eq!(found(&routes, method, path), route, "{method} {path}");
        }
        assert_eq!(routes.name, "web.shop.svc.cluster.local:80");
        assert!(routes.shares.is_none() && routes.rest.rule.retry.is_none());
        assert_eq!(routes.routes[0].rule.timeouts.request, Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_profile_without_routes_or_shares_overrides_nothing() {
        let none = ServiceProfile { routes: Vec::new(), ..profile() };
        assert_eq!(ServiceRoutes::new(&none, Some("a.b"), None, 80, None), None);
        assert_eq!(ServiceRoutes::new(&profile(), None, None, 80, None), None);
        let shared = ServiceProfile {
            overrides: vec![Override { authority: "c.d:80".into(), weight: 3, meta: None }],
            ..none
        };
        let routes = ServiceRoutes::new(&shared, Some("a.b"), None, 80, None).unwrap();
        let Some(Distribution::RandomAvailable(shares)) = &routes.shares else { panic!("shares") };
        assert!(matches!(&shares[0].0.backend.kind, BackendKind::Balance { path, .. } if path == "c.d:80"));
        assert_eq!(&routes.rest.rule.backends, routes.shares.as_ref().unwrap());
    }

    #[test]
    fn a_budget_outlives_an_update_that_does_not_change_it() {
        let first = ServiceRoutes::new(&profile(), Some("a.b"), None, 80, None).unwrap();
        let again = ServiceRoutes::new(&profile(), Some("a.b"), None, 80, Some(&first)).unwrap();
        assert!(Arc::ptr_eq(first.budget.as_ref().unwrap(), again.budget.as_ref().unwrap()));
        let budget = Some(RetryBudget { ratio: 0.5, min_per_second: 1, ttl: Duration::from_secs(1) });
        let changed = ServiceProfile { budget, ..profile() };
        let other = ServiceRoutes::new(&changed, Some("a.b"), None, 80, Some(&first)).unwrap();
        assert!(!Arc::ptr_eq(first.budget.as_ref().unwrap(), other.budget.as_ref().unwrap()));
    }

    #[test]
    fn the_first_class_that_holds_decides() {
        let class = |condition, is_failure| ResponseClass { condition, is_failure };
        let classes = [
            class(ResponseCondition::Status(503, 503), false),
            class(
                ResponseCondition::All(vec![
                    ResponseCondition::Status(400, 599),
                    ResponseCondition::Not(Box::new(ResponseCondition::Status(404, 404))),
                ]),
                true,
            ),
        ];
        for (status, failure) in [(503, Some(false)), (500, Some(true)), (404, None), (200, None)] {
            assert_eq!(classify(&classes, status), failure, "{status}");
        }
    }
}
