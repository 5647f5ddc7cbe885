//! What changed and what failed lately, so that an explanation can name the change that came before the failure.
//!
//! Two lists. What goes on all the time (pods, endpoints, faults that proxies report) is kept while the controller runs. What
//! people mean when they ask "did anything change?" (namespaces, policies, issuers, rollouts, links) must not be pushed out
//! by that, and outlives the controller: see [`keep`].

pub mod follow;
pub mod keep;
pub mod words;

use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, VecDeque},
    time::{SystemTime, UNIX_EPOCH},
};
use weft_wire::record::{EntryKind, JournalEntry};

/// Entries kept of either list. At some 300 bytes each both stay below 4 MB, full faults included.
const KEPT: usize = 4096;
const KEPT_LASTING: usize = 1024;
/// The longest text of one entry: proxies write some of them.
const TEXT_LIMIT: usize = 2048;

/// Bounded lists of entries, oldest first. The oldest make room.
#[derive(Debug, Default)]
pub struct Journal {
    passing: Mutex<VecDeque<JournalEntry>>,
    lasting: Mutex<Lasting>,
}

#[derive(Debug, Default)]
struct Lasting {
    entries: VecDeque<JournalEntry>,
    /// Grows with every entry of this process.
    count: u64,
}

impl Journal {
    /// The controller saw an object change.
    pub fn changed(&self, subject: String, text: String) {
        self.add(change(subject, text));
    }

    /// The same, for what is kept beyond this process.
    pub fn lasts(&self, subject: String, text: String) {
        let mut lasting = self.lasting.lock();
        lasting.count += 1;
        push(&mut lasting.entries, KEPT_LASTING, change(subject, text));
    }

    pub fn add(&self, entry: JournalEntry) {
        push(&mut self.passing.lock(), KEPT, entry);
    }

    /// Entries at or after `since` whose subject or source contains `about`, oldest first.
    pub fn find(&self, about: &str, since_unix_ms: u64) -> Vec<JournalEntry> {
        let wanted = |e: &&JournalEntry| {
            e.at_unix_ms >= since_unix_ms
                && (about.is_empty() || e.subject.contains(about) || e.source.contains(about))
        };
        let mut found: Vec<JournalEntry> =
            self.lasting.lock().entries.iter().filter(wanted).cloned().collect();
        found.extend(self.passing.lock().iter().filter(wanted).cloned());
        found.sort_by_key(|e| e.at_unix_ms);
        found
    }

    /// What lasts, and a number that is another one when something was added.
    fn lasting(&self) -> (Vec<JournalEntry>, u64) {
        let lasting = self.lasting.lock();
        (lasting.entries.iter().cloned().collect(), lasting.count)
    }

    /// Takes over what was written down before.
    fn remember(&self, written: Vec<JournalEntry>) {
        let mut lasting = self.lasting.lock();
        let own = lasting.entries.drain(..).collect();
        let merged = merge(written, own);
        let from = merged.len().saturating_sub(KEPT_LASTING);
        lasting.entries = merged.into_iter().skip(from).collect();
    }
}

/// One list out of two that may tell of the same changes: each replica sees them all, at slightly different times. What
/// says of a subject what was said of it last is no news.
fn merge(written: Vec<JournalEntry>, own: Vec<JournalEntry>) -> Vec<JournalEntry> {
    let mut all = written;
    all.extend(own);
    all.sort_by_key(|e| e.at_unix_ms);
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    all.retain(|e| last.insert(e.subject.clone(), e.text.clone()).is_none_or(|before| before != e.text));
    all
}

fn change(subject: String, text: String) -> JournalEntry {
    JournalEntry {
        at_unix_ms: now_unix_ms(),
        source: "controller".to_owned(),
        subject,
        kind: EntryKind::Change,
        text,
        fault: None,
    }
}

fn push(entries: &mut VecDeque<JournalEntry>, kept: usize, mut entry: JournalEntry) {
    for text in [&mut entry.text, &mut entry.subject, &mut entry.source] {
        if text.len() > TEXT_LIMIT {
            let end = (0..=TEXT_LIMIT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
        }
    }
    if entries.len() == kept {
        entries.pop_front();
    }
    entries.push_back(entry);
}

pub(crate) fn now_unix_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_bounded_and_searchable() {
        let journal = Journal::default();
        for n in 0..KEPT + 10 {
            journal.changed(format!("Server shop/s{n}"), "é".repeat(TEXT_LIMIT));
        }
        let all = journal.find("", 0);
        assert_eq!(all.len(), KEPT);
        assert!(all[0].text.len() <= TEXT_LIMIT);
        assert_eq!(journal.find("shop/s4100", 0).len(), 1);
        assert!(journal.find("", u64::MAX).is_empty());
    }

    #[test]
    fn what_lasts_is_not_pushed_out_by_what_goes_on() {
        let journal = Journal::default();
        journal.lasts("Namespace shop".to_owned(), "label mesh removed".to_owned());
        for n in 0..=KEPT {
            journal.changed(format!("Pod shop/p{n}"), "created".to_owned());
        }
        assert_eq!(journal.find("Namespace", 0).len(), 1);
        for n in 0..=KEPT_LASTING {
            journal.lasts(format!("Server shop/s{n}"), "created".to_owned());
        }
        assert!(journal.find("Namespace", 0).is_empty());
    }

    #[test]
    fn two_replicas_tell_one_story() {
        let at = |at_unix_ms, subject: &str, text: &str| JournalEntry {
            at_unix_ms,
            ..change(subject.to_owned(), text.to_owned())
        };
        let written = vec![at(10, "a", "x to y"), at(30, "a", "y to x"), at(35, "b", "created")];
        let own = vec![at(11, "a", "x to y"), at(31, "a", "y to x"), at(50, "a", "x to y")];
        let merged: Vec<u64> = merge(written, own).iter().map(|e| e.at_unix_ms).collect();
        assert_eq!(merged, [10, 30, 35, 50]);
    }
}
