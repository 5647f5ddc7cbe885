//! What the HTTP/2 library leaves open towards a server. Is anybody still there? A PING of the pool's own, before a request
//! rides on a connection that was quiet for a while: the library's keep-alive finds a dead peer too late for that request. And
//! may the server send what it sends?

use super::{
    frames::{self, Frames, PROTOCOL_ERROR},
    push::PushWatch,
};
use crate::{deadline::within, io::Io};
use std::{
    cell::{Cell, RefCell},
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::Instant,
};

/// A connection on which something was read since then is trusted.
const QUIET: Duration = Duration::from_secs(3);
/// A peer has so long to answer. One that is merely slow costs a handshake, not the request.
const ANSWERS: Duration = Duration::from_secs(1);
/// Not the payload of the library's own: an answer to this one it ignores.
const PAYLOAD: [u8; 8] = *b"weftping";

/// What is known of whether a peer lives. Shared by the connection's task and whoever wants to use it.
#[derive(Debug)]
pub(crate) struct Pulse {
    read: Cell<Instant>,
    reads: Cell<u64>,
    heard: Notify,
    wanted: Cell<bool>,
    /// How much had been read when a PING was last asked for: one is enough until it is answered.
    asked: Cell<Option<u64>>,
    /// The task that drives the connection.
    task: RefCell<Option<Waker>>,
    /// The rule that the server broke, for which the connection was ended here.
    breach: Cell<Option<&'static str>>,
}

impl Pulse {
    fn new() -> Rc<Self> {
        Rc::new(Pulse {
            read: Cell::new(Instant::now()),
            reads: Cell::new(0),
            heard: Notify::new(),
            wanted: Cell::new(false),
            asked: Cell::new(None),
            task: RefCell::new(None),
            breach: Cell::new(None),
        })
    }

    /// Why the connection was ended here, if it was.
    pub(super) fn breach(&self) -> Option<&'static str> {
        self.breach.get()
    }

    /// May a request ride on the connection? Waits for an answer if nothing was read for a while.
    pub(crate) async fn beats(&self) -> bool {
        if self.read.get().elapsed() < QUIET {
            return true;
        }
        let before = self.reads.get();
        if self.asked.replace(Some(before)) != Some(before) {
            self.wanted.set(true);
        }
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
        let answered = async {
            loop {
                let heard = self.heard.notified();
                if self.reads.get() != before {
                    return;
                }
                heard.await;
            }
        };
        within(ANSWERS, answered).await.is_ok()
    }

    fn has_read(&self) {
        self.read.set(Instant::now());
        self.reads.set(self.reads.get() + 1);
        self.heard.notify_waiters();
    }
}

/// A client's connection that can ask its peer for a sign of life, between two frames of its own.
pub(crate) struct Alive {
    io: Io,
    pulse: Rc<Pulse>,
    outgoing: Frames,
    /// What is left to write of a PING.
    ping: &'static [u8],
    unflushed: bool,
    push: PushWatch,
}

const GOAWAY: [u8; 17] = frames::goaway(0, PROTOCOL_ERROR);
const PING: [u8; 17] = frames::ping(PAYLOAD);

impl Alive {
    pub(crate) fn new(io: Io) -> (Self, Rc<Pulse>) {
        let pulse = Pulse::new();
        let alive = Alive {
            io,
            pulse: pulse.clone(),
            outgoing: Frames::of_client(),
            ping: &[],
            unflushed: false,
            push: PushWatch::new(),
        };
        (alive, pulse)
    }

    /// The connection is over. The server is told why, if that can be written at once: nothing waits for who breaks rules.
    fn break_off(&mut self, why: &'static str, cx: &mut Context<'_>) -> io::Error {
        if self.pulse.breach.replace(Some(why)).is_none()
            && self.outgoing.at_boundary()
            && self.ping.is_empty()
        {
            let _told = Pin::new(&mut self.io).poll_write(cx, &GOAWAY);
            let _flushed = Pin::new(&mut self.io).poll_flush(cx);
        }
        io::Error::new(io::ErrorKind::InvalidData, why)
    }

    /// Writes the PING that is asked for, as far as it goes. Nothing else may be written before it is done.
    fn poll_ping(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.ping.is_empty() && self.pulse.wanted.get() && self.outgoing.at_boundary() {
            self.pulse.wanted.set(false);
            self.ping = &PING;
        }
        while !self.ping.is_empty() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, self.ping))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.ping = &self.ping[count..],
            }
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Alive {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        {
            let mut task = this.pulse.task.borrow_mut();
            match &mut *task {
                Some(known) => known.clone_from(cx.waker()),
                None => *task = Some(cx.waker().clone()),
            }
        }
        // What cannot be written now is written when the socket takes more, which wakes this task.
        if let Poll::Ready(Err(error)) = this.poll_ping(cx) {
            return Poll::Ready(Err(error));
        }
        let before = buf.filled().len();
        if let Some(why) = this.pulse.breach.get() {
            return Poll::Ready(Err(this.break_off(why, cx)));
        }
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            this.pulse.has_read();
            if this.push.sees(&buf.filled()[before..]) {
                buf.set_filled(before);
                return Poll::Ready(Err(this.break_off("SETTINGS_ENABLE_PUSH from a server", cx)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Alive {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_ping(cx))?;
        let count = ready!(Pin::new(&mut this.io).poll_write(cx, buf))?;
        this.outgoing.pass(&buf[..count], |_| {});
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_ping(cx))?;
        let count = ready!(Pin::new(&mut this.io).poll_write_vectored(cx, bufs))?;
        let mut left = count;
        for buf in bufs {
            let taken = left.min(buf.len());
            this.outgoing.pass(&buf[..taken], |_| {});
            left -= taken;
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
