//! HTTP/1 carried over HTTP/2 between proxies: `l5d-orig-proto`.

use super::headers::{self, ORIG_PROTO};
use http::{HeaderValue, Request, Response, Version, header};

const ABSOLUTE: &str = "; absolute-form";

/// How an HTTP/1 request was written before it was carried over HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Original {
    pub(crate) version: Version,
    pub(crate) absolute_form: bool,
}

/// Client side: turns an HTTP/1 request, whose hop-by-hop fields are stripped, into an HTTP/2 one.
pub(crate) fn upgrade<B>(request: &mut Request<B>, absolute_form: bool, fallback_authority: &str) {
    let value = match (request.version(), absolute_form) {
        (Version::HTTP_10, false) => "HTTP/1.0",
        (Version::HTTP_10, true) => "HTTP/1.0; absolute-form",
        (_, false) => "HTTP/1.1",
        (_, true) => "HTTP/1.1; absolute-form",
    };
    request.headers_mut().insert(ORIG_PROTO, HeaderValue::from_static(value));
    request.headers_mut().remove(header::TRANSFER_ENCODING);
    headers::absolute_form(request, fallback_authority);
    *request.version_mut() = Version::HTTP_2;
}

/// Client side: the response becomes HTTP/1 again.
pub(crate) fn downgrade_response<B>(response: &mut Response<B>) {
    // A peer that answers in HTTP/1 terms says so; others had no reason to.
    let version = match response.headers_mut().remove(ORIG_PROTO) {
        Some(value) if value.as_bytes().starts_with(b"HTTP/1.0") => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    *response.version_mut() = version;
}

/// Server side: restores what the client had sent. `None`: the request is a real HTTP/2 one.
pub(crate) fn restore<B>(request: &mut Request<B>) -> Option<Original> {
    let value = request.headers_mut().remove(ORIG_PROTO)?;
    let text = value.to_str().unwrap_or_default();
    let absolute_form = text.ends_with(ABSOLUTE);
    let version = match text.strip_suffix(ABSOLUTE).unwrap_or(text) {
        "HTTP/1.0" => Version::HTTP_10,
        "HTTP/1.1" => Version::HTTP_11,
        _ => return None,
    };
    *request.version_mut() = version;
    if absolute_form {
        // The client's target was absolute: so the application sees it, with a Host field beside it.
        let host = request.uri().authority().map(|a| a.as_str().to_owned());
        if let Some(host) = host.and_then(|h| HeaderValue::from_str(&h).ok())
            && !request.headers().contains_key(header::HOST)
        {
            request.headers_mut().insert(header::HOST, host);
        }
    } else {
        headers::origin_form(request);
    }
    Some(Original { version, absolute_form })
}

/// Server side: says that the response answers an HTTP/1 request.
pub(crate) fn mark_response<B>(response: &mut Response<B>) {
    let value = if response.version() == Version::HTTP_10 { "HTTP/1.0" } else { "HTTP/1.1" };
    response.headers_mut().remove(header::TRANSFER_ENCODING);
    response.headers_mut().insert(ORIG_PROTO, HeaderValue::from_static(value));
    *response.version_mut() = Version::HTTP_2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_application_sees_is_what_was_sent() {
        for (target, absolute) in [("/a?b=c", false), ("http://svc:8000/a?b=c", true)] {
            for version in [Version::HTTP_10, Version::HTTP_11] {
                let mut request =
                    Request::get(target).version(version).header("host", "svc:8000").body(()).unwrap();
                upgrade(&mut request, absolute, "192.0.2.1:80");
                assert_eq!(request.version(), Version::HTTP_2);
                assert_eq!(request.uri(), "http://svc:8000/a?b=c");
                let original = restore(&mut request).unwrap();
                assert_eq!(original, Original { version, absolute_form: absolute });
                assert_eq!(request.uri(), target);
                assert_eq!(request.version(), version);
                assert_eq!(request.headers()["host"], "svc:8000");
                assert!(!request.headers().contains_key(ORIG_PROTO));
            }
        }
        let mut plain = Request::get("http://svc/").version(Version::HTTP_2).body(()).unwrap();
        assert_eq!(restore(&mut plain), None);
    }

    #[test]
    fn responses_come_back_as_http_1() {
        let mut response = Response::builder().version(Version::HTTP_10).body(()).unwrap();
        mark_response(&mut response);
        assert_eq!(response.version(), Version::HTTP_2);
        downgrade_response(&mut response);
        assert_eq!(response.version(), Version::HTTP_10);
        assert!(response.headers().is_empty());
    }
}
