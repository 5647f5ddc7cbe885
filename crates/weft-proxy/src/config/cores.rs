//! How many workers: what the variables say, else the CPU quota.

use super::parse::Vars;
use std::{fs, path::Path};

/// `CORES*` win; then the CPU quota rounded up; then one.
pub(super) fn workers(vars: &mut Vars<'_>) -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let max: Option<usize> = vars.number("CORES_MAX");
    let ratio = vars.ratio("CORES_MAX_RATIO");
    let min: Option<usize> = vars.number("CORES_MIN");
    let old: Option<usize> = vars.number("CORES");
    let min = min.or(old);
    let wanted = max.or_else(|| ratio.map(|r| (available as f32 * r).round() as usize)).or(min);
    let whole = |thousandths: u64| usize::try_from(thousandths.div_ceil(1000)).unwrap_or(usize::MAX);
    let wanted = wanted.or_else(|| cpu_quota().map(whole)).unwrap_or(1);
    wanted.max(min.unwrap_or(1)).clamp(1, available)
}

/// What this process may use of CPUs, in thousandths of one, as it is now; `None` without a quota.
pub(crate) fn cpu_quota() -> Option<u64> {
    quota(Path::new("/sys/fs/cgroup"), Path::new("/proc/self/cgroup"))
}

/// The least quota of this process's cgroup and those above it, in thousandths of a CPU; `None` without one. `root` is
/// where the hierarchy is mounted, `of_process` says where in it the process is (cgroups(7)).
fn quota(root: &Path, of_process: &Path) -> Option<u64> {
    let listed = fs::read_to_string(of_process).unwrap_or_default();
    let v2 = |dir: &Path| parse_v2(&fs::read_to_string(dir.join("cpu.max")).ok()?);
    let v1 = |dir: &Path| {
        let read = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<i64>().ok();
        parse_v1(read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
    };
    let found = listed.lines().take(64).filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if controllers.is_empty() {
            return least(root, path, &v2);
        }
        controllers.split(',').any(|c| c == "cpu").then(|| least(&root.join("cpu"), path, &v1))?
    });
    // In a container the path may be the host's, which is not mounted there: the root is the container's own then.
    found.min().or_else(|| v2(root)).or_else(|| v1(&root.join("cpu")))
}

/// The least of what the directories from `path` up to the mount point say.
fn least(mount: &Path, path: &str, read: &dyn Fn(&Path) -> Option<u64>) -> Option<u64> {
    let own = mount.join(path.trim_start_matches('/'));
    own.ancestors().take(32).take_while(|dir| dir.starts_with(mount)).filter_map(read).min()
}

/// `QUOTA PERIOD` in microseconds, or `max PERIOD`.
fn parse_v2(text: &str) -> Option<u64> {
    let (quota, period) = text.trim().split_once(' ')?;
    parse_v1(quota.parse().ok()?, period.parse().ok()?)
}

/// A quota of -1 is none.
fn parse_v1(quota: i64, period: i64) -> Option<u64> {
    let (quota, period) = (u64::try_from(quota).ok()?, u64::try_from(period).ok()?);
    (quota > 0 && period > 0).then(|| quota.saturating_mul(1000).div_ceil(period))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cgroup file system with these files, and a process that is at `listed`.
    fn quota_of(listed: &str, files: &[(&str, &str)]) -> Option<u64> {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("cgroup");
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let of_process = dir.path().join("self");
        fs::write(&of_process, listed).unwrap();
        quota(&root, &of_process)
    }

    #[test]
    fn a_quota_is_what_the_group_may_use_in_a_period() {
        assert_eq!(quota_of("0::/\n", &[("cpu.max", "150000 100000\n")]), Some(1500));
        assert_eq!(quota_of("0::/\n", &[("cpu.max", "20000 100000\n")]), Some(200));
        assert_eq!(quota_of("0::/\n", &[("cpu.max", "max 100000\n")]), None);
        assert_eq!(quota_of("0::/\n", &[]), None);
        for nonsense in ["", "x 100000", "100000", "100000 0"] {
            assert_eq!(quota_of("0::/\n", &[("cpu.max", nonsense)]), None, "{nonsense:?}");
        }
    }

    #[test]
    fn the_narrowest_group_counts() {
        let files = [("pod/cpu.max", "300000 100000"), ("pod/proxy/cpu.max", "max 100000")];
        assert_eq!(quota_of("0::/pod/proxy\n", &files), Some(3000));
        // The path is the host's; the container sees its own group as the root.
        assert_eq!(quota_of("0::/kubepods/x\n", &[("cpu.max", "400000 100000")]), Some(4000));
    }

    #[test]
    fn the_first_version_counts_too() {
        let files = [("cpu/pod/cpu.cfs_quota_us", "250000"), ("cpu/pod/cpu.cfs_period_us", "100000")];
        assert_eq!(quota_of("4:cpu,cpuacct:/pod\n3:memory:/pod\n", &files), Some(2500));
        let none = [("cpu/cpu.cfs_quota_us", "-1"), ("cpu/cpu.cfs_period_us", "100000")];
        assert_eq!(quota_of("4:cpu,cpuacct:/\n", &none), None);
    }
}
