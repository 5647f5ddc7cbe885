//! What can go wrong in a sample program. `Display` says one level; whoever reports walks the sources.

use std::{error::Error as StdError, future::Future, io, net::SocketAddr, time::Duration};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {addr}")]
    Listen { addr: SocketAddr, source: io::Error },
    #[error("cannot watch for signals")]
    Signals(#[source] io::Error),
    #[error("cannot connect to {to}")]
    Connect { to: String, source: io::Error },
    #[error("cannot read {path}")]
    File { path: String, source: io::Error },
    #[error("{what} did not finish within {limit:?}")]
    Deadline { what: &'static str, limit: Duration },
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error("the other end closed the connection before it answered")]
    Closed,
    #[error("a line or body is longer than {limit} bytes")]
    TooLong { limit: usize },
    #[error("{from} answered what the protocol does not allow: {answer:?}")]
    Protocol { from: String, answer: String },
    #[error("{from} refused: {answer}")]
    Refused { from: String, answer: String },
    #[error("{to} answered {status} {text}")]
    Status { to: String, status: u16, text: String },
    #[error("the HTTP call to {to} failed")]
    Http { to: String, source: Box<dyn StdError + Send + Sync> },
    #[error("the gRPC call to {to} failed: {code:?}: {message}")]
    Grpc { to: String, code: tonic::Code, message: String },
    #[error("{failed} of {total} requests failed")]
    LoadFailed { failed: u64, total: u64 },
    #[error("{0} requests that the policy must deny were let through")]
    LetThrough(u64),
    #[error("--{flag} {value}: {expected}")]
    Flag { flag: &'static str, value: String, expected: &'static str },
}

impl Error {
    /// The whole chain on one line, for a program's log.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
}

/// Ends `work` after `limit`: every call to another program goes through here.
pub(crate) async fn within<T>(
    what: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(Error::Deadline { what, limit }))
}
