//! Serving HTTP/1 on one connection, request after request. Read top to bottom.

use super::{
    body::{Incoming, Of, Upgrade, Upgraded},
    conn::{BodyError, Conn, Shared},
    encode::{self, Delimited},
    head::{self, RequestHead},
};
use crate::{
    deadline::within,
    drain,
    http::{
        body::Body,
        headers,
        server::{self, HEAD_LIMIT, Service, Settings},
        stall,
    },
    io::Io,
};
use bytes::Bytes;
use http::{Method, Response, StatusCode, Version};
use hyper::body::Body as _;
use std::{
    error::Error,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::ReadBuf,
    sync::oneshot,
    time::{Instant, Sleep, sleep},
};
use weft_fault::{Code, Fault, Phase};

/// Requests that a client sends before it has its answer wait in the buffer up to here, then in the socket.
const AHEAD: usize = 64 * 1024;
/// Closing while the client still sends would reset the connection and take the last answer from it (RFC 9112, 9.6):
/// what comes is read and thrown away, for a while.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 4 << 20;

/// What a response depends on besides its service.
struct Asked {
    method: Method,
    version: Version,
    keep_alive: bool,
}

/// How a response ended.
enum After {
    /// The connection may take another request.
    Next,
    Close,
    /// It is not HTTP any more.
    Upgraded,
    /// The server broke it off, and nothing of it was written: the client can be told.
    Unwritten(Fault),
}

/// Serves until the connection ends, is upgraded or drained. What a client did wrong is its request's failure, which the
/// service hears of; the connection's own end is no failure.
///
/// A client that reads nothing of an answer for as long as `client_stall` says is let go.
pub(crate) async fn serve<S: Service>(
    io: Io,
    settings: Settings<'_>,
    drain: &drain::Watch,
    service: Rc<S>,
) -> Result<(), Fault> {
    let conn = Conn::shared(io, settings.max_head);
    conn.borrow_mut().stall_limit = settings.h2.client_stall;
    let mut draining = pin!(drain.draining());
    // A connection that a drain has let in is let say what it came for.
    let mut served = false;
    loop {
        // 1. A head. Until its first byte the connection is idle, and ends when it is asked to.
        let idle = poll_fn(|cx| conn.borrow_mut().poll_begun(cx));
        tokio::select! {
            biased;
            begun = idle => if !matches!(begun, Ok(true)) { return Ok(()) },
            () = service.closing().wished() => break,
            () = &mut draining, if served => break,
        }
        let begun = Instant::now();
        let head = match next_head(&conn).await {
            Ok(Some(head)) => {
                service.metrics().phase(Phase::RequestHeaders, begun.elapsed());
                head
            }
            Ok(None) => return Ok(()),
            Err(fault) => {
                let asked = Asked { method: Method::GET, version: Version::HTTP_11, keep_alive: false };
                // A client that is gone already does not read it.
                let _best_effort = refuse(&conn, &*service, &fault, asked).await;
                break;
            }
        };
        let RequestHead { request, framing, keep_alive, expects_continue } = head;

        served = true;

        // 2. Its answer. The request's body is read by whoever sends it on.
        {
            let mut conn = conn.borrow_mut();
            conn.begin_body(framing);
            conn.expects_continue = expects_continue;
        }
        let (upgraded, upgrade) = match headers::wants_upgrade(&request) {
            true => {
                let (send, receive) = oneshot::channel();
                (Some(send), Some(Upgrade::Later(receive)))
            }
            false => (None, None),
        };
        let mut asked = Asked { method: request.method().clone(), version: request.version(), keep_alive };
        let body = Body::h1(Incoming::new(conn.clone(), Of::Request, upgrade)).of_outsider();
        // On the heap: an idle connection is not to hold the room that answering takes.
        let answering = Box::pin(service.clone().call(request.map(|()| body)));
        let response = match answered(&conn, answering, asked.version).await {
            Some(Ok(response)) => response,
            Some(Err(_)) | None => {
                // The client is gone, or must not take an orderly end for an answer.
                conn.borrow_mut().abort();
                return Ok(());
            }
        };

        // 3. To the client.
        asked.keep_alive &= !service.closing().is_wished() && drain.phase() == drain::Phase::Running;
        match respond(&conn, response, &asked).await {
            Ok(After::Next) => {}
            Ok(After::Close) => break,
            Ok(After::Unwritten(fault)) => {
                let _best_effort = refuse(&conn, &*service, &fault, asked).await;
                break;
            }
            Ok(After::Upgraded) => {
                if let Some(upgraded) = upgraded {
                    // Without a receiver nobody wanted to go on.
                    drop(upgraded.send(Upgraded(conn)));
                }
                return Ok(());
            }
            Err(_) => {
                conn.borrow_mut().abort();
                let limit = settings.h2.client_stall.filter(|_| conn.borrow().is_stuck());
                return limit.map_or(Ok(()), |limit| Err(stall::fault(limit)));
            }
        }
    }
    Box::pin(linger(&conn)).await;
    Ok(())
}

