//! A budget for what an HTTP/2 client makes this proxy do without asking for anything: pings and settings that are
//! answered, windows and priorities that are noted, requests that are taken back at once, frames that carry nothing. The HTTP/2
//! library bounds what it buffers; this bounds the work. It looks at frame heads only, on their way through.

use super::{
    flushes::Flushes,
    frames::{self, DATA, END_STREAM, FrameHead, Frames, HEADERS, PROTOCOL_ERROR, RST_STREAM, SETTINGS},
    stall::{self, Stuck},
};
use crate::metrics::{Count, Metrics, labels::Labels};
use std::{
    cell::RefCell,
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};
use weft_fault::{Code, Fault, Phase};

/// A connection may begin with so many frames that only cost, and has at most so many from time alone.
const BURST: u32 = 2_000;
/// So many more in every second.
const PER_SECOND: u32 = 500;
/// What was answered earns more: whoever reads a large response says so in many window updates.
const EARNED: u32 = 50_000;
const PER_RESPONSE: u32 = 4;
/// A request that is taken back, or that we are made to reset, has cost more than a frame.
const PER_RESET: u32 = 4;
const PER_DATA: u32 = 2;
const DATA_BYTES: usize = 1_024;
/// A request that is taken back later than this was meant: a timeout, or a user who left. Concurrency bounds these.
const YOUNG: Duration = Duration::from_millis(100);
/// A frame or header block that has begun must be whole within this.
const FRAME_LIMIT: Duration = Duration::from_secs(10);
/// After GOAWAY the client may go on for so long, and so much, before the connection is cut under it.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 4 << 20;

const ENHANCE_YOUR_CALM: u32 = 11;

/// What one connection has cost so far.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The client is a proxy: what is taken back here was taken back by one of its clients, which that proxy restrains. Ending
    /// its connection would hit the others.
    of_proxy: bool,
    left: u32,
    refilled: Instant,
    /// The highest stream seen, now and at two moments of the past at least [`YOUNG`] apart.
    highest: u32,
    newer: (Instant, u32),
    older: (Instant, u32),
    counts: Counts,
}

/// What the fault tells as evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    streams: u32,
    /// Streams that the client reset, and that we reset because of what it sent or an application did.
    resets: u32,
    resets_sent: u32,
    /// Everything else that only costs.
    idle_frames: u32,
}

/// The budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Excess;

impl Budget {
    fn new(now: Instant, of_proxy: bool) -> Self {
        Budget {
            of_proxy,
            left: BURST,
            refilled: now,
            highest: 0,
            newer: (now, 0),
            older: (now, 0),
            counts: Counts::default(),
        }
    }

    fn received(&mut self, frame: FrameHead, now: Instant) -> Result<(), Excess> {
        match frame.kind {
            HEADERS => {
                self.remember(now);
                if frame.stream > self.highest {
                    self.highest = frame.stream;
                    self.counts.streams += 1;
                }
                Ok(())
            }
            DATA if frame.length > 0 || frame.flags & END_STREAM != 0 => Ok(()),
            RST_STREAM => {
                self.remember(now);
                self.counts.resets += 1;
                let young = frame.stream > self.older.1;
                if young && !self.of_proxy { self.charge(PER_RESET, now) } else { Ok(()) }
            }
            _ => {
                self.counts.idle_frames += 1;
                self.charge(1, now)
            }
        }
    }

    fn sent(&mut self, frame: FrameHead, now: Instant) -> Result<(), Excess> {
        match frame.kind {
            HEADERS => self.earn(PER_RESPONSE),
            DATA => self.earn(PER_DATA + u32::try_from(frame.length / DATA_BYTES).unwrap_or(0)),
            RST_STREAM => {
                self.counts.resets_sent += 1;
                return if self.of_proxy { Ok(()) } else { self.charge(PER_RESET, now) };
            }
            _ => {}
        }
        Ok(())
    }

    fn earn(&mut self, tokens: u32) {
        self.left = (self.left + tokens).min(EARNED);
    }

    fn charge(&mut self, tokens: u32, now: Instant) -> Result<(), Excess> {
        let elapsed = now.saturating_duration_since(self.refilled);
        let refill = u32::try_from(elapsed.as_millis() * u128::from(PER_SECOND) / 1_000).unwrap_or(BURST);
        if refill > 0 {
            self.refilled = now;
            if self.left < BURST {
                self.left = self.left.saturating_add(refill).min(BURST);
            }
        }
        self.left = self.left.checked_sub(tokens).ok_or(Excess)?;
        Ok(())
    }

