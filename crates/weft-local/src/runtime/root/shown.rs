//! This machine's files as a container sees them: read where they are, changed in memory.

use crate::rights::Rights;
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};
use weft_net::mount::{Notes, bind, overlay, set_all_read_only, tmpfs};

/// Own directories of the container: what this machine has mounted at or below them is not shown.
pub(super) const OWN: [&str; 5] = ["proc", "sys", "dev", "run", "tmp"];

/// Files of `/etc` that are the pod's.
const OWN_OF_ETC: [&str; 4] = ["hosts", "hostname", "resolv.conf", "nsswitch.conf"];

/// File systems that can be the lower half of an overlay.
const OVERLAID: [&str; 8] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay", "zfs"];

/// The overlays of one container, whose changes are on one file system in memory.
pub(super) struct Layers {
    stage: PathBuf,
    rights: Rights,
    count: usize,
    /// Where this machine's root directory is.
    machine: PathBuf,
    made: Vec<PathBuf>,
}

impl Layers {
    pub(super) fn begin(stage: &Path, rights: Rights) -> io::Result<Self> {
        tmpfs(stage, "mode=755")?;
        let machine = PathBuf::from("/");
        Ok(Layers { stage: stage.to_path_buf(), rights, count: 0, machine, made: Vec::new() })
    }

    /// Shows this machine's root directory, and every real file system that is mounted below it, at the path returned.
    pub(super) fn show_machine(&mut self) -> io::Result<PathBuf> {
        let root = self.stage.join("root");
        fs::create_dir(&root)?;
        // Where the kernel would have to show what a mount hides, it refuses an overlay of the whole: always without root.
        if self.rights == Rights::User {
            self.show_entries(&root)?;
            return Ok(root);
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        if self.layer(Path::new("/"), &root).is_err() {
            // An overlay of overlays, or a kernel without.
            self.show_entries(&root)?;
        }
        let mine = self.stage.parent().unwrap_or(&self.stage).to_path_buf();
        for (point, kind) in shown_mounts(&mounts, &mine) {
            let target = root.join(point.strip_prefix("/").unwrap_or(&point));
            let fit = OVERLAID.contains(&kind.as_str()) && point.is_dir();
            if !fit || self.layer(&point, &target).is_err() {
                // A directory that the overlay hides or another user's mount: the container does without.
                let _ = bind(&point, &target, true);
            }
        }
        Ok(root)
    }

    /// Every entry of `/` by itself: through an overlay if that can be, else read-only with all that is mounted below.
    fn show_entries(&mut self, root: &Path) -> io::Result<()> {
        tmpfs(root, "mode=755")?;
        for entry in fs::read_dir("/")?.flatten() {
            let name = entry.file_name();
            if name.to_str().is_none_or(|name| OWN.contains(&name)) {
                continue;
            }
            let (path, target) = (entry.path(), root.join(&name));
            if !entry.file_type()?.is_dir() {
                show_entry(&entry, &target)?;
                continue;
            }
            fs::create_dir(&target)?;
            if self.layer(&path, &target).is_ok() {
                self.made.push(path);
            } else if name == "etc" {
                show_etc(&target)?;
            } else {
                show_read_only(&path, &target);
            }
        }
        Ok(())
    }

    /// Shows `lower` at `target`, writable as far as this user may write, with the changes in memory.
    fn layer(&mut self, lower: &Path, target: &Path) -> io::Result<()> {
        let (upper, work) =
            (self.stage.join(format!("upper{}", self.count)), self.stage.join(format!("work{}", self.count)));
        self.count += 1;
        fs::create_dir(&upper)?;
        fs::create_dir(&work)?;
        // The merged directory takes its owner and mode from the upper one.
        fs::set_permissions(&upper, fs::metadata(lower)?.permissions())?;
        let notes = match self.rights {
            Rights::Root => Notes::Root,
            Rights::User => Notes::User,
        };
        overlay(lower, &upper, &work, target, notes)
    }

    /// From here on this machine's files, and the stage, are below `old`.
    pub(super) fn after_pivot(&mut self, old: &Path) {
        self.machine = old.to_path_buf();
        self.stage = self.before_pivot(&self.stage);
    }

    /// Where a path of this machine is now.
    pub(super) fn before_pivot(&self, path: &Path) -> PathBuf {
        self.machine.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The overlays below the container's root directory, as seen from there.
    pub(super) fn made(&self) -> impl Iterator<Item = &Path> {
        self.made.iter().map(PathBuf::as_path)
    }

    pub(super) fn make_dir(&mut self, path: &Path) -> io::Result<()> {
        self.make(path, |path| fs::create_dir_all(path))
    }

    pub(super) fn make_file(&mut self, path: &Path) -> io::Result<()> {
        self.make(path, |path| fs::write(path, ""))
    }

    /// A directory of somebody else's takes no entries from this user; one that this user has laid over it does.
    fn make(&mut self, path: &Path, make: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        let refused = match make(path) {
            Err(refused) if self.rights == Rights::User => refused,
            other => return other,
        };
        let Some(dir) = path.ancestors().skip(1).find(|dir| dir.is_dir()) else { return Err(refused) };
        let lower = self.before_pivot(dir);
        self.layer(&lower, dir).map_err(|_| refused)?;
        self.made.push(dir.to_path_buf());
        make(path)
    }
}

/// A file or a link.
fn show_entry(entry: &fs::DirEntry, target: &Path) -> io::Result<()> {
    let kind = entry.file_type()?;
    if kind.is_symlink() {
        symlink(fs::read_link(entry.path())?, target)?;
    } else if kind.is_file() {
        fs::write(target, "")?;
        show_read_only(&entry.path(), target);
    }
    Ok(())
}

/// `/etc` entry by entry, without what the pod has of its own: in many containers files of it are mounted.
fn show_etc(target: &Path) -> io::Result<()> {
    for entry in fs::read_dir("/etc")?.flatten() {
        let name = entry.file_name();
        if name.to_str().is_none_or(|name| OWN_OF_ETC.contains(&name)) {
            continue;
        }
        let target = target.join(&name);
        if entry.file_type()?.is_dir() {
            fs::create_dir(&target)?;
            show_read_only(&entry.path(), &target);
        } else {
            show_entry(&entry, &target)?;
        }
    }
    Ok(())
}

/// What cannot be shown, such as another user's mount, the container does without; what cannot be protected it must not see.
fn show_read_only(path: &Path, target: &Path) {
    if bind(path, target, false).is_ok() && set_all_read_only(target).is_err() {
        let _ = weft_net::mount::detach(target);
    }
}

/// The mount points to show, outer ones first, with their file systems' types.
fn shown_mounts(mountinfo: &str, state: &Path) -> Vec<(PathBuf, String)> {
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
        let shown: Vec<String> = shown_mounts(info, Path::new("/srv/x"))
            .into_iter()
            .map(|(p, k)| format!("{} {k}", p.display()))
            .collect();
        assert_eq!(shown, ["/etc/hosts ext4", "/home btrfs", "/home/a b ext4"]);
    }
}
