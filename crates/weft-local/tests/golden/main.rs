//! The in-memory API gives the answers that a real API server gave: recorded sequences are sent again and compared.
//!
//! `transcripts/*.jsonl` were recorded on a 1.36 server. `differences.txt` holds the steps that differ on purpose or for
//! want of something, each with its reason. The test fails for a step that differs and is not listed, and for one that
//! is listed and does not differ.
//!
//! `WEFT_REPLAY=watch,tables` replays only those sequences; `WEFT_REPLAY_SHOW=1` prints all differences, listed or not.

mod client;
mod compare;
mod hook;
mod left_out;
mod replay;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use replay::{Outcome, Place};

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The definitions that `weft install` ships, and those of the Gateway API.
fn definitions() -> Vec<Value> {
    let charts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/weft-crds/templates");
    let mut all = Vec::new();
    for file in ["crds.yaml", "gateway.yaml"] {
        let text = std::fs::read_to_string(charts.join(file)).unwrap();
        let plain: Vec<&str> = text.lines().filter(|line| !line.contains("{{")).collect();
        for document in plain.join("\n").split("\n---").filter(|document| document.contains("kind:")) {
            all.push(serde_saphyr::from_str::<Value>(document.trim_start_matches("---")).unwrap());
        }
    }
    all
}

/// The listed differences: sequence, step, reason.
fn listed() -> BTreeMap<(String, u64), String> {
    let text = std::fs::read_to_string(home().join("differences.txt")).unwrap();
    let mut listed = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let mut parts = line.splitn(3, ' ');
        let (sequence, step) = (parts.next().unwrap(), parts.next().unwrap());
        let reason = parts.next().map(str::trim).filter(|reason| reason.len() > 10);
        let reason = reason.unwrap_or_else(|| panic!("{line}: a reason is missing")).to_owned();
        let step = step.parse().unwrap_or_else(|_| panic!("{line}: a step is a number"));
        assert!(listed.insert((sequence.to_owned(), step), reason).is_none(), "{line}: listed twice");
    }
    listed
}

/// Sequences that share a server: one that needs another comes after it.
fn groups() -> Vec<Vec<PathBuf>> {
    let wanted = std::env::var("WEFT_REPLAY").unwrap_or_default();
    let mut paths: Vec<PathBuf> = std::fs::read_dir(home().join("transcripts"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"))
        .collect();
    paths.sort();
    let mut groups: Vec<Vec<PathBuf>> = Vec::new();
    let (after, first): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| {
        let (head, _) = replay::read(path);
        head["needs"].to_string().contains("after:")
    });
    for path in first {
        groups.push(vec![path]);
    }
    for path in after {
        let (head, _) = replay::read(&path);
        let needed = head["needs"][0].as_str().unwrap().trim_start_matches("after:").to_owned();
        let group = groups.iter_mut().find(|group| group[0].file_stem().is_some_and(|stem| *stem == *needed));
        group.unwrap().push(path);
    }
    if !wanted.is_empty() {
        groups.retain(|group| {
            let named = |path: &PathBuf| {
                wanted.split(',').any(|name| path.file_stem().is_some_and(|stem| *stem == *name))
            };
            group.iter().any(named)
        });
    }
    groups
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_answers_are_given_again() {
    let definitions = definitions();
    let mut tasks = JoinSet::new();
    // Few at a time: on a busy machine, many handshakes at once would outlast the server's patience.
    let room = Arc::new(Semaphore::new(4));
    for group in groups() {
        let (definitions, room) = (definitions.clone(), room.clone());
        tasks.spawn(async move {
            let _permit = room.acquire().await.unwrap();
            let mut place = None;
            let mut outcomes = Vec::new();
            for path in group {
                let (head, steps) = replay::read(&path);
                let place = match &mut place {
                    Some(place) => place,
                    none => none.insert(Place::make(&head["needs"], &definitions).await),
                };
                outcomes.extend(replay::run(place, &head, &steps).await);
            }
            outcomes
        });
    }
    let mut outcomes: Vec<Outcome> = tasks.join_all().await.into_iter().flatten().collect();
    outcomes.sort_by(|a, b| (&a.sequence, a.step).cmp(&(&b.sequence, b.step)));

    let show = std::env::var("WEFT_REPLAY_SHOW").is_ok();
    let mut listed = listed();
    let (mut equal, mut unlisted, mut settled) = (0, Vec::new(), Vec::new());
    let mut shares: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for outcome in &outcomes {
        let reason = listed.remove(&(outcome.sequence.clone(), outcome.step));
        let name = format!("{} {} ({})", outcome.sequence, outcome.step, outcome.note);
        let share = shares.entry(outcome.sequence.clone()).or_default();
        share.1 += 1;
        if outcome.differences.is_empty() {
            equal += 1;
            share.0 += 1;
            if reason.is_some() {
                settled.push(name);
            }
            continue;
        }
        if show || reason.is_none() {
            println!("{name}");
            for difference in outcome.differences.iter().take(12) {
                println!("    {}: {} | {}", difference.at, difference.expected, difference.got);
            }
        }
        if reason.is_none() {
            unlisted.push(name);
        }
    }
    for (sequence, (equal, all)) in &shares {
        println!("{sequence}: {equal} of {all}");
    }
    println!("{equal} of {} steps are equal ({}%)", outcomes.len(), equal * 100 / outcomes.len().max(1));
    let replayed = |sequence: &String| shares.contains_key(sequence);
    let unknown: Vec<_> = listed.into_keys().filter(|(sequence, _)| replayed(sequence)).collect();
    assert!(unlisted.is_empty(), "{} steps differ and are not listed: {unlisted:#?}", unlisted.len());
    assert!(settled.is_empty(), "steps that are listed in differences.txt are equal: {settled:#?}");
    assert!(unknown.is_empty(), "listed steps that no transcript has: {unknown:?}");
}
