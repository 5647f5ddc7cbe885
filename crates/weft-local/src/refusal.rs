//! Why the kernel refuses namespaces to an ordinary user, and what would change that.
//!
//! Found out by trying: a setting that could refuse says nothing as long as nothing is refused. Only then are the settings
//! read, and the one that explains the refusal is named.

use crate::channel::Refusal;
use std::{fmt, fs, path::Path};
use weft_fault::{Code, Fault, Phase};
use weft_net::user_namespace::USER;

/// The step at which a container runtime's hiding of parts of `/proc` shows.
pub(crate) const MOUNT_PROC: &str = "mount /proc";

/// Debian's switch, and that of kernels with its patch.
const CLONE: &str = "kernel.unprivileged_userns_clone";
/// Ubuntu's, since 23.10.
const APPARMOR: &str = "kernel.apparmor_restrict_unprivileged_userns";
/// How many of each kind a user may have, for a whole mesh: a few for each pod.
const ENOUGH: u64 = 15_000;
const LIMITS: [&str; 6] = [
    "user.max_user_namespaces",
    "user.max_net_namespaces",
    "user.max_pid_namespaces",
    "user.max_mnt_namespaces",
    "user.max_uts_namespaces",
    "user.max_ipc_namespaces",
];

/// What this machine is set to; `None` where it does not have the setting.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    clone: Option<u64>,
    apparmor: Option<u64>,
    limits: [Option<u64>; LIMITS.len()],
    /// A filter of system calls is in force, as in most containers.
    filtered: bool,
    /// This process's root directory is not the machine's.
    chroot: bool,
}

impl Settings {
    pub(crate) fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let status = text("/proc/self/status");
        let filter = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        Settings {
            clone: sysctl(CLONE),
            apparmor: sysctl(APPARMOR),
            limits: LIMITS.map(sysctl),
            filtered: filter.is_some_and(|mode| mode.trim() == "2"),
            chroot: is_chroot(&text("/proc/self/mountinfo")),
        }
    }
}

