//! A list that stays current: list, watch, and every way in which a watch ends.
//!
//! A cut connection shows itself by silence only, so silence is measured: a [`heartbeat`] asks the server for a small
//! thing all the time, and the first answer after a failure makes all watches connect again where they were.

use crate::{
    api::{self, ApiError},
    backoff::Backoff,
    kind::{Decoded, Kind, Undecodable},
    meta::{Meta, ObjectName},
};
use bytes::{Buf, Bytes, BytesMut};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use rand::Rng;
use serde::{
    Deserialize, Deserializer as _,
    de::{self, DeserializeOwned, IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value;
use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};
use weft_fault::{Code, Fault};

/// Objects per page of a list.
const PAGE: usize = 500;
/// Pages that are read into their types at the same time.
const READ_AHEAD: usize = 3;
/// The longest page: objects of half a megabyte each are not seen in practice.
const PAGE_LIMIT: usize = 256 << 20;
/// The longest line of a watch: one object (etcd's limit is 1.5 MiB, and JSON is longer than protobuf).
const LINE_LIMIT: usize = 16 << 20;
/// The server ends a watch after this (plus up to a tenth); we do so a little later.
const WATCH_SECONDS: u64 = 290;
/// How long to wait, at most, before asking again for a kind that the server does not have.
const ABSENT_PAUSE: Duration = Duration::from_secs(10);

/// What a watch says. After the first `Replaced` or `Absent` the receiver knows the whole set.
#[derive(Debug)]
pub enum Event<K> {
    /// The whole set, in place of everything before.
    Replaced(Vec<Result<K, Box<Undecodable>>>),
    Applied(Arc<K>),
    Deleted(ObjectName),
    /// This object is there and cannot be read: whatever it said before is void.
    Undecodable(Box<Undecodable>),
    /// The server does not have this kind (yet): the set is empty.
    Absent,
}

/// Which objects of a kind.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub namespace: Option<String>,
    /// `metadata.name=…`
    pub field_selector: Option<String>,
    pub label_selector: Option<String>,
}

/// How one watch is doing, for metrics and liveness.
#[derive(Debug)]
pub struct Progress {
    pub kind: &'static str,
    /// Two groups have a kind of the same name.
    pub group: &'static str,
    started: Instant,
    synced: AtomicBool,
    lists: AtomicU64,
    failures: AtomicU64,
    /// Milliseconds from `started` to the last sign of life.
    last_ms: AtomicU64,
}

impl Progress {
    fn new(kind: &'static str, group: &'static str) -> Self {
        Progress {
            kind,
            group,
            started: Instant::now(),
            synced: AtomicBool::new(false),
            lists: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_ms: AtomicU64::new(0),
        }
    }
    fn alive(&self) {
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }
    /// The whole set was received once.
    pub fn synced(&self) -> bool {
        self.synced.load(Ordering::Relaxed)
    }
    pub fn lists(&self) -> u64 {
        self.lists.load(Ordering::Relaxed)
    }
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
    pub fn idle(&self) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }
}

/// What one page of a list holds.
struct Page<K> {
    objects: Vec<Result<K, Box<Undecodable>>>,
    metadata: ListMeta,
}

fn read_page<K: Kind>(page: &[u8]) -> Result<Page<K>, ApiError> {
    #[derive(Deserialize)]
    #[serde(bound = "T: DeserializeOwned")]
    struct List<T> {
        #[serde(default)]
        metadata: ListMeta,
        #[serde(default = "Option::default")]
        items: Option<Vec<T>>,
    }
    // Checked once and not string by string. What is no text is refused, with its place, below.
    let good = str::from_utf8(page).ok().and_then(|text| serde_json::from_str::<List<K>>(text).ok());
    // A page of good objects is read straight into their types; the way around a bad one costs several times as much.
    if let Some(List { metadata, items }) = good {
        return Ok(Page { objects: items.unwrap_or_default().into_iter().map(Ok).collect(), metadata });
    }
    let list: List<Decoded<K>> = serde_json::from_slice(page).map_err(ApiError::Unreadable)?;
    Ok(Page {
        objects: list.items.unwrap_or_default().into_iter().map(|decoded| decoded.0).collect(),
        metadata: list.metadata,
    })
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    r#continue: Option<String>,
}

impl ListMeta {
    /// The token of the next page, unless this is the last.
    fn next(self) -> Option<String> {
        self.r#continue.filter(|token| !token.is_empty())
    }
}

