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
    Detect {
        timeout: Duration,
        http: HttpPolicy,
    },
    Http1(HttpPolicy),
    Http2(HttpPolicy),
    Grpc(HttpPolicy),
    Opaque,
    Tls,
    /// What the controller sent cannot be read, and why: nothing passes, and HTTP is told so.
    Unreadable(Arc<str>),
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

/// The route and rule that a request takes.
#[derive(Clone, Copy, Debug)]
pub struct Matched<'p> {
    pub route: &'p Route,
    pub rule: &'p Rule,
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

/// The name under which what is only audited is let pass.
pub const AUDIT: &str = "audit";

impl Authorization {
    /// Linkerd's controllers say by an authorization of this name that the policy only audits, and where.
    pub fn audits(&self) -> bool {
        self.authn == Authn::Unauthenticated && matches!(&*self.meta, Meta::Default(name) if name == AUDIT)
    }

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
    audited: Option<DenyReason>,
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
    /// By the route that a controller adds for the pod's probes, whatever policies say.
    pub fn is_by_probe_route(&self) -> bool {
        matches!(self.route.as_deref(), Some(Meta::Default(name)) if name == "probe")
    }
    /// Allowed only because the policy audits.
    pub fn audited(&self) -> bool {
        self.audited.is_some()
    }
    /// Why it would have been denied, where it was allowed only because the policy audits.
    pub fn would_deny(&self) -> Option<DenyReason> {
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
    /// The policy cannot be read.
    Unreadable,
}

impl DenyReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            DenyReason::NoRuleAllows => "no rule allows it",
            DenyReason::NoIdentity => "the rules require an identity and it has none",
            DenyReason::NotHttp => "the port serves HTTP only",
            DenyReason::NoRoute => "no route matches",
            DenyReason::Unreadable => "the policy cannot be read",
        }
    }
}

/// May this connection pass as plain bytes? Loopback callers always may.
pub fn authorize_tcp(policy: &ServerPolicy, caller: &Caller<'_>) -> Result<Permit, Denied> {
    match policy.protocol {
        Protocol::Detect { .. } | Protocol::Opaque | Protocol::Tls => {
            check(policy, None, policy.authorizations.iter(), caller)
        }
        Protocol::Http1(_) | Protocol::Http2(_) | Protocol::Grpc(_) => {
            Err(untried(policy, DenyReason::NotHttp))
        }
        Protocol::Unreadable(_) => unreadable(policy, caller),
    }
}

fn untried(policy: &ServerPolicy, reason: DenyReason) -> Denied {
    Denied { server: policy.meta.clone(), route: None, reason, tried: Vec::new() }
}

/// Not even an audit lets pass what nobody can read; the pod itself needs no policy.
fn unreadable(policy: &ServerPolicy, caller: &Caller<'_>) -> Result<Permit, Denied> {
    if caller.addr.is_loopback() {
        return check(policy, None, [].iter(), caller);
    }
    Err(untried(policy, DenyReason::Unreadable))
}

/// Would what `permit` allowed to begin still be allowed to `caller`? For what is under way when a policy changes. A route
/// that is gone leaves the server's own authorizations: which route would be taken now is the next request's matter.
pub fn still_allowed(policy: &ServerPolicy, permit: &Permit, caller: &Caller<'_>) -> Result<(), Denied> {
    let http = match &policy.protocol {
        Protocol::Detect { http, .. }
        | Protocol::Http1(http)
        | Protocol::Http2(http)
        | Protocol::Grpc(http) => http,
        Protocol::Opaque | Protocol::Tls => return authorize_tcp(policy, caller).map(drop),
        Protocol::Unreadable(_) => return unreadable(policy, caller).map(drop),
    };
    let route = permit.route().and_then(|meta| http.routes.iter().find(|route| route.meta == *meta));
    let own = route.map_or(&[][..], |route| &route.authorizations);
    check(policy, permit.route(), policy.authorizations.iter().chain(own), caller).map(drop)
}

