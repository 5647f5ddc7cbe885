//! What a workload's port accepts, and from whom.

use crate::{
    http::{Filter, HostMatch, HttpMatch, RequestParts, RouteSpecificity, best_match},
    identity::{ClientTls, Identity},
    meta::Meta,
};
use ipnet::IpNet;
use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

/// Everything that decides about connections to one port. Replaced whole, never edited.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerPolicy {
    pub meta: Arc<Meta>,
    pub protocol: Protocol,
    pub authorizations: Vec<Authorization>,
    /// Allow and record what would have been denied (`audit` default policy or accessPolicy).
    pub audit: bool,
}

/// How the port's bytes are to be read.
#[derive(Clone, Debug, PartialEq)]
pub enum Protocol {
    Detect { timeout: Duration, http: HttpPolicy },
    Http1(HttpPolicy),
    Http2(HttpPolicy),
    Grpc(HttpPolicy),
    Opaque,
    Tls,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpPolicy {
    pub routes: Vec<Route>,
    pub rate_limit: Option<RateLimit>,
}

/// One inbound HTTPRoute or GRPCRoute. gRPC method matches are expressed as exact paths `/service/method` or
/// prefixes `/service/`.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    pub meta: Arc<Meta>,
    /// Empty: any host.
    pub hosts: Vec<HostMatch>,
    /// Added to the server's own.
    pub authorizations: Vec<Authorization>,
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Empty: every request.
    pub matches: Vec<HttpMatch>,
    pub filters: Vec<Filter>,
}

/// GCRA limits, per second, shared by all workers of a proxy.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimit {
    pub meta: Arc<Meta>,
    pub total: Option<u32>,
    pub per_identity: Option<u32>,
    pub overrides: Vec<(BTreeSet<Identity>, u32)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Authorization {
    pub meta: Arc<Meta>,
    /// The client's address must be in one of these.
    pub networks: Vec<Network>,
    pub authn: Authn,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    pub net: IpNet,
    pub except: Vec<IpNet>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Authn {
    Unauthenticated,
    /// Any mesh TLS, with or without an identity.
    AnyTls,
    Identities {
        exact: BTreeSet<Identity>,
        suffixes: Vec<Suffix>,
    },
}

/// The end of a DNS-like identity, at a label boundary; empty matches every identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Suffix(pub String);

impl Network {
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.net.contains(&addr) && !self.except.iter().any(|net| net.contains(&addr))
    }
}

impl Suffix {
    pub fn matches(&self, id: &Identity) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let (id, suffix) = (id.as_str(), self.0.trim_start_matches('.'));
        !id.starts_with("spiffe://")
            && (id == suffix || id.strip_suffix(suffix).is_some_and(|head| head.ends_with('.')))
    }
}

/// Who is asking.
#[derive(Clone, Debug)]
pub struct Caller<'a> {
    pub addr: IpAddr,
    pub tls: &'a ClientTls,
}

impl Authorization {
    pub fn allows(&self, caller: &Caller<'_>) -> bool {
        self.networks.iter().any(|net| net.contains(caller.addr)) && self.authn.accepts(caller.tls)
    }
}

impl Authn {
    pub fn accepts(&self, tls: &ClientTls) -> bool {
        match self {
            Authn::Unauthenticated => true,
            Authn::AnyTls => matches!(tls, ClientTls::Terminated(_)),
            Authn::Identities { exact, suffixes } => tls
                .client_id()
                .is_some_and(|id| exact.contains(id) || suffixes.iter().any(|suffix| suffix.matches(id))),
        }
    }
}

/// Proof that a decision was made. Only [`authorize_tcp`] and [`authorize_http`] make one.
#[derive(Clone, Debug, PartialEq)]
pub struct Permit {
    server: Arc<Meta>,
    authorization: Arc<Meta>,
    route: Option<Arc<Meta>>,
    audited: bool,
}

impl Permit {
    pub fn server(&self) -> &Arc<Meta> {
        &self.server
    }
    /// The authorization that allowed it.
    pub fn authorization(&self) -> &Arc<Meta> {
        &self.authorization
    }
    pub fn route(&self) -> Option<&Arc<Meta>> {
        self.route.as_ref()
    }
    /// Allowed only because the policy audits.
    pub fn audited(&self) -> bool {
        self.audited
    }
}