/// What a list says of itself, if it says so before its objects, as servers do. The objects are not looked at.
fn list_meta_before_items(list: &[u8]) -> Option<ListMeta> {
    struct Head<'m>(&'m mut Option<ListMeta>);
    impl<'de> Visitor<'de> for Head<'_> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<String>()? {
                match key.as_str() {
                    "metadata" => *self.0 = Some(map.next_value()?),
                    "items" => {}
                    _ => {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                }
                break;
            }
            // The rest is left unread: this is no failure, and nobody looks at it.
            Err(de::Error::custom("enough"))
        }
    }
    let mut meta = None;
    let _enough = serde_json::Deserializer::from_slice(list).deserialize_map(Head(&mut meta));
    meta
}

/// What objects that follow one another in a list have alike is kept once.
fn share<K: Kind>(objects: &mut [Result<K, Box<Undecodable>>]) {
    for n in 1..objects.len() {
        if let [.., Ok(like), Ok(object)] = &mut objects[..=n] {
            object.share(like);
        }
    }
}

/// Shared by the heartbeat and all watches of one API server.
#[derive(Clone, Debug)]
pub struct Pulse {
    /// Counts the returns of the server: a watch that sees a new number connects again.
    epoch: watch::Sender<u64>,
    last_answer: Arc<std::sync::Mutex<Instant>>,
}

impl Default for Pulse {
    fn default() -> Self {
        Pulse { epoch: watch::Sender::new(0), last_answer: Arc::new(std::sync::Mutex::new(Instant::now())) }
    }
}

impl Pulse {
    /// How long the server has not answered.
    pub fn silence(&self) -> Duration {
        self.last_answer.lock().unwrap_or_else(std::sync::PoisonError::into_inner).elapsed()
    }
}

/// Asks the server every few seconds whether it is there. Runs until dropped.
pub async fn heartbeat(client: Client, pulse: Pulse, period: Duration) {
    let mut failed = false;
    loop {
        tokio::time::sleep(period).await;
        let answer = timeout(period, api::get::<Value>(&client, "/version")).await;
        // Any answer of the server counts, also a refusal.
        let alive = matches!(answer, Ok(Ok(_) | Err(ApiError::Status { .. })));
        if !alive && !failed {
            warn!("the Kubernetes API does not answer");
        }
        if alive {
            *pulse.last_answer.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Instant::now();
            if failed {
                info!("the Kubernetes API answers again; watches are opened anew");
                pulse.epoch.send_modify(|n| *n += 1);
            }
        }
        failed = !alive;
    }
}

/// One watch: its parts before it runs.
pub struct Watch {
    client: Client,
    scope: Scope,
    pulse: Pulse,
    progress: Arc<Progress>,
}

/// How a watch connection ended.
enum Ended {
    /// Go on from the last version seen.
    Resume,
    /// The version is too old: list again.
    Relist,
    Failed(ApiError),
    /// Nobody listens any more.
    Closed,
}

impl Watch {
    pub fn new<K: Kind>(client: Client, scope: Scope, pulse: Pulse) -> Self {
        Watch { client, scope, pulse, progress: Arc::new(Progress::new(K::KIND, K::GROUP)) }
    }

    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Delivers events to `out`, made into its type by `wrap`, until the receiver is gone.
    pub async fn run<K: Kind, E>(self, out: mpsc::Sender<E>, wrap: impl Fn(Event<K>) -> E) {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let mut epoch = self.pulse.epoch.subscribe();
        let mut absent = false;
        // A definition is often installed a moment after the controller.
        let mut absence = Backoff::new(Duration::from_millis(250), ABSENT_PAUSE);
        loop {
            // 1. The whole set.
            let listed = tokio::select! {
                biased;
                () = out.closed() => return,
                listed = self.list::<K>() => listed,
            };
            let mut version = match listed {
                Ok((objects, version)) => {
                    absent = false;
                    absence.reset();
                    if out.send(wrap(Event::Replaced(objects))).await.is_err() {
                        return;
                    }
                    self.progress.synced.store(true, Ordering::Relaxed);
                    version
                }
                Err(error) if error.code() == Some(404) => {
                    if !absent {
                        debug!(kind = K::KIND, group = K::GROUP, "the API does not have this kind");
                        absent = true;
                        if out.send(wrap(Event::Absent)).await.is_err() {
                            return;
                        }
                        self.progress.synced.store(true, Ordering::Relaxed);
                    }
                    self.progress.alive();
                    tokio::time::sleep(absence.next_delay()).await;
                    continue;
                }
                Err(error) => {
                    self.pause::<K>(&mut backoff, error).await;
                    continue;
                }
            };
            // 2. Changes since, over as many connections as it takes.
            loop {
                epoch.mark_unchanged();
                let opened = Instant::now();
                let ended = tokio::select! {
                    biased;
                    () = out.closed() => return,
                    Ok(()) = epoch.changed() => Ended::Resume,
                    ended = self.follow::<K, E>(&mut version, &out, &wrap, &mut backoff) => ended,
                };
                match ended {
                    // A server that ends watches as soon as they begin must not be asked without pause.
                    Ended::Resume if opened.elapsed() < Duration::from_secs(1) => {
                        tokio::time::sleep(backoff.next_delay()).await;
                    }
                    Ended::Resume => {}
                    Ended::Closed => return,
                    Ended::Relist => break,
                    // The version stays valid: the server says 410 if it is not.
                    Ended::Failed(error) => self.pause::<K>(&mut backoff, error).await,
                }
            }
        }
    }

