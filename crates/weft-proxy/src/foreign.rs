//! The parsers of foreign bytes, for whoever tries bytes of their own on them (`fuzz/`): the functions that connections use,
//! without a connection.

use crate::{
    config, detect,
    http::{
        h1::{
            chunked::{Chunks, Next},
            encode::{self, Delimited},
            head,
        },
        headers, orig_proto, wellformed,
    },
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, Version};
use std::time::Duration;
use weft_fault::{Code, Fault, Phase};

/// How a message's body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    Empty,
    Length(u64),
    Chunked,
    /// By the end of the connection.
    Close,
}

impl Framing {
    fn read(framing: head::Framing) -> Self {
        match framing {
            head::Framing::Empty => Framing::Empty,
            head::Framing::Length(length) => Framing::Length(length),
            head::Framing::Chunked => Framing::Chunked,
            head::Framing::Close => Framing::Close,
        }
    }

    fn write(self) -> Delimited {
        match self {
            Framing::Empty => Delimited::Not,
            Framing::Length(length) => Delimited::Length(length),
            Framing::Chunked => Delimited::Chunked,
            Framing::Close => Delimited::Close,
        }
    }
}

/// A message's head.
#[derive(Debug)]
pub struct Head<T> {
    /// So many bytes it takes.
    pub length: usize,
    pub message: T,
    pub framing: Framing,
    pub keep_alive: bool,
}

/// What the protocol of a connection is that begins like this; `None`: more bytes are needed.
pub fn protocol(bytes: &[u8]) -> Option<&'static str> {
    detect::sniff(bytes).map(detect::Protocol::as_str)
}

/// The largest head, where no configuration says otherwise.
const HEAD: usize = 64 * 1024;

/// Where the head at the start of `bytes` ends, of which the first `seen` were looked at before.
pub fn head_end(bytes: &[u8], seen: usize) -> Result<Option<usize>, Fault> {
    head::end(bytes, seen, HEAD).map_err(head::Bad::request)
}

/// The request's head at the start of `bytes`; `None`: it is not whole.
pub fn request(bytes: &[u8]) -> Result<Option<Head<Request<()>>>, Fault> {
    let Some(length) = head_end(bytes, 0)? else { return Ok(None) };
    let read = head::request(&Bytes::copy_from_slice(&bytes[..length])).map_err(head::Bad::request)?;
    let head::RequestHead { request, framing, keep_alive, .. } = read;
    Ok(Some(Head { length, message: request, framing: Framing::read(framing), keep_alive }))
}

/// The response's head at the start of `bytes`, in answer to a request of method `to`.
pub fn response(bytes: &[u8], to: &Method) -> Result<Option<Head<Response<()>>>, Fault> {
    let fault = |bad: head::Bad| bad.fault(Code::UpstreamNotHttp, Phase::ResponseHeaders);
    let Some(length) = head::end(bytes, 0, HEAD).map_err(fault)? else { return Ok(None) };
    let read = head::response(&Bytes::copy_from_slice(&bytes[..length]), to).map_err(fault)?;
    let head::ResponseHead { response, framing, keep_alive } = read;
    Ok(Some(Head { length, message: response, framing: Framing::read(framing), keep_alive }))
}

/// A request's head as it is sent on over HTTP/1.
pub fn write_request(request: &Request<()>, framing: Framing) -> Vec<u8> {
    let (parts, ()) = request.clone().into_parts();
    let mut written = Vec::new();
    encode::request(&mut written, &parts, framing.write());
    written
}

/// A response's head as it is sent on to a client of `version`. `None`: what it says of its body stays, which does not come.
pub fn write_response(response: &Response<()>, version: Version, framing: Option<Framing>) -> Vec<u8> {
    let mut written = Vec::new();
    let delimited = framing.map_or(Delimited::Absent, Framing::write);
    encode::response(&mut written, version, response, delimited, None);
    written
}

/// Carries an HTTP/1 request over HTTP/2, and takes it out again as the next proxy does. `None`: the next proxy refuses it,
/// or does not know it for what it was.
pub fn carry(mut request: Request<()>) -> Option<Request<()>> {
    let absolute = request.uri().authority().is_some();
    headers::strip_hop_by_hop(request.headers_mut(), false);
    orig_proto::upgrade(&mut request, absolute, "192.0.2.1:80");
    wellformed::check(&request).ok()?;
    orig_proto::restore(&mut request)?;
    Some(request)
}

/// A chunked body that comes piece by piece.
#[derive(Debug)]
pub struct Chunked {
    chunks: Chunks,
    buf: BytesMut,
    pub data: Vec<u8>,
    /// There once the body has come to its end.
    pub trailers: Option<HeaderMap>,
}

impl Default for Chunked {
    fn default() -> Self {
        Chunked { chunks: Chunks::new(), buf: BytesMut::new(), data: Vec::new(), trailers: None }
    }
}

impl Chunked {
    /// Reads on, as far as these bytes allow.
    pub fn pass(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.buf.extend_from_slice(bytes);
        while self.trailers.is_none() {
            match self.chunks.next(&mut self.buf).map_err(head::Bad::request)? {
                Next::More => break,
                Next::Data(_) if self.buf.is_empty() => break,
                Next::Data(left) => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(self.buf.len());
                    self.data.extend_from_slice(&self.buf.split_to(count));
                    self.chunks.took(count);
                }
                Next::Trailers(trailers) => self.trailers = Some(trailers),
                Next::End => self.trailers = Some(HeaderMap::new()),
            }
        }
        Ok(())
    }

    /// What came behind the body, or belongs to it and is not understood yet.
    pub fn rest(&self) -> &[u8] {
        &self.buf
    }
}

/// A body of these pieces as it is sent on.
pub fn write_chunked<'p>(pieces: impl IntoIterator<Item = &'p [u8]>, trailers: &HeaderMap) -> Vec<u8> {
    let mut written = Vec::new();
    for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
        encode::chunk(&mut written, piece.len());
        written.extend_from_slice(piece);
        written.extend_from_slice(b"\r\n");
    }
    encode::last_chunk(&mut written, Some(trailers));
    written
}

/// A duration as this proxy's variables write it.
pub fn duration(text: &str) -> Option<Duration> {
    config::parse::duration(text)
}
