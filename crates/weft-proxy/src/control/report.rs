//! Hands failures to the controller's journal as they happen, so that they outlive this pod.

use super::{Service, backoff};
use crate::metrics::{Count, Metrics, labels::Labels};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use weft_wire::{
    mesh::{REPORT_ENTRIES, ReportRequest, client::MeshClient},
    record::JournalEntry,
};

const DEADLINE: Duration = Duration::from_secs(10);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// A stock controller has no journal; it may be replaced by one that has.
const ASK_STOCK_AGAIN: Duration = Duration::from_secs(300);
/// A report that failed so often is given up, so that newer entries are not lost for it.
const ATTEMPTS: u32 = 8;

/// Uploads until the recorder is gone.
pub async fn run(
    service: Service,
    pod: String,
    mut entries: mpsc::Receiver<JournalEntry>,
    metrics: Arc<Metrics>,
) {
    let dropped = metrics.counter(Count::JournalDropped, &Labels::new().with("why", "not uploaded"));
    let mut stock_until: Option<Instant> = None;
    let mut batch = Vec::with_capacity(REPORT_ENTRIES);
    while entries.recv_many(&mut batch, REPORT_ENTRIES).await > 0 {
        let mut failures = 0;
        while stock_until.is_none_or(|until| Instant::now() > until) {
            match send(&service, &pod, &batch, dropped.value()).await {
                Ok(()) => {
                    stock_until = None;
                    batch.clear();
                    break;
                }
                Err(Some(tonic::Code::Unimplemented)) => stock_until = Some(Instant::now() + ASK_STOCK_AGAIN),
                Err(_) if failures + 1 >= ATTEMPTS => break,
                Err(_) => {
                    failures += 1;
                    tokio::time::sleep(backoff(BACKOFF, failures)).await;
                }
            }
        }
        dropped.add(batch.len() as u64);
        batch.clear();
    }
}

async fn send(
    service: &Service,
    pod: &str,
    batch: &[JournalEntry],
    dropped: u64,
) -> Result<(), Option<tonic::Code>> {
    let deadline = Instant::now() + DEADLINE;
    let connection = service.connection(deadline).await.map_err(|_| None)?;
    let mut client = MeshClient::new(connection);
    let report = client.report(ReportRequest::new(pod.to_string(), batch, dropped));
    match tokio::time::timeout_at(deadline.into(), report).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(Some(status.code())),
        Err(_) => Err(None),
    }
}
