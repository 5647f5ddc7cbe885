//! gRPC over accepted connections.

use super::{Protection, accept};
use std::{future::Future, time::Duration};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{service::Routes, transport::Server};

/// Streams of one connection: a proxy opens one for each destination and port it uses.
const STREAMS: u32 = 10_000;
const HEADER_BYTES: u32 = 16 * 1024;

/// Serves until `shutdown`, then lets calls end for a moment.
pub async fn serve(
    listener: TcpListener,
    protection: Protection,
    routes: Routes,
    shutdown: impl Future<Output = ()>,
) {
    let (out, connections) = mpsc::channel(64);
    let accepting = tokio::spawn(accept(listener, protection, out));
    let served = Server::builder()
        // A proxy that is gone without a word is noticed, and one whose window stays shut is dropped.
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .max_concurrent_streams(Some(STREAMS))
        .http2_max_header_list_size(Some(HEADER_BYTES))
        .add_routes(routes)
        .serve_with_incoming_shutdown(ReceiverStream::new(connections), shutdown)
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "a gRPC server stopped");
    }
    accepting.abort();
}
