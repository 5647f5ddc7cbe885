//! Notices when a worker does not run: each beats, and a thread that does nothing else listens.

use crate::{
    metrics::{Count, Metrics, labels::Labels},
    record::Recorder,
    starvation::{Evidence, Sample, Sampler},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::sync::watch;
use weft_fault::{Code, Fault};

/// How often workers beat and how often they are listened to.
const BEAT: Duration = Duration::from_millis(100);
/// A worker that was silent for longer did not run.
const STALL: Duration = Duration::from_millis(500);
/// Beats between two looks at what the kernel counts: a few files, which cost next to nothing, but not every time.
const SAMPLE_BEATS: u64 = 5;

/// The beats of one worker.
#[derive(Debug)]
pub struct Heart {
    name: String,
    epoch: Instant,
    /// After `epoch`; [`NOT_YET`] before the first beat.
    last_ms: AtomicU64,
}

/// A worker that has not started cannot stall.
const NOT_YET: u64 = u64::MAX;

impl Heart {
    pub fn new(name: String) -> Arc<Self> {
        Arc::new(Heart { name, epoch: Instant::now(), last_ms: AtomicU64::new(NOT_YET) })
    }

    /// Beats; runs on the worker for as long as it lives.
    pub async fn beat(self: Arc<Self>) {
        let mut interval = tokio::time::interval(BEAT);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.last_ms.store(self.now_ms(), Relaxed);
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn silent_for(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(self.last_ms.load(Relaxed)))
    }
}

/// The last time that the whole process did not run: when it was noticed, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub noticed: Instant,
    pub length: Duration,
}

/// Sees gaps. Whoever has deadlines that ran out during one moves them once by its length.
#[derive(Clone, Debug)]
pub struct Gaps(watch::Receiver<Option<Gap>>);

impl Gaps {
    /// Without a watchdog, for tests: there are none.
    pub fn none() -> Self {
        Gaps(watch::channel(None).1)
    }

    pub fn last(&self) -> Option<Gap> {
        *self.0.borrow()
    }
}

/// Starts the thread that listens. It ends with the process.
pub fn start(
    hearts: Vec<Arc<Heart>>,
    metrics: Arc<Metrics>,
    recorder: Arc<Recorder>,
) -> std::io::Result<Gaps> {
    let (publish, gaps) = watch::channel(None);
    std::thread::Builder::new().name("watchdog".into()).spawn(move || {
        let mut listener = Listener::new(hearts, metrics, recorder);
        let mut last = Instant::now();
        for beat in 1_u64.. {
            std::thread::sleep(BEAT);
            let slept = last.elapsed();
            last = Instant::now();
            let overslept = slept.saturating_sub(BEAT);
            if overslept > STALL {
                publish.send_replace(Some(Gap { noticed: last, length: overslept }));
                listener.process_stopped(overslept);
                // The workers had no more chance to beat than this thread: give them one.
                continue;
            }
            listener.listen();
            if beat.is_multiple_of(SAMPLE_BEATS) {
                listener.sample();
            }
        }
    })?;
    Ok(Gaps(gaps))
}

struct Listener {
    hearts: Vec<Arc<Heart>>,
    /// For how long each worker has been silent, when that is too long.
    stalled: Vec<Duration>,
    metrics: Arc<Metrics>,
    recorder: Arc<Recorder>,
    sampler: Sampler,
    /// What the kernel had counted when all ran, as late as that was looked at.
    before: Sample,
}

impl Listener {
    fn new(hearts: Vec<Arc<Heart>>, metrics: Arc<Metrics>, recorder: Arc<Recorder>) -> Self {
        let sampler = Sampler::default();
        let (stalled, before) = (vec![Duration::ZERO; hearts.len()], sampler.sample());
        Listener { hearts, stalled, metrics, recorder, sampler, before }
    }

    /// Looks at what the kernel counts, unless a stall is going on that began before.
    fn sample(&mut self) {
        if self.stalled.iter().all(Duration::is_zero) {
            self.before = self.sampler.sample();
        }
    }

    fn listen(&mut self) {
        let mut now = None;
        for (heart, stalled) in self.hearts.iter().zip(&mut self.stalled) {
            let silent = heart.silent_for();
            if silent > STALL {
                if stalled.is_zero() {
                    tracing::warn!(
                        worker = heart.name,
                        silent_ms = silent.as_millis(),
                        "a worker does not run"
                    );
                }
                *stalled = silent;
            } else if !stalled.is_zero() {
                let length = std::mem::take(stalled);
                self.metrics
                    .counter(
                        Count::WorkerStalls,
                        &Labels::new().with("worker", &heart.name).with("kind", "worker"),
                    )
                    .add(1);
                let now = now.get_or_insert_with(|| self.sampler.sample());
                let evidence = now.explain(&self.before, length, Some(&heart.name));
                let fault =
                    Fault::new(Code::Stalled).about(&heart.name).fact("at_least_ms", length.as_millis());
                let fault = with(fault, evidence);
                tracing::warn!("{fault}");
                self.recorder.note(&heart.name, "a worker did not run".into(), Some(&fault));
            }
        }
    }

    fn process_stopped(&mut self, length: Duration) {
        self.metrics
            .counter(Count::WorkerStalls, &Labels::new().with("worker", "all").with("kind", "process"))
            .add(1);
        let now = self.sampler.sample();
        let evidence = now.explain(&self.before, length, None);
        self.before = now;
        let fault =
            Fault::new(Code::Stalled).about("the whole process").fact("length_ms", length.as_millis());
        let fault = with(fault, evidence);
        tracing::warn!("{fault}");
        self.recorder.note("process", "the process did not run".into(), Some(&fault));
    }
}

fn with(fault: Fault, evidence: Evidence) -> Fault {
    let fault = fault.fact("why", evidence.why);
    evidence.facts.into_iter().fold(fault, |fault, (name, ms)| fault.fact(name, ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_model::identity::Identity;

    #[test]
    fn a_silent_worker_is_counted_once_when_it_runs_again() {
        let metrics = Metrics::new(Duration::from_secs(1));
        let id = Identity::parse("a.b").unwrap();
        let (recorder, mut journal) = Recorder::new(metrics.clone(), "ns/pod".into(), &id);
        let mut heart = Arc::into_inner(Heart::new("worker-0".into())).unwrap();
        heart.epoch -= Duration::from_secs(7);
        assert_eq!(heart.silent_for(), Duration::ZERO, "it has not started");
        // Its only beat was long ago.
        heart.last_ms.store(0, Relaxed);
        let heart = Arc::new(heart);
        let mut listener = Listener::new(vec![heart.clone()], metrics.clone(), recorder);
        listener.listen();
        listener.listen();
        let stalls = metrics
            .counter(Count::WorkerStalls, &Labels::new().with("worker", "worker-0").with("kind", "worker"));
        assert_eq!(stalls.value(), 0, "it still lasts");
        heart.last_ms.store(heart.now_ms(), Relaxed);
        listener.listen();
        listener.listen();
        assert_eq!(stalls.value(), 1);
        let told = journal.try_recv().unwrap().fault.unwrap();
        assert_eq!(told.code, Code::Stalled.id());
        assert!(told.fact("at_least_ms").unwrap().parse::<u64>().unwrap() >= 7_000);
        // Only the kernel knows why, and it may not say: that it was asked is enough here.
        assert!(told.fact("why").is_some());
        assert!(told.fact("run_queue_ms").is_none(), "there is no thread of that name");
    }
}
