//! Routes: for each parent, whether it takes them, whether their backends are there, and who else claims their requests.

use super::{
    CONTROLLER, Write,
    condition::{self, ACCEPTED, Condition, RESOLVED_REFS, same},
};
use crate::{
    config::ControllerConfig,
    index::reader::{Reader, RouteKind, RouteRef, Rules},
    view::{
        backend::resolve,
        routes::{Declared, Outlet, ParentKind, flaw, of_server, unfit},
        service_port::ServicePort,
        workload::is_meshed,
    },
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{cell::OnceCell, collections::BTreeMap};
use weft_kube::{
    kind::Kind,
    meta::ObjectName,
    policy::{
        grpc_route::GrpcRoute,
        http_route::{GatewayHttpRoute, HttpRouteFilter, PolicyHttpRoute},
        reference::{GATEWAY_GROUP, POLICY_GROUP},
        route::{BackendRef, ParentRef, TcpRoute, TlsRoute},
        route_convert,
    },
};
use weft_model::http::HttpMatch;

pub(super) fn pending(reader: &Reader<'_>, config: &ControllerConfig, now: Timestamp) -> Vec<Write> {
    let cluster = Cluster { reader, config, stock: OnceCell::new() };
    reader.index().routes(None).filter_map(|route| cluster.write(&route, now)).collect()
}

struct Cluster<'a, 'i> {
    reader: &'a Reader<'i>,
    config: &'a ControllerConfig,
    /// For each namespace, a pod whose proxy is not ours, if there is one.
    stock: OnceCell<BTreeMap<String, ObjectName>>,
}

impl<'i> Cluster<'_, 'i> {
    fn write(&self, route: &RouteRef<'i>, now: Timestamp) -> Option<Write> {
        let (ours, others): (Vec<&Value>, Vec<&Value>) =
            route.status.iter().partition(|p| p["controllerName"] == CONTROLLER);
        let mut parents: Vec<Value> = others.into_iter().cloned().collect();
        let mut warnings = Vec::new();
        for parent in route.parents {
            let Some(kind) = ParentKind::of(parent) else { continue };
            let parent_ref = parent_ref(parent);
            let old = ours.iter().find(|p| p["parentRef"] == parent_ref);
            let old = old.and_then(|p| p["conditions"].as_array()).map(Vec::as_slice).unwrap_or_default();
            let conditions = self.conditions(route, parent, kind);
            warnings.extend(conditions.iter().filter_map(|c| c.warning(old)));
            let conditions: Vec<Value> =
                conditions.iter().map(|c| c.json(route.meta.generation, old, now)).collect();
            parents.push(
                json!({"parentRef": parent_ref, "controllerName": CONTROLLER, "conditions": conditions}),
            );
        }
        (!same(&parents, route.status)).then(|| Write {
            status: json!({"parents": parents}),
            warnings,
            ..about(route)
        })
    }

    fn conditions(&self, route: &RouteRef<'i>, parent: &ParentRef, kind: ParentKind) -> Vec<Condition> {
        let accepted = match kind {
            ParentKind::Server => self.by_server(route, parent),
            ParentKind::Service | ParentKind::EgressNetwork => self.by_outlets(route, parent, kind),
        };
        let mut conditions = Vec::new();
        match accepted {
            Ok(rivals) => {
                conditions.push(Condition::yes(ACCEPTED));
                conditions.extend(overshadowed(route, &rivals));
            }
            Err(refused) => conditions.push(refused),
        }
        if kind != ParentKind::Server {
            conditions.insert(1, self.resolved(route));
        }
        conditions
    }

    /// The routes that the Server takes, this one among them.
    fn by_server(&self, route: &RouteRef<'i>, parent: &ParentRef) -> Result<Vec<RouteRef<'i>>, Condition> {
        let local = &route.meta.namespace;
        let name = parent.resolve(local);
        let missing = |what: String| Condition::no(ACCEPTED, "NoMatchingParent", what);
        if name.namespace != *local {
            return Err(missing("a Server takes routes of its own namespace only".to_owned()));
        }
        if parent.port.is_some() || parent.section_name.is_some() {
            return Err(missing("a Server as parent has neither port nor section".to_owned()));
        }
        let server = self.reader.servers(local).find(|s| s.metadata.name == name.name);
        let server = server.ok_or_else(|| missing(format!("Server {name} does not exist")))?;
        let why = unfit(server, route.kind).or_else(|| flaw(route, ParentKind::Server));
        match why {
            Some(why) => Err(Condition::no(ACCEPTED, "UnsupportedValue", why)),
            None => Ok(of_server(self.reader, server)),
        }
    }

    /// The routes that the parent takes for a client of this route's namespace, on a port where this one is among them.
    fn by_outlets(
        &self,
        route: &RouteRef<'i>,
        parent: &ParentRef,
        kind: ParentKind,
    ) -> Result<Vec<RouteRef<'i>>, Condition> {
        let name = parent.resolve(&route.meta.namespace);
        let missing = |what: String| Condition::no(ACCEPTED, "NoMatchingParent", what);
        if parent.section_name.is_some() {
            return Err(missing(format!("{name} has no sections")));
        }
        let ports = match kind {
            ParentKind::Service => self.ports_of_service(&name, parent.port).map_err(missing)?,
            _ => {
                if !self.reader.egress_networks(&name.namespace).any(|n| n.metadata.name == name.name) {
                    return Err(missing(format!("EgressNetwork {name} does not exist")));
                }
                vec![(parent.port, Declared::Nothing)]
            }
        };
        if let Some(why) = flaw(route, kind) {
            return Err(Condition::no(ACCEPTED, "UnsupportedValue", why));
        }
        let mut served_instead = None;
        for (port, declared) in ports {
            let outlet = Outlet { kind, name: &name, port, declared };
            match outlet.routes(self.reader, &route.meta.namespace) {
                Some((_, routes)) if routes.iter().any(|r| r.is(route)) => {
                    self.told_to_all(route, &name)?;
                    return Ok(routes);
                }
                Some((kind, routes)) => served_instead = Some((kind, routes.first().map(|r| r.meta.key()))),
                None => {}
            }
        }
        let own = route.kind.as_str();
        Err(match served_instead {
            Some((RouteKind::Tcp, Some(other))) if route.kind == RouteKind::Tcp => Condition::no(
                ACCEPTED,
                "RouteReasonConflicted",
                format!("TCPRoute {other} is older, and bytes cannot be told apart"),
            ),
            Some((kind, _)) => Condition::no(
                ACCEPTED,
                "RouteReasonConflicted",
                format!(
                    "{name} has a {} for the same port, which takes precedence over any {own}",
                    kind.as_str()
                ),
            ),
            None => Condition::no(
                ACCEPTED,
                "UnsupportedValue",
                format!(
                    "{name} declares a protocol (appProtocol or opaque ports) for which there is no {own}"
                ),
            ),
        })
    }

    fn ports_of_service(
        &self,
        name: &ObjectName,
        port: Option<u16>,
    ) -> Result<Vec<(Option<u16>, Declared)>, String> {
        let Some(service) = self.reader.service(name) else {
            return Err(format!("Service {name} does not exist"));
        };
        if service.is_external_name() {
            return Err(format!("Service {name} is an ExternalName: it has no traffic of its own"));
        }
        let all = service.spec.ports.iter().filter(|p| p.is_tcp()).map(|p| p.port);
        let ports: Vec<u16> = port.map_or_else(|| all.collect(), |port| vec![port]);
        let declared = |port: u16| {
            // As every client sees it that has no ServiceProfile of its own.
            let said = ServicePort::find(self.reader, self.config, service, port, &name.namespace);
            let said = said.ok_or_else(|| format!("Service {name} does not define port {port}"))?;
            Ok((Some(port), said.declared))
        };
        ports.into_iter().map(declared).collect()
    }

    /// Some filters only weft's proxies know; the others fail the requests instead of doing half of what the route says.
    fn told_to_all(&self, route: &RouteRef<'_>, parent: &ObjectName) -> Result<(), Condition> {
        let Some((field, filter)) = extension(route) else { return Ok(()) };
        let stock = self.stock.get_or_init(|| self.stock_proxies());
        // A route of a client's namespace is for its clients only.
        let consumer = route.meta.namespace != parent.namespace;
        let pod = if consumer { stock.get(&route.meta.namespace) } else { stock.values().next() };
        match pod {
            None => Ok(()),
            Some(pod) => Err(Condition::no(
                ACCEPTED,
                "UnsupportedValue",
                format!(
                    "{field}: {filter} cannot be told to stock Linkerd proxies, and pod {pod} has one: there the rule's \
                     requests fail. Restart the pod to give it a weft proxy"
                ),
            )),
        }
    }

    fn stock_proxies(&self) -> BTreeMap<String, ObjectName> {
        let ours = |by: &str| by.starts_with("weft/");
        let pods = self.reader.index().pods.all().filter(|pod| {
            let by = pod.metadata.annotation("linkerd.io/created-by");
            is_meshed(pod, self.config) && !pod.is_finished() && !by.is_some_and(ours)
        });
        pods.map(|pod| (pod.metadata.namespace.clone(), pod.metadata.key())).collect()
    }

    fn resolved(&self, route: &RouteRef<'_>) -> Condition {
        let bad = backends(route).into_iter().find_map(|b| resolve(self.reader, route, b).err());
        match bad {
            Some(bad) => Condition::no(RESOLVED_REFS, bad.reason, bad.message),
            None => Condition::yes(RESOLVED_REFS),
        }
    }
}

