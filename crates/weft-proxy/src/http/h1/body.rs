//! Bodies that come over HTTP/1, interim responses, and what is left when HTTP ends.

use super::{
    conn::{BodyError, Piece, Shared},
    encode,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::body::{Frame, SizeHint};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};
use tokio_util::task::AbortOnDropHandle;
use weft_fault::{Code, Fault, Phase};

/// The body of one message, read as its reader asks for it.
#[derive(Debug)]
pub(crate) struct Incoming {
    conn: Shared,
    of: Of,
    /// The request is still being sent while its response comes.
    pub(super) upload: Option<AbortOnDropHandle<()>>,
    upgrade: Option<Upgrade>,
}

/// Whose body it is, and so what its failure means.
#[derive(Clone, Copy, Debug)]
pub(super) enum Of {
    Request,
    Response { lost: Code, bad: Code },
}

/// A connection that may stop being HTTP.
#[derive(Debug)]
pub(crate) enum Upgrade {
    /// When the response that agrees is written.
    Later(oneshot::Receiver<Upgraded>),
    Now(Upgraded),
}

impl Upgrade {
    /// `None`: the connection stays what it is, or is gone.
    pub(crate) async fn done(self) -> Option<Upgraded> {
        match self {
            Upgrade::Later(receiver) => receiver.await.ok(),
            Upgrade::Now(upgraded) => Some(upgraded),
        }
    }
}

impl Incoming {
    pub(super) fn new(conn: Shared, of: Of, upgrade: Option<Upgrade>) -> Self {
        Incoming { conn, of, upload: None, upgrade }
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.conn.borrow().is_body_done()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.conn.borrow().remaining() {
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }

    /// Takes the end that stays when HTTP ends.
    pub(crate) fn take_upgrade(&mut self) -> Option<Upgrade> {
        self.upgrade.take()
    }

    /// Takes over telling the client what the server says before its response; from now on nobody else says 100.
    pub(crate) fn interim(&self) -> Option<Interim> {
        if !matches!(self.of, Of::Request) {
            return None;
        }
        self.conn.borrow_mut().expects_continue = false;
        Some(Interim(self.conn.clone()))
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let conn = &mut *self.conn.borrow_mut();
        if conn.expects_continue && conn.is_buffer_empty() && !conn.is_body_done() {
            // The server cannot be asked over HTTP/2, which has the request already.
            conn.front().extend_from_slice(CONTINUE);
            conn.expects_continue = false;
            // Whatever is left goes with the response.
            let _whole = conn.poll_write(cx);
        }
        conn.poll_piece(cx).map(|piece| {
            piece.map(|piece| match piece {
                Ok(Piece::Data(data)) => Ok(Frame::data(data)),
                Ok(Piece::Trailers(trailers)) => Ok(Frame::trailers(trailers)),
                Err(error) => Err(match self.of {
                    // A client that ends its side inside a message may still wait for an answer (RFC 9112, 8).
                    Of::Request => {
                        let lost = match error {
                            BodyError::Truncated => Code::BadRequest,
                            _ => Code::ConnectionReset,
                        };
                        error.fault(lost, Code::BadRequest, Phase::RequestBody)
                    }
                    Of::Response { lost, bad } => error.fault(lost, bad, Phase::ResponseBody),
                }),
            })
        })
    }
}

/// A response that nobody wants to the end: the server is told by a reset, which it cannot take for a half-close.
impl Drop for Incoming {
    fn drop(&mut self) {
        if matches!(self.of, Of::Response { .. }) {
            let mut conn = self.conn.borrow_mut();
            if !conn.is_body_done() {
                conn.abort();
            }
        }
    }
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Passes on what a server says before its response (RFC 9110, 15.2).
#[derive(Debug)]
pub(crate) struct Interim(Shared);

impl Interim {
    /// Goes out with the next write of the client's connection, which is polled by whoever waits for the response.
    pub(super) fn say(&self, status: StatusCode, headers: &HeaderMap) {
        let conn = &mut *self.0.borrow_mut();
        encode::interim(conn.front(), status, headers);
    }
}

/// A connection after its last HTTP message.
#[derive(Debug)]
pub(crate) struct Upgraded(pub(super) Shared);

impl Upgraded {
    /// Ends the connection by a reset when it is dropped.
    pub(crate) fn abort(&mut self) {
        self.0.borrow_mut().abort();
    }
}

impl AsyncRead for Upgraded {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_raw(cx, buf)
    }
}

impl AsyncWrite for Upgraded {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().io().poll_write(cx, buf)
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().io().poll_flush(cx)
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().io().poll_shutdown(cx)
    }
}
