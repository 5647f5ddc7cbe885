//! Which routes a parent takes. What is decided here is what is served, and it is what statuses say: nothing waits for a
//! status to be written.

use super::service_settings::problems;
use crate::index::reader::{Reader, RouteKind, RouteRef, Rules};
use std::sync::Arc;
use weft_kube::{
    kind::Kind,
    meta::ObjectName,
    policy::{
        egress_network::EgressNetwork,
        reference::POLICY_GROUP,
        route::{BackendRef, ParentRef},
        route_convert,
        server::{ProxyProtocol, Server},
    },
};
use weft_model::{http::Filter, meta::Meta};

/// Parents that the mesh knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParentKind {
    Server,
    Service,
    EgressNetwork,
}

impl ParentKind {
    /// `None` for a parent that is none of our business, such as a Gateway.
    pub fn of(parent: &ParentRef) -> Option<ParentKind> {
        if parent.is("", "Service") {
            Some(ParentKind::Service)
        } else if parent.is(POLICY_GROUP, Server::KIND) {
            Some(ParentKind::Server)
        } else if parent.is(POLICY_GROUP, EgressNetwork::KIND) {
            Some(ParentKind::EgressNetwork)
        } else {
            None
        }
    }
}

/// What a port is declared to be, which beats what routes would like it to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    Nothing,
    Http1,
    Http2,
    Opaque,
}

impl Declared {
    /// The one kind of route that such a port serves, of those that are attached to it.
    pub fn serves(self, attached: impl Iterator<Item = RouteKind>) -> Option<RouteKind> {
        attached
            .filter(|kind| match self {
                Declared::Nothing => true,
                Declared::Http1 => *kind == RouteKind::Http,
                Declared::Http2 => matches!(kind, RouteKind::Http | RouteKind::Grpc),
                Declared::Opaque => *kind == RouteKind::Tcp,
            })
            .min()
    }
}

/// A Service or EgressNetwork, as a parent of routes.
#[derive(Clone, Copy, Debug)]
pub struct Outlet<'a> {
    pub kind: ParentKind,
    pub name: &'a ObjectName,
    /// `None`: whatever the port, for an EgressNetwork that routes name without one.
    pub port: Option<u16>,
    pub declared: Declared,
}

impl Outlet<'_> {
    /// The routes by which a client's traffic goes, all of one kind, oldest first: those of the parent's namespace, and those
    /// of the client's, which bind its own traffic only.
    pub fn routes<'i>(
        &self,
        reader: &Reader<'i>,
        client_namespace: &str,
    ) -> Option<(RouteKind, Vec<RouteRef<'i>>)> {
        let mut found = reader.routes(&self.name.namespace);
        if client_namespace != self.name.namespace {
            found.extend(reader.routes(client_namespace));
            found.sort_by_key(|r| (r.meta.seniority(), r.group, r.kind));
        }
        found.retain(|route| self.is_parent_of(route) && flaw(route, self.kind).is_none());
        let kind = self.declared.serves(found.iter().map(|r| r.kind))?;
        found.retain(|r| r.kind == kind);
        if kind == RouteKind::Tcp {
            // Bytes cannot be told apart: the oldest takes them all.
            found.truncate(1);
        }
        Some((kind, found))
    }

    fn is_parent_of(&self, route: &RouteRef<'_>) -> bool {
        route.parents.iter().any(|parent| {
            ParentKind::of(parent) == Some(self.kind)
                && parent.section_name.is_none()
                && parent.resolve(&route.meta.namespace) == *self.name
                && (parent.port.is_none() || self.port.is_none() || parent.port == self.port)
        })
    }
}

/// The routes of a Server, oldest first.
pub fn of_server<'i>(reader: &Reader<'i>, server: &Server) -> Vec<RouteRef<'i>> {
    let namespace = &server.metadata.namespace;
    let names = |parent: &ParentRef| {
        ParentKind::of(parent) == Some(ParentKind::Server)
            && parent.resolve(namespace) == server.metadata.key()
            && parent.port.is_none()
            && parent.section_name.is_none()
    };
    let mut found = reader.routes(namespace);
    found.retain(|route| {
        route.parents.iter().any(names)
            && unfit(server, route.kind).is_none()
            && flaw(route, ParentKind::Server).is_none()
    });
    found
}

/// Why routes of this kind do nothing for a Server, if so.
pub fn unfit(server: &Server, kind: RouteKind) -> Option<String> {
    let protocol = server.spec.proxy_protocol.as_deref().unwrap_or("unknown");
    let fits = match server.protocol()? {
        ProxyProtocol::Unknown | ProxyProtocol::Http2 => matches!(kind, RouteKind::Http | RouteKind::Grpc),
        ProxyProtocol::Http1 => kind == RouteKind::Http,
        ProxyProtocol::Grpc => kind == RouteKind::Grpc,
        ProxyProtocol::Opaque | ProxyProtocol::Tls => false,
    };
    let name = &server.metadata.name;
    (!fits).then(|| {
        format!("Server {name} has proxyProtocol {protocol}, for which there is no {}", kind.as_str())
    })
}

