//! Copying bytes both ways until each side has ended.

use std::{
    cell::Cell,
    fmt,
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Which of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// A stream failed while copying.
#[derive(Debug)]
pub struct CopyError {
    /// The stream that failed.
    pub side: Side,
    pub writing: bool,
    pub error: io::Error,
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.writing { "writing to" } else { "reading from" };
        let side = match self.side {
            Side::Client => "client",
            Side::Server => "server",
        };
        write!(f, "{verb} the {side} failed")
    }
}
impl std::error::Error for CopyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Copies until both directions have ended. The end of one direction is passed on as a half-close while the other goes
/// on. `passed` hears of every piece that was written: the stream it came from, and its length.
pub async fn both_ways<C, S>(
    client: &mut C,
    server: &mut S,
    passed: &mut dyn FnMut(Side, usize),
) -> Result<(), CopyError>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut up = OneWay::new(Side::Client, Side::Server);
    let mut down = OneWay::new(Side::Server, Side::Client);
    poll_fn(|cx| {
        let upward = up.poll(cx, Pin::new(&mut *client), Pin::new(&mut *server), passed)?;
        let downward = down.poll(cx, Pin::new(&mut *server), Pin::new(&mut *client), passed)?;
        if upward.is_ready() && downward.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// How much one read may take. A direction starts small, takes more while the writer keeps up, and falls back when it
/// does not: what a slow receiver makes us keep is bounded by the read that preceded.
const SMALL: usize = 16 * 1024;
const LARGE: usize = 256 * 1024;
const GROWTH: usize = 4;

thread_local! {
    /// Reads go here and are written on at once, so that idle connections own no buffer. Taken for the time of one poll.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

struct OneWay {
    from: Side,
    to: Side,
    /// What the writer did not take yet.
    backlog: Vec<u8>,
    written: usize,
    limit: usize,
    unflushed: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Copying,
    Closing,
    Ended,
}

impl OneWay {
    fn new(from: Side, to: Side) -> Self {
        OneWay {
            from,
            to,
            backlog: Vec::new(),
            written: 0,
            limit: SMALL,
            unflushed: false,
            state: State::Copying,
        }
    }

    fn poll<R: AsyncRead, W: AsyncWrite>(
        &mut self,
        cx: &mut Context<'_>,
        reader: Pin<&mut R>,
        writer: Pin<&mut W>,
        passed: &mut dyn FnMut(Side, usize),
    ) -> Poll<Result<(), CopyError>> {
        if self.state == State::Ended {
            return Poll::Ready(Ok(()));
        }
        let mut scratch = SCRATCH.take();
        if scratch.is_empty() {
            scratch = vec![0; LARGE];
        }
        let polled = self.poll_with(cx, reader, writer, passed, &mut scratch);
        SCRATCH.set(scratch);
        polled
    }

    fn poll_with<R: AsyncRead, W: AsyncWrite>(
        &mut self,
        cx: &mut Context<'_>,
        mut reader: Pin<&mut R>,
        mut writer: Pin<&mut W>,
        passed: &mut dyn FnMut(Side, usize),
        scratch: &mut [u8],
    ) -> Poll<Result<(), CopyError>> {
        let (from, to) = (self.from, self.to);
        let reading = |error| CopyError { side: from, writing: false, error };
        let writing = |error| CopyError { side: to, writing: true, error };
        loop {
            // 1. What is left of the last read.
            while self.written < self.backlog.len() {
                let rest = &self.backlog[self.written..];
                let count = ready!(writer.as_mut().poll_write(cx, rest)).and_then(some).map_err(writing)?;
                self.written += count;
                self.unflushed = true;
                passed(from, count);
            }
            if !self.backlog.is_empty() {
                self.backlog = Vec::new();
            }
            // 2. The end of this direction.
            if self.state == State::Closing {
                match ready!(writer.as_mut().poll_shutdown(cx)) {
                    // A peer that closed both ways already cannot be told that one way is over.
                    Err(error) if error.kind() != io::ErrorKind::NotConnected => {
                        return Poll::Ready(Err(writing(error)));
                    }
                    _ => {}
                }
                self.state = State::Ended;
                return Poll::Ready(Ok(()));
            }
            // 3. The next piece.
            let mut read = ReadBuf::new(&mut scratch[..self.limit]);
            let Poll::Ready(result) = reader.as_mut().poll_read(cx, &mut read) else {
                if self.unflushed {
                    ready!(writer.as_mut().poll_flush(cx)).map_err(writing)?;
                    self.unflushed = false;
                }
                return Poll::Pending;
            };
            result.map_err(reading)?;
            let mut piece = read.filled();
            if piece.is_empty() {
                self.state = State::Closing;
                continue;
            }
            let full = piece.len() == self.limit;
            while !piece.is_empty() {
                match writer.as_mut().poll_write(cx, piece) {
                    Poll::Ready(result) => {
                        let count = result.and_then(some).map_err(writing)?;
                        self.unflushed = true;
                        passed(from, count);
                        piece = &piece[count..];
                    }
                    Poll::Pending => {
                        self.backlog = piece.to_vec();
                        self.written = 0;
                        self.limit = SMALL;
                        return Poll::Pending;
                    }
                }
            }
            if full {
                self.limit = (self.limit * GROWTH).min(LARGE);
            }
        }
    }
}

fn some(count: usize) -> io::Result<usize> {
    if count == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn a_half_close_is_passed_on_and_the_answer_still_comes() {
        let (mut client, mut a) = duplex(7);
        let (mut b, mut server) = duplex(1000);
        let mut counts = (0, 0);
        let mut passed = |side, n| match side {
            Side::Client => counts.0 += n,
            Side::Server => counts.1 += n,
        };
        let ends = async {
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let serving = async {
            let mut question = Vec::new();
            server.read_to_end(&mut question).await.unwrap();
            server.write_all(b"answer to ").await.unwrap();
            server.write_all(&question).await.unwrap();
            drop(server);
        };
        let (copied, answer, ()) = tokio::join!(both_ways(&mut a, &mut b, &mut passed), ends, serving);
        copied.unwrap();
        assert_eq!(answer, b"answer to question");
        assert_eq!(counts, (8, 18));
    }

    #[tokio::test]
    async fn a_megabyte_arrives_whole_through_growing_buffers() {
        let data: Vec<u8> = (0..1_048_577_u32).map(|i| i.to_le_bytes()[1]).collect();
        let (mut client, mut a) = duplex(LARGE);
        let (mut b, mut server) = duplex(LARGE);
        let sending = async {
            client.write_all(&data).await.unwrap();
            client.shutdown().await.unwrap();
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
        };
        let receiving = async {
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            drop(server);
            got
        };
        let mut passed = |_, _| {};
        let (copied, (), got) = tokio::join!(both_ways(&mut a, &mut b, &mut passed), sending, receiving);
        copied.unwrap();
        assert!(got == data);
    }
}
