//! The state directory of a mesh, who holds it, and the removal of what a killed mesh left behind.
//!
//! Processes and namespaces die with their supervisor by themselves; what can be left is files and, for an instant,
//! the host's end of the link.

pub mod place;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use weft_fault::{Code, Fault, Phase};
use weft_net::{
    netlink::{NetlinkError, route::RouteSocket},
    process::Pidfd,
};

/// What is written down about a running mesh, for the next `up` or `down`.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    pid: u32,
    /// When the process was started, in the kernel's ticks: its number may be somebody else's by now.
    #[serde(default)]
    started: Option<u64>,
    /// What another version did not write down does not keep its mesh from being ended.
    #[serde(default)]
    boot_id: String,
    #[serde(default)]
    host_link: String,
    /// The link's index, which no other link has until the machine starts again; 0 while it is being made.
    #[serde(default)]
    host_link_index: u32,
}

/// The state directory of one mesh, held by this process until dropped.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl State {
    /// Takes the directory, after removing what an earlier mesh left in it.
    pub fn take(root: &Path, name: &str) -> Result<Self, Fault> {
        let path = directory(root, name)?;
        let make = || -> io::Result<Option<File>> {
            let Taken::Free(lock) = lock(root, name)? else { return Ok(None) };
            sweep(&path)?;
            DirBuilder::new().mode(0o700).create(&path)?;
            for sub in ["pods", "stage", "logs"] {
                DirBuilder::new().mode(0o755).create(path.join(sub))?;
            }
            Ok(Some(lock))
        };
        match make() {
            Ok(Some(lock)) => Ok(State { path, lock_path: lock_path(root, name), _lock: lock }),
            Ok(None) => Err(Fault::new(Code::AlreadyRunning).in_phase(Phase::Start).about(name)),
            Err(e) => Err(bad_state(&path, e)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes who runs the mesh, and its link: before it is made with index 0, and after.
    pub fn write_holder(&self, host_link: &str, host_link_index: u32) -> Result<(), Fault> {
        let holder = Holder {
            pid: std::process::id(),
            started: start_of(std::process::id()),
            boot_id: boot_id(),
            host_link: host_link.to_string(),
            host_link_index,
        };
        let json = serde_json::to_vec(&holder).map_err(|e| bad_state(&self.path, e.into()))?;
        self.write("holder.json", &json)
    }

    /// Writes a file that only the owner may read.
    pub fn write(&self, file: &str, content: &[u8]) -> Result<(), Fault> {
        let path = self.path.join(file);
        let write = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&path)?.write_all(content)
        };
        write().map_err(|e| bad_state(&path, e))
    }

    /// Removes everything. The lock goes last.
    pub fn remove(self) -> Result<(), Fault> {
        let remove = || -> io::Result<()> {
            sweep(&self.path)?;
            remove_lock(&self.lock_path)
        };
        remove().map_err(|e| bad_state(&self.path, e))
    }
}

/// Ends the mesh of this name, if one runs, and removes what it left. Says whether there was anything.
///
/// The process that holds the mesh gets SIGTERM and `grace`, then SIGKILL, which its supervisor does not survive.
pub fn end(root: &Path, name: &str, grace: Duration) -> Result<bool, Fault> {
    let path = directory(root, name)?;
    let there = path.exists();
    let attempt = || -> io::Result<()> {
        if !root.exists() {
            return Ok(());
        }
        let _held = match lock(root, name)? {
            Taken::Free(lock) => lock,
            Taken::Held(held) => {
                stop_holder(&path, &lock_path(root, name), &held, grace)?;
                drop(held);
                // It has removed its files, and the lock with them: the next mesh of this name may be there already.
                match lock(root, name)? {
                    Taken::Free(lock) => lock,
                    Taken::Held(_) => return Ok(()),
                }
            }
        };
        sweep(&path)?;
        remove_lock(&lock_path(root, name))
    };
    attempt().map_err(|e| bad_state(&path, e))?;
    Ok(there)
}

/// Whether the process that holds the mesh of this name is there; a killed one leaves its files until the next `up` or `down`.
pub fn is_running(root: &Path, name: &str) -> bool {
    // One that ended and that nobody has waited for has a number still, but no program.
    let program = |pid| fs::read_link(format!("/proc/{pid}/exe"));
    let is_there = |holder: &Holder| {
        program(holder.pid).is_ok() && (holder.started.is_none() || holder.started == start_of(holder.pid))
    };
    read_holder(&root.join(name)).is_some_and(|holder| is_there(&holder))
}

