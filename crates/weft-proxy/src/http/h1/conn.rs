//! One connection as the codec sees it: bytes that came, bytes to go, and the body that is being read.

use super::{
    chunked::{Chunks, Next},
    head::{self, Bad, Framing},
};
use crate::{http::stall::Stuck, io::Io};
use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use std::{
    cell::{Cell, RefCell},
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weft_fault::Fault;

/// A connection is used by its server loop or client and by the body that is read from it, on one worker, never across
/// an await.
pub(super) type Shared = Rc<RefCell<Conn>>;

/// One read of a head, or of the first piece of a body.
const READ: usize = 16 * 1024;
/// Larger reads are for bodies that fill the smaller ones: few system calls for who sends much, little memory for the rest.
const READ_MAX: usize = 256 * 1024;
const GROWTH: usize = 4;
/// Pieces up to this size are copied behind the head, so that both go in one slice and one TLS record.
const INLINE: usize = 4 * 1024;

thread_local! {
    /// Where reads go first: idle connections own no buffer. Taken for the time of one poll.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

pub(super) struct Conn {
    io: Io,
    /// Read and not understood yet.
    buf: BytesMut,
    /// How much of `buf` was searched for the end of a head.
    seen: usize,
    /// The largest head.
    max_head: usize,
    pub(super) ended: bool,
    /// To be written: a head or chunk line, a piece of a body, and what closes a chunk.
    front: Vec<u8>,
    piece: Bytes,
    tail: &'static [u8],
    written: usize,
    /// How long the peer may read nothing of what is to be written.
    pub(super) stall_limit: Option<Duration>,
    stuck: Stuck,
    body: Body,
    appetite: usize,
    /// The memory of large reads, while a body lasts.
    spare: BytesMut,
    /// The client waits for a 100; whoever reads the body first, and cannot pass one on, makes it.
    pub(super) expects_continue: bool,
}

/// The body that is being read.
#[derive(Debug)]
enum Body {
    Done,
    Length(u64),
    Close,
    Chunked(Chunks),
    Broken,
}

/// Why a body cannot be read to its end.
#[derive(Debug)]
pub(super) enum BodyError {
    Bad(Bad),
    /// The peer left in the middle.
    Truncated,
    Io(io::Error),
}

pub(super) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Conn {
    pub(super) fn shared(io: Io, max_head: usize) -> Shared {
        Rc::new(RefCell::new(Conn {
            io,
            buf: BytesMut::new(),
            seen: 0,
            max_head,
            ended: false,
            front: Vec::new(),
            piece: Bytes::new(),
            tail: b"",
            written: 0,
            stall_limit: None,
            stuck: Stuck::default(),
            body: Body::Done,
            appetite: READ,
            spare: BytesMut::new(),
            expects_continue: false,
        }))
    }

    // --- reading

    /// Has a message begun that was not read to its end?
    pub(super) fn is_body_done(&self) -> bool {
        matches!(self.body, Body::Done)
    }

    pub(super) fn is_buffer_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Bytes that belong to later messages.
    pub(super) fn read_ahead(&self) -> usize {
        self.buf.len()
    }

    pub(super) fn begin_body(&mut self, framing: Framing) {
        self.appetite = READ;
        self.spare = BytesMut::new();
        self.body = match framing {
            Framing::Empty => Body::Done,
            Framing::Length(length) => Body::Length(length),
            Framing::Chunked => Body::Chunked(Chunks::new()),
            Framing::Close => Body::Close,
        };
    }

    /// What is left of a body of known length.
    pub(super) fn remaining(&self) -> Option<u64> {
        match self.body {
            Body::Done => Some(0),
            Body::Length(left) => Some(left),
            _ => None,
        }
    }

    /// Reads once, behind what is there. 0 is the end.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.ended {
            return Poll::Ready(Ok(0));
        }
        let mut scratch = SCRATCH.take();
        scratch.resize(READ, 0);
        let mut into = ReadBuf::new(&mut scratch);
        let polled = Pin::new(&mut self.io).poll_read(cx, &mut into);
        let read = into.filled().len();
        if polled.is_ready() {
            self.buf.extend_from_slice(&scratch[..read]);
        }
        SCRATCH.set(scratch);
        ready!(polled)?;
        self.ended |= read == 0;
        Poll::Ready(Ok(read))
    }

    /// The next whole head; `None` is a clean end before its first byte.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BodyError>> {
        loop {
            // Empty lines before a head are passed over (RFC 9112, 2.2).
            while self.seen == 0 && self.buf.starts_with(b"\r\n") {
                self.buf.advance(2);
            }
            if let Some(end) = head::end(&self.buf, self.seen, self.max_head).map_err(BodyError::Bad)? {
                self.seen = 0;
                return Poll::Ready(Ok(Some(self.take(end))));
            }
            self.seen = if self.buf.len() < 2 { 0 } else { self.buf.len() };
            if ready!(self.poll_fill(cx)).map_err(BodyError::Io)? == 0 {
                let clean = self.buf.is_empty();
                return Poll::Ready(if clean { Ok(None) } else { Err(BodyError::Truncated) });
            }
        }
    }

    fn take(&mut self, count: usize) -> Bytes {
        // The last bytes take the buffer with them: an idle connection keeps none.
        if count == self.buf.len() {
            return std::mem::take(&mut self.buf).freeze();
        }
        self.buf.split_to(count).freeze()
    }

    /// The next piece of the body; `None` is its end.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        let polled = self.poll_decode(cx);
        if let Poll::Ready(Some(Err(_))) = &polled {
            self.body = Body::Broken;
        }
        polled
    }

    fn poll_decode(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        loop {
            match self.body {
                Body::Done => return Poll::Ready(None),
                Body::Broken => return Poll::Ready(Some(Err(BodyError::Truncated))),
                Body::Length(left) => {
                    let data = match ready!(self.poll_data(cx, left)) {
                        Ok(data) => data,
                        Err(error) => return Poll::Ready(Some(Err(error))),
                    };
                    let left = left - data.len() as u64;
                    self.body = if left == 0 { Body::Done } else { Body::Length(left) };
                    if left == 0 {
                        self.spare = BytesMut::new();
                    }
                    return Poll::Ready(Some(Ok(Piece::Data(data))));
                }
                Body::Close => match ready!(self.poll_data(cx, u64::MAX)) {
                    Ok(data) => return Poll::Ready(Some(Ok(Piece::Data(data)))),
                    Err(BodyError::Truncated) => self.body = Body::Done,
                    Err(error) => return Poll::Ready(Some(Err(error))),
                },
                Body::Chunked(ref mut chunks) => match chunks.next(&mut self.buf) {
                    Err(bad) => return Poll::Ready(Some(Err(BodyError::Bad(bad)))),
                    Ok(Next::More) => {
                        if let Err(error) = ready!(self.poll_more(cx)) {
                            return Poll::Ready(Some(Err(error)));
                        }
                    }
                    Ok(Next::Data(left)) => {
                        let data = match ready!(self.poll_data(cx, left)) {
                            Ok(data) => data,
                            Err(error) => return Poll::Ready(Some(Err(error))),
                        };
                        if let Body::Chunked(chunks) = &mut self.body {
                            chunks.took(data.len());
                        }
                        return Poll::Ready(Some(Ok(Piece::Data(data))));
                    }
                    Ok(Next::Trailers(trailers)) => {
                        self.body = Body::Done;
                        return Poll::Ready(Some(Ok(Piece::Trailers(trailers))));
                    }
                    Ok(Next::End) => {
                        self.body = Body::Done;
                        return Poll::Ready(None);
                    }
                },
            }
        }
    }

    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        Poll::Ready(match ready!(self.poll_fill(cx)) {
            Ok(0) => Err(BodyError::Truncated),
            Ok(_) => Ok(()),
            Err(error) => Err(BodyError::Io(error)),
        })
    }

    /// Bytes of the body, `left` at most.
    fn poll_data(&mut self, cx: &mut Context<'_>, left: u64) -> Poll<Result<Bytes, BodyError>> {
        if self.buf.is_empty() {
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(self.appetite);
            if wanted > READ {
                return self.poll_large(cx, wanted);
            }
            let read = match ready!(self.poll_fill(cx)) {
                Ok(0) => return Poll::Ready(Err(BodyError::Truncated)),
                Ok(read) => read,
                Err(error) => return Poll::Ready(Err(BodyError::Io(error))),
            };
            if read == READ {
                self.appetite = READ * GROWTH;
            }
        }
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(self.buf.len());
        Poll::Ready(Ok(self.take(count)))
    }

    /// A large read goes to where it stays: nothing is copied.
    fn poll_large(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<Result<Bytes, BodyError>> {
        let mut into = std::mem::take(&mut self.spare);
        if into.capacity() < READ {
            into.reserve(wanted);
        }
        let wanted = wanted.min(into.capacity());
        // Reserved memory may be larger than asked for; what comes behind the body belongs to the next message.
        let polled = {
            use bytes::BufMut;
            let mut limited = (&mut into).limit(wanted);
            tokio_util::io::poll_read_buf(Pin::new(&mut self.io), cx, &mut limited)
        };
        match polled {
            Poll::Pending => {
                self.spare = into;
                Poll::Pending
            }
            Poll::Ready(Ok(0)) => {
                self.ended = true;
                Poll::Ready(Err(BodyError::Truncated))
            }
            Poll::Ready(Ok(read)) => {
                if read == wanted {
                    self.appetite = (self.appetite * GROWTH).min(READ_MAX);
                } else if read < self.appetite / GROWTH {
                    self.appetite = (self.appetite / GROWTH).max(READ);
                }
                let data = into.split_to(read).freeze();
                // What is left serves the next read, unless this was the last.
                self.spare = into;
                Poll::Ready(Ok(data))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(BodyError::Io(error))),
        }
    }

    // --- writing

    pub(super) fn is_written(&self) -> bool {
        self.front.is_empty() && self.piece.is_empty() && self.tail.is_empty()
    }

    /// More may be put behind the front.
    pub(super) fn is_written_but_front(&self) -> bool {
        self.piece.is_empty() && self.tail.is_empty()
    }

    /// What is to be written next. Only after all of the last is written, but for what `front` may get before.
    pub(super) fn front(&mut self) -> &mut Vec<u8> {
        &mut self.front
    }

    pub(super) fn stage(&mut self, piece: Bytes, tail: &'static [u8]) {
        if piece.len() <= INLINE {
            self.front.extend_from_slice(&piece);
            self.front.extend_from_slice(tail);
        } else {
            (self.piece, self.tail) = (piece, tail);
        }
    }

    /// Writes everything staged, and flushes it.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let front = &self.front[self.written..];
            let polled = if self.piece.is_empty() && self.tail.is_empty() {
                if front.is_empty() {
                    break;
                }
                Pin::new(&mut self.io).poll_write(cx, front)
            } else {
                let slices = [IoSlice::new(front), IoSlice::new(&self.piece), IoSlice::new(self.tail)];
                Pin::new(&mut self.io).poll_write_vectored(cx, &slices)
            };
            let Poll::Ready(count) = polled else {
                return self.stuck.poll(self.stall_limit, cx).map(Err);
            };
            self.stuck.moved();
            let count = count?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_front = count.min(front.len());
            let of_piece = (count - of_front).min(self.piece.len());
            self.written += of_front;
            self.piece.advance(of_piece);
            self.tail = &self.tail[count - of_front - of_piece..];
        }
        self.front = Vec::new();
        self.written = 0;
        self.piece = Bytes::new();
        Pin::new(&mut self.io).poll_flush(cx)
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    /// Has the peer reset the connection that it had half-closed?
    pub(super) fn is_reset(&self) -> bool {
        self.io.is_reset()
    }

    /// Did the peer read nothing for too long?
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.has_fired()
    }

    /// Ends the connection by a reset when it is dropped.
    pub(super) fn abort(&mut self) {
        self.io.abort();
    }

    // --- after HTTP

    /// Bytes that are not HTTP any more.
    pub(super) fn poll_raw(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.buf.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, into);
        }
        let count = self.buf.len().min(into.remaining());
        into.put_slice(&self.take(count));
        Poll::Ready(Ok(()))
    }

    pub(super) fn io(&mut self) -> Pin<&mut Io> {
        Pin::new(&mut self.io)
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conn({:?}, {} bytes read ahead)", self.body, self.buf.len())
    }
}

impl BodyError {
    /// `code` for a peer that left or broke the connection.
    pub(super) fn fault(
        self,
        lost: weft_fault::Code,
        bad: weft_fault::Code,
        phase: weft_fault::Phase,
    ) -> Fault {
        match self {
            BodyError::Bad(why) => why.fault(bad, phase),
            BodyError::Truncated => {
                Fault::new(lost).in_phase(phase).fact("error", "the connection ended inside a message")
            }
            BodyError::Io(error) => Fault::new(lost).in_phase(phase).because(error),
        }
    }
}
