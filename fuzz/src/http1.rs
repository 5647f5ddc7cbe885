//! HTTP/1, read strictly and written again: the next hop must not read anything else.

use http::{HeaderMap, Method, Version};
use weft_proxy::foreign::{self, Chunked, Framing, Head};

/// In how many pieces a message comes, besides all at once.
const PIECES: usize = 16;

/// A request's head, and what a next hop makes of it.
pub fn http1_request(bytes: &[u8]) {
    ends_where_it_ends(bytes);
    early_decisions_stay(bytes);
    let Ok(Some(head)) = foreign::request(bytes) else { return };
    assert!(head.length <= bytes.len());
    assert!(
        matches!(foreign::protocol(bytes), Some("http/1") | None)
            || bytes.starts_with(b"\r\n")
            || odd_method(&head),
        "what is read as HTTP/1 was not taken for anything else"
    );
    assert_ne!(head.framing, Framing::Close, "a request that the end of the connection ends");
    let written = foreign::write_request(&head.message, head.framing);
    one_line_each(&written, head.message.headers(), Some(head.framing));
    let again = foreign::request(&written).expect("what is written is valid").expect("and whole");
    assert_eq!(again.length, written.len());
    assert_eq!((again.framing, again.message.method()), (head.framing, head.message.method()));
    assert_eq!((again.message.uri(), again.message.version()), (head.message.uri(), head.message.version()));
    same_fields(head.message.headers(), again.message.headers());

    // CONNECT is never carried.
    if *head.message.method() != Method::CONNECT
        && let Some(carried) = foreign::carry(head.message.clone())
    {
        assert_eq!(carried.method(), head.message.method());
        assert_eq!(carried.version(), head.message.version());
        assert_eq!(carried.uri().path(), head.message.uri().path());
        assert_eq!(carried.uri().query(), head.message.uri().query());
        assert_eq!(carried.uri().authority().is_some(), head.message.uri().authority().is_some());
        if head.message.version() == Version::HTTP_11 {
            assert_eq!(carried.headers().get_all("host").iter().count(), 1, "{carried:?}");
        }
        let written = foreign::write_request(&carried, head.framing);
        foreign::request(&written).expect("what was carried is valid").expect("and whole");
    }
}

/// Methods that the detection does not take for HTTP are too long for it.
fn odd_method(head: &Head<http::Request<()>>) -> bool {
    head.message.method().as_str().len() > 24
}

/// A response's head in answer to several methods.
pub fn http1_response(bytes: &[u8]) {
    ends_where_it_ends(bytes);
    for to in [Method::GET, Method::HEAD, Method::CONNECT] {
        let Ok(Some(head)) = foreign::response(bytes, &to) else { continue };
        let status = head.message.status();
        if to == Method::HEAD || status.is_informational() || status == 204 || status == 304 {
            assert_eq!(head.framing, Framing::Empty);
        }
        let bodiless = to == Method::HEAD || status == 304;
        let framing = (!bodiless || head.framing != Framing::Empty).then_some(head.framing);
        for version in [Version::HTTP_10, Version::HTTP_11] {
            if version == Version::HTTP_10 && framing == Some(Framing::Chunked) {
                continue;
            }
            let written = foreign::write_response(&head.message, version, framing);
            one_line_each(&written, head.message.headers(), framing);
            let again =
                foreign::response(&written, &to).expect("what is written is valid").expect("and whole");
            assert_eq!((again.length, again.message.status()), (written.len(), status));
            // No body, and nothing said about it, is for an application's 200 a body up to the end of the connection.
            if framing != Some(Framing::Empty) {
                assert_eq!(again.framing, head.framing);
            }
            same_fields(head.message.headers(), again.message.headers());
        }
    }
}

/// A chunked body, whose first byte says how it is cut.
pub fn http1_chunked(bytes: &[u8]) {
    let Some((cut, body)) = bytes.split_first() else { return };
    let mut whole = Chunked::default();
    let read = whole.pass(body).is_ok();
    let mut pieces = Chunked::default();
    let mut in_pieces = true;
    for piece in body.chunks(usize::from(*cut).max(1)) {
        in_pieces = in_pieces && pieces.pass(piece).is_ok();
    }
    assert_eq!(in_pieces, read, "how the bytes arrive does not matter");
    if !read {
        return;
    }
    assert_eq!((&pieces.data, &pieces.trailers), (&whole.data, &whole.trailers));
    assert_eq!(pieces.rest(), whole.rest());
    let Some(trailers) = &whole.trailers else { return };
    let mut again = Chunked::default();
    let written = foreign::write_chunked(whole.data.chunks(usize::from(*cut).max(1)), trailers);
    again.pass(&written).expect("what is written is valid");
    assert_eq!((&again.data, &again.trailers), (&whole.data, &whole.trailers));
    assert_eq!(again.rest(), b"");
}

/// Where a head ends does not depend on how it arrives.
fn ends_where_it_ends(bytes: &[u8]) {
    let whole = foreign::head_end(bytes, 0).ok();
    let mut seen = 0;
    let mut found = Some(None);
    for end in (0..=bytes.len()).step_by(1 + bytes.len() / PIECES).chain([bytes.len()]) {
        found = foreign::head_end(&bytes[..end], seen).ok();
        if found != Some(None) {
            break;
        }
        seen = if end < 2 { 0 } else { end };
    }
    assert_eq!(found, whole);
}

/// What is decided by a beginning is not decided otherwise by what follows.
fn early_decisions_stay(bytes: &[u8]) {
    let mut decided = None;
    for end in (0..=bytes.len()).step_by(1 + bytes.len() / PIECES) {
        let now = foreign::protocol(&bytes[..end]);
        assert!(decided.is_none() || decided == now, "after {end} bytes");
        decided = now;
    }
}

/// Nothing in a value can end its line: so many fields, so many lines.
fn one_line_each(written: &[u8], headers: &HeaderMap, framing: Option<Framing>) {
    let said_here = usize::from(matches!(framing, Some(Framing::Length(_) | Framing::Chunked)));
    let said = |name: &str| headers.get_all(name).iter().count();
    let kept = headers.len()
        - said("transfer-encoding")
        - if framing.is_none() { 0 } else { said("content-length") };
    let ends = written.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(ends, 2 + kept + said_here, "{}", written.escape_ascii());
    assert_eq!(ends, written.windows(2).filter(|pair| pair == b"\r\n").count());
    assert!(!written.contains(&0));
}

/// All but the framing.
fn same_fields(sent: &HeaderMap, read: &HeaderMap) {
    for name in sent.keys().filter(|name| !matches!(name.as_str(), "content-length" | "transfer-encoding")) {
        assert!(sent.get_all(name).iter().eq(read.get_all(name).iter()), "{name}");
    }
}
