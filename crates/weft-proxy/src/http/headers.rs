//! Header fields that end at a hop, and those the mesh adds.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, header, uri::Authority};
use std::borrow::Cow;
use weft_model::http::{Headers, RequestParts};

pub(crate) const CLIENT_ID: HeaderName = HeaderName::from_static("l5d-client-id");
pub(crate) const PROXY_ERROR: HeaderName = HeaderName::from_static("l5d-proxy-error");
pub(crate) const PROXY_CONNECTION: HeaderName = HeaderName::from_static("l5d-proxy-connection");
pub(crate) const ORIG_PROTO: HeaderName = HeaderName::from_static("l5d-orig-proto");
pub(crate) const REQUIRE_ID: HeaderName = HeaderName::from_static("l5d-require-id");
pub(crate) const DST_OVERRIDE: HeaderName = HeaderName::from_static("l5d-dst-override");
pub(crate) const DST_CANONICAL: HeaderName = HeaderName::from_static("l5d-dst-canonical");
/// The flight recorder's id of the connection, from one weft proxy to the next.
pub(crate) const CONNECTION_ID: HeaderName = HeaderName::from_static("weft-connection-id");

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION_OLD: HeaderName = HeaderName::from_static("proxy-connection");

/// Header fields as the model looks them up.
#[derive(Debug)]
pub(crate) struct View<'a>(pub(crate) &'a HeaderMap);

impl Headers for View<'_> {
    fn get<'s>(&'s self, lower_case_name: &str) -> Option<&'s str> {
        self.0.get(lower_case_name)?.to_str().ok()
    }
}

/// The authority of a request, from its target or its Host field.
pub(crate) fn authority<B>(request: &Request<B>) -> Option<&str> {
    match request.uri().authority() {
        Some(authority) => Some(authority.as_str()),
        None => request.headers().get(header::HOST)?.to_str().ok(),
    }
}

/// The host of an authority: no port, lower case.
pub(crate) fn host(authority: &str) -> Cow<'_, str> {
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = if authority.starts_with('[') {
        authority.split_inclusive(']').next().unwrap_or(authority)
    } else {
        authority.rsplit_once(':').map_or(authority, |(host, _)| host)
    };
    if host.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}

/// What routing sees of a request.
pub(crate) fn parts<'a, B>(request: &'a Request<B>, host: &'a str, view: &'a View<'a>) -> RequestParts<'a> {
    RequestParts {
        method: request.method().as_str(),
        host,
        path: request.uri().path(),
        query: request.uri().query(),
        headers: view,
    }
}

/// Does the request ask to change the connection's protocol? An upgrade needs the Connection option (RFC 9110, 7.8). One to
/// HTTP/2 is none (RFC 9113, 3.1): what came after it would pass by the routes and the policy.
pub(crate) fn wants_upgrade<B>(request: &Request<B>) -> bool {
    if request.version() == Version::HTTP_2 {
        return false;
    }
    request.method() == Method::CONNECT
        || (request.version() == Version::HTTP_11
            && request.headers().contains_key(header::UPGRADE)
            && has_option(request.headers(), "upgrade")
            && !request.headers().get_all(header::UPGRADE).iter().any(names_http2))
}

/// Does the message end its connection?
pub(crate) fn says_close(headers: &HeaderMap) -> bool {
    headers.contains_key(header::CONNECTION) && has_option(headers, "close")
}

fn names_http2(value: &HeaderValue) -> bool {
    value.as_bytes().split(|b| *b == b',').any(|name| name.trim_ascii().eq_ignore_ascii_case(b"h2c"))
}

fn has_option(headers: &HeaderMap, option: &str) -> bool {
    options(headers).any(|o| o.eq_ignore_ascii_case(option))
}

fn options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(str::trim)
        .filter(|o| !o.is_empty())
}

/// Takes away what concerns one connection only (RFC 9110, 7.6.1). `upgrade`: the upgrade offer goes on.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap, upgrade: bool) {
    if headers.contains_key(header::CONNECTION) {
        let listed: Vec<HeaderName> = options(headers)
            .filter(|o| !o.eq_ignore_ascii_case("close") && !o.eq_ignore_ascii_case("keep-alive"))
            .filter_map(|o| HeaderName::from_bytes(o.as_bytes()).ok())
            // Naming an end-to-end field as an option must not be a way to take it from the server.
            .filter(|name| !(END_TO_END.contains(name) || is_of_the_mesh(name)))
            .filter(|name| !(upgrade && *name == header::UPGRADE))
            .collect();
        headers.remove(header::CONNECTION);
        for name in listed {
            headers.remove(name);
        }
    }
    headers.remove(KEEP_ALIVE);
    headers.remove(PROXY_CONNECTION_OLD);
    if upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    } else {
        headers.remove(header::UPGRADE);
    }
    // `TE: trailers` is the one value that HTTP/2 and gRPC know; others end here.
    if let Some(te) = headers.get(header::TE)
        && te.as_bytes() != b"trailers"
    {
        headers.remove(header::TE);
    }
}

/// Takes out of trailers what they must not say (RFC 9110, 6.5.1): how a message is framed or routed, what concerns one
/// connection, and the mesh's own words. Who merges trailers into the head would believe them.
pub(crate) fn clean_trailers(trailers: &mut HeaderMap) {
    let barred: Vec<HeaderName> = trailers.keys().filter(|name| is_head_only(name)).cloned().collect();
    for name in barred {
        trailers.remove(name);
    }
}

