//! One question to the control plane, whose answer is a stream: asked until it is answered, kept open, asked again when
//! it ends or when there is reason to.

use super::{Service, backoff, connection::Connection};
use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::{Status, Streaming};
use weft_fault::{Code, Fault, Phase};

/// What comes of a question.
#[derive(Debug)]
pub enum Told<M> {
    /// The first message of a stream: it replaces everything that earlier streams said.
    First(M),
    Next(M),
    /// No answer yet; the question was asked once more beside the first.
    Slow(Fault),
    /// No answer, or the stream ended; it is asked again by itself. What was said before stays valid.
    Failed(Failure),
}

impl<M> Told<M> {
    /// The controller said something.
    pub fn is_answer(&self) -> bool {
        matches!(self, Told::First(_) | Told::Next(_))
    }
}

/// What bounds a stream; nothing unless it is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Until its first message.
    pub initial: Option<Duration>,
    /// Between two messages.
    pub idle: Option<Duration>,
    /// From its first message to its end.
    pub lifetime: Option<Duration>,
}

#[derive(Debug)]
pub struct Failure {
    pub fault: Fault,
    /// The controller's status, when it is the controller that refused.
    pub code: Option<tonic::Code>,
}

impl Failure {
    /// The controller has decided, so that asking again at once would be answered alike.
    pub fn is_refusal(&self) -> bool {
        use tonic::Code::{FailedPrecondition, InvalidArgument, NotFound, Unimplemented};
        matches!(self.code, Some(InvalidArgument | FailedPrecondition | NotFound | Unimplemented))
    }
}

/// How a stream is opened on a connection.
pub type Open<M> = Arc<dyn Fn(Connection) -> Opening<M> + Send + Sync>;
pub type Opening<M> = Pin<Box<dyn Future<Output = Result<Streaming<M>, Status>> + Send>>;

type Candidate<M> = Pin<Box<dyn Future<Output = Result<(Streaming<M>, M), Failure>> + Send>>;

/// Delays before a question is asked again: after the first failures of the way, after more of them, after a refusal.
const AGAIN_SOON: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
const SOON: u32 = 3;
const AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
const AFTER_REFUSAL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// A first message that is later than this has failed.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);
/// A question without an answer is asked again beside the first: one that was lost on the way, or sits in a queue that
/// does not move, costs a moment instead of the whole limit.
const BESIDE: Duration = Duration::from_millis(1_500);
const BESIDE_LATER: Duration = Duration::from_secs(3);
/// Questions under way at a time; the oldest is given up for another one.
const BESIDE_MOST: usize = 3;
/// A question that is younger than this is not asked again.
const FRESH: Duration = Duration::from_secs(1);

pub struct Lookup<M> {
    service: Service,
    /// What is asked, for faults.
    subject: String,
    open: Open<M>,
    current: Option<Streaming<M>>,
    /// The same question, asked one to three times; the first answer counts.
    candidates: Vec<Candidate<M>>,
    /// When it was asked first, and last, since the last answer.
    asked: (Instant, Instant),
    asks: u32,
    beside: Option<Pin<Box<Sleep>>>,
    again: Option<Pin<Box<Sleep>>>,
    failures: u32,
    limits: Limits,
    /// When the open stream has to be opened anew.
    renew: Option<Pin<Box<Sleep>>>,
    opened: Instant,
}

