//! `InboundServerPolicies`: what one port of a workload accepts, and from whom.

use super::{
    authorization::{by_server_authorizations, networks, of_access, targeting},
    beside::{Workload, WorkloadName},
    routes::of_server,
};
use crate::{
    config::ControllerConfig,
    index::{
        reader::{Reader, RouteRef, Rules},
        registry::Subject,
    },
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use weft_kube::{
    core::{pod::Pod, service::IntOrString},
    kind::Kind,
    policy::{
        access::Access,
        rate_limit::HttpLocalRateLimitPolicy,
        reference::POLICY_GROUP,
        route::BackendRef,
        route_convert,
        server::{ProxyProtocol, Server},
    },
};
use weft_model::{
    http::{Filter, HttpMatch, MatchSpecificity, PathMatch, RequestParts, best_match},
    inbound::{Authn, Authorization, HttpPolicy, Protocol, Route, Rule, ServerPolicy},
    meta::{Meta, Resource},
};

/// How long a proxy waits for enough bytes to tell a protocol.
const DETECT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InboundOf {
    pub workload: WorkloadName,
    pub port: u16,
}

impl Subject for InboundOf {
    /// `None` for a workload that is not there.
    type View = Option<Arc<ServerPolicy>>;

    fn compute(&self, reader: &Reader<'_>, config: &ControllerConfig) -> Self::View {
        let workload = Workload::find(reader, &self.workload)?;
        let policy = match workload.server(reader, self.port) {
            Some(server) => by_server(reader, config, workload, self.port, server),
            None => by_default(reader, config, workload, self.port),
        };
        Some(Arc::new(policy))
    }
}

fn by_default(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    workload: Workload<'_>,
    port: u16,
) -> ServerPolicy {
    let access = workload.default_access(reader, config, port);
    let protocol = if workload.is_annotated_opaque(reader, config, port) {
        Protocol::Opaque
    } else {
        let routes = with_probes(config, workload, port, Vec::new());
        Protocol::Detect { timeout: DETECT, http: HttpPolicy { routes, rate_limit: None } }
    };
    ServerPolicy {
        meta: Arc::new(Meta::default_named(access.as_str())),
        protocol,
        authorizations: of_access(config, access).into_iter().collect(),
        audit: access == Access::Audit,
    }
}

fn by_server(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    workload: Workload<'_>,
    port: u16,
    server: &Server,
) -> ServerPolicy {
    let (namespace, name) = (&server.metadata.namespace, &server.metadata.name);
    let http = || HttpPolicy {
        routes: with_probes(config, workload, port, attached(reader, config, server)),
        rate_limit: limited(reader, server).ok().flatten().map(|limit| limit.limit(config.identities())),
    };
    let access = server.access();
    let mut authorizations = by_server_authorizations(reader, config, server);
    authorizations.extend(targeting(reader, config, namespace, |target| {
        (target.is(POLICY_GROUP, Server::KIND) && target.name == *name)
            || (target.is("", "Namespace") && target.name == *namespace)
    }));
    authorizations.extend(of_access(config, access));
    let mut audit = access == Access::Audit;
    let protocol = match server.protocol() {
        Some(ProxyProtocol::Unknown) => Protocol::Detect { timeout: DETECT, http: http() },
        Some(ProxyProtocol::Http1) => Protocol::Http1(http()),
        Some(ProxyProtocol::Http2) => Protocol::Http2(http()),
        Some(ProxyProtocol::Grpc) => Protocol::Grpc(http()),
        Some(ProxyProtocol::Opaque) => Protocol::Opaque,
        Some(ProxyProtocol::Tls) => Protocol::Tls,
        // A protocol of a later version: nothing may pass until somebody can read it.
        None => {
            authorizations.clear();
            audit = false;
            Protocol::Detect { timeout: DETECT, http: HttpPolicy::default() }
        }
    };
    ServerPolicy {
        meta: Arc::new(Meta::Resource(Resource {
            group: Server::GROUP.to_owned(),
            kind: Server::KIND.to_owned(),
            namespace: namespace.clone(),
            name: name.clone(),
            section: String::new(),
            port: 0,
        })),
        protocol,
        authorizations,
        audit,
    }
}

/// The routes whose parent is this Server, oldest first. One that cannot be read is left out, and with it what it would
/// have allowed.
fn attached(reader: &Reader<'_>, config: &ControllerConfig, server: &Server) -> Vec<Route> {
    of_server(reader, server).iter().filter_map(|r| attached_route(reader, config, r).ok()).collect()
}

fn attached_route(
    reader: &Reader<'_>,
    config: &ControllerConfig,
    route: &RouteRef<'_>,
) -> Result<Route, String> {
    let meta = route.meta;
    // Routes of Servers copy nothing.
    let nowhere = |_: &BackendRef| Ok(None);
    let rules = match route.rules {
        Rules::Http(rules) => rules.iter().map(|rule| route_convert::http_rule(rule, &nowhere)).collect(),
        Rules::Grpc(rules) => rules.iter().map(|rule| route_convert::grpc_rule(rule, &nowhere)).collect(),
        Rules::Bytes(_) => Ok(Vec::new()),
    };
    let rules: Vec<_> = rules?;
    Ok(Route {
        meta: Arc::new(route_meta(route)),
        hosts: route_convert::hosts(route.hostnames),
        authorizations: targeting(reader, config, &meta.namespace, |target| {
            target.is(route.group, route.kind.as_str()) && target.name == meta.name
        }),
        rules: rules.into_iter().map(|(matches, filters)| Rule { matches, filters }).collect(),
    })
}

pub(super) fn route_meta(route: &RouteRef<'_>) -> Meta {
    Meta::Resource(Resource {
        group: route.group.to_owned(),
        kind: route.kind.as_str().to_owned(),
        namespace: route.meta.namespace.clone(),
        name: route.meta.name.clone(),
        ..Resource::default()
    })
}

/// Adds the routes by which probes of a pod pass, whatever policies say. They come first, since of equal matches the
/// first wins, and they carry what the attached route for the same path allows: a probe route takes nothing away.
fn with_probes(
    config: &ControllerConfig,
    workload: Workload<'_>,
    port: u16,
    routes: Vec<Route>,
) -> Vec<Route> {
    let paths = match workload {
        Workload::Pod(pod) => probe_paths(pod, port),
        // Nobody in the cluster probes it by an object that says how.
        Workload::External(_) => BTreeSet::new(),
    };
    if paths.is_empty() {
        return routes;
    }
    let allowed = Authorization {
        meta: Arc::new(Meta::default_named("probe")),
        networks: networks(&config.probe_networks),
        authn: Authn::Unauthenticated,
    };
    let mut all: Vec<Route> = paths
        .into_iter()
        .map(|path| {
            let same = best_route(&routes, &path);
            let mut authorizations = vec![allowed.clone()];
            authorizations.extend(same.iter().flat_map(|(route, _)| route.authorizations.iter().cloned()));
            let filters: Vec<Filter> = same.map(|(_, rule)| rule.filters.clone()).unwrap_or_default();
            let matches = vec![HttpMatch {
                path: Some(PathMatch::Exact(path)),
                method: Some("GET".to_owned()),
                ..HttpMatch::default()
            }];
            Route {
                meta: Arc::new(Meta::default_named("probe")),
                hosts: Vec::new(),
                authorizations,
                rules: vec![Rule { matches, filters }],
            }
        })
        .collect();
    if routes.is_empty() {
        all.push(Route {
            meta: Arc::new(Meta::default_named("default")),
            hosts: Vec::new(),
            authorizations: Vec::new(),
            rules: vec![Rule {
                matches: vec![HttpMatch {
                    path: Some(PathMatch::Prefix("/".to_owned())),
                    ..HttpMatch::default()
                }],
                filters: Vec::new(),
            }],
        });
    } else {
        all.extend(routes);
    }
    all
}

/// The attached rule that a GET of this path takes, whatever its host.
fn best_route<'r>(routes: &'r [Route], path: &str) -> Option<(&'r Route, &'r Rule)> {
    let no_headers: Vec<(String, String)> = Vec::new();
    let request = RequestParts { method: "GET", host: "", path, query: None, headers: &no_headers };
    let mut best: Option<(MatchSpecificity, &Route, &Rule)> = None;
    for route in routes {
        for rule in &route.rules {
            if let Some(matched) = best_match(&rule.matches, &request)
                && best.as_ref().is_none_or(|(b, ..)| matched > *b)
            {
                best = Some((matched, route, rule));
            }
        }
    }
    best.map(|(_, route, rule)| (route, rule))
}

