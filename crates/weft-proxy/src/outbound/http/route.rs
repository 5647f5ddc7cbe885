//! Which way a request goes: by the policy's routes, or by those of a ServiceProfile where there is one.

use super::Requests;
use crate::{
    discovery::Destination,
    http::{
        body::Body,
        headers::{self, View},
    },
    metrics::{
        Count, Flavour,
        labels::Labels,
        retry::Retries,
        route::{OutboundBackend, OutboundRoute},
        series::{Counter, HttpSeries},
    },
    outbound::opaque,
};
use http::{Request, Version};
use std::{collections::BTreeMap, ops::Deref, rc::Rc, sync::Arc};
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    meta::Meta,
    outbound::{FailureAccrual, HttpRoutes, HttpRule, OutboundPolicy, OutboundProtocol, find_route},
    profile::{ServiceRoute, ServiceRoutes, classify},
};

/// The route that takes a request.
pub(super) struct Route<'d> {
    pub(super) meta: &'d Arc<Meta>,
    pub(super) rule: &'d HttpRule,
    pub(super) accrual: Option<&'d FailureAccrual>,
    pub(super) service: Option<ByService<'d>>,
}

/// A ServiceProfile's part in it.
#[derive(Clone, Copy)]
pub(super) struct ByService<'d> {
    pub(super) routes: &'d Arc<ServiceRoutes>,
    pub(super) route: &'d ServiceRoute,
}

impl ByService<'_> {
    /// Is an answer with these statuses a failure, by the route's classes or else as ever?
    pub(super) fn is_failure(&self, status: u16, grpc_fails: bool) -> bool {
        classify(&self.route.classes, status).unwrap_or(status >= 500) || grpc_fails
    }
}

/// The counters of one route and backend, so that a request formats no label.
pub(super) struct Counted {
    /// The parent, the route and the backend.
    way: (Arc<Meta>, Arc<Meta>, Arc<Meta>),
    pub(super) flavour: Flavour,
    /// Empty unless series are kept apart by it.
    hostname: Box<str>,
    pub(super) route: Arc<OutboundRoute>,
    pub(super) backend: Arc<OutboundBackend>,
    pub(super) retries: Arc<Retries>,
    pub(super) service: Option<CountedService>,
}

/// The older families of ServiceProfiles: requests of the application, and what became of them on the way out.
pub(super) struct CountedService {
    of: Arc<ServiceRoutes>,
    labels: Arc<BTreeMap<String, String>>,
    pub(super) asked: Arc<HttpSeries>,
    pub(super) actual: Arc<HttpSeries>,
    /// Answers that the route calls failures, and those of them that the budget did not allow to be tried again.
    pub(super) retryable: Arc<Counter>,
    pub(super) skipped: Arc<Counter>,
}

/// More ways than this on one connection: the oldest counters are looked up again.
const COUNTED: usize = 16;

/// Routes of requests: the policy's own, or made of those of bytes.
pub(super) enum Routes<'p> {
    Own(&'p HttpRoutes),
    OfBytes(Rc<HttpRoutes>),
}

impl Deref for Routes<'_> {
    type Target = HttpRoutes;

    fn deref(&self) -> &HttpRoutes {
        match self {
            Routes::Own(routes) => routes,
            Routes::OfBytes(routes) => routes,
        }
    }
}

