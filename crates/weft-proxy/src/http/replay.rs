//! Bodies that are kept while they pass, so that a request can be sent again, and answers whose first pieces were looked at.

use super::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body as _, Frame, SizeHint};
use std::{
    cell::RefCell,
    error::Error,
    future::poll_fn,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};
use weft_fault::{Code, Fault, Phase};

pub(crate) type BodyError = Box<dyn Error + Send + Sync>;
type Polled = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

/// A request's body on its way to whoever reads it, kept up to a limit. Beyond the limit it passes on and is forgotten.
pub(crate) struct Replay(Rc<RefCell<Shared>>);

struct Shared {
    rest: Body,
    kept: Vec<Bytes>,
    trailers: Option<HeaderMap>,
    /// Bytes that passed.
    passed: u64,
    /// Of the whole body, if it said so.
    declared: Option<u64>,
    limit: usize,
    end: End,
    forgotten: bool,
    /// Which reader may read on: the newest one.
    turn: u32,
    waiting: Vec<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NotYet,
    Whole,
    BrokeOff,
}

impl Replay {
    /// Keeps at most `limit` bytes. A body that declares more is not kept at all.
    pub(crate) fn new(body: Body, limit: usize) -> Self {
        let declared = body.size_hint().exact();
        let forgotten = declared.is_some_and(|bytes| bytes > limit as u64);
        let end = if body.is_end_stream() { End::Whole } else { End::NotYet };
        Replay(Rc::new(RefCell::new(Shared {
            rest: body,
            kept: Vec::new(),
            trailers: None,
            passed: 0,
            declared,
            limit,
            end,
            forgotten,
            turn: 0,
            waiting: Vec::new(),
        })))
    }

    /// The body from its beginning. Whoever read it before reads no further.
    pub(crate) fn read(&self) -> Body {
        let mut shared = self.0.borrow_mut();
        shared.turn += 1;
        let turn = shared.turn;
        drop(shared);
        Body::replayed(Reader { shared: self.0.clone(), next: 0, given: 0, ended: false, turn: Some(turn) })
    }

    /// The whole body, kept, for a copy of the request; it does not disturb who reads it.
    pub(crate) fn copy(&self) -> Body {
        Body::replayed(Reader { shared: self.0.clone(), next: 0, given: 0, ended: false, turn: None })
    }

    /// Can it be read from its beginning again?
    pub(crate) fn is_kept(&self) -> bool {
        let shared = self.0.borrow();
        !shared.forgotten && shared.end != End::BrokeOff
    }

    /// Has all of it passed?
    pub(crate) fn is_whole(&self) -> bool {
        self.0.borrow().end == End::Whole
    }

