//! What the page says of the process itself, read when it is asked for.

use super::{Described, Kind, Metrics, families::Lines, labels::Labels};
use crate::starvation::{Pressure, RESOURCES, Sample, Sampler};
use std::time::{Duration, SystemTime};

/// Name, type, labels and meaning.
const FAMILIES: &[(&str, Kind, &[&str], &str)] = &[
    ("proxy_build_info", Kind::Gauge, &["version", "vendor", "profile"], "The build of this proxy"),
    (
        "rustls_info",
        Kind::Gauge,
        &["tls_suites", "tls_kx_groups", "tls_key_provider", "tls_fips"],
        "What TLS is made of",
    ),
    ("process_uptime_seconds_total", Kind::Counter, &[], "Seconds since the start"),
    ("process_start_time_seconds", Kind::Gauge, &[], "When the process started, in seconds since the epoch"),
    ("process_cpu_seconds_total", Kind::Counter, &[], "CPU time used, of user and system"),
    ("process_virtual_memory_bytes", Kind::Gauge, &[], "Address space in use"),
    ("process_resident_memory_bytes", Kind::Gauge, &[], "Memory in use"),
    ("process_threads", Kind::Gauge, &[], "Threads"),
    ("process_open_fds", Kind::Gauge, &[], "File descriptors in use"),
    ("process_max_fds", Kind::Gauge, &[], "File descriptors that may be in use"),
    (
        "weft_cgroup_throttled_seconds_total",
        Kind::Counter,
        &[],
        "How long the process's cgroup, or one above it, was out of its CPU quota",
    ),
    ("weft_cgroup_throttled_periods_total", Kind::Counter, &[], "Periods in which the CPU quota was used up"),
    (
        "weft_pressure_seconds_total",
        Kind::Counter,
        &["resource", "tasks"],
        "How long some, or all, tasks of the cgroup waited for a resource",
    ),
    (
        "weft_run_queue_delay_seconds_total",
        Kind::Counter,
        &["thread"],
        "How long each thread was ready to run and did not",
    ),
];

pub(super) fn describe() -> Vec<Described> {
    let described = |(name, kind, labels, help): &(&str, Kind, &'static [&'static str], &str)| Described {
        name: (*name).into(),
        kind: *kind,
        labels: labels.to_vec(),
        help: (*help).into(),
    };
    FAMILIES.iter().map(described).collect()
}

/// Each family and its lines. What the system does not tell is left out.
pub(super) fn now(metrics: &Metrics) -> Vec<(Described, String)> {
    let started = SystemTime::now() - metrics.uptime();
    let started = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let build = Labels::new()
        .with("version", env!("CARGO_PKG_VERSION"))
        .with("vendor", "weft")
        .with("profile", if cfg!(debug_assertions) { "debug" } else { "release" });
    let (suites, groups) = weft_tls::provider::offers();
    let tls = Labels::new()
        .with("tls_suites", suites.join(","))
        .with("tls_kx_groups", groups.join(","))
        .with("tls_key_provider", "aws-lc-rs")
        .with("tls_fips", false);
    let plain = |value: Option<f64>| value.map(|value| (Labels::new(), value)).into_iter().collect();
    let starved = Sampler::default().sample();
    let values: [Vec<(Labels, f64)>; FAMILIES.len()] = [
        vec![(build, 1.0)],
        vec![(tls, 1.0)],
        plain(Some(metrics.uptime().as_secs_f64())),
        plain(Some(started.as_secs_f64())),
        plain(cpu_seconds(&stat)),
        plain(status_number(&status, "VmSize:").map(|kib| kib * 1024.0)),
        plain(status_number(&status, "VmRSS:").map(|kib| kib * 1024.0)),
        plain(status_number(&status, "Threads:")),
        plain(std::fs::read_dir("/proc/self/fd").ok().map(|open| open.count() as f64)),
        plain(max_fds(&limits)),
        plain(starved.throttled.map(|throttled| throttled.time.as_secs_f64())),
        plain(starved.throttled.map(|throttled| throttled.periods as f64)),
        pressure(&starved),
        run_queue(starved.waited),
    ];
    let lines = |(family, values): (Described, Vec<(Labels, f64)>)| {
        let mut lines = String::new();
        for (labels, value) in &values {
            Lines { page: &mut lines, name: &family.name, labels }.value("", value);
        }
        (!values.is_empty()).then_some((family, lines))
    };
    describe().into_iter().zip(values).filter_map(lines).collect()
}

fn pressure(starved: &Sample) -> Vec<(Labels, f64)> {
    let of = |(resource, pressure): (&&str, &Option<Pressure>)| {
        let pressure = (*pressure)?;
        let labels = Labels::new().with("resource", resource);
        Some([
            (labels.clone().with("tasks", "some"), pressure.some.as_secs_f64()),
            (labels.with("tasks", "all"), pressure.full.as_secs_f64()),
        ])
    };
    RESOURCES.iter().zip(&starved.pressure).filter_map(of).flatten().collect()
}

/// Threads of one name are counted together.
fn run_queue(mut waited: Vec<(String, Duration)>) -> Vec<(Labels, f64)> {
    waited.sort();
    let chunks = waited.chunk_by(|(a, _), (b, _)| a == b);
    let of = |threads: &[(String, Duration)]| {
        let waited: Duration = threads.iter().map(|(_, waited)| *waited).sum();
        (Labels::new().with("thread", &threads[0].0), waited.as_secs_f64())
    };
    chunks.map(of).collect()
}

/// User and system time of the process. The kernel counts in hundredths on every architecture.
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The second field is a name that may hold anything but ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / 100.0)
}

fn status_number(status: &str, name: &str) -> Option<f64> {
    status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

fn max_fds(limits: &str) -> Option<f64> {
    limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let stat = "12 (we) ft) S 1 12 12 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 4 0 99 1000 200";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("12 (weft"), None);
        assert_eq!(status_number("Name:\tx\nVmRSS:\t   1234 kB\n", "VmRSS:"), Some(1234.0));
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files\n";
        assert_eq!(max_fds(limits), Some(1024.0));
        assert_eq!(max_fds("Max open files  unlimited unlimited files"), None);
    }

    #[test]
    fn every_family_has_a_value_here() {
        let metrics = Metrics::new(Duration::from_secs(1));
        let told = now(&metrics);
        // Quotas and pressure are not told everywhere.
        let missing: Vec<_> = FAMILIES
            .iter()
            .map(|(name, ..)| *name)
            .filter(|name| !told.iter().any(|(family, _)| family.name == *name))
            .collect();
        let may_miss = |name: &&str| name.starts_with("weft_cgroup") || name.starts_with("weft_pressure");
        assert!(missing.iter().all(may_miss), "{missing:?}");
    }
}
