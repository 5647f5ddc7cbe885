//! What `weft up` prints where it is not a terminal: traffic, and what failed, every few seconds.

use crate::traffic::{self, Snapshot};
use anyhow::Result;
use kube::Client;
use owo_colors::OwoColorize as _;
use std::{collections::BTreeMap, fmt::Write as _, io::Write as _, process::ExitCode, time::Duration};
use weft_wire::record::JournalEntry;

/// More often would be noise in a log.
const REFRESH: Duration = Duration::from_secs(10);
/// Rows of faults below the table.
const FAULTS_SHOWN: usize = 5;

pub(crate) struct Screen {
    client: Client,
}

impl Screen {
    pub(crate) fn new(client: Client) -> Self {
        Screen { client }
    }

    /// Prints until the caller drops it.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let mut before = traffic::scrape(&self.client, None, traffic::GLANCE).await?;
        loop {
            tokio::time::sleep(REFRESH).await;
            let now = match traffic::scrape(&self.client, None, traffic::GLANCE).await {
                Ok(now) => now,
                // The API is this mesh's own: if it is gone for good, the supervisor's end is reported elsewhere.
                Err(_) => continue,
            };
            let faults = faults(&self.client).await;
            Self::print(&before, &now, &faults)?;
            before = now;
        }
    }

    fn print(before: &Snapshot, now: &Snapshot, faults: &[JournalEntry]) -> Result<()> {
        let edges = traffic::edges(before, now);
        let mut text = if edges.is_empty() {
            "no traffic between meshed pods yet\n".into()
        } else {
            traffic::table(&edges)
        };
        text.push_str(&summary(faults));
        let mut out = anstream::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()?;
        Ok(())
    }
}

/// Faults of the last minute, from the controller's journal.
pub(crate) async fn faults(client: &Client) -> Vec<JournalEntry> {
    let now = jiff::Timestamp::now().as_millisecond();
    let since = now - 60_000;
    let path =
        format!("/api/v1/namespaces/linkerd/services/linkerd-dst:9990/proxy/weft/journal?since={since}");
    let Ok(request) = http::Request::get(path).body(Vec::new()) else { return Vec::new() };
    let answer = tokio::time::timeout(Duration::from_millis(500), client.request(request)).await;
    let entries: Vec<JournalEntry> = match answer {
        Ok(Ok(entries)) => entries,
        // Shown again a second later.
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    entries.into_iter().filter(|e| e.fault.is_some()).collect()
}

/// The most frequent faults of the last minute, one line each.
fn summary(faults: &[JournalEntry]) -> String {
    let mut counts: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    for entry in faults {
        let Some(fault) = &entry.fault else { continue };
        *counts.entry((&fault.code, &entry.source, &entry.subject)).or_default() += 1;
    }
    let mut rows: Vec<_> = counts.into_iter().collect();
    rows.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let mut out = String::new();
    if !rows.is_empty() {
        let _ = writeln!(out, "\nfaults in the last minute (weft explain FROM TO says why):");
    }
    for ((code, source, subject), n) in rows.into_iter().take(FAULTS_SHOWN) {
        let says = weft_fault::Code::find(code).map_or("", weft_fault::Code::says);
        let _ = writeln!(out, "  {n:>4}× {}  {source}: {subject}: {says}", code.red());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_fault::{Code, Fault};
    use weft_wire::record::EntryKind;

    #[test]
    fn faults_are_counted_and_the_frequent_come_first() {
        let entry = |code: Code, subject: &str| JournalEntry {
            at_unix_ms: 0,
            source: "shop/web-1".into(),
            subject: subject.into(),
            kind: EntryKind::Fault,
            text: String::new(),
            fault: Some(Fault::new(code).record()),
        };
        let faults = [
            entry(Code::ConnectRefused, "a"),
            entry(Code::NoRuleAllows, "b"),
            entry(Code::NoRuleAllows, "b"),
        ];
        let text = summary(&faults);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[2].contains("2×") && lines[2].contains("POL-001"), "{text}");
        assert_eq!(summary(&[]), "");
    }
}
