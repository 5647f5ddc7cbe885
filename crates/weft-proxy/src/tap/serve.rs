//! The tap server: gRPC behind mTLS, for the one client that may watch.

use super::{Event, Taps, matching::Match};
use crate::{config, mesh::Mesh};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use linkerd2_proxy_api::tap::{
    ObserveRequest, TapEvent,
    observe_request::{Extract, extract},
    tap_server::{Tap as Service, TapServer},
};
use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tower::Service as _;
use weft_model::identity::Identity;

const CONNECTIONS: usize = 32;
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A question is a tree of at most a few hundred parts.
const MESSAGE_BYTES: usize = 256 * 1024;
const PING: Duration = Duration::from_secs(20);

/// Binds the port, in the agent's runtime.
pub(crate) fn listen(settings: &config::Tap, backlog: Option<u32>) -> io::Result<TcpListener> {
    TcpListener::from_std(weft_net::socket::listen(settings.listen, backlog)?)
}

/// Accepts until the process ends.
pub(crate) async fn run(mesh: Arc<Mesh>, settings: config::Tap, listener: TcpListener) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((io, client)) => {
                let (mesh, wanted) = (mesh.clone(), settings.client.clone());
                tokio::spawn(async move {
                    connection(mesh, wanted, io, client).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the tap server cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(mesh: Arc<Mesh>, wanted: Identity, io: TcpStream, client: SocketAddr) {
    let Some(credentials) = mesh.identity.current() else { return };
    let handshake = weft_tls::handshake::accept(&credentials, false, weft_tls::handshake::Offer::Nothing, io);
    let accepted = match tokio::time::timeout(HANDSHAKE, handshake).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(fault)) => return tracing::debug!(%client, "tap: {fault:?}"),
        Err(_) => return tracing::debug!(%client, "tap: the TLS handshake did not finish"),
    };
    let refused = (accepted.client.as_ref() != Some(&wanted)).then(|| {
        let seen = accepted.client.as_ref().map_or("no identity", Identity::as_str).to_owned();
        tracing::warn!(%client, identity = seen, expected = %wanted, "tap refused");
        format!("only {wanted} may tap, not {seen}")
    });
    let server = TapServer::new(Observe { mesh, refused }).max_decoding_message_size(MESSAGE_BYTES);
    let service = hyper::service::service_fn(move |request: ::http::Request<Incoming>| {
        let mut server = server.clone();
        async move { server.call(request).await }
    });
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(32)
        .max_header_list_size(16 * 1024)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    if let Err(error) = builder.serve_connection(TokioIo::new(accepted.stream), service).await {
        tracing::debug!(%client, %error, "tap connection");
    }
}

/// One connection's questions.
#[derive(Clone)]
struct Observe {
    mesh: Arc<Mesh>,
    /// Why this client is not answered.
    refused: Option<String>,
}

#[tonic::async_trait]
impl Service for Observe {
    type ObserveStream = Events;

    async fn observe(&self, request: Request<ObserveRequest>) -> Result<Response<Events>, Status> {
        if let Some(why) = &self.refused {
            return Err(Status::unauthenticated(why.as_str()));
        }
        let request = request.into_inner();
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        if limit == 0 {
            return Err(Status::invalid_argument("the limit has to be more than 0"));
        }
        let wanted = match request.r#match {
            Some(wanted) => Match::read(wanted).map_err(Status::invalid_argument)?,
            None => return Err(Status::invalid_argument("a match is needed")),
        };
        let with_headers = matches!(
            request.extract,
            Some(Extract { extract: Some(extract::Extract::Http(extract::Http { extract: Some(_) })) })
        );
        let taps = self.mesh.observers.taps();
        let (tap, receiver) = taps
            .add(wanted, limit, with_headers)
            .ok_or_else(|| Status::resource_exhausted("too many taps"))?;
        Ok(Response::new(Events { base: tap.base, mesh: self.mesh.clone(), receiver }))
    }
}

/// What a client hears. Its tap ends with it.
struct Events {
    base: u32,
    mesh: Arc<Mesh>,
    receiver: mpsc::Receiver<Event>,
}

impl Stream for Events {
    type Item = Result<TapEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(cx)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let taps: &Taps = self.mesh.observers.taps();
        taps.remove(self.base);
    }
}
