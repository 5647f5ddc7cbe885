//! What the controller's journal kept of somebody who may be gone.

use crate::gather::ControllerAddress;
use kube::Client;
use std::time::Duration;
use weft_wire::record::JournalEntry;

const DEADLINE: Duration = Duration::from_secs(3);

/// The entries since then that name any of `words` (addresses, pods, services), oldest first, at most `limit`.
pub async fn recall(
    client: &Client,
    controller: &ControllerAddress,
    since_unix_ms: u64,
    words: &[String],
    limit: usize,
) -> Result<Vec<JournalEntry>, String> {
    let path = format!("{}?since={since_unix_ms}", controller.path("/weft/journal"));
    let request = http::Request::get(path).body(Vec::new()).map_err(|e| e.to_string())?;
    let entries = match tokio::time::timeout(DEADLINE, client.request::<Vec<JournalEntry>>(request)).await {
        Ok(Ok(entries)) => entries,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no answer in {} s", DEADLINE.as_secs())),
    };
    let mut found: Vec<JournalEntry> = entries.into_iter().filter(|entry| names(entry, words)).collect();
    found.sort_by_key(|entry| entry.at_unix_ms);
    Ok(found.split_off(found.len().saturating_sub(limit)))
}

/// Whether an entry is about any of them.
fn names(entry: &JournalEntry, words: &[String]) -> bool {
    let fault = entry.fault.as_ref();
    let mut texts = vec![&entry.subject, &entry.text, &entry.source];
    texts.extend(fault.and_then(|fault| fault.peer.as_ref()));
    texts.extend(fault.and_then(|fault| fault.subject.as_ref()));
    texts.extend(fault.iter().flat_map(|fault| fault.facts.iter().map(|(_, value)| value)));
    words.iter().any(|word| texts.iter().any(|text| mentions(text, word)))
}

/// `10.1.1.1` is in `10.1.1.1:80`, not in `10.1.1.11`; `shop/web` not in `shop/web-2`.
fn mentions(text: &str, word: &str) -> bool {
    let goes_on = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '-');
    text.match_indices(word).any(|(at, _)| {
        let after = text[at + word.len()..].chars().next();
        let before = text[..at].chars().next_back();
        !goes_on(after) && !goes_on(before) && before != Some('.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_meant_as_a_whole() {
        for (text, word, wanted) in [
            ("10.1.1.1:80", "10.1.1.1", true),
            ("peer=10.1.1.1", "10.1.1.1", true),
            ("10.1.1.11:80", "10.1.1.1", false),
            ("110.1.1.1", "10.1.1.1", false),
            ("3.10.1.1.1", "10.1.1.1", false),
            ("pod shop/web-2 became ready", "shop/web", false),
            ("pod shop/web became ready", "shop/web", true),
        ] {
            assert_eq!(mentions(text, word), wanted, "{text} {word}");
        }
    }
}
