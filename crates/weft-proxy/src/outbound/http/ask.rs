//! What a request is, and what in its head is for this proxy.

use crate::http::{body::Body, headers};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Version};
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    identity::Identity,
    retry::{self, Asked},
};

/// What a request is, apart from its head.
pub(super) struct Kind {
    pub(super) version: Version,
    pub(super) grpc: bool,
    pub(super) upgrades: bool,
    /// The target was absolute, which the server has to see again.
    pub(super) absolute: bool,
    pub(super) require: Option<Identity>,
    /// What it asks for by `l5d-` headers, if the route lets it.
    pub(super) asked: Option<Box<Asked>>,
    /// `host:port` to go by instead of the original destination, where the proxy stands beside an ingress.
    pub(super) dst_override: Option<HeaderValue>,
}

const RETRY_HTTP: HeaderName = HeaderName::from_static("l5d-retry-http");
const RETRY_GRPC: HeaderName = HeaderName::from_static("l5d-retry-grpc");
const RETRY_LIMIT: HeaderName = HeaderName::from_static("l5d-retry-limit");
const RETRY_TIMEOUT: HeaderName = HeaderName::from_static("l5d-retry-timeout");
const TIMEOUT: HeaderName = HeaderName::from_static("l5d-timeout");
const REQUEST_TIMEOUT: HeaderName = HeaderName::from_static("l5d-request-timeout");
const RESPONSE_TIMEOUT: HeaderName = HeaderName::from_static("l5d-response-timeout");

impl Kind {
    /// The kind of a copy of the request: it has no wishes of its own.
    pub(super) fn copied(&self) -> Self {
        let Kind { version, grpc, upgrades, absolute, .. } = *self;
        Kind { version, grpc, upgrades, absolute, require: None, asked: None, dst_override: None }
    }

    /// Reads the head and takes out of it what must not travel on.
    pub(super) fn of(request: &mut Request<Body>, grpc: bool) -> Result<Self, Fault> {
        let version = request.version();
        let upgrades = headers::wants_upgrade(request);
        let absolute = version != Version::HTTP_2 && request.uri().authority().is_some() && !upgrades;
        let head = request.headers_mut();
        let (mut require, mut asked, mut dst_override) = (Ok(None), None, None);
        // Most requests have none of these, and one look at the names tells.
        if head.keys().any(|name| name.as_str().starts_with("l5d-") || *name == headers::CONNECTION_ID) {
            require = required(head.remove(headers::REQUIRE_ID));
            asked = self::asked(head);
            dst_override = head.remove(headers::DST_OVERRIDE);
            for name in [
                headers::DST_CANONICAL,
                headers::CLIENT_ID,
                headers::ORIG_PROTO,
                headers::PROXY_ERROR,
                headers::PROXY_CONNECTION,
                headers::CONNECTION_ID,
            ] {
                head.remove(name);
            }
        }
        headers::strip_hop_by_hop(head, upgrades);
        Ok(Kind { version, grpc, upgrades, absolute, require: require?, asked, dst_override })
    }
}

/// An identity that cannot be read is no endpoint's: the request asked to be sent to nobody else, so it is sent to nobody.
fn required(value: Option<HeaderValue>) -> Result<Option<Identity>, Fault> {
    let Some(value) = value else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes());
    Identity::parse(&text).map(Some).map_err(|nonsense| {
        Fault::new(Code::IdentityRequired)
            .in_phase(Phase::Connect)
            .fact("required", format!("{text:?}"))
            .because(nonsense)
    })
}

/// Takes the headers that ask for retries and timeouts. What cannot be read asks for nothing.
fn asked(head: &mut HeaderMap) -> Option<Box<Asked>> {
    let mut take =
        |name: HeaderName| head.remove(name).and_then(|value| Some(value.to_str().ok()?.to_owned()));
    let timeout = |text: Option<String>| text.and_then(|t| retry::duration(&t)).filter(|t| !t.is_zero());
    let asked = Asked {
        statuses: take(RETRY_HTTP).and_then(|text| retry::statuses(&text)),
        grpc_codes: take(RETRY_GRPC).and_then(|text| retry::grpc_codes(&text)),
        limit: take(RETRY_LIMIT).and_then(|text| text.trim().parse().ok()),
        per_try_timeout: timeout(take(RETRY_TIMEOUT)),
        request_timeout: {
            let (whole, request) = (timeout(take(TIMEOUT)), timeout(take(REQUEST_TIMEOUT)));
            request.or(whole)
        },
        response_timeout: timeout(take(RESPONSE_TIMEOUT)),
    };
    (asked != Asked::default()).then(|| Box::new(asked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn kind(headers: &[(&str, &str)]) -> (Result<Kind, Fault>, Request<Body>) {
        let mut request = Request::get("/").body(Body::empty()).unwrap();
        for (name, value) in headers {
            request.headers_mut().append(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        (Kind::of(&mut request, false), request)
    }

    #[test]
    fn what_is_for_this_proxy_is_read_and_ends_here() {
        let (kind, request) = kind(&[
            ("l5d-retry-http", "5xx,429"),
            ("l5d-retry-grpc", "unavailable"),
            ("l5d-retry-limit", "4"),
            ("l5d-retry-timeout", "100ms"),
            ("l5d-timeout", "9s"),
            ("l5d-request-timeout", "2s"),
            ("l5d-response-timeout", "1s"),
            ("l5d-dst-override", "web.shop:80"),
            ("l5d-require-id", "web.shop.serviceaccount.identity.linkerd.cluster.local"),
            ("l5d-client-id", "me"),
            ("weft-connection-id", "x"),
            ("l5d-dst-canonical", "x"),
            ("x-own", "1"),
        ]);
        let kind = kind.unwrap();
        let left: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["x-own"]);
        let asked = Asked {
            statuses: Some(vec![(500, 599), (429, 429)]),
            grpc_codes: Some(vec![14]),
            limit: Some(4),
            per_try_timeout: Some(Duration::from_millis(100)),
            request_timeout: Some(Duration::from_secs(2)),
            response_timeout: Some(Duration::from_secs(1)),
        };
        assert_eq!(*kind.asked.unwrap(), asked);
        assert_eq!(kind.dst_override.unwrap(), "web.shop:80");
        assert!(kind.require.is_some());
    }

    #[test]
    fn nonsense_asks_for_nothing_but_a_required_identity_fails_closed() {
        let (kind, request) =
            self::kind(&[("l5d-retry-http", "6xx"), ("l5d-timeout", "soon"), ("l5d-retry-limit", "-1")]);
        assert!(kind.unwrap().asked.is_none() && request.headers().is_empty());
        let (kind, _) = self::kind(&[("l5d-require-id", "not an identity")]);
        let fault = kind.err().unwrap().record();
        assert_eq!((fault.code.as_str(), fault.fact("required")), ("IDN-003", Some("\"not an identity\"")));
    }
}
