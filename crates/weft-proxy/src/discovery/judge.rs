//! What two answers about one address amount to. Pure.

use std::{net::SocketAddr, sync::Arc, time::Duration};
use weft_fault::{Code, Fault, FaultRecord};
use weft_model::{
    identity::{PeerIdentity, Unknown},
    meta::Meta,
    outbound::{
        Backend, BackendKind, Distribution, Endpoint, EwmaConfig, HttpRoute, HttpRoutes, HttpRule,
        OpaqueRoute, OpaqueRoutes, OutboundPolicy, OutboundProtocol, RouteBackend, Timeouts,
    },
    profile::Profile,
};

/// How far one question has come.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer<T> {
    /// It is not asked: the address is outside the networks for it.
    NotAsked,
    /// No answer yet; the last failure of the way, if any.
    Pending(Option<Arc<FaultRecord>>),
    Known(Arc<T>),
    /// The controller has nothing to say about the address (`NotFound`, `Unimplemented`).
    Absent,
    /// The controller refuses to answer.
    Refused(Arc<FaultRecord>),
}

impl<T> Answer<T> {
    pub(crate) fn fault(&self) -> Option<&Arc<FaultRecord>> {
        match self {
            Answer::Pending(fault) => fault.as_ref(),
            Answer::Refused(fault) => Some(fault),
            Answer::NotAsked | Answer::Known(_) | Answer::Absent => None,
        }
    }
}

/// How long an answer that lacks its other half is held back, so that a lookup that fails for a moment does not send
/// traffic the wrong way.
pub(crate) const HOLD_PENDING: Duration = Duration::from_secs(5);
pub(crate) const HOLD_REFUSED: Duration = Duration::from_millis(1_500);
/// A policy that is refused may be refused for a moment only; then whoever asks is told so at once.
pub(crate) const HOLD_NO_POLICY: Duration = Duration::from_secs(5);
/// The profile of a service adds little to its policy.
pub(crate) const HOLD_SERVICE: Duration = Duration::from_secs(1);

/// The answers together, or why there is none; `Err(None)` while it is better to wait. `waited`: since the address was asked
/// about.
#[allow(clippy::type_complexity)]
pub(crate) fn combine(
    addr: SocketAddr,
    profile: &Answer<Profile>,
    policy: &Answer<OutboundPolicy>,
    in_cluster: bool,
    waited: Duration,
) -> Result<(Option<Arc<Profile>>, OutboundPolicy), Option<Arc<FaultRecord>>> {
    let policy = match policy {
        Answer::Known(policy) => Some(policy),
        Answer::Absent | Answer::NotAsked => None,
        // There may be a rule that forbids: nothing stands in for it.
        Answer::Refused(why) if waited >= HOLD_NO_POLICY => {
            let refused = Fault::new(super::refused(why)).because(why.as_cause());
            return Err(Some(Arc::new(refused.about(addr).record())));
        }
        Answer::Pending(_) | Answer::Refused(_) => return Err(None),
    };
    let bare = policy.is_none_or(|policy| forwards_bare(policy, addr));
    let hold = match profile {
        Answer::Known(_) | Answer::Absent | Answer::NotAsked => Duration::ZERO,
        _ if !bare || !in_cluster => HOLD_SERVICE,
        Answer::Pending(_) => HOLD_PENDING,
        Answer::Refused(_) => HOLD_REFUSED,
    };
    if waited < hold {
        return Err(None);
    }
    let known = match profile {
        Answer::Known(profile) => Some(profile),
        _ => None,
    };
    let endpoint = known.and_then(|profile| profile.endpoint.clone());
    let combined = match policy {
        // A policy hides what the profile knows of the very endpoint it forwards to: put together, nothing is lost.
        Some(policy) if bare => map_endpoints(policy, &|own| match &endpoint {
            Some(endpoint) if endpoint.addr == own.addr && own.identity.id().is_none() => endpoint.clone(),
            _ => with_reason(own, profile),
        }),
        Some(policy) => OutboundPolicy::clone(policy),
        None => match endpoint {
            Some(endpoint) => forward("endpoint", endpoint),
            None => {
                let bare = Endpoint::bare(addr, PeerIdentity::Unknown(Unknown::Unmarked));
                forward("fallback", with_reason(&Arc::new(bare), profile))
            }
        },
    };
    Ok((known.cloned(), combined))
}

