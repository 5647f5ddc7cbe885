//! What the policies decide about one caller, with everything that an explanation needs. Made by the functions that
//! proxies decide with.

use super::{beside::WorkloadName, inbound::InboundOf};
use crate::{
    config::ControllerConfig,
    index::{reader::Reader, registry::Subject},
};
use std::net::IpAddr;
use weft_fault::Code;
use weft_kube::meta::ObjectName;
use weft_model::{
    http::RequestParts,
    identity::{ClientTls, Identity, NoTls},
    inbound::{
        Authn, Authorization, Caller, Denied, DenyReason, Permit, Protocol, ServerPolicy, authorize_http,
        authorize_tcp,
    },
    meta::Meta,
};
use weft_wire::record::{Accepts, Decision};

/// A connection or request that somebody asks about.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub workload: WorkloadName,
    pub port: u16,
    pub client_ip: IpAddr,
    pub client_id: Option<Identity>,
    /// `None` asks about a connection, as for opaque traffic.
    pub request: Option<AttemptedRequest>,
}

#[derive(Clone, Debug)]
pub struct AttemptedRequest {
    pub method: String,
    pub path: String,
    pub host: String,
}

/// `None` for a workload that is not there.
pub fn decide(reader: &Reader<'_>, config: &ControllerConfig, attempt: &Attempt) -> Option<Decision> {
    let subject = InboundOf { workload: attempt.workload.clone(), port: attempt.port };
    let policy = subject.compute(reader, config)?;
    let tls = match &attempt.client_id {
        Some(id) => ClientTls::Terminated(Some(id.clone())),
        None => ClientTls::None(NoTls::NoTlsFromRemote),
    };
    let caller = Caller { addr: attempt.client_ip, tls: &tls };
    let no_headers: Vec<(String, String)> = Vec::new();
    let outcome = match &attempt.request {
        Some(request) => {
            let (path, query) = match request.path.split_once('?') {
                Some((path, query)) => (path, Some(query)),
                None => (request.path.as_str(), None),
            };
            let parts = RequestParts {
                method: &request.method,
                host: &request.host,
                path,
                query,
                headers: &no_headers,
            };
            authorize_http(&policy, &caller, &parts).map(|(permit, _)| permit)
        }
        None => authorize_tcp(&any_request(&policy), &caller),
    };
    Some(decision(attempt.workload.object(), &policy, outcome))
}

/// The port as if it were one route that everybody may take who may take any: whoever is refused by it gets nowhere.
fn any_request(policy: &ServerPolicy) -> ServerPolicy {
    ServerPolicy {
        protocol: Protocol::Opaque,
        authorizations: in_force(policy, None).cloned().collect(),
        ..policy.clone()
    }
}

fn decision(workload: &ObjectName, policy: &ServerPolicy, outcome: Result<Permit, Denied>) -> Decision {
    let (permit, denied) = match outcome {
        Ok(permit) => (Some(permit), None),
        Err(denied) => (None, Some(denied)),
    };
    let route =
        permit.as_ref().and_then(|p| p.route().cloned()).or(denied.as_ref().and_then(|d| d.route.clone()));
    Decision {
        pod: workload.to_string(),
        allowed: permit.is_some(),
        audited: permit.as_ref().is_some_and(Permit::audited),
        server: policy.meta.to_string(),
        authorization: permit.as_ref().map(|p| p.authorization().to_string()),
        code: denied.map(|d| code(policy, &d).id().to_owned()),
        authorizations: in_force(policy, route.as_deref()).map(accepts).collect(),
        route: route.map(|r| r.to_string()),
    }
}

/// The code with which a proxy refuses.
fn code(policy: &ServerPolicy, denied: &Denied) -> Code {
    match denied.reason {
        DenyReason::NotHttp => Code::TcpNotHttpRoute,
        DenyReason::NoRoute => Code::NoRouteMatches,
        DenyReason::Unreadable => Code::PolicyInvalid,
        DenyReason::NoIdentity => Code::PlaintextRefused,
        DenyReason::NoRuleAllows if matches!(*policy.meta, Meta::Default(_)) && denied.tried.is_empty() => {
            Code::DefaultDenied
        }
        DenyReason::NoRuleAllows => Code::NoRuleAllows,
    }
}

/// The server's authorizations and those of the route taken; without one, those of every route.
fn in_force<'p>(policy: &'p ServerPolicy, route: Option<&Meta>) -> impl Iterator<Item = &'p Authorization> {
    let routes = match &policy.protocol {
        Protocol::Detect { http, .. }
        | Protocol::Http1(http)
        | Protocol::Http2(http)
        | Protocol::Grpc(http) => http.routes.as_slice(),
        Protocol::Opaque | Protocol::Tls | Protocol::Unreadable(_) => &[],
    };
    let route = route.cloned();
    policy.authorizations.iter().chain(
        routes
            .iter()
            .filter(move |r| route.as_ref().is_none_or(|taken| *taken == *r.meta))
            .flat_map(|r| &r.authorizations),
    )
}

/// Whom an authorization lets in, in words.
pub fn accepts(authorization: &Authorization) -> Accepts {
    Accepts {
        name: authorization.meta.to_string(),
        networks: authorization
            .networks
            .iter()
            .map(|network| {
                let except: Vec<String> = network.except.iter().map(ToString::to_string).collect();
                match except.is_empty() {
                    true => network.net.to_string(),
                    false => format!("{} except {}", network.net, except.join(" ")),
                }
            })
            .collect(),
        clients: match &authorization.authn {
            Authn::Unauthenticated => vec!["any".to_owned()],
            Authn::AnyTls => vec!["any mesh TLS".to_owned()],
            Authn::Identities { exact, suffixes } => exact
                .iter()
                .map(ToString::to_string)
                .chain(suffixes.iter().map(|s| match s.0.is_empty() {
                    true => "any mesh identity".to_owned(),
                    false => format!("*.{}", s.0),
                }))
                .collect(),
        },
    }
}
