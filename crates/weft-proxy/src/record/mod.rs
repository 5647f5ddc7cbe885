//! The flight recorder: one [`Story`] per connection, and the last few thousand of them.

mod spans;
#[cfg(test)]
mod tests;

use crate::{
    metrics::{
        Metrics,
        phases::{Phases, Timed},
    },
    report::{Folds, Kind},
};
use parking_lot::Mutex;
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet, VecDeque},
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Instant, SystemTime},
};
use tokio::sync::mpsc;
use weft_fault::{Fault, Phase};
use weft_model::{identity::Identity, meta::Meta};
use weft_wire::record::{ConnectionRecord, Connections, Direction, EntryKind, Event, JournalEntry};

/// Connections that are kept, and failed ones that are kept longer.
const KEEP: usize = 2_000;
const KEEP_FAILED: usize = 500;
/// Both rings together never hold more than about this.
const KEEP_BYTES: usize = 8 << 20;
/// Events of one connection; a long-lived one keeps its first ones.
const EVENTS: usize = 48;
const TEXT_BYTES: usize = 512;
/// Addresses of which it is remembered that something was said.
const SAID: usize = 4_096;
/// Faults that wait to be uploaded.
const JOURNAL_QUEUE: usize = 256;

/// Keeps the last connections and knows the open ones. Its locks are taken when a connection begins, ends or fails, never
/// for a request.
pub struct Recorder {
    kept: Mutex<Kept>,
    live: Mutex<HashMap<u64, Arc<Live>>>,
    metrics: Arc<Metrics>,
    journal: mpsc::Sender<JournalEntry>,
    journal_dropped: AtomicU64,
    /// What was told of and is not told again.
    said: Mutex<HashSet<(SocketAddr, &'static str)>>,
    /// What the log says of failures that come again and again.
    folds: Mutex<Folds>,
    next_id: AtomicU64,
    pod: String,
    identity: String,
}

#[derive(Default)]
struct Kept {
    ended: VecDeque<Arc<ConnectionRecord>>,
    failed: VecDeque<Arc<ConnectionRecord>>,
    bytes: usize,
    forgotten: u64,
}

impl Recorder {
    /// `pod` is `namespace/name`. Faults come out of the receiver, for whoever uploads them.
    pub fn new(
        metrics: Arc<Metrics>,
        pod: String,
        identity: &Identity,
    ) -> (Arc<Self>, mpsc::Receiver<JournalEntry>) {
        let (journal, entries) = mpsc::channel(JOURNAL_QUEUE);
        let recorder = Recorder {
            kept: Mutex::default(),
            live: Mutex::default(),
            metrics,
            journal,
            journal_dropped: AtomicU64::new(0),
            said: Mutex::default(),
            folds: Mutex::default(),
            // Ids of two proxies, or of one proxy before and after a restart, must not be mixed up.
            next_id: AtomicU64::new(rand::random()),
            pod,
            identity: identity.to_string(),
        };
        (Arc::new(recorder), entries)
    }

    /// Starts the story of an accepted connection.
    pub fn story(
        self: &Arc<Self>,
        direction: Direction,
        client: SocketAddr,
        server: Option<SocketAddr>,
    ) -> Story {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let live = Arc::new(Live {
            begun: Instant::now(),
            concrete: Mutex::default(),
            behind: OnceLock::new(),
            requests: AtomicU64::new(0),
            bytes: Arc::default(),
            record: Mutex::new(ConnectionRecord {
                id: format!("{id:016x}"),
                peer_id: None,
                direction,
                client,
                server,
                service: None,
                endpoint: None,
                client_identity: None,
                server_identity: None,
                tls: None,
                protocol: None,
                policy: None,
                authorization: None,
                started_unix_ms: unix_ms(SystemTime::now()),
                duration_us: None,
                events: Vec::new(),
                events_dropped: 0,
                requests: 0,
                statuses: Default::default(),
                read_bytes: 0,
                written_bytes: 0,
                ended: None,
                fault: None,
                faults: 0,
                good_since_fault: 0,
                answered_us: 0,
            }),
        });
        self.live.lock().insert(id, live.clone());
        Story { recorder: self.clone(), direction, id, live }
    }