    fn remember(&mut self, now: Instant) {
        if now.saturating_duration_since(self.newer.0) >= YOUNG {
            self.older = self.newer;
            self.newer = (now, self.highest);
        }
    }
}

/// Why a connection was ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Flood,
    /// A frame that does not become whole.
    Slow,
    /// The client's first frame is no SETTINGS (RFC 9113, 3.4).
    NoSettings,
    /// The client reads nothing: there is no goodbye that it would hear.
    Stuck(Duration),
}

/// Tells the server, once the connection has ended, whether and why the guard ended it.
#[derive(Clone, Debug)]
pub(crate) struct Verdict(Rc<RefCell<Option<(Why, Counts)>>>);

impl Verdict {
    /// Counts what a client had sent that was cut off for it.
    pub(crate) fn count(&self, metrics: &Metrics) {
        let Some((Why::Flood, counts)) = *self.0.borrow() else { return };
        for (kind, count) in [
            ("stream", counts.streams),
            ("reset", counts.resets),
            ("reset_sent", counts.resets_sent),
            ("other", counts.idle_frames),
        ] {
            metrics.counter(Count::FloodFrames, &Labels::new().with("kind", kind)).add(count.into());
        }
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        let (why, counts) = (*self.0.borrow())?;
        let code = match why {
            Why::Flood => Code::FrameFlood,
            Why::Slow => Code::HeaderTimeout,
            Why::NoSettings => Code::H2Protocol,
            Why::Stuck(limit) => return Some(stall::fault(limit)),
        };
        let fault = Fault::new(code).in_phase(Phase::RequestHeaders);
        Some(match why {
            Why::Flood => fault
                .fact("streams", counts.streams)
                .fact("resets", counts.resets)
                .fact("resets_sent", counts.resets_sent)
                .fact("other_frames", counts.idle_frames),
            Why::Slow => fault.fact("limit_ms", FRAME_LIMIT.as_millis()),
            Why::NoSettings => fault.fact("error", "the first frame is not SETTINGS"),
            Why::Stuck(_) => fault,
        })
    }
}

/// A connection that can be ended by a reset.
pub(crate) trait Abort {
    fn abort(&mut self);
}

impl Abort for crate::io::Io {
    fn abort(&mut self) {
        crate::io::Io::abort(self);
    }
}

/// A server's connection, watched. When its budget is used up the client is sent GOAWAY, and what it still sends is thrown away
/// for a moment, so that it can read that.
pub(crate) struct Guard<S> {
    inner: S,
    incoming: Frames,
    outgoing: Frames,
    budget: Budget,
    settled: bool,
    slow: Option<Pin<Box<Sleep>>>,
    /// How long the client may read nothing while there is something to read.
    stall_limit: Option<Duration>,
    stuck: Stuck,
    flushes: Rc<Flushes>,
    ending: Option<Ending>,
    verdict: Verdict,
}

struct Ending {
    farewell: [u8; 17],
    /// So much of it is written. It can only follow a whole frame.
    written: usize,
    shut: bool,
    wasted: usize,
    timer: Pin<Box<Sleep>>,
}

impl<S: AsyncRead + AsyncWrite + Abort + Unpin> Guard<S> {
    pub(crate) fn new(inner: S, of_proxy: bool, stall_limit: Option<Duration>) -> (Self, Verdict) {
        let verdict = Verdict(Rc::default());
        let guard = Guard {
            inner,
            incoming: Frames::of_client(),
            outgoing: Frames::of_server(),
            budget: Budget::new(Instant::now(), of_proxy),
            settled: false,
            slow: None,
            stall_limit,
            stuck: Stuck::default(),
            flushes: Rc::default(),
            ending: None,
            verdict: verdict.clone(),
        };
        (guard, verdict)
    }

    /// Tells when what was queued is written.
    pub(super) fn flushes(&self) -> Rc<Flushes> {
        self.flushes.clone()
    }

    /// Looks at what was read.
    fn received(&mut self, bytes: &[u8]) {
        let Guard { incoming, budget, settled, .. } = self;
        let (mut why, now) = (None, Instant::now());
        incoming.pass(bytes, |frame| {
            if !std::mem::replace(settled, true) && frame.kind != SETTINGS {
                why.get_or_insert(Why::NoSettings);
            }
            if budget.received(frame, now).is_err() {
                why.get_or_insert(Why::Flood);
            }
        });
        if let Some(why) = why {
            self.end(why);
        }
    }

