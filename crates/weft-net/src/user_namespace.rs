//! A user namespace: how an ordinary user comes to own network and mount namespaces.
//!
//! In it the user is root, of what was made in it and of nothing else: no other user of this machine is known in there.

use crate::namespace::{Fresh, unshare};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities};
use std::{fs, io};

/// A step that the kernel did not let this process take.
#[derive(Debug)]
pub struct Refused {
    pub step: &'static str,
    pub error: io::Error,
}

/// Makes namespaces as root does it, in a user namespace of this user's own, in which this user is 0. Processes started from
/// now on are born in the new process namespace.
///
/// Only while no other thread runs.
pub fn become_root_of_own() -> Result<(), Refused> {
    let refused = |step| move |error| Refused { step, error };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(UnshareFlags::NEWUSER).map_err(|e| refused(USER)(e.into()))?;
    // In this order: a user who could leave groups could get at what was kept from a group.
    for (file, line) in [
        ("setgroups", "deny".to_string()),
        ("uid_map", format!("0 {uid} 1")),
        ("gid_map", format!("0 {gid} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), line).map_err(refused(MAP))?;
    }
    unshare(Fresh::Machine.flags()).map_err(|e| refused(OTHERS)(e.into()))
}

/// The steps of [`become_root_of_own`].
pub const USER: &str = "make a user namespace";
pub const MAP: &str = "map the user into its namespace";
pub const OTHERS: &str = "make the other namespaces";

/// Whether this process may do what a mesh needs without a user namespace: it is root, and nothing of that was taken from it.
pub fn is_privileged() -> bool {
    let needed = CapabilitySet::SYS_ADMIN
        | CapabilitySet::NET_ADMIN
        | CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::SETPCAP
        | CapabilitySet::DAC_OVERRIDE;
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    rustix::process::geteuid().is_root() && held.contains(needed)
}
