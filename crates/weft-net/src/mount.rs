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
    let flags = MountFlags::BIND | MountFlags::RDONLY;
    rustix::mount::mount_remount(target, flags, "").map_err(at("make read-only", target))
}

/// An overlay: what is in `lower`, with changes going to `upper`. Both `upper` and `work` must be empty directories of one
/// file system.
pub fn overlay(lower: &Path, upper: &Path, work: &Path, target: &Path) -> io::Result<()> {
    // Commas and colons separate options; paths that hold some need a backslash.
    let escape =
        |p: &Path| p.display().to_string().replace('\\', "\\\\").replace([','], "\\,").replace(':', "\\:");
    let options = format!("lowerdir={},upperdir={},workdir={}", escape(lower), escape(upper), escape(work));
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