impl<M: Send + 'static> Lookup<M> {
    pub fn new(service: Service, subject: String, limits: Limits, open: Open<M>) -> Self {
        let mut lookup = Lookup {
            service,
            subject,
            open,
            current: None,
            candidates: Vec::new(),
            asked: (Instant::now(), Instant::now()),
            asks: 0,
            beside: None,
            again: None,
            failures: 0,
            limits,
            renew: None,
            opened: Instant::now(),
        };
        lookup.ask();
        lookup
    }

    /// Asks anew beside the stream that is open; its first message takes over. Does nothing while a fresh question is
    /// under way.
    pub fn ask_again(&mut self) {
        if self.candidates.is_empty() {
            self.ask();
        } else if self.asked.1.elapsed() >= FRESH {
            self.ask_beside();
        }
    }

    /// The next thing that comes of it. Cancel-safe.
    pub async fn next(&mut self) -> Told<M> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Told<M>> {
        // 1. A question under way: its answer comes before what an older stream says.
        let mut at = 0;
        while let Some(candidate) = self.candidates.get_mut(at) {
            let Poll::Ready(done) = candidate.as_mut().poll(cx) else {
                at += 1;
                continue;
            };
            drop(self.candidates.remove(at));
            match done {
                Ok((stream, first)) => {
                    self.candidates.clear();
                    self.failures = 0;
                    (self.again, self.beside) = (None, None);
                    self.current = Some(stream);
                    self.opened = Instant::now();
                    self.heard();
                    return Poll::Ready(Told::First(first));
                }
                // The same question may still be answered, or the open stream is still good.
                Err(failure) if !self.candidates.is_empty() || self.current.is_some() => {
                    if self.candidates.is_empty() {
                        // What was to replace the open stream has failed: tried again, and not at once.
                        self.renew_in(backoff(AGAIN, self.failures + 1));
                    }
                    tracing::debug!(subject = self.subject, "asked again in vain: {:?}", failure.fault);
                }
                Err(failure) => return Poll::Ready(self.failed(failure)),
            }
        }
        // 2. The open stream.
        if let Some(stream) = &mut self.current
            && let Poll::Ready(message) = Pin::new(stream).poll_next(cx)
        {
            return Poll::Ready(match message {
                Some(Ok(message)) => {
                    self.heard();
                    Told::Next(message)
                }
                ended => {
                    self.current = None;
                    let status = ended.and_then(Result::err);
                    let failure = failure_of(&self.service, &self.subject, status);
                    self.failed(failure)
                }
            });
        }
        // 3. An answer that takes too long.
        if let Some(beside) = &mut self.beside
            && beside.as_mut().poll(cx).is_ready()
        {
            self.beside = None;
            if !self.candidates.is_empty() {
                self.ask_beside();
                // The new question has to be polled once, so that it can wake this task.
                cx.waker().wake_by_ref();
                return Poll::Ready(Told::Slow(if self.service.is_connected() {
                    silent(&self.service, &self.subject, self.asked.0.elapsed())
                } else {
                    self.service.down()
                }));
            }
        }
        // 4. A stream that is too old, or silent for too long: another one takes over when it answers.
        if let Some(renew) = &mut self.renew
            && renew.as_mut().poll(cx).is_ready()
        {
            self.renew = None;
            if self.current.is_some() && self.candidates.is_empty() {
                self.ask();
                cx.waker().wake_by_ref();
            }
        }
        // 5. Time to ask again.
        if let Some(again) = &mut self.again
            && again.as_mut().poll(cx).is_ready()
        {
            self.again = None;
            if self.candidates.is_empty() {
                self.ask();
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    /// The open stream said something.
    fn heard(&mut self) {
        let Limits { idle, lifetime, .. } = self.limits;
        let left = lifetime.map(|lifetime| lifetime.saturating_sub(self.opened.elapsed()));
        if let Some(soonest) = idle.into_iter().chain(left).min() {
            self.renew_in(soonest);
        }
    }

    fn renew_in(&mut self, delay: Duration) {
        if self.limits.idle.is_some() || self.limits.lifetime.is_some() {
            self.renew = Some(Box::pin(tokio::time::sleep(delay)));
        }
    }

    fn failed(&mut self, failure: Failure) -> Told<M> {
        self.failures += 1;
        self.beside = None;
        let delay = delay(self.failures, failure.is_refusal());
        self.again = Some(Box::pin(tokio::time::sleep(delay)));
        Told::Failed(failure)
    }

    fn ask(&mut self) {
        self.asked.0 = Instant::now();
        self.asks = 0;
        self.ask_beside();
    }

    fn ask_beside(&mut self) {
        if self.candidates.len() >= BESIDE_MOST {
            drop(self.candidates.remove(0));
        }
        let (service, subject, open) = (self.service.clone(), self.subject.clone(), self.open.clone());
        self.candidates.push(Box::pin(first_message(
            service,
            subject,
            open,
            self.limits.initial.unwrap_or(FIRST_MESSAGE),
        )));
        self.asked.1 = Instant::now();
        self.asks += 1;
        let patience = if self.asks <= 3 { BESIDE } else { BESIDE_LATER };
        self.beside = Some(Box::pin(tokio::time::sleep(patience)));
    }
}

/// Until the question is asked again, after this many failures in a row.
fn delay(failures: u32, refused: bool) -> Duration {
    match failures {
        _ if refused => backoff(AFTER_REFUSAL, failures),
        _ if failures <= SOON => backoff(AGAIN_SOON, failures),
        _ => backoff(AGAIN, failures - SOON),
    }
}

fn silent(service: &Service, subject: &str, waited: Duration) -> Fault {
    Fault::new(Code::ControllerSilent)
        .in_phase(Phase::Control)
        .about(subject)
        .peer(service.addr())
        .fact("waited_ms", waited.as_millis())
}

async fn first_message<M>(
    service: Service,
    subject: String,
    open: Open<M>,
    limit: Duration,
) -> Result<(Streaming<M>, M), Failure> {
    let deadline = Instant::now() + limit;
    let connection = service.connection(deadline).await;
    let connection = connection.map_err(|fault| Failure { fault, code: None })?;
    let answer = async {
        let mut stream = open(connection).await?;
        stream.message().await.map(|message| (stream, message))
    };
    match tokio::time::timeout_at(deadline.into(), answer).await {
        Ok(Ok((stream, Some(message)))) => Ok((stream, message)),
        Ok(Ok((_, None))) => Err(failure_of(&service, &subject, None)),
        Ok(Err(status)) => Err(failure_of(&service, &subject, Some(status))),
        Err(_) => Err(Failure { fault: silent(&service, &subject, limit), code: None }),
    }
}

/// What a stream's end means; `None` is an orderly one.
fn failure_of(service: &Service, subject: &str, status: Option<Status>) -> Failure {
    let fault = |code| Fault::new(code).in_phase(Phase::Control).about(subject).peer(service.addr());
    let Some(status) = status else {
        return Failure { fault: fault(Code::ControllerHungUp), code: None };
    };
    let code = status.code();
    let mut fault = fault(refusal(code)).fact("status", format!("{code:?}"));
    if !status.message().is_empty() {
        let message: String = status.message().chars().take(300).collect();
        fault = fault.fact("message", message);
    }
    Failure { fault, code: Some(code) }
}

/// The controller's status as a code of its own, where people do different things about it.
fn refusal(status: tonic::Code) -> Code {
    match status {
        tonic::Code::InvalidArgument => Code::ControllerRejects,
        tonic::Code::FailedPrecondition => Code::ControllerUnready,
        tonic::Code::Unavailable => Code::ControllerUnavailable,
        _ => Code::ControllerRefused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B09 of the field reports: a controller that cannot answer is not flooded with the same question.
    #[test]
    fn a_question_that_fails_is_asked_ten_times_a_minute_at_most() {
        for refused in [false, true] {
            let (mut asked, mut at) = (1, Duration::ZERO);
            loop {
                at += delay(asked, refused);
                if at > Duration::from_secs(60) {
                    break;
                }
                asked += 1;
            }
            assert!((5..=10).contains(&asked), "{asked} times");
        }
    }
}
