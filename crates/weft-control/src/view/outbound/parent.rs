//! One parent's routes as model values: a Service's port, or an address that an EgressNetwork contains.

use crate::{
    config::ControllerConfig,
    index::reader::{Reader, RouteKind, RouteRef, Rules},
    view::{
        backend::{self, Resolved, authority, resolve},
        inbound::route_meta,
        profile::service_meta,
        routes::{Declared, Outlet},
        service_settings::{accrual, penalty, retry, timeouts},
    },
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use weft_kube::{
    core::service::Service,
    policy::{http_route::HttpRouteFilter, route::BackendRef, route_convert},
};
use weft_model::{
    http::{Filter, HttpMatch, PathMatch},
    meta::Meta,
    outbound::{
        Backend, BackendKind, Distribution, EwmaConfig, HttpRoute, HttpRoutes, HttpRule, OpaqueRoute,
        OpaqueRoutes, OutboundProtocol, Refusal, RouteBackend, Timeouts,
    },
};

const DETECT: Duration = Duration::from_secs(10);
/// What a gRPC call gets whose backend does not exist (`INTERNAL`), or that an EgressNetwork denies (`PERMISSION_DENIED`).
const GRPC_INTERNAL: u16 = 13;
const GRPC_DENIED: u16 = 7;
pub(super) const FALLBACK: &str = "egress-fallback";

pub(super) struct Parent<'a, 'i> {
    pub reader: &'a Reader<'i>,
    pub config: &'a ControllerConfig,
    pub outlet: Outlet<'a>,
    pub annotations: &'a BTreeMap<String, String>,
    /// Where traffic goes that no route sends elsewhere.
    pub backend: Backend,
    pub otherwise: Otherwise,
    pub client_namespace: &'a str,
}

/// What becomes of traffic that no route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Otherwise {
    /// A Service has one route of its own, unless there are others.
    Default,
    /// So has an address that no EgressNetwork contains.
    Fallback,
    /// An EgressNetwork always has one, the least specific.
    Allow,
    Deny,
}

/// HTTP and gRPC differ in how they fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Http,
    Grpc,
}

impl Parent<'_, '_> {
    pub(super) fn protocol(&self) -> OutboundProtocol {
        let (kind, routes) = match self.outlet.routes(self.reader, self.client_namespace) {
            Some((kind, routes)) => (Some(kind), routes),
            None => (None, Vec::new()),
        };
        match (self.outlet.declared, kind) {
            (Declared::Opaque, _) | (Declared::Nothing, Some(RouteKind::Tcp)) => {
                OutboundProtocol::Opaque(self.byte_routes(&routes, "tcp", "opaque"))
            }
            (Declared::Nothing, Some(RouteKind::Tls)) => {
                OutboundProtocol::Tls(self.byte_routes(&routes, "tls", "tls"))
            }
            (Declared::Nothing | Declared::Http2, Some(RouteKind::Grpc)) => {
                OutboundProtocol::Grpc(self.http_routes(&routes, Form::Grpc))
            }
            (Declared::Http1, _) => OutboundProtocol::Http1(self.http_routes(&routes, Form::Http)),
            (Declared::Http2, _) => OutboundProtocol::Http2(self.http_routes(&routes, Form::Http)),
            (Declared::Nothing, _) => {
                let http = self.http_routes(&routes, Form::Http);
                let opaque = self.byte_routes(&[], "tcp", "opaque");
                OutboundProtocol::Detect { timeout: DETECT, http1: http.clone(), http2: http, opaque }
            }
        }
    }

    // --- HTTP and gRPC