/// When a process was started, in ticks since the machine was (proc(5)); with its number, no other's.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may hold anything; field 22 is the 20th after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The names of the meshes that have a state directory.
pub fn names(root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|e| e.path().is_dir())
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The directory of a mesh; the name must be usable as one path component.
pub fn directory(root: &Path, name: &str) -> Result<PathBuf, Fault> {
    let usable = !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if usable {
        return Ok(root.join(name));
    }
    Err(Fault::new(Code::BadFlag)
        .fact("name", name)
        .fact("expected", "lower case letters, digits and dashes, at most 63"))
}

/// Beside the directory, so that removing the directory does not remove the lock under somebody else.
fn lock_path(root: &Path, name: &str) -> PathBuf {
    root.join(format!("{name}.lock"))
}

enum Taken {
    /// By us, until it is dropped.
    Free(File),
    /// By another process.
    Held(File),
}

fn lock(root: &Path, name: &str) -> io::Result<Taken> {
    let path = lock_path(root, name);
    let open = || {
        place::make_root(root)?;
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)
    };
    let mut patience = 1_000;
    loop {
        let lock = match open() {
            // The last of the other meshes has removed the root meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound && patience > 0 => {
                patience -= 1;
                continue;
            }
            opened => opened?,
        };
        if !try_lock(&lock)? {
            return Ok(Taken::Held(lock));
        }
        // Whoever held it may have removed the file meanwhile: a lock on a file without a name keeps nobody out.
        match fs::metadata(&path) {
            Ok(now) if now.ino() == lock.metadata()?.ino() => return Ok(Taken::Free(lock)),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
}

/// To be called by the holder only. The root goes too when this was the last mesh.
fn remove_lock(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    // Not empty while other meshes have state here.
    let _ = path.parent().map(fs::remove_dir);
    Ok(())
}

fn try_lock(lock: &File) -> io::Result<bool> {
    match flock(lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn read_holder(path: &Path) -> Option<Holder> {
    serde_json::from_slice(&fs::read(path.join("holder.json")).ok()?).ok()
}

/// The process that holds a lock, as the kernel tells. It tells nothing of processes that are not to be seen from here, and
/// on some file systems has another number for the device.
fn locker(path: &Path) -> Option<u32> {
    let file = fs::metadata(path).ok()?;
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, "FLOCK", _, "WRITE", pid, at, ..] if at == place => pid.parse().ok().filter(|pid| *pid != 0),
        _ => None,
    })
}

