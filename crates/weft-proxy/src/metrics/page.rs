//! The page that Prometheus reads, written in pieces so that neither its size nor its reader holds anything up.

use super::{
    Described, Metrics,
    breath::Breath,
    families::{AnySet, Lines},
    labels::Labels,
    phases, process,
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use std::{io::Write, sync::Arc, time::Instant};
use tokio::sync::mpsc;

/// A piece is sent when it is about this long; its reader's slowness is then felt by the writer alone.
const PIECE: usize = 32 * 1024;

/// How a page travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Plain,
    Gzip,
}

/// Writes a page to whoever reads it; ends early when the reader is gone.
pub async fn write(metrics: Arc<Metrics>, encoding: Encoding, reader: mpsc::Sender<Bytes>) {
    let gzip = (encoding == Encoding::Gzip).then(|| GzEncoder::new(Vec::new(), Compression::fast()));
    let page = String::with_capacity(PIECE + 4096);
    // A reader that goes away is no failure.
    let _gone = Writer { page, gzip, reader, breath: Breath::new() }.all(&metrics).await;
}

struct Writer {
    page: String,
    gzip: Option<GzEncoder<Vec<u8>>>,
    reader: mpsc::Sender<Bytes>,
    breath: Breath,
}

struct Gone;

impl Writer {
    async fn all(mut self, metrics: &Metrics) -> Result<(), Gone> {
        for set in metrics.sets() {
            if !set.is_empty() {
                self.set(set).await?;
            }
        }
        self.head(&phases::describe());
        for (phase, histogram) in metrics.phases.seen() {
            let labels = Labels::new().with("phase", phase.as_str());
            let name = phases::FAMILY;
            Lines { page: &mut self.page, name, labels: &labels }.histogram("", histogram);
        }
        for (family, lines) in process::now(metrics) {
            self.head(&family);
            self.page.push_str(&lines);
        }
        self.piece().await?;
        match self.gzip.take() {
            Some(gzip) => self.send(gzip.finish().map_err(|_| Gone)?).await,
            None => Ok(()),
        }
    }

    async fn set(&mut self, set: &dyn AnySet) -> Result<(), Gone> {
        for (at, family) in set.families().iter().enumerate() {
            self.head(family);
            let mut chunk = 0;
            while set.lines(at, &family.name, chunk, &mut self.page) {
                chunk += 1;
                if self.page.len() >= PIECE {
                    self.piece().await?;
                }
            }
        }
        Ok(())
    }

    fn head(&mut self, family: &Described) {
        let Described { name, kind, help, .. } = family;
        self.page.push_str(&format!("# HELP {name} {help}.\n# TYPE {name} {}\n", kind.as_str()));
    }

    async fn piece(&mut self) -> Result<(), Gone> {
        let piece = match &mut self.gzip {
            None => self.page.as_bytes().to_vec(),
            Some(gzip) => {
                // Writing to a vector cannot fail.
                let _infallible = gzip.write_all(self.page.as_bytes());
                std::mem::take(gzip.get_mut())
            }
        };
        self.page.clear();
        if !piece.is_empty() {
            self.send(piece).await?;
        }
        // A fast reader must not turn this into one long turn of the agent, nor a long page into all of its time.
        self.breath.take().await;
        Ok(())
    }

    async fn send(&mut self, piece: Vec<u8>) -> Result<(), Gone> {
        let waits = Instant::now();
        self.reader.send(piece.into()).await.map_err(|_| Gone)?;
        self.breath.waited(waits.elapsed());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Count, Flavour, exchange::Exchange};
    use std::{io::Read, time::Duration};
    use weft_fault::{Code, Phase};
    use weft_wire::record::Direction;

    async fn bytes(metrics: &Arc<Metrics>, encoding: Encoding) -> Vec<u8> {
        let (send, mut receive) = mpsc::channel(1);
        tokio::spawn(write(metrics.clone(), encoding, send));
        let mut page = Vec::new();
        while let Some(piece) = receive.recv().await {
            page.extend_from_slice(&piece);
        }
        page
    }

    async fn page(metrics: &Arc<Metrics>) -> String {
        String::from_utf8(bytes(metrics, Encoding::Plain).await).unwrap()
    }