    fn http_routes(&self, found: &[RouteRef<'_>], form: Form) -> HttpRoutes {
        // What `Outlet::routes` lets through can be read.
        let mut routes: Vec<HttpRoute> = found.iter().filter_map(|r| self.http_route(r, form).ok()).collect();
        if routes.is_empty() || self.otherwise != Otherwise::Default {
            routes.push(self.default_route(form));
        }
        HttpRoutes { routes, accrual: accrual(self.annotations) }
    }

    fn default_route(&self, form: Form) -> HttpRoute {
        let protocol = if form == Form::Grpc { "grpc" } else { "http" };
        let (name, filters) = match self.otherwise {
            Otherwise::Default => (protocol.to_owned(), Vec::new()),
            Otherwise::Fallback => (FALLBACK.to_owned(), Vec::new()),
            Otherwise::Allow => (format!("{protocol}-egress-allow"), Vec::new()),
            Otherwise::Deny => {
                let status = if form == Form::Grpc { GRPC_DENIED } else { 403 };
                let message = format!("EgressNetwork {} allows this by no route", self.outlet.name);
                (format!("{protocol}-egress-deny"), vec![Filter::Fail { status, message, ratio: 1.0 }])
            }
        };
        let everything = HttpMatch { path: Some(PathMatch::Prefix("/".to_owned())), ..HttpMatch::default() };
        let rule = HttpRule {
            matches: if form == Form::Grpc { Vec::new() } else { vec![everything] },
            filters,
            backends: first(self.backend.clone()),
            timeouts: timeouts(self.annotations).unwrap_or_default(),
            retry: retry(self.annotations),
            allow_request_headers: self.config.allow_request_headers,
        };
        HttpRoute { meta: Arc::new(Meta::default_named(name)), hosts: Vec::new(), rules: vec![rule] }
    }

    fn http_route(&self, route: &RouteRef<'_>, form: Form) -> Result<HttpRoute, String> {
        let mirror = |to: &BackendRef| Ok(backend::mirror(self.reader, self.config, route, to));
        let own = timeouts(&route.meta.annotations);
        let inherited = timeouts(self.annotations).unwrap_or_default();
        // A route's annotations replace the parent's as a whole, if it has any.
        let retry = retry(&route.meta.annotations).or_else(|| retry(self.annotations));
        let rule = |(matches, filters), backends, timeouts| HttpRule {
            matches,
            filters,
            backends,
            timeouts,
            retry: retry.clone(),
            allow_request_headers: self.config.allow_request_headers,
        };
        let rules = match route.rules {
            Rules::Http(rules) => rules
                .iter()
                .map(|r| {
                    let backends = self.backends(route, &r.backend_refs, form)?;
                    // The rule's own words count for more than what its Service says of all routes.
                    let timeouts = match (own, route_convert::timeouts(r)?) {
                        (Some(own), _) => own,
                        (None, (None, None)) => inherited,
                        (None, (request, response)) => Timeouts { request, response, idle: None },
                    };
                    Ok(rule(route_convert::http_rule(r, &mirror)?, backends, timeouts))
                })
                .collect::<Result<_, String>>()?,
            Rules::Grpc(rules) => rules
                .iter()
                .map(|r| {
                    let backends = self.backends(route, &r.backend_refs, form)?;
                    Ok(rule(route_convert::grpc_rule(r, &mirror)?, backends, own.unwrap_or(inherited)))
                })
                .collect::<Result<_, String>>()?,
            Rules::Bytes(_) => return Err("spec.rules: these are for bytes".to_owned()),
        };
        Ok(HttpRoute {
            meta: Arc::new(route_meta(route)),
            hosts: route_convert::hosts(route.hostnames),
            rules,
        })
    }

    // --- bytes

    fn byte_routes(&self, found: &[RouteRef<'_>], protocol: &str, default: &str) -> OpaqueRoutes {
        let mut routes: Vec<OpaqueRoute> = found.iter().filter_map(|r| self.byte_route(r).ok()).collect();
        let (name, refuses) = match self.otherwise {
            Otherwise::Default => (default.to_owned(), None),
            Otherwise::Fallback => (FALLBACK.to_owned(), None),
            Otherwise::Allow => (format!("{protocol}-egress-allow"), None),
            Otherwise::Deny => (format!("{protocol}-egress-deny"), Some(Refusal::Forbidden)),
        };
        // A TCPRoute takes everything: there is nothing left for another.
        let all_taken = protocol == "tcp" && !routes.is_empty();
        if routes.is_empty() || (self.otherwise != Otherwise::Default && !all_taken) {
            routes.push(OpaqueRoute {
                meta: Arc::new(Meta::default_named(name)),
                hosts: Vec::new(),
                backends: first(self.backend.clone()),
                refuses,
            });
        }
        OpaqueRoutes { routes }
    }

    fn byte_route(&self, route: &RouteRef<'_>) -> Result<OpaqueRoute, String> {
        let Rules::Bytes([rule]) = route.rules else {
            return Err("spec.rules: there must be exactly one".to_owned());
        };
        Ok(OpaqueRoute {
            meta: Arc::new(route_meta(route)),
            hosts: route_convert::hosts(route.hostnames),
            backends: self.backends(route, &rule.backend_refs, Form::Http)?,
            refuses: None,
        })
    }

    // --- backends

    fn backends(
        &self,
        route: &RouteRef<'_>,
        references: &[BackendRef],
        form: Form,
    ) -> Result<Distribution, String> {
        if references.is_empty() {
            return Ok(first(self.backend.clone()));
        }
        let weighted: Vec<(RouteBackend, u32)> = references
            .iter()
            .filter(|reference| reference.weight != Some(0))
            .map(|reference| Ok((self.route_backend(route, reference, form)?, reference.weight.unwrap_or(1))))
            .collect::<Result<_, String>>()?;
        Ok(if weighted.is_empty() { Distribution::Empty } else { Distribution::RandomAvailable(weighted) })
    }

    /// A backend that cannot be used fails its requests, and only those, and works as soon as it can be.
    fn route_backend(
        &self,
        route: &RouteRef<'_>,
        reference: &BackendRef,
        form: Form,
    ) -> Result<RouteBackend, String> {
        let mirror = |to: &BackendRef| Ok(backend::mirror(self.reader, self.config, route, to));
        let read = |all: &[HttpRouteFilter]| match form {
            Form::Http => route_convert::filters(all, &mirror),
            Form::Grpc => route_convert::grpc_filters(all, &mirror),
        };
        let mut filters = read(&reference.filters)?;
        let backend = match resolve(self.reader, route, reference) {
            Ok(Resolved::Service(service, port)) => balanced(self.config, service, port, self.annotations),
            Ok(Resolved::Onward) => self.backend.clone(),
            Err(unresolved) => {
                let status = if form == Form::Grpc { GRPC_INTERNAL } else { 500 };
                let message = unresolved.message;
                filters.insert(0, Filter::Fail { status, message: message.clone(), ratio: 1.0 });
                Backend {
                    meta: Arc::new(Meta::default_named("invalid")),
                    kind: BackendKind::Invalid(message),
                }
            }
        };
        Ok(RouteBackend { backend, filters })
    }
}

/// A Service's endpoints. How they are balanced is said by the parent that traffic was sent to.
pub(super) fn balanced(
    config: &ControllerConfig,
    service: &Service,
    port: u16,
    annotations: &BTreeMap<String, String>,
) -> Backend {
    Backend {
        meta: Arc::new(service_meta(service, port)),
        kind: BackendKind::Balance {
            path: authority(config, service, port),
            ewma: EwmaConfig { penalty: penalty(annotations), ..EwmaConfig::DEFAULT },
        },
    }
}

fn first(backend: Backend) -> Distribution {
    Distribution::FirstAvailable(vec![RouteBackend { backend, filters: Vec::new() }])
}