    /// Waits until all of it has passed, or never will; says which.
    pub(crate) async fn whole(&self) -> bool {
        poll_fn(|cx| {
            let mut shared = self.0.borrow_mut();
            match shared.end {
                End::Whole => Poll::Ready(true),
                End::BrokeOff => Poll::Ready(false),
                End::NotYet => {
                    if !shared.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                        shared.waiting.push(cx.waker().clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Shared {
    fn ends(&mut self, end: End) {
        self.end = end;
        self.waiting.drain(..).for_each(Waker::wake);
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Polled {
        let polled = Pin::new(&mut self.rest).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.passed += data.len() as u64;
                    if self.passed > self.limit as u64 {
                        self.forgotten = true;
                        self.kept = Vec::new();
                    } else if !self.forgotten {
                        self.kept.push(data.clone());
                    }
                } else if let Some(trailers) = frame.trailers_ref() {
                    self.trailers = Some(trailers.clone());
                }
                if self.rest.is_end_stream() {
                    self.ends(End::Whole);
                }
            }
            Poll::Ready(Some(Err(_))) => self.ends(End::BrokeOff),
            Poll::Ready(None) => self.ends(End::Whole),
            Poll::Pending => {}
        }
        polled
    }
}

/// Reads a kept body.
pub(super) struct Reader {
    shared: Rc<RefCell<Shared>>,
    /// The next kept piece.
    next: usize,
    given: u64,
    ended: bool,
    /// `None`: a copy, which is made of kept pieces only.
    turn: Option<u32>,
}

impl Reader {
    /// As [`Body::interim`].
    pub(super) fn interim(&self) -> Option<super::h1::Interim> {
        self.shared.borrow().rest.interim()
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Polled {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut shared = self.shared.borrow_mut();
        if let Some(piece) = shared.kept.get(self.next) {
            self.next += 1;
            self.given += piece.len() as u64;
            return Poll::Ready(Some(Ok(Frame::data(piece.clone()))));
        }
        let lost = shared.forgotten && self.given < shared.passed;
        if lost || self.turn.is_some_and(|turn| turn != shared.turn) {
            // Someone else reads on: whoever holds this reader has lost its interest in it, or its claim.
            let fault = Fault::new(Code::Invariant).in_phase(Phase::RequestBody);
            return Poll::Ready(Some(Err(fault.fact("reason", "the request is sent elsewhere").into())));
        }
        match shared.end {
            End::Whole => {
                self.ended = true;
                Poll::Ready(shared.trailers.clone().map(|trailers| Ok(Frame::trailers(trailers))))
            }
            End::BrokeOff => {
                let fault = Fault::new(Code::ConnectionReset).in_phase(Phase::RequestBody);
                Poll::Ready(Some(Err(fault.into())))
            }
            End::NotYet if self.turn.is_none() => {
                let fault = Fault::new(Code::Invariant).in_phase(Phase::RequestBody);
                Poll::Ready(Some(Err(fault.fact("reason", "copied before it was whole").into())))
            }
            End::NotYet => {
                let polled = shared.poll_rest(cx);
                match &polled {
                    Poll::Ready(Some(Ok(frame))) => match frame.data_ref() {
                        Some(data) => {
                            self.given += data.len() as u64;
                            self.next = shared.kept.len();
                        }
                        None => self.ended = true,
                    },
                    Poll::Ready(None) => self.ended = true,
                    Poll::Ready(Some(Err(_))) | Poll::Pending => {}
                }
                polled
            }
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let shared = self.shared.borrow();
        self.ended || (shared.end == End::Whole && shared.trailers.is_none() && self.given == shared.passed)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self.shared.borrow().declared {
            Some(bytes) => SizeHint::with_exact(bytes.saturating_sub(self.given)),
            None => SizeHint::default(),
        }
    }
}

/// A body whose first pieces were taken off to be looked at, and are put back.
pub(super) struct Peeked {
    pub(super) first: Option<Bytes>,
    pub(super) trailers: Option<HeaderMap>,
    pub(super) rest: Body,
}

impl Peeked {
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Polled {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        Pin::new(&mut self.rest).poll_frame(cx)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.trailers.is_none() && self.rest.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let rest = self.rest.size_hint();
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(first));
        }
        hint
    }
}

/// Looks at the end of a body, if that is near: its trailers, when they come first or right behind the first piece. Waits
/// for the first piece only.
pub(crate) async fn peek_trailers(mut body: Body) -> Result<(Option<HeaderMap>, Body), BodyError> {
    let (mut first, mut trailers) = (None, None);
    while trailers.is_none() && !body.is_end_stream() {
        let waits = first.is_none();
        let polled = poll_fn(|cx| match Pin::new(&mut body).poll_frame(cx) {
            Poll::Pending if !waits => Poll::Ready(None),
            polled => polled.map(Some),
        });
        let frame = match polled.await {
            None | Some(None) => break,
            Some(Some(frame)) => frame?,
        };
        match frame.into_data() {
            Ok(data) if first.is_none() => first = Some(data),
            // The second piece of data: the end is not near.
            Ok(data) => {
                let rest = Body::peeked(Peeked { first: Some(data), trailers: None, rest: body });
                return Ok((None, Body::peeked(Peeked { first, trailers: None, rest })));
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    if first.is_none() && trailers.is_none() {
        return Ok((None, body));
    }
    Ok((trailers.clone(), Body::peeked(Peeked { first, trailers, rest: body })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    fn trailers() -> HeaderMap {
        HeaderMap::from_iter([("grpc-status".parse().unwrap(), "14".parse().unwrap())])
    }

    fn body(pieces: &[&'static str], with: Option<HeaderMap>) -> Body {
        let mut body = Body::empty();
        if let Some(with) = with {
            body = Body::peeked(Peeked { first: None, trailers: Some(with), rest: body });
        }
        for piece in pieces.iter().rev() {
            body = Body::peeked(Peeked {
                first: Some(Bytes::from_static(piece.as_bytes())),
                trailers: None,
                rest: body,
            });
        }
        body
    }

    async fn all(body: Body) -> Result<(String, bool), BodyError> {
        let collected = body.collect().await?;
        let trailers = collected.trailers().is_some();
        Ok((String::from_utf8(collected.to_bytes().to_vec()).unwrap(), trailers))
    }

    #[tokio::test]
    async fn what_was_kept_is_read_again_from_any_point() {
        let replay = Replay::new(body(&["one ", "two ", "three"], Some(trailers())), 100);
        let mut first = replay.read();
        first.frame().await.unwrap().unwrap();
        assert!(replay.is_kept() && !replay.is_whole());
        let second = replay.read();
        assert!(first.frame().await.unwrap().is_err(), "only the newest reads on");
        assert_eq!(all(second).await.unwrap(), ("one two three".into(), true));
        assert!(replay.is_whole() && replay.whole().await);
        assert_eq!(all(replay.read()).await.unwrap(), ("one two three".into(), true));
        assert_eq!(all(replay.copy()).await.unwrap(), ("one two three".into(), true));
    }

    #[tokio::test]
    async fn what_is_too_long_passes_and_is_forgotten() {
        let replay = Replay::new(body(&["12345", "6"], None), 5);
        let reader = replay.read();
        assert_eq!(all(reader).await.unwrap().0, "123456");
        assert!(replay.is_whole() && !replay.is_kept());
        assert!(all(replay.read()).await.is_err());
        assert!(all(replay.copy()).await.is_err());
        assert!(Replay::new(body(&["12345"], None), 5).is_kept());
    }

    #[tokio::test]
    async fn trailers_are_seen_where_they_are_near_and_nothing_is_lost() {
        for (pieces, with, seen) in [
            (&[][..], true, true),
            (&["one"], true, true),
            (&["one", "two"], true, false),
            (&["one"], false, false),
            (&[], false, false),
        ] {
            let (found, body) = peek_trailers(body(pieces, with.then(trailers))).await.unwrap();
            assert_eq!(found.is_some(), seen, "{pieces:?}");
            assert_eq!(all(body).await.unwrap(), (pieces.concat(), with), "{pieces:?}");
        }
    }
}
