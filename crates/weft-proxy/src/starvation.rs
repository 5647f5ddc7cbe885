//! Was this process kept from running, and by what: its own CPU quota, other processes, memory, or disks?
//!
//! The kernel counts all of it. Files that are absent, as in older kernels or narrow containers, are left out: what is not
//! known is not said.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

/// None of these files is longer; one that is was not meant.
const FILE_BYTES: u64 = 4 * 1024;
/// Threads that are looked at. A proxy has its workers and a few more.
const THREADS: usize = 64;
/// Levels of cgroups above the process's own.
const LEVELS: usize = 32;

/// What the kernel has counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// How long the cgroup was out of its CPU quota, and how often.
    pub throttled: Option<Throttled>,
    /// By resource, in the order of [`RESOURCES`].
    pub pressure: [Option<Pressure>; 3],
    /// How long each thread was ready to run and did not.
    pub waited: Vec<(String, Duration)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    pub periods: u64,
    pub time: Duration,
}

/// How long some, or all, tasks of the cgroup waited for a resource (the kernel's PSI).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub some: Duration,
    pub full: Duration,
}

pub const RESOURCES: [&str; 3] = ["cpu", "memory", "io"];

/// Where the kernel counts for this process.
#[derive(Clone, Debug)]
pub struct Sampler {
    proc: PathBuf,
    cpu_stats: Vec<PathBuf>,
    pressure: [PathBuf; 3],
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler::at(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
    }
}

