//! All objects, and one ordered log of their changes.
//!
//! A resource is named as error messages name it: `pods`, `deployments.apps`. Objects are raw JSON; the store sets
//! `metadata.resourceVersion` and knows nothing else about them. Readers share objects by `Arc`. A watcher is a
//! position in the log, not a queue: whoever falls behind the log's start is told so (410), and nobody is blocked.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::meta;

/// How many changes are remembered. Beyond that, watches and exact lists of the past answer 410.
const LOG_LENGTH: usize = 20_000;

/// For how long, as a real server compacts its history; but the latest are always remembered. Otherwise the whole past of
/// pods that come and go would be kept in memory.
const LOG_AGE: Duration = Duration::from_secs(300);
const ALWAYS_KEPT: usize = 1_000;

/// Older ones than the latest so many are kept as text: as a tree, a pod takes fifteen times as much memory, most of it for
/// its field managers, and only who fell behind asks for it again.
const AS_TREES: usize = 128;

/// The revision of an empty store. A low number that a client made up is thus a forgotten one, as on a real server,
/// which has a history by the time that it answers.
const FIRST: u64 = 100;

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    Added,
    Modified,
    Deleted,
}

/// One entry of the log.
#[derive(Debug, Clone)]
pub struct Change {
    pub revision: u64,
    pub resource: Arc<str>,
    pub happened: Happened,
    /// The object after the change; for a deletion its last state, with the revision of the deletion.
    pub object: Arc<Value>,
    /// The object before the change.
    pub previous: Option<Arc<Value>>,
}

/// Why a write did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Exists,
    Missing,
    /// The object is at another resourceVersion than the writer saw.
    Stale,
}

/// The revision asked for is older than the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooOld;

/// Namespace (empty for cluster resources) and name.
type Key = (String, String);

/// A change as the log keeps it.
#[derive(Debug)]
struct Entry {
    at: Instant,
    revision: u64,
    resource: Arc<str>,
    key: Key,
    happened: Happened,
    object: Body,
    previous: Option<Body>,
}

#[derive(Clone, Debug)]
enum Body {
    Tree(Arc<Value>),
    Text(Arc<[u8]>),
}

impl Body {
    fn tree(&self) -> Arc<Value> {
        match self {
            Body::Tree(tree) => tree.clone(),
            Body::Text(text) => Arc::new(serde_json::from_slice(text).expect("`text` wrote it")),
        }
    }

    fn text(&self) -> Arc<[u8]> {
        match self {
            Body::Tree(tree) => {
                serde_json::to_vec(&**tree).expect("a tree has nothing that JSON lacks").into()
            }
            Body::Text(text) => text.clone(),
        }
    }
}

impl Entry {
    fn change(&self) -> Change {
        Change {
            revision: self.revision,
            resource: self.resource.clone(),
            happened: self.happened,
            object: self.object.tree(),
            previous: self.previous.as_ref().map(Body::tree),
        }
    }
}

#[derive(Debug)]
struct State {
    revision: u64,
    objects: HashMap<Arc<str>, BTreeMap<Key, Arc<Value>>>,
    log: VecDeque<Entry>,
    /// The text of each object's last change that is kept as text. The next one's `previous` is the same.
    texts: HashMap<(Arc<str>, Key), Arc<[u8]>>,
    /// Revisions up to this one are no longer in the log.
    forgotten: u64,
}

/// The objects of one API server.
#[derive(Debug)]
pub struct Store {
    state: Mutex<State>,
    revision: watch::Sender<u64>,
}

impl State {
    fn remember(&mut self, entry: Entry) {
        let now = entry.at;
        self.log.push_back(entry);
        // Every entry comes to this place once.
        if let Some(index) = self.log.len().checked_sub(AS_TREES + 1) {
            self.keep_as_text(index);
        }
        self.forget(now);
    }

