//! Answers that the proxy makes itself.

use super::{
    body::Body,
    headers::{PROXY_CONNECTION, PROXY_ERROR},
};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version, header};
use weft_fault::{Code, Fault};

/// Who reads the answer, and so how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Audience {
    /// Answer in gRPC's form.
    pub(crate) grpc: bool,
    /// The version in which the client speaks; HTTP/1 carried over HTTP/2 counts as what carries it.
    pub(crate) version: Version,
    pub(crate) detail: Detail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Code, evidence and causes: to meshed peers and to the own application.
    Full,
    /// The code alone: enough for a mesh peer that came in plaintext to doubt what it knows.
    Code,
    Nothing,
}

/// Longer texts are cut: the value has to fit everybody's header limits.
const TEXT_BYTES: usize = 1024;

/// The answer to a request that failed with `fault`.
pub(crate) fn refusal(fault: &Fault, to: Audience) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.version_mut() = to.version;
    let code = fault.code();
    let text = text(fault, to.detail);
    let headers = response.headers_mut();
    if to.grpc {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from(u16::from(code.grpc())));
        if let Some(text) = &text {
            headers.insert("grpc-message", percent_encoded(text));
        }
    }
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    if let Some(text) = text {
        headers.insert(PROXY_ERROR, text);
    }
    if closes(code) {
        close(headers, to);
    }
    let status = if to.grpc { StatusCode::OK } else { status(code) };
    *response.status_mut() = status;
    response
}

fn close(headers: &mut HeaderMap, to: Audience) {
    if to.detail == Detail::Full {
        headers.insert(PROXY_CONNECTION, HeaderValue::from_static("close"));
    }
    if to.version != Version::HTTP_2 {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

pub(crate) fn status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Does the failure end the client's connection too? Those of one request do not; those of a server or of this proxy do,
/// so that the client looks elsewhere.
pub(crate) fn closes(code: Code) -> bool {
    match code {
        Code::FailureInjected
        | Code::FilterUnknown
        | Code::BackendInvalid
        | Code::NoBackend
        | Code::ResponseTimeout
        | Code::ResponseHeadersTimeout
        | Code::StreamIdle
        | Code::IdentityRequired => false,
        _ => code.http() >= 500,
    }
}

/// The value of `l5d-proxy-error`.
pub(crate) fn text(fault: &Fault, detail: Detail) -> Option<HeaderValue> {
    match detail {
        Detail::Nothing => None,
        Detail::Code => Some(HeaderValue::from_static(fault.code().id())),
        Detail::Full => Some(visible(&full(fault))),
    }
}

/// A failure in words: the causes follow, one after another.
fn full(fault: &Fault) -> String {
    format!("{fault:?}")
}

/// The same as a meshed peer is told it that speaks no HTTP.
pub(crate) fn full_text(fault: &Fault) -> String {
    String::from_utf8_lossy(visible(&full(fault)).as_bytes()).into_owned()
}

/// Text as a header's value: cut, and without what a header must not hold.
pub(super) fn visible(text: &str) -> HeaderValue {
    let visible = text.bytes().take(TEXT_BYTES).map(|b| if (0x20..0x7f).contains(&b) { b } else { b' ' });
    HeaderValue::from_bytes(&visible.collect::<Vec<u8>>()).expect("visible characters only")
}

/// Text as a `grpc-message`.
pub(super) fn grpc_message(text: &str) -> HeaderValue {
    percent_encoded(&visible(text))
}

/// gRPC's encoding of messages (gRPC over HTTP/2, "Responses").
fn percent_encoded(text: &HeaderValue) -> HeaderValue {
    let mut out = Vec::with_capacity(text.len());
    for byte in text.as_bytes() {
        if *byte == b'%' { out.extend(b"%25") } else { out.push(*byte) }
    }
    HeaderValue::from_bytes(&out).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Audience = Audience { grpc: false, version: Version::HTTP_11, detail: Detail::Code };

    #[test]
    fn a_policy_refusal_keeps_the_connection_and_tells_strangers_the_code_alone() {
        let fault = Fault::new(Code::PlaintextRefused).fact("secret", "s");
        let response = refusal(&fault, PLAIN);
        assert_eq!(response.status(), 403);
        assert_eq!(response.headers()["l5d-proxy-error"], "POL-002");
        assert_eq!(response.headers()["content-length"], "0");
        assert!(!response.headers().contains_key("connection"));
        let response = refusal(&fault, Audience { detail: Detail::Full, ..PLAIN });
        assert!(response.headers()["l5d-proxy-error"].to_str().unwrap().ends_with("secret=s"));
    }

    #[test]
    fn a_failed_server_closes() {
        let cause = std::io::Error::other("first\nsecond é");
        let fault = Fault::new(Code::AppRefused).because(cause);
        let response = refusal(&fault, Audience { detail: Detail::Full, ..PLAIN });
        assert_eq!(response.status(), 502);
        assert_eq!(response.headers()["connection"], "close");
        assert_eq!(response.headers()["l5d-proxy-connection"], "close");
        assert!(response.headers()["l5d-proxy-error"].to_str().unwrap().contains(": first second"));
    }

    #[test]
    fn grpc_is_answered_in_its_own_form() {
        let to = Audience { grpc: true, version: Version::HTTP_2, detail: Detail::Full };
        let response = refusal(&Fault::new(Code::NoRuleAllows).fact("share", "5%"), to);
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "7");
        assert!(response.headers()["grpc-message"].to_str().unwrap().ends_with("share=5%25"));
        assert!(!response.headers().contains_key("connection"));
    }
}