/// Does a field mean something only in the head of a request or of the final response?
pub(crate) fn is_head_only(name: &HeaderName) -> bool {
    HEAD_ONLY.contains(name) || is_of_the_mesh(name)
}

/// What proxies say to each other.
fn is_of_the_mesh(name: &HeaderName) -> bool {
    name.as_str().starts_with("l5d-") || *name == CONNECTION_ID
}

const HEAD_ONLY: [HeaderName; 13] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION_OLD,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
    header::AUTHORIZATION,
    header::COOKIE,
    header::FORWARDED,
];

const END_TO_END: [HeaderName; 6] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::AUTHORIZATION,
    header::COOKIE,
    // By this a gateway knows what it has passed on before.
    header::FORWARDED,
];

/// Gives an HTTP/1 request the target form of a server request, and the Host field of its authority.
pub(crate) fn origin_form<B>(request: &mut Request<B>) {
    if let Some(authority) = request.uri().authority()
        && !request.headers().contains_key(header::HOST)
        && let Ok(value) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(header::HOST, value);
    }
    if request.method() == Method::CONNECT {
        return;
    }
    let path = request.uri().path_and_query().cloned();
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = path;
    // A target without a path has the path "/" (RFC 9112, 3.2.1).
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}

/// Gives a request the scheme and authority that HTTP/2 wants; the Host field serves if the target has none.
pub(crate) fn absolute_form<B>(request: &mut Request<B>, fallback: &str) {
    if request.uri().authority().is_some() && request.uri().scheme().is_some() {
        return;
    }
    let authority = self::authority(request)
        .and_then(|text| text.parse::<Authority>().ok())
        .or_else(|| fallback.parse().ok());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = parts.scheme.or(Some(http::uri::Scheme::HTTP));
    parts.authority = parts.authority.or(authority);
    if parts.path_and_query.is_none() {
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    }
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}

/// A gRPC request is answered in gRPC's form.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_2
        && request
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_lose_port_and_case() {
        for (text, bare) in [
            ("Web.shop:8080", "web.shop"),
            ("web", "web"),
            ("[2001:db8::1]:80", "[2001:db8::1]"),
            ("u@h:1", "h"),
            ("", ""),
        ] {
            assert_eq!(host(text), bare, "{text}");
        }
    }

    #[test]
    fn connection_options_end_at_this_hop() {
        let mut request = Request::get("/")
            .header("connection", "x-hop, keep-alive, Content-Length")
            .header("x-hop", "1")
            .header("content-length", "3")
            .header("keep-alive", "timeout=5")
            .header("upgrade", "websocket")
            .header("te", "gzip")
            .header("x-end", "1")
            .body(())
            .unwrap();
        assert!(!wants_upgrade(&request), "an offer without the option is none");
        strip_hop_by_hop(request.headers_mut(), false);
        let mut left: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "x-end"]);
        let mut request = Request::get("/")
            .header("connection", "Upgrade, close")
            .header("upgrade", "websocket")
            .body(())
            .unwrap();
        assert!(wants_upgrade(&request));
        strip_hop_by_hop(request.headers_mut(), true);
        assert_eq!(request.headers()["connection"], "upgrade");
        assert_eq!(request.headers()["upgrade"], "websocket");
    }

    #[test]
    fn options_take_nothing_that_others_go_by() {
        let mut headers: HeaderMap = ["forwarded", "l5d-client-id", "host", "x-hop"]
            .iter()
            .map(|name| (name.parse().unwrap(), HeaderValue::from_static("1")))
            .collect();
        let options = HeaderValue::from_static("Forwarded, l5d-client-id, host, x-hop");
        headers.insert("connection", options);
        strip_hop_by_hop(&mut headers, false);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["forwarded", "host", "l5d-client-id"]);
    }

    #[test]
    fn trailers_say_what_trailers_may() {
        let names = [
            "grpc-status",
            "x-sum",
            "l5d-client-id",
            "L5D-anything",
            "weft-connection-id",
            "host",
            "content-length",
        ];
        let mut trailers: HeaderMap =
            names.iter().map(|name| (name.parse().unwrap(), HeaderValue::from_static("1"))).collect();
        clean_trailers(&mut trailers);
        let mut left: Vec<_> = trailers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["grpc-status", "x-sum"]);
    }

    #[test]
    fn forms_convert_and_back() {
        let mut request = Request::get("http://web.shop:80/a?b=c").body(()).unwrap();
        origin_form(&mut request);
        assert_eq!(request.uri(), "/a?b=c");
        assert_eq!(request.headers()["host"], "web.shop:80");
        absolute_form(&mut request, "x");
        assert_eq!(request.uri(), "http://web.shop:80/a?b=c");
        let mut bare = Request::options("*").body(()).unwrap();
        origin_form(&mut bare);
        assert_eq!(bare.uri(), "*");
        // An HTTP/2 request may name its host in a Host field alone (RFC 9113, 8.3.1).
        let mut named = Request::get("/x").version(Version::HTTP_2).header("host", "web").body(()).unwrap();
        absolute_form(&mut named, "192.0.2.1:80");
        assert_eq!(named.uri(), "http://web/x");
        let mut hostless = Request::get("/x").body(()).unwrap();
        absolute_form(&mut hostless, "192.0.2.1:80");
        assert_eq!(hostless.uri(), "http://192.0.2.1:80/x");
    }
}
