//! `io.linkerd.proxy.outbound.OutboundPolicy` and [`OutboundPolicy`].

use crate::{
    common::{
        Invalid, duration_from_api, duration_to_api, meta_from_api, meta_to_api, need, optional_duration,
    },
    destination::{endpoint_from_api, endpoint_to_api},
    matches,
};
use linkerd2_proxy_api::{http_route as api_http, opaque_route as api_opaque, outbound as api};
use std::{collections::HashMap, sync::Arc, time::Duration};
use weft_model::{
    http::Filter,
    outbound::{
        Backend, BackendKind, Backoff, Distribution, EwmaConfig, FailureAccrual, HttpRoute, HttpRoutes,
        HttpRule, OpaqueRoute, OpaqueRoutes, OutboundPolicy, OutboundProtocol, Penalty, Refusal, RetryPolicy,
        RouteBackend, SuccessRate, Timeouts,
    },
    retry::DEFAULT_BACKOFF,
};

// --- to the wire

pub fn to_api(policy: &OutboundPolicy) -> api::OutboundPolicy {
    use api::proxy_protocol::{Detect, Grpc, Http1, Http2, Kind, Opaque, Tls};
    let http1 = |http: &HttpRoutes| Http1 {
        routes: http.routes.iter().map(http_route_to_api).collect(),
        failure_accrual: http.accrual.as_ref().map(accrual_to_api),
    };
    let http2 = |http: &HttpRoutes| Http2 {
        routes: http.routes.iter().map(http_route_to_api).collect(),
        failure_accrual: http.accrual.as_ref().map(accrual_to_api),
    };
    let opaque = |opaque: &OpaqueRoutes| Opaque { routes: opaque.routes.iter().map(opaque_to_api).collect() };
    let kind = match &policy.protocol {
        OutboundProtocol::Detect { timeout, http1: one, http2: two, opaque: other } => Kind::Detect(Detect {
            timeout: Some(duration_to_api(*timeout)),
            opaque: Some(opaque(other)),
            http1: Some(http1(one)),
            http2: Some(http2(two)),
        }),
        OutboundProtocol::Http1(http) => Kind::Http1(http1(http)),
        OutboundProtocol::Http2(http) => Kind::Http2(http2(http)),
        OutboundProtocol::Grpc(http) => Kind::Grpc(Grpc {
            routes: http.routes.iter().map(grpc_route_to_api).collect(),
            failure_accrual: http.accrual.as_ref().map(accrual_to_api),
        }),
        OutboundProtocol::Opaque(routes) => Kind::Opaque(opaque(routes)),
        OutboundProtocol::Tls(routes) => {
            Kind::Tls(Tls { routes: routes.routes.iter().map(tls_to_api).collect() })
        }
    };
    api::OutboundPolicy {
        protocol: Some(api::ProxyProtocol { kind: Some(kind) }),
        metadata: Some(meta_to_api(&policy.meta)),
    }
}

fn load_to_api(ewma: EwmaConfig) -> api::backend::balance_p2c::Load {
    use api::backend::balance_p2c::{Load, PeakEwma, PenaltyPeakEwma};
    let default_rtt = Some(duration_to_api(ewma.default_rtt));
    let decay = Some(duration_to_api(ewma.decay));
    match ewma.penalty {
        None => Load::PeakEwma(PeakEwma { default_rtt, decay }),
        Some(penalty) => Load::PenaltyPeakEwma(PenaltyPeakEwma {
            default_rtt,
            decay,
            penalty: Some(duration_to_api(penalty.latency)),
            max_retry_after: Some(duration_to_api(penalty.max_retry_after)),
            // The latency's own decay applies, here as in stock proxies.
            penalty_decay: Some(duration_to_api(ewma.decay)),
        }),
    }
}

