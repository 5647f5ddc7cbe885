//! Heads and chunk lines, written out.

use super::head::Reason;
use crate::http::headers::is_head_only;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, Version, header, request};

/// How an outgoing body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delimited {
    /// There is none, and nothing is said about it.
    Not,
    Length(u64),
    Chunked,
    /// By the end of the connection: responses to HTTP/1.0 clients.
    Close,
    /// As the head says, but it does not come: an answer to HEAD.
    Absent,
}

/// What an ordinary head takes.
const HEAD: usize = 512;

pub(crate) fn request(into: &mut Vec<u8>, head: &request::Parts, delimited: Delimited) {
    into.reserve(HEAD);
    into.extend_from_slice(head.method.as_str().as_bytes());
    into.push(b' ');
    target(into, &head.method, &head.uri);
    into.extend_from_slice(if head.version == Version::HTTP_10 {
        b" HTTP/1.0\r\n"
    } else {
        b" HTTP/1.1\r\n"
    });
    fields(into, &head.headers, delimited);
    into.extend_from_slice(b"\r\n");
}

fn target(into: &mut Vec<u8>, method: &Method, uri: &Uri) {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    match uri.authority() {
        Some(authority) if *method == Method::CONNECT => {
            into.extend_from_slice(authority.as_str().as_bytes())
        }
        Some(authority) => {
            for part in [uri.scheme_str().unwrap_or("http"), "://", authority.as_str(), path] {
                into.extend_from_slice(part.as_bytes());
            }
        }
        None => into.extend_from_slice(path.as_bytes()),
    }
}

/// `option`: what the Connection field says, if anything.
pub(crate) fn response<B>(
    into: &mut Vec<u8>,
    version: Version,
    response: &Response<B>,
    delimited: Delimited,
    option: Option<&'static str>,
) {
    into.reserve(HEAD);
    into.extend_from_slice(if version == Version::HTTP_10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    let status = response.status();
    into.extend_from_slice(status.as_str().as_bytes());
    into.push(b' ');
    match response.extensions().get::<Reason>() {
        Some(Reason(words)) => into.extend_from_slice(words),
        None => into.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes()),
    }
    into.extend_from_slice(b"\r\n");
    fields(into, response.headers(), delimited);
    if let Some(option) = option {
        into.extend_from_slice(b"connection: ");
        into.extend_from_slice(option.as_bytes());
        into.extend_from_slice(b"\r\n");
    }
    into.extend_from_slice(b"\r\n");
}

/// An interim response: no body, nothing about the connection, and no word of a proxy's.
pub(super) fn interim(into: &mut Vec<u8>, status: StatusCode, headers: &HeaderMap) {
    into.extend_from_slice(b"HTTP/1.1 ");
    into.extend_from_slice(status.as_str().as_bytes());
    into.push(b' ');
    into.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    into.extend_from_slice(b"\r\n");
    for (name, value) in headers.iter().filter(|(name, _)| !is_head_only(name)) {
        field(into, name, value);
    }
    into.extend_from_slice(b"\r\n");
}

/// Everything but the framing, and the framing of this hop.
fn fields(into: &mut Vec<u8>, headers: &HeaderMap, delimited: Delimited) {
    for (name, value) in headers {
        match *name {
            header::TRANSFER_ENCODING => {}
            header::CONTENT_LENGTH if delimited != Delimited::Absent => {}
            _ => field(into, name, value),
        }
    }
    match delimited {
        Delimited::Not | Delimited::Close | Delimited::Absent => {}
        Delimited::Length(length) => {
            into.extend_from_slice(b"content-length: ");
            into.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
            into.extend_from_slice(b"\r\n");
        }
        Delimited::Chunked => into.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
}

fn field(into: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    into.extend_from_slice(name.as_str().as_bytes());
    into.extend_from_slice(b": ");
    into.extend_from_slice(value.as_bytes());
    into.extend_from_slice(b"\r\n");
}

/// The line before a chunk of `size` bytes.
pub(crate) fn chunk(into: &mut Vec<u8>, size: usize) {
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    for at in (0..digits).rev() {
        let digit = u8::try_from(size >> (at * 4) & 15).expect("four bits");
        into.push(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
    }
    into.extend_from_slice(b"\r\n");
}

/// The end of a chunked body.
pub(crate) fn last_chunk(into: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
    into.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        field(into, name, value);
    }
    into.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_hexadecimal() {
        for size in [0_usize, 1, 9, 10, 15, 16, 255, 256, 4096, 65_535, 1 << 20] {
            let mut line = Vec::new();
            chunk(&mut line, size);
            assert_eq!(String::from_utf8(line).unwrap(), format!("{size:x}\r\n"));
        }
    }
}
