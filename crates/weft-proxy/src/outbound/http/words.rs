//! What a peer's proxy says beside its response: evidence for this proxy, and words for its user.

use super::Requests;
use crate::{
    discovery::{Lookup, judge::each_endpoint},
    http::{
        body::{Body, grpc_status},
        headers,
        respond::Detail,
    },
    outbound::endpoint::Member,
    report::{self, Who},
};
use http::{Response, StatusCode, header};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use weft_fault::{Code, Fault, Phase};
use weft_model::outbound::{BackendKind, Endpoint, Endpoints, RouteBackend};
use weft_wire::record::Direction;

/// What a controller may take to hear of a pod's proxy, amply: there is one, so waiting is better than the refusal.
const IDENTITY: Duration = Duration::from_secs(5);
/// What a controller takes to answer a question, amply: so long the response to a request is kept back whose refusal
/// may have been a misunderstanding.
const ONE_QUESTION: Duration = Duration::from_millis(250);

impl Requests {
    /// Takes the words from the response, unless the application is to have them.
    pub(super) fn remote_words(&self, response: &mut Response<Body>, member: &Member) {
        let code = code_of(response, member.meshed);
        let words = response.headers_mut().remove(headers::PROXY_ERROR);
        let close = response.headers_mut().remove(headers::PROXY_CONNECTION);
        let connection = &self.connection;
        let endpoint = member.endpoint();
        // A balanced client may go on: the next request takes another endpoint.
        if close.is_some() && endpoint.addr == connection.dst && member.meshed {
            self.closing.close();
        }
        if words.is_none() && !member.meshed && is_bare_refusal(response) {
            // That proves nothing, but asking again costs little.
            self.doubt(endpoint.addr, Code::NoRuleAllows);
        }
        let (Some(words), Some(code)) = (words, code) else { return };
        if code == Code::PlaintextRefused && !member.meshed {
            self.doubt(endpoint.addr, code);
        }
        let fault = Fault::new(code)
            .in_phase(Phase::ResponseHeaders)
            .about(connection.dst)
            .peer(endpoint.addr)
            .fact("reported_by", "the peer's proxy")
            .fact("text", String::from_utf8_lossy(words.as_bytes()));
        let who = Who { client: connection.client, target: &connection.dst };
        let metrics = &connection.worker.mesh.metrics;
        report::request_failed(metrics, &connection.story, Direction::Outbound, who, &fault);
        if self.detail == Detail::Full {
            response.headers_mut().insert(headers::PROXY_ERROR, words);
        }
    }

    fn doubt(&self, endpoint: SocketAddr, code: Code) {
        let discovery = &self.connection.worker.mesh.discovery;
        discovery.doubt(endpoint, code);
        if endpoint != self.connection.dst {
            discovery.doubt(self.connection.dst, code);
        }
    }

    /// A peer that says that it refused plaintext is meshed, whatever is known of it; one that only looks so may be. Waits
    /// until its identity is known, briefly.
    pub(super) async fn identity_after_refusal(
        &self,
        backend: &RouteBackend,
        member: &Member,
        refusal: Refusal,
    ) -> Option<Arc<Endpoint>> {
        let addr = member.endpoint().addr;
        let (doubt, limit) = match refusal {
            Refusal::Marked => (Code::PlaintextRefused, IDENTITY),
            Refusal::Bare => (Code::NoRuleAllows, ONE_QUESTION),
        };
        self.doubt(addr, doubt);
        let known = tokio::time::timeout(limit, self.identity(backend, addr)).await.ok().flatten();
        member.waited(known.is_some(), refusal == Refusal::Marked);
        known
    }

