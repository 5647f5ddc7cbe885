//! `OutboundPolicies`: where traffic to an address or name goes.

use super::{
    address::{Holder, holder},
    inbound::route_meta,
    profile::service_meta,
    service_settings::{accrual, retry, timeouts},
    workload::is_opaque_service,
};
use crate::{
    config::ControllerConfig,
    index::{
        reader::{GroupedRoute, Reader},
        registry::Subject,
    },
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use weft_kube::{
    core::service::Service,
    meta::ObjectName,
    policy::{
        http_route::{BackendRef, HttpRouteRule},
        route_convert,
    },
};
use weft_model::{
    http::{Filter, HttpMatch, PathMatch},
    identity::PeerIdentity,
    meta::Meta,
    outbound::{
        Backend, BackendKind, Distribution, Endpoint, EwmaConfig, HttpRoute, HttpRoutes, HttpRule,
        OpaqueRoute, OpaqueRoutes, OutboundPolicy, OutboundProtocol, Refusal, RouteBackend, Timeouts,
    },
};

const DETECT: Duration = Duration::from_secs(10);
const EWMA: EwmaConfig = EwmaConfig::DEFAULT;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutboundOf {
    pub target: OutboundTarget,
    pub client_namespace: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OutboundTarget {
    Addr(SocketAddr),
    Service { service: ObjectName, port: u16 },
}

impl Subject for OutboundOf {
    /// `None`: the policy API has no say; proxies go by the profile.
    type View = Option<Arc<OutboundPolicy>>;

    fn compute(&self, reader: &Reader<'_>, config: &ControllerConfig) -> Self::View {
        let policy = match &self.target {
            OutboundTarget::Service { service, port } => {
                let service = reader.service(service).filter(|s| !s.is_external_name())?;
                self.of_service(reader, config, service, *port)?
            }
            OutboundTarget::Addr(addr) => match holder(reader, config, addr.ip(), Some(addr.port())) {
                Holder::Service(service) => {
                    self.of_service(reader, config, service, addr.port()).unwrap_or_else(undefined_port)
                }
                // Whoever is known has a profile with an identity, which a policy would hide.
                Holder::Pod(_) | Holder::HostPort(..) | Holder::Contested(..) | Holder::External(_) => {
                    return None;
                }
                Holder::Node | Holder::Nobody if config.in_cluster(addr.ip()) => return None,
                Holder::Node | Holder::Nobody => egress(*addr),
            },
        };
        Some(Arc::new(policy))
    }
}

impl OutboundOf {
    /// `None` for a port that the Service does not define.
    fn of_service(
        &self,
        reader: &Reader<'_>,
        config: &ControllerConfig,
        service: &Service,
        port: u16,
    ) -> Option<OutboundPolicy> {
        let declared = service.port(port);
        if declared.is_none() && !service.is_headless() {
            return None;
        }
        let parent = Parent { reader, config, service, port };
        let opaque = || OpaqueRoutes { routes: vec![parent.opaque_route()] };
        let http = || HttpRoutes {
            routes: parent.http_routes(&self.client_namespace),
            accrual: accrual(&service.metadata.annotations),
        };
        let protocol = match declared.and_then(|p| p.app_protocol.as_deref()) {
            Some("http") => OutboundProtocol::Http1(http()),
            Some("kubernetes.io/h2c") => OutboundProtocol::Http2(http()),
            // Any other name is a protocol that is not looked into.
            Some(_) => OutboundProtocol::Opaque(opaque()),
            None if is_opaque_service(reader, config, service, port) => OutboundProtocol::Opaque(opaque()),
            None => {
                OutboundProtocol::Detect { timeout: DETECT, http1: http(), http2: http(), opaque: opaque() }
            }
        };
        Some(OutboundPolicy { meta: Arc::new(service_meta(service, port)), protocol })
    }
}

/// A Service port that traffic is sent to, with what is needed to find its routes.
struct Parent<'a, 'i> {
    reader: &'a Reader<'i>,
    config: &'a ControllerConfig,
    service: &'a Service,
    port: u16,
}

impl Parent<'_, '_> {
    fn backend(&self) -> Backend {
        balanced(self.config, self.service, self.port)
    }

    fn opaque_route(&self) -> OpaqueRoute {
        OpaqueRoute {
            meta: Arc::new(Meta::default_named("opaque")),
            hosts: Vec::new(),
            backends: first(self.backend()),
            refuses: None,
        }
    }

    /// Routes of the Service's namespace, and those of the client's, which bind its own traffic only; else everything
    /// goes to the Service.
    fn http_routes(&self, client_namespace: &str) -> Vec<HttpRoute> {
        let namespace = &self.service.metadata.namespace;
        let mut found = self.reader.routes(namespace);
        if client_namespace != namespace {
            found.extend(self.reader.routes(client_namespace));
            found.sort_by_key(|r| (r.route.metadata.seniority(), r.group));
        }
        let routes: Vec<HttpRoute> = found
            .into_iter()
            .filter(|r| self.is_parent_of(r))
            .filter_map(|r| self.http_route(r).ok())
            .collect();
        if routes.is_empty() { vec![self.default_route()] } else { routes }
    }

    fn is_parent_of(&self, found: &GroupedRoute<'_>) -> bool {
        let route = found.route;
        route.spec.parent_refs.iter().any(|parent| {
            parent.is("", "Service")
                && parent.resolve(&route.metadata.namespace) == self.service.metadata.key()
                && parent.port.is_none_or(|port| port == self.port)
        })
    }

    fn default_route(&self) -> HttpRoute {
        let rule = HttpRule {
            matches: vec![HttpMatch {
                path: Some(PathMatch::Prefix("/".to_owned())),
                ..HttpMatch::default()
            }],
            filters: Vec::new(),
            backends: first(self.backend()),
            timeouts: timeouts(&self.service.metadata.annotations).unwrap_or_default(),
            retry: retry(&self.service.metadata.annotations),
            allow_request_headers: false,
        };
        HttpRoute { meta: Arc::new(Meta::default_named("http")), hosts: Vec::new(), rules: vec![rule] }
    }

    fn http_route(&self, found: GroupedRoute<'_>) -> Result<HttpRoute, String> {
        let GroupedRoute { group, route } = found;
        let meta = &route.metadata;
        // A route's annotations replace the Service's as a whole, if it has any.
        let annotated = timeouts(&meta.annotations).or_else(|| timeouts(&self.service.metadata.annotations));
        let retry = retry(&meta.annotations).or_else(|| retry(&self.service.metadata.annotations));
        let rules = route
            .spec
            .rules
            .iter()
            .map(|rule| {
                let (matches, filters) = route_convert::rule(rule)?;
                Ok(HttpRule {
                    matches,
                    filters,
                    backends: self.backends(&meta.namespace, rule)?,
                    timeouts: annotated.map_or_else(|| rule_timeouts(rule), Ok)?,
                    retry: retry.clone(),
                    allow_request_headers: false,
                })
            })
            .collect::<Result<_, String>>()?;
        Ok(HttpRoute {
            meta: Arc::new(route_meta(group, &meta.namespace, &meta.name)),
            hosts: route_convert::hosts(&route.spec.hostnames),
            rules,
        })
    }

    fn backends(&self, namespace: &str, rule: &HttpRouteRule) -> Result<Distribution, String> {
        if rule.backend_refs.is_empty() {
            return Ok(first(self.backend()));
        }
        let weighted: Vec<(RouteBackend, u32)> = rule
            .backend_refs
            .iter()
            .map(|reference| {
                let weight = reference.weight.unwrap_or(1);
                Ok((self.route_backend(namespace, reference)?, weight))
            })
            .filter(|backend: &Result<_, String>| !matches!(backend, Ok((_, 0))))
            .collect::<Result<_, _>>()?;
        Ok(if weighted.is_empty() { Distribution::Empty } else { Distribution::RandomAvailable(weighted) })
    }

    /// A backend that is missing fails its requests with 500, and works as soon as it is there.
    fn route_backend(&self, namespace: &str, reference: &BackendRef) -> Result<RouteBackend, String> {
        let mut filters = route_convert::filters(&reference.filters)?;
        let name = reference.resolve(namespace);
        let found = match (reference.is_service(), reference.port) {
            (false, _) => Err(format!("backend {name} is not a Service")),
            (true, None) => Err(format!("backend Service {name} lacks a port")),
            (true, Some(port)) => match self.reader.service(&name) {
                Some(service) if !service.is_external_name() => Ok((service, port)),
                Some(_) | None => Err(format!("backend Service {name} does not exist")),
            },
        };
        let backend = match found {
            Ok((service, port)) => balanced(self.config, service, port),
            Err(reason) => {
                filters.insert(0, Filter::Fail { status: 500, message: reason.clone(), ratio: 1.0 });
                Backend { meta: Arc::new(Meta::default_named("invalid")), kind: BackendKind::Invalid(reason) }
            }
        };
        Ok(RouteBackend { backend, filters })
    }
}

/// The `timeouts` of a rule: `backendRequest` is the nearest thing to a response timeout.
fn rule_timeouts(rule: &HttpRouteRule) -> Result<Timeouts, String> {
    let Some(timeouts) = &rule.timeouts else { return Ok(Timeouts::default()) };
    let read = |text: &Option<String>| -> Result<Option<Duration>, String> {
        let read = text.as_deref().map(route_convert::duration).transpose()?;
        Ok(read.filter(|d| !d.is_zero()))
    };
    Ok(Timeouts { request: read(&timeouts.request)?, response: read(&timeouts.backend_request)?, idle: None })
}

fn balanced(config: &ControllerConfig, service: &Service, port: u16) -> Backend {
    let meta = &service.metadata;
    Backend {
        meta: Arc::new(service_meta(service, port)),
        kind: BackendKind::Balance {
            path: format!("{}:{port}", config.service_name(&meta.namespace, &meta.name)),
            ewma: EWMA,
        },
    }
}

fn first(backend: Backend) -> Distribution {
    Distribution::FirstAvailable(vec![RouteBackend { backend, filters: Vec::new() }])
}

/// A cluster address behaves as declared: other ports are refused.
fn undefined_port() -> OutboundPolicy {
    let meta = Arc::new(Meta::default_named("undefined-port"));
    let route = OpaqueRoute {
        meta: meta.clone(),
        hosts: Vec::new(),
        backends: Distribution::Empty,
        refuses: Some(Refusal::Forbidden),
    };
    OutboundPolicy { meta, protocol: OutboundProtocol::Opaque(OpaqueRoutes { routes: vec![route] }) }
}

/// Outside the cluster: forwarded to where it was going.
fn egress(addr: SocketAddr) -> OutboundPolicy {
    let meta = Arc::new(Meta::default_named("egress-fallback"));
    let endpoint = Arc::new(Endpoint::bare(addr, PeerIdentity::Unmeshed));
    let backends = || first(Backend { meta: meta.clone(), kind: BackendKind::Forward(endpoint.clone()) });
    let http = || HttpRoutes {
        routes: vec![HttpRoute {
            meta: meta.clone(),
            hosts: Vec::new(),
            rules: vec![HttpRule {
                matches: vec![HttpMatch {
                    path: Some(PathMatch::Prefix("/".to_owned())),
                    ..HttpMatch::default()
                }],
                filters: Vec::new(),
                backends: backends(),
                timeouts: Timeouts::default(),
                retry: None,
                allow_request_headers: false,
            }],
        }],
        accrual: None,
    };
    let opaque = OpaqueRoutes {
        routes: vec![OpaqueRoute {
            meta: meta.clone(),
            hosts: Vec::new(),
            backends: backends(),
            refuses: None,
        }],
    };
    let protocol = OutboundProtocol::Detect { timeout: DETECT, http1: http(), http2: http(), opaque };
    OutboundPolicy { meta, protocol }
}
