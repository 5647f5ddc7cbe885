//! Sending a request to an endpoint that takes it.

use super::{Answer, NoAnswer, REACHED, Requests, TRIES, Way, ask::Kind, retry, words};
use crate::{
    http::{
        body::Body,
        headers, orig_proto,
        pool::{self, Answered, Carriage, Failed},
    },
    metrics::{Balanced, Flavour, exchange::Attempt},
    outbound::{endpoint::Member, load::Load},
    report,
};
use http::{HeaderMap, HeaderValue, Request, Uri, Version, header};
use std::{rc::Rc, sync::Arc};
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    identity::Identity,
    outbound::{BackendKind, Endpoint},
};

impl Requests {
    /// Sends the request to one endpoint after another, as long as it is certain that none has begun with it.
    pub(super) async fn send(&self, request: Request<Body>, way: &Way<'_>) -> Result<Answer, NoAnswer> {
        let counted = way.counted;
        let attempt = Attempt::new(&counted.backend, counted.flavour == Flavour::Grpc, way.sent.clone());
        match self.send_to_one(request, way).await {
            Ok((answered, load, member)) => {
                let Answered { response, lease, .. } = answered;
                Ok(Answer { response, lease, load, member, attempt })
            }
            Err(none) => {
                attempt.fail(none.route_error());
                Err(none)
            }
        }
    }

    async fn send_to_one(
        &self,
        mut request: Request<Body>,
        way: &Way<'_>,
    ) -> Result<(Answered, Load, Rc<Member>), NoAnswer> {
        let Way { kind, backend, strict, accrual, .. } = *way;
        let connection = &self.connection;
        let limit = connection.worker.mesh.config.outbound.failfast_timeout;
        let fixed = matches!(backend.backend.kind, BackendKind::Forward(_));
        let mut tried: Vec<Rc<Member>> = Vec::new();
        let mut last: Option<Fault> = None;
        let mut stalls = 0;
        let mut known: Option<Arc<Endpoint>> = None;
        while tried.len() < TRIES {
            let member = match &known {
                Some(endpoint) if fixed => connection.worker.forward(endpoint, strict),
                _ => match connection.member(backend, strict, &tried, limit, Balanced::Http).await {
                    Ok(member) => member,
                    // Others were tried before: the count of them says more than "none is left".
                    Err(fault) if last.is_none() => return Err(fault.into()),
                    Err(_) => break,
                },
            };
            self.check_identity(&member, kind)?;
            let first = self.tell(&member);
            if let (true, BackendKind::Balance { path, .. }) = (first, &backend.backend.kind) {
                connection.story.concrete(path);
            }
            let load = member.load(Balanced::Http, accrual);
            // Only a peer that may be meshed, for all that is known, can ask to be spoken to otherwise.
            let again =
                known.is_none() && member.may_refuse_plaintext() && retry::is_repeatable(&request, kind);
            let again = again.then(|| pool::copy_of(&request));
            way.waits.begin(&member, accrual);
            let sent = self.send_to(&member, request, way, first).await;
            way.waits.end();
            let sent = sent.inspect_err(|none| {
                if is_the_endpoints(none) {
                    load.lost();
                }
            });
            let fault = match sent? {
                Ok(mut answered) => {
                    let (status, head, made) =
                        (answered.response.status(), answered.response.headers(), answered.made.take());
                    load.answered(&connection.worker, made.is_some(), status, head);
                    if let (true, Ok(pool)) = (first && self.reaches(&member), &member.pool) {
                        pool.tell(&connection.story, made);
                    }
                    if let Some(again) = again
                        && let Some(refusal) = words::refuses_plaintext(&answered.response, &member)
                    {
                        known = self.identity_after_refusal(backend, &member, refusal).await;
                        if known.is_some() {
                            let text = "the peer refused plaintext; its identity is known now: sent again";
                            connection.story.event(Phase::Discover, text);
                            request = again;
                            continue;
                        }
                    }
                    return Ok((answered, load, member));
                }
                Err((fault, unsent)) => {
                    request = unsent;
                    fault
                }
            };
            connection.story.event(fault.phase().unwrap_or(Phase::Connect), fault.to_string());
            if fault.code() == Code::Stalled && stalls == 0 {
                // This process stood still: that says nothing about the endpoint.
                stalls += 1;
                last = Some(fault);
                continue;
            }
            // Nor does it that others were before us.
            if !matches!(fault.code(), Code::ConnectsQueued | Code::QueueTimeout) {
                member.failed(&connection.worker, &fault);
            }
            if fixed {
                if member.endpoint().addr != connection.dst {
                    connection.worker.mesh.discovery.doubt(connection.dst, fault.code());
                }
                return Err(fault.into());
            }
            tried.push(member);
            last = Some(fault);
        }
        Err(match (&backend.backend.kind, last) {
            (BackendKind::Balance { path, ewma }, _) => {
                let balancer = connection.worker.balancer(path, *ewma);
                balancer.nothing(&balancer.refresh(&connection.worker), &tried).into()
            }
            (_, Some(fault)) => fault.into(),
            (_, None) => Fault::new(Code::Invariant).in_phase(Phase::Queue).into(),
        })
    }