impl Requests {
    /// The routes of requests. Those of a policy that speaks of bytes only are made once for a connection.
    pub(super) fn routes<'p>(&self, policy: &'p Arc<OutboundPolicy>, version: Version) -> Routes<'p> {
        let bytes = match policy.protocol.http(version == Version::HTTP_2) {
            Ok(routes) => return Routes::Own(routes),
            Err(bytes) => bytes,
        };
        let mut made = self.of_bytes.borrow_mut();
        if let Some((of, routes)) = &*made
            && Arc::ptr_eq(of, policy)
        {
            return Routes::OfBytes(routes.clone());
        }
        let routes = Rc::new(bytes.for_requests());
        *made = Some((policy.clone(), routes.clone()));
        Routes::OfBytes(routes)
    }

    pub(super) fn route<'d>(
        &self,
        destination: &'d Destination,
        routes: &'d HttpRoutes,
        request: &Request<Body>,
    ) -> Result<Route<'d>, Fault> {
        let host = headers::host(headers::authority(request).unwrap_or_default());
        let view = View(request.headers());
        let parts = headers::parts(request, &host, &view);
        if let Some(routes) = &destination.service {
            let route = routes.find(&parts);
            let service = Some(ByService { routes, route });
            return Ok(Route { meta: &route.meta, rule: &route.rule, accrual: None, service });
        }
        if matches!(destination.policy.protocol, OutboundProtocol::Opaque(_) | OutboundProtocol::Tls(_)) {
            self.leave_bytes(&destination.policy.protocol)?;
        }
        let (route, rule) = find_route(routes, &parts).ok_or_else(|| {
            let tried: Vec<_> = routes.routes.iter().take(8).map(|route| route.meta.to_string()).collect();
            Fault::new(Code::NoRouteMatches)
                .in_phase(Phase::Route)
                .about(self.connection.dst)
                .fact("host", &host)
                .fact("tried", tried.join(" "))
        })?;
        Ok(Route { meta: &route.meta, rule, accrual: routes.accrual.as_ref(), service: None })
    }

    /// A request to a destination of bytes. An ingress and a gateway know that it is one, and their routes are the bytes'; any
    /// other connection spoke HTTP before the destination became opaque: the next one will be opaque.
    fn leave_bytes(&self, protocol: &OutboundProtocol) -> Result<(), Fault> {
        let connection = &self.connection;
        if let Some(refusal) = protocol.refuses_bytes() {
            return Err(opaque::refused(refusal, connection.dst));
        }
        let by_name = connection.dst.ip().is_unspecified();
        if !by_name && !connection.worker.mesh.config.outbound.ingress_mode {
            self.closing.close();
        }
        Ok(())
    }

    /// The counters of a way, resolved once per connection.
    pub(super) fn counted(
        &self,
        parent: &Arc<Meta>,
        route: &Route<'_>,
        backend: &Arc<Meta>,
        flavour: Flavour,
        hostname: &str,
    ) -> Rc<Counted> {
        let way = (parent, route.meta, backend);
        let same_service = |counted: &Counted| match (&counted.service, &route.service) {
            (None, None) => true,
            (Some(counted), Some(now)) => {
                Arc::ptr_eq(&counted.of, now.routes) && Arc::ptr_eq(&counted.labels, &now.route.labels)
            }
            _ => false,
        };
        let mut all = self.counted.borrow_mut();
        let same = |c: &&Rc<Counted>| {
            let same = (&c.way.0, &c.way.1, &c.way.2) == way && c.flavour == flavour;
            same && *c.hostname == *hostname && same_service(c)
        };
        if let Some(found) = all.iter().find(same) {
            return found.clone();
        }
        let metrics = &self.connection.worker.mesh.metrics;
        let of_route = Labels::new().object("parent", parent).route(route.meta);
        let of_backend = of_route.clone().object("backend", backend);
        let service = route.service.map(|ByService { routes, route }| {
            let labels = Labels::new().with("direction", "outbound").with("dst", &routes.name);
            let labels = labels.rt(route.labels.iter());
            CountedService {
                of: routes.clone(),
                labels: route.labels.clone(),
                retryable: metrics.counter(Count::RouteRetryable, &labels),
                skipped: metrics
                    .counter(Count::RouteRetrySkipped, &labels.clone().with("skipped", "no_budget")),
                asked: metrics.service_route(&labels),
                actual: metrics.service_route_actual(&labels),
            }
        });
        let counted = Rc::new(Counted {
            way: (parent.clone(), route.meta.clone(), backend.clone()),
            flavour,
            hostname: hostname.into(),
            retries: metrics.retries(flavour, &of_route),
            route: metrics.outbound_route(flavour, &of_route.with("hostname", hostname)),
            backend: metrics.outbound_backend(flavour, &of_backend),
            service,
        });
        if all.len() == COUNTED {
            all.remove(0);
        }
        all.push(counted.clone());
        counted
    }
}
