//! Who is interested in which view, and when it has to be computed again.

use super::{Index, key::Key, reader::Reader};
use crate::config::ControllerConfig;
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::Hash,
};
use tokio::sync::watch;

/// A question with an answer that follows from the index alone.
pub trait Subject: Clone + Eq + Hash + Send + Sync + 'static {
    type View: Clone + PartialEq + Send + Sync + 'static;

    /// A pure function: the same objects give the same view, whatever happened before.
    fn compute(&self, reader: &Reader<'_>, config: &ControllerConfig) -> Self::View;
}

/// The subscribed subjects of one type. Each has its latest view; slow readers skip what they missed.
#[derive(Debug)]
pub struct Registry<S: Subject> {
    entries: HashMap<S, Entry<S::View>>,
    by_key: HashMap<Key, HashSet<S>>,
}

#[derive(Debug)]
struct Entry<V> {
    view: watch::Sender<V>,
    keys: HashSet<Key>,
}

impl<S: Subject> Default for Registry<S> {
    fn default() -> Self {
        Registry { entries: HashMap::new(), by_key: HashMap::new() }
    }
}

impl<S: Subject> Registry<S> {
    pub fn subscribe(
        &mut self,
        subject: S,
        index: &Index,
        config: &ControllerConfig,
    ) -> watch::Receiver<S::View> {
        if let Some(entry) = self.entries.get(&subject) {
            return entry.view.subscribe();
        }
        let reader = Reader::new(index);
        let (view, receiver) = watch::channel(subject.compute(&reader, config));
        let keys = reader.into_keys();
        for key in &keys {
            self.by_key.entry(key.clone()).or_default().insert(subject.clone());
        }
        self.entries.insert(subject, Entry { view, keys });
        receiver
    }

    /// Computes again what looked under one of these keys; forgets what nobody reads any more.
    pub fn update(&mut self, touched: &BTreeSet<Key>, index: &Index, config: &ControllerConfig) {
        let affected: HashSet<S> =
            touched.iter().filter_map(|key| self.by_key.get(key)).flatten().cloned().collect();
        for subject in affected {
            self.refresh(subject, index, config);
        }
    }

    fn refresh(&mut self, subject: S, index: &Index, config: &ControllerConfig) {
        let Some(entry) = self.entries.get_mut(&subject) else { return };
        if entry.view.receiver_count() == 0 {
            self.forget(&subject);
            return;
        }
        let reader = Reader::new(index);
        let view = subject.compute(&reader, config);
        let keys = reader.into_keys();
        entry.view.send_if_modified(|current| {
            let changed = *current != view;
            if changed {
                *current = view;
            }
            changed
        });
        let old = std::mem::replace(&mut entry.keys, keys.clone());
        for key in old.difference(&keys) {
            self.unlink(key, &subject);
        }
        for key in keys.difference(&old) {
            self.by_key.entry(key.clone()).or_default().insert(subject.clone());
        }
    }

    fn forget(&mut self, subject: &S) {
        if let Some(entry) = self.entries.remove(subject) {
            for key in &entry.keys {
                self.unlink(key, subject);
            }
        }
    }

    fn unlink(&mut self, key: &Key, subject: &S) {
        if let Some(subjects) = self.by_key.get_mut(key) {
            subjects.remove(subject);
            if subjects.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    /// Forgets every subject that nobody reads any more.
    pub fn sweep(&mut self) {
        let unread: Vec<S> = self
            .entries
            .iter()
            .filter(|(_, e)| e.view.receiver_count() == 0)
            .map(|(subject, _)| subject.clone())
            .collect();
        for subject in unread {
            self.forget(&subject);
        }
    }

    pub fn subjects(&self) -> usize {
        self.entries.len()
    }

    pub fn subscribers(&self) -> usize {
        self.entries.values().map(|e| e.view.receiver_count()).sum()
    }
}