    /// Writes down something that happened to the proxy itself: a stall, a lost controller.
    pub fn note(&self, subject: &str, text: String, fault: Option<&Fault>) {
        self.upload(JournalEntry {
            at_unix_ms: unix_ms(SystemTime::now()),
            source: self.pod.clone(),
            subject: subject.to_string(),
            kind: if fault.is_some() { EntryKind::Fault } else { EntryKind::Change },
            text,
            fault: fault.map(Fault::record),
        });
    }

    /// Is this said of an address for the first time, as far as is remembered?
    pub fn first_said(&self, of: SocketAddr, what: &'static str) -> bool {
        let mut said = self.said.lock();
        if said.len() >= SAID {
            said.clear();
        }
        said.insert((of, what))
    }

    /// Connections whose story has not ended.
    pub fn open(&self) -> usize {
        self.live.lock().len()
    }

    /// A number that changes when a connection begins or a byte moves.
    pub(crate) fn moved(&self) -> u64 {
        let live = self.live.lock();
        let bytes = live.values().map(|live| live.bytes.total());
        bytes.fold(self.next_id.load(Ordering::Relaxed), u64::wrapping_add)
    }

    /// Entries that found the upload queue full.
    pub fn journal_dropped(&self) -> u64 {
        self.journal_dropped.load(Ordering::Relaxed)
    }

    /// The records that `wanted` picks, newest first, at most `limit`.
    pub fn connections(&self, limit: usize, wanted: impl Fn(&ConnectionRecord) -> bool) -> Connections {
        // Pointers are copied under the locks; the filter runs outside of them.
        let live: Vec<_> = self.live.lock().values().cloned().collect();
        let (all, forgotten) = {
            let kept = self.kept.lock();
            let all: Vec<_> = kept.ended.iter().chain(&kept.failed).cloned().collect();
            (all, kept.forgotten)
        };
        let mut found: Vec<_> =
            live.iter().map(|live| Arc::new(live.so_far())).filter(|r| wanted(r)).collect();
        // What failed and goes on is among both: the open one knows more.
        let open: HashSet<String> = found.iter().map(|record| record.id.clone()).collect();
        found.extend(all.into_iter().filter(|record| wanted(record) && !open.contains(&record.id)));
        found.sort_by_key(|record| std::cmp::Reverse(record.started_unix_ms));
        found.truncate(limit);
        Connections {
            pod: self.pod.clone(),
            identity: self.identity.clone(),
            now_unix_ms: unix_ms(SystemTime::now()),
            forgotten,
            connections: found.into_iter().map(|record| ConnectionRecord::clone(&record)).collect(),
        }
    }

    /// Does a failure get a line in the log? `Some`: yes, and so many like it were held back since the last one.
    pub(crate) fn fold(&self, kind: Kind) -> Option<u64> {
        self.folds.lock().may_write(kind, Instant::now())
    }

    fn keep(&self, record: ConnectionRecord) {
        let failed = record.fault.is_some();
        let bytes = size(&record);
        let mut kept = self.kept.lock();
        let kept = &mut *kept;
        kept.bytes += bytes;
        // A failed connection that goes on was kept at its failure; its later state replaces the earlier one.
        if failed && let Some(at) = kept.failed.iter().position(|old| old.id == record.id) {
            kept.bytes -= size(&kept.failed[at]);
            kept.failed.remove(at);
        }
        let ring = if failed { &mut kept.failed } else { &mut kept.ended };
        ring.push_back(Arc::new(record));
        loop {
            let over_bytes = kept.bytes > KEEP_BYTES;
            let ring = if kept.ended.len() > KEEP || (over_bytes && !kept.ended.is_empty()) {
                &mut kept.ended
            } else if kept.failed.len() > KEEP_FAILED || over_bytes {
                &mut kept.failed
            } else {
                break;
            };
            let Some(oldest) = ring.pop_front() else { break };
            kept.bytes -= size(&oldest);
            kept.forgotten += 1;
        }
    }