/// The answers about a name, or why there is nothing behind it; `Err(None)` while it is better to wait.
///
/// Nothing is guessed for a name: without a profile it does not exist, and without a policy its profile has to say where
/// it leads.
#[allow(clippy::type_complexity)]
pub(crate) fn combine_named(
    port: u16,
    profile: &Answer<Profile>,
    policy: &Answer<OutboundPolicy>,
) -> Result<(Option<Arc<Profile>>, OutboundPolicy), Option<Arc<FaultRecord>>> {
    let refused = |code, cause: Option<&Arc<FaultRecord>>| {
        let fault = Fault::new(code);
        let fault = match cause {
            Some(cause) => fault.because(cause.as_cause()),
            None => fault,
        };
        Err(Some(Arc::new(fault.record())))
    };
    let profile = match profile {
        Answer::Known(profile) => profile,
        Answer::Pending(_) => return Err(None),
        Answer::Absent | Answer::NotAsked => return refused(Code::NameNotKnown, None),
        Answer::Refused(why) => return refused(super::refused(why), Some(why)),
    };
    let combined = match (policy, &profile.endpoint, &profile.fully_qualified_name) {
        (Answer::Known(policy), ..) => OutboundPolicy::clone(policy),
        // There may be a rule that forbids: nothing stands in for it.
        (Answer::Pending(_), ..) => return Err(None),
        (Answer::Refused(why), ..) => return refused(super::refused(why), Some(why)),
        (Answer::Absent | Answer::NotAsked, Some(endpoint), _) => forward("endpoint", endpoint.clone()),
        (Answer::Absent | Answer::NotAsked, None, Some(name)) => {
            let kind = BackendKind::Balance { path: format!("{name}:{port}"), ewma: EwmaConfig::DEFAULT };
            everything("service", kind)
        }
        (Answer::Absent | Answer::NotAsked, None, None) => return refused(Code::ServiceUnknown, None),
    };
    Ok((Some(profile.clone()), combined))
}

/// An identity that is missing because the question failed is another matter than one that the answer left out.
fn with_reason(endpoint: &Arc<Endpoint>, profile: &Answer<Profile>) -> Arc<Endpoint> {
    let reason = match profile {
        Answer::Refused(_) => Unknown::LookupFailed,
        Answer::Pending(_) => Unknown::Unanswered,
        Answer::Known(_) | Answer::Absent | Answer::NotAsked => return endpoint.clone(),
    };
    if endpoint.identity != PeerIdentity::Unknown(Unknown::Unmarked) {
        return endpoint.clone();
    }
    Arc::new(Endpoint { identity: PeerIdentity::Unknown(reason), ..Endpoint::clone(endpoint) })
}

/// Whether a policy only forwards to the address itself and does not say who is there.
fn forwards_bare(policy: &OutboundPolicy, addr: SocketAddr) -> bool {
    let mut bare = false;
    each_endpoint(policy, &mut |endpoint| bare |= endpoint.addr == addr && endpoint.identity.id().is_none());
    bare
}

/// Everything to one endpoint, whatever the protocol.
pub(crate) fn forward(name: &str, endpoint: Arc<Endpoint>) -> OutboundPolicy {
    everything(name, BackendKind::Forward(endpoint))
}