/// May this request pass, and by which route? Route first, then authorization (the server's and the route's).
pub fn authorize_http<'p>(
    policy: &'p ServerPolicy,
    caller: &Caller<'_>,
    request: &RequestParts<'_>,
) -> Result<(Permit, Option<Matched<'p>>), Denied> {
    let http = match &policy.protocol {
        Protocol::Detect { http, .. }
        | Protocol::Http1(http)
        | Protocol::Http2(http)
        | Protocol::Grpc(http) => http,
        // HTTP inside an opaque connection is bytes: decided once, as a connection.
        Protocol::Opaque | Protocol::Tls => {
            return authorize_tcp(policy, caller).map(|permit| (permit, None));
        }
        Protocol::Unreadable(_) => return unreadable(policy, caller).map(|permit| (permit, None)),
    };
    if http.routes.is_empty() {
        return check(policy, None, policy.authorizations.iter(), caller).map(|permit| (permit, None));
    }
    let mut best: Option<(RouteSpecificity, Matched<'_>)> = None;
    for route in &http.routes {
        let Some(host) = HostMatch::best(&route.hosts, request.host) else { continue };
        for rule in &route.rules {
            let Some(matched) = best_match(&rule.matches, request) else { continue };
            let fits = RouteSpecificity { host, matched };
            // The first of equals wins.
            if best.as_ref().is_none_or(|(spec, _)| fits > *spec) {
                best = Some((fits, Matched { route, rule }));
            }
        }
    }
    let Some((_, matched)) = best else {
        return Err(untried(policy, DenyReason::NoRoute));
    };
    let all = policy.authorizations.iter().chain(&matched.route.authorizations);
    check(policy, Some(&matched.route.meta), all, caller).map(|permit| (permit, Some(matched)))
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
        return Ok(permit(Arc::new(Meta::default_named("localhost")), None));
    }
    // What is only audited counts last, wherever it stands.
    if let Some(found) = authorizations.clone().find(|a| !a.audits() && a.allows(caller)) {
        return Ok(permit(found.meta.clone(), None));
    }
    let wants_identity = authorizations
        .clone()
        .any(|a| a.authn != Authn::Unauthenticated && a.networks.iter().any(|n| n.contains(caller.addr)));
    let reason = if caller.tls.client_id().is_none() && wants_identity {
        DenyReason::NoIdentity
    } else {
        DenyReason::NoRuleAllows
    };
    if policy.audit || authorizations.clone().any(|a| a.audits() && a.allows(caller)) {
        return Ok(permit(Arc::new(Meta::default_named(AUDIT)), Some(reason)));
    }
    Err(Denied {
        server: policy.meta.clone(),
        route: route.cloned(),
        reason,
        tried: authorizations.map(|a| a.meta.clone()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http::{Headers, PathMatch},
        identity::NoTls,
    };

    fn meta(name: &str) -> Arc<Meta> {
        Arc::new(Meta::default_named(name))
    }

    fn authorization(name: &str, net: &str, authn: Authn) -> Authorization {
        let network = Network {
            net: net.parse().expect("a network"),
            except: vec!["10.9.0.0/16".parse().expect("a network")],
        };
        Authorization { meta: meta(name), networks: vec![network], authn }
    }

    fn identities(exact: &[&str], suffixes: &[&str]) -> Authn {
        Authn::Identities {
            exact: exact.iter().map(|id| Identity::parse(id).expect("an identity")).collect(),
            suffixes: suffixes.iter().map(|s| Suffix((*s).to_string())).collect(),
        }
    }

    fn policy(protocol: Protocol, authorizations: Vec<Authorization>) -> ServerPolicy {
        ServerPolicy { meta: meta("server"), protocol, authorizations, audit: false }
    }

    fn meshed(id: &str) -> ClientTls {
        ClientTls::Terminated(Some(Identity::parse(id).expect("an identity")))
    }

    const PLAIN: ClientTls = ClientTls::None(NoTls::NoTlsFromRemote);

    fn tcp(policy: &ServerPolicy, addr: &str, tls: &ClientTls) -> String {
        let caller = Caller { addr: addr.parse().expect("an address"), tls };
        match authorize_tcp(policy, &caller) {
            Ok(permit) => {
                format!("{}{}", permit.authorization(), if permit.audited() { " (audited)" } else { "" })
            }
            Err(denied) => format!("{:?}", denied.reason),
        }
    }

    #[test]
    fn network_and_identity_must_both_fit() {
        let p = policy(
            Protocol::Opaque,
            vec![authorization("a", "10.0.0.0/8", identities(&["web.shop"], &["ns.example"]))],
        );
        assert_eq!(tcp(&p, "10.1.0.1", &meshed("web.shop")), "default/a");
        assert_eq!(tcp(&p, "10.1.0.1", &meshed("x.ns.example")), "default/a");
        assert_eq!(tcp(&p, "10.1.0.1", &meshed("xns.example")), "NoRuleAllows");
        assert_eq!(tcp(&p, "10.9.0.1", &meshed("web.shop")), "NoRuleAllows");
        assert_eq!(tcp(&p, "192.0.2.1", &PLAIN), "NoRuleAllows");
        assert_eq!(tcp(&p, "10.1.0.1", &PLAIN), "NoIdentity");
        assert_eq!(tcp(&p, "127.0.0.1", &PLAIN), "default/localhost");
    }

    #[test]
    fn mesh_tls_needs_tls_but_no_certificate() {
        let p = policy(Protocol::Opaque, vec![authorization("tls", "0.0.0.0/0", Authn::AnyTls)]);
        assert_eq!(tcp(&p, "10.1.0.1", &ClientTls::Terminated(None)), "default/tls");
        assert_eq!(tcp(&p, "10.1.0.1", &ClientTls::Passthrough { sni: "x".into() }), "NoIdentity");
    }

    #[test]
    fn audit_allows_and_says_so() {
        let p = ServerPolicy { audit: true, ..policy(Protocol::Opaque, vec![]) };
        assert_eq!(tcp(&p, "10.1.0.1", &PLAIN), "default/audit (audited)");
        let named = authorization("web", "0.0.0.0/0", identities(&["web.shop"], &[]));
        let p = ServerPolicy { authorizations: vec![named], ..p };
        let would = |tls: &ClientTls| {
            let caller = Caller { addr: "10.1.0.1".parse().expect("an address"), tls };
            authorize_tcp(&p, &caller).expect("audits").would_deny()
        };
        assert_eq!(would(&PLAIN), Some(DenyReason::NoIdentity));
        assert_eq!(would(&meshed("other.shop")), Some(DenyReason::NoRuleAllows));
        assert_eq!(would(&meshed("web.shop")), None);
    }

    #[test]
    fn an_audit_that_names_networks_holds_there_only() {
        let named = authorization("web", "0.0.0.0/0", identities(&["web.shop"], &[]));
        let audit = authorization("audit", "10.1.0.0/16", Authn::Unauthenticated);
        // Whatever the order: what a rule allows is not audited.
        let p = policy(Protocol::Opaque, vec![audit, named]);
        assert_eq!(tcp(&p, "10.1.0.1", &PLAIN), "default/audit (audited)");
        assert_eq!(tcp(&p, "10.1.0.1", &meshed("web.shop")), "default/web");
        assert_eq!(tcp(&p, "10.2.0.1", &PLAIN), "NoIdentity");
        assert_eq!(tcp(&p, "10.2.0.1", &meshed("other.shop")), "NoRuleAllows");
    }

    #[test]
    fn what_cannot_be_read_lets_nobody_in() {
        let everyone = vec![authorization("all", "0.0.0.0/0", Authn::Unauthenticated)];
        let unreadable = Protocol::Unreadable("server.protocol: missing".into());
        let p = ServerPolicy { audit: true, ..policy(unreadable, everyone) };
        assert_eq!(tcp(&p, "10.1.0.1", &meshed("web.shop")), "Unreadable");
        assert_eq!(tcp(&p, "127.0.0.1", &PLAIN), "default/localhost");
        let none: Vec<(String, String)> = vec![];
        let request = RequestParts { method: "GET", host: "h", path: "/", query: None, headers: &none };
        let caller = Caller { addr: "10.1.0.1".parse().expect("an address"), tls: &PLAIN };
        let denied = authorize_http(&p, &caller, &request).expect_err("nobody");
        assert_eq!(denied.reason, DenyReason::Unreadable);
    }

    #[test]
    fn what_is_under_way_outlives_changes_that_still_allow_it() {
        let route = |authorizations| Route {
            meta: meta("route"),
            hosts: vec![],
            authorizations,
            rules: vec![Rule { matches: vec![], filters: vec![] }],
        };
        let http = |routes| Protocol::Http1(HttpPolicy { routes, rate_limit: None });
        let web = || authorization("web", "0.0.0.0/0", identities(&["web.shop"], &[]));
        let all = || authorization("all", "0.0.0.0/0", Authn::Unauthenticated);
        let none: Vec<(String, String)> = vec![];
        let request = RequestParts { method: "GET", host: "h", path: "/", query: None, headers: &none };
        let tls = meshed("web.shop");
        let caller = Caller { addr: "10.1.0.1".parse().expect("an address"), tls: &tls };
        let before = policy(http(vec![route(vec![web()])]), vec![]);
        let (permit, _) = authorize_http(&before, &caller, &request).expect("the route allows it");
        for (now, allowed) in [
            (policy(http(vec![route(vec![web()])]), vec![]), true),
            (policy(http(vec![route(vec![])]), vec![]), false),
            (policy(http(vec![route(vec![])]), vec![all()]), true),
            (policy(http(vec![]), vec![]), false),
            (policy(http(vec![]), vec![web()]), true),
            (policy(Protocol::Opaque, vec![]), false),
            (policy(Protocol::Unreadable("x".into()), vec![all()]), false),
        ] {
            assert_eq!(still_allowed(&now, &permit, &caller).is_ok(), allowed, "{now:?}");
        }
    }

    #[test]
    fn http_ports_refuse_other_bytes_but_opaque_ports_carry_http() {
        let everyone = || vec![authorization("all", "0.0.0.0/0", Authn::Unauthenticated)];
        assert_eq!(
            tcp(&policy(Protocol::Http1(HttpPolicy::default()), everyone()), "10.1.0.1", &PLAIN),
            "NotHttp"
        );
        let none: Vec<(String, String)> = vec![];
        let request = RequestParts { method: "GET", host: "h", path: "/", query: None, headers: &none };
        let caller = Caller { addr: "10.1.0.1".parse().expect("an address"), tls: &PLAIN };
        assert!(authorize_http(&policy(Protocol::Opaque, everyone()), &caller, &request).is_ok());
    }

    #[test]
    fn a_route_adds_its_own_authorizations_and_no_route_is_not_a_denial() {
        let route = |path: &str, authorizations| Route {
            meta: meta(path),
            hosts: vec![],
            authorizations,
            rules: vec![Rule {
                matches: vec![HttpMatch {
                    path: Some(PathMatch::Prefix(path.into())),
                    ..HttpMatch::default()
                }],
                filters: vec![],
            }],
        };
        let open = authorization("probe", "0.0.0.0/0", Authn::Unauthenticated);
        let http = HttpPolicy {
            routes: vec![route("/api", vec![]), route("/healthz", vec![open])],
            rate_limit: None,
        };
        let p = policy(
            Protocol::Http1(http),
            vec![authorization("web", "0.0.0.0/0", identities(&["web.shop"], &[]))],
        );
        let none: Vec<(String, String)> = vec![];
        let ask = |path, tls: &ClientTls| {
            let request =
                RequestParts { method: "GET", host: "h", path, query: None, headers: &none as &dyn Headers };
            let caller = Caller { addr: "10.1.0.1".parse().expect("an address"), tls };
            match authorize_http(&p, &caller, &request) {
                Ok((permit, _)) => permit.authorization().to_string(),
                Err(denied) => format!("{:?} {}", denied.reason, denied.tried.len()),
            }
        };
        assert_eq!(ask("/api/x", &meshed("web.shop")), "default/web");
        assert_eq!(ask("/api/x", &meshed("other.shop")), "NoRuleAllows 1");
        assert_eq!(ask("/healthz", &PLAIN), "default/probe");
        assert_eq!(ask("/else", &meshed("web.shop")), "NoRoute 0");
    }
}