/// Why a caller was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Denied {
    pub server: Arc<Meta>,
    pub route: Option<Arc<Meta>>,
    pub reason: DenyReason,
    /// The authorizations that were tried, in order: what would have to include this caller.
    pub tried: Vec<Arc<Meta>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenyReason {
    /// No authorization includes this caller.
    NoRuleAllows,
    /// An authorization would include any or some identity at this address, and the caller has none.
    NoIdentity,
    /// The port serves HTTP only and the bytes are not.
    NotHttp,
    /// No route matches (404, not 403).
    NoRoute,
}

/// May this connection pass as plain bytes? Loopback callers always may.
pub fn authorize_tcp(policy: &ServerPolicy, caller: &Caller<'_>) -> Result<Permit, Denied> {
    match policy.protocol {
        Protocol::Detect { .. } | Protocol::Opaque | Protocol::Tls => {
            check(policy, None, policy.authorizations.iter(), caller)
        }
        Protocol::Http1(_) | Protocol::Http2(_) | Protocol::Grpc(_) => Err(Denied {
            server: policy.meta.clone(),
            route: None,
            reason: DenyReason::NotHttp,
            tried: Vec::new(),
        }),
    }
}

/// May this request pass, and by which route? Route first, then authorization (the server's and the route's).
pub fn authorize_http<'p>(
    policy: &'p ServerPolicy,
    caller: &Caller<'_>,
    request: &RequestParts<'_>,
) -> Result<(Permit, Option<(&'p Route, &'p Rule)>), Denied> {
    let http = match &policy.protocol {
        Protocol::Detect { http, .. }
        | Protocol::Http1(http)
        | Protocol::Http2(http)
        | Protocol::Grpc(http) => http,
        // HTTP inside an opaque connection is bytes: decided once, as a connection.
        Protocol::Opaque | Protocol::Tls => {
            return authorize_tcp(policy, caller).map(|permit| (permit, None));
        }
    };
    if http.routes.is_empty() {
        return check(policy, None, policy.authorizations.iter(), caller).map(|permit| (permit, None));
    }
    let found = http
        .routes
        .iter()
        .filter_map(|route| {
            let host = HostMatch::best(&route.hosts, request.host)?;
            route.rules.iter().filter_map(|rule| best_match(&rule.matches, request).map(|m| (m, rule))).fold(
                None,
                |best: Option<(RouteSpecificity, &Route, &Rule)>, (m, rule)| {
                    let spec = RouteSpecificity { host, matched: m };
                    match best {
                        Some(b) if b.0 >= spec => Some(b),
                        _ => Some((spec, route, rule)),
                    }
                },
            )
        })
        // The first of equals wins: later ones must be strictly better.
        .fold(None, |best: Option<(RouteSpecificity, &Route, &Rule)>, x| match best {
            Some(b) if b.0 >= x.0 => Some(b),
            _ => Some(x),
        });
    let Some((_, route, rule)) = found else {
        return Err(Denied {
            server: policy.meta.clone(),
            route: None,
            reason: DenyReason::NoRoute,
            tried: Vec::new(),
        });
    };
    let all = policy.authorizations.iter().chain(&route.authorizations);
    check(policy, Some(&route.meta), all, caller).map(|permit| (permit, Some((route, rule))))
}

fn check<'a>(
    policy: &ServerPolicy,
    route: Option<&Arc<Meta>>,
    authorizations: impl Iterator<Item = &'a Authorization> + Clone,
    caller: &Caller<'_>,
) -> Result<Permit, Denied> {
    let permit = |authorization: Arc<Meta>, audited| Permit {
        server: policy.meta.clone(),
        authorization,
        route: route.cloned(),
        audited,
    };
    if caller.addr.is_loopback() {
        return Ok(permit(Arc::new(Meta::default_named("localhost")), false));
    }
    if let Some(found) = authorizations.clone().find(|a| a.allows(caller)) {
        return Ok(permit(found.meta.clone(), false));
    }
    if policy.audit {
        return Ok(permit(Arc::new(Meta::default_named("audit")), true));
    }
    let wants_identity = authorizations
        .clone()
        .any(|a| a.authn != Authn::Unauthenticated && a.networks.iter().any(|n| n.contains(caller.addr)));
    let reason = if caller.tls.client_id().is_none() && wants_identity {
        DenyReason::NoIdentity
    } else {
        DenyReason::NoRuleAllows
    };
    Err(Denied {
        server: policy.meta.clone(),
        route: route.cloned(),
        reason,
        tried: authorizations.map(|a| a.meta.clone()).collect(),
    })
}