fn backend_to_api(backend: &Backend) -> api::Backend {
    use api::backend::{
        BalanceP2c, EndpointDiscovery, Kind,
        endpoint_discovery::{self, DestinationGet},
    };
    let kind = match &backend.kind {
        BackendKind::Forward(endpoint) => Some(Kind::Forward(endpoint_to_api(endpoint))),
        BackendKind::Balance { path, ewma } => Some(Kind::Balancer(BalanceP2c {
            discovery: Some(EndpointDiscovery {
                kind: Some(endpoint_discovery::Kind::Dst(DestinationGet { path: path.clone() })),
            }),
            load: Some(load_to_api(*ewma)),
        })),
        // A backend without a kind is what the protocol has for one that cannot be used.
        BackendKind::Invalid(_) => None,
    };
    api::Backend {
        metadata: Some(meta_to_api(&backend.meta)),
        // Demanded by stock proxies, which then use their own values.
        queue: Some(api::Queue {
            capacity: 100,
            failfast_timeout: Some(duration_to_api(Duration::from_secs(3))),
        }),
        kind,
    }
}

fn accrual_to_api(accrual: &FailureAccrual) -> api::FailureAccrual {
    use api::failure_accrual::{ConsecutiveFailures, Kind, Unified};
    let backoff = Some(backoff_to_api(accrual.backoff, accrual.respects_retry_after));
    let kind = match &accrual.rate {
        None => {
            Kind::ConsecutiveFailures(ConsecutiveFailures { max_failures: accrual.max_consecutive, backoff })
        }
        Some(rate) => Kind::Unified(Unified {
            success_rate_threshold: rate.threshold,
            decay: Some(duration_to_api(rate.window)),
            min_requests: rate.min_requests,
            max_consecutive_failures: accrual.max_consecutive,
            backoff,
        }),
    };
    let ejection =
        (accrual.min_ready > 0).then_some(api::EjectionConfig { min_ready_endpoints: accrual.min_ready });
    api::FailureAccrual { kind: Some(kind), ejection }
}

fn backoff_to_api(backoff: Backoff, respects_retry_after: bool) -> api::ExponentialBackoff {
    api::ExponentialBackoff {
        min_backoff: Some(duration_to_api(backoff.min)),
        max_backoff: Some(duration_to_api(backoff.max)),
        jitter_ratio: backoff.jitter,
        respect_retry_after_hint: respects_retry_after,
    }
}

/// Four route kinds have four copies of the same distribution message; the shape is written once.
macro_rules! distribution_to_api {
    ($module:ident, $distribution:expr, $filter:expr) => {{
        use api::$module::{
            Distribution as Api, RouteBackend as ApiBackend, WeightedRouteBackend,
            distribution::{Empty, FirstAvailable, Kind, RandomAvailable},
        };
        #[allow(clippy::needless_update, reason = "two of the four have a deprecated field more")]
        let backend = |backend: &RouteBackend| ApiBackend {
            backend: Some(backend_to_api(&backend.backend)),
            filters: backend.filters.iter().map($filter).collect(),
            ..Default::default()
        };
        Api {
            kind: Some(match $distribution {
                Distribution::Empty => Kind::Empty(Empty {}),
                Distribution::FirstAvailable(all) => {
                    Kind::FirstAvailable(FirstAvailable { backends: all.iter().map(backend).collect() })
                }
                Distribution::RandomAvailable(all) => Kind::RandomAvailable(RandomAvailable {
                    backends: all
                        .iter()
                        .map(|(one, weight)| WeightedRouteBackend {
                            backend: Some(backend(one)),
                            weight: *weight,
                        })
                        .collect(),
                }),
            }),
        }
    }};
}