    /// One endpoint. The inner error gives the request back, untouched. `first`: this connection did not use it before, so
    /// that the peer's recorder is told which connection of ours this is.
    async fn send_to(
        &self,
        member: &Rc<Member>,
        mut request: Request<Body>,
        way: &Way<'_>,
        first: bool,
    ) -> Result<Result<Answered, (Fault, Request<Body>)>, NoAnswer> {
        member.pool.as_ref().map_err(|_| self.connection.unknown(member))?;
        if first
            && member.meshed
            && let Some(id) = &self.connection_id
        {
            request.headers_mut().insert(headers::CONNECTION_ID, id.clone());
        }
        let kind = way.kind;
        let profile = way.service.map(|by| &*by.route.labels);
        crate::observe::endpoint(request.extensions(), &member.endpoint(), way.route, profile);
        let sent = exchange(member, request, kind).await;
        if let (Some(service), false) = (&way.counted.service, matches!(sent, Err(Failed::Unsent(..)))) {
            service.actual.request();
            if let Err(Failed::Sent(unanswered)) = &sent {
                service.actual.failed(report::response_error(unanswered.reset), None);
            }
        }
        match sent {
            Ok(answered) => Ok(Ok(answered)),
            Err(Failed::Unsent(fault, mut unsent)) => {
                unsent.headers_mut().remove(headers::CONNECTION_ID);
                Ok(Err((fault, *unsent)))
            }
            Err(Failed::Sent(unanswered)) => match unanswered.reset {
                Some(reason) if kind.version == Version::HTTP_2 => Err(NoAnswer::Reset(reason)),
                _ => Err(unanswered.fault.about(self.connection.dst).into()),
            },
        }
    }

    fn check_identity(&self, member: &Member, kind: &Kind) -> Result<(), Fault> {
        let Some(required) = &kind.require else { return Ok(()) };
        let endpoint = member.endpoint();
        let found = endpoint.identity.id();
        if found == Some(required) {
            return Ok(());
        }
        Err(Fault::new(Code::IdentityRequired)
            .in_phase(Phase::Connect)
            .peer(endpoint.addr)
            .fact("required", required)
            .fact("found", found.map_or("none", Identity::as_str)))
    }

    /// Is this endpoint new to the connection, and not the last of too many?
    fn reaches(&self, member: &Member) -> bool {
        let addr = member.endpoint().addr;
        let mut reached = self.reached.borrow_mut();
        let new = reached.len() < REACHED && !reached.contains(&addr);
        if new {
            reached.push(addr);
        }
        new
    }

