//! A stream whose first bytes were read already.

use bytes::{Buf, BytesMut};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Reading a connection's first bytes to tell its protocol must not take them from whoever handles it: they are kept
/// and read again, in order, before anything else.
#[derive(Debug)]
pub struct Prefixed<S> {
    prefix: BytesMut,
    inner: S,
}

impl<S> Prefixed<S> {
    pub fn new(inner: S) -> Self {
        Prefixed { prefix: BytesMut::new(), inner }
    }

    /// What was read and not taken yet.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Puts the stream into another one; what was read stays in front.
    pub fn map<T>(self, wrap: impl FnOnce(S) -> T) -> Prefixed<T> {
        Prefixed { prefix: self.prefix, inner: wrap(self.inner) }
    }

    /// Drops the first `count` bytes of the prefix: they were understood and are nobody else's.
    pub fn consume(&mut self, count: usize) {
        self.prefix.advance(count);
    }
}

impl<S: AsyncRead + Unpin> Prefixed<S> {
    /// Reads more bytes behind the prefix, at most `max` at once; 0 is the end of the stream. Cancel-safe.
    pub async fn fill(&mut self, max: usize) -> io::Result<usize> {
        self.prefix.reserve(max);
        (&mut self.inner).take(max as u64).read_buf(&mut self.prefix).await
    }
}

impl<S: AsyncRead + Unpin> Prefixed<S> {
    /// As [`Prefixed::fill`], for who polls. Reads a few hundred bytes at most.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut piece = [0; 512];
        let mut read = ReadBuf::new(&mut piece);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
        self.prefix.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let count = self.prefix.len().min(buf.remaining());
        buf.put_slice(&self.prefix[..count]);
        self.prefix.advance(count);
        if self.prefix.is_empty() {
            // Give the memory back: the connection may live for days.
            self.prefix = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, duplex};

    #[tokio::test]
    async fn every_byte_is_read_again_in_order() {
        let (mut near, far) = duplex(64);
        let mut far = Prefixed::new(far);
        near.write_all(b"abc").await.unwrap();
        assert_eq!(far.fill(2).await.unwrap(), 2);
        assert_eq!(far.fill(100).await.unwrap(), 1);
        assert_eq!(far.prefix(), b"abc");
        far.consume(1);
        near.write_all(b"def").await.unwrap();
        near.shutdown().await.unwrap();
        let mut text = String::new();
        far.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "bcdef");
        assert_eq!(far.fill(1).await.unwrap(), 0);
    }
}
