//! HTTP/1 towards a server: one connection, one request at a time.

use super::{
    body::{Incoming, Interim, Of, Upgrade, Upgraded},
    conn::{BodyError, Conn, Shared},
    encode::{self, Delimited},
    head::{self, Bad, ResponseHead},
    server::stage,
};
use crate::{connect::Role, http::body::Body, io::Io};
use http::{HeaderMap, Method, Response, StatusCode, Version, header, request};
use hyper::body::Body as _;
use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};
use tokio_util::task::AbortOnDropHandle;
use weft_fault::{Code, Fault, Phase};

/// A connection to a server, between two requests.
#[derive(Debug)]
pub(crate) struct Client {
    conn: Shared,
    reusable: bool,
    /// A request was begun and its response's head has not come.
    asking: bool,
    sent: Rc<Sent>,
}

/// How far a request's body has come.
#[derive(Debug, Default)]
struct Sent {
    whole: Cell<bool>,
    /// The request's own body failed.
    failed: RefCell<Option<Fault>>,
}

/// Interim responses to one request. Servers send one or two.
const MAX_INTERIM: usize = 32;

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The connection ended before a byte of a response.
    Silent(Option<io::Error>),
    /// It ended inside the response's head.
    Truncated,
    /// What came is not a response.
    Bad(Bad),
    /// The request's own body failed while it was sent.
    Request(Fault),
}

impl Lost {
    /// What it means when `role` is at the other end.
    pub(crate) fn fault(self, role: Role) -> Fault {
        let (lost, bad) = codes(role);
        let fault = |code| Fault::new(code).in_phase(Phase::ResponseHeaders);
        match self {
            Lost::Silent(Some(error)) => fault(lost).because(error),
            Lost::Silent(None) => fault(lost).fact("error", "closed without a byte in answer"),
            Lost::Truncated => fault(lost).fact("error", "the connection ended inside the response's head"),
            Lost::Bad(why) => why.fault(bad, Phase::ResponseHeaders),
            Lost::Request(fault) => fault,
        }
    }
}

/// What a lost connection and a malformed answer are called.
fn codes(role: Role) -> (Code, Code) {
    match role {
        Role::App => (Code::AppClosed, Code::AppNotHttp),
        Role::Peer => (Code::UpstreamReset, Code::UpstreamNotHttp),
    }
}

impl Client {
    pub(crate) fn new(io: Io, max_head: usize) -> Self {
        Client { conn: Conn::shared(io, max_head), reusable: true, asking: false, sent: Rc::default() }
    }

    /// Can it take a next request? One that the server has closed, or on which it speaks unasked, cannot.
    pub(crate) fn is_open(&self) -> bool {
        let mut conn = self.conn.borrow_mut();
        let mut silent = || conn.poll_fill(&mut Context::from_waker(Waker::noop())).is_pending();
        self.reusable && silent()
    }

    /// The message is over: may the connection serve another?
    pub(crate) fn is_reusable(&self) -> bool {
        let conn = self.conn.borrow();
        self.reusable
            && self.sent.whole.get()
            && conn.is_body_done()
            && conn.is_written()
            && conn.is_buffer_empty()
    }

