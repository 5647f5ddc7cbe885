//! Mounts, with the path in every error.

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use std::{
    ffi::CString,
    fs, io,
    path::{Path, PathBuf},
};

fn at(what: &str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> io::Error {
    let text = format!("{what} {}", path.display());
    move |e| {
        let e = io::Error::from(e);
        io::Error::new(e.kind(), format!("{text}: {e}"))
    }
}

/// Cuts every mount off from the namespace this one was copied from.
pub fn make_private() -> io::Result<()> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags).map_err(at("make private", Path::new("/")))
}

/// An empty file system in memory. `options` is like `mode=755,size=64m`.
pub fn tmpfs(target: &Path, options: &str) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    filesystem("tmpfs", target, flags, options)
}

/// Any file system by type.
pub fn filesystem(kind: &str, target: &Path, flags: MountFlags, options: &str) -> io::Result<()> {
    let data = CString::new(options)?;
    rustix::mount::mount(kind, target, kind, flags, data.as_c_str())
        .map_err(at(&format!("mount {kind} at"), target))
}

/// Shows `source` (a file or a directory with all that is mounted below) at `target` too.
pub fn bind(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    rustix::mount::mount_bind_recursive(source, target)
        .map_err(at(&format!("bind {} at", source.display()), target))?;
    if read_only {
        set_read_only(target)?;
    }
    Ok(())
}

/// Makes the mount at `target` read-only, but not those below it.
pub fn set_read_only(target: &Path) -> io::Result<()> {
    // Without root, what was forbidden on the mount that this one shows has to stay forbidden, or all of it is refused.
    let now = rustix::fs::statvfs(target).map_err(at("look at", target))?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | kept(now.f_flag.bits());
    rustix::mount::mount_remount(target, flags, "").map_err(at("make read-only", target))
}

/// The options of a mount that a new set of options has to repeat: statvfs(3) and mount(2) number most of them alike.
fn kept(statvfs: u64) -> MountFlags {
    const ST_RELATIME: u64 = 0x1000;
    let same = MountFlags::NOSUID
        | MountFlags::NODEV
        | MountFlags::NOEXEC
        | MountFlags::NOATIME
        | MountFlags::NODIRATIME;
    let alike = MountFlags::from_bits_truncate(u32::try_from(statvfs & 0xffff).unwrap_or_default()) & same;
    if statvfs & ST_RELATIME == 0 { alike } else { alike | MountFlags::RELATIME }
}

/// Makes the mount at `target` and all those below it read-only.
pub fn set_all_read_only(target: &Path) -> io::Result<()> {
    let path = CString::new(target.as_os_str().as_encoded_bytes())?;
    let change =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: `path` ends in a zero and `change` is a structure of the size given; the kernel reads both during the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            std::ptr::from_ref(&change),
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("make all read-only below {}: {error}", target.display())))
}

/// Where an overlay notes what it removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notes {
    /// In attributes that only root may write.
    Root,
    /// In attributes that an ordinary user may write (since Linux 5.11).
    User,
}

/// An overlay: what is in `lower`, with changes going to `upper`. Both `upper` and `work` must be empty directories of one
/// file system.
pub fn overlay(lower: &Path, upper: &Path, work: &Path, target: &Path, notes: Notes) -> io::Result<()> {
    // Commas and colons separate options; paths that hold some need a backslash.
    let escape =
        |p: &Path| p.display().to_string().replace('\\', "\\\\").replace([','], "\\,").replace(':', "\\:");
    let notes = if notes == Notes::User { ",userxattr" } else { "" };
    let options =
        format!("lowerdir={},upperdir={},workdir={}{notes}", escape(lower), escape(upper), escape(work));
    filesystem("overlay", target, MountFlags::empty(), &options)
}

/// Unmounts `target` and all below it, now or when its last user leaves.
pub fn detach(target: &Path) -> io::Result<()> {
    rustix::mount::unmount(target, UnmountFlags::DETACH).map_err(at("unmount", target))
}

/// The root directory of before a [`pivot`], still mounted inside the new one.
#[derive(Debug)]
pub struct OldRoot(PathBuf);

/// Makes `new_root` (a mount) the root directory of this process. The old one stays reachable until [`OldRoot::remove`].
pub fn pivot(new_root: &Path) -> io::Result<OldRoot> {
    std::env::set_current_dir(new_root)?;
    let old = Path::new(".weft-old-root");
    fs::create_dir(old)?;
    rustix::process::pivot_root(".", old).map_err(at("pivot to", new_root))?;
    std::env::set_current_dir("/")?;
    Ok(OldRoot(Path::new("/").join(old)))
}

impl OldRoot {
    /// Where it is now.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Unmounts it for good.
    pub fn remove(self) -> io::Result<()> {
        detach(&self.0)?;
        fs::remove_dir(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forbidden_on_a_mount_is_kept() {
        let all = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
        for (found, flags) in [
            (0, MountFlags::empty()),
            // ST_RDONLY is not ours to keep: whoever asks sets it.
            (1, MountFlags::empty()),
            (2 | 4 | 8 | 1024, all),
            (0x1000 | 2, MountFlags::RELATIME | MountFlags::NOSUID),
            // ST_VALID, which the kernel adds.
            (0x20, MountFlags::empty()),
        ] {
            assert_eq!(kept(found), flags, "{found:#x}");
        }
    }
}