    fn upload(&self, entry: JournalEntry) {
        if self.journal.try_send(entry).is_err() {
            self.journal_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An open connection, as far as it has come.
struct Live {
    begun: Instant,
    /// The name whose endpoints are balanced over.
    concrete: Mutex<Option<Box<str>>>,
    /// The spans of the inbound connection that goes on here, for a gateway.
    behind: OnceLock<String>,
    requests: AtomicU64,
    bytes: Arc<Bytes>,
    record: Mutex<ConnectionRecord>,
}

/// What has passed, from the client and to it.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    read: AtomicU64,
    written: AtomicU64,
}

impl Bytes {
    pub(crate) fn read(&self, count: u64) {
        self.read.fetch_add(count, Ordering::Relaxed);
    }
    pub(crate) fn written(&self, count: u64) {
        self.written.fetch_add(count, Ordering::Relaxed);
    }
    fn total(&self) -> u64 {
        self.read.load(Ordering::Relaxed).wrapping_add(self.written.load(Ordering::Relaxed))
    }
}

impl Live {
    fn so_far(&self) -> ConnectionRecord {
        let mut record = self.record.lock().clone();
        self.count_into(&mut record);
        record
    }

    fn count_into(&self, record: &mut ConnectionRecord) {
        record.requests = self.requests.load(Ordering::Relaxed);
        record.read_bytes = self.bytes.read.load(Ordering::Relaxed);
        record.written_bytes = self.bytes.written.load(Ordering::Relaxed);
    }
}

/// What happens to one connection. Shared by the tasks that serve its requests, all on one worker: its lock is contended
/// only while somebody asks the recorder what is open, for as long as a copy takes.
pub struct Story {
    recorder: Arc<Recorder>,
    direction: Direction,
    id: u64,
    live: Arc<Live>,
}

impl Story {
    /// Unique per proxy.
    pub fn id(&self) -> String {
        self.live.record.lock().id.clone()
    }

    /// Where the connection was going, before any redirect.
    pub fn server(&self) -> Option<SocketAddr> {
        self.live.record.lock().server
    }

    pub fn begun(&self) -> Instant {
        self.live.begun
    }

    /// The id under which the peer's proxy records this connection.
    pub fn peer_id(&self, id: &str) {
        self.live.record.lock().peer_id = Some(id.chars().take(32).collect());
    }
    pub fn service(&self, service: impl std::fmt::Display) {
        self.live.record.lock().service = Some(service.to_string());
    }
    /// The name that an endpoint was chosen from.
    pub(crate) fn concrete(&self, name: &str) {
        let mut concrete = self.live.concrete.lock();
        if concrete.as_deref() != Some(name) {
            *concrete = Some(name.into());
        }
    }
    pub fn endpoint(&self, endpoint: SocketAddr) {
        self.live.record.lock().endpoint = Some(endpoint);
    }
    pub fn client_identity(&self, id: &Identity) {
        self.live.record.lock().client_identity = Some(id.to_string());
    }
    pub fn server_identity(&self, id: &Identity) {
        self.live.record.lock().server_identity = Some(id.to_string());
    }
    /// `mutual`, `passthrough`, or the reason for there being none.
    pub fn tls(&self, tls: &'static str) {
        self.live.record.lock().tls = Some(tls.to_string());
    }
    pub fn protocol(&self, protocol: &'static str) {
        self.live.record.lock().protocol = Some(protocol.to_string());
    }
    /// The policy that decided, and the authorization that allowed.
    pub fn decided(&self, policy: &Meta, authorization: Option<&Meta>) {
        let mut record = self.live.record.lock();
        record.policy = Some(policy.to_string());
        record.authorization = authorization.map(ToString::to_string);
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Where the times of this connection's phases go.
    pub(crate) fn phases(&self) -> &Arc<Phases> {
        self.recorder.metrics.phases()
    }

    /// A phase that begins now, and lasts until the guard is dropped.
    pub(crate) fn timed(&self, phase: Phase) -> Timed {
        self.phases().timed(phase)
    }

    /// Counts the bytes of the stream that is the connection's client.
    pub(crate) fn bytes(&self) -> Arc<Bytes> {
        self.live.bytes.clone()
    }

    /// A step that was reached.
    pub fn event(&self, phase: Phase, text: impl Into<Cow<'static, str>>) {
        self.event_at(Instant::now(), phase, text);
    }

    /// A step that was reached a while ago, told now: events stay in the order of their times.
    pub fn event_at(&self, at: Instant, phase: Phase, text: impl Into<Cow<'static, str>>) {
        let at = at.saturating_duration_since(self.live.begun);
        let at_us = u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        let mut record = self.live.record.lock();
        if record.events.len() >= EVENTS {
            record.events_dropped += 1;
            return;
        }
        let mut text = text.into().into_owned();
        if text.len() > TEXT_BYTES {
            let cut = (0..=TEXT_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(cut);
        }
        let place = record.events.partition_point(|earlier| earlier.at_us <= at_us);
        record.events.insert(place, Event { at_us, phase, text });
    }

    /// A request was answered with `status`.
    pub fn request(&self, status: u16) {
        self.live.requests.fetch_add(1, Ordering::Relaxed);
        let answered_us = micros(self.live.begun);
        let mut record = self.live.record.lock();
        record.answered_us = answered_us;
        *record.statuses.entry(status).or_default() += 1;
        record.good_since_fault += u64::from(status < 400);
    }

    /// Something failed, of the connection or of one request. It is counted, kept and uploaded at once; the caller logs.
    pub fn fault(&self, fault: &Fault) {
        self.recorder.metrics.fault(fault.code(), self.direction);
        let fault = fault.record();
        let mut record = self.live.record.lock();
        record.faults += 1;
        record.good_since_fault = 0;
        record.fault = Some(fault.clone());
        self.live.count_into(&mut record);
        // The same failure again and again on one connection is one story, not a thousand.
        let worth_telling = record.faults.is_power_of_two();
        let copy = worth_telling.then(|| record.clone());
        drop(record);
        if let Some(copy) = copy {
            self.recorder.upload(JournalEntry {
                at_unix_ms: unix_ms(SystemTime::now()),
                source: self.recorder.pod.clone(),
                subject: copy
                    .service
                    .clone()
                    .or(copy.server.map(|addr| addr.to_string()))
                    .unwrap_or_default(),
                kind: EntryKind::Fault,
                text: format!("{} connection {} from {}", self.direction.as_str(), copy.id, copy.client),
                fault: Some(fault),
            });
            self.recorder.keep(copy);
        }
    }

    /// Says how the connection ends; its last holder's drop ends it.
    pub fn ended(&self, how: impl Into<Cow<'static, str>>) {
        self.live.record.lock().ended = Some(how.into().into_owned());
    }

    /// The connection is over. A fault that ended it has to be given to [`Story::fault`] before.
    pub fn end(self, how: impl Into<Cow<'static, str>>) {
        self.live.record.lock().ended = Some(how.into().into_owned());
    }
}

/// A story ends exactly once, however its task ends.
impl Drop for Story {
    fn drop(&mut self) {
        let mut record = self.live.so_far();
        record.duration_us = Some(micros(self.live.begun));
        record.ended.get_or_insert_with(|| "dropped".to_string());
        self.recorder.live.lock().remove(&self.id);
        self.recorder.keep(record);
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// About how much memory a record takes.
fn size(record: &ConnectionRecord) -> usize {
    let events: usize = record.events.iter().map(|event| event.text.capacity() + size_of::<Event>()).sum();
    let fault = record.fault.as_ref().map_or(0, |fault| {
        400 + fault.facts.iter().map(|(k, v)| k.len() + v.len() + 48).sum::<usize>()
            + fault.causes.iter().map(|cause| cause.len() + 24).sum::<usize>()
    });
    size_of::<ConnectionRecord>() + events + fault + 200
}
