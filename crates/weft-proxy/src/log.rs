//! Process logs: Linkerd's plain shape or JSON, to stdout, never waited for.
//!
//! Lines go through a bounded queue to a thread of their own. When whoever reads stdout stops reading, lines are dropped
//! and counted; nothing else notices.

use crate::config::{LogFormat, LogSettings};
use std::{fmt, sync::OnceLock, time::Instant};
use tracing::{Event, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Registry,
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    layer::SubscriberExt,
    registry::LookupSpan,
    reload,
};

/// Lines that wait to be written.
const LINES: usize = 8_192;

/// The log of this process.
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
    level: parking_lot::Mutex<String>,
    dropped: ErrorCounter,
    /// Writes what waits when it is dropped, for a second at most.
    _guard: WorkerGuard,
}

impl Log {
    /// Starts logging. An unusable filter is the caller's to report: nothing is logged then.
    pub fn start(settings: &LogSettings) -> Result<Log, String> {
        let (writer, guard) =
            NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES).finish(std::io::stdout());
        let dropped = writer.error_counter();
        let (filter, handle) = reload::Layer::new(filter(&settings.filter)?);
        let registry = tracing_subscriber::registry().with(filter);
        let set = match settings.format {
            LogFormat::Plain => {
                let layer = tracing_subscriber::fmt::layer()
                    .with_ansi(false)
                    .event_format(Plain { started: Instant::now() })
                    .with_writer(writer);
                tracing::subscriber::set_global_default(registry.with(layer))
            }
            LogFormat::Json => {
                let layer = tracing_subscriber::fmt::layer().json().with_thread_ids(true).with_writer(writer);
                tracing::subscriber::set_global_default(registry.with(layer))
            }
        };
        set.map_err(|e| e.to_string())?;
        Ok(Log {
            filter: handle,
            level: parking_lot::Mutex::new(settings.filter.clone()),
            dropped,
            _guard: guard,
        })
    }

    /// A log that nobody writes to, for tests of what changes it.
    #[cfg(test)]
    pub(crate) fn detached(settings: &str) -> Log {
        let (writer, guard) = NonBlockingBuilder::default().finish(std::io::sink());
        let (layer, handle) = reload::Layer::new(filter(settings).expect("the test's own filter"));
        // The handle works for as long as its layer lives.
        std::mem::forget(layer);
        Log {
            filter: handle,
            level: parking_lot::Mutex::new(settings.to_string()),
            dropped: writer.error_counter(),
            _guard: guard,
        }
    }

    /// Lines that found the queue full.
    pub fn dropped(&self) -> u64 {
        self.dropped.dropped_lines() as u64
    }

    pub fn level(&self) -> String {
        self.level.lock().clone()
    }

    /// Changes what is logged from now on.
    pub fn set_level(&self, text: &str) -> Result<(), String> {
        self.filter.reload(filter(text)?).map_err(|e| e.to_string())?;
        *self.level.lock() = text.to_string();
        Ok(())
    }
}

/// Reads Linkerd's filter. What it says about `linkerd` holds for weft, whose code stands in those targets' stead.
fn filter(text: &str) -> Result<EnvFilter, String> {
    let mut directives: Vec<String> = Vec::new();
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        directives.push(directive.to_string());
        if let Some((target, level)) = directive.split_once('=')
            && target.starts_with("linkerd")
        {
            directives.push(format!("weft={level}"));
        }
    }
    EnvFilter::try_new(directives.join(",")).map_err(|e| format!("{text:?}: {e}"))
}

/// `[    12.345s] LEVEL ThreadId(1) target: message key=value`
struct Plain {
    started: Instant,
}

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let up = self.started.elapsed();
        let meta = event.metadata();
        write!(
            line,
            "[{:>6}.{:03}s] {:>5} {:?} {}: ",
            up.as_secs(),
            up.subsec_millis(),
            meta.level(),
            std::thread::current().id(),
            meta.target()
        )?;
        ctx.format_fields(line.by_ref(), event)?;
        writeln!(line)
    }
}

/// For tests: logs to wherever cargo captures, once per process.
pub fn to_test_output() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let writer = tracing_subscriber::fmt::TestWriter::new();
        let layer =
            tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || writer.make_writer());
        // Another test's subscriber is as good.
        let filter = EnvFilter::new("warn,weft=debug");
        let _set_before =
            tracing::subscriber::set_global_default(tracing_subscriber::registry().with(filter).with(layer));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that never reads: a pipe's far end, held and left alone.
    struct Stuck(std::sync::mpsc::Receiver<()>);

    impl std::io::Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // Ends when the test drops its end.
            let _freed = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stops_costs_lines_and_nothing_else() {
        let (free, stuck) = std::sync::mpsc::channel();
        let (mut writer, guard) =
            NonBlockingBuilder::default().lossy(true).buffered_lines_limit(4).finish(Stuck(stuck));
        let dropped = writer.error_counter();
        // More lines than fit: none of these writes may wait, or this test would never end.
        for _ in 0..100 {
            std::io::Write::write_all(&mut writer, b"a line\n").unwrap();
        }
        assert!(dropped.dropped_lines() >= 90, "{}", dropped.dropped_lines());
        drop(free);
        drop(guard);
    }

    #[test]
    fn linkerds_filters_hold_for_weft() {
        let shown = filter("warn,linkerd=info,linkerd_proxy_http=error,hickory=error").unwrap().to_string();
        assert!(shown.contains("weft=error"), "the last one wins: {shown}");
        assert!(filter("off").is_ok());
        assert!(filter("=nonsense=,[").is_err());
    }
}
