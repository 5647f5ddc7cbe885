//! Sockets, original destination, netlink, namespaces, copying, clock: the only unsafe code.

pub mod copy;
#[allow(unsafe_code, reason = "mount_setattr")]
pub mod mount;
#[allow(unsafe_code, reason = "unshare")]
pub mod namespace;
pub mod netlink;
pub mod prefixed;
#[allow(unsafe_code, reason = "signal sets, and setsid between fork and exec")]
pub mod process;
pub mod redirect;
pub mod socket;
pub mod user_namespace;