/// Everything to one backend.
fn everything(name: &str, kind: BackendKind) -> OutboundPolicy {
    let meta = Arc::new(Meta::default_named(name));
    let backends = Distribution::FirstAvailable(vec![RouteBackend {
        backend: Backend { meta: meta.clone(), kind },
        filters: Vec::new(),
    }]);
    let http = HttpRoutes {
        routes: vec![HttpRoute {
            meta: meta.clone(),
            hosts: Vec::new(),
            rules: vec![HttpRule {
                matches: Vec::new(),
                filters: Vec::new(),
                backends: backends.clone(),
                timeouts: Timeouts::default(),
                retry: None,
                allow_request_headers: false,
            }],
        }],
        accrual: None,
    };
    let opaque = OpaqueRoutes {
        routes: vec![OpaqueRoute { meta: meta.clone(), hosts: Vec::new(), backends, refuses: None }],
    };
    OutboundPolicy {
        meta,
        protocol: OutboundProtocol::Detect {
            timeout: Duration::from_secs(10),
            http1: http.clone(),
            http2: http,
            opaque,
        },
    }
}

/// Sees every endpoint that a policy names itself.
pub(crate) fn each_endpoint(policy: &OutboundPolicy, see: &mut dyn FnMut(&Arc<Endpoint>)) {
    let mut backends = |distribution: &Distribution| {
        let mut one = |backend: &RouteBackend| {
            if let BackendKind::Forward(endpoint) = &backend.backend.kind {
                see(endpoint);
            }
        };
        match distribution {
            Distribution::Empty => {}
            Distribution::FirstAvailable(all) => all.iter().for_each(one),
            Distribution::RandomAvailable(all) => all.iter().for_each(|(backend, _)| one(backend)),
        }
    };
    let (http, opaque) = routes(&policy.protocol);
    for routes in http {
        routes.routes.iter().flat_map(|route| &route.rules).for_each(|rule| backends(&rule.backends));
    }
    for routes in opaque {
        routes.routes.iter().for_each(|route| backends(&route.backends));
    }
}

fn routes(protocol: &OutboundProtocol) -> (Vec<&HttpRoutes>, Vec<&OpaqueRoutes>) {
    match protocol {
        OutboundProtocol::Detect { http1, http2, opaque, .. } => (vec![http1, http2], vec![opaque]),
        OutboundProtocol::Http1(http) | OutboundProtocol::Http2(http) | OutboundProtocol::Grpc(http) => {
            (vec![http], vec![])
        }
        OutboundProtocol::Opaque(opaque) | OutboundProtocol::Tls(opaque) => (vec![], vec![opaque]),
    }
}