fn http_filter_to_api(filter: &Filter) -> api::http_route::Filter {
    use api::http_route::filter::Kind;
    let kind = match filter {
        Filter::RequestHeaders(c) => Some(Kind::RequestHeaderModifier(matches::request_headers_to_api(c))),
        Filter::ResponseHeaders(c) => Some(Kind::ResponseHeaderModifier(matches::response_headers_to_api(c))),
        Filter::Redirect(redirect) => Some(Kind::Redirect(matches::redirect_to_api(redirect))),
        Filter::Fail { status, message, ratio } => {
            Some(Kind::FailureInjector(matches::fail_to_api(*status, message, *ratio)))
        }
        // What the protocol has no words for stands as a filter of no kind: a stock proxy fails the requests instead of
        // doing half of what the route says, and a weft proxy learns the rest from the `weft.dev` service.
        Filter::RewriteUrl(_) | Filter::Mirror(_) | Filter::Unknown => None,
    };
    api::http_route::Filter { kind }
}

fn grpc_filter_to_api(filter: &Filter) -> api::grpc_route::Filter {
    use api::grpc_route::filter::Kind;
    let kind = match filter {
        Filter::RequestHeaders(c) => Some(Kind::RequestHeaderModifier(matches::request_headers_to_api(c))),
        Filter::Fail { status, message, ratio } => {
            Some(Kind::FailureInjector(matches::grpc_fail_to_api(*status, message, *ratio)))
        }
        Filter::ResponseHeaders(_)
        | Filter::Redirect(_)
        | Filter::RewriteUrl(_)
        | Filter::Mirror(_)
        | Filter::Unknown => None,
    };
    api::grpc_route::Filter { kind }
}

fn timeouts_to_api(timeouts: Timeouts) -> api_http::Timeouts {
    api_http::Timeouts {
        response: timeouts.response.map(duration_to_api),
        request: timeouts.request.map(duration_to_api),
        idle: timeouts.idle.map(duration_to_api),
    }
}

fn http_route_to_api(route: &HttpRoute) -> api::HttpRoute {
    use api::http_route::{Retry, Rule, retry::Conditions, retry::conditions::StatusRange};
    let rule = |rule: &HttpRule| Rule {
        matches: rule.matches.iter().map(matches::match_to_api).collect(),
        filters: rule.filters.iter().map(http_filter_to_api).collect(),
        backends: Some(distribution_to_api!(http_route, &rule.backends, http_filter_to_api)),
        timeouts: Some(timeouts_to_api(rule.timeouts)),
        retry: rule.retry.as_ref().map(|retry| Retry {
            max_retries: retry.max_retries.into(),
            max_request_bytes: u32::try_from(retry.max_request_bytes).unwrap_or(u32::MAX),
            conditions: Some(Conditions {
                status_ranges: retry
                    .statuses
                    .iter()
                    .map(|(start, end)| StatusRange { start: (*start).into(), end: (*end).into() })
                    .collect(),
            }),
            timeout: retry.per_try_timeout.map(duration_to_api),
            backoff: Some(backoff_to_api(retry.backoff, retry.respects_retry_after)),
        }),
        allow_l5d_request_headers: rule.allow_request_headers,
        ..Default::default()
    };
    api::HttpRoute {
        metadata: Some(meta_to_api(&route.meta)),
        hosts: route.hosts.iter().map(matches::host_to_api).collect(),
        rules: route.rules.iter().map(rule).collect(),
    }
}

mod grpc {
    pub(super) const CANCELLED: u8 = 1;
    pub(super) const DEADLINE_EXCEEDED: u8 = 4;
    pub(super) const RESOURCE_EXHAUSTED: u8 = 8;
    pub(super) const INTERNAL: u8 = 13;
    pub(super) const UNAVAILABLE: u8 = 14;
}