    /// Sends a request and reads the head of its response. Takes the body only to send it: where `body` is still there
    /// afterwards, nothing of it was read.
    pub(crate) async fn send(
        &mut self,
        head: &request::Parts,
        body: &mut Option<Body>,
        role: Role,
    ) -> Result<Response<Body>, Lost> {
        let (lost, bad) = codes(role);
        let connects = head.method == Method::CONNECT;
        // A client of HTTP/1.0 knows nothing of them (RFC 9110, 15.2).
        let passes = head.version != Version::HTTP_10;
        let interim = body.as_ref().filter(|_| passes).and_then(Body::interim);

        // 1. The head, and as much of the body as is there.
        let delimited = delimited(head, body.as_ref());
        if delimited == Delimited::Chunked && head.version == Version::HTTP_10 {
            // A server of that version may not know the coding, and take the body for the next request (RFC 9112, 6.1).
            let fault = Fault::new(Code::BadRequest).in_phase(Phase::RequestHeaders);
            return Err(Lost::Request(fault.fact("reason", "a body without a length in HTTP/1.0")));
        }
        encode::request(self.conn.borrow_mut().front(), head, delimited);
        let mut upload = None;
        self.asking = true;
        self.sent = Rc::default();
        if matches!(delimited, Delimited::Length(1..) | Delimited::Chunked)
            && let Some(body) = body.take()
        {
            let conn = self.conn.clone();
            let mut sending = Box::pin(send_body(conn, body, delimited, self.sent.clone()));
            let at_once = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx).is_ready())).await;
            if !at_once {
                upload = Some(AbortOnDropHandle::new(tokio::task::spawn_local(sending)));
            }
        } else if let Err(error) = poll_fn(|cx| self.conn.borrow_mut().poll_write(cx)).await {
            self.reusable = false;
            // A server may have answered and left before it read the request: its answer is worth more than this error.
            return match self.response_head(head, None, None).await {
                Ok(response) => Ok(self.received(response, None, connects, (lost, bad))),
                Err(Lost::Silent(_)) => Err(Lost::Silent(Some(error))),
                Err(other) => Err(other),
            };
        } else {
            self.sent.whole.set(true);
        }

        // 2. The head of the response, while the rest of the body goes out.
        let response = self.response_head(head, upload.as_mut(), interim.as_ref()).await;
        match response {
            Ok(response) => Ok(self.received(response, upload, connects, (lost, bad))),
            Err(lost) => {
                self.reusable = false;
                // The server must not take what it has for the whole request.
                self.conn.borrow_mut().abort();
                Err(lost)
            }
        }
    }

    fn received(
        &mut self,
        head: ResponseHead,
        upload: Option<AbortOnDropHandle<()>>,
        connects: bool,
        (lost, bad): (Code, Code),
    ) -> Response<Body> {
        let ResponseHead { response, framing, keep_alive } = head;
        self.asking = false;
        self.reusable &= keep_alive;
        self.conn.borrow_mut().begin_body(framing);
        let status = response.status();
        let upgraded = status == StatusCode::SWITCHING_PROTOCOLS || (connects && status.is_success());
        let upgrade = upgraded.then(|| Upgrade::Now(Upgraded(self.conn.clone())));
        let mut incoming = Incoming::new(self.conn.clone(), Of::Response { lost, bad }, upgrade);
        incoming.upload = upload;
        response.map(|()| Body::h1(incoming))
    }

    /// The final response's head. Interim ones are passed on.
    async fn response_head(
        &self,
        asked: &request::Parts,
        mut upload: Option<&mut AbortOnDropHandle<()>>,
        interim: Option<&Interim>,
    ) -> Result<ResponseHead, Lost> {
        let mut interims = 0;
        loop {
            let begun = interims > 0;
            let bytes = poll_fn(|cx| {
                let polled = self.conn.borrow_mut().poll_head(cx);
                if polled.is_ready() {
                    return polled.map(Ok);
                }
                // The upload's end wakes this task, too.
                if let Some(upload) = &mut upload
                    && !upload.is_finished()
                {
                    let _again = Pin::new(&mut **upload).poll(cx);
                }
                match self.sent.failed.borrow_mut().take() {
                    Some(fault) => Poll::Ready(Err(Lost::Request(fault))),
                    None => Poll::Pending,
                }
            })
            .await?;
            let bytes = match bytes {
                Ok(Some(bytes)) => bytes,
                Ok(None) if begun => return Err(Lost::Truncated),
                Ok(None) => return Err(Lost::Silent(None)),
                Err(BodyError::Truncated) => return Err(Lost::Truncated),
                Err(BodyError::Io(error)) => return Err(Lost::Silent(Some(error))),
                Err(BodyError::Bad(bad)) => return Err(Lost::Bad(bad)),
            };
            let head = head::response(&bytes, &asked.method).map_err(Lost::Bad)?;
            let status = head.response.status();
            if !status.is_informational() {
                return Ok(head);
            }
            if status == StatusCode::SWITCHING_PROTOCOLS {
                let asked = asked.headers.contains_key(header::UPGRADE);
                return if asked {
                    Ok(head)
                } else {
                    Err(Lost::Bad(Bad::Syntax("a 101 that nobody asked for")))
                };
            }
            // They wait for a client that may not read: without an end they would fill the memory.
            interims += 1;
            if interims > MAX_INTERIM {
                return Err(Lost::Bad(Bad::Syntax("interim responses without end")));
            }
            if let Some(interim) = interim {
                interim.say(status, head.response.headers());
            }
        }
    }
}

