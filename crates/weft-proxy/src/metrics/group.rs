//! The label sets of families that are counted together, found again by their text.

use super::{labels::Labels, series::Series};
use hashbrown::HashTable;
use parking_lot::Mutex;
use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::{Duration, Instant},
};

/// Label sets of one group. Whoever can make more of them up must not fill the memory, or the page: what is beyond is counted
/// together, until others have gone.
const MOST: usize = 20_000;
/// The only label of what is counted together.
const OVERFLOW: &str = "weft_overflow";

/// Entries that are looked at under one hold of the lock: whoever resolves a label set waits for a few microseconds at
/// most, however many there are.
const CHUNK: usize = 64;

/// Label sets and what is counted for each. An entry keeps its place as long as it lives, so that a reader who comes
/// chunk by chunk sees none twice.
#[derive(Debug)]
pub struct Group<S> {
    inner: Mutex<Inner<S>>,
    hashes: RandomState,
}

#[derive(Debug)]
struct Inner<S> {
    /// Places, found by the hash of their entry's labels. Hashes are kept: a table that grows while a worker waits must not
    /// read all labels again.
    places: HashTable<usize>,
    entries: Vec<Option<Arc<Entry<S>>>>,
    free: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Entry<S> {
    pub(crate) labels: Labels,
    hash: u64,
    pub(crate) series: Arc<S>,
    /// What it came to when it was last seen to change, and when that was.
    idle: Mutex<(u64, Instant)>,
}

impl<S> Default for Group<S> {
    fn default() -> Self {
        let inner = Inner { places: HashTable::new(), entries: Vec::new(), free: Vec::new() };
        Group { inner: Mutex::new(inner), hashes: RandomState::new() }
    }
}

impl<S> Inner<S> {
    /// Every place in the table has an entry.
    fn find(&self, hash: u64, labels: &Labels) -> Option<&Arc<Entry<S>>> {
        let same = |place: &usize| self.entries[*place].as_ref().is_some_and(|entry| entry.labels == *labels);
        self.entries[*self.places.find(hash, same)?].as_ref()
    }

    fn add(&mut self, labels: Labels, hash: u64) -> Arc<S>
    where
        S: Default,
    {
        let series = Arc::new(S::default());
        let idle = Mutex::new((0, Instant::now()));
        self.insert(Arc::new(Entry { labels, hash, series: series.clone(), idle }));
        series
    }

    fn insert(&mut self, entry: Arc<Entry<S>>) {
        let hash = entry.hash;
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place] = Some(entry);
                place
            }
            None => {
                self.entries.push(Some(entry));
                self.entries.len() - 1
            }
        };
        let Inner { places, entries, .. } = self;
        places.insert_unique(hash, place, |place| entries[*place].as_ref().map_or(0, |entry| entry.hash));
    }

    /// Takes an entry out if nobody else holds its series: then nobody can count any more.
    fn take(&mut self, place: usize) -> Option<Arc<Entry<S>>> {
        let entry = self.entries.get(place)?.as_ref()?;
        if Arc::strong_count(&entry.series) > 1 {
            return None;
        }
        if let Ok(found) = self.places.find_entry(entry.hash, |other| *other == place) {
            found.remove();
        }
        self.free.push(place);
        self.entries[place].take()
    }
}

impl<S: Series> Group<S> {
    pub(crate) fn resolve(&self, labels: &Labels) -> Arc<S> {
        let hash = self.hashes.hash_one(labels);
        let mut inner = self.inner.lock();
        if let Some(entry) = inner.find(hash, labels) {
            return entry.series.clone();
        }
        if inner.places.len() >= MOST {
            let labels = Labels::new().with(OVERFLOW, "true");
            let hash = self.hashes.hash_one(&labels);
            return match inner.find(hash, &labels) {
                Some(entry) => entry.series.clone(),
                None => inner.add(labels, hash),
            };
        }
        inner.add(labels.clone(), hash)
    }