    fn keep_as_text(&mut self, index: usize) {
        let entry = &mut self.log[index];
        let of = (entry.resource.clone(), entry.key.clone());
        let text = entry.object.text();
        let before = match entry.happened {
            Happened::Deleted => self.texts.remove(&of),
            Happened::Added | Happened::Modified => self.texts.insert(of, text.clone()),
        };
        entry.object = Body::Text(text);
        if let Some(previous) = &entry.previous {
            entry.previous = Some(Body::Text(before.unwrap_or_else(|| previous.text())));
        }
    }

    /// Drops what is beyond the log's length or age.
    fn forget(&mut self, now: Instant) {
        while let Some(oldest) = self.log.front() {
            let old = self.log.len() > ALWAYS_KEPT && now.duration_since(oldest.at) > LOG_AGE;
            if !old && self.log.len() <= LOG_LENGTH {
                return;
            }
            self.forgotten = oldest.revision;
            self.log.pop_front();
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        let state = State {
            revision: FIRST,
            objects: HashMap::new(),
            log: VecDeque::new(),
            texts: HashMap::new(),
            forgotten: FIRST,
        };
        Self { state: Mutex::new(state), revision: watch::Sender::new(FIRST) }
    }
}

impl Store {
    /// The revision of the last change.
    pub fn revision(&self) -> u64 {
        self.state.lock().revision
    }

    /// Wakes at each change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let state = self.state.lock();
        state.objects.get(resource)?.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// All objects of a resource, ordered by namespace and name, and the revision they are at.
    pub fn list(&self, resource: &str, namespace: Option<&str>) -> (Vec<Arc<Value>>, u64) {
        let state = self.state.lock();
        let Some(objects) = state.objects.get(resource) else { return (Vec::new(), state.revision) };
        let found = match namespace {
            None => objects.values().cloned().collect(),
            Some(namespace) => objects
                .range((namespace.to_owned(), String::new())..)
                .take_while(|((ns, _), _)| ns == namespace)
                .map(|(_, object)| object.clone())
                .collect(),
        };
        (found, state.revision)
    }

