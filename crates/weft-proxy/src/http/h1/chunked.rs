//! The chunked coding (RFC 9112, 7.1), as far as its bytes have come: no I/O.

use super::head::{self, Bad};
use bytes::{Buf, BytesMut};
use http::HeaderMap;

/// A chunk's size line, extensions included. Nobody uses these; they have been used to smuggle.
const MAX_CHUNK_LINE: usize = 256;
const MAX_TRAILERS: usize = 16 * 1024;

/// A place in a chunked body.
#[derive(Debug)]
pub(crate) struct Chunks(At);

#[derive(Debug)]
enum At {
    /// A chunk's size line.
    Line,
    /// So many bytes of a chunk's data are still to come.
    Data(u64),
    /// Behind a chunk's data.
    DataEnd,
    Trailers,
    End,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum Next {
    /// That cannot be told before more bytes have come.
    More,
    /// Up to so many bytes of the body. Whoever takes some says so by [`Chunks::took`].
    Data(u64),
    /// The trailer section, and with it the end.
    Trailers(HeaderMap),
    End,
}

impl Chunks {
    pub(crate) fn new() -> Self {
        Chunks(At::Line)
    }

    /// Goes on to the next thing that concerns the reader; what only delimits it is taken from `buf`.
    pub(crate) fn next(&mut self, buf: &mut BytesMut) -> Result<Next, Bad> {
        loop {
            match self.0 {
                At::Line => match chunk_line(buf)? {
                    None => return Ok(Next::More),
                    Some((length, size)) => {
                        buf.advance(length);
                        self.0 = if size == 0 { At::Trailers } else { At::Data(size) };
                    }
                },
                At::Data(left) => return Ok(Next::Data(left)),
                At::DataEnd => match &buf[..] {
                    [b'\r', b'\n', ..] => {
                        buf.advance(2);
                        self.0 = At::Line;
                    }
                    [] | [b'\r'] => return Ok(Next::More),
                    _ => return Err(Bad::Syntax("a chunk longer than its size")),
                },
                At::Trailers => {
                    if buf.starts_with(b"\r\n") {
                        buf.advance(2);
                        self.0 = At::End;
                        return Ok(Next::End);
                    }
                    let Some(end) = trailer_section(buf)? else { return Ok(Next::More) };
                    let section = buf.split_to(end).freeze();
                    self.0 = At::End;
                    return head::trailers(&section).map(Next::Trailers);
                }
                At::End => return Ok(Next::End),
            }
        }
    }

    /// `count` bytes of the data were taken.
    pub(crate) fn took(&mut self, count: usize) {
        if let At::Data(left) = self.0 {
            let left = left.saturating_sub(count as u64);
            self.0 = if left == 0 { At::DataEnd } else { At::Data(left) };
        }
    }
}

/// A chunk's size line at the start of `bytes`: its length and the size (RFC 9112, 7.1). Extensions are passed over.
fn chunk_line(bytes: &[u8]) -> Result<Option<(usize, u64)>, Bad> {
    const BAD: Bad = Bad::Syntax("a chunk size that is none");
    let Some(end) = memchr::memchr(b'\n', &bytes[..bytes.len().min(MAX_CHUNK_LINE)]) else {
        return if bytes.len() >= MAX_CHUNK_LINE {
            Err(Bad::Syntax("a chunk extension too long"))
        } else {
            Ok(None)
        };
    };
    let Some(line) = bytes[..end].strip_suffix(b"\r") else {
        return Err(Bad::Syntax("a line that ends in a bare LF"));
    };
    let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let rest = &line[digits..];
    if !(1..=16).contains(&digits) || line.contains(&b'\r') || rest.iter().any(|b| *b < b' ' && *b != b'\t') {
        return Err(BAD);
    }
    // BWS before the semicolon is allowed (RFC 9112, 7.1.1), and a way to smuggle: no sender needs it.
    if !(rest.is_empty() || rest.starts_with(b";")) {
        return Err(BAD);
    }
    let text = std::str::from_utf8(&line[..digits]).map_err(|_| BAD)?;
    let size = u64::from_str_radix(text, 16).map_err(|_| BAD)?;
    if size > u64::MAX >> 1 {
        return Err(BAD);
    }
    Ok(Some((end + 1, size)))
}

/// Where the trailer section ends that begins at the start of `bytes`.
fn trailer_section(bytes: &[u8]) -> Result<Option<usize>, Bad> {
    head::end(bytes, 0, MAX_TRAILERS)
}
