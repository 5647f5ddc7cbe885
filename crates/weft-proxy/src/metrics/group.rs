//! The label sets of families that are counted together, found again by their text.

use super::{labels::Labels, series::Series};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Entries that are looked at under one hold of the lock: whoever resolves a label set waits for a few microseconds at
/// most, however many there are.
const CHUNK: usize = 256;

/// Label sets and what is counted for each. An entry keeps its place as long as it lives, so that a reader who comes
/// chunk by chunk sees none twice.
#[derive(Debug)]
pub struct Group<S> {
    inner: Mutex<Inner<S>>,
}

#[derive(Debug)]
struct Inner<S> {
    places: HashMap<Arc<Labels>, usize>,
    entries: Vec<Option<Arc<Entry<S>>>>,
    free: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Entry<S> {
    pub(crate) labels: Arc<Labels>,
    pub(crate) series: Arc<S>,
    /// What it came to when it was last seen to change, and when that was.
    idle: Mutex<(u64, Instant)>,
}

impl<S> Default for Group<S> {
    fn default() -> Self {
        let inner = Inner { places: HashMap::new(), entries: Vec::new(), free: Vec::new() };
        Group { inner: Mutex::new(inner) }
    }
}

impl<S: Series> Group<S> {
    pub(crate) fn resolve(&self, labels: &Labels) -> Arc<S> {
        let mut inner = self.inner.lock();
        if let Some(place) = inner.places.get(labels)
            && let Some(entry) = &inner.entries[*place]
        {
            return entry.series.clone();
        }
        let labels = Arc::new(labels.clone());
        let series = Arc::new(S::default());
        let idle = Mutex::new((0, Instant::now()));
        let entry = Arc::new(Entry { labels: labels.clone(), series: series.clone(), idle });
        let place = match inner.free.pop() {
            Some(place) => {
                inner.entries[place] = Some(entry);
                place
            }
            None => {
                inner.entries.push(Some(entry));
                inner.entries.len() - 1
            }
        };
        inner.places.insert(labels, place);
        series
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

    /// Forgets label sets that nobody holds and that did not change for `retain`.
    pub(crate) fn retire(&self, retain: Duration, now: Instant) {
        for number in 0.. {
            let Some(entries) = self.chunk(number) else { return };
            let idle: Vec<Arc<Labels>> =
                entries.iter().filter(|entry| entry.is_idle(retain, now)).map(|e| e.labels.clone()).collect();
            // Copies would count as holders.
            drop(entries);
            if idle.is_empty() {
                continue;
            }
            let mut inner = self.inner.lock();
            for labels in idle {
                let Some(place) = inner.places.get(&labels).copied() else { continue };
                // The group's own handle is the only one: nobody can count any more.
                if inner.entries[place].as_ref().is_some_and(|entry| Arc::strong_count(&entry.series) == 1) {
                    inner.places.remove(&labels);
                    inner.entries[place] = None;
                    inner.free.push(place);
                }
            }
        }
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
        group.retire(Duration::ZERO, Instant::now());
        assert_eq!((seen(&group), group.len()), (1, 1));
        assert!(Arc::ptr_eq(&kept, &group.resolve(&Labels::new().with("n", 7))));
        let _more: Vec<_> = (0..599).map(|n| group.resolve(&Labels::new().with("more", n))).collect();
        assert_eq!(group.inner.lock().entries.len(), 600, "places are used again");
    }

    #[test]
    fn a_level_is_told_for_as_long_as_it_is_not_zero() {
        let group: Group<Gauge> = Group::default();
        let labels = Labels::new().with("n", 1);
        group.resolve(&labels).set(7);
        let later = |n| Instant::now() + Duration::from_secs(n);
        group.retire(Duration::from_secs(60), later(0));
        group.retire(Duration::from_secs(60), later(3_600));
        assert_eq!(group.len(), 1);
        group.resolve(&labels).set(0);
        group.retire(Duration::from_secs(60), later(3_600));
        group.retire(Duration::from_secs(60), later(7_200));
        assert_eq!(group.len(), 0);
    }
}
