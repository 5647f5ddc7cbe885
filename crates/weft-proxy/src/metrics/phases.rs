//! How long the steps of connections and requests take: `weft_phase_duration_seconds`.

use super::{
    Described, Kind,
    series::{Histogram, STEPS},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use weft_fault::Phase;

/// The phases, in the order of their numbers.
const ALL: &[Phase] = &[
    Phase::Accept,
    Phase::Detect,
    Phase::TlsAccept,
    Phase::TransportHeader,
    Phase::Discover,
    Phase::Route,
    Phase::Authorize,
    Phase::Queue,
    Phase::Connect,
    Phase::TlsConnect,
    Phase::RequestHeaders,
    Phase::RequestBody,
    Phase::ResponseHeaders,
    Phase::ResponseBody,
    Phase::Copy,
    Phase::Control,
    Phase::Certify,
    Phase::Start,
];

pub(crate) const FAMILY: &str = "weft_phase_duration_seconds";

/// One histogram for each phase, found by its number.
#[derive(Debug)]
pub struct Phases(Vec<Histogram>);

impl Phases {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Phases(ALL.iter().map(|_| Histogram::new(&STEPS)).collect()))
    }

    pub fn observe(&self, phase: Phase, took: Duration) {
        // The table is in the order of the enum: a test holds it to that.
        self.0[phase as usize].observe(took);
    }

    /// Observes a phase that begins now and ends when the guard is dropped, however it ends.
    pub fn timed(self: &Arc<Self>, phase: Phase) -> Timed {
        Timed { phases: self.clone(), phase, begun: Instant::now() }
    }

    /// Those that were observed.
    pub(super) fn seen(&self) -> impl Iterator<Item = (Phase, &Histogram)> {
        ALL.iter().copied().zip(&self.0).filter(|(_, histogram)| histogram.count() > 0)
    }
}

/// A phase under way.
#[derive(Debug)]
pub struct Timed {
    phases: Arc<Phases>,
    phase: Phase,
    begun: Instant,
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.phases.observe(self.phase, self.begun.elapsed());
    }
}

pub(super) fn describe() -> Described {
    Described {
        name: FAMILY.into(),
        kind: Kind::Histogram,
        labels: vec!["phase"],
        help: "How long each step of connections and requests took".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (at, phase) in ALL.iter().enumerate() {
            assert_eq!(*phase as usize, at);
        }
    }
}