fn grpc_route_to_api(route: &HttpRoute) -> api::GrpcRoute {
    use api::grpc_route::{Retry, Rule, retry::Conditions};
    let rule = |rule: &HttpRule| Rule {
        matches: rule.matches.iter().map(matches::rpc_to_api).collect(),
        filters: rule.filters.iter().map(grpc_filter_to_api).collect(),
        backends: Some(distribution_to_api!(grpc_route, &rule.backends, grpc_filter_to_api)),
        timeouts: Some(timeouts_to_api(rule.timeouts)),
        retry: rule.retry.as_ref().map(|retry| Retry {
            max_retries: retry.max_retries.into(),
            max_request_bytes: u32::try_from(retry.max_request_bytes).unwrap_or(u32::MAX),
            conditions: Some(Conditions {
                cancelled: retry.grpc_codes.contains(&grpc::CANCELLED),
                deadine_exceeded: retry.grpc_codes.contains(&grpc::DEADLINE_EXCEEDED),
                resource_exhausted: retry.grpc_codes.contains(&grpc::RESOURCE_EXHAUSTED),
                internal: retry.grpc_codes.contains(&grpc::INTERNAL),
                unavailable: retry.grpc_codes.contains(&grpc::UNAVAILABLE),
            }),
            timeout: retry.per_try_timeout.map(duration_to_api),
            backoff: Some(backoff_to_api(retry.backoff, retry.respects_retry_after)),
        }),
        allow_l5d_request_headers: rule.allow_request_headers,
        ..Default::default()
    };
    api::GrpcRoute {
        metadata: Some(meta_to_api(&route.meta)),
        hosts: route.hosts.iter().map(matches::host_to_api).collect(),
        rules: route.rules.iter().map(rule).collect(),
    }
}

fn opaque_to_api(route: &OpaqueRoute) -> api::OpaqueRoute {
    use api::opaque_route::{Filter as ApiFilter, Rule, filter::Kind};
    let refusal = route.refuses.as_ref().map(|refusal| ApiFilter {
        kind: Some(match refusal {
            Refusal::Forbidden => Kind::Forbidden(api_opaque::Forbidden {}),
            Refusal::Invalid(message) => Kind::Invalid(api_opaque::Invalid { message: message.clone() }),
        }),
    });
    api::OpaqueRoute {
        metadata: Some(meta_to_api(&route.meta)),
        rules: vec![Rule {
            backends: Some(distribution_to_api!(opaque_route, &route.backends, |_| ApiFilter { kind: None })),
            filters: refusal.into_iter().collect(),
        }],
    }
}

fn tls_to_api(route: &OpaqueRoute) -> api::TlsRoute {
    use api::tls_route::{Filter as ApiFilter, Rule, filter::Kind};
    let refusal = route.refuses.as_ref().map(|refusal| ApiFilter {
        kind: Some(match refusal {
            Refusal::Forbidden => Kind::Forbidden(api_opaque::Forbidden {}),
            Refusal::Invalid(message) => Kind::Invalid(api_opaque::Invalid { message: message.clone() }),
        }),
    });
    api::TlsRoute {
        metadata: Some(meta_to_api(&route.meta)),
        snis: route.hosts.iter().map(matches::sni_to_api).collect(),
        rules: vec![Rule {
            backends: Some(distribution_to_api!(tls_route, &route.backends, |_| ApiFilter { kind: None })),
            filters: refusal.into_iter().collect(),
        }],
    }
}

// --- from the wire