/// Whoever gives up waiting says so by a reset: the server cannot take that for a client that has only said all it had.
impl Drop for Client {
    fn drop(&mut self) {
        if self.asking {
            self.conn.borrow_mut().abort();
        }
    }
}

/// What delimits a request's body.
fn delimited(head: &request::Parts, body: Option<&Body>) -> Delimited {
    let Some(body) = body.filter(|body| !body.is_end_stream()) else {
        // Servers want to be told that a method which usually has a body comes without one (RFC 9110, 8.6).
        let said = head.headers.contains_key(header::CONTENT_LENGTH);
        let usual = matches!(head.method, Method::POST | Method::PUT | Method::PATCH);
        return if said || usual { Delimited::Length(0) } else { Delimited::Not };
    };
    match body.size_hint().exact() {
        Some(length) => Delimited::Length(length),
        None => Delimited::Chunked,
    }
}

/// Sends a body behind the head that is staged. What fails on the server's side shows in its answer, or in there being
/// none; what fails on the client's is told.
async fn send_body(conn: Shared, mut body: Body, delimited: Delimited, sent: Rc<Sent>) {
    let chunked = delimited == Delimited::Chunked;
    let mut trailers: Option<HeaderMap> = None;
    loop {
        let frame = poll_fn(|cx| {
            let polled = Pin::new(&mut body).poll_frame(cx);
            if polled.is_pending() {
                let conn = &mut *conn.borrow_mut();
                if !conn.is_written()
                    && let Poll::Ready(Err(_)) = conn.poll_write(cx)
                {
                    return Poll::Ready(Err(()));
                }
            }
            polled.map(Ok)
        })
        .await;
        let frame = match frame {
            Ok(frame) => frame,
            Err(()) => return,
        };
        match frame {
            None => break,
            Some(Err(error)) => {
                *sent.failed.borrow_mut() = Some(as_fault(error));
                conn.borrow_mut().abort();
                return;
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => {
                    stage(&conn, data, chunked);
                    if body.is_end_stream() {
                        break;
                    }
                    if poll_fn(|cx| conn.borrow_mut().poll_write(cx)).await.is_err() {
                        return;
                    }
                }
                Err(frame) => {
                    trailers = frame.into_trailers().ok();
                    break;
                }
            },
        }
    }
    if chunked {
        if !conn.borrow().is_written_but_front()
            && poll_fn(|cx| conn.borrow_mut().poll_write(cx)).await.is_err()
        {
            return;
        }
        encode::last_chunk(conn.borrow_mut().front(), trailers.as_ref());
    }
    // If it was not: the answer, or there being none, tells.
    let written = poll_fn(|cx| conn.borrow_mut().poll_write(cx)).await;
    sent.whole.set(written.is_ok());
}

/// The failure that a request's body ended with.
fn as_fault(error: Box<dyn std::error::Error + Send + Sync>) -> Fault {
    match error.downcast::<Fault>() {
        Ok(fault) => *fault,
        // A client of HTTP/2 reset its stream.
        Err(error) => {
            Fault::new(Code::ConnectionReset).in_phase(Phase::RequestBody).fact("error", error.to_string())
        }
    }
}
