//! HTTP/2 requests that the library lets pass and that must go no further: the next hop may understand them otherwise. HTTP/1
//! requests are checked by their own parser.

use super::{
    h1::head::{MAX_FIELDS, is_host},
    headers,
};
use http::{HeaderMap, Method, Request, Response, Version, header};
use weft_fault::{Code, Fault, Phase};

/// Is the request well-formed (RFC 9113, 8.2 and 8.3)?
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), Fault> {
    if request.version() != Version::HTTP_2 {
        return Ok(());
    }
    let (fields, uri) = (request.headers(), request.uri());
    if fields.len() > MAX_FIELDS {
        let fault = Fault::new(Code::HeadersTooLarge).in_phase(Phase::RequestHeaders);
        return Err(fault.fact("fields", fields.len()).fact("limit_fields", MAX_FIELDS));
    }
    let mut hosts = fields.get_all(header::HOST).iter();
    if let Some(host) = hosts.next() {
        if hosts.next().is_some() {
            return Err(malformed("more than one Host"));
        }
        // Two names for one request: routes and policies would go by one, the application by the other.
        let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
        if authority.is_some_and(|authority| !authority.eq_ignore_ascii_case(host.as_bytes())) {
            return Err(malformed("Host is not the authority"));
        }
    }
    if headers::authority(request).is_some_and(|authority| !is_host(authority.as_bytes())) {
        return Err(malformed("an authority that names no host"));
    }
    if uri.path() == "*" && request.method() != Method::OPTIONS {
        return Err(malformed("the path * without OPTIONS"));
    }
    if request.method() == Method::CONNECT && fields.contains_key(headers::ORIG_PROTO) {
        // A tunnel has no body to carry; as HTTP/1 its bytes would be the next request.
        return Err(malformed("CONNECT as HTTP/1 over HTTP/2"));
    }
    if request.method() == Method::CONNECT && uri.authority().is_none() {
        return Err(malformed("CONNECT without an authority"));
    }
    if is_spaced(fields) {
        return Err(malformed(SPACED));
    }
    Ok(())
}

const SPACED: &str = "a space at the end of a field's value";

/// HTTP/1 would trim them: the value would be another after the next hop.
fn is_spaced(fields: &HeaderMap) -> bool {
    let spaced = |value: &[u8]| matches!(value, [b' ' | b'\t', ..] | [.., b' ' | b'\t']);
    fields.values().any(|value| spaced(value.as_bytes()))
}

/// Is a server's response over HTTP/2 well-formed, as far as the library does not see to it (RFC 9113, 8.2.1)?
pub(crate) fn check_response<B>(response: &Response<B>) -> Result<(), Fault> {
    let bad = || Fault::new(Code::H2Protocol).in_phase(Phase::ResponseHeaders);
    let fields = response.headers();
    if fields.len() > MAX_FIELDS {
        return Err(bad().fact("fields", fields.len()).fact("limit_fields", MAX_FIELDS));
    }
    if is_spaced(fields) { Err(bad().fact("error", SPACED)) } else { Ok(()) }
}

fn malformed(what: &'static str) -> Fault {
    Fault::new(Code::BadRequest).in_phase(Phase::RequestHeaders).fact("error", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str) -> http::request::Builder {
        Request::get(uri)
    }

    fn says(request: http::request::Builder) -> Option<String> {
        let fault = check(&request.version(Version::HTTP_2).body(()).unwrap()).err()?;
        Some(format!("{} {fault}", fault.code()))
    }

    #[test]
    fn one_name_for_one_request() {
        assert_eq!(says(request("http://a/")), None);
        assert_eq!(says(request("http://a:80/").header("host", "A:80")), None);
        assert_eq!(says(request("/").header("host", "a")), None);
        assert!(says(request("http://a/").header("host", "b")).unwrap().starts_with("PRO-001"));
        assert!(says(request("/").header("host", "a").header("host", "a")).is_some());
        assert!(says(request("http://u@a/")).is_some());
        assert!(says(request("/").header("host", "u@a")).is_some());
        assert!(says(request("http://a:$0/")).is_some());
    }

    #[test]
    fn values_and_targets() {
        assert_eq!(says(request("http://a/").header("x", "y z")), None);
        assert!(says(request("http://a/").header("x", " y")).is_some());
        assert!(says(request("http://a/").header("x", "y\t")).is_some());
        assert!(says(request("*")).is_some());
        assert_eq!(says(Request::options("*")), None);
        assert!(says(Request::builder().method("CONNECT").uri("/x")).is_some());
        assert_eq!(says(Request::builder().method("CONNECT").uri("a:1")), None);
        let carried = Request::builder().method("CONNECT").uri("a:1").header("l5d-orig-proto", "HTTP/1.1");
        assert!(says(carried).is_some());
    }

    #[test]
    fn fields_are_counted() {
        let many = |count| (0..count).fold(request("http://a/"), |r, _| r.header("x", "y"));
        assert_eq!(says(many(MAX_FIELDS)), None);
        assert!(says(many(MAX_FIELDS + 1)).unwrap().starts_with("PRO-002"));
    }
}