pub fn from_api(policy: api::OutboundPolicy) -> Result<OutboundPolicy, Invalid> {
    use api::proxy_protocol::Kind;
    let meta = meta_from_api(policy.metadata, "policy.metadata")?;
    let protocol = match need(policy.protocol.and_then(|p| p.kind), "policy.protocol")? {
        Kind::Detect(detect) => {
            let http1 = need(detect.http1, "policy.detect.http1")?;
            let http2 = need(detect.http2, "policy.detect.http2")?;
            OutboundProtocol::Detect {
                timeout: optional_duration(detect.timeout, "policy.detect.timeout")?
                    .unwrap_or(Duration::from_secs(10)),
                http1: http_routes(http1.routes, http1.failure_accrual)?,
                http2: http_routes(http2.routes, http2.failure_accrual)?,
                opaque: opaque_routes(need(detect.opaque, "policy.detect.opaque")?.routes)?,
            }
        }
        Kind::Http1(http) => OutboundProtocol::Http1(http_routes(http.routes, http.failure_accrual)?),
        Kind::Http2(http) => OutboundProtocol::Http2(http_routes(http.routes, http.failure_accrual)?),
        Kind::Grpc(grpc) => OutboundProtocol::Grpc(HttpRoutes {
            routes: grpc.routes.into_iter().map(grpc_route_from_api).collect::<Result<_, _>>()?,
            accrual: accrual_from_api(grpc.failure_accrual)?,
        }),
        Kind::Opaque(opaque) => OutboundProtocol::Opaque(opaque_routes(opaque.routes)?),
        Kind::Tls(tls) => OutboundProtocol::Tls(OpaqueRoutes {
            routes: tls.routes.into_iter().map(tls_from_api).collect::<Result<_, _>>()?,
        }),
    };
    Ok(OutboundPolicy { meta, protocol })
}

fn http_routes(
    routes: Vec<api::HttpRoute>,
    accrual: Option<api::FailureAccrual>,
) -> Result<HttpRoutes, Invalid> {
    Ok(HttpRoutes {
        routes: routes.into_iter().map(http_route_from_api).collect::<Result<_, _>>()?,
        accrual: accrual_from_api(accrual)?,
    })
}

fn opaque_routes(routes: Vec<api::OpaqueRoute>) -> Result<OpaqueRoutes, Invalid> {
    Ok(OpaqueRoutes { routes: routes.into_iter().map(opaque_from_api).collect::<Result<_, _>>()? })
}

/// A breaker whose limits are all zero is none.
fn accrual_from_api(accrual: Option<api::FailureAccrual>) -> Result<Option<FailureAccrual>, Invalid> {
    use api::failure_accrual::Kind;
    const BACKOFF: &str = "failure_accrual.backoff";
    const RATE: &str = "failure_accrual.unified.success_rate_threshold";
    const WINDOW: &str = "failure_accrual.unified.decay";
    let Some(accrual) = accrual else { return Ok(None) };
    let min_ready = accrual.ejection.map_or(0, |ejection| ejection.min_ready_endpoints);
    let (max_consecutive, rate, backoff) = match accrual.kind {
        None => return Ok(None),
        Some(Kind::ConsecutiveFailures(c)) => (c.max_failures, None, c.backoff),
        Some(Kind::Unified(u)) => {
            if !(0.0..=1.0).contains(&u.success_rate_threshold) {
                return Err(Invalid::new(RATE, u.success_rate_threshold));
            }
            let window = optional_duration(u.decay, WINDOW)?.unwrap_or(Duration::from_secs(10));
            let rate = (u.success_rate_threshold > 0.0).then_some(SuccessRate {
                threshold: u.success_rate_threshold,
                window: window.max(SuccessRate::SHORTEST),
                min_requests: u.min_requests,
            });
            (u.max_consecutive_failures, rate, u.backoff)
        }
    };
    if max_consecutive == 0 && rate.is_none() {
        return Ok(None);
    }
    let backoff = need(backoff, BACKOFF)?;
    let respects_retry_after = backoff.respect_retry_after_hint;
    let backoff = backoff_from_api(backoff, BACKOFF)?;
    Ok(Some(FailureAccrual { max_consecutive, rate, backoff, respects_retry_after, min_ready }))
}

