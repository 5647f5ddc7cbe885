//! What happened, at both ends and in between, by the clock.

use crate::evidence::{Evidence, Side};
use serde::Serialize;
use weft_wire::record::{ConnectionRecord, Direction, EntryKind};

/// One line of the story.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Line {
    /// Microseconds since the Unix epoch: events of one connection are closer than a millisecond.
    pub at_unix_us: u64,
    pub source: String,
    pub text: String,
    pub failed: bool,
}

/// At most this many connections of each side are told, the newest.
const CONNECTIONS: usize = 2;

/// The newest `limit` lines, oldest first.
pub fn build(evidence: &Evidence, limit: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    side(&evidence.from, "client", &mut lines);
    side(&evidence.to, "server", &mut lines);
    for entry in &evidence.journal {
        lines.push(Line {
            at_unix_us: entry.at_unix_ms * 1_000,
            source: format!("journal {}", entry.source),
            text: match &entry.fault {
                Some(fault) => format!("{} {}: {} ({})", fault.code, fault.says, entry.subject, entry.text),
                None => format!("{}: {}", entry.subject, entry.text),
            },
            failed: entry.kind == EntryKind::Fault,
        });
    }
    for pod in &evidence.to.pods {
        if let Some(at) = pod.ready_changed_unix_ms {
            let state = if pod.ready { "ready" } else { "not ready" };
            let why = pod.waiting.as_deref().map(|w| format!(": {w}")).unwrap_or_default();
            lines.push(Line {
                at_unix_us: at * 1_000,
                source: "api".into(),
                text: format!("pod {} became {state}{why}", pod.title()),
                failed: !pod.ready,
            });
        }
    }
    lines.sort();
    lines.dedup();
    let skip = lines.len().saturating_sub(limit);
    lines.split_off(skip)
}

fn side(side: &Side, role: &str, lines: &mut Vec<Line>) {
    let mut records: Vec<_> =
        side.pods.iter().flat_map(|pod| pod.records.iter().map(move |r| (pod, r))).collect();
    records.sort_by_key(|(_, record)| std::cmp::Reverse(record.started_unix_ms));
    for (pod, record) in records.into_iter().take(CONNECTIONS) {
        story(record, &format!("{role} {}", pod.name), lines);
    }
}

fn story(record: &ConnectionRecord, source: &str, lines: &mut Vec<Line>) {
    let start = record.started_unix_ms * 1_000;
    let mut line = |at_us: u64, text: String, failed: bool| {
        lines.push(Line { at_unix_us: start + at_us, source: source.to_string(), text, failed });
    };
    let towards = match record.direction {
        Direction::Outbound => format!(
            "to {}{}",
            record.server.map_or("?".into(), |a| a.to_string()),
            record.service.as_deref().map(|s| format!(" ({s})")).unwrap_or_default()
        ),
        Direction::Inbound => format!("from {}", record.client),
    };
    line(0, format!("connection {} {towards}", record.id), false);
    for event in &record.events {
        line(event.at_us, format!("{}: {}", event.phase.as_str(), event.text), false);
    }
    if let Some(fault) = &record.fault {
        let at = record.duration_us.unwrap_or_else(|| record.events.last().map_or(0, |e| e.at_us));
        line(at, format!("{} {}", fault.code, fault.says), true);
    }
    if let (Some(duration), Some(ended)) = (record.duration_us, &record.ended) {
        line(duration, format!("ended: {ended}"), false);
    }
}