    /// Looks at what was written.
    fn sent(&mut self, bytes: &[u8]) {
        let Guard { outgoing, budget, .. } = self;
        let mut flood = false;
        outgoing.pass(bytes, |frame| {
            flood |= frame.kind == RST_STREAM && budget.sent(frame, Instant::now()).is_err();
            if frame.kind != RST_STREAM {
                // Nothing else is charged.
                let _earned = budget.sent(frame, budget.refilled);
            }
        });
        if flood {
            self.end(Why::Flood);
        }
    }

    fn end(&mut self, why: Why) {
        if self.ending.is_some() {
            return;
        }
        let code = if why == Why::NoSettings { PROTOCOL_ERROR } else { ENHANCE_YOUR_CALM };
        self.ending = Some(Ending {
            farewell: frames::goaway(self.budget.highest, code),
            written: 0,
            shut: false,
            wasted: 0,
            timer: Box::pin(tokio::time::sleep(LINGER)),
        });
        *self.verdict.0.borrow_mut() = Some((why, self.budget.counts));
    }

    /// Has something that began not become whole in time?
    fn poll_slow(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.incoming.is_unfinished() {
            self.slow = None;
            return false;
        }
        let timer = self.slow.get_or_insert_with(|| Box::pin(tokio::time::sleep(FRAME_LIMIT)));
        timer.as_mut().poll(cx).is_ready()
    }

    /// Says goodbye and ends with an error, which ends the server. `Pending` at most for [`LINGER`].
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Guard { inner, outgoing, ending, .. } = self;
        let Some(ending) = ending else { return Poll::Ready(io::ErrorKind::ConnectionAborted.into()) };
        let over = || Poll::Ready(io::Error::from(io::ErrorKind::ConnectionAborted));
        if ending.timer.as_mut().poll(cx).is_ready() {
            return over();
        }
        while outgoing.at_boundary() && ending.written < ending.farewell.len() {
            match ready!(Pin::new(&mut *inner).poll_write(cx, &ending.farewell[ending.written..])) {
                Ok(0) | Err(_) => return over(),
                Ok(count) => ending.written += count,
            }
        }
        if !ending.shut {
            // TLS flushes what it holds before it shuts down.
            if ready!(Pin::new(&mut *inner).poll_shutdown(cx)).is_err() {
                return over();
            }
            ending.shut = true;
        }
        while ending.wasted < LINGER_BYTES {
            let mut waste = [0; 4096];
            let mut buf = ReadBuf::new(&mut waste);
            match ready!(Pin::new(&mut *inner).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => ending.wasted += buf.filled().len(),
                _ => break,
            }
        }
        over()
    }
}

impl<S: AsyncRead + AsyncWrite + Abort + Unpin> AsyncRead for Guard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.flushes.driven_by(cx);
        if this.ending.is_none() {
            let before = buf.filled().len();
            match Pin::new(&mut this.inner).poll_read(cx, buf) {
                Poll::Ready(Ok(())) => this.received(&buf.filled()[before..]),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if this.poll_slow(cx) => this.end(Why::Slow),
                Poll::Pending => return Poll::Pending,
            }
            if this.ending.is_none() {
                return Poll::Ready(Ok(()));
            }
            // The server gets nothing of what was too much.
            buf.set_filled(before);
        }
        this.poll_end(cx).map(Err)
    }
}

impl<S: AsyncRead + AsyncWrite + Abort + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.as_mut().poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.ending.is_some() && this.outgoing.at_boundary() {
            // Nothing follows GOAWAY.
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        let count = match Pin::new(&mut this.inner).poll_write_vectored(cx, bufs) {
            Poll::Ready(count) => count?,
            Poll::Pending => {
                let error = ready!(this.stuck.poll(this.stall_limit, cx));
                if let Some(limit) = this.stall_limit {
                    *this.verdict.0.borrow_mut() = Some((Why::Stuck(limit), this.budget.counts));
                }
                this.inner.abort();
                return Poll::Ready(Err(error));
            }
        };
        this.stuck.moved();
        let mut rest = count;
        for buf in bufs {
            let part = rest.min(buf.len());
            this.sent(&buf[..part]);
            rest -= part;
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        self.flushes.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