/// Ends the process that holds the lock, and waits until the lock is free. What is written down of it may be spoilt.
fn stop_holder(path: &Path, lock_path: &Path, lock: &File, grace: Duration) -> io::Result<()> {
    use rustix::process::Signal;
    let pid = locker(lock_path).or_else(|| read_holder(path).map(|holder| holder.pid)).ok_or_else(|| {
        io::Error::other("it is held, but not known by whom: end the processes `weft` of this name")
    })?;
    let process = Pidfd::open(pid).ok();
    for (signal, patience) in [(Signal::TERM, grace), (Signal::KILL, Duration::from_secs(5))] {
        if let Some(process) = &process {
            process.signal(signal)?;
        }
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if try_lock(lock)? {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Err(io::Error::other(format!("process {pid} does not let go of it")))
}

/// Removes the files and, if it was made since this machine started, the host's link. The lock must be held.
fn sweep(path: &Path) -> io::Result<()> {
    if let Some(holder) = read_holder(path)
        && holder.boot_id == boot_id()
        && !holder.host_link.is_empty()
        && let Ok(mut route) = RouteSocket::open()
    {
        delete_own_link(&mut route, &holder).map_err(|e| e.error)?;
    }
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The name may be another mesh's by now: only the link with the index noted is ours, or one that was not finished.
fn delete_own_link(route: &mut RouteSocket, holder: &Holder) -> Result<(), NetlinkError> {
    let ours = match route.link_index(&holder.host_link) {
        Ok(index) if holder.host_link_index != 0 => index == holder.host_link_index,
        Ok(_) => route.has_link(&format!("{}-in", holder.host_link))?,
        Err(e) if e.absent() => false,
        Err(e) => return Err(e),
    };
    if ours { route.delete_link(&holder.host_link) } else { Ok(()) }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

fn bad_state(path: &Path, error: io::Error) -> Fault {
    Fault::new(Code::BadState).in_phase(Phase::Start).about(path.display()).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::BufRead as _,
        process::{Command, Stdio},
    };

    #[test]
    fn a_second_mesh_of_the_name_is_refused_and_leftovers_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("weft");
        let root = root.as_path();
        let state = State::take(root, "test").unwrap();
        state.write("kubeconfig", b"secret").unwrap();
        assert_eq!(State::take(root, "test").unwrap_err().code(), Code::AlreadyRunning);
        let left = state.path().join("kubeconfig");
        // Killed: the lock is gone, the files are not.
        drop(state);
        assert!(left.exists());
        let again = State::take(root, "test").unwrap();
        assert!(!left.exists());
        let path = again.path().to_path_buf();
        again.remove().unwrap();
        assert!(!path.exists() && !root.exists());
        assert!(!end(root, "test", Duration::ZERO).unwrap());
        assert!(State::take(root, "../x").is_err());
    }

    #[test]
    fn meshes_that_come_and_go_do_not_take_the_root_from_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("weft");
        std::thread::scope(|threads| {
            for name in ["a", "b", "c"] {
                let root = &root;
                threads.spawn(move || {
                    for _ in 0..300 {
                        State::take(root, name).unwrap().remove().unwrap();
                        assert!(!end(root, name, Duration::ZERO).unwrap());
                    }
                });
            }
        });
        assert!(!root.exists());
    }

    #[test]
    fn who_ends_a_mesh_leaves_the_next_one_of_its_name_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (root, lock) = (dir.path(), lock_path(dir.path(), "test"));
        // Holds the lock until the second line, and removes it at the first, as a mesh that ends does.
        const HOLD: &str = r#"exec 9>>"$0"; flock 9 && echo held; read one; rm "$0"; echo removed; read two"#;
        let mut command = Command::new("sh");
        command.args(["-c", HOLD]).arg(&lock).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().unwrap();
        let (mut tell, said) = (holder.stdin.take().unwrap(), holder.stdout.take().unwrap());
        let mut said = io::BufReader::new(said).lines();
        if said.next().is_none_or(|line| line.unwrap() != "held") {
            eprintln!("SKIPPED: there is no program flock");
            holder.wait().unwrap();
            return;
        }
        std::thread::scope(|threads| {
            let ending = threads.spawn(|| end(root, "test", Duration::from_secs(60)));
            while !is_open_here(&lock) {
                std::thread::yield_now();
            }
            tell.write_all(b"\n").unwrap();
            assert_eq!(said.next().unwrap().unwrap(), "removed");
            let next = State::take(root, "test").unwrap();
            drop(tell);
            ending.join().unwrap().unwrap();
            assert!(next.path().exists() && lock.exists());
            next.remove().unwrap();
        });
        holder.wait().unwrap();
    }

    fn is_open_here(path: &Path) -> bool {
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        open.into_iter().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == path))
    }

    #[test]
    fn the_holder_is_known_without_its_word() {
        // Where the kernel and `stat` agree about the device, as under /run.
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::tempdir_in(place).unwrap();
        let root = dir.path().join("weft");
        let state = State::take(&root, "test").unwrap();
        state.write("holder.json", b"{").unwrap();
        assert_eq!(locker(&lock_path(&root, "test")), Some(std::process::id()));
        let path = lock_path(&root, "test");
        drop(state);
        assert_eq!(locker(&path), None);
        assert!(end(&root, "test", Duration::ZERO).unwrap(), "what is spoilt and nobody's is swept");
    }

    #[test]
    fn a_mesh_of_another_version_can_be_ended() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("holder.json"), r#"{"pid": 7, "more": true}"#).unwrap();
        assert_eq!(read_holder(dir.path()).unwrap().pid, 7);
        assert!(!is_running(dir.path(), "none"));
    }

    #[test]
    fn a_number_that_is_another_process_by_now_runs_no_mesh() {
        let root = tempfile::tempdir().unwrap();
        let own = start_of(std::process::id()).unwrap();
        for (started, runs) in [(Some(own), true), (Some(own + 1), false), (None, true)] {
            std::fs::create_dir_all(root.path().join("test")).unwrap();
            let holder = serde_json::json!({"pid": std::process::id(), "started": started});
            std::fs::write(root.path().join("test/holder.json"), holder.to_string()).unwrap();
            assert_eq!(is_running(root.path(), "test"), runs, "{started:?}");
        }
    }
}
