//! What is kept, for how long, and what is told.

use super::{EVENTS, KEEP, KEEP_BYTES, KEEP_FAILED, Recorder, TEXT_BYTES};
use crate::metrics::Metrics;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::sync::mpsc;
use weft_fault::{Code, Fault, Phase};
use weft_model::identity::Identity;
use weft_wire::record::{Direction, JournalEntry};

fn recorder() -> (Arc<Recorder>, mpsc::Receiver<JournalEntry>) {
    let id = Identity::parse("web.shop").unwrap();
    Recorder::new(Metrics::new(Duration::from_secs(600)), "shop/web-0".into(), &id)
}

fn client(n: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 10_000 + u16::try_from(n % 50_000).unwrap()))
}

#[test]
fn failed_connections_outlive_a_flood_of_good_ones() {
    let (recorder, _journal) = recorder();
    let bad = recorder.story(Direction::Inbound, client(0), None);
    bad.fault(&Fault::new(Code::NoRuleAllows));
    bad.end("refused");
    for n in 0..KEEP + 500 {
        recorder.story(Direction::Inbound, client(n), None).end("closed");
    }
    let all = recorder.connections(usize::MAX, |_| true);
    assert_eq!(all.connections.len(), KEEP + 1);
    assert_eq!(all.forgotten, 500);
    assert_eq!(recorder.connections(10, |record| record.fault.is_some()).connections.len(), 1);
    assert_eq!(recorder.open(), 0);
}

#[test]
fn memory_is_bounded_whatever_is_written_down() {
    let (recorder, _journal) = recorder();
    for n in 0..KEEP_FAILED * 3 {
        let story = recorder.story(Direction::Inbound, client(n), None);
        for _ in 0..EVENTS * 2 {
            story.event(Phase::Copy, "é".repeat(5_000));
        }
        story.fault(&Fault::new(Code::NetworkIo).fact("what", "x".repeat(2_000)));
        story.end("closed");
    }
    let kept = recorder.kept.lock();
    assert!(kept.bytes <= KEEP_BYTES, "{}", kept.bytes);
    let actual: usize = kept.ended.iter().chain(&kept.failed).map(|record| super::size(record)).sum();
    assert_eq!(kept.bytes, actual, "the account is right");
    let record = kept.failed.back().unwrap();
    assert_eq!((record.events.len(), record.events_dropped), (EVENTS, EVENTS as u64));
    assert!(record.events[0].text.len() <= TEXT_BYTES);
}

#[test]
fn the_same_failure_again_and_again_is_one_record_and_few_entries() {
    let (recorder, mut journal) = recorder();
    let story = recorder.story(Direction::Outbound, client(1), Some(client(2)));
    for _ in 0..1_000 {
        story.request(403);
        story.fault(&Fault::new(Code::NoRuleAllows));
    }
    let open = recorder.connections(10, |_| true).connections;
    assert_eq!(open.len(), 1, "kept while it is open");
    assert!(open[0].ended.is_none());
    drop(story);
    let ended = recorder.connections(10, |_| true).connections;
    assert_eq!(ended.len(), 1);
    assert_eq!((ended[0].faults, ended[0].requests, ended[0].statuses[&403]), (1_000, 1_000, 1_000));
    assert_eq!(ended[0].ended.as_deref(), Some("dropped"));
    let mut entries = 0;
    while let Ok(entry) = journal.try_recv() {
        assert_eq!(entry.fault.unwrap().code, "POL-001");
        entries += 1;
    }
    assert!((1..=10).contains(&entries), "{entries}");
}

#[test]
fn open_connections_are_told_as_far_as_they_have_come() {
    let (recorder, _journal) = recorder();
    let story = recorder.story(Direction::Outbound, client(1), Some(client(2)));
    story.request(200);
    story.fault(&Fault::new(Code::ConnectRefused));
    story.request(204);
    let open = recorder.connections(10, |_| true).connections;
    assert_eq!(open.len(), 1, "once, though it also failed");
    assert_eq!((open[0].requests, open[0].good_since_fault, open[0].duration_us), (2, 1, None));
    assert_eq!(recorder.open(), 1);
    drop(story);
    assert_eq!(recorder.open(), 0);
    assert!(recorder.connections(10, |_| true).connections[0].duration_us.is_some());
}

#[test]
fn entries_that_find_no_room_are_counted() {
    let (recorder, _journal) = recorder();
    for _ in 0..1_000 {
        recorder.note("process", "stalled".into(), None);
    }
    assert!(recorder.journal_dropped() > 0);
}
