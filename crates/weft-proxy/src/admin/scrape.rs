//! `/metrics`: one page at a time, however many ask for it.

use super::{Body, text};
use crate::{
    log::Log,
    mesh::Mesh,
    metrics::{self, Metrics},
    vital,
};
use bytes::Bytes;
use flate2::write::GzDecoder;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Frame;
use parking_lot::Mutex;
use std::{
    io::Write,
    sync::{Arc, OnceLock, Weak},
};
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, mpsc, oneshot},
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

/// Scrapers that are served at the same time. Prometheus and a person or two; more of them is a mistake, which must not cost
/// the data path its CPU.
const SCRAPERS: usize = 8;
/// Pieces that are ready before their reader is.
const AHEAD: usize = 2;
/// Of the thread that writes pages (sched(7)): a tenth of the weight of a worker that wants the same CPU. Not less, since on a
/// machine without an idle moment the page has to end, too.
const NICENESS: i32 = 10;

/// Who may scrape, the page that is being written, and the thread that writes it.
#[derive(Debug)]
pub(super) struct Scrapes {
    present: Arc<Semaphore>,
    latest: Mutex<Weak<Page>>,
    /// From the first scrape on.
    thread: OnceLock<Option<Unhurried>>,
}

impl Default for Scrapes {
    fn default() -> Self {
        let present = Arc::new(Semaphore::new(SCRAPERS));
        Scrapes { present, latest: Mutex::default(), thread: OnceLock::new() }
    }
}

/// One thread that gives way to the workers: it writes tens of megabytes where there are many series.
#[derive(Debug)]
struct Unhurried {
    runtime: Handle,
    /// The thread ends when this is dropped.
    _stop: oneshot::Sender<()>,
}

impl Unhurried {
    fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("metrics".into()).spawn(move || {
            weft_net::process::lower_priority(NICENESS);
            let _dropped = runtime.block_on(stopped);
        })?;
        Ok(Unhurried { runtime: handle, _stop: stop })
    }

    /// As on the agent's thread, a bug here is not survived: a page that is never whole would look like a slow proxy.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let working = self.runtime.spawn(work);
        self.runtime.spawn(async move {
            if let Err(panicked) = working.await
                && panicked.is_panic()
            {
                vital::ended("the page of metrics", &panicked);
            }
        });
    }
}

impl Scrapes {
    /// Answers at once; the page follows as it is written.
    pub(super) fn page(&self, mesh: &Mesh, log: &Log, headers: &HeaderMap) -> Response<Body> {
        let Ok(present) = self.present.clone().try_acquire_owned() else {
            let mut response = text(StatusCode::SERVICE_UNAVAILABLE, "too many scrapes at once\n");
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            return response;
        };
        take_over(mesh, log);
        let gzip = accepts_gzip(headers);
        let page = self.join(&mesh.metrics);
        let (pieces, read) = mpsc::channel(AHEAD);
        self.spawn(async move {
            tokio::select! {
                () = page.read(gzip, &pieces) => {}
                // Whoever leaves holds nothing any longer; a page that nobody waits for is written no further.
                () = pieces.closed() => {}
            }
            drop(present);
        });
        let pieces = ReceiverStream::new(read).map(|piece| Ok(Frame::data(piece)));
        let mut response = Response::new(BodyExt::boxed(http_body_util::StreamBody::new(pieces)));
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, kind);
        headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        if gzip {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }

    /// The page that is being written, from its beginning; or else a new one.
    fn join(&self, metrics: &Arc<Metrics>) -> Arc<Page> {
        let mut latest = self.latest.lock();
        if let Some(page) = latest.upgrade().filter(|page| !page.written.lock().whole) {
            return page;
        }
        let page = Arc::new(Page::default());
        *latest = Arc::downgrade(&page);
        self.spawn(write(Arc::downgrade(&page), metrics.clone()));
        page
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let start = || {
            let say = |error: &std::io::Error| tracing::warn!(%error, "no thread for metrics; the agent writes them");
            Unhurried::start().inspect_err(say).ok()
        };
        match self.thread.get_or_init(start) {
            Some(thread) => thread.spawn(work),
            None => drop(tokio::spawn(work)),
        }
    }
}

/// A page for all who asked while it was being written. It is kept compressed, a few per cent of its length, so that a slow
/// reader costs that much memory and holds nobody up.
#[derive(Debug, Default)]
struct Page {
    written: Mutex<Written>,
    grown: Notify,
}

#[derive(Debug, Default)]
struct Written {
    pieces: Vec<Bytes>,
    whole: bool,
}

/// Writes the page for as long as somebody reads it.
async fn write(page: Weak<Page>, metrics: Arc<Metrics>) {
    let (send, mut pieces) = mpsc::channel(AHEAD);
    let keeping = async move {
        while let (Some(piece), Some(page)) = (pieces.recv().await, page.upgrade()) {
            page.add(|written| written.pieces.push(piece));
        }
        if let Some(page) = page.upgrade() {
            page.add(|written| written.whole = true);
        }
    };
    tokio::join!(metrics::write(metrics, metrics::Encoding::Gzip, send), keeping);
}

impl Page {
    fn add(&self, change: impl FnOnce(&mut Written)) {
        change(&mut self.written.lock());
        self.grown.notify_waiters();
    }

