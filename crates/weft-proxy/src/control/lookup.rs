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
    /// No answer, or the stream ended; it is asked again by itself. What was said before stays valid.
    Failed(Failure),
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

/// Delays before a question is asked again: after a failure of the way, and after a refusal.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
const AFTER_REFUSAL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// A first message that is later than this is asked for anew: shorter the first time, since a question that was lost is
/// answered at once the second time.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);
const FIRST_MESSAGE_AT_FIRST: Duration = Duration::from_millis(2_500);

pub struct Lookup<M> {
    service: Service,
    /// What is asked, for faults.
    subject: String,
    open: Open<M>,
    current: Option<Streaming<M>>,
    candidate: Option<Candidate<M>>,
    again: Option<Pin<Box<Sleep>>>,
    failures: u32,
    limit: Option<Duration>,
}

impl<M: Send + 'static> Lookup<M> {
    /// `limit` bounds the wait for a stream's first message, where the configuration says so.
    pub fn new(service: Service, subject: String, limit: Option<Duration>, open: Open<M>) -> Self {
        let mut lookup = Lookup {
            service,
            subject,
            open,
            current: None,
            candidate: None,
            again: None,
            failures: 0,
            limit,
        };
        lookup.ask();
        lookup
    }

    /// Asks anew beside the stream that is open; its first message takes over. Does nothing while a question is under
    /// way.
    pub fn ask_again(&mut self) {
        if self.candidate.is_none() {
            self.ask();
        }
    }

    /// A question is under way.
    pub fn is_asking(&self) -> bool {
        self.candidate.is_some()
    }

    /// The next thing that comes of it. Cancel-safe.
    pub async fn next(&mut self) -> Told<M> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Told<M>> {
        // 1. A question under way: its answer comes before what an older stream says.
        if let Some(candidate) = &mut self.candidate
            && let Poll::Ready(done) = candidate.as_mut().poll(cx)
        {
            self.candidate = None;
            match done {
                Ok((stream, first)) => {
                    self.failures = 0;
                    self.again = None;
                    self.current = Some(stream);
                    return Poll::Ready(Told::First(first));
                }
                // The open stream is still good.
                Err(failure) if self.current.is_some() => {
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
                Some(Ok(message)) => Told::Next(message),
                ended => {
                    self.current = None;
                    let status = ended.and_then(Result::err);
                    let failure = failure_of(&self.service, &self.subject, status);
                    self.failed(failure)
                }
            });
        }
        // 3. Time to ask again.
        if let Some(again) = &mut self.again
            && again.as_mut().poll(cx).is_ready()
        {
            self.again = None;
            if self.candidate.is_none() {
                self.ask();
                // The new question has to be polled once, so that it can wake this task.
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    fn failed(&mut self, failure: Failure) -> Told<M> {
        self.failures += 1;
        let delays = if failure.is_refusal() { AFTER_REFUSAL } else { AGAIN };
        self.again = Some(Box::pin(tokio::time::sleep(backoff(delays, self.failures))));
        Told::Failed(failure)
    }

    fn ask(&mut self) {
        let usual = if self.failures == 0 { FIRST_MESSAGE_AT_FIRST } else { FIRST_MESSAGE };
        let limit = self.limit.unwrap_or(usual);
        let (service, subject, open) = (self.service.clone(), self.subject.clone(), self.open.clone());
        self.candidate = Some(Box::pin(first_message(service, subject, open, limit)));
    }
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
        Err(_) => Err(Failure {
            fault: Fault::new(Code::ControllerSilent)
                .in_phase(Phase::Control)
                .about(&subject)
                .peer(service.addr())
                .fact("waited_ms", limit.as_millis()),
            code: None,
        }),
    }
}

/// What a stream's end means; `None` is an orderly one.
fn failure_of(service: &Service, subject: &str, status: Option<Status>) -> Failure {
    let fault =
        Fault::new(Code::ControllerRefused).in_phase(Phase::Control).about(subject).peer(service.addr());
    match status {
        None => Failure { fault: fault.fact("status", "the stream ended"), code: None },
        Some(status) => {
            let code = status.code();
            let mut fault = fault.fact("status", format!("{code:?}"));
            if !status.message().is_empty() {
                let message: String = status.message().chars().take(300).collect();
                fault = fault.fact("message", message);
            }
            Failure { fault: fault.because(status), code: Some(code) }
        }
    }
}
