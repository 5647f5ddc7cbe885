//! The root directory of a container: this machine's files, seen through an overlay.
//!
//! As with a container image, everything may be written and nothing written lasts. `/run`, `/tmp`, `/dev`, `/proc` and
//! `/sys` are the container's own. What is to last, or to reach this machine, is a volume.

use super::launch::{Launch, VolumeMount};
use rustix::mount::MountFlags;
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};
use weft_net::mount::{bind, filesystem, overlay, pivot, set_read_only, tmpfs};

/// Where `weft` is found inside; the agent puts it at the end of PATH.
pub(crate) const WEFT_DIR: &str = "/run/weft/bin";

/// Own directories of the container: what this machine has mounted at or below them is not shown.
const OWN: [&str; 5] = ["proc", "sys", "dev", "run", "tmp"];

pub(crate) fn build(launch: &Launch) -> io::Result<()> {
    let stage = &launch.stage;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    tmpfs(stage, "mode=755")?;
    let root = stage.join("root");
    fs::create_dir(&root)?;

    // 1. This machine's root, then every real file system mounted below it.
    if layer(stage, 0, Path::new("/"), &root).is_err() {
        // An overlay of overlays, or a kernel without: the same files, but read-only.
        read_only_view(&root)?;
    }
    for (n, (point, kind)) in shown_mounts(&mounts, stage).into_iter().enumerate() {
        let target = root.join(point.strip_prefix("/").unwrap_or(&point));
        if OVERLAID.contains(&kind.as_str()) && point.is_dir() && layer(stage, n + 1, &point, &target).is_ok()
        {
            continue;
        }
        // A directory that the overlay hides or another user's mount: the container does without.
        let _ = bind(&point, &target, true);
    }

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
    for mount in &launch.mounts {
        volume(old.path(), mount)?;
    }
    old.remove()?;
    if launch.read_only_root {
        set_read_only(Path::new("/"))?;
    }
    Ok(())
}

const SEALED: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// File systems that can be the lower half of an overlay.
const OVERLAID: [&str; 8] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay", "zfs"];

/// Shows `lower` at `target`, writable, with the changes in memory.
fn layer(stage: &Path, n: usize, lower: &Path, target: &Path) -> io::Result<()> {
    let (upper, work) = (stage.join(format!("upper{n}")), stage.join(format!("work{n}")));
    fs::create_dir(&upper)?;
    fs::create_dir(&work)?;
    // The merged directory takes its owner and mode from the upper one.
    fs::set_permissions(&upper, fs::metadata(lower)?.permissions())?;
    overlay(lower, &upper, &work, target)
}

/// This machine's files without an overlay: every entry of `/` and of `/etc` by itself, so that those directories can hold
/// the container's own.
fn read_only_view(root: &Path) -> io::Result<()> {
    tmpfs(root, "mode=755")?;
    show_entries(Path::new("/"), root, |name| OWN.contains(&name) || name == "etc")?;
    let etc = root.join("etc");
    fs::create_dir(&etc)?;
    show_entries(Path::new("/etc"), &etc, |name| {
        matches!(name, "hosts" | "hostname" | "resolv.conf" | "nsswitch.conf")
    })
}

fn show_entries(from: &Path, to: &Path, hidden: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(from)?.flatten() {
        if entry.file_name().to_str().is_none_or(&hidden) {
            continue;
        }
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, target)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&target)?;
        } else if kind.is_file() {
            fs::write(&target, "")?;
        } else {
            continue;
        }
        bind(&entry.path(), &target, true)?;
    }
    Ok(())
}

/// The mount points to show, outer ones first, with their file systems' types.
fn shown_mounts(mountinfo: &str, stage: &Path) -> Vec<(PathBuf, String)> {
    let state = stage.parent().unwrap_or(stage);
    let mut found = BTreeMap::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (left.split(' ').nth(4), right.split(' ').next()) else { continue };
        let point = PathBuf::from(unescape(point));
        let own = OWN.iter().any(|own| point.starts_with(Path::new("/").join(own)));
        if point != Path::new("/") && !own && !point.starts_with(state) && !PSEUDO.contains(&kind) {
            // A later mount hides an earlier one of the same place.
            found.insert(point, kind.to_string());
        }
    }
    found.into_iter().collect()
}

const PSEUDO: [&str; 14] = [
    "proc",
    "sysfs",
    "devtmpfs",
    "devpts",
    "cgroup",
    "cgroup2",
    "mqueue",
    "debugfs",
    "tracefs",
    "securityfs",
    "bpf",
    "autofs",
    "nsfs",
    "binfmt_misc",
];

/// mountinfo writes blanks and backslashes as `\040` and the like.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let octal = rest.get(at + 1..at + 4).and_then(|d| u8::from_str_radix(d, 8).ok());
        match octal {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
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

fn volume(old_root: &Path, mount: &VolumeMount) -> io::Result<()> {
    let source = old_root.join(mount.source.strip_prefix("/").unwrap_or(&mount.source));
    if source.is_dir() {
        fs::create_dir_all(&mount.target)?;
    } else {
        if let Some(parent) = mount.target.parent() {
            fs::create_dir_all(parent)?;
        }
        if !mount.target.exists() {
            fs::write(&mount.target, "")?;
        }
    }
    bind(&source, &mount.target, mount.read_only)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_file_systems_are_shown_once_and_outer_ones_first() {
        let info = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:5 / /dev rw - devtmpfs dev rw
24 22 8:2 / /home/a\\040b rw - ext4 /dev/sda2 rw
25 24 8:3 / /home rw - xfs /dev/sdb rw
26 22 0:20 / /run rw - tmpfs tmpfs rw
27 22 0:21 / /srv/x/pods rw - tmpfs tmpfs rw
28 22 8:4 / /etc/hosts rw - ext4 /dev/sda1 rw
29 22 0:22 / /home rw shared:3 - btrfs /dev/sdc rw
";
        let shown: Vec<String> = shown_mounts(info, Path::new("/srv/x/stage"))
            .into_iter()
            .map(|(p, k)| format!("{} {k}", p.display()))
            .collect();
        assert_eq!(shown, ["/etc/hosts ext4", "/home btrfs", "/home/a b ext4"]);
    }
}
