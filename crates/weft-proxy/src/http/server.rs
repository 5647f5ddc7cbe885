//! Serving HTTP on one connection, of either version, until it ends or is drained.

use super::{MAX_HEAD, OnWorker, body::Body, flood};
use crate::{
    config::Http2,
    detect::Protocol,
    drain,
    io::{HeadState, Io},
};
use http::{Request, Response, Version, header};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{cell::Cell, error::Error, rc::Rc, sync::Arc, time::Duration};
use tokio::sync::Notify;
use weft_fault::{Code, Fault, Phase};

/// What answers the requests of one connection.
pub(crate) trait Service: 'static {
    /// An error resets the stream with the error's own code (HTTP/2), or closes the connection (HTTP/1).
    fn call(
        self: Rc<Self>,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Body>, Box<dyn Error + Send + Sync>>>;

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
    async fn wished(&self) {
        while !self.wished.get() {
            self.notify.notified().await;
        }
    }
}

/// The head of a request must be whole this long after its first byte; the idle time before does not count.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Large enough for a fast stream over a slow link; what a client may make us keep is bounded by the connection's window.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
const MAX_STREAMS: u32 = 1_000;
const PENDING_RESETS: usize = 100;

/// Serves until the connection ends. A drain, or the service's wish, ends it after what is under way.
pub(crate) async fn serve<S: Service>(
    mut io: Io,
    protocol: Protocol,
    settings: &Http2,
    drain: &drain::Watch,
    service: Rc<S>,
) -> Result<(), Fault> {
    match protocol {
        Protocol::Http2 => Box::pin(serve_h2(io, settings, drain, service)).await,
        Protocol::Http1 | Protocol::Opaque => {
            let heads = io.limit_heads(HEAD_LIMIT);
            let ended = Box::pin(serve_h1(io, heads.clone(), drain, service)).await;
            match ended {
                Err(_) if heads.timed_out() => Err(Fault::new(Code::HeaderTimeout)
                    .in_phase(Phase::RequestHeaders)
                    .fact("limit_ms", HEAD_LIMIT.as_millis())),
                Err(error) => classify(&error),
                Ok(()) => Ok(()),
            }
        }
    }
}

async fn serve_h1<S: Service>(
    io: Io,
    heads: Arc<HeadState>,
    drain: &drain::Watch,
    service: Rc<S>,
) -> Result<(), hyper::Error> {
    let answering = service.clone();
    let answer = service_fn(move |request: Request<Incoming>| {
        let service = answering.clone();
        heads.head_complete();
        let busy = Busy(heads.clone());
        async move {
            let http_10 = request.version() == Version::HTTP_10;
            let mut response = service.call(request.map(Body::incoming)).await?;
            // hyper frames a message by its version: an HTTP/1.1 client gets chunks even if the server spoke 1.0. It knows
            // what an HTTP/1.0 client understands, and keeps that client's connection if it may.
            let closes = response.headers().contains_key(header::CONNECTION);
            *response.version_mut() = if http_10 && closes { Version::HTTP_10 } else { Version::HTTP_11 };
            Ok::<_, Box<dyn Error + Send + Sync>>(response.map(|body| body.keeping(busy)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_header_size(MAX_HEAD)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(io), answer)
        .with_upgrades();
    let draining = drain.draining();
    tokio::pin!(connection, draining);
    let mut graceful = false;
    loop {
        tokio::select! {
            biased;
            ended = &mut connection => return ended,
            () = service.closing().wished(), if !graceful => graceful = true,
            () = &mut draining, if !graceful => graceful = true,
        }
        connection.as_mut().graceful_shutdown();
    }
}

async fn serve_h2<S: Service>(
    io: Io,
    settings: &Http2,
    drain: &drain::Watch,
    service: Rc<S>,
) -> Result<(), Fault> {
    let answering = service.clone();
    let answer =
        service_fn(move |request: Request<Incoming>| answering.clone().call(request.map(Body::incoming)));
    let mut builder = http2::Builder::new(OnWorker);
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(settings.initial_stream_window.unwrap_or(STREAM_WINDOW))
        .initial_connection_window_size(settings.initial_connection_window.unwrap_or(CONNECTION_WINDOW))
        .max_concurrent_streams(settings.max_concurrent_streams.unwrap_or(MAX_STREAMS))
        .max_header_list_size(
            settings.max_header_list_size.unwrap_or(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX)),
        )
        .max_pending_accept_reset_streams(settings.max_pending_accept_reset_streams.unwrap_or(PENDING_RESETS))
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
    let (guarded, verdict) = flood::Guard::new(io);
    let connection = builder.serve_connection(TokioIo::new(guarded), answer);
    let draining = drain.draining_newcomer();
    tokio::pin!(connection, draining);
    let mut graceful = false;
    loop {
        tokio::select! {
            biased;
            ended = &mut connection => return match verdict.fault() {
                Some(fault) => Err(fault),
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
    let code = if error.is_parse_too_large() {
        Code::HeadersTooLarge
    } else if error.is_parse() {
        Code::BadRequest
    } else if let Some(h2) = h2_cause(error) {
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

/// Held by a response's body: while it lives, bytes from the client belong to no new request.
pub(crate) struct Busy(Arc<HeadState>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.request_done();
    }
}
