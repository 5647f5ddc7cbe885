//! The first words of a server that was dialled in plaintext although a proxy may be there.
//!
//! A meshed pod's proxy that refuses a stranger over HTTP says so by a code. Where the bytes are HTTP although they are
//! carried as opaque ones, that answer is the only proof to be had that what discovery said is wrong. Nothing else of the
//! bytes is looked at, and nothing is held back.

use std::{
    cell::Cell,
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};
use weft_fault::Code;

/// A refusal's head is much shorter.
const MOST: usize = 1024;

/// Whether the server's proxy refused; shared between the stream and who waits.
#[derive(Default)]
pub(super) struct Refused {
    seen: Cell<bool>,
    notify: Notify,
}

impl Refused {
    /// Waits until the refusal has been passed on. Cancel-safe.
    pub(super) async fn heard(&self) {
        while !self.seen.get() {
            self.notify.notified().await;
        }
    }

    fn hear(&self) {
        self.seen.set(true);
        self.notify.notify_one();
    }
}

/// A stream whose first bytes are looked at.
pub(super) struct Heard<S> {
    stream: S,
    /// What came so far, while it may still become a refusal.
    first: Option<Vec<u8>>,
    refused: Rc<Refused>,
}

impl<S> Heard<S> {
    /// `listens`: otherwise the stream is passed through as it is.
    pub(super) fn new(stream: S, listens: bool) -> (Self, Rc<Refused>) {
        let refused = Rc::new(Refused::default());
        (Heard { stream, first: listens.then(Vec::new), refused: refused.clone() }, refused)
    }

    pub(super) fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    fn hear(&mut self, bytes: &[u8]) {
        let Some(first) = &mut self.first else { return };
        let room = MOST.saturating_sub(first.len());
        first.extend_from_slice(&bytes[..bytes.len().min(room)]);
        match is_refusal(first) {
            None if first.len() < MOST => {}
            decided => {
                self.first = None;
                if decided == Some(true) {
                    self.refused.hear();
                }
            }
        }
    }
}

/// `None`: more bytes are needed.
fn is_refusal(bytes: &[u8]) -> Option<bool> {
    const STATUS: &[u8] = b"HTTP/1.1 403 ";
    let begun = bytes.len().min(STATUS.len());
    if bytes[..begun] != STATUS[..begun] {
        return Some(false);
    }
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = bytes.get(..end)?;
    Some(head.split(|byte| *byte == b'\n').any(|line| {
        let Some(at) = line.iter().position(|byte| *byte == b':') else { return false };
        let (name, value) = line.split_at(at);
        name.eq_ignore_ascii_case(b"l5d-proxy-error")
            && value[1..].trim_ascii().starts_with(Code::PlaintextRefused.id().as_bytes())
    }))
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if self.first.is_some() {
            self.hear(&buf.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_proxys_own_refusal_counts() {
        for (bytes, decided) in [
            ("", None),
            ("HTTP/1.1 4", None),
            ("HTTP/1.1 403 Forbidden\r\nl5d-proxy-error: POL-002\r\n", None),
            ("HTTP/1.1 403 Forbidden\r\nL5d-Proxy-Error:  POL-002\r\ncontent-length: 0\r\n\r\n", Some(true)),
            ("HTTP/1.1 403 Forbidden\r\nl5d-proxy-error: POL-001\r\n\r\n", Some(false)),
            ("HTTP/1.1 403 Forbidden\r\n\r\nl5d-proxy-error: POL-002\r\n", Some(false)),
            ("HTTP/1.1 200 OK\r\nl5d-proxy-error: POL-002\r\n\r\n", Some(false)),
            ("220 mail.example", Some(false)),
        ] {
            assert_eq!(is_refusal(bytes.as_bytes()), decided, "{bytes}");
        }
    }
}