    /// Tells the story when another endpoint is used than before; says whether that is so.
    fn tell(&self, member: &Member) -> bool {
        let endpoint = member.endpoint();
        if self.told.get() == Some(endpoint.addr) {
            return false;
        }
        self.told.set(Some(endpoint.addr));
        let story = &self.connection.story;
        member.tell(story);
        true
    }
}

/// Did an endpoint take the request and lose it? One that refused it, or whose client did not end it, did not.
fn is_the_endpoints(none: &NoAnswer) -> bool {
    match none {
        NoAnswer::Reset(reason) => *reason != h2::Reason::REFUSED_STREAM,
        NoAnswer::Fault(fault) | NoAnswer::Reported(fault) => {
            matches!(fault.code(), Code::UpstreamReset | Code::UpstreamNotHttp | Code::H2Protocol)
        }
        NoAnswer::Injected(_) => false,
    }
}

/// Speaks to an endpoint in the version that it wants. A request that was not sent comes back as it was.
pub(super) async fn exchange(
    member: &Member,
    mut request: Request<Body>,
    kind: &Kind,
) -> Result<Answered, Failed> {
    let Ok(pool) = &member.pool else {
        let fault = Fault::new(Code::IdentityUnknown).in_phase(Phase::Connect);
        return Err(Failed::Unsent(fault, Box::new(request)));
    };
    let endpoint = member.endpoint();
    let named = endpoint.authority_override.as_ref().and_then(|name| override_authority(&mut request, name));
    let mut carries = kind.version != Version::HTTP_2 && !kind.upgrades && member.upgrades_http1();
    if carries && kind.version == Version::HTTP_11 {
        match pool.carriage(member.standing.under_way()).await {
            Ok(carriage) => carries = carriage == Carriage::OverH2,
            Err(fault) => {
                if let Some(named) = named {
                    named.restore(&mut request);
                }
                return Err(Failed::Unsent(fault, Box::new(request)));
            }
        }
    }
    let mut sent = if carries {
        orig_proto::upgrade(&mut request, kind.absolute, &endpoint.addr.to_string());
        pool.send_h2(request).await
    } else if kind.version == Version::HTTP_2 {
        if request.uri().authority().is_none() {
            headers::absolute_form(&mut request, &endpoint.addr.to_string());
        }
        pool.send_h2(request).await
    } else {
        let alone = kind.upgrades || kind.version == Version::HTTP_10;
        pool.send_h1(request, alone).await
    };
    match &mut sent {
        Err(Failed::Unsent(_, unsent)) => {
            if carries {
                orig_proto::restore(&mut **unsent);
            }
            if let Some(named) = named {
                named.restore(unsent);
            }
        }
        sent => {
            let series = member.series.borrow();
            series.request();
            if let Err(Failed::Sent(unanswered)) = sent {
                series.failed(report::response_error(unanswered.reset), None);
            }
        }
    }
    sent
}

/// What a request was called before an endpoint wanted it called otherwise.
struct Named {
    uri: Uri,
    host: Option<HeaderValue>,
    canonical: Option<HeaderValue>,
}

impl Named {
    fn restore(self, request: &mut Request<Body>) {
        *request.uri_mut() = self.uri;
        let head = request.headers_mut();
        for (name, value) in [(header::HOST, self.host), (headers::DST_CANONICAL, self.canonical)] {
            if let Some(value) = value {
                head.insert(name, value);
            }
        }
    }
}

/// Gateways are asked for the name that they know.
fn override_authority(request: &mut Request<Body>, authority: &str) -> Option<Named> {
    let parsed = authority.parse::<http::uri::Authority>().ok()?;
    let value = HeaderValue::try_from(authority).ok()?;
    let uri = request.uri().clone();
    let head: &mut HeaderMap = request.headers_mut();
    let canonical = head.remove(headers::DST_CANONICAL);
    let host = head.remove(header::HOST);
    if host.is_some() {
        head.insert(header::HOST, value);
    }
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    if parts.authority.is_some() {
        parts.authority = Some(parsed);
    }
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    Some(Named { uri, host, canonical })
}
