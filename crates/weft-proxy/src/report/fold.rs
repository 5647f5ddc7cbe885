//! Which of many equal failures get a line in the log. Pure: whoever asks says what time it is.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};
use weft_fault::Code;
use weft_wire::record::Direction;

/// How long after a line the same failure is held back: the first line comes at once, the second soon enough to say how
/// bad it is, and then one a minute. So there are never more than two in a minute.
const WINDOWS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];
/// Nothing of a kind was written for so long: it begins anew.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// Kinds that are kept apart. More at a time are a scan or a flood, and share the lines of their code.
const KINDS: usize = 1_024;
/// How often it is looked which kinds are forgotten, while there are too many.
const SWEEP: Duration = Duration::from_secs(1);

/// What makes failures the same for a reader of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub(crate) code: Code,
    pub(crate) direction: Direction,
    /// Empty: of any target.
    pub(crate) target: String,
    /// Where it came from, where that is part of the evidence.
    pub(crate) source: Option<IpAddr>,
}

/// What was written of each kind, and how much was not.
#[derive(Debug, Default)]
pub(crate) struct Folds {
    kinds: HashMap<Kind, Written>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Written {
    at: Instant,
    /// Which window the line opened.
    window: usize,
    held_back: u64,
}

impl Folds {
    /// `None`: a line like this was written a short while ago. Otherwise how many were held back since.
    pub(crate) fn may_write(&mut self, kind: Kind, now: Instant) -> Option<u64> {
        let kind = self.room(kind, now);
        let Some(last) = self.kinds.get_mut(&kind) else {
            self.kinds.insert(kind, Written { at: now, window: 0, held_back: 0 });
            return Some(0);
        };
        let quiet = now.saturating_duration_since(last.at);
        if quiet < WINDOWS[last.window] {
            last.held_back += 1;
            return None;
        }
        last.window = if quiet >= FORGOTTEN { 0 } else { (last.window + 1).min(WINDOWS.len() - 1) };
        last.at = now;
        Some(std::mem::take(&mut last.held_back))
    }

    /// The kind itself, or what it is folded into when there are too many.
    fn room(&mut self, kind: Kind, now: Instant) -> Kind {
        if self.kinds.len() < KINDS || self.kinds.contains_key(&kind) {
            return kind;
        }
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP) {
            self.swept = Some(now);
            self.kinds.retain(|_, last| now.saturating_duration_since(last.at) < FORGOTTEN);
        }
        if self.kinds.len() < KINDS {
            return kind;
        }
        // As many as there are codes, at most.
        Kind { target: String::new(), source: None, ..kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: Code, target: &str, source: &str) -> Kind {
        Kind {
            code,
            direction: Direction::Inbound,
            target: target.into(),
            source: Some(source.parse().unwrap()),
        }
    }

    #[test]
    fn b59_a_source_that_fails_for_ever_gets_two_lines_a_minute_at_most() {
        let (mut folds, begun) = (Folds::default(), Instant::now());
        let sources = ["10.0.0.1", "10.0.0.2"];
        let mut lines: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
        // Every 2 s for ten minutes, of two sources with the same failure at the same port.
        for second in (0..600).step_by(2) {
            for source in sources {
                let kind = kind(Code::PlaintextOnOwnPort, "gw:4143", source);
                if let Some(repeated) = folds.may_write(kind, begun + Duration::from_secs(second)) {
                    lines.entry(source).or_default().push((second, repeated));
                }
            }
        }
        for source in sources {
            let lines = &lines[source];
            assert_eq!(lines[..3], [(0, 0), (10, 4), (70, 29)], "{source}");
            for (at, _) in lines {
                let near = lines.iter().filter(|(other, _)| (*at..at + 60).contains(other)).count();
                assert!(near <= 2, "{near} lines of {source} in the minute from {at} s: {lines:?}");
            }
        }
    }

    #[test]
    fn what_was_quiet_for_long_is_news_again() {
        let (mut folds, begun) = (Folds::default(), Instant::now());
        let mut at = |seconds| {
            folds.may_write(kind(Code::NoEndpoints, "a:1", "10.0.0.1"), begun + Duration::from_secs(seconds))
        };
        assert_eq!((at(0), at(1), at(10), at(20)), (Some(0), None, Some(1), None));
        assert_eq!((at(200), at(205), at(210)), (Some(1), None, Some(1)));
    }

    #[test]
    fn a_flood_of_kinds_takes_neither_memory_nor_lines() {
        let (mut folds, begun) = (Folds::default(), Instant::now());
        let flood = |folds: &mut Folds, at| {
            let write = |n: &u32| {
                let source = std::net::Ipv4Addr::from(*n).to_string();
                folds.may_write(kind(Code::NoServerName, "a:1", &source), at).is_some()
            };
            (0..10_000).filter(write).count()
        };
        assert_eq!(flood(&mut folds, begun), KINDS + 1);
        assert_eq!(folds.kinds.len(), KINDS + 1);
        // Another code is not lost in it.
        assert_eq!(folds.may_write(kind(Code::NoRuleAllows, "a:1", "10.0.0.1"), begun), Some(0));
        // It is over: there is room again.
        assert_eq!(folds.may_write(kind(Code::NoServerName, "b:1", "10.9.0.1"), begun + FORGOTTEN), Some(0));
        assert!(folds.kinds.len() <= 2, "{}", folds.kinds.len());
    }
}