fn load_from_api(load: api::backend::balance_p2c::Load) -> Result<EwmaConfig, Invalid> {
    use api::backend::balance_p2c::Load;
    let (default_rtt, decay, penalty) = match load {
        Load::PeakEwma(load) => (load.default_rtt, load.decay, None),
        Load::PenaltyPeakEwma(load) => {
            let latency = optional_duration(load.penalty, LOAD)?.unwrap_or(PENALTY);
            let longest = optional_duration(load.max_retry_after, LOAD)?.unwrap_or(MAX_RETRY_AFTER);
            let penalty = Penalty { latency, max_retry_after: longest.min(MAX_RETRY_AFTER) };
            (load.default_rtt, load.decay, Some(penalty))
        }
    };
    Ok(EwmaConfig {
        default_rtt: duration_from_api(need(default_rtt, LOAD)?, LOAD)?,
        decay: duration_from_api(need(decay, LOAD)?, LOAD)?,
        penalty,
    })
}

const LOAD: &str = "backend.balancer.load";
const PENALTY: Duration = Duration::from_secs(5);
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

fn backoff_from_api(backoff: api::ExponentialBackoff, field: &'static str) -> Result<Backoff, Invalid> {
    let min = duration_from_api(need(backoff.min_backoff, field)?, field)?;
    let max = duration_from_api(need(backoff.max_backoff, field)?, field)?;
    if min > max || max.is_zero() || !(0.0..=100.0).contains(&backoff.jitter_ratio) {
        return Err(Invalid::new(field, format!("{min:?} to {max:?}, jitter {}", backoff.jitter_ratio)));
    }
    Ok(Backoff { min, max, jitter: backoff.jitter_ratio })
}

fn backend_from_api(backend: Option<api::Backend>) -> Result<Backend, Invalid> {
    use api::backend::{Kind, endpoint_discovery};
    const DISCOVERY: &str = "backend.balancer.discovery";
    let backend = need(backend, "backend")?;
    let meta = meta_from_api(backend.metadata, "backend.metadata")?;
    let kind = match backend.kind {
        None => BackendKind::Invalid("the backend has no kind".into()),
        Some(Kind::Forward(addr)) => match endpoint_from_api(addr, &HashMap::new()) {
            Ok(endpoint) => BackendKind::Forward(Arc::new(endpoint)),
            // Only its own requests fail, not the policy.
            Err(invalid) => BackendKind::Invalid(invalid.to_string()),
        },
        Some(Kind::Balancer(balancer)) => {
            let discovery = need(balancer.discovery.and_then(|d| d.kind), DISCOVERY)?;
            let endpoint_discovery::Kind::Dst(get) = discovery;
            let ewma = load_from_api(need(balancer.load, LOAD)?)?;
            if get.path.parse::<http::uri::Authority>().is_ok() {
                BackendKind::Balance { path: get.path, ewma }
            } else {
                BackendKind::Invalid(format!("{:?} is no host:port", get.path))
            }
        }
    };
    Ok(Backend { meta, kind })
}

macro_rules! distribution_from_api {
    ($module:ident, $distribution:expr, $filter:expr) => {{
        use api::$module::{RouteBackend as ApiBackend, distribution::Kind};
        let backend = |backend: Option<ApiBackend>| -> Result<RouteBackend, Invalid> {
            let backend = need(backend, "distribution.backend")?;
            Ok(RouteBackend {
                backend: backend_from_api(backend.backend)?,
                filters: backend.filters.into_iter().map($filter).collect::<Result<_, _>>()?,
            })
        };
        match need($distribution.and_then(|d| d.kind), "rule.backends")? {
            Kind::Empty(_) => Distribution::Empty,
            Kind::FirstAvailable(all) => Distribution::FirstAvailable(
                all.backends.into_iter().map(|one| backend(Some(one))).collect::<Result<_, _>>()?,
            ),
            Kind::RandomAvailable(all) => Distribution::RandomAvailable(
                all.backends
                    .into_iter()
                    .map(|one| Ok((backend(one.backend)?, one.weight)))
                    .collect::<Result<_, Invalid>>()?,
            ),
        }
    }};
}

