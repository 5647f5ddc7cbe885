//! `io.linkerd.proxy.inbound.Server` and [`ServerPolicy`].

use crate::{
    common::{Invalid, duration_from_api, duration_to_api, meta_from_api, meta_to_api, need},
    matches,
};
use ipnet::IpNet;
use linkerd2_proxy_api::inbound as api;
use std::{collections::HashMap, sync::Arc};
use weft_model::{
    http::Filter,
    identity::Identity,
    inbound::{
        AUDIT, Authn, Authorization, HttpPolicy, Network, Protocol, RateLimit, Route, Rule, ServerPolicy,
        Suffix,
    },
    meta::{Meta, Resource},
};

/// The networks of an authorization that holds everywhere.
const EVERYWHERE: [&str; 2] = ["0.0.0.0/0", "::/0"];

// --- to the wire

pub fn to_api(policy: &ServerPolicy) -> api::Server {
    use api::proxy_protocol::{Detect, Grpc, Http1, Http2, Kind, Opaque, Tls};
    let kind = match &policy.protocol {
        Protocol::Detect { timeout, http } => Some(Kind::Detect(Detect {
            timeout: Some(duration_to_api(*timeout)),
            http_routes: http.routes.iter().map(http_route_to_api).collect(),
            http_local_rate_limit: http.rate_limit.as_ref().map(rate_limit_to_api),
        })),
        Protocol::Http1(http) => Some(Kind::Http1(Http1 {
            routes: http.routes.iter().map(http_route_to_api).collect(),
            local_rate_limit: http.rate_limit.as_ref().map(rate_limit_to_api),
        })),
        Protocol::Http2(http) => Some(Kind::Http2(Http2 {
            routes: http.routes.iter().map(http_route_to_api).collect(),
            local_rate_limit: http.rate_limit.as_ref().map(rate_limit_to_api),
        })),
        Protocol::Grpc(http) => {
            Some(Kind::Grpc(Grpc { routes: http.routes.iter().map(grpc_route_to_api).collect() }))
        }
        Protocol::Opaque => Some(Kind::Opaque(Opaque {})),
        Protocol::Tls => Some(Kind::Tls(Tls {})),
        // A message without a protocol is what no proxy can read.
        Protocol::Unreadable(_) => None,
    };
    let audit = policy.audit.then(|| {
        let networks = everywhere().map(|net| Network { net, except: Vec::new() }).to_vec();
        let meta = Arc::new(Meta::default_named(AUDIT));
        authorization_to_api(&Authorization { meta, networks, authn: Authn::Unauthenticated })
    });
    api::Server {
        protocol: Some(api::ProxyProtocol { kind }),
        server_ips: Vec::new(),
        authorizations: policy.authorizations.iter().map(authorization_to_api).chain(audit).collect(),
        labels: labels(&policy.meta),
    }
}

/// A Server message has no metadata field: its origin travels as labels.
fn labels(meta: &Meta) -> HashMap<String, String> {
    let mut labels = HashMap::from([
        ("group".to_string(), meta.group().to_string()),
        ("kind".to_string(), meta.kind().to_string()),
        ("name".to_string(), meta.name().to_string()),
    ]);
    if !meta.namespace().is_empty() {
        // Stock proxies ignore it.
        labels.insert("namespace".to_string(), meta.namespace().to_string());
    }
    labels
}