/// The policy with each endpoint that it names replaced.
pub(crate) fn map_endpoints(
    policy: &OutboundPolicy,
    with: &dyn Fn(&Arc<Endpoint>) -> Arc<Endpoint>,
) -> OutboundPolicy {
    let mut policy = policy.clone();
    let backends = |distribution: &mut Distribution| {
        let one = |backend: &mut RouteBackend| {
            if let BackendKind::Forward(endpoint) = &mut backend.backend.kind {
                *endpoint = with(endpoint);
            }
        };
        match distribution {
            Distribution::Empty => {}
            Distribution::FirstAvailable(all) => all.iter_mut().for_each(one),
            Distribution::RandomAvailable(all) => all.iter_mut().for_each(|(backend, _)| one(backend)),
        }
    };
    let http = |routes: &mut HttpRoutes| {
        let rules = routes.routes.iter_mut().flat_map(|route| &mut route.rules);
        rules.for_each(|rule| backends(&mut rule.backends));
    };
    let opaque =
        |routes: &mut OpaqueRoutes| routes.routes.iter_mut().for_each(|route| backends(&mut route.backends));
    match &mut policy.protocol {
        OutboundProtocol::Detect { http1, http2, opaque: other, .. } => {
            http(http1);
            http(http2);
            opaque(other);
        }
        OutboundProtocol::Http1(routes)
        | OutboundProtocol::Http2(routes)
        | OutboundProtocol::Grpc(routes) => {
            http(routes);
        }
        OutboundProtocol::Opaque(routes) | OutboundProtocol::Tls(routes) => opaque(routes),
    }
    policy
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_fault::{Code, Fault};
    use weft_model::identity::Identity;

    const LATER: Duration = Duration::from_secs(60);

    fn addr() -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 80))
    }
    fn endpoint(meshed: bool) -> Arc<Endpoint> {
        let id = Identity::parse("a.b").unwrap();
        Arc::new(Endpoint::bare(
            addr(),
            if meshed {
                PeerIdentity::Meshed { id: id.clone(), server_name: id }
            } else {
                PeerIdentity::Unknown(Unknown::Unmarked)
            },
        ))
    }
    fn profile(meshed: bool) -> Answer<Profile> {
        Answer::Known(Arc::new(Profile { endpoint: Some(endpoint(meshed)), ..Profile::default() }))
    }
    fn refused<T>() -> Answer<T> {
        Answer::Refused(Arc::new(Fault::new(Code::ControllerRefused).record()))
    }
    type Combined = Result<(Option<Arc<Profile>>, OutboundPolicy), Option<Arc<FaultRecord>>>;

    fn identity(answer: Combined) -> Option<PeerIdentity> {
        let (_, policy) = answer.ok()?;
        let mut found = Vec::new();
        each_endpoint(&policy, &mut |endpoint| found.push(endpoint.identity.clone()));
        found.dedup();
        assert_eq!(found.len(), 1);
        found.pop()
    }

    #[test]
    fn answers_are_put_together() {
        let unmarked = Some(PeerIdentity::Unknown(Unknown::Unmarked));
        let failed = Some(PeerIdentity::Unknown(Unknown::LookupFailed));
        let unanswered = Some(PeerIdentity::Unknown(Unknown::Unanswered));
        let meshed = Some(endpoint(true).identity.clone());
        let egress = Answer::Known(Arc::new(forward("egress-fallback", endpoint(false))));
        let absent = Answer::Absent;
        let table = [
            // profile, policy, at once, later
            (profile(true), &absent, meshed.clone(), meshed.clone()),
            (profile(false), &absent, unmarked.clone(), unmarked.clone()),
            (Answer::NotAsked, &absent, unmarked.clone(), unmarked.clone()),
            (Answer::Pending(None), &absent, None, unanswered.clone()),
            (refused(), &absent, None, failed.clone()),
            // The policy's own forward is completed by the profile, not the other way round.
            (profile(true), &egress, meshed.clone(), meshed.clone()),
            (profile(false), &egress, unmarked.clone(), unmarked.clone()),
            (refused(), &egress, None, failed),
            (Answer::Pending(None), &egress, None, unanswered),
            // A policy that is not known is not replaced by a guess, however long it takes.
            (profile(true), &Answer::Pending(None), None, None),
            (profile(true), &refused(), None, None),
        ];
        for (at, (profile, policy, at_once, later)) in table.into_iter().enumerate() {
            assert_eq!(
                identity(combine(addr(), &profile, policy, true, Duration::ZERO)),
                at_once,
                "row {at}"
            );
            assert_eq!(identity(combine(addr(), &profile, policy, true, LATER)), later, "row {at}, later");
        }
        // Nor is it waited for without end: whoever refuses is named.
        let why = |waited| combine(addr(), &profile(true), &refused(), true, waited).unwrap_err();
        assert_eq!(why(Duration::ZERO), None);
        assert_eq!(why(LATER).unwrap().code, Code::DiscoveryRefused.id());
        assert_eq!(combine(addr(), &profile(true), &Answer::Pending(None), true, LATER).unwrap_err(), None);
    }

    #[test]
    fn a_name_that_nobody_knows_is_another_matter_than_one_that_is_refused() {
        let named = |profile: &Answer<Profile>| {
            let refused = combine_named(80, profile, &Answer::Absent).unwrap_err();
            refused.expect("decided").code.clone()
        };
        assert_eq!(named(&Answer::Absent), Code::NameNotKnown.id());
        assert_eq!(named(&refused()), Code::DiscoveryRefused.id());
        let unready = Arc::new(Fault::new(Code::ControllerUnready).record());
        assert_eq!(named(&Answer::Refused(unready.clone())), Code::DiscoveryUnready.id());
        // An address's policy is refused in the same words.
        let addressed = combine(addr(), &Answer::Absent, &Answer::Refused(unready), true, LATER).unwrap_err();
        assert_eq!(addressed.expect("decided").code, Code::DiscoveryUnready.id());
    }
}