fn http_filter_from_api(filter: api::http_route::Filter) -> Result<Filter, Invalid> {
    use api::http_route::filter::Kind;
    match filter.kind {
        Some(Kind::FailureInjector(fail)) => matches::fail_from_api(fail),
        Some(Kind::RequestHeaderModifier(change)) => matches::request_headers_from_api(change),
        Some(Kind::ResponseHeaderModifier(change)) => matches::response_headers_from_api(change),
        Some(Kind::Redirect(redirect)) => matches::redirect_from_api(redirect),
        None => Ok(Filter::Unknown),
    }
}

fn grpc_filter_from_api(filter: api::grpc_route::Filter) -> Result<Filter, Invalid> {
    use api::grpc_route::filter::Kind;
    match filter.kind {
        Some(Kind::FailureInjector(fail)) => matches::grpc_fail_from_api(fail),
        Some(Kind::RequestHeaderModifier(change)) => matches::request_headers_from_api(change),
        None => Ok(Filter::Unknown),
    }
}

/// The deprecated `request_timeout` counts only where there are no timeouts at all.
fn timeouts_from_api(
    timeouts: Option<api_http::Timeouts>,
    deprecated: Option<prost_types::Duration>,
) -> Result<Timeouts, Invalid> {
    let Some(timeouts) = timeouts else {
        let request = optional_duration(deprecated, "rule.request_timeout")?;
        return Ok(Timeouts { request, ..Timeouts::default() });
    };
    Ok(Timeouts {
        request: optional_duration(timeouts.request, "rule.timeouts.request")?,
        response: optional_duration(timeouts.response, "rule.timeouts.response")?,
        idle: optional_duration(timeouts.idle, "rule.timeouts.idle")?,
    })
}

fn retry(
    max_retries: u32,
    max_request_bytes: u32,
    timeout: Option<prost_types::Duration>,
    backoff: Option<api::ExponentialBackoff>,
) -> Result<RetryPolicy, Invalid> {
    const BACKOFF: &str = "rule.retry.backoff";
    let respects_retry_after = backoff.as_ref().is_some_and(|backoff| backoff.respect_retry_after_hint);
    Ok(RetryPolicy {
        respects_retry_after,
        max_retries: u16::try_from(max_retries)
            .map_err(|_| Invalid::new("rule.retry.max_retries", max_retries))?,
        max_request_bytes: max_request_bytes as usize,
        statuses: Vec::new(),
        grpc_codes: Vec::new(),
        per_try_timeout: optional_duration(timeout, "rule.retry.timeout")?,
        backoff: match backoff {
            Some(backoff) => backoff_from_api(backoff, BACKOFF)?,
            None => DEFAULT_BACKOFF,
        },
    })
}

fn http_route_from_api(route: api::HttpRoute) -> Result<HttpRoute, Invalid> {
    let rule = |rule: api::http_route::Rule| {
        #[expect(deprecated, reason = "the protocol says so; old controllers set it")]
        let deprecated = rule.request_timeout;
        let retry = rule.retry.map(|r| {
            let mut policy = retry(r.max_retries, r.max_request_bytes, r.timeout, r.backoff)?;
            for range in r.conditions.map(|c| c.status_ranges).unwrap_or_default() {
                let status = |n: u32| {
                    u16::try_from(n).map_err(|_| Invalid::new("rule.retry.conditions.status_ranges", n))
                };
                policy.statuses.push((status(range.start)?, status(range.end)?));
            }
            Ok::<_, Invalid>(policy)
        });
        Ok::<_, Invalid>(HttpRule {
            matches: rule.matches.into_iter().map(matches::match_from_api).collect::<Result<_, _>>()?,
            filters: rule.filters.into_iter().map(http_filter_from_api).collect::<Result<_, _>>()?,
            backends: distribution_from_api!(http_route, rule.backends, http_filter_from_api),
            timeouts: timeouts_from_api(rule.timeouts, deprecated)?,
            retry: retry.transpose()?,
            allow_request_headers: rule.allow_l5d_request_headers,
        })
    };
    Ok(HttpRoute {
        meta: meta_from_api(route.metadata, "route.metadata")?,
        hosts: route.hosts.into_iter().map(matches::host_from_api).collect::<Result<_, _>>()?,
        rules: route.rules.into_iter().map(rule).collect::<Result<_, _>>()?,
    })
}

