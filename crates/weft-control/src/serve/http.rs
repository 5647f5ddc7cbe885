//! Plain HTTP requests and answers: the webhook and the admin server.

use super::{Protection, accept};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::mpsc, time::timeout};

/// The most bytes of a request's body; an AdmissionReview holds an object twice.
const BODY_LIMIT: usize = 10 << 20;
const BODY_DEADLINE: Duration = Duration::from_secs(10);
const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// A connection ends after this, whatever it does.
const CONNECTION_LIFE: Duration = Duration::from_secs(600);

/// What a handler answers.
pub type Answer = Response<Full<Bytes>>;

/// Serves until dropped. `handle` sees the whole request.
pub async fn serve<H, F>(listener: TcpListener, protection: Protection, handle: H)
where
    H: Fn(Parts, Bytes) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let (out, mut connections) = mpsc::channel(64);
    let accepting = tokio::spawn(accept(listener, protection, out));
    // Ends with this future.
    let _guard = AbortOnDrop(accepting);
    let handle = Arc::new(handle);
    let mut tasks = tokio::task::JoinSet::new();
    while let Some(accepted) = connections.recv().await {
        while tasks.try_join_next().is_some() {}
        let Ok(connection) = accepted else { continue };
        let handle = handle.clone();
        tasks.spawn(async move {
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let handle = handle.clone();
                async move { Ok::<_, Infallible>(whole(request, &*handle).await) }
            });
            let mut builder = Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE);
            builder.http2().timer(TokioTimer::new()).max_header_list_size(16 * 1024);
            let served = builder.serve_connection(TokioIo::new(connection), service);
            if let Ok(Err(error)) = timeout(CONNECTION_LIFE, served).await {
                tracing::debug!(error, "connection ended");
            }
        });
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);
impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn whole<H, F>(request: Request<Incoming>, handle: &H) -> Answer
where
    H: Fn(Parts, Bytes) -> F,
    F: Future<Output = Answer>,
{
    let (parts, body) = request.into_parts();
    match timeout(BODY_DEADLINE, Limited::new(body, BODY_LIMIT).collect()).await {
        Ok(Ok(body)) => handle(parts, body.to_bytes()).await,
        Ok(Err(_)) => text(StatusCode::PAYLOAD_TOO_LARGE, "the body is too long or was cut off\n"),
        Err(_) => text(StatusCode::REQUEST_TIMEOUT, "the body did not come in time\n"),
    }
}

pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", text.into())
}

pub fn json(value: &impl serde::Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(bytes) => answer(StatusCode::OK, "application/json", bytes.into()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}