    /// The list as it was at a revision: the present, with the log undone.
    pub fn list_at(
        &self,
        resource: &str,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Vec<Arc<Value>>, TooOld> {
        let state = self.state.lock();
        if revision < state.forgotten {
            return Err(TooOld);
        }
        let mut objects = state.objects.get(resource).cloned().unwrap_or_default();
        for change in state.log.iter().rev().take_while(|change| change.revision > revision) {
            if *change.resource != *resource {
                continue;
            }
            match &change.previous {
                Some(previous) => objects.insert(change.key.clone(), previous.tree()),
                None => objects.remove(&change.key),
            };
        }
        let wanted = |key: &Key| namespace.is_none_or(|namespace| key.0 == namespace);
        Ok(objects.into_iter().filter(|(key, _)| wanted(key)).map(|(_, object)| object).collect())
    }

    /// The changes of a resource after a revision, and the revision up to which this answer is complete.
    pub fn since(&self, resource: &str, revision: u64) -> Result<(Vec<Change>, u64), TooOld> {
        let state = self.state.lock();
        if revision < state.forgotten {
            return Err(TooOld);
        }
        let from = state.log.partition_point(|change| change.revision <= revision);
        let concerned = state.log.range(from..).filter(|entry| *entry.resource == *resource);
        let changes = concerned.map(Entry::change).collect();
        Ok((changes, state.revision.max(revision)))
    }

    /// The changes of all resources after a revision.
    pub fn all_since(&self, revision: u64) -> Result<(Vec<Change>, u64), TooOld> {
        let state = self.state.lock();
        if revision < state.forgotten {
            return Err(TooOld);
        }
        let from = state.log.partition_point(|change| change.revision <= revision);
        Ok((state.log.range(from..).map(Entry::change).collect(), state.revision.max(revision)))
    }

    /// The names of the resources that have objects.
    pub fn resources(&self) -> Vec<Arc<str>> {
        let state = self.state.lock();
        state
            .objects
            .iter()
            .filter(|(_, objects)| !objects.is_empty())
            .map(|(name, _)| name.clone())
            .collect()
    }

    pub fn insert(&self, resource: &Arc<str>, object: Value) -> Result<Arc<Value>, Refused> {
        let mut state = self.state.lock();
        let key = key_of(&object);
        if state.objects.get(resource).is_some_and(|objects| objects.contains_key(&key)) {
            return Err(Refused::Exists);
        }
        Ok(self.write(&mut state, resource, key, Happened::Added, object))
    }

    /// Replaces the object that the writer saw at `seen`.
    pub fn replace(&self, resource: &Arc<str>, seen: &str, object: Value) -> Result<Arc<Value>, Refused> {
        let mut state = self.state.lock();
        let key = key_of(&object);
        check(&state, resource, &key, seen)?;
        Ok(self.write(&mut state, resource, key, Happened::Modified, object))
    }

    /// Removes the object that the writer saw at `seen`; `object` is its last state.
    pub fn remove(&self, resource: &Arc<str>, seen: &str, object: Value) -> Result<Arc<Value>, Refused> {
        let mut state = self.state.lock();
        let key = key_of(&object);
        check(&state, resource, &key, seen)?;
        Ok(self.write(&mut state, resource, key, Happened::Deleted, object))
    }

    fn write(
        &self,
        state: &mut State,
        resource: &Arc<str>,
        key: Key,
        happened: Happened,
        mut object: Value,
    ) -> Arc<Value> {
        state.revision += 1;
        let revision = state.revision;
        meta::metadata_mut(&mut object).insert("resourceVersion".into(), json!(revision.to_string()));
        let object = Arc::new(object);
        let objects = state.objects.entry(resource.clone()).or_default();
        let previous = match happened {
            Happened::Deleted => objects.remove(&key),
            Happened::Added | Happened::Modified => objects.insert(key.clone(), object.clone()),
        };
        state.remember(Entry {
            at: Instant::now(),
            revision,
            resource: resource.clone(),
            key,
            happened,
            object: Body::Tree(object.clone()),
            previous: previous.map(Body::Tree),
        });
        // Sent under the lock: a receiver that sees this revision finds it in the log.
        self.revision.send_replace(revision);
        object
    }
}

fn key_of(object: &Value) -> Key {
    (meta::namespace(object).to_owned(), meta::name(object).to_owned())
}

fn check(state: &State, resource: &str, key: &Key, seen: &str) -> Result<(), Refused> {
    let current = state.objects.get(resource).and_then(|objects| objects.get(key)).ok_or(Refused::Missing)?;
    if meta::resource_version(current) == seen { Ok(()) } else { Err(Refused::Stale) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_map(name: &str, value: &str) -> Value {
        json!({ "metadata": { "name": name, "namespace": "n" }, "data": { "k": value } })
    }

    #[test]
    fn a_past_list_is_the_present_with_the_log_undone() {
        let store = Store::default();
        let resource: Arc<str> = "configmaps".into();
        let first = store.insert(&resource, config_map("a", "1")).unwrap();
        let second = store.insert(&resource, config_map("b", "1")).unwrap();
        store.replace(&resource, meta::resource_version(&first), config_map("a", "2")).unwrap();
        store.remove(&resource, meta::resource_version(&second), config_map("b", "1")).unwrap();

        let at = |object: &Value| meta::resource_version(object).parse::<u64>().unwrap();
        assert_eq!(store.list_at(&resource, Some("n"), at(&first)).unwrap(), vec![first.clone()]);
        assert_eq!(store.list_at(&resource, None, at(&second)).unwrap(), vec![first.clone(), second]);
        assert_eq!(store.list(&resource, None).0.len(), 1);
        assert_eq!(store.list_at(&resource, None, 0), Err(TooOld));
    }

    #[test]
    fn a_stale_writer_is_refused() {
        let store = Store::default();
        let resource: Arc<str> = "configmaps".into();
        store.insert(&resource, config_map("a", "1")).unwrap();
        assert_eq!(store.insert(&resource, config_map("a", "1")), Err(Refused::Exists));
        assert_eq!(store.replace(&resource, "1", config_map("a", "2")), Err(Refused::Stale));
        assert_eq!(store.replace(&resource, "1", config_map("z", "2")), Err(Refused::Missing));
    }

    #[test]
    fn the_log_forgets_and_says_so() {
        let store = Store::default();
        let resource: Arc<str> = "configmaps".into();
        let mut seen = store.insert(&resource, config_map("a", "0")).unwrap();
        let start = store.revision();
        for i in 0..LOG_LENGTH {
            seen = store
                .replace(&resource, meta::resource_version(&seen), config_map("a", &i.to_string()))
                .unwrap();
        }
        assert_eq!(store.since(&resource, start).unwrap().0.len(), LOG_LENGTH);
        assert_eq!(store.since(&resource, start - 1).unwrap_err(), TooOld);
    }

    #[test]
    fn old_changes_are_forgotten_but_for_the_latest() {
        let store = Store::default();
        let resource: Arc<str> = "configmaps".into();
        for i in 0..ALWAYS_KEPT + 10 {
            store.insert(&resource, config_map(&i.to_string(), "1")).unwrap();
        }
        let end = store.revision();
        let mut state = store.state.lock();
        let now = Instant::now();
        state.forget(now);
        assert_eq!((state.log.len(), state.forgotten), (ALWAYS_KEPT + 10, FIRST));
        state.forget(now + LOG_AGE + Duration::from_secs(1));
        assert_eq!(state.log.len(), ALWAYS_KEPT);
        assert_eq!(state.forgotten, end - ALWAYS_KEPT as u64);
        drop(state);
        assert_eq!(store.since(&resource, FIRST).unwrap_err(), TooOld);
        assert_eq!(store.since(&resource, end - 5).unwrap().0.len(), 5);
    }

    #[test]
    fn changes_that_are_kept_as_text_are_told_as_they_were() {
        let store = Store::default();
        let resource: Arc<str> = "configmaps".into();
        let start = store.revision();
        let mut told = vec![(Happened::Added, store.insert(&resource, config_map("a", "0")).unwrap(), None)];
        let change = |last: &Arc<Value>, value: usize| {
            let object = config_map("a", &value.to_string());
            store.replace(&resource, meta::resource_version(last), object).unwrap()
        };
        for i in 1..2 * AS_TREES {
            let (_, last, _) = told.last().unwrap().clone();
            told.push((Happened::Modified, change(&last, i), Some(last)));
        }
        let (_, last, _) = told.last().unwrap().clone();
        let gone = store.remove(&resource, meta::resource_version(&last), Value::clone(&last)).unwrap();
        told.push((Happened::Deleted, gone, Some(last)));
        for i in 0..AS_TREES {
            store.insert(&"pods".into(), config_map(&i.to_string(), "1")).unwrap();
        }

        let (changes, _) = store.since(&resource, start).unwrap();
        let changes: Vec<_> = changes.into_iter().map(|c| (c.happened, c.object, c.previous)).collect();
        assert_eq!(changes, told);
        let state = store.state.lock();
        assert!(matches!(state.log[told.len() - 1].object, Body::Text(_)));
        assert!(matches!(state.log.back().unwrap().object, Body::Tree(_)));
        // Nothing is left of what is gone.
        assert!(state.texts.is_empty(), "{:?}", state.texts);
        drop(state);
        let middle: u64 = meta::resource_version(&told[5].1).parse().unwrap();
        assert_eq!(store.list_at(&resource, Some("n"), middle).unwrap(), [told[5].1.clone()]);
    }
}