    async fn pause<K: Kind>(&self, backoff: &mut Backoff, error: ApiError) {
        self.progress.failures.fetch_add(1, Ordering::Relaxed);
        let delay = backoff.next_delay().max(error.retry_after().unwrap_or_default());
        let fault = Fault::new(Code::WatchLost).about(K::KIND).because(error);
        warn!(retry_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), "{fault:?}");
        tokio::time::sleep(delay).await;
    }

    fn request<K: Kind>(&self, list: bool, query: &[(&str, &str)]) -> Result<Request<Vec<u8>>, ApiError> {
        let mut uri = K::path(self.scope.namespace.as_deref());
        let selectors =
            [("fieldSelector", &self.scope.field_selector), ("labelSelector", &self.scope.label_selector)];
        let selectors = selectors.iter().filter_map(|(k, v)| Some((*k, v.as_deref()?)));
        let mut separator = '?';
        for (key, value) in query.iter().copied().chain(selectors) {
            uri.push(separator);
            uri.push_str(key);
            uri.push('=');
            uri.push_str(&percent_encode(value));
            separator = '&';
        }
        let accept = match (K::METADATA_ONLY, list) {
            (false, _) => "application/json",
            (true, true) => {
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
            }
            (true, false) => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
        };
        Request::get(uri)
            .header(header::ACCEPT, accept)
            .body(Vec::new())
            .map_err(|e| ApiError::Transport(Box::new(e)))
    }

    /// All pages. While some are read into their types, on threads of their own, the next one is on its way.
    async fn list<K: Kind>(&self) -> Result<(Vec<Result<K, Box<Undecodable>>>, String), ApiError> {
        let mut objects = Vec::new();
        let mut reading = VecDeque::new();
        let mut next = Some(String::new());
        loop {
            while reading.len() < READ_AHEAD
                && let Some(token) = next.take()
            {
                let page = self.page::<K>(&token).await?;
                // `None` if it only says behind its objects how to go on.
                next = list_meta_before_items(&page).and_then(ListMeta::next);
                reading.push_back(AbortOnDropHandle::new(tokio::spawn(async move { read_page::<K>(&page) })));
            }
            let page = reading.pop_front().expect("a round begins with a page to ask for or being read");
            let page = page.await.map_err(|e| ApiError::Transport(Box::new(e)))??;
            let joint = objects.len().saturating_sub(1);
            objects.extend(page.objects);
            share(&mut objects[joint..]);
            self.progress.alive();
            if reading.is_empty() && next.is_none() {
                let version = page.metadata.resource_version.clone();
                next = page.metadata.next();
                if next.is_none() {
                    self.progress.lists.fetch_add(1, Ordering::Relaxed);
                    return Ok((objects, version));
                }
            }
        }
    }

    /// One page of the list as it comes. `token` is empty for the first.
    async fn page<K: Kind>(&self, token: &str) -> Result<Bytes, ApiError> {
        let limit = PAGE.to_string();
        let mut query = vec![("limit", limit.as_str())];
        if !token.is_empty() {
            query.push(("continue", token));
        }
        let response = api::send(&self.client, self.request::<K>(true, &query)?).await?;
        api::read(response.into_body(), PAGE_LIMIT).await
    }

    /// One watch connection. `version` is where it stands, also after it ended.
    async fn follow<K: Kind, E>(
        &self,
        version: &mut String,
        out: &mpsc::Sender<E>,
        wrap: &impl Fn(Event<K>) -> E,
        backoff: &mut Backoff,
    ) -> Ended {
        let seconds = WATCH_SECONDS + rand::rng().random_range(0..WATCH_SECONDS / 10);
        let query = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version.as_str()),
            ("timeoutSeconds", &seconds.to_string()),
        ];
        let request = match self.request::<K>(false, &query) {
            Ok(request) => request,
            Err(error) => return Ended::Failed(error),
        };
        let mut lines = match api::send(&self.client, request).await {
            Ok(response) => Lines { body: response.into_body(), buffer: BytesMut::new() },
            Err(error) if error.code() == Some(410) => return Ended::Relist,
            Err(error) => return Ended::Failed(error),
        };
        self.progress.alive();
        loop {
            let line = match timeout(Duration::from_secs(seconds + 15), lines.next()).await {
                Ok(Ok(Some(line))) => line,
                // Ended by the server, as it does every few minutes.
                Ok(Ok(None)) => return Ended::Resume,
                Ok(Err(error)) => return Ended::Failed(error),
                // The server did not even end it in time: nothing that it said can be relied on.
                Err(_) => return Ended::Relist,
            };
            self.progress.alive();
            let event = match read_line::<K>(&line, version) {
                Ok(Some(event)) => event,
                Ok(None) => continue,
                Err(error) if error.code() == Some(410) => return Ended::Relist,
                Err(error) => return Ended::Failed(error),
            };
            backoff.reset();
            if out.send(wrap(event)).await.is_err() {
                return Ended::Closed;
            }
        }
    }
}

