//! Processes: signals by pidfd, the duties of process 1, and terminals.

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process, pidfd_open, pidfd_send_signal,
    setpriority_process, waitpid,
};
use rustix::termios::{Winsize, tcsetwinsize};
use std::{
    fs::File,
    io, mem,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
};
use tokio::io::{Interest, unix::AsyncFd};

/// A process that cannot be confused with a later one of the same number.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// `pid` must not have been reaped yet.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Pidfd(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Sends a signal. A process that is gone is no error.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.0, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            other => Ok(other?),
        }
    }
}

impl Pidfd {
    /// Waits until the process has ended. Whoever is its parent still has to reap it.
    pub async fn ended(&self) -> io::Result<()> {
        let fd = self.0.try_clone()?;
        // SAFETY: an `OwnedFd` keeps its descriptor open and the same until it is dropped, after it was deregistered.
        let readable = unsafe { AsyncFd::register(fd)? };
        readable.readable().await.map(drop)
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets other threads go first: `niceness` from 1 to 19, for the calling thread alone (setpriority(2)). Any process may do this.
pub fn lower_priority(niceness: i32) {
    // It can only fail for a process that is not there, or to raise a priority.
    let _cannot = setpriority_process(None, niceness);
}

/// Holds back every signal of this thread until [`serve_as_init`] takes them. To be called before the first child starts, so
/// that no signal finds process 1 without a handler (the kernel would drop it). Children inherit this: see [`let_signals_through`].
pub fn hold_signals() -> io::Result<()> {
    let mut all = mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set it is given; `pthread_sigmask` reads it and ignores a null old set.
    let failed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

/// The duties of process 1: reaps orphans and passes signals on to `main`, until that ends. Returns `main`'s exit status, or
/// 128 + the signal that ended it. [`hold_signals`] must have been called.
pub fn serve_as_init(main: u32) -> io::Result<i32> {
    let main = i32::try_from(main).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let mut all = mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set it is given.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    loop {
        // Before waiting: `main` may have ended before its SIGCHLD could be waited for.
        while let Some((pid, status)) = reap()? {
            if pid == main {
                return Ok(exit_code(status));
            }
        }
        // SAFETY: the set is initialised, and a null pointer for the details is allowed.
        let signal = unsafe { libc::sigwaitinfo(all.as_ptr(), std::ptr::null_mut()) };
        match signal {
            -1 => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            },
            libc::SIGCHLD | libc::SIGPIPE => {}
            number => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    // Already a zombie: the next turn reaps it.
                    let _ = kill_process(main, signal);
                }
            }
        }
    }
}

fn reap() -> io::Result<Option<(Pid, WaitStatus)>> {
    match waitpid(None, WaitOptions::NOHANG) {
        Ok(found) => Ok(found),
        Err(rustix::io::Errno::CHILD) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn exit_code(status: WaitStatus) -> i32 {
    status.exit_status().or_else(|| status.terminating_signal().map(|s| 128 + s)).unwrap_or(255)
}

/// Makes the command begin with no signal held back, whatever this process holds.
pub fn let_signals_through(command: &mut Command) -> &mut Command {
    let open = || {
        let mut none = mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` initialises the set it is given; `pthread_sigmask` reads it and ignores a null old set.
        let failed = unsafe {
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut())
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
    };
    // SAFETY: between fork and exec only functions on signal sets are called; they are async-signal-safe.
    unsafe { command.pre_exec(open) }
}

/// Makes the kernel end the command when the calling thread ends, however that comes about.
pub fn ends_with_this_thread(command: &mut Command) -> &mut Command {
    let tie = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec only `prctl` is called, which is async-signal-safe and allocates nothing.
    unsafe { command.pre_exec(tie) }
}

/// Makes the command a session leader whose controlling terminal is its standard input.
pub fn on_terminal(command: &mut Command) -> &mut Command {
    let take_terminal = || {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        Ok(())
    };
    // SAFETY: between fork and exec only `setsid` and `ioctl` are called; both are async-signal-safe and allocate nothing.
    unsafe { command.pre_exec(take_terminal) }
}

/// The controlling end of a terminal, for async programs.
#[derive(Debug)]
pub struct Terminal(AsyncFd<File>);

impl Terminal {
    pub fn new(terminal: File) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&terminal, true)?;
        // SAFETY: a `File` keeps its descriptor open and the same until it is dropped, after it was deregistered.
        Ok(Terminal(unsafe { AsyncFd::register(terminal)? }))
    }

    /// What the programs wrote. Fails (EIO) when the last of them has closed its end.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.async_io(Interest::READABLE, |t| io::Read::read(&mut &*t, buffer)).await
    }

    /// Types the bytes.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = self.0.async_io(Interest::WRITABLE, |t| io::Write::write(&mut &*t, bytes)).await?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    pub fn set_size(&self, rows: u16, columns: u16) -> io::Result<()> {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(self.0.get_ref(), size)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getpriority_process;

    #[test]
    fn only_the_thread_that_asks_goes_last() {
        let own = getpriority_process(None).unwrap();
        let other = std::thread::spawn(|| {
            lower_priority(19);
            getpriority_process(None).unwrap()
        });
        assert_eq!(other.join().unwrap(), 19);
        assert_eq!(getpriority_process(None).unwrap(), own);
    }
}