fn sysctl(name: &str) -> Option<u64> {
    let path = Path::new("/proc/sys").join(name.replace('.', "/"));
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Nothing is mounted at the root directory of a process that was put into a directory of somebody else's.
fn is_chroot(mountinfo: &str) -> bool {
    !mountinfo.is_empty() && !mountinfo.lines().any(|line| line.split(' ').nth(4) == Some("/"))
}

/// A setting, what it is, and what would change it.
struct Blamed {
    setting: String,
    value: String,
    command: String,
}

impl Blamed {
    fn sysctl(name: &str, value: impl fmt::Display, to: u64) -> Self {
        Blamed {
            setting: name.to_string(),
            value: value.to_string(),
            command: format!("sudo sysctl -w {name}={to}"),
        }
    }

    fn of_container(setting: &str, value: &str, option: &str) -> Self {
        Blamed {
            setting: setting.to_string(),
            value: value.to_string(),
            command: format!("start the container with `--security-opt {option}`, or run weft outside of it"),
        }
    }
}

/// The fault for a refusal.
pub(crate) fn explain(refusal: &Refusal, settings: &Settings) -> Fault {
    let mut fault = Fault::new(Code::NamespacesRefused).in_phase(Phase::Start).fact("step", &refusal.step);
    for Blamed { setting, value, command } in blame(refusal, settings) {
        fault = fault.fact("setting", setting).fact("value", value).fact("command", command);
    }
    fault.because(refusal.error.clone())
}

fn blame(refusal: &Refusal, settings: &Settings) -> Vec<Blamed> {
    if refusal.exhausted {
        return limits(refusal, settings);
    }
    if !refusal.forbidden {
        return Vec::new();
    }
    if refusal.step == MOUNT_PROC {
        return vec![Blamed::of_container("/proc", "partly hidden", "systempaths=unconfined")];
    }
    let mut blamed = Vec::new();
    if settings.clone == Some(0) {
        blamed.push(Blamed::sysctl(CLONE, 0, 1));
    }
    if let Some(value) = settings.apparmor.filter(|value| *value > 0) {
        blamed.push(Blamed::sysctl(APPARMOR, value, 0));
    }
    if settings.chroot {
        blamed.push(Blamed {
            setting: "root directory".into(),
            value: "changed by chroot".into(),
            command: "run weft outside of the chroot".into(),
        });
    }
    // Where one of those is the reason, a filter may be in force all the same.
    if blamed.is_empty() && settings.filtered {
        blamed.push(Blamed::of_container("seccomp", "a filter is in force", "seccomp=unconfined"));
    }
    blamed
}

/// The limits of what this step makes which are too low; all of them, if none looks so: then this user has used one up.
fn limits(refusal: &Refusal, settings: &Settings) -> Vec<Blamed> {
    let all = LIMITS.into_iter().zip(settings.limits);
    let of_this_step = all.filter(|(name, _)| (*name == LIMITS[0]) == (refusal.step == USER));
    let known: Vec<(&str, u64)> = of_this_step.filter_map(|(name, value)| Some((name, value?))).collect();
    let low = |value: u64| value < ENOUGH / 10;
    let any_low = known.iter().any(|(_, value)| low(*value));
    let blamed = known.into_iter().filter(|(_, value)| !any_low || low(*value));
    blamed.map(|(name, value)| Blamed::sysctl(name, value, ENOUGH.max(value.saturating_mul(2)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};
    use weft_net::user_namespace::{MAP, OTHERS};

    fn usual() -> Settings {
        Settings { limits: [Some(62_000); 6], ..Settings::default() }
    }

    fn check(step: &str, kind: ErrorKind, settings: &Settings, named: &[&str]) {
        let refusal = Refusal::new(step, &Error::from(kind));
        let fault = explain(&refusal, settings);
        assert_eq!(fault.code(), Code::NamespacesRefused);
        let record = fault.record();
        let facts = record.facts.iter().filter(|(key, _)| key != "step").map(|(_, value)| value.as_str());
        let found: Vec<&str> = facts.collect();
        assert_eq!(found, named, "{fault}");
        assert_eq!(record.fact("step"), Some(step));
    }

    #[test]
    fn the_setting_its_value_and_the_command_that_changes_it() {
        let forbidden = ErrorKind::PermissionDenied;
        let clone = [CLONE, "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"];
        check(USER, forbidden, &Settings { clone: Some(0), filtered: true, ..usual() }, &clone);
        let apparmor = [APPARMOR, "1", "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"];
        for step in [MAP, OTHERS] {
            check(step, forbidden, &Settings { clone: Some(1), apparmor: Some(1), ..usual() }, &apparmor);
        }
        let seccomp =
            "start the container with `--security-opt seccomp=unconfined`, or run weft outside of it";
        let filtered = Settings { filtered: true, apparmor: Some(0), ..usual() };
        check(USER, forbidden, &filtered, &["seccomp", "a filter is in force", seccomp]);
        let chroot = ["root directory", "changed by chroot", "run weft outside of the chroot"];
        check(USER, forbidden, &Settings { chroot: true, filtered: true, ..usual() }, &chroot);
        let hidden =
            "start the container with `--security-opt systempaths=unconfined`, or run weft outside of it";
        check(MOUNT_PROC, forbidden, &filtered, &["/proc", "partly hidden", hidden]);
        // Nothing that is known explains it: nothing is made up.
        check(USER, forbidden, &usual(), &[]);
        check(USER, ErrorKind::InvalidInput, &Settings { clone: Some(0), ..usual() }, &[]);
    }

    #[test]
    fn a_limit_that_is_used_up() {
        let full = ErrorKind::StorageFull;
        let mut none = usual();
        none.limits[0] = Some(0);
        let raise = "sudo sysctl -w user.max_user_namespaces=15000";
        check(USER, full, &none, &["user.max_user_namespaces", "0", raise]);
        // Not the reason for a later step.
        none.limits[1] = Some(3);
        let raise = "sudo sysctl -w user.max_net_namespaces=15000";
        check(OTHERS, full, &none, &["user.max_net_namespaces", "3", raise]);
        let raise = "sudo sysctl -w user.max_user_namespaces=124000";
        check(USER, full, &usual(), &["user.max_user_namespaces", "62000", raise]);
        check(USER, full, &Settings::default(), &[]);
    }

    #[test]
    fn a_chroot_has_nothing_mounted_at_its_root() {
        let line = |point: &str| format!("22 1 8:1 / {point} rw - ext4 /dev/sda1 rw\n");
        assert!(!is_chroot(&(line("/proc") + &line("/"))));
        assert!(is_chroot(&line("/proc")));
        assert!(!is_chroot(""));
    }
}
