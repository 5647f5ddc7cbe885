//! HTTP/2 towards a server: one connection's handshake, and what its errors mean.

use super::{
    OnWorker,
    alive::{Alive, Pulse},
    body::Body,
    server,
};
use crate::{connect::Role, io::Io};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{net::SocketAddr, rc::Rc, time::Duration};
use weft_fault::{Code, Fault, Phase};
use weft_model::outbound::{Http2Client, Http2Windows};

const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// A peer that answers no PING is gone: its streams end within 20 seconds, and an idle connection does not stay in the pool.
/// The limit is longer than a starved peer needs.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_LIMIT: Duration = Duration::from_secs(8);

/// Starts HTTP/2 on a new connection and drives it in a task of its own.
pub(crate) async fn http2(
    io: Io,
    asked: &Http2Client,
    max_head: usize,
) -> Result<(http2::SendRequest<Body>, Rc<Pulse>), hyper::Error> {
    let mut builder = http2::Builder::new(OnWorker);
    builder.timer(TokioTimer::new()).max_header_list_size(u32::try_from(max_head).unwrap_or(u32::MAX));
    match asked.windows {
        Some(Http2Windows::Adaptive) => builder.adaptive_window(true),
        Some(Http2Windows::Fixed { stream, connection }) => builder
            .initial_stream_window_size(stream.unwrap_or(STREAM_WINDOW))
            .initial_connection_window_size(connection.unwrap_or(CONNECTION_WINDOW)),
        None => builder
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW),
    };
    let (interval, timeout, while_idle) = match asked.keep_alive {
        Some(alive) => (alive.interval, alive.timeout.unwrap_or(PING_LIMIT), alive.while_idle),
        None => (PING_EVERY, PING_LIMIT, true),
    };
    builder.keep_alive_interval(interval).keep_alive_timeout(timeout).keep_alive_while_idle(while_idle);
    let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    if let Some(streams) = asked.max_reset_streams {
        builder.max_concurrent_reset_streams(size(streams));
    }
    if let Some(bytes) = asked.max_frame_bytes {
        builder.max_frame_size(bytes);
    }
    if let Some(bytes) = asked.max_send_buffer_bytes {
        builder.max_send_buf_size(size(bytes));
    }
    let (alive, pulse) = Alive::new(io);
    let (sender, connection) = builder.handshake(TokioIo::new(alive)).await?;
    tokio::task::spawn_local(async move {
        let _ended = connection.await;
    });
    Ok((sender, pulse))
}

/// A request that was written and not answered.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) fault: Fault,
    /// The server reset the stream with this code: a client that speaks HTTP/2 is told the same.
    pub(crate) reset: Option<h2::Reason>,
    /// The server says that it did not begin to process it.
    pub(crate) unprocessed: bool,
}

/// What a failed exchange means. `breach`: the rule for which this proxy ended the connection.
pub(crate) fn unanswered(
    error: &hyper::Error,
    role: Role,
    server: SocketAddr,
    breach: Option<&'static str>,
) -> Unanswered {
    let h2 = server::h2_cause(error);
    let (mut reset, mut unprocessed) = (None, false);
    let code = if breach.is_some() {
        Code::H2Protocol
    } else if let Some(h2) = h2 {
        if h2.is_reset() && h2.is_remote() {
            reset = h2.reason();
            unprocessed = h2.reason() == Some(h2::Reason::REFUSED_STREAM);
            Code::UpstreamReset
        } else if h2.is_go_away() && h2.is_remote() {
            // Streams above the last one that the server names are failed by h2 like this: they were not begun.
            unprocessed = true;
            Code::UpstreamGoaway
        } else if h2.is_io() {
            Code::UpstreamReset
        } else {
            Code::H2Protocol
        }
    } else if error.is_parse() || error.is_parse_too_large() {
        Code::UpstreamNotHttp
    } else if error.is_user() {
        // The request's own body failed: the client went away while sending it.
        Code::ConnectionReset
    } else {
        Code::UpstreamReset
    };
    let code = match (role, code) {
        (Role::App, Code::UpstreamReset) => Code::AppClosed,
        (Role::App, Code::UpstreamNotHttp) => Code::AppNotHttp,
        (_, code) => code,
    };
    let fault =
        Fault::new(code).in_phase(Phase::ResponseHeaders).peer(server).fact("error", server::chain(error));
    Unanswered { fault, reset, unprocessed }
}