impl Sampler {
    /// Finds the files under these two mount points.
    pub fn at(proc: &Path, cgroup: &Path) -> Self {
        let listed = read(&proc.join("self/cgroup")).unwrap_or_default();
        let mut cpu_stats = Vec::new();
        let mut own = None;
        for line in listed.lines() {
            let mut fields = line.splitn(3, ':');
            let (_, Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let mount = match controllers {
                "" => cgroup.to_path_buf(),
                named if named.split(',').any(|name| name == "cpu") => cgroup.join("cpu"),
                _ => continue,
            };
            let dir = within(&mount, path);
            if controllers.is_empty() {
                own = Some(dir.clone());
            }
            // A quota of a cgroup above throttles this one, too, but only there it is counted.
            let above = dir.ancestors().take(LEVELS).take_while(|dir| dir.starts_with(&mount));
            cpu_stats.extend(above.map(|dir| dir.join("cpu.stat")).filter(|stat| stat.exists()));
        }
        let pressure = RESOURCES.map(|resource| {
            let file = format!("{resource}.pressure");
            let of_cgroup = own.as_ref().map(|own| own.join(file)).filter(|file| file.exists());
            of_cgroup.unwrap_or_else(|| proc.join("pressure").join(resource))
        });
        Sampler { proc: proc.to_path_buf(), cpu_stats, pressure }
    }

    pub fn sample(&self) -> Sample {
        let throttled = self.cpu_stats.iter().filter_map(|stat| throttled(&read(stat)?));
        Sample {
            throttled: throttled
                .reduce(|a, b| Throttled { periods: a.periods + b.periods, time: a.time + b.time }),
            pressure: std::array::from_fn(|at| pressure(&read(&self.pressure[at])?)),
            waited: self.waited().unwrap_or_default(),
        }
    }

    fn waited(&self) -> Option<Vec<(String, Duration)>> {
        let own = self.proc.join("self");
        let pid = fs::read_link(&own).ok();
        let tasks = fs::read_dir(own.join("task")).ok()?.take(THREADS);
        let thread = |task: fs::DirEntry| {
            let waited = run_queue_delay(&read(&task.path().join("schedstat"))?)?;
            // The thread that began the process is the agent's; its name is the program's.
            let name = if pid.as_ref().is_some_and(|pid| pid.as_os_str() == task.file_name()) {
                "agent".to_string()
            } else {
                read(&task.path().join("comm"))?.trim().to_string()
            };
            Some((name, waited))
        };
        Some(tasks.filter_map(Result::ok).filter_map(thread).collect())
    }
}

/// In a container the path may be the host's, which is not mounted there: the mount point is the container's own then.
fn within(mount: &Path, path: &str) -> PathBuf {
    let own = mount.join(path.trim_start_matches('/'));
    if own.is_dir() { own } else { mount.to_path_buf() }
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(FILE_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// `cpu.stat`: microseconds in version 2 of cgroups, nanoseconds in version 1.
fn throttled(stat: &str) -> Option<Throttled> {
    let number = |name: &str| -> Option<u64> {
        stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    };
    let time = number("throttled_usec")
        .map(Duration::from_micros)
        .or_else(|| number("throttled_time").map(Duration::from_nanos))?;
    Some(Throttled { periods: number("nr_throttled")?, time })
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, and `full …` where the resource has it.
fn pressure(text: &str) -> Option<Pressure> {
    let total = |kind: &str| -> Option<Duration> {
        let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let total = line.split(' ').find_map(|field| field.strip_prefix("total="))?;
        total.trim().parse().ok().map(Duration::from_micros)
    };
    Some(Pressure { some: total("some")?, full: total("full").unwrap_or_default() })
}

/// `RUNNING WAITING SLICES`, in nanoseconds.
fn run_queue_delay(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// What kept a thread, or the whole process, from running during a stall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub why: &'static str,
    /// Milliseconds, for those that are known.
    pub facts: Vec<(&'static str, u128)>,
}

impl Sample {
    /// What happened since `before`, as evidence about a stall of that length. `thread`: the one that did not run; `None`:
    /// none did, and the longest wait of any counts.
    pub fn explain(&self, before: &Sample, length: Duration, thread: Option<&str>) -> Evidence {
        let throttled =
            self.throttled.map(|now| now.time.saturating_sub(before.throttled.unwrap_or_default().time));
        let waits = self.waited.iter().filter(|(name, _)| thread.is_none_or(|thread| thread == name)).map(
            |(name, now)| {
                let then = before.waited.iter().find(|(earlier, _)| earlier == name);
                now.saturating_sub(then.map_or(Duration::ZERO, |(_, then)| *then))
            },
        );
        let waited = waits.max();
        let stalled = |at: usize| {
            self.pressure[at].map(|now| now.some.saturating_sub(before.pressure[at].unwrap_or_default().some))
        };
        let (memory, io) = (stalled(1), stalled(2));
        // Half of the time is no accident.
        let much = |time: Option<Duration>| time.is_some_and(|time| time * 2 >= length);
        // Whoever is throttled waits in the run queue as well: the quota is asked about first.
        let why = if much(throttled) {
            "the CPU quota of its cgroup was used up"
        } else if much(waited) {
            "other processes had the CPU"
        } else if much(memory) {
            "it waited for memory"
        } else if much(io) {
            "it waited for a disk"
        } else if throttled.is_some() || waited.is_some() {
            "it was neither throttled nor waiting for a CPU: stopped, or blocked in a call"
        } else {
            "the kernel does not tell"
        };
        let facts = [
            ("throttled_ms", throttled),
            ("run_queue_ms", waited),
            ("memory_wait_ms", memory),
            ("io_wait_ms", io),
        ];
        let known = |(name, time): (&'static str, Option<Duration>)| Some((name, time?.as_millis()));
        Evidence { why, facts: facts.into_iter().filter_map(known).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn both_versions_of_cgroups_and_the_pressure_files_are_read() {
        let v2 = "usage_usec 1000\nuser_usec 1\nnr_periods 20\nnr_throttled 7\nthrottled_usec 180000\n";
        assert_eq!(throttled(v2), Some(Throttled { periods: 7, time: 180 * MS }));
        let v1 = "nr_periods 20\nnr_throttled 7\nthrottled_time 180000000\n";
        assert_eq!(throttled(v1), throttled(v2));
        assert_eq!(throttled("nr_throttled x\nthrottled_usec 1\n"), None);
        assert_eq!(throttled("usage_usec 1\n"), None, "a cgroup without the cpu controller");

        let psi = "some avg10=0.12 avg60=0.00 avg300=0.00 total=5000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2000\n";
        assert_eq!(pressure(psi), Some(Pressure { some: 5 * MS, full: 2 * MS }));
        assert_eq!(pressure("some avg10=0.12 total=5000\n").unwrap().full, Duration::ZERO);
        for bad in ["", "some", "some total=x", "full total=1"] {
            assert_eq!(pressure(bad), None, "{bad:?}");
        }
        assert_eq!(run_queue_delay("12 3000000 9\n"), Some(3 * MS));
        assert_eq!(run_queue_delay("12"), None);
    }

    #[test]
    fn files_are_found_where_the_process_is_and_above() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, cgroup) = (dir.path().join("proc"), dir.path().join("cgroup"));
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(proc.join("77/cgroup"), "0::/kubepods/pod1/app\n");
        write(proc.join("77/task/77/schedstat"), "1 2000000 3\n");
        write(proc.join("77/task/77/comm"), "weft-proxy\n");
        write(proc.join("77/task/78/schedstat"), "1 5000000 3\n");
        write(proc.join("77/task/78/comm"), "worker-0\n");
        std::os::unix::fs::symlink("77", proc.join("self")).unwrap();
        write(cgroup.join("kubepods/pod1/app/cpu.stat"), "nr_throttled 1\nthrottled_usec 1000\n");
        write(cgroup.join("kubepods/pod1/cpu.stat"), "nr_throttled 2\nthrottled_usec 2000\n");
        write(cgroup.join("kubepods/pod1/app/memory.pressure"), "some total=4000\nfull total=3000\n");
        write(proc.join("pressure/cpu"), "some total=6000\n");
        let mut sample = Sampler::at(&proc, &cgroup).sample();
        sample.waited.sort();
        assert_eq!(
            sample,
            Sample {
                throttled: Some(Throttled { periods: 3, time: 3 * MS }),
                pressure: [
                    Some(Pressure { some: 6 * MS, full: Duration::ZERO }),
                    Some(Pressure { some: 4 * MS, full: 3 * MS }),
                    None,
                ],
                waited: vec![("agent".into(), 2 * MS), ("worker-0".into(), 5 * MS)],
            }
        );
        // Version 1, of which the host's path is not mounted here.
        write(proc.join("77/cgroup"), "3:cpuset:/x\n2:cpu,cpuacct:/docker/abc\n");
        write(cgroup.join("cpu/cpu.stat"), "nr_throttled 4\nthrottled_time 4000000\n");
        let sample = Sampler::at(&proc, &cgroup).sample();
        assert_eq!(sample.throttled, Some(Throttled { periods: 4, time: 4 * MS }));
        // Nothing at all is not an error.
        assert_eq!(
            Sampler::at(Path::new("/nonexistent"), Path::new("/nonexistent")).sample(),
            Sample::default()
        );
    }

    #[test]
    fn a_stall_is_explained_by_what_took_half_of_it() {
        let sample = |throttled: u32, worker: u32, memory: u32, io: u32| Sample {
            throttled: Some(Throttled { periods: 0, time: throttled * MS }),
            pressure: [None, Some(memory), Some(io)]
                .map(|ms| ms.map(|ms| Pressure { some: ms * MS, full: Duration::ZERO })),
            waited: vec![("worker-0".into(), worker * MS), ("worker-1".into(), Duration::ZERO)],
        };
        let before = sample(1_000, 1_000, 1_000, 1_000);
        for (now, why) in [
            (sample(1_180, 1_190, 1_000, 1_000), "the CPU quota of its cgroup was used up"),
            (sample(1_010, 1_150, 1_000, 1_000), "other processes had the CPU"),
            (sample(1_000, 1_000, 1_100, 1_000), "it waited for memory"),
            (sample(1_000, 1_000, 1_000, 1_150), "it waited for a disk"),
            (
                sample(1_020, 1_030, 1_000, 1_000),
                "it was neither throttled nor waiting for a CPU: stopped, or blocked in a call",
            ),
        ] {
            assert_eq!(now.explain(&before, 200 * MS, Some("worker-0")).why, why);
            assert_eq!(now.explain(&before, 200 * MS, None).why, why);
        }
        let now = sample(1_180, 1_190, 1_000, 1_000);
        assert_eq!(
            now.explain(&before, 200 * MS, Some("worker-0")).facts,
            [("throttled_ms", 180), ("run_queue_ms", 190), ("memory_wait_ms", 0), ("io_wait_ms", 0)]
        );
        assert_eq!(now.explain(&before, 200 * MS, Some("worker-1")).facts[1], ("run_queue_ms", 0));
        let unknown = Sample::default().explain(&Sample::default(), 200 * MS, None);
        assert_eq!(unknown, Evidence { why: "the kernel does not tell", facts: Vec::new() });
    }

    #[test]
    fn this_machine_tells_at_least_about_its_threads() {
        let sample = Sampler::default().sample();
        assert!(sample.waited.iter().any(|(name, _)| name == "agent"), "{sample:?}");
    }
}
