//! The page that Prometheus reads, written in pieces so that neither its size nor its reader holds anything up.

use super::{
    Metrics, PHASES,
    labels::Labels,
    series::{Activity, Entry, Group, HttpSeries, Status},
};
use bytes::Bytes;
use std::{
    fmt::Display,
    sync::{Arc, OnceLock},
    time::{Duration, Instant, SystemTime},
};
use tokio::sync::mpsc;

/// A piece is sent when it is about this long; its reader's slowness is then felt by the writer alone.
const PIECE: usize = 32 * 1024;

/// Writes a page to whoever reads it; ends early when the reader is gone.
pub async fn write(metrics: Arc<Metrics>, reader: mpsc::Sender<Bytes>) {
    // A reader that goes away is no failure.
    let _gone = Writer { page: String::with_capacity(PIECE + 4096), reader }.all(&metrics).await;
}

struct Writer {
    page: String,
    reader: mpsc::Sender<Bytes>,
}

type Gone = mpsc::error::SendError<Bytes>;

impl Writer {
    async fn all(mut self, metrics: &Metrics) -> Result<(), Gone> {
        let http = metrics.http.list();
        self.family(&http, "request_total", "counter", "Requests", |page, entry| {
            entry.labels.line(page, "request_total", "", entry.series.requests.value());
        })
        .await?;
        self.family(&http, "response_total", "counter", "Responses", |page, entry| {
            each_response(&entry.series, &mut |labels, response| {
                entry.labels.line(page, "response_total", labels, response.count.value());
            });
        })
        .await?;
        self.family(
            &http,
            "response_latency_ms",
            "histogram",
            "From request to end of response",
            |page, entry| {
                each_response(&entry.series, &mut |labels, response| {
                    response.latency.render(page, &entry.labels, "response_latency_ms", labels, 1_000.0);
                });
            },
        )
        .await?;

        let tcp = metrics.tcp.list();
        self.family(&tcp, "tcp_open_total", "counter", "Connections opened", |page, entry| {
            entry.labels.line(page, "tcp_open_total", "", entry.series.opened.value());
        })
        .await?;
        self.family(&tcp, "tcp_open_connections", "gauge", "Connections open now", |page, entry| {
            entry.labels.line(page, "tcp_open_connections", "", entry.series.open.value());
        })
        .await?;
        self.family(&tcp, "tcp_read_bytes_total", "counter", "Bytes read", |page, entry| {
            entry.labels.line(page, "tcp_read_bytes_total", "", entry.series.read.value());
        })
        .await?;
        self.family(&tcp, "tcp_write_bytes_total", "counter", "Bytes written", |page, entry| {
            entry.labels.line(page, "tcp_write_bytes_total", "", entry.series.written.value());
        })
        .await?;
        self.family(&tcp, "tcp_close_total", "counter", "Connections closed", |page, entry| {
            for (errno, count) in &*entry.series.closed.lock() {
                entry.labels.line(page, "tcp_close_total", &format!("errno=\"{errno}\""), count);
            }
        })
        .await?;

        for (name, help, group) in &metrics.counters {
            let full = format!("{name}_total");
            self.plain(group, &full, "counter", help, |counter| counter.value().to_string()).await?;
        }
        for (name, help, group) in &metrics.statuses {
            let full = format!("{name}_total");
            self.family(&group.list(), &full, "counter", help, |page, entry| {
                for (status, count) in entry.series.counts.iter().filter_map(OnceLock::get) {
                    let more = match status {
                        Status::Http(status) => format!("http_status=\"{status}\",error=\"\""),
                        Status::Error(error) => format!("http_status=\"\",error=\"{error}\""),
                    };
                    entry.labels.line(page, &full, &more, count.value());
                }
            })
            .await?;
        }
        for (name, help, group) in &metrics.gauges {
            self.plain(group, name, "gauge", help, |gauge| gauge.value().to_string()).await?;
        }

        self.head("weft_phase_duration_seconds", "histogram", "How long each step took");
        for (phase, histogram) in PHASES.iter().zip(&metrics.phases) {
            if histogram.count() > 0 {
                let labels = Labels::new().with("phase", phase.as_str());
                histogram.render(&mut self.page, &labels, "weft_phase_duration_seconds", "", 1_000_000.0);
            }
        }
        self.process(metrics);
        self.flush().await
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.page.push_str(&format!("# HELP {name} {help}.\n# TYPE {name} {kind}\n"));
    }