/// The head of a request whose first byte is there.
async fn next_head(conn: &Shared) -> Result<Option<RequestHead>, Fault> {
    let reading = poll_fn(|cx| conn.borrow_mut().poll_head(cx));
    match within(HEAD_LIMIT, reading).await {
        Ok(Ok(Some(bytes))) => head::request(&bytes).map(Some).map_err(head::Bad::request),
        Ok(Ok(None)) => Ok(None),
        Ok(Err(BodyError::Bad(bad))) => Err(bad.request()),
        // It left: nobody is there to hear an answer.
        Ok(Err(BodyError::Truncated | BodyError::Io(_))) => Ok(None),
        Err(late) => Err(Fault::new(Code::HeaderTimeout)
            .in_phase(Phase::RequestHeaders)
            .fact("limit_ms", HEAD_LIMIT.as_millis())
            .fact("waited_ms", late.waited.as_millis())),
    }
}

type Answer = Result<Response<Body>, Box<dyn Error + Send + Sync>>;

/// Waits for the service, and for signs that the client has left: `None`.
async fn answered(
    conn: &Shared,
    mut answering: Pin<Box<impl Future<Output = Answer>>>,
    version: Version,
) -> Option<Answer> {
    let mut probe: Option<Probe> = None;
    poll_fn(|cx| {
        if let Poll::Ready(answer) = answering.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        let conn = &mut *conn.borrow_mut();
        if conn.poll_ahead(cx).is_err() {
            return Poll::Ready(None);
        }
        // A FIN alone does not tell who has left from who only has nothing more to say. An interim response does: whoever
        // has left resets the connection when it comes, whoever is still there passes over it (RFC 9110, 15.2).
        if conn.ended && probe.is_none() && version == Version::HTTP_11 {
            probe = Some(Probe::new());
            encode::interim(conn.front(), StatusCode::CONTINUE, &http::HeaderMap::new());
        }
        if !conn.is_written() && matches!(conn.poll_write(cx), Poll::Ready(Err(_))) {
            return Poll::Ready(None);
        }
        let left = probe.as_mut().is_some_and(|probe| probe.poll_reset(conn, cx));
        if left { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// Looks for the reset that answers a probe: soon, then less and less often.
struct Probe {
    timer: Pin<Box<Sleep>>,
    pause: Duration,
}

const PROBE_FIRST: Duration = Duration::from_millis(5);
const PROBE_LAST: Duration = Duration::from_secs(1);

impl Probe {
    fn new() -> Self {
        Probe { timer: Box::pin(sleep(PROBE_FIRST)), pause: PROBE_FIRST }
    }

    fn poll_reset(&mut self, conn: &Conn, cx: &mut Context<'_>) -> bool {
        while self.timer.as_mut().poll(cx).is_ready() {
            if conn.is_reset() {
                return true;
            }
            self.pause = (self.pause * 2).min(PROBE_LAST);
            self.timer.as_mut().reset(Instant::now() + self.pause);
        }
        false
    }
}

/// Writes an answer of the proxy's own, after which the connection ends.
async fn refuse<S: Service>(conn: &Shared, service: &S, fault: &Fault, asked: Asked) -> io::Result<After> {
    respond(conn, service.refuse(fault), &Asked { keep_alive: false, ..asked }).await
}

/// Writes a response.
async fn respond(conn: &Shared, response: Response<Body>, asked: &Asked) -> io::Result<After> {
    let status = response.status();
    let upgraded =
        status == StatusCode::SWITCHING_PROTOCOLS || (asked.method == Method::CONNECT && status.is_success());
    let hint = response.body().size_hint().exact();
    let delimited = match hint {
        _ if upgraded || status.is_informational() || status == StatusCode::NO_CONTENT => Delimited::Not,
        _ if asked.method == Method::HEAD || status == StatusCode::NOT_MODIFIED => Delimited::Absent,
        Some(length) => Delimited::Length(length),
        None if asked.version == Version::HTTP_10 => Delimited::Close,
        None => Delimited::Chunked,
    };
    // A request that nobody reads to its end leaves bytes that are no next request.
    let whole = conn.borrow().is_body_done() || Rc::strong_count(conn) > 1;
    let said_close = headers::says_close(response.headers());
    let mut keep_alive = asked.keep_alive && whole && !said_close && delimited != Delimited::Close;
    let option = match asked.version {
        _ if upgraded || said_close => None,
        Version::HTTP_10 if keep_alive => Some("keep-alive"),
        _ if !keep_alive => Some("close"),
        _ => None,
    };
    let staged = conn.borrow_mut().front().len();
    encode::response(conn.borrow_mut().front(), asked.version, &response, delimited, option);
    if upgraded {
        poll_fn(|cx| conn.borrow_mut().poll_write(cx)).await?;
        return Ok(After::Upgraded);
    }
    if matches!(delimited, Delimited::Length(1..) | Delimited::Chunked | Delimited::Close) {
        match send_body(conn, response.into_body(), delimited).await {
            Ok(()) => {}
            Err(Cut::Unwritten(error)) => {
                conn.borrow_mut().front().truncate(staged);
                return Ok(After::Unwritten(broken_off(error)));
            }
            // What was sent stays with the client, which misses the rest by the framing; where only the end of the connection
            // tells, it must not be an orderly one.
            Err(Cut::Short) if delimited != Delimited::Close => return Ok(After::Close),
            Err(Cut::Short) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(Cut::Client(error)) => return Err(error),
        }
    } else {
        drop(response);
        poll_fn(|cx| conn.borrow_mut().poll_write(cx)).await?;
    }
    keep_alive &= conn.borrow().is_body_done();
    Ok(if keep_alive { After::Next } else { After::Close })
}

/// Why a body did not come to its end.
enum Cut {
    /// It failed, or is not as long as its head says.
    Short,
    /// It failed at once, and the head in front of it is not written either.
    Unwritten(Box<dyn Error + Send + Sync>),
    Client(io::Error),
}

impl From<io::Error> for Cut {
    fn from(error: io::Error) -> Self {
        Cut::Client(error)
    }
}

/// Writes a body behind the head that is staged. A piece that is there already goes out with it.
async fn send_body(conn: &Shared, mut body: Body, delimited: Delimited) -> Result<(), Cut> {
    let mut left = match delimited {
        Delimited::Length(length) => length,
        _ => u64::MAX,
    };
    let chunked = delimited == Delimited::Chunked;
    let mut begun = false;
    loop {
        let frame = poll_fn(|cx| {
            let polled = Pin::new(&mut body).poll_frame(cx);
            if polled.is_ready() {
                return polled.map(Ok);
            }
            begun = true;
            // Nothing to add yet: what is staged goes out, and the client is watched.
            let conn = &mut *conn.borrow_mut();
            if !conn.is_written()
                && let Poll::Ready(Err(error)) = conn.poll_write(cx)
            {
                return Poll::Ready(Err(error));
            }
            match conn.poll_ahead(cx) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await?;
        let mut trailers = None;
        match frame {
            None => {
                if !chunked && left > 0 && left != u64::MAX {
                    return Err(Cut::Short);
                }
            }
            Some(Err(error)) if !begun => return Err(Cut::Unwritten(error)),
            Some(Err(_)) => return Err(Cut::Short),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => continue,
                Ok(data) => {
                    begun = true;
                    let size = data.len() as u64;
                    if size > left {
                        return Err(Cut::Short);
                    }
                    left -= if left == u64::MAX { 0 } else { size };
                    stage(conn, data, chunked);
                    if !body.is_end_stream() {
                        poll_fn(|cx| conn.borrow_mut().poll_write(cx)).await?;
                        continue;
                    }
                    if !chunked && left > 0 && left != u64::MAX {
                        return Err(Cut::Short);
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
        // The end.
        if chunked {
            if !conn.borrow().is_written_but_front() {
                poll_fn(|cx| conn.borrow_mut().poll_write(cx)).await?;
            }
            encode::last_chunk(conn.borrow_mut().front(), trailers.as_ref());
        }
        drop(body);
        return Ok(poll_fn(|cx| conn.borrow_mut().poll_write(cx)).await?);
    }
}

/// The failure that a response's body began with.
fn broken_off(error: Box<dyn Error + Send + Sync>) -> Fault {
    match error.downcast::<Fault>() {
        Ok(fault) => *fault,
        // A peer's, over HTTP/2.
        Err(error) => Fault::new(Code::UpstreamReset)
            .in_phase(Phase::ResponseBody)
            .fact("error", server::chain(&*error)),
    }
}

/// Puts one piece of a body behind what is staged.
pub(super) fn stage(conn: &Shared, data: Bytes, chunked: bool) {
    let mut conn = conn.borrow_mut();
    if chunked {
        encode::chunk(conn.front(), data.len());
        conn.stage(data, b"\r\n");
    } else {
        conn.stage(data, b"");
    }
}

impl Conn {
    /// Waits for the first byte of a next message. `false`: the client is done.
    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if !self.is_buffer_empty() {
            return Poll::Ready(Ok(true));
        }
        self.poll_fill(cx).map_ok(|read| read > 0)
    }

    /// Reads ahead while a request is served. `Err`: the client has left.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        // While its body is read, whoever reads it hears of the client's end.
        while self.is_body_done() && !self.ended && self.read_ahead() < AHEAD {
            match self.poll_fill(cx) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}

/// Closes in order: the client can read all that was written.
async fn linger(conn: &Shared) {
    let mut waste = [0; 4096];
    let mut count = 0;
    let lingering = async {
        poll_fn(|cx| conn.borrow_mut().poll_shutdown(cx)).await?;
        while count < LINGER_BYTES && !conn.borrow().ended {
            let mut into = ReadBuf::new(&mut waste);
            poll_fn(|cx| conn.borrow_mut().poll_raw(cx, &mut into)).await?;
            match into.filled().len() {
                0 => break,
                read => count += read,
            }
        }
        io::Result::Ok(())
    };
    // A client that does not close in time has had its time.
    let _closed = within(LINGER, lingering).await;
}