    /// The entries of one chunk: pointers are copied under the lock, nothing is formatted. `None` past the last one.
    pub(crate) fn chunk(&self, number: usize) -> Option<Vec<Arc<Entry<S>>>> {
        let inner = self.inner.lock();
        let begin = number.checked_mul(CHUNK)?;
        let entries = inner.entries.get(begin..)?;
        if entries.is_empty() {
            return None;
        }
        Some(entries.iter().take(CHUNK).flatten().cloned().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inner.lock().places.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().places.len()
    }

    /// Forgets label sets of one chunk that nobody holds and that did not change for `retain`. `false` past the last one.
    pub(crate) fn retire(&self, number: usize, retain: Duration, now: Instant) -> bool {
        let Some(entries) = self.chunk(number) else { return false };
        let idle: Vec<u64> =
            entries.iter().filter(|entry| entry.is_idle(retain, now)).map(|entry| entry.hash).collect();
        // Copies would count as holders.
        drop(entries);
        if idle.is_empty() {
            return true;
        }
        let mut inner = self.inner.lock();
        let places = number * CHUNK..(number + 1) * CHUNK;
        // Somebody may have counted meanwhile, and gone again.
        let gone: Vec<_> = places
            .filter(|place| {
                let entry = inner.entries.get(*place).and_then(Option::as_ref);
                entry.is_some_and(|entry| idle.contains(&entry.hash) && entry.is_idle(retain, now))
            })
            .collect();
        let gone: Vec<_> = gone.into_iter().filter_map(|place| inner.take(place)).collect();
        // Freeing them takes longer than all of this: not under the lock.
        drop(inner);
        drop(gone);
        true
    }
}

impl<S: Series> Entry<S> {
    fn is_idle(&self, retain: Duration, now: Instant) -> bool {
        let activity = self.series.activity();
        let mut idle = self.idle.lock();
        if idle.0 != activity {
            *idle = (activity, now);
        }
        !self.series.stands() && now.saturating_duration_since(idle.1) >= retain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::series::{Counter, Gauge};

    #[test]
    fn chunks_hold_every_entry_once_and_places_are_used_again() {
        let group: Group<Counter> = Group::default();
        let held: Vec<_> = (0..600).map(|n| group.resolve(&Labels::new().with("n", n))).collect();
        let seen = |group: &Group<Counter>| {
            let mut seen: Vec<String> = (0..)
                .map_while(|number| group.chunk(number))
                .flatten()
                .map(|entry| entry.labels.as_str().to_owned())
                .collect();
            seen.sort_unstable();
            let all = seen.len();
            seen.dedup();
            assert_eq!(seen.len(), all);
            all
        };
        assert_eq!(seen(&group), 600);
        drop(held);
        let kept = group.resolve(&Labels::new().with("n", 7));
        // Nobody has counted, so all are as idle as when they were made.
        for number in 0.. {
            if !group.retire(number, Duration::ZERO, Instant::now()) {
                break;
            }
        }
        assert_eq!((seen(&group), group.len()), (1, 1));
        assert!(Arc::ptr_eq(&kept, &group.resolve(&Labels::new().with("n", 7))));
        let _more: Vec<_> = (0..599).map(|n| group.resolve(&Labels::new().with("more", n))).collect();
        assert_eq!(group.inner.lock().entries.len(), 600, "places are used again");
    }

    #[test]
    fn what_is_too_much_is_counted_together_until_there_is_room() {
        let group: Group<Counter> = Group::default();
        for n in 0..MOST + 500 {
            group.resolve(&Labels::new().with("n", n)).add(1);
        }
        assert_eq!(group.len(), MOST + 1);
        let overflow = Labels::new().with(OVERFLOW, "true");
        assert_eq!(group.resolve(&overflow).value(), 500);
        assert_eq!(group.resolve(&Labels::new().with("n", 7)).value(), 1, "what was known before goes on");
        for number in 0.. {
            if !group.retire(number, Duration::ZERO, Instant::now()) {
                break;
            }
        }
        assert_eq!(group.resolve(&Labels::new().with("n", MOST + 7)).value(), 0, "a series of its own again");
        assert_eq!(group.len(), 1);
    }

    #[test]
    fn a_level_is_told_for_as_long_as_it_is_not_zero() {
        let group: Group<Gauge> = Group::default();
        let labels = Labels::new().with("n", 1);
        group.resolve(&labels).set(7);
        let later = |n| Instant::now() + Duration::from_secs(n);
        group.retire(0, Duration::from_secs(60), later(0));
        group.retire(0, Duration::from_secs(60), later(3_600));
        assert_eq!(group.len(), 1);
        group.resolve(&labels).set(0);
        group.retire(0, Duration::from_secs(60), later(3_600));
        group.retire(0, Duration::from_secs(60), later(7_200));
        assert_eq!(group.len(), 0);
    }
}