fn grpc_route_from_api(route: api::GrpcRoute) -> Result<HttpRoute, Invalid> {
    let rule = |rule: api::grpc_route::Rule| {
        #[expect(deprecated, reason = "the protocol says so; old controllers set it")]
        let deprecated = rule.request_timeout;
        let retry = rule.retry.map(|r| {
            let mut policy = retry(r.max_retries, r.max_request_bytes, r.timeout, r.backoff)?;
            let on = r.conditions.unwrap_or_default();
            let codes = [
                (on.cancelled, grpc::CANCELLED),
                (on.deadine_exceeded, grpc::DEADLINE_EXCEEDED),
                (on.resource_exhausted, grpc::RESOURCE_EXHAUSTED),
                (on.internal, grpc::INTERNAL),
                (on.unavailable, grpc::UNAVAILABLE),
            ];
            policy.grpc_codes = codes.iter().filter(|(set, _)| *set).map(|(_, code)| *code).collect();
            Ok::<_, Invalid>(policy)
        });
        Ok::<_, Invalid>(HttpRule {
            matches: rule.matches.into_iter().map(matches::rpc_from_api).collect::<Result<_, _>>()?,
            filters: rule.filters.into_iter().map(grpc_filter_from_api).collect::<Result<_, _>>()?,
            backends: distribution_from_api!(grpc_route, rule.backends, grpc_filter_from_api),
            timeouts: timeouts_from_api(rule.timeouts, deprecated)?,
            retry: retry.transpose()?,
            allow_request_headers: rule.allow_l5d_request_headers,
        })
    };
    Ok(HttpRoute {
        meta: meta_from_api(route.metadata, "route.metadata")?,
        hosts: route.hosts.into_iter().map(matches::host_from_api).collect::<Result<_, _>>()?,
        rules: route.rules.into_iter().map(rule).collect::<Result<_, _>>()?,
    })
}

/// A filter on a route of bytes closes the connection, also one that this build does not know.
macro_rules! refusal_from_api {
    ($module:ident, $filters:expr) => {{
        use api::$module::filter::Kind;
        $filters.into_iter().next().map(|filter| match filter.kind {
            Some(Kind::Forbidden(_)) => Refusal::Forbidden,
            Some(Kind::Invalid(invalid)) => Refusal::Invalid(invalid.message),
            None => Refusal::Invalid("the route has an unknown filter".into()),
        })
    }};
}

/// Bytes cannot be routed by anything, so a route has one rule.
fn opaque_from_api(route: api::OpaqueRoute) -> Result<OpaqueRoute, Invalid> {
    let meta = meta_from_api(route.metadata, "route.metadata")?;
    let rule = need(route.rules.into_iter().next(), "opaque_route.rules")?;
    Ok(OpaqueRoute {
        meta,
        hosts: Vec::new(),
        refuses: refusal_from_api!(opaque_route, rule.filters),
        backends: distribution_from_api!(opaque_route, rule.backends, |_| Ok(Filter::Unknown)),
    })
}

fn tls_from_api(route: api::TlsRoute) -> Result<OpaqueRoute, Invalid> {
    let meta = meta_from_api(route.metadata, "route.metadata")?;
    let rule = need(route.rules.into_iter().next(), "tls_route.rules")?;
    Ok(OpaqueRoute {
        meta,
        hosts: route.snis.into_iter().map(matches::sni_from_api).collect::<Result<_, _>>()?,
        refuses: refusal_from_api!(tls_route, rule.filters),
        backends: distribution_from_api!(tls_route, rule.backends, |_| Ok(Filter::Unknown)),
    })
}
