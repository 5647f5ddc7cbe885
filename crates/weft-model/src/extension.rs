//! Filters that the stock protocol has no words for. In a policy that came by it they stand as [`Filter::Unknown`], which fails
//! the requests of its rule; whoever learns what they are puts them in their places.

use crate::{
    http::Filter,
    meta::Meta,
    outbound::{Distribution, HttpRoutes, OutboundPolicy, OutboundProtocol, RouteBackend},
};
use std::sync::Arc;

/// One filter and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Extension {
    pub place: Place,
    pub filter: Filter,
}

/// Where in a policy a filter stands. Numbers count from zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub route: Arc<Meta>,
    pub rule: usize,
    /// Of one of the rule's backends; `None`: of the rule itself.
    pub backend: Option<usize>,
    pub filter: usize,
}

/// Does a policy hold filters that are not known (yet)?
pub fn is_incomplete(policy: &mut OutboundPolicy) -> bool {
    let mut incomplete = false;
    each_filter(policy, &mut |_, filter| incomplete |= *filter == Filter::Unknown);
    incomplete
}

/// What cannot be said about a policy by the stock protocol.
pub fn extensions(policy: &OutboundPolicy) -> Vec<Extension> {
    let mut all = Vec::new();
    each_filter(&mut policy.clone(), &mut |place, filter| {
        if matches!(filter, Filter::RewriteUrl(_) | Filter::Mirror(_)) {
            all.push(Extension { place: place(), filter: filter.clone() });
        }
    });
    // The two versions of HTTP have the same routes in most policies.
    let mut once: Vec<Extension> = Vec::with_capacity(all.len());
    for extension in all {
        if !once.contains(&extension) {
            once.push(extension);
        }
    }
    once
}

/// Puts filters in their places. Only what is unknown is replaced: an extension cannot take away what a policy says.
pub fn extend(policy: &mut OutboundPolicy, extensions: &[Extension]) {
    each_filter(policy, &mut |place, filter| {
        if *filter == Filter::Unknown {
            let place = place();
            if let Some(known) = extensions.iter().find(|extension| extension.place == place) {
                *filter = known.filter.clone();
            }
        }
    });
}

fn each_filter(policy: &mut OutboundPolicy, see: &mut dyn FnMut(&dyn Fn() -> Place, &mut Filter)) {
    match &mut policy.protocol {
        OutboundProtocol::Detect { http1, http2, .. } => {
            each_of(http1, see);
            each_of(http2, see);
        }
        OutboundProtocol::Http1(http) | OutboundProtocol::Http2(http) | OutboundProtocol::Grpc(http) => {
            each_of(http, see);
        }
        OutboundProtocol::Opaque(_) | OutboundProtocol::Tls(_) => {}
    }
}

fn each_of(routes: &mut HttpRoutes, see: &mut dyn FnMut(&dyn Fn() -> Place, &mut Filter)) {
    for route in &mut routes.routes {
        let meta = &route.meta;
        for (rule_at, rule) in route.rules.iter_mut().enumerate() {
            let mut each = |backend: Option<usize>, filters: &mut [Filter]| {
                for (at, filter) in filters.iter_mut().enumerate() {
                    see(&|| Place { route: meta.clone(), rule: rule_at, backend, filter: at }, filter);
                }
            };
            each(None, &mut rule.filters);
            let backends: Vec<&mut RouteBackend> = match &mut rule.backends {
                Distribution::Empty => Vec::new(),
                Distribution::FirstAvailable(all) => all.iter_mut().collect(),
                Distribution::RandomAvailable(all) => all.iter_mut().map(|(backend, _)| backend).collect(),
            };
            for (at, backend) in backends.into_iter().enumerate() {
                each(Some(at), &mut backend.filters);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http::{Mirror, Rewrite},
        outbound::{Backend, BackendKind, HttpRoute, HttpRule, Timeouts},
    };

    fn policy(of_rule: Vec<Filter>, of_backend: Vec<Filter>) -> OutboundPolicy {
        let meta = |name| Arc::new(Meta::default_named(name));
        let backend = Backend { meta: meta("b"), kind: BackendKind::Invalid(String::new()) };
        let rule = |filters, of_backend| HttpRule {
            matches: Vec::new(),
            filters,
            backends: Distribution::RandomAvailable(vec![(
                RouteBackend { backend: backend.clone(), filters: of_backend },
                1,
            )]),
            timeouts: Timeouts::default(),
            retry: None,
            allow_request_headers: false,
        };
        let rules = vec![rule(Vec::new(), Vec::new()), rule(of_rule, of_backend)];
        let routes = vec![HttpRoute { meta: meta("r"), hosts: Vec::new(), rules }];
        OutboundPolicy {
            meta: meta("p"),
            protocol: OutboundProtocol::Http1(HttpRoutes { routes, accrual: None }),
        }
    }

    #[test]
    fn what_cannot_be_said_is_found_and_put_back() {
        let rewrite = Filter::RewriteUrl(Rewrite { host: Some("h".into()), path: None });
        let mirror = Filter::Mirror(Mirror {
            meta: Arc::new(Meta::default_named("m")),
            path: "m:80".into(),
            fraction: 0.5,
        });
        let fail = Filter::Fail { status: 500, message: String::new(), ratio: 1.0 };
        let whole = policy(vec![fail.clone(), rewrite], vec![mirror]);
        let all = extensions(&whole);
        assert_eq!(all.len(), 2);
        let mut came = policy(vec![fail, Filter::Unknown], vec![Filter::Unknown]);
        assert!(is_incomplete(&mut came));
        extend(&mut came, &all[..1]);
        assert!(is_incomplete(&mut came), "the rest stays unknown, and fails its requests");
        extend(&mut came, &all);
        assert_eq!(came, whole);
        assert!(!is_incomplete(&mut came));
    }

    #[test]
    fn what_a_policy_says_is_not_replaced() {
        let fail = Filter::Fail { status: 403, message: String::new(), ratio: 1.0 };
        let said = policy(vec![fail], Vec::new());
        let place = Place { route: Arc::new(Meta::default_named("r")), rule: 1, backend: None, filter: 0 };
        let filter = Filter::RewriteUrl(Rewrite::default());
        let mut extended = said.clone();
        extend(&mut extended, &[Extension { place, filter }]);
        assert_eq!(extended, said);
    }
}
