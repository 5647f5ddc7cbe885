//! Spans of requests whose trace is sampled, sent to a collector over OTLP.
//!
//! A worker hands over a finished span without waiting; the agent sends them in batches. When the queue is full, or the
//! collector is away for too long, spans are dropped and counted.

pub(crate) mod context;
mod export;
pub mod otlp;

pub(crate) use export::run;

use crate::metrics::{Count, Metrics, labels::Labels, series::Counter};
use context::Context;
use http::Request;
use otlp::KeyValue;
use std::{net::SocketAddr, sync::Arc, time::SystemTime};
use tokio::sync::mpsc;
use weft_fault::Code;
use weft_wire::record::Direction;

/// Spans that wait to be sent.
const QUEUE: usize = 8_192;
const PATH_BYTES: usize = 1_024;

/// Hands spans to the agent.
pub(crate) struct Tracer {
    queue: mpsc::Sender<otlp::Span>,
    dropped: Arc<Counter>,
}

impl Tracer {
    pub(crate) fn new(metrics: &Metrics) -> (Tracer, mpsc::Receiver<otlp::Span>) {
        let (queue, spans) = mpsc::channel(QUEUE);
        (Tracer { queue, dropped: metrics.counter(Count::SpansDropped, &Labels::new()) }, spans)
    }

    /// Begins a span if the request's trace is sampled, and tells the next hop about it.
    pub(crate) fn begin<B>(
        &self,
        request: &mut Request<B>,
        direction: Direction,
        client: SocketAddr,
    ) -> Option<Span> {
        let context = context::read(request.headers())?;
        let id: [u8; 8] = rand::random();
        context::write(request.headers_mut(), &context, id);
        let path = request.uri().path();
        let path: String = path.chars().take(PATH_BYTES).collect();
        let authority = crate::http::headers::authority(request).unwrap_or_default().to_owned();
        let attributes = vec![
            KeyValue::text("direction", direction.as_str()),
            KeyValue::text("http.request.method", request.method().as_str()),
            KeyValue::text("url.path", path.clone()),
            KeyValue::text("server.address", authority),
            KeyValue::text("client.address", client.to_string()),
            KeyValue::text(
                "network.protocol.version",
                format!("{:?}", request.version()).replace("HTTP/", ""),
            ),
        ];
        Some(Span { context, id, path, direction, begun: SystemTime::now(), attributes })
    }

    pub(crate) fn end(&self, span: Span, status: u16, fault: Option<Code>) {
        if self.queue.try_send(span.finished(status, fault)).is_err() {
            self.dropped.add(1);
        }
    }
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A span that has begun.
#[derive(Debug)]
pub(crate) struct Span {
    context: Context,
    id: [u8; 8],
    path: String,
    direction: Direction,
    begun: SystemTime,
    attributes: Vec<KeyValue>,
}

impl Span {
    pub(crate) fn peer(&mut self, addr: SocketAddr) {
        self.attributes.push(KeyValue::text("network.peer.address", addr.to_string()));
    }

    fn finished(mut self, status: u16, fault: Option<Code>) -> otlp::Span {
        self.attributes.push(KeyValue::number("http.response.status_code", status.into()));
        if let Some(code) = fault {
            self.attributes.push(KeyValue::text("error.type", code.id()));
        }
        let failed = status >= 500 || fault.is_some();
        otlp::Span {
            trace_id: self.context.trace.to_vec(),
            span_id: self.id.to_vec(),
            parent_span_id: self.context.parent.to_vec(),
            name: self.path,
            kind: match self.direction {
                Direction::Inbound => otlp::Kind::Server,
                Direction::Outbound => otlp::Kind::Client,
            }
            .into(),
            start_time_unix_nano: nanos(self.begun),
            end_time_unix_nano: nanos(SystemTime::now()),
            attributes: self.attributes,
            status: failed.then(|| otlp::Status {
                message: fault.map(Code::says).unwrap_or_default().to_owned(),
                code: otlp::StatusCode::Error.into(),
            }),
            flags: self.context.flags.into(),
        }
    }
}