/// The first filter that only weft's proxies know.
fn extension(route: &RouteRef<'_>) -> Option<(String, String)> {
    let among = |field: String, filters: &[HttpRouteFilter]| {
        let at = filters.iter().position(|f| matches!(f.r#type.as_str(), "URLRewrite" | "RequestMirror"))?;
        Some((format!("{field}.filters[{at}].type"), filters[at].r#type.clone()))
    };
    let in_rule = |at: usize, filters: &[HttpRouteFilter], backends: &[BackendRef]| {
        among(format!("spec.rules[{at}]"), filters).or_else(|| {
            let mut backends = backends.iter().enumerate();
            backends.find_map(|(n, b)| among(format!("spec.rules[{at}].backendRefs[{n}]"), &b.filters))
        })
    };
    match route.rules {
        Rules::Http(rules) => {
            rules.iter().enumerate().find_map(|(at, r)| in_rule(at, &r.filters, &r.backend_refs))
        }
        Rules::Grpc(rules) => {
            rules.iter().enumerate().find_map(|(at, r)| in_rule(at, &r.filters, &r.backend_refs))
        }
        Rules::Bytes(_) => None,
    }
}

/// Every Service that the route refers to, copies included.
fn backends<'i>(route: &RouteRef<'i>) -> Vec<&'i BackendRef> {
    fn copies(filters: &[HttpRouteFilter]) -> impl Iterator<Item = &BackendRef> {
        filters.iter().filter_map(|f| f.request_mirror.as_ref()).map(|m| &m.backend_ref)
    }
    match route.rules {
        Rules::Http(rules) => {
            rules.iter().flat_map(|r| r.backend_refs.iter().chain(copies(&r.filters))).collect()
        }
        Rules::Grpc(rules) => {
            rules.iter().flat_map(|r| r.backend_refs.iter().chain(copies(&r.filters))).collect()
        }
        Rules::Bytes(rules) => rules.iter().flat_map(|r| &r.backend_refs).collect(),
    }
}

/// Whether an older route of the same parent has one of this route's matches: then this one never sees those requests.
fn overshadowed(route: &RouteRef<'_>, rivals: &[RouteRef<'_>]) -> Option<Condition> {
    let own = matches(route);
    rivals.iter().take_while(|r| !r.is(route)).find_map(|older| {
        if older.hostnames != route.hostnames {
            return None;
        }
        let theirs = matches(older);
        let (rule, at, _) = own.iter().find(|(.., m)| theirs.iter().any(|(.., t)| t == m))?;
        let place = format!("spec.rules[{rule}].matches[{at}]");
        let older = format!("{} {}", older.kind.as_str(), older.meta.key());
        Some(Condition::conflicted(
            "RouteOverlap",
            format!("{place}: {older} is older and takes the same requests; this route does not get them"),
        ))
    })
}

/// The matches with their rules' and their own places. A rule without any takes everything.
fn matches(route: &RouteRef<'_>) -> Vec<(usize, usize, HttpMatch)> {
    let nowhere = |_: &BackendRef| Ok(None);
    let read: Vec<Vec<HttpMatch>> = match route.rules {
        Rules::Http(rules) => rules
            .iter()
            .filter_map(|r| route_convert::http_rule(r, &nowhere).ok())
            .map(|(matches, _)| matches)
            .collect(),
        Rules::Grpc(rules) => rules
            .iter()
            .filter_map(|r| route_convert::grpc_rule(r, &nowhere).ok())
            .map(|(matches, _)| matches)
            .collect(),
        Rules::Bytes(_) => Vec::new(),
    };
    let of_rule = |(rule, matches): (usize, Vec<HttpMatch>)| {
        let matches = if matches.is_empty() { vec![HttpMatch::default()] } else { matches };
        matches.into_iter().enumerate().map(move |(at, m)| (rule, at, m))
    };
    read.into_iter().enumerate().flat_map(of_rule).collect()
}

fn about(route: &RouteRef<'_>) -> Write {
    let namespace = Some(route.meta.namespace.as_str());
    let (collection, version) = match (route.kind, route.group) {
        (RouteKind::Http, POLICY_GROUP) => (PolicyHttpRoute::path(namespace), PolicyHttpRoute::VERSION),
        (RouteKind::Http, _) => (GatewayHttpRoute::path(namespace), GatewayHttpRoute::VERSION),
        (RouteKind::Grpc, _) => (GrpcRoute::path(namespace), GrpcRoute::VERSION),
        (RouteKind::Tls, _) => (TlsRoute::path(namespace), TlsRoute::VERSION),
        (RouteKind::Tcp, _) => (TcpRoute::path(namespace), TcpRoute::VERSION),
    };
    condition::write(&collection, route.group, version, route.kind.as_str(), route.meta)
}

/// As the route has it; fields that it does not set stay absent.
fn parent_ref(parent: &ParentRef) -> Value {
    let mut value = json!({
        "group": parent.group.as_deref().unwrap_or(GATEWAY_GROUP),
        "kind": parent.kind.as_deref().unwrap_or("Gateway"),
        "name": parent.name,
    });
    if let Some(namespace) = &parent.namespace {
        value["namespace"] = json!(namespace);
    }
    if let Some(section) = &parent.section_name {
        value["sectionName"] = json!(section);
    }
    if let Some(port) = parent.port {
        value["port"] = json!(port);
    }
    value
}