fn authorization_to_api(authorization: &Authorization) -> api::Authz {
    use api::authn::{
        Permit, PermitMeshTls, PermitUnauthenticated,
        permit_mesh_tls::{Clients, PermitClientIdentities},
    };
    let permit = match &authorization.authn {
        Authn::Unauthenticated => Permit::Unauthenticated(PermitUnauthenticated {}),
        Authn::AnyTls => Permit::MeshTls(PermitMeshTls {
            clients: Some(Clients::Unauthenticated(PermitUnauthenticated {})),
        }),
        Authn::Identities { exact, suffixes } => Permit::MeshTls(PermitMeshTls {
            clients: Some(Clients::Identities(PermitClientIdentities {
                identities: exact.iter().map(identity_to_api).collect(),
                suffixes: suffixes
                    .iter()
                    .map(|suffix| api::IdentitySuffix {
                        parts: suffix.0.split('.').filter(|p| !p.is_empty()).map(str::to_string).collect(),
                    })
                    .collect(),
            })),
        }),
    };
    api::Authz {
        networks: authorization
            .networks
            .iter()
            .map(|network| api::Network {
                net: Some(network.net.into()),
                except: network.except.iter().map(|net| (*net).into()).collect(),
            })
            .collect(),
        authentication: Some(api::Authn { permit: Some(permit) }),
        labels: labels(&authorization.meta),
        metadata: Some(meta_to_api(&authorization.meta)),
    }
}

fn identity_to_api(id: &Identity) -> api::Identity {
    api::Identity { name: id.to_string() }
}

fn http_route_to_api(route: &Route) -> api::HttpRoute {
    use api::http_route::{Filter as ApiFilter, Rule as ApiRule, filter::Kind};
    let filter = |filter: &Filter| ApiFilter {
        kind: match filter {
            Filter::RequestHeaders(change) => {
                Some(Kind::RequestHeaderModifier(matches::request_headers_to_api(change)))
            }
            Filter::Redirect(redirect) => Some(Kind::Redirect(matches::redirect_to_api(redirect))),
            Filter::Fail { status, message, ratio } => {
                Some(Kind::FailureInjector(matches::fail_to_api(*status, message, *ratio)))
            }
            // The protocol cannot carry these on this side: the requests of the rule fail, as with any unknown filter.
            Filter::ResponseHeaders(_) | Filter::RewriteUrl(_) | Filter::Mirror(_) | Filter::Unknown => None,
        },
    };
    api::HttpRoute {
        metadata: Some(meta_to_api(&route.meta)),
        hosts: route.hosts.iter().map(matches::host_to_api).collect(),
        authorizations: route.authorizations.iter().map(authorization_to_api).collect(),
        rules: route
            .rules
            .iter()
            .map(|rule| ApiRule {
                matches: rule.matches.iter().map(matches::match_to_api).collect(),
                filters: rule.filters.iter().map(filter).collect(),
            })
            .collect(),
    }
}

fn grpc_route_to_api(route: &Route) -> api::GrpcRoute {
    use api::grpc_route::{Filter as ApiFilter, Rule as ApiRule, filter::Kind};
    let filter = |filter: &Filter| ApiFilter {
        kind: match filter {
            Filter::RequestHeaders(change) => {
                Some(Kind::RequestHeaderModifier(matches::request_headers_to_api(change)))
            }
            Filter::Fail { status, message, ratio } => {
                Some(Kind::FailureInjector(matches::grpc_fail_to_api(*status, message, *ratio)))
            }
            Filter::ResponseHeaders(_)
            | Filter::Redirect(_)
            | Filter::RewriteUrl(_)
            | Filter::Mirror(_)
            | Filter::Unknown => None,
        },
    };
    api::GrpcRoute {
        metadata: Some(meta_to_api(&route.meta)),
        hosts: route.hosts.iter().map(matches::host_to_api).collect(),
        authorizations: route.authorizations.iter().map(authorization_to_api).collect(),
        rules: route
            .rules
            .iter()
            .map(|rule| ApiRule {
                matches: rule.matches.iter().map(matches::rpc_to_api).collect(),
                filters: rule.filters.iter().map(filter).collect(),
            })
            .collect(),
    }
}

