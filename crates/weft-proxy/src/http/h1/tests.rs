use super::{
    encode,
    head::{self, Bad, Framing},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use proptest::prelude::*;

const MOST: usize = 64 * 1024;

fn request(text: &str) -> Result<head::RequestHead, Bad> {
    let bytes = Bytes::copy_from_slice(text.as_bytes());
    match head::end(&bytes, 0, MOST)? {
        Some(end) if end == bytes.len() => head::request(&bytes),
        other => panic!("{text:?} is no single head: {other:?}"),
    }
}

#[test]
fn framing_is_decided_or_refused() {
    for (fields, framing) in [
        ("", Some(Framing::Empty)),
        ("Content-Length: 0\r\n", Some(Framing::Empty)),
        ("Content-Length: 5\r\n", Some(Framing::Length(5))),
        ("Transfer-Encoding: Chunked\r\n", Some(Framing::Chunked)),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", None),
        ("Content-Length: 5, 5\r\n", None),
        ("Content-Length: +5\r\n", None),
        ("Content-Length: -5\r\n", None),
        ("Content-Length: 0x5\r\n", None),
        ("Content-Length:\r\n", None),
        ("Content-Length: 99999999999999999999\r\n", None),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", None),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", None),
        ("Transfer-Encoding: gzip, chunked\r\n", None),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", None),
        ("Transfer-Encoding: identity\r\n", None),
        ("Transfer-Encoding: xchunked\r\n", None),
        ("Transfer-Encoding : chunked\r\n", None),
        ("Transfer-Encoding: chunked\r\n x\r\n", None),
    ] {
        let head = request(&format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        assert_eq!(head.map(|head| head.framing).ok(), framing, "{fields:?}");
    }
    assert!(request("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
}

#[test]
fn targets_have_the_form_of_their_method() {
    for (line, valid) in [
        ("GET /a?b HTTP/1.1", true),
        ("GET http://h/a HTTP/1.1", true),
        ("OPTIONS * HTTP/1.1", true),
        ("CONNECT h:443 HTTP/1.1", true),
        ("GET * HTTP/1.1", false),
        ("GET h HTTP/1.1", false),
        ("GET ftp://h/ HTTP/1.1", false),
        ("GET /a#b HTTP/1.1", false),
        ("GET http://u@h/ HTTP/1.1", false),
        ("GET http://h:$0/ HTTP/1.1", false),
        ("CONNECT /a HTTP/1.1", false),
        ("CONNECT h HTTP/1.1", false),
    ] {
        assert_eq!(request(&format!("{line}\r\nHost: h\r\n\r\n")).is_ok(), valid, "{line}");
    }
    let head = request("GET http://one/a HTTP/1.1\r\nHost: two\r\n\r\n").unwrap();
    assert_eq!(head.request.headers()["host"], "one");
}

#[test]
fn hosts_and_lines_are_strict() {
    for (text, why) in [
        ("GET / HTTP/1.1\r\n\r\n", "no Host field"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "more than one Host field"),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "a Host field that names no host"),
        ("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", "a Host field that names no host"),
        ("GET / HTTP/1.1\r\nHost: a\n\r\n", "a line that ends in a bare LF"),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", "a field name that is no token"),
        ("GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", "a field name that is no token"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", "a field value with a forbidden byte"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", "a field value with a forbidden byte"),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", "a version that is not HTTP/1"),
    ] {
        match request(text) {
            Err(Bad::Syntax(said)) => assert_eq!(said, why, "{text:?}"),
            other => panic!("{text:?}: {other:?}"),
        }
    }
    let many: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    assert_eq!(request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")).unwrap_err(), Bad::Many);
}

#[test]
fn connections_stay_as_their_version_says() {
    for (version, field, stays) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: x, Close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: keep-alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
    ] {
        let head = request(&format!("GET / HTTP/{version}\r\nHost: h\r\n{field}\r\n")).unwrap();
        assert_eq!(head.keep_alive, stays, "{version} {field}");
    }
}

#[test]
fn responses_are_framed_by_what_they_answer() {
    let response = |text: &str, to: &Method| head::response(&Bytes::copy_from_slice(text.as_bytes()), to);
    for (text, to, framing) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", Method::GET, Some(Framing::Length(3))),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", Method::HEAD, Some(Framing::Empty)),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", Method::GET, Some(Framing::Empty)),
        ("HTTP/1.1 204 No Content\r\n\r\n", Method::GET, Some(Framing::Empty)),
        ("HTTP/1.0 200 OK\r\n\r\n", Method::GET, Some(Framing::Close)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Method::GET, Some(Framing::Chunked)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", Method::GET, None),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", Method::GET, None),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Method::GET, None),
        ("SUPER 1.0\r\n\r\n", Method::GET, None),
    ] {
        assert_eq!(response(text, &to).map(|head| head.framing).ok(), framing, "{text:?}");
    }
    let head = response("HTTP/1.1 200 Fine\r\n\r\n", &Method::GET).unwrap();
    assert_eq!(head.response.version(), Version::HTTP_11);
    assert!(!head.keep_alive);
}

