//! What changed and what failed lately, so that an explanation can name the change that came before the failure.

use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    time::{SystemTime, UNIX_EPOCH},
};
use weft_wire::record::{EntryKind, JournalEntry};

/// Entries kept. At some 300 bytes each this stays below 3 MB, full faults included.
const KEPT: usize = 4096;
/// The longest text of one entry: proxies write some of them.
const TEXT_LIMIT: usize = 2048;

/// A bounded list of entries, oldest first. The oldest make room.
#[derive(Debug, Default)]
pub struct Journal {
    entries: Mutex<VecDeque<JournalEntry>>,
}

impl Journal {
    /// The controller saw an object change.
    pub fn changed(&self, subject: String, text: String) {
        self.add(JournalEntry {
            at_unix_ms: now_unix_ms(),
            source: "controller".to_owned(),
            subject,
            kind: EntryKind::Change,
            text,
            fault: None,
        });
    }

    pub fn add(&self, mut entry: JournalEntry) {
        for text in [&mut entry.text, &mut entry.subject, &mut entry.source] {
            if text.len() > TEXT_LIMIT {
                let end = (0..=TEXT_LIMIT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                text.truncate(end);
            }
        }
        let mut entries = self.entries.lock();
        if entries.len() == KEPT {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    /// Entries at or after `since` whose subject or source contains `about`, oldest first.
    pub fn find(&self, about: &str, since_unix_ms: u64) -> Vec<JournalEntry> {
        self.entries
            .lock()
            .iter()
            .filter(|e| e.at_unix_ms >= since_unix_ms)
            .filter(|e| about.is_empty() || e.subject.contains(about) || e.source.contains(about))
            .cloned()
            .collect()
    }
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
}