fn rate_limit_to_api(limit: &RateLimit) -> api::HttpLocalRateLimit {
    use api::http_local_rate_limit::{Limit, Override, r#override::ClientIdentities};
    let per_second = |n: u32| Limit { requests_per_second: n };
    api::HttpLocalRateLimit {
        metadata: Some(meta_to_api(&limit.meta)),
        total: limit.total.map(per_second),
        identity: limit.per_identity.map(per_second),
        overrides: limit
            .overrides
            .iter()
            .map(|(ids, n)| Override {
                limit: Some(per_second(*n)),
                clients: Some(ClientIdentities { identities: ids.iter().map(identity_to_api).collect() }),
            })
            .collect(),
    }
}

// --- from the wire

pub fn from_api(server: api::Server) -> Result<ServerPolicy, Invalid> {
    use api::proxy_protocol::Kind;
    let kind = need(server.protocol.and_then(|p| p.kind), "server.protocol")?;
    let protocol = match kind {
        Kind::Detect(detect) => Protocol::Detect {
            timeout: duration_from_api(
                need(detect.timeout, "server.detect.timeout")?,
                "server.detect.timeout",
            )?,
            http: http_policy(detect.http_routes, detect.http_local_rate_limit)?,
        },
        Kind::Http1(http) => Protocol::Http1(http_policy(http.routes, http.local_rate_limit)?),
        Kind::Http2(http) => Protocol::Http2(http_policy(http.routes, http.local_rate_limit)?),
        Kind::Grpc(grpc) => Protocol::Grpc(HttpPolicy {
            routes: grpc.routes.into_iter().map(grpc_route_from_api).collect::<Result<_, _>>()?,
            rate_limit: None,
        }),
        Kind::Opaque(_) => Protocol::Opaque,
        Kind::Tls(_) => Protocol::Tls,
    };
    let mut authorizations = authorizations_from_api(server.authorizations)?;
    let all = authorizations.len();
    // One that names networks stays among the authorizations, and audits there only.
    authorizations.retain(|a| !(a.audits() && is_everywhere(&a.networks)));
    Ok(ServerPolicy {
        meta: Arc::new(meta_of_labels(server.labels)),
        protocol,
        audit: authorizations.len() < all,
        authorizations,
    })
}

fn everywhere() -> [IpNet; 2] {
    EVERYWHERE.map(|net| net.parse().expect("a valid network"))
}

fn is_everywhere(networks: &[Network]) -> bool {
    everywhere().iter().all(|all| networks.iter().any(|n| n.net == *all && n.except.is_empty()))
}

/// Labels as stock controllers send them: `kind` is `default` or the resource's; some send the name alone.
fn meta_of_labels(mut labels: HashMap<String, String>) -> Meta {
    let mut take = |name: &str| labels.remove(name).unwrap_or_default();
    let (group, kind, name, namespace) = (take("group"), take("kind"), take("name"), take("namespace"));
    match kind.as_str() {
        "" | "default" => Meta::Default(name),
        _ => Meta::Resource(Resource { group, kind, namespace, name, section: String::new(), port: 0 }),
    }
}

fn authorizations_from_api(all: Vec<api::Authz>) -> Result<Vec<Authorization>, Invalid> {
    all.into_iter().map(authorization_from_api).collect()
}

fn authorization_from_api(authz: api::Authz) -> Result<Authorization, Invalid> {
    use api::authn::{Permit, permit_mesh_tls::Clients};
    const NETWORKS: &str = "authorization.networks";
    let permit = need(authz.authentication.and_then(|a| a.permit), "authorization.authentication")?;
    let authn = match permit {
        Permit::Unauthenticated(_) => Authn::Unauthenticated,
        Permit::MeshTls(tls) => match need(tls.clients, "authorization.mesh_tls.clients")? {
            Clients::Unauthenticated(_) => Authn::AnyTls,
            Clients::Identities(ids) => Authn::Identities {
                exact: ids.identities.into_iter().map(identity_from_api).collect::<Result<_, _>>()?,
                suffixes: ids.suffixes.into_iter().map(|suffix| Suffix(suffix.parts.join("."))).collect(),
            },
        },
    };
    let network = |net| IpNet::try_from(net).map_err(|e| Invalid::new(NETWORKS, e));
    let networks = authz.networks.into_iter().map(|n| {
        Ok(Network {
            net: network(need(n.net, NETWORKS)?)?,
            except: n.except.into_iter().map(network).collect::<Result<_, _>>()?,
        })
    });
    let networks: Vec<Network> = networks.collect::<Result<_, Invalid>>()?;
    if networks.is_empty() {
        return Err(Invalid::missing(NETWORKS));
    }
    let meta = match authz.metadata {
        // Older controllers only label.
        None => Arc::new(meta_of_labels(authz.labels)),
        metadata => meta_from_api(metadata, "authorization.metadata")?,
    };
    Ok(Authorization { meta, networks, authn })
}

fn identity_from_api(id: api::Identity) -> Result<Identity, Invalid> {
    Identity::parse(&id.name).map_err(|e| Invalid::new("identity", e))
}

fn http_policy(
    routes: Vec<api::HttpRoute>,
    limit: Option<api::HttpLocalRateLimit>,
) -> Result<HttpPolicy, Invalid> {
    Ok(HttpPolicy {
        routes: routes.into_iter().map(http_route_from_api).collect::<Result<_, _>>()?,
        rate_limit: limit.map(rate_limit_from_api).transpose()?,
    })
}

fn http_route_from_api(route: api::HttpRoute) -> Result<Route, Invalid> {
    use api::http_route::filter::Kind;
    let rules = route.rules.into_iter().map(|rule| {
        let filters = rule.filters.into_iter().map(|filter| match filter.kind {
            Some(Kind::FailureInjector(fail)) => matches::fail_from_api(fail),
            Some(Kind::RequestHeaderModifier(change)) => matches::request_headers_from_api(change),
            Some(Kind::Redirect(redirect)) => matches::redirect_from_api(redirect),
            None => Ok(Filter::Unknown),
        });
        Ok(Rule {
            matches: rule.matches.into_iter().map(matches::match_from_api).collect::<Result<_, _>>()?,
            filters: filters.collect::<Result<_, _>>()?,
        })
    });
    Ok(Route {
        meta: meta_from_api(route.metadata, "route.metadata")?,
        hosts: route.hosts.into_iter().map(matches::host_from_api).collect::<Result<_, _>>()?,
        authorizations: authorizations_from_api(route.authorizations)?,
        rules: rules.collect::<Result<_, Invalid>>()?,
    })
}

fn grpc_route_from_api(route: api::GrpcRoute) -> Result<Route, Invalid> {
    use api::grpc_route::filter::Kind;
    let rules = route.rules.into_iter().map(|rule| {
        let filters = rule.filters.into_iter().map(|filter| match filter.kind {
            Some(Kind::FailureInjector(fail)) => matches::grpc_fail_from_api(fail),
            Some(Kind::RequestHeaderModifier(change)) => matches::request_headers_from_api(change),
            None => Ok(Filter::Unknown),
        });
        Ok(Rule {
            matches: rule.matches.into_iter().map(matches::rpc_from_api).collect::<Result<_, _>>()?,
            filters: filters.collect::<Result<_, _>>()?,
        })
    });
    Ok(Route {
        meta: meta_from_api(route.metadata, "route.metadata")?,
        hosts: route.hosts.into_iter().map(matches::host_from_api).collect::<Result<_, _>>()?,
        authorizations: authorizations_from_api(route.authorizations)?,
        rules: rules.collect::<Result<_, Invalid>>()?,
    })
}

fn rate_limit_from_api(limit: api::HttpLocalRateLimit) -> Result<RateLimit, Invalid> {
    let overrides = limit.overrides.into_iter().map(|o| {
        let ids = o.clients.map(|c| c.identities).unwrap_or_default();
        let ids = ids.into_iter().map(identity_from_api).collect::<Result<_, _>>()?;
        Ok((ids, need(o.limit, "rate_limit.overrides.limit")?.requests_per_second))
    });
    Ok(RateLimit {
        meta: meta_from_api(limit.metadata, "rate_limit.metadata")?,
        total: limit.total.map(|l| l.requests_per_second),
        per_identity: limit.identity.map(|l| l.requests_per_second),
        overrides: overrides.collect::<Result<_, Invalid>>()?,
    })
}
