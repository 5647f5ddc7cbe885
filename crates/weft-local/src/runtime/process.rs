//! Processes of containers: starting the first one, and joining it with another.

use super::{
    init::launch_fault,
    launch::{Launch, LaunchFailed, User},
    sandbox::Sandbox,
};
use crate::{channel::Channel, entry};
use std::{io, os::fd::AsFd, path::PathBuf, process::Stdio, sync::Arc, time::Duration};
use tokio::process::{Child, Command};
use weft_fault::{Code, Fault, Phase};
use weft_net::{
    namespace::{Enter, Fresh, enter},
    process::{Pidfd, on_terminal},
};

/// How long building a container's root may take: file systems of other machines can hang.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// The first process of a container, and what joining it needs.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pidfd: Pidfd,
    user: User,
    env: Vec<(String, String)>,
    working_dir: PathBuf,
}

/// Starts a container. Its output is piped; its process 1 is a child of this process.
pub(crate) async fn start(sandbox: Arc<Sandbox>, launch: Launch) -> Result<(Child, Arc<Process>), Fault> {
    blocking(move || {
        let (ours, theirs) = Channel::pair().map_err(|e| start_failed("make a socket pair", e))?;
        let inside =
            Enter { pod: Some(&sandbox.namespaces), fresh: Some(Fresh::Container), ..Enter::default() };
        let runtime = tokio::runtime::Handle::current();
        // Through this process's own number: `self` means something else on the other side.
        let program = format!("/proc/{}/exe", std::process::id());
        let child = enter(inside, || {
            let _in_runtime = runtime.enter();
            let mut command = Command::new(program);
            command.arg(entry::CONTAINER).env_clear().stdin(Stdio::from(theirs.into_fd()));
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
            command.spawn()
        })?;
        let pid = child.id().ok_or_else(|| start_failed("start", io::ErrorKind::NotFound.into()))?;
        let pidfd = Pidfd::open(pid).map_err(|e| start_failed("open a pidfd", e))?;
        let talk = |e| start_failed("talk to the container's first process", e);
        ours.set_deadline(Some(START_DEADLINE)).map_err(talk)?;
        ours.send(&launch, &[]).map_err(talk)?;
        // The end of the socket means success: it closes when the program has been loaded.
        match ours.receive::<LaunchFailed>() {
            Ok(None) => {}
            Ok(Some((failed, _))) => return Err(launch_fault(&failed)),
            Err(e) => return Err(talk(e)),
        }
        let Launch { user, env, working_dir, .. } = launch;
        Ok((child, Arc::new(Process { pidfd, user, env, working_dir })))
    })
    .await
}

/// A command to run beside a container's main process.
#[derive(Debug)]
pub(crate) struct Joining {
    pub(crate) command: Vec<String>,
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
}

/// A command that runs, with its terminal if it has one.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) child: Child,
    pub(crate) terminal: Option<std::fs::File>,
}

/// Starts a command in the namespaces of a running container, with the container's user and environment.
pub(crate) async fn join(process: Arc<Process>, joining: Joining) -> Result<Joined, Fault> {
    blocking(move || {
        let credentials = process.user.credentials();
        let inside = Enter {
            process: Some(process.pidfd.as_fd()),
            credentials: Some(&credentials),
            ..Enter::default()
        };
        let runtime = tokio::runtime::Handle::current();
        enter(inside, || {
            let _in_runtime = runtime.enter();
            let (program, args) = joining.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
            let mut command = std::process::Command::new(program);
            command.args(args).env_clear().envs(process.env.iter().map(|(k, v)| (k, v)));
            command.current_dir(&process.working_dir);
            let terminal = if joining.tty {
                command.env("TERM", "xterm");
                Some(attach_terminal(&mut command)?)
            } else {
                command.stdin(if joining.stdin { Stdio::piped() } else { Stdio::null() });
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                None
            };
            let mut command = Command::from(command);
            command.kill_on_drop(true);
            Ok(Joined { child: command.spawn()?, terminal })
        })
    })
    .await
}

/// A new terminal of the container for all three streams; the controlling end.
fn attach_terminal(command: &mut std::process::Command) -> io::Result<std::fs::File> {
    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
    let options = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let terminal = rustix::fs::open("/dev/pts/ptmx", options, rustix::fs::Mode::empty())?;
    unlockpt(&terminal)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let inner = ioctl_tiocgptpeer(&terminal, flags)?;
    command.stdin(inner.try_clone()?).stdout(inner.try_clone()?).stderr(inner);
    on_terminal(command);
    Ok(terminal.into())
}

/// A status as shells count it: the code, or 128 + the signal.
pub(crate) fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(255)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(Fault::new(Code::Invariant).in_phase(Phase::Start).because(e)))
}

fn start_failed(step: &'static str, error: io::Error) -> Fault {
    Fault::new(Code::StartFailed).in_phase(Phase::Start).fact("step", step).because(error)
}
