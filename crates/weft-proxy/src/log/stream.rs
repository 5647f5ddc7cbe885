//! Log lines for whoever asks the admin server for them, with a filter of their own.

use super::line;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tokio::sync::mpsc;
use tracing::{Event, Subscriber};
use tracing_subscriber::{EnvFilter, Layer, Registry, filter::LevelFilter, layer::Context, reload};

/// Readers at a time.
const READERS: usize = 4;
/// Lines that wait for a reader; more are dropped and counted.
const LINES: usize = 512;

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The places that readers take.
#[derive(Clone)]
pub(super) struct Places(Arc<[Place; READERS]>);

#[derive(Clone)]
struct Place {
    filter: reload::Handle<EnvFilter, Registry>,
    reader: Arc<Mutex<Option<Reader>>>,
}

struct Reader {
    lines: mpsc::Sender<Bytes>,
    dropped: Arc<AtomicU64>,
}

/// The lines of one reader, until it is dropped.
pub struct Lines {
    lines: mpsc::Receiver<Bytes>,
    dropped: Arc<AtomicU64>,
    place: Place,
}

/// Nothing is enabled where nobody reads, so that a disabled event stays as cheap as it was.
fn nothing() -> EnvFilter {
    EnvFilter::default().add_directive(LevelFilter::OFF.into())
}

/// Layers that write nothing until somebody reads, and the places to read at.
pub(super) fn layers() -> (Vec<BoxedLayer>, Places) {
    let mut layers: Vec<BoxedLayer> = Vec::new();
    let places = std::array::from_fn(|_| {
        let reader = Arc::new(Mutex::new(None));
        let (filter, handle) = reload::Layer::new(nothing());
        layers.push(Box::new(Writer(reader.clone()).with_filter(filter)));
        Place { filter: handle, reader }
    });
    (layers, Places(Arc::new(places)))
}

struct Writer(Arc<Mutex<Option<Reader>>>);

impl<S: Subscriber> Layer<S> for Writer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // The line is made outside of the lock, which is held for a queue's push and never for an await.
        let line = Bytes::from(line::json(event));
        if let Some(reader) = &*self.0.lock()
            && reader.lines.try_send(line).is_err()
        {
            reader.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Places {
    /// Lines that pass `filter`; `None`: all places are taken.
    pub(super) fn read(&self, filter: EnvFilter) -> Option<Lines> {
        let (lines, receiver) = mpsc::channel(LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        for place in &*self.0 {
            let mut reader = place.reader.lock();
            if reader.is_some() {
                continue;
            }
            *reader = Some(Reader { lines, dropped: dropped.clone() });
            drop(reader);
            let read = Lines { lines: receiver, dropped, place: place.clone() };
            // It fails only when the subscriber is gone, with which nothing is logged any more.
            return place.filter.reload(filter).is_ok().then_some(read);
        }
        None
    }
}

impl Lines {
    /// The next line; after lost ones, a line that says how many.
    pub async fn next(&mut self) -> Option<Bytes> {
        match self.dropped.swap(0, Relaxed) {
            0 => self.lines.recv().await,
            dropped => Some(Bytes::from(format!("{{\"droppedLines\":{dropped}}}\n"))),
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        *self.place.reader.lock() = None;
        // It fails only when the subscriber is gone.
        let _gone = self.place.filter.reload(nothing());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[tokio::test]
    async fn a_reader_gets_what_its_filter_lets_pass_and_is_told_of_losses() {
        // With one subscriber alone, another thread's would decide what is heard here.
        crate::log::to_test_output();
        let (layers, places) = layers();
        let _current = tracing::subscriber::set_default(tracing_subscriber::registry().with(layers));
        tracing::error!("nobody reads");
        let mut all = places.read(EnvFilter::new("debug")).unwrap();
        let mut some = places.read(EnvFilter::new("warn")).unwrap();
        tracing::debug!(n = 1, "small");
        tracing::warn!(n = 2, "big");
        let first = all.next().await.unwrap();
        assert!(first.ends_with(b"\n") && String::from_utf8_lossy(&first).contains("\"small\""));
        assert!(String::from_utf8_lossy(&all.next().await.unwrap()).contains("\"big\""));
        assert!(String::from_utf8_lossy(&some.next().await.unwrap()).contains("\"big\""));

        for n in 0..LINES + 5 {
            tracing::warn!(n, "many");
        }
        assert_eq!(some.next().await.unwrap(), "{\"droppedLines\":5}\n");
        assert!(String::from_utf8_lossy(&some.next().await.unwrap()).contains("\"many\""));

        let others = [places.read(EnvFilter::new("info")), places.read(EnvFilter::new("info"))];
        assert!(others.iter().all(Option::is_some));
        assert!(places.read(EnvFilter::new("info")).is_none(), "all places are taken");
        drop(all);
        assert!(places.read(EnvFilter::new("info")).is_some());
    }
}
