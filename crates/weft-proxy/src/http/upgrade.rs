//! Connections that stop being HTTP: WebSocket and other upgrades, CONNECT.

use super::{
    body::Body,
    h1::{Upgrade, Upgraded},
};
use crate::{drain, record::Story};
use http::{Request, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::{
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weft_fault::{Code, Fault, Phase};
use weft_net::copy;

/// One end of a connection that may stop being HTTP once both ends agree.
pub(crate) enum Upgrading {
    H1(Upgrade),
    /// One stream of an HTTP/2 connection (RFC 9113, 8.5).
    H2(OnUpgrade),
}

impl Upgrading {
    pub(crate) fn of_request(request: &mut Request<Body>) -> Self {
        match request.body_mut().take_upgrade() {
            Some(upgrade) => Upgrading::H1(upgrade),
            None => Upgrading::H2(hyper::upgrade::on(request)),
        }
    }

    pub(crate) fn of_response(response: &mut Response<Body>) -> Self {
        match response.body_mut().take_upgrade() {
            Some(upgrade) => Upgrading::H1(upgrade),
            None => Upgrading::H2(hyper::upgrade::on(response)),
        }
    }

    async fn done(self) -> Result<Raw, Fault> {
        let lost = || Fault::new(Code::ConnectionReset).in_phase(Phase::Copy);
        match self {
            Upgrading::H1(upgrade) => upgrade.done().await.map(Raw::H1).ok_or_else(lost),
            Upgrading::H2(upgrade) => match upgrade.await {
                Ok(upgraded) => Ok(Raw::H2(TokioIo::new(upgraded))),
                Err(error) => Err(lost().because(error)),
            },
        }
    }
}

/// Bytes that are not HTTP any more.
enum Raw {
    H1(Upgraded),
    H2(TokioIo<hyper::upgrade::Upgraded>),
}

impl Raw {
    /// It ends by a reset when it is dropped; a stream that is dropped unfinished does so anyway.
    fn abort(&mut self) {
        match self {
            Raw::H1(upgraded) => upgraded.abort(),
            Raw::H2(_) => {}
        }
    }
}

macro_rules! each {
    ($self:ident, $stream:ident => $do:expr) => {
        match $self.get_mut() {
            Raw::H1($stream) => $do,
            Raw::H2($stream) => $do,
        }
    };
}

impl AsyncRead for Raw {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Raw {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(cx))
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}

/// Once both ends have agreed, copies bytes between them, in a task of its own that belongs to the connection's story.
/// `withdrawn` ends it before its time, and says why itself.
pub(crate) fn bridge(
    client: Upgrading,
    server: Upgrading,
    story: Rc<Story>,
    drain: drain::Watch,
    withdrawn: impl Future<Output = ()> + 'static,
) {
    tokio::task::spawn_local(async move {
        let copying = async {
            let (mut client, mut server) = tokio::try_join!(client.done(), server.done())?;
            story.event(Phase::Copy, "upgraded");
            let _copying = story.timed(Phase::Copy);
            copy::both_ways(&mut client, &mut server, &mut |_, _| {}).await.map_err(|error| {
                // Whoever is left must not take an orderly end for a complete message.
                client.abort();
                server.abort();
                let reset = error.error.kind() == io::ErrorKind::ConnectionReset;
                let code = if reset { Code::ConnectionReset } else { Code::NetworkIo };
                Fault::new(code).in_phase(Phase::Copy).because(error)
            })
        };
        let ended = tokio::select! {
            biased;
            () = drain.stopped() => Err(Fault::new(Code::Draining).in_phase(Phase::Copy)),
            () = withdrawn => return,
            ended = copying => ended,
        };
        match ended {
            Ok(()) => story.event(Phase::Copy, "upgraded connection ended"),
            // Resets are how many WebSocket clients leave; the story keeps them, the log need not.
            Err(fault) => story.fault(&fault),
        }
    });
}
