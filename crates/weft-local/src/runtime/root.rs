//! The root directory of a container: this machine's files, seen through overlays.
//!
//! As with a container image, everything may be written and nothing written lasts. `/run`, `/tmp`, `/dev`, `/proc` and
//! `/sys` are the container's own. What is to last, or to reach this machine, is a volume.

mod shown;

use super::launch::{Launch, VolumeMount};
use crate::rights::Rights;
use rustix::mount::MountFlags;
use shown::{Layers, OWN};
use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};
use weft_net::mount::{bind, filesystem, pivot, set_read_only, tmpfs};

/// Where `weft` is found inside; the agent puts it at the end of PATH.
pub(crate) const WEFT_DIR: &str = "/run/weft/bin";

pub(crate) fn build(launch: &Launch) -> io::Result<()> {
    // 1. This machine's files.
    let mut layers = Layers::begin(&launch.stage, launch.rights)?;
    let root = layers.show_machine()?;

    // 2. What the container has of its own.
    for name in OWN {
        let dir = root.join(name);
        fs::create_dir_all(&dir)?;
        match name {
            "proc" => proc(&dir)?,
            "sys" => filesystem("sysfs", &dir, SEALED | MountFlags::RDONLY, "")?,
            "dev" => devices(&dir)?,
            "tmp" => tmpfs(&dir, "mode=1777")?,
            _ => tmpfs(&dir, "mode=755")?,
        }
    }
    if launch.rights == Rights::User {
        own_for_the_one_user(&root)?;
    }
    fs::create_dir_all(root.join("run/lock"))?;
    etc(&root.join("etc"), &launch.etc)?;
    let weft_dir = root.join(WEFT_DIR.trim_start_matches('/'));
    fs::create_dir_all(&weft_dir)?;
    // Replaced or deleted since it was started: containers that are weft itself do not need the path.
    if launch.weft.exists() {
        let weft = weft_dir.join("weft");
        fs::write(&weft, "")?;
        bind(&launch.weft, &weft, true)?;
    }

    // 3. Volumes, from inside: a symbolic link such as /var/run must lead to the container's /run.
    let old = pivot(&root)?;
    layers.after_pivot(old.path());
    for mount in &launch.mounts {
        volume(&mut layers, mount)?;
    }
    old.remove()?;
    if launch.read_only_root {
        set_read_only(Path::new("/"))?;
        // What a volume hides is not what is found at its path.
        let visible = |path: &&Path| launch.mounts.iter().all(|mount| mount.target != **path);
        layers.made().filter(visible).try_for_each(set_read_only)?;
    }
    Ok(())
}

const SEALED: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// What belongs to root on this machine and is written to as a matter of course: the container's user is called root, and is not.
fn own_for_the_one_user(root: &Path) -> io::Result<()> {
    for (name, mode) in [("root", "mode=700"), ("var/tmp", "mode=1777")] {
        let dir = root.join(name);
        if dir.is_dir() {
            tmpfs(&dir, mode)?;
        }
    }
    Ok(())
}

/// A fresh `/proc` of the container's processes. Root without capabilities could still write the machine's settings there,
/// since these files only check the user: they are read-only.
fn proc(dir: &Path) -> io::Result<()> {
    filesystem("proc", dir, SEALED, "")?;
    for name in ["sys", "sysrq-trigger", "irq", "bus", "fs"] {
        let path = dir.join(name);
        if path.exists() {
            bind(&path, &path, true)?;
        }
    }
    Ok(())
}

fn devices(dir: &Path) -> io::Result<()> {
    // Not 1777: in a sticky directory a foreign file may not be opened with O_CREAT, and `> /dev/null` does that.
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    filesystem("tmpfs", dir, flags, "mode=755,size=64k")?;
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        let path = dir.join(name);
        fs::write(&path, "")?;
        bind(&Path::new("/dev").join(name), &path, false)?;
    }
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(to, dir.join(name))?;
    }
    fs::create_dir(dir.join("pts"))?;
    filesystem(
        "devpts",
        &dir.join("pts"),
        MountFlags::NOSUID | MountFlags::NOEXEC,
        "newinstance,ptmxmode=0666,mode=620",
    )?;
    fs::create_dir(dir.join("shm"))?;
    tmpfs(&dir.join("shm"), "mode=1777,size=64m")
}

/// The pod's own files of `/etc`. They replace what is there, which may be a link to somewhere else.
fn etc(dir: &Path, files: &[(String, String)]) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for (name, content) in files {
        replace(&dir.join(name), content)?;
    }
    // Names are resolved by our DNS only: no nscd, no systemd-resolved, whatever this machine uses.
    let old = fs::read_to_string("/etc/nsswitch.conf").unwrap_or_default();
    let mut lines: Vec<&str> = old.lines().filter(|l| !l.trim_start().starts_with("hosts:")).collect();
    lines.push("hosts: files dns");
    replace(&dir.join("nsswitch.conf"), &(lines.join("\n") + "\n"))
}

fn replace(path: &Path, content: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            // A mount point, as in containers: what is mounted there goes first.
            weft_net::mount::detach(path)?;
            fs::remove_file(path)?;
        }
        _ => {}
    }
    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

fn volume(layers: &mut Layers, mount: &VolumeMount) -> io::Result<()> {
    let source = layers.before_pivot(&mount.source);
    if source.is_dir() {
        layers.make_dir(&mount.target)?;
    } else {
        if let Some(parent) = mount.target.parent() {
            layers.make_dir(parent)?;
        }
        if !mount.target.exists() {
            layers.make_file(&mount.target)?;
        }
    }
    bind(&source, &mount.target, mount.read_only)
}