/// The paths that HTTP probes ask of this port, without their queries.
fn probe_paths(pod: &Pod, port: u16) -> BTreeSet<String> {
    let probes = pod
        .all_containers()
        .flat_map(|c| [&c.liveness_probe, &c.readiness_probe, &c.startup_probe])
        .flatten()
        .filter_map(|p| p.http_get.as_ref());
    probes
        .filter(|get| match &get.port {
            IntOrString::Int(number) => *number == port,
            IntOrString::String(name) => pod.named_port(name) == Some(port),
        })
        .map(|get| {
            let path = get.path.as_deref().unwrap_or("/");
            let path = path.split(['?', '#']).next().unwrap_or("/");
            if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
        })
        .collect()
}

/// The limit of a Server's requests, or why it can have none.
pub fn limited<'i>(
    reader: &Reader<'i>,
    server: &Server,
) -> Result<Option<&'i HttpLocalRateLimitPolicy>, String> {
    let limit = reader
        .rate_limits(&server.metadata.namespace)
        .filter(|limit| limit.flaw().is_none() && limit.spec.target_ref.name == server.metadata.name)
        .min_by_key(|limit| limit.metadata.seniority());
    // linkerd2-proxy-api carries limits for HTTP, and none for gRPC as a protocol of its own.
    match server.protocol() {
        Some(ProxyProtocol::Unknown | ProxyProtocol::Http1 | ProxyProtocol::Http2) => Ok(limit.map(|l| &**l)),
        _ => Err(format!(
            "Server {} has proxyProtocol {}, for which proxies have no limits; use HTTP/2 for gRPC",
            server.metadata.name,
            server.spec.proxy_protocol.as_deref().unwrap_or_default()
        )),
    }
}