/// A head that is valid, and whatever can be done to it.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let heads = prop::sample::select(vec![
        "GET /a?b HTTP/1.1\r\nHost: h\r\nConnection: close, x\r\nX: 1\r\n\r\n",
        "POST http://h:80/ HTTP/1.0\r\nContent-Length: 12\r\nExpect: 100-continue\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n",
        "HTTP/1.0 304\r\nContent-Length: 3\r\n\r\n",
        "X-Sum: 1\r\nHost: h\r\n\r\n",
    ]);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..3), 0..8);
    (heads, changes).prop_map(|(head, changes)| {
        let mut bytes = head.as_bytes().to_vec();
        for (at, byte, how) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => {}
            }
        }
        bytes
    })
}

proptest! {
    /// Whatever comes is read or refused; what is read as a request is written out as one that is read alike.
    #[test]
    fn any_head_is_read_or_refused(bytes in mutated()) {
        let bytes = Bytes::from(bytes);
        if let Ok(Some(end)) = head::end(&bytes, 0, MOST) {
            let head = bytes.slice(..end);
            let _trailers = head::trailers(&head);
            for to in [Method::GET, Method::HEAD, Method::CONNECT] {
                let _response = head::response(&head, &to);
            }
            if let Ok(read) = head::request(&head) {
                let (parts, ()) = read.request.into_parts();
                let delimited = match read.framing {
                    Framing::Length(length) => encode::Delimited::Length(length),
                    Framing::Chunked => encode::Delimited::Chunked,
                    Framing::Empty | Framing::Close => encode::Delimited::Not,
                };
                let mut written = Vec::new();
                encode::request(&mut written, &parts, delimited);
                let again = head::request(&Bytes::from(written)).expect("what is written is valid");
                prop_assert_eq!(again.framing, read.framing);
                prop_assert_eq!(again.request.method(), &parts.method);
                prop_assert_eq!(again.request.uri(), &parts.uri);
            }
        }
    }

    /// However the bytes arrive, the head ends at the same place or is refused.
    #[test]
    fn the_end_of_a_head_does_not_depend_on_how_it_arrives(
        parts in proptest::collection::vec("[a\r\n:]{0,4}", 0..12), cuts in proptest::collection::vec(0_usize..40, 0..6)
    ) {
        let bytes = parts.concat().into_bytes();
        let whole = head::end(&bytes, 0, MOST);
        let mut cuts: Vec<_> = cuts.into_iter().map(|c| c.min(bytes.len())).chain([bytes.len()]).collect();
        cuts.sort_unstable();
        let mut seen = 0;
        let mut found = Ok(None);
        for cut in cuts {
            found = head::end(&bytes[..cut], seen, MOST);
            if found != Ok(None) {
                break;
            }
            seen = cut;
        }
        prop_assert_eq!(found, whole);
    }
}

#[test]
fn an_interim_response_says_nothing_about_the_connection_and_no_word_of_a_proxys() {
    let names = ["link", "connection", "content-length", "transfer-encoding", "upgrade", "l5d-proxy-error"];
    let fields: HeaderMap =
        names.iter().map(|name| (HeaderName::from_static(name), HeaderValue::from_static("1"))).collect();
    let mut written = Vec::new();
    encode::interim(&mut written, StatusCode::EARLY_HINTS, &fields);
    assert_eq!(written, b"HTTP/1.1 103 Early Hints\r\nlink: 1\r\n\r\n");
}