    async fn identity(&self, backend: &RouteBackend, addr: SocketAddr) -> Option<Arc<Endpoint>> {
        let meshed = |endpoint: &Arc<Endpoint>| endpoint.addr == addr && endpoint.identity.id().is_some();
        match &backend.backend.kind {
            BackendKind::Balance { path, .. } => {
                let mut watch = self.connection.worker.mesh.discovery.endpoints(path);
                loop {
                    if let Lookup::Answered(Endpoints::Known(all)) = &watch.borrow_and_update().lookup
                        && let Some(found) = all.iter().find(|endpoint| meshed(endpoint))
                    {
                        return Some(found.clone());
                    }
                    watch.changed().await.ok()?;
                }
            }
            BackendKind::Forward(_) | BackendKind::Invalid(_) => {
                let mut watch = self.connection.destination.watch();
                loop {
                    let mut found = None;
                    each_endpoint(&watch.borrow_and_update().policy, &mut |endpoint| {
                        if meshed(endpoint) {
                            found = Some(endpoint.clone());
                        }
                    });
                    if found.is_some() {
                        return found;
                    }
                    watch.changed().await.ok()?;
                }
            }
        }
    }
}

/// How a request was refused that went out in plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The peer's proxy says that plaintext is the reason.
    Marked,
    /// As a stock proxy refuses strangers, without a reason. An application could answer the same.
    Bare,
}

/// Did the peer's proxy refuse the request because it came in plaintext?
pub(super) fn refuses_plaintext(response: &Response<Body>, member: &Member) -> Option<Refusal> {
    if member.meshed {
        return None;
    }
    if code_of(response, false) == Some(Code::PlaintextRefused) {
        return Some(Refusal::Marked);
    }
    (!response.headers().contains_key(headers::PROXY_ERROR) && is_bare_refusal(response))
        .then_some(Refusal::Bare)
}

/// The code that a peer's words begin with. The words of other proxies have none, and count as they are, if the response
/// is a failure: these proxies let their application's words pass. Who is not meshed can only say that it wants to be
/// spoken to otherwise, for its application could say anything.
fn code_of<B>(response: &Response<B>, meshed: bool) -> Option<Code> {
    let words = response.headers().get(headers::PROXY_ERROR)?;
    let first = words.to_str().ok().and_then(|words| Code::find(words.split([' ', ':']).next()?));
    match first {
        Some(_) if meshed => first,
        None if meshed => {
            let failed = response.status().as_u16() >= 400
                || grpc_status(response.headers()).is_some_and(|status| status != 0);
            failed.then_some(Code::PeerReported)
        }
        Some(Code::PlaintextRefused) => first,
        _ => None,
    }
}

/// Is it such an answer as a proxy gives for itself to a stranger whom its policy refuses?
fn is_bare_refusal<B>(response: &Response<B>) -> bool {
    let head = response.headers();
    let empty = head.get(header::CONTENT_LENGTH).is_some_and(|length| length == "0");
    let own = |name: &header::HeaderName| *name != header::CONTENT_LENGTH && *name != header::DATE;
    response.status() == StatusCode::FORBIDDEN && empty && !head.keys().any(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meshed_peers_words_count_as_they_are_and_others_only_if_they_refuse_plaintext() {
        for (words, status, meshed, code) in [
            ("POL-001 no rule allows this caller", 403, true, Some(Code::NoRuleAllows)),
            ("UPS-010: refused", 502, true, Some(Code::AppRefused)),
            ("unauthorized request on route", 403, true, Some(Code::PeerReported)),
            ("an application's words", 200, true, None),
            ("POL-002", 403, false, Some(Code::PlaintextRefused)),
            ("POL-001", 403, false, None),
            ("unauthorized request on route", 403, false, None),
        ] {
            let response = Response::builder().status(status).header(headers::PROXY_ERROR, words);
            assert_eq!(code_of(&response.body(()).unwrap(), meshed), code, "{words} {meshed}");
        }
        let grpc = Response::builder().header("grpc-status", "7").header(headers::PROXY_ERROR, "denied");
        assert_eq!(code_of(&grpc.body(()).unwrap(), true), Some(Code::PeerReported));
        assert_eq!(code_of(&Response::new(()), true), None);
    }
}
