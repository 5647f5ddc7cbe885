//! Sends finished spans, a batch at a time.

use super::otlp::{
    EXPORT, ExportRequest, ExportResponse, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span,
};
use crate::{
    control::{Service, backoff, connection::Connection},
    metrics::{Count, Metrics, labels::Labels},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, time::timeout_at};
use tonic::{Request, Status, codegen::http::uri::PathAndQuery};

const BATCH: usize = 1_000;
const DEADLINE: Duration = Duration::from_secs(10);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// A batch that failed so often is dropped, so that newer spans are not lost for it.
const ATTEMPTS: u32 = 4;

/// Runs for as long as spans may come.
pub(crate) async fn run(
    service: Service,
    attributes: Vec<(String, String)>,
    mut spans: mpsc::Receiver<Span>,
    metrics: Arc<Metrics>,
    batch_wait: Duration,
) {
    let none = Labels::new();
    let exported = metrics.counter(Count::SpanExports, &none);
    let requests = metrics.counter(Count::SpanExportRequests, &none);
    let dropped = metrics.counter(Count::SpansDropped, &none);
    let resource =
        Resource { attributes: attributes.iter().map(|(key, value)| KeyValue::text(key, value)).collect() };
    while let Some(batch) = next_batch(&mut spans, batch_wait).await {
        let count = batch.len() as u64;
        let request = request(&resource, batch);
        let mut failures = 0;
        loop {
            requests.add(1);
            match send(&service, request.clone()).await {
                Ok(rejected) => {
                    let rejected = u64::try_from(rejected).unwrap_or(0).min(count);
                    exported.add(count - rejected);
                    dropped.add(rejected);
                    break;
                }
                Err(why) => {
                    failures += 1;
                    if failures == 1 {
                        tracing::warn!(
                            collector = service.addr(),
                            spans = count,
                            "spans cannot be sent: {why}"
                        );
                    }
                    if failures >= ATTEMPTS || !is_worth_repeating(&why) {
                        dropped.add(count);
                        break;
                    }
                    tokio::time::sleep(backoff(BACKOFF, failures)).await;
                }
            }
        }
    }
}

/// Up to [`BATCH`] spans, the first of which waited for `wait` at most. `None` when no more will come.
async fn next_batch(spans: &mut mpsc::Receiver<Span>, wait: Duration) -> Option<Vec<Span>> {
    let mut batch = vec![spans.recv().await?];
    let deadline = Instant::now() + wait;
    while batch.len() < BATCH {
        let room = BATCH - batch.len();
        match timeout_at(deadline.into(), spans.recv_many(&mut batch, room)).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    Some(batch)
}

fn request(resource: &Resource, spans: Vec<Span>) -> ExportRequest {
    let scope = Scope { name: "weft-proxy".into(), version: env!("CARGO_PKG_VERSION").into() };
    ExportRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource.clone()),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
        }],
    }
}

/// The number of spans that the collector did not want.
async fn send(service: &Service, request: ExportRequest) -> Result<i64, Status> {
    let deadline = Instant::now() + DEADLINE;
    let connection = service.connection(deadline).await;
    let connection = connection.map_err(|fault| Status::unavailable(format!("{fault:?}")))?;
    match timeout_at(deadline.into(), export(connection, request)).await {
        Ok(answer) => Ok(answer?.partial_success.map_or(0, |partial| partial.rejected_spans)),
        Err(_) => Err(Status::deadline_exceeded("the collector does not answer")),
    }
}

async fn export(connection: Connection, request: ExportRequest) -> Result<ExportResponse, Status> {
    let mut client = tonic::client::Grpc::new(connection);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = tonic_prost::ProstCodec::<ExportRequest, ExportResponse>::default();
    let answer = client.unary(Request::new(request), PathAndQuery::from_static(EXPORT), codec).await?;
    Ok(answer.into_inner())
}

/// What OTLP lists as worth another attempt.
fn is_worth_repeating(why: &Status) -> bool {
    use tonic::Code::{
        Aborted, Cancelled, DataLoss, DeadlineExceeded, OutOfRange, ResourceExhausted, Unavailable,
    };
    matches!(
        why.code(),
        Cancelled | DeadlineExceeded | ResourceExhausted | Aborted | OutOfRange | Unavailable | DataLoss
    )
}