    /// A piece, once it is written. `None` past the last one.
    async fn piece(&self, at: usize) -> Option<Bytes> {
        loop {
            let grown = self.grown.notified();
            {
                let written = self.written.lock();
                if written.whole || at < written.pieces.len() {
                    return written.pieces.get(at).cloned();
                }
            }
            grown.await;
        }
    }

    /// Gives the page to one reader at the reader's pace.
    async fn read(&self, gzip: bool, reader: &mpsc::Sender<Bytes>) {
        let mut unzip = (!gzip).then(|| GzDecoder::new(Vec::new()));
        let mut at = 0;
        while let Some(piece) = self.piece(at).await {
            at += 1;
            let piece = match &mut unzip {
                None => piece,
                Some(unzip) => {
                    // Writing to a vector cannot fail, and what was compressed here is what it says.
                    let _infallible = unzip.write_all(&piece).and_then(|()| unzip.flush());
                    std::mem::take(unzip.get_mut()).into()
                }
            };
            if !piece.is_empty() && reader.send(piece).await.is_err() {
                return;
            }
        }
    }
}

/// What is counted elsewhere.
fn take_over(mesh: &Mesh, log: &Log) {
    let none = metrics::labels::Labels::new();
    let counted = mesh.metrics.counter(metrics::Count::LogLinesDropped, &none);
    counted.add(log.dropped().saturating_sub(counted.value()));
    let of_access_log = none.clone().with("log", "access");
    let counted = mesh.metrics.counter(metrics::Count::LogLinesDropped, &of_access_log);
    counted.add(mesh.observers.lines_dropped().saturating_sub(counted.value()));
    let counted = mesh.metrics.counter(metrics::Count::JournalDropped, &none.with("why", "queue full"));
    counted.add(mesh.recorder.journal_dropped().saturating_sub(counted.value()));
}

/// RFC 9110, 12.5.3: named, or meant by `*`, and not with a weight of zero.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let named = |name: &str| {
        let codings = headers.get_all(header::ACCEPT_ENCODING).into_iter().filter_map(|v| v.to_str().ok());
        codings.flat_map(|value| value.split(',')).find_map(|coding| {
            let (coding, weight) = coding.split_once(';').unwrap_or((coding, ""));
            let matches = coding.trim().eq_ignore_ascii_case(name);
            let weight = weight.trim().trim_start_matches(['q', 'Q']).trim_start_matches('=').trim();
            matches.then(|| weight.is_empty() || weight.parse::<f32>().is_ok_and(|weight| weight > 0.0))
        })
    };
    named("gzip").or_else(|| named("*")).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::labels::Labels;
    use std::time::Duration;

    /// Names that compress badly, so that the page has several pieces either way.
    fn fill(metrics: &Metrics) {
        for n in 0..2_000_u64 {
            let digits: String = (1..9_u64)
                .map(|k| {
                    format!("{:016x}", (n + 1).wrapping_mul(k * k + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15))
                })
                .collect();
            metrics.http(&Labels::new().with("n", digits)).request();
        }
    }

    async fn read(page: &Page, gzip: bool) -> Vec<u8> {
        let (send, mut pieces) = mpsc::channel::<Bytes>(AHEAD);
        let reading = async {
            let mut bytes = Vec::new();
            while let Some(piece) = pieces.recv().await {
                bytes.extend_from_slice(&piece);
            }
            bytes
        };
        let giving = async move {
            page.read(gzip, &send).await;
        };
        tokio::join!(giving, reading).1
    }

    #[tokio::test]
    async fn who_asks_while_a_page_is_written_reads_the_same_one() {
        let (scrapes, metrics) = (Scrapes::default(), Metrics::new(Duration::from_secs(600)));
        fill(&metrics);
        let (one, other) = (scrapes.join(&metrics), scrapes.join(&metrics));
        assert!(Arc::ptr_eq(&one, &other));
        // One takes it compressed, and one as it is, beginning when the first has read some.
        assert!(one.piece(1).await.is_some());
        let late = scrapes.join(&metrics);
        assert!(Arc::ptr_eq(&one, &late));
        let (zipped, plain) = tokio::join!(read(&one, true), read(&late, false));
        let mut unzipped = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&zipped[..]), &mut unzipped).unwrap();
        assert_eq!(unzipped, String::from_utf8(plain).unwrap());
        assert_eq!(unzipped.matches("\nrequest_total{").count(), 2_000);
        // What is whole is of the past.
        assert!(!Arc::ptr_eq(&one, &scrapes.join(&metrics)));
    }

    #[tokio::test]
    async fn a_page_that_nobody_reads_is_not_written_on() {
        let (scrapes, metrics) = (Scrapes::default(), Metrics::new(Duration::from_secs(600)));
        fill(&metrics);
        let page = scrapes.join(&metrics);
        assert!(page.piece(0).await.is_some());
        drop(page);
        // The writer's own handle on the metrics goes when it stops.
        while Arc::strong_count(&metrics) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(scrapes.latest.lock().upgrade().is_none());
    }

    #[test]
    fn gzip_is_for_those_who_ask_for_it() {
        for (value, accepted) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=0.0, *", false),
            ("*", true),
            ("*;q=0", false),
            ("br", false),
            ("", false),
            ("gzip;q=nonsense", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
            assert_eq!(accepts_gzip(&headers), accepted, "{value:?}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
