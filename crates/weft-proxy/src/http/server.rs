//! Serving HTTP on one connection, of either version, until it ends or is drained.

use super::{
    body::Body,
    flood, h1,
    stall::{Answering, Told},
};
use crate::{config::Http2, detect::Protocol, drain, io::Io, metrics::Metrics};
use futures_util::TryFutureExt;
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{cell::Cell, error::Error, rc::Rc, time::Duration};
use tokio::sync::Notify;
use weft_fault::{Code, Fault, Phase};

/// What answers the requests of one connection.
pub(crate) trait Service: 'static {
    /// An error resets the stream with the error's own code (HTTP/2), or closes the connection (HTTP/1).
    fn call(
        self: Rc<Self>,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Body>, Box<dyn Error + Send + Sync>>>;

    /// Answers what is no valid request.
    fn refuse(&self, fault: &Fault) -> Response<Body>;

    /// Where requests are counted.
    fn metrics(&self) -> &Metrics;

    /// Hears of an answer that its client did not take.
    fn abandoned(&self, fault: &Fault);

    /// Is the client a proxy that has proved its identity? Then it speaks for many clients.
    fn of_proxy(&self) -> bool;

    /// Asks for the connection's graceful end.
    fn closing(&self) -> &Closing;
}

/// A service's wish that its connection end after what is under way.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    wished: Cell<bool>,
    notify: Notify,
}

impl Closing {
    pub(crate) fn close(&self) {
        self.wished.set(true);
        self.notify.notify_one();
    }
    pub(super) fn is_wished(&self) -> bool {
        self.wished.get()
    }
    pub(super) async fn wished(&self) {
        while !self.wished.get() {
            self.notify.notified().await;
        }
    }
}

/// The head of a request must be whole this long after its first byte; the idle time before does not count.
pub(super) const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Large enough for a fast stream over a slow link; what a client may make us keep is bounded by the connection's window.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// What one client may have under way. Fewer than a proxy's, so that a client cannot use up the streams that its proxy
/// shares with its neighbours.
const CLIENT: Share = Share { streams: 250, pending_resets: 100 };
/// A proxy speaks for many clients, and passes on what they take back.
const PROXY: Share = Share { streams: 10_000, pending_resets: 1_000 };

/// Limits of one HTTP/2 connection.
struct Share {
    streams: u32,
    /// Requests that were taken back before they were looked at.
    pending_resets: usize,
}

/// What one side's servers are told by the configuration.
#[derive(Clone, Copy)]
pub(crate) struct Settings<'c> {
    /// The largest head of a message, whatever the version.
    pub(crate) max_head: usize,
    pub(crate) h2: &'c Http2,
}

/// Serves until the connection ends. A drain, or the service's wish, ends it after what is under way.
pub(crate) async fn serve<S: Service>(
    io: Io,
    protocol: Protocol,
    settings: Settings<'_>,
    drain: &drain::Watch,
    service: Rc<S>,
) -> Result<(), Fault> {
    match protocol {
        Protocol::Http2 => Box::pin(serve_h2(io, settings, drain, service)).await,
        Protocol::Http1 | Protocol::Opaque => Box::pin(h1::serve(io, settings, drain, service)).await,
    }
}

async fn serve_h2<S: Service>(
    io: Io,
    Settings { max_head, h2: settings }: Settings<'_>,
    drain: &drain::Watch,
    service: Rc<S>,
) -> Result<(), Fault> {
    let of_proxy = service.of_proxy();
    let (guarded, verdict) = flood::Guard::new(io, of_proxy, settings.client_stall);
    let (answering, flushes) = (service.clone(), guarded.flushes());
    let answer = service_fn(move |request: Request<Incoming>| {
        let answered = answering.clone().call(request.map(|body| Body::h2(body).of_outsider()));
        let flushes = flushes.clone();
        answered.map_ok(move |response| response.map(|body| Told::new(body, flushes)))
    });
    let share = if of_proxy { PROXY } else { CLIENT };
    let mut builder =
        http2::Builder::new(Answering { service: service.clone(), limit: settings.client_stall });
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(settings.initial_stream_window.unwrap_or(STREAM_WINDOW))
        .initial_connection_window_size(settings.initial_connection_window.unwrap_or(CONNECTION_WINDOW))
        .max_concurrent_streams(settings.max_concurrent_streams.unwrap_or(share.streams))
        .max_header_list_size(
            settings.max_header_list_size.unwrap_or(u32::try_from(max_head).unwrap_or(u32::MAX)),
        )
        .max_pending_accept_reset_streams(
            settings.max_pending_accept_reset_streams.unwrap_or(share.pending_resets),
        )
        .max_frame_size(settings.max_frame_size)
        .keep_alive_interval(settings.keep_alive_interval);
    if settings.adaptive_flow_control {
        builder.adaptive_window(true);
    }
    if let Some(timeout) = settings.keep_alive_timeout {
        builder.keep_alive_timeout(timeout);
    }
    if let Some(bytes) = settings.max_send_buf_size {
        builder.max_send_buf_size(bytes);
    }
    let connection = builder.serve_connection(TokioIo::new(guarded), answer);
    let draining = drain.draining_newcomer();
    tokio::pin!(connection, draining);
    let mut graceful = false;
    loop {
        tokio::select! {
            biased;
            ended = &mut connection => return match verdict.fault() {
                Some(fault) => {
                    verdict.count(service.metrics());
                    Err(fault)
                }
                None => ended.or_else(|error| classify(&error)),
            },
            () = service.closing().wished(), if !graceful => graceful = true,
            () = &mut draining, if !graceful => graceful = true,
        }
        connection.as_mut().graceful_shutdown();
    }
}

/// What the end of a server connection means. A client that goes away between requests is no failure.
fn classify(error: &hyper::Error) -> Result<(), Fault> {
    let code = if let Some(h2) = h2_cause(error) {
        if h2.is_io() || h2.reason().is_none_or(|reason| reason == h2::Reason::NO_ERROR) {
            return Ok(());
        }
        Code::H2Protocol
    } else {
        // Cancelled, closed, incomplete: the client left, and its requests were told so.
        return Ok(());
    };
    Err(Fault::new(code).in_phase(Phase::RequestHeaders).fact("error", chain(error)))
}

pub(crate) fn h2_cause<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e h2::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(h2) = error.downcast_ref::<h2::Error>() {
            return Some(h2);
        }
        next = error.source();
    }
    None
}

pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