/// Reads one line of a watch. `version` moves on; a bookmark is no event.
fn read_line<K: Kind>(line: &[u8], version: &mut String) -> Result<Option<Event<K>>, ApiError> {
    #[derive(Deserialize)]
    #[serde(bound = "T: DeserializeOwned")]
    struct Line<T> {
        r#type: String,
        object: T,
    }
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(default)]
        metadata: Meta,
    }
    // What nearly every line is, without a tree of values in between.
    if let Ok(Line::<K> { r#type, object }) = serde_json::from_slice(line)
        && matches!(r#type.as_str(), "ADDED" | "MODIFIED")
    {
        if !object.meta().resource_version.is_empty() {
            version.clone_from(&object.meta().resource_version);
        }
        return Ok(Some(Event::Applied(Arc::new(object))));
    }
    let Line::<Value> { r#type, object } = serde_json::from_slice(line).map_err(ApiError::Unreadable)?;
    if r#type == "ERROR" {
        let code = object["code"].as_u64().and_then(|c| u16::try_from(c).ok()).unwrap_or(500);
        let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after = object["details"]["retryAfterSeconds"].as_u64().map(Duration::from_secs);
        return Err(api::status_error(code, object.to_string().as_bytes(), retry_after));
    }
    let meta = Envelope::deserialize(&object).map_err(ApiError::Unreadable)?.metadata;
    if !meta.resource_version.is_empty() {
        version.clone_from(&meta.resource_version);
    }
    Ok(match r#type.as_str() {
        "ADDED" | "MODIFIED" => {
            let Decoded(decoded) = Decoded::<K>::deserialize(&object).map_err(ApiError::Unreadable)?;
            Some(match decoded {
                Ok(object) => Event::Applied(Arc::new(object)),
                Err(bad) => Event::Undecodable(bad),
            })
        }
        "DELETED" => Some(Event::Deleted(meta.key())),
        _ => None,
    })
}

/// The lines of a streamed body, each bounded.
struct Lines {
    body: Body,
    buffer: BytesMut,
}

impl Lines {
    async fn next(&mut self) -> Result<Option<BytesMut>, ApiError> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(searched + at);
                self.buffer.advance(1);
                if line.iter().all(u8::is_ascii_whitespace) {
                    searched = 0;
                    continue;
                }
                return Ok(Some(line));
            }
            searched = self.buffer.len();
            if searched > LINE_LIMIT {
                return Err(ApiError::TooLong);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(ApiError::Transport(Box::new(error))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests;
