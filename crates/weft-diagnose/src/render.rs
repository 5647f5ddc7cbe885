//! Explanations for people.

use crate::{
    timeline::Line,
    verdict::{Outcome, Verdict},
};
use jiff::{Timestamp, tz::TimeZone};
use std::fmt::Write as _;

/// `14:03:07.123`, in this machine's zone.
pub fn clock(unix_ms: u64) -> String {
    stamp(unix_ms.saturating_mul(1_000), "%H:%M:%S%.3f")
}

fn stamp(unix_us: u64, format: &str) -> String {
    let us = i64::try_from(unix_us).unwrap_or(i64::MAX);
    match Timestamp::from_microsecond(us) {
        Ok(at) => at.to_zoned(TimeZone::system()).strftime(format).to_string(),
        Err(_) => format!("{unix_us} µs"),
    }
}

/// `3 s ago`.
pub fn ago(now_unix_ms: u64, at_unix_ms: u64) -> String {
    let ms = now_unix_ms.saturating_sub(at_unix_ms);
    match ms {
        0..1_000 => "just now".into(),
        1_000..120_000 => format!("{} s ago", ms / 1_000),
        120_000..7_200_000 => format!("{} min ago", ms / 60_000),
        _ => format!("{} h ago", ms / 3_600_000),
    }
}

/// The whole answer as text. `colour` is for terminals.
pub fn text(verdict: &Verdict, timeline: &[Line], colour: bool) -> String {
    let paint =
        |code: &str, text: &str| if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() };
    let mut out = String::new();
    if !timeline.is_empty() {
        let width = timeline.iter().map(|l| l.source.len()).max().unwrap_or(0).min(40);
        for line in timeline {
            let text = if line.failed { paint("31", &line.text) } else { line.text.clone() };
            let at = paint("2", &stamp(line.at_unix_us, "%H:%M:%S%.6f"));
            let _ = writeln!(out, "{at}  {:width$}  {text}", line.source);
        }
        out.push('\n');
    }
    let (mark, tone) = match verdict.outcome {
        Outcome::Works => ("√", "32"),
        Outcome::WouldWork => ("√", "32"),
        Outcome::Unknown => ("?", "33"),
        Outcome::Denied | Outcome::ApplicationDown | Outcome::NoEndpoints | Outcome::Failing => ("×", "31"),
    };
    let code = verdict.code.map(|c| format!("{c}  ")).unwrap_or_default();
    let _ = writeln!(out, "{} {}", paint(tone, mark), paint("1", &format!("{code}{}", verdict.says)));
    for reason in &verdict.because {
        let _ = writeln!(out, "    {reason}");
    }
    if let Some(remedy) = &verdict.remedy {
        let _ = writeln!(out, "  → {remedy}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_the_unit_people_use() {
        assert_eq!(ago(10_000, 9_500), "just now");
        assert_eq!(ago(100_000, 10_000), "90 s ago");
        assert_eq!(ago(600_000, 0), "10 min ago");
        assert_eq!(ago(36_000_000, 0), "10 h ago");
        assert_eq!(ago(0, 5), "just now");
    }

    #[test]
    fn colour_is_only_where_asked() {
        let verdict = Verdict {
            outcome: Outcome::Works,
            code: None,
            says: "it works".into(),
            because: vec![],
            remedy: None,
        };
        assert!(!text(&verdict, &[], false).contains('\x1b'));
        assert!(text(&verdict, &[], true).contains('\x1b'));
    }
}