/// Why a route cannot be served by parents of this kind, whatever else there is: the field, then the reason.
pub fn flaw(route: &RouteRef<'_>, parent: ParentKind) -> Option<String> {
    let check = || match parent {
        ParentKind::Server => inbound_rules(route),
        ParentKind::Service | ParentKind::EgressNetwork => outbound_rules(route),
    };
    check().err()
}

/// Nothing is copied while a route is only looked at.
fn no_mirror(_: &BackendRef) -> Result<Option<(Arc<Meta>, String)>, String> {
    Ok(None)
}

fn in_rule<T>(at: usize, read: Result<T, String>) -> Result<T, String> {
    read.map_err(|why| format!("spec.rules[{at}].{why}"))
}

fn inbound_rules(route: &RouteRef<'_>) -> Result<(), String> {
    let outlets =
        |parent| matches!(ParentKind::of(parent), Some(ParentKind::Service | ParentKind::EgressNetwork));
    // With a Service beside it, they are meant for that.
    let only_servers = !route.parents.iter().any(outlets);
    let meant_for_callers = |is_set: bool, field: &str| match is_set && only_servers {
        true => Err(format!("{field}: it is for routes of Services, and does nothing for a Server")),
        false => Ok(()),
    };
    let carried = |filters: Vec<Filter>| {
        let other =
            filters.iter().position(|f| !matches!(f, Filter::RequestHeaders(_) | Filter::Redirect(_)));
        match other {
            Some(at) => Err(format!(
                "filters[{at}].type: of a Server's routes, RequestHeaderModifier and RequestRedirect are supported"
            )),
            None => Ok(()),
        }
    };
    match route.rules {
        Rules::Http(rules) => {
            for (at, rule) in rules.iter().enumerate() {
                // A copy to nobody would not be seen among the filters.
                let copies = rule.filters.iter().position(|f| f.request_mirror.is_some());
                in_rule(
                    at,
                    copies.map_or(Ok(()), |at| {
                        Err(format!("filters[{at}].type: a Server's routes copy nothing"))
                    }),
                )?;
                let (_, filters) = in_rule(at, route_convert::http_rule(rule, &no_mirror))?;
                in_rule(at, carried(filters))?;
                in_rule(at, unknown_fields(&rule.rest))?;
                in_rule(at, meant_for_callers(!rule.backend_refs.is_empty(), "backendRefs"))?;
                in_rule(at, meant_for_callers(rule.timeouts.is_some(), "timeouts"))?;
            }
            Ok(())
        }
        Rules::Grpc(rules) => {
            for (at, rule) in rules.iter().enumerate() {
                let copies = rule.filters.iter().position(|f| f.request_mirror.is_some());
                in_rule(
                    at,
                    copies.map_or(Ok(()), |at| {
                        Err(format!("filters[{at}].type: a Server's routes copy nothing"))
                    }),
                )?;
                in_rule(at, route_convert::grpc_rule(rule, &no_mirror))?;
                in_rule(at, unknown_fields(&rule.rest))?;
                in_rule(at, meant_for_callers(!rule.backend_refs.is_empty(), "backendRefs"))?;
            }
            Ok(())
        }
        Rules::Bytes(_) => Err("kind: a Server takes HTTPRoutes and GRPCRoutes".to_owned()),
    }
}

fn outbound_rules(route: &RouteRef<'_>) -> Result<(), String> {
    if let Some(problem) = problems(&route.meta.annotations).into_iter().next() {
        return Err(format!("metadata.annotations: {problem}"));
    }
    match route.rules {
        Rules::Http(rules) => {
            for (at, rule) in rules.iter().enumerate() {
                in_rule(at, route_convert::http_rule(rule, &no_mirror))?;
                in_rule(at, route_convert::timeouts(rule))?;
                in_rule(at, unknown_fields(&rule.rest))?;
                in_rule(
                    at,
                    backend_filters(&rule.backend_refs, |b| route_convert::filters(&b.filters, &no_mirror)),
                )?;
            }
        }
        Rules::Grpc(rules) => {
            for (at, rule) in rules.iter().enumerate() {
                in_rule(at, route_convert::grpc_rule(rule, &no_mirror))?;
                in_rule(at, unknown_fields(&rule.rest))?;
                in_rule(
                    at,
                    backend_filters(&rule.backend_refs, |b| {
                        route_convert::grpc_filters(&b.filters, &no_mirror)
                    }),
                )?;
            }
        }
        Rules::Bytes(rules) => {
            let [rule] = rules else {
                return Err(format!("spec.rules: there must be exactly one, not {}", rules.len()));
            };
            if let Some(at) = rule.backend_refs.iter().position(|b| !b.filters.is_empty()) {
                return Err(format!("spec.rules[0].backendRefs[{at}].filters: bytes cannot be changed"));
            }
        }
    }
    Ok(())
}

fn backend_filters<T>(
    backends: &[BackendRef],
    read: impl Fn(&BackendRef) -> Result<T, String>,
) -> Result<(), String> {
    for (at, backend) in backends.iter().enumerate() {
        read(backend).map_err(|why| format!("backendRefs[{at}].{why}"))?;
    }
    Ok(())
}

/// Fields of newer versions mean something to whoever wrote them.
fn unknown_fields(rest: &serde_json::Map<String, serde_json::Value>) -> Result<(), String> {
    match rest.keys().next() {
        Some(field) => Err(format!("{field}: this field is not supported")),
        None => Ok(()),
    }
}