    async fn family<S>(
        &mut self,
        entries: &[Arc<Entry<S>>],
        name: &str,
        kind: &str,
        help: &str,
        mut lines: impl FnMut(&mut String, &Entry<S>),
    ) -> Result<(), Gone> {
        if entries.is_empty() {
            return Ok(());
        }
        self.head(name, kind, help);
        for entry in entries {
            lines(&mut self.page, entry);
            if self.page.len() >= PIECE {
                self.flush().await?;
            }
        }
        Ok(())
    }

    async fn plain<S: Default + Activity>(
        &mut self,
        group: &Group<S>,
        name: &str,
        kind: &str,
        help: &str,
        value: impl Fn(&S) -> String,
    ) -> Result<(), Gone> {
        self.family(&group.list(), name, kind, help, |page, entry| {
            entry.labels.line(page, name, "", value(&entry.series));
        })
        .await
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        Labels::new().line(&mut self.page, name, "", value);
    }

    fn process(&mut self, metrics: &Metrics) {
        self.head("proxy_build_info", "gauge", "The build of this proxy");
        let build = Labels::new().with("version", env!("CARGO_PKG_VERSION")).with("vendor", "weft");
        build.line(&mut self.page, "proxy_build_info", "", 1);
        self.one(
            "process_uptime_seconds_total",
            "counter",
            "Seconds since the start",
            metrics.uptime().as_secs_f64(),
        );
        let started = SystemTime::now() - metrics.uptime();
        let started = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.one("process_start_time_seconds", "gauge", "When the process started", started.as_secs_f64());
        if let Some(seconds) = cpu_seconds() {
            self.one("process_cpu_seconds_total", "counter", "CPU time used", seconds);
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let number = |name: &str| -> Option<u64> {
            status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        };
        for (name, line, help, unit) in [
            ("process_resident_memory_bytes", "VmRSS:", "Memory in use", 1024),
            ("process_virtual_memory_bytes", "VmSize:", "Address space in use", 1024),
            ("process_threads", "Threads:", "Threads", 1),
        ] {
            if let Some(value) = number(line) {
                self.one(name, "gauge", help, value * unit);
            }
        }
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            self.one("process_open_fds", "gauge", "File descriptors open", open.count());
        }
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        let piece = Bytes::copy_from_slice(self.page.as_bytes());
        self.page.clear();
        self.reader.send(piece).await?;
        // A fast reader must not turn this into one long turn of the agent.
        tokio::task::yield_now().await;
        Ok(())
    }
}

fn each_response(series: &HttpSeries, see: &mut dyn FnMut(&str, &super::series::Response)) {
    for response in series.responses.iter().filter_map(OnceLock::get) {
        let class = if response.success { "success" } else { "failure" };
        let grpc = response.grpc.map_or(String::new(), |code| format!(",grpc_status=\"{code}\""));
        see(&format!("classification=\"{class}\",status_code=\"{}\"{grpc}", response.status), response);
    }
}

/// User and system time of the process. The kernel counts in hundredths on every architecture.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is a name that may hold anything but ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / 100.0)
}

impl Metrics {
    /// Forgets label sets that nobody holds and that are idle. Called by the agent from time to time.
    pub fn retire(&self) {
        let now = Instant::now();
        self.http.retire(self.retain_idle, now);
        self.tcp.retire(self.retain_idle, now);
        for (_, _, group) in &self.counters {
            group.retire(self.retain_idle, now);
        }
        for (_, _, group) in &self.gauges {
            group.retire(self.retain_idle, now);
        }
        for (_, _, group) in &self.statuses {
            group.retire(self.retain_idle, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Count;
    use weft_fault::{Code, Phase};
    use weft_wire::record::Direction;

    async fn page(metrics: &Arc<Metrics>) -> String {
        let (send, mut receive) = mpsc::channel(1);
        tokio::spawn(write(metrics.clone(), send));
        let mut page = String::new();
        while let Some(piece) = receive.recv().await {
            page.push_str(std::str::from_utf8(&piece).unwrap());
        }
        page
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
    async fn idle_series_are_retired_and_held_ones_stay() {
        let metrics = Metrics::new(Duration::ZERO);
        let held = metrics.http(&Labels::new().with("a", "held"));
        metrics.http(&Labels::new().with("a", "dropped")).request();
        metrics.retire();
        metrics.retire();
        let page = page(&metrics).await;
        assert!(page.contains("request_total{a=\"held\"} 0"), "{page}");
        assert!(!page.contains("dropped"), "{page}");
        drop(held);
    }
}
