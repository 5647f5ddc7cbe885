//! Where a connection or request goes.

use crate::{
    http::{Filter, HostMatch, HttpMatch, RequestParts, RouteSpecificity, best_match},
    identity::PeerIdentity,
    meta::Meta,
};
use std::{borrow::Cow, collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

/// One address that serves a destination, and how to talk to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub addr: SocketAddr,
    pub identity: PeerIdentity,
    pub hint: ProtocolHint,
    /// Dial this port instead and write a transport header that names the application's port.
    pub transport_port: Option<u16>,
    /// `host:port` to send instead of the request's authority (gateways).
    pub authority_override: Option<String>,
    /// Relative, 10000 is ordinary.
    pub weight: u32,
    /// Metric labels without the `dst_` prefix: `pod`, `deployment`, `serviceaccount`, `zone_locality` …
    pub labels: Arc<BTreeMap<String, String>>,
    pub meta: Option<Arc<Meta>>,
    pub http2: Http2Client,
}

/// How HTTP/2 is spoken to an endpoint. What the controller leaves open is the proxy's to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Http2Client {
    pub windows: Option<Http2Windows>,
    pub keep_alive: Option<Http2KeepAlive>,
    /// Streams that were reset are remembered up to this number.
    pub max_reset_streams: Option<u32>,
    pub max_frame_bytes: Option<u32>,
    pub max_send_buffer_bytes: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Http2Windows {
    /// Grow with what the path can carry.
    Adaptive,
    Fixed {
        stream: Option<u32>,
        connection: Option<u32>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Http2KeepAlive {
    /// Between two pings.
    pub interval: Duration,
    /// Without an answer for so long the connection is dead.
    pub timeout: Option<Duration>,
    /// Also while no request is under way.
    pub while_idle: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProtocolHint {
    #[default]
    Unknown,
    /// HTTP/1 may be carried over HTTP/2.
    H2,
    /// The server treats the bytes as opaque: no HTTP, no upgrade.
    Opaque,
}

impl Endpoint {
    /// An address about which nothing is known but where it is.
    pub fn bare(addr: SocketAddr, identity: PeerIdentity) -> Self {
        Endpoint {
            addr,
            identity,
            hint: ProtocolHint::Unknown,
            transport_port: None,
            authority_override: None,
            weight: 10_000,
            labels: Arc::default(),
            meta: None,
            http2: Http2Client::default(),
        }
    }

    /// The address to connect to: the transport port is used with a known identity only.
    pub fn dial_addr(&self) -> SocketAddr {
        match (&self.identity, self.transport_port) {
            (PeerIdentity::Meshed { .. }, Some(port)) => SocketAddr::new(self.addr.ip(), port),
            _ => self.addr,
        }
    }

    /// What a pooled connection depends on. Two endpoints with equal keys may share connections; a label edit does
    /// not change the key, a changed identity does.
    pub fn connection_key(&self) -> ConnectionKey {
        ConnectionKey {
            addr: self.addr,
            identity: self.identity.clone(),
            hint: self.hint,
            transport_port: self.transport_port,
            authority_override: self.authority_override.clone(),
            http2: self.http2,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionKey {
    pub addr: SocketAddr,
    pub identity: PeerIdentity,
    pub hint: ProtocolHint,
    pub transport_port: Option<u16>,
    pub authority_override: Option<String>,
    pub http2: Http2Client,
}

/// The whole answer for one original destination.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboundPolicy {
    pub meta: Arc<Meta>,
    pub protocol: OutboundProtocol,
}

#[derive(Clone, Debug, PartialEq)]
pub enum OutboundProtocol {
    Detect { timeout: Duration, http1: HttpRoutes, http2: HttpRoutes, opaque: OpaqueRoutes },
    Http1(HttpRoutes),
    Http2(HttpRoutes),
    Grpc(HttpRoutes),
    Opaque(OpaqueRoutes),
    Tls(OpaqueRoutes),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpRoutes {
    pub routes: Vec<HttpRoute>,
    pub accrual: Option<FailureAccrual>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct HttpRoute {
    pub meta: Arc<Meta>,
    pub hosts: Vec<HostMatch>,
    pub rules: Vec<HttpRule>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct HttpRule {
    pub matches: Vec<HttpMatch>,
    pub filters: Vec<Filter>,
    pub backends: Distribution,
    pub timeouts: Timeouts,
    pub retry: Option<RetryPolicy>,
    /// Read and strip `l5d-retry-*` and `l5d-*timeout` request headers.
    pub allow_request_headers: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// From the request's head to the response's last byte.
    pub request: Option<Duration>,
    /// From the request's last byte to the response's head.
    pub response: Option<Duration>,
    /// Between two pieces of either body.
    pub idle: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    pub max_retries: u16,
    pub max_request_bytes: usize,
    /// Inclusive ranges of HTTP status codes.
    pub statuses: Vec<(u16, u16)>,
    pub grpc_codes: Vec<u8>,
    pub per_try_timeout: Option<Duration>,
    pub backoff: Backoff,
    /// A server's `Retry-After` replaces the pause, within its bounds.
    pub respects_retry_after: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub min: Duration,
    pub max: Duration,
    /// 0 to 1: the share of the delay that is random.
    pub jitter: f32,
}

/// How a rule chooses among its backends.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    Empty,
    /// The first that is ready.
    FirstAvailable(Vec<RouteBackend>),
    /// By weight, among those that are ready.
    RandomAvailable(Vec<(RouteBackend, u32)>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct RouteBackend {
    pub backend: Backend,
    pub filters: Vec<Filter>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    pub meta: Arc<Meta>,
    pub kind: BackendKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum BackendKind {
    /// A fixed endpoint.
    Forward(Arc<Endpoint>),
    /// Balance over what `Destination.Get(path)` answers.
    Balance { path: String, ewma: EwmaConfig },
    /// Named but unusable: fails its requests, and only those.
    Invalid(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EwmaConfig {
    pub default_rtt: Duration,
    pub decay: Duration,
    /// An endpoint that asks for less traffic is made to look slow.
    pub penalty: Option<Penalty>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// The latency that such an answer counts as, where it does not say for how long.
    pub latency: Duration,
    /// The longest that is believed of what it says (`Retry-After`).
    pub max_retry_after: Duration,
}

impl EwmaConfig {
    /// What the load of an endpoint is where the controller does not say.
    pub const DEFAULT: EwmaConfig =
        EwmaConfig { default_rtt: Duration::from_millis(30), decay: Duration::from_secs(10), penalty: None };
}

/// When an endpoint is left out because its application fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureAccrual {
    /// Failures in a row; 0: however many.
    pub max_consecutive: u32,
    pub rate: Option<SuccessRate>,
    pub backoff: Backoff,
    /// A server's `Retry-After` is how long it is left out first, within the backoff's bounds.
    pub respects_retry_after: bool,
    /// So many endpoints of a name stay in, however they fail; 0: none needs to.
    pub min_ready: u32,
}

/// The share of successes below which an endpoint is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuccessRate {
    /// 0 to 1.
    pub threshold: f64,
    /// Over how long it is taken.
    pub window: Duration,
    /// Fewer requests tell nothing.
    pub min_requests: u32,
}

impl SuccessRate {
    pub const SHORTEST: Duration = Duration::from_millis(10);
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpaqueRoutes {
    pub routes: Vec<OpaqueRoute>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OpaqueRoute {
    pub meta: Arc<Meta>,
    /// Server names, for TLS routes; empty matches all.
    pub hosts: Vec<HostMatch>,
    pub backends: Distribution,
    /// The route refuses all connections.
    pub refuses: Option<Refusal>,
}

impl OpaqueRoutes {
    /// The same ways for requests. A gateway's client or an ingress knows better than the policy, or the destination changed
    /// under a connection: requests go where the bytes would.
    pub fn for_requests(&self) -> HttpRoutes {
        let rule = |route: &OpaqueRoute| HttpRoute {
            meta: route.meta.clone(),
            hosts: route.hosts.clone(),
            rules: vec![HttpRule {
                matches: Vec::new(),
                filters: Vec::new(),
                backends: route.backends.clone(),
                timeouts: Timeouts::default(),
                retry: None,
                allow_request_headers: false,
            }],
        };
        HttpRoutes { routes: self.routes.iter().map(rule).collect(), accrual: None }
    }
}

impl OutboundProtocol {
    /// The routes of requests; `Err`: the policy speaks of bytes only, and these are theirs.
    pub fn http(&self, http2: bool) -> Result<&HttpRoutes, &OpaqueRoutes> {
        match self {
            OutboundProtocol::Detect { http2: routes, .. } if http2 => Ok(routes),
            OutboundProtocol::Detect { http1: routes, .. }
            | OutboundProtocol::Http1(routes)
            | OutboundProtocol::Http2(routes)
            | OutboundProtocol::Grpc(routes) => Ok(routes),
            OutboundProtocol::Opaque(routes) | OutboundProtocol::Tls(routes) => Err(routes),
        }
    }

    /// The routes of bytes. Where the policy speaks of requests only (the profile calls the port opaque, and wins), they go
    /// where the least specific request would.
    pub fn opaque(&self) -> Cow<'_, OpaqueRoutes> {
        match self {
            OutboundProtocol::Opaque(routes) | OutboundProtocol::Tls(routes) => Cow::Borrowed(routes),
            OutboundProtocol::Detect { opaque, .. } => Cow::Borrowed(opaque),
            OutboundProtocol::Http1(http) | OutboundProtocol::Http2(http) | OutboundProtocol::Grpc(http) => {
                let rules =
                    || http.routes.iter().flat_map(|route| route.rules.iter().map(move |rule| (route, rule)));
                let everything = rules().find(|(_, rule)| rule.matches.is_empty());
                let route = everything.or_else(|| rules().last()).map(|(route, rule)| OpaqueRoute {
                    meta: route.meta.clone(),
                    hosts: Vec::new(),
                    backends: rule.backends.clone(),
                    refuses: None,
                });
                Cow::Owned(OpaqueRoutes { routes: route.into_iter().collect() })
            }
        }
    }

    /// Why bytes, and requests that go their way, are refused.
    pub fn refuses_bytes(&self) -> Option<&Refusal> {
        match self {
            OutboundProtocol::Opaque(routes) | OutboundProtocol::Tls(routes) => {
                routes.routes.first().and_then(|route| route.refuses.as_ref())
            }
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Egress denied, or a port that the service does not define.
    Forbidden,
    /// The route cannot be used, and why.
    Invalid(String),
}

/// The rule that a request takes, the best of all routes.
pub fn find_route<'r>(
    routes: &'r HttpRoutes,
    request: &RequestParts<'_>,
) -> Option<(&'r HttpRoute, &'r HttpRule)> {
    let mut best: Option<(RouteSpecificity, &HttpRoute, &HttpRule)> = None;
    for route in &routes.routes {
        let Some(host) = HostMatch::best(&route.hosts, request.host) else { continue };
        for rule in &route.rules {
            let Some(matched) = best_match(&rule.matches, request) else { continue };
            let spec = RouteSpecificity { host, matched };
            // The first of equals wins.
            if best.as_ref().is_none_or(|b| spec > b.0) {
                best = Some((spec, route, rule));
            }
        }
    }
    best.map(|(_, route, rule)| (route, rule))
}

/// What `Destination.Get` says: the whole set, replaced at each update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// The name is unknown to the controller.
    NoSuchService,
    /// Known, possibly without a ready endpoint. Ordered by address, so that equal sets are equal.
    Known(Arc<Vec<Arc<Endpoint>>>),
}
