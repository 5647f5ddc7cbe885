//! Process logs: Linkerd's plain shape or JSON, to stdout, never waited for.
//!
//! Lines go through a bounded queue to a thread of their own. When whoever reads stdout stops reading, lines are dropped
//! and counted; nothing else notices.

mod line;
mod stream;
mod targets;

pub use stream::Lines;

use crate::config::{LogFormat, LogSettings};
use std::{sync::OnceLock, time::Instant};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::LevelFilter, fmt::MakeWriter, layer::SubscriberExt, reload,
};

/// Lines that wait to be written.
const QUEUE: usize = 8_192;

/// The log of this process.
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
    level: parking_lot::Mutex<String>,
    dropped: ErrorCounter,
    places: stream::Places,
    /// Writes what waits when it is dropped, for a second at most.
    _guard: WorkerGuard,
}

impl Log {
    /// Starts logging. An unusable filter is the caller's to report: nothing is logged then.
    pub fn start(settings: &LogSettings) -> Result<Log, String> {
        let (writer, guard) =
            NonBlockingBuilder::default().lossy(true).buffered_lines_limit(QUEUE).finish(std::io::stdout());
        let (log, layers) = Log::new(settings, writer, guard)?;
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layers))
            .map_err(|e| e.to_string())?;
        Ok(log)
    }

    #[expect(clippy::type_complexity, reason = "what a registry takes")]
    fn new(
        settings: &LogSettings,
        writer: NonBlocking,
        guard: WorkerGuard,
    ) -> Result<(Log, Vec<Box<dyn Layer<Registry> + Send + Sync>>), String> {
        let dropped = writer.error_counter();
        let (filter, handle) = reload::Layer::new(filter(&settings.filter)?);
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
        let (mut layers, places) = stream::layers();
        layers.push(match settings.format {
            LogFormat::Plain => {
                let plain = line::Plain { started: Instant::now() };
                Box::new(layer.event_format(plain).with_filter(filter))
            }
            LogFormat::Json => Box::new(layer.event_format(line::Json).with_filter(filter)),
        });
        let level = parking_lot::Mutex::new(settings.filter.clone());
        Ok((Log { filter: handle, level, dropped, places, _guard: guard }, layers))
    }

    /// A log that nobody writes to, for tests of what changes it.
    #[cfg(test)]
    pub(crate) fn detached(settings: &str) -> Log {
        let (writer, guard) = NonBlockingBuilder::default().finish(std::io::sink());
        let settings = LogSettings { filter: settings.to_owned(), format: LogFormat::Plain };
        let (log, layers) = Log::new(&settings, writer, guard).expect("the test's own filter");
        // The handles work for as long as their layers live.
        std::mem::forget(layers);
        log
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

    /// Lines as JSON, by a filter of their own. `Ok(None)`: too many read already.
    pub fn read(&self, text: &str) -> Result<Option<Lines>, String> {
        Ok(self.places.read(filter(text)?))
    }
}

/// Reads Linkerd's filter. What it says about Linkerd's code holds for weft's, which stands in its stead.
fn filter(text: &str) -> Result<EnvFilter, String> {
    EnvFilter::builder()
        .with_default_directive(LevelFilter::WARN.into())
        .parse(targets::with_stand_ins(text))
        .map_err(|e| format!("{text:?}: {e}"))
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
        let shown = filter("warn,linkerd=info,hickory=error").unwrap().to_string();
        assert!(shown.contains("weft=info"), "{shown}");
        assert!(filter("off").is_ok());
        assert!(filter("=nonsense=,[").is_err());
    }
}