    #[tokio::test]
    async fn everything_counted_stands_on_the_page_once() {
        let metrics = Metrics::new(Duration::from_secs(600));
        let labels = Labels::new().with("direction", "inbound");
        let http = metrics.http(&labels);
        http.request();
        http.response(200, None, true, Duration::from_millis(7));
        http.response(200, Some(5), false, Duration::from_millis(7));
        let mut open = metrics.tcp(&labels).open();
        open.read(10);
        open.errno("ECONNRESET");
        drop(open);
        metrics.fault(Code::NoRuleAllows, Direction::Inbound);
        metrics.phase(Phase::Connect, Duration::from_millis(3));
        metrics.counter(Count::InboundHttpAuthzDeny, &labels).add(2);
        let route = metrics.inbound_route(Flavour::Grpc, &Labels::new().with("route_name", "r"));
        let mut exchange = Exchange::inbound(&route, metrics.phases(), true, Instant::now());
        exchange.request_body(false).piece(200);
        exchange.piece(2_000);
        exchange.end(200, Some(0));
        drop(Exchange::inbound(&route, metrics.phases(), true, Instant::now()));
        let page = page(&metrics).await;
        for line in [
            "request_total{direction=\"inbound\"} 1",
            "response_total{direction=\"inbound\",classification=\"success\",status_code=\"200\"} 1",
            "response_total{direction=\"inbound\",classification=\"failure\",status_code=\"200\",grpc_status=\"5\"} 1",
            "response_latency_ms_bucket{direction=\"inbound\",classification=\"success\",status_code=\"200\",le=\"5\"} 0",
            "response_latency_ms_bucket{direction=\"inbound\",classification=\"success\",status_code=\"200\",le=\"10\"} 1",
            "response_latency_ms_sum{direction=\"inbound\",classification=\"success\",status_code=\"200\"} 7",
            "tcp_open_connections{direction=\"inbound\"} 0",
            "tcp_read_bytes_total{direction=\"inbound\"} 10",
            "tcp_close_total{direction=\"inbound\",errno=\"ECONNRESET\"} 1",
            "inbound_http_authz_deny_total{direction=\"inbound\"} 2",
            "weft_faults_total{code=\"POL-001\",direction=\"inbound\"} 1",
            "weft_phase_duration_seconds_bucket{phase=\"connect\",le=\"0.005\"} 1",
            "weft_phase_duration_seconds_count{phase=\"connect\"} 1",
            "inbound_grpc_requests_total{route_name=\"r\"} 2",
            "inbound_grpc_statuses_total{route_name=\"r\",status=\"0\"} 1",
            "inbound_grpc_statuses_total{route_name=\"r\",status=\"\"} 1",
            "inbound_grpc_request_duration_seconds_bucket{route_name=\"r\",le=\"0.025\"} 2",
            "inbound_grpc_request_frame_size_bytes_bucket{route_name=\"r\",le=\"128\"} 0",
            "inbound_grpc_request_frame_size_bytes_sum{route_name=\"r\"} 200",
            "inbound_grpc_response_frame_size_bytes_bucket{route_name=\"r\",le=\"10240\"} 1",
        ] {
            assert_eq!(page.matches(&format!("{line}\n")).count(), 1, "{line}\n{page}");
        }
        let mut families: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let all = families.len();
        families.sort_unstable();
        families.dedup();
        assert_eq!(families.len(), all, "a family stands twice");
    }

    #[tokio::test]
    async fn a_long_page_is_the_same_in_pieces_and_compressed() {
        let metrics = Metrics::new(Duration::from_secs(600));
        for n in 0..3_000 {
            let labels = Labels::new().with("direction", "outbound").with("authority", format!("svc-{n}"));
            metrics.http(&labels).request();
        }
        let zipped = bytes(&metrics, Encoding::Gzip).await;
        let mut page = String::new();
        flate2::read::GzDecoder::new(&zipped[..]).read_to_string(&mut page).unwrap();
        assert!(zipped.len() * 5 < page.len());
        for n in 0..3_000 {
            assert!(
                page.contains(&format!("request_total{{direction=\"outbound\",authority=\"svc-{n}\"}} 1\n"))
            );
        }
        assert_eq!(page.matches("\nrequest_total{").count(), 3_000);
    }

    #[tokio::test]
    async fn a_reader_that_goes_away_ends_the_page() {
        let metrics = Metrics::new(Duration::from_secs(600));
        for n in 0..3_000 {
            metrics.http(&Labels::new().with("n", n)).request();
        }
        let (send, mut receive) = mpsc::channel(1);
        let writing = tokio::spawn(write(metrics, Encoding::Plain, send));
        receive.recv().await.unwrap();
        drop(receive);
        writing.await.unwrap();
    }

    #[tokio::test]
    async fn idle_series_are_retired_and_held_ones_stay() {
        let metrics = Metrics::new(Duration::ZERO);
        let held = metrics.http(&Labels::new().with("a", "held"));
        metrics.http(&Labels::new().with("a", "dropped")).request();
        metrics.retire().await;
        metrics.retire().await;
        let page = page(&metrics).await;
        assert!(page.contains("request_total{a=\"held\"} 0"), "{page}");
        assert!(!page.contains("dropped"), "{page}");
        drop(held);
    }
}
