//! `/metrics`: one page at a time, however many ask for it.

use super::{Body, text};
use crate::{log::Log, mesh::Mesh, metrics};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Frame;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

/// Scrapers that are served or wait for their turn. Prometheus and a person or two; more of them is a mistake, which must
/// not cost the data path its CPU.
const SCRAPERS: usize = 8;
/// Pieces that are ready before their reader is.
const AHEAD: usize = 2;

/// Who may scrape, and whose turn it is.
#[derive(Debug)]
pub(super) struct Scrapes {
    present: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

impl Default for Scrapes {
    fn default() -> Self {
        Scrapes { present: Arc::new(Semaphore::new(SCRAPERS)), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Scrapes {
    /// Answers at once; the page follows when it is its turn.
    pub(super) fn page(&self, mesh: &Mesh, log: &Log, headers: &HeaderMap) -> Response<Body> {
        let Ok(present) = self.present.clone().try_acquire_owned() else {
            let mut response = text(StatusCode::SERVICE_UNAVAILABLE, "too many scrapes at once\n");
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            return response;
        };
        take_over(mesh, log);
        let encoding = if accepts_gzip(headers) { metrics::Encoding::Gzip } else { metrics::Encoding::Plain };
        let (pieces, page) = mpsc::channel(AHEAD);
        let (turn, metrics) = (self.turn.clone(), mesh.metrics.clone());
        tokio::spawn(async move {
            // The semaphore is never closed.
            let _turn = turn.acquire_owned().await;
            metrics::write(metrics, encoding, pieces).await;
            drop(present);
        });
        let pieces = ReceiverStream::new(page).map(|piece| Ok(Frame::data(piece)));
        let mut response = Response::new(BodyExt::boxed(http_body_util::StreamBody::new(pieces)));
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, kind);
        headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        if encoding == metrics::Encoding::Gzip {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
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
