//! Processes that the supervisor keeps: if one ends, however it ends, it is started again, as a cluster would.
//!
//! Both ends are here: [`Keeper`] in the supervisor, [`Seat`] in the process. A socket pair is between them.

use crate::channel::Channel;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::Duration,
};
use tokio::{
    process::{Child, Command},
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};
use weft_fault::{Code, Fault, FaultRecord, Phase};

/// From the supervisor.
#[derive(Serialize, Deserialize)]
enum ToKept {
    /// What it needs to know. Holds keys: never printed.
    Start(Value),
    Stop {
        grace: Duration,
    },
}

/// To the supervisor.
#[derive(Debug, Serialize, Deserialize)]
enum FromKept {
    /// It does its work.
    Begun,
    Failed(Box<FaultRecord>),
}

/// What one that ends quickly makes the next one wait, doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// One that ran this long did well: the next starts at once.
const WELL: Duration = Duration::from_secs(10);
/// What an exit may take of one that has closed its socket.
const EXIT: Duration = Duration::from_secs(2);

/// How long the next one waits; `last` is what this one waited.
fn wait_after(ran: Duration, last: Duration) -> Duration {
    if ran >= WELL { Duration::ZERO } else { (last * 2).clamp(FIRST_WAIT, LONGEST_WAIT) }
}

/// What a process is told first, and a descriptor that goes with it.
pub(crate) struct Orders {
    pub(crate) start: Value,
    pub(crate) socket: Option<OwnedFd>,
}

/// Makes the orders of the next process; whether one of them has begun its work before.
pub(crate) type Order = Box<dyn FnMut(bool) -> io::Result<Orders> + Send>;

/// Keeps one process running.
pub(crate) struct Keeper {
    /// As its faults and this process's log call it.
    pub(crate) what: &'static str,
    /// The hidden subcommand.
    pub(crate) role: &'static str,
    /// The mesh's name shows in lists of processes.
    pub(crate) mesh: String,
    /// Its own log: each process exchanges the file that it writes when that has become large.
    pub(crate) log: PathBuf,
    /// What it may take to end when told, beyond the grace that it is given.
    pub(crate) last_words: Duration,
    pub(crate) order: Order,
}

/// The grace within which to end. Whoever would tell it being gone counts too.
async fn told(stop: &mut watch::Receiver<Option<Duration>>) -> Duration {
    stop.wait_for(Option::is_some).await.ok().and_then(|grace| *grace).unwrap_or_default()
}

/// How one process ended.
enum End {
    Told,
    /// It said why.
    Failed(Fault),
    /// It could not say.
    Broke(String),
}

impl Keeper {
    /// Returns when told to stop; or, with its reason, when the first could not begin.
    pub(crate) fn run(
        mut self,
        mut stop: watch::Receiver<Option<Duration>>,
    ) -> BoxFuture<'static, Result<(), Fault>> {
        Box::pin(async move {
            let (mut wait, mut begun) = (Duration::ZERO, false);
            loop {
                let since = Instant::now();
                match self.once(&mut begun, &mut stop).await {
                    End::Told => return Ok(()),
                    End::Failed(fault) if !begun => return Err(fault),
                    End::Failed(fault) => tracing::error!(%fault, "{} ended; another is started", self.what),
                    End::Broke(how) => tracing::error!(how, "{} ended; another is started", self.what),
                }
                wait = wait_after(since.elapsed(), wait);
                tokio::select! {
                    _ = told(&mut stop) => return Ok(()),
                    () = sleep(wait) => {}
                }
            }
        })
    }

    async fn once(&mut self, begun: &mut bool, stop: &mut watch::Receiver<Option<Duration>>) -> End {
        let (mut child, channel, mut said) = match self.spawn(*begun) {
            Ok(started) => started,
            Err(error) => return End::Broke(format!("it did not start: {error}")),
        };
        let mut failed = None;
        loop {
            tokio::select! {
                biased;
                word = said.recv() => match word {
                    Some(FromKept::Begun) => *begun = true,
                    Some(FromKept::Failed(record)) => failed = Some(record),
                    // It has closed its end: what is left is its exit.
                    None => break,
                },
                grace = told(stop) => {
                    let _ = channel.send(&ToKept::Stop { grace }, &[]);
                    // Dropped, it is killed.
                    let _ = timeout(grace + self.last_words, child.wait()).await;
                    return End::Told;
                }
            }
        }
        let status = match timeout(EXIT, child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it hung when it ended".to_owned(),
        };
        match failed {
            Some(record) => End::Failed(crate::up::revive(&record)),
            None => End::Broke(status),
        }
    }

    /// A process that was told to start, and what it says.
    fn spawn(&mut self, begun: bool) -> io::Result<(Child, Arc<Channel>, mpsc::Receiver<FromKept>)> {
        let orders = (self.order)(begun)?;
        let (ours, theirs) = Channel::pair()?;
        let log = std::fs::File::options().append(true).create(true).mode(0o600).open(&self.log)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg(self.role)
            .arg(&self.mesh)
            .stdin(Stdio::from(theirs.into_fd()))
            .stderr(Stdio::from(log))
            .kill_on_drop(true);
        let child = command.spawn()?;
        // This process's copy of the other end goes, so that its end is seen.
        drop(command);
        let socket: Vec<BorrowedFd<'_>> = orders.socket.iter().map(|socket| socket.as_fd()).collect();
        ours.send(&ToKept::Start(orders.start), &socket)?;
        let ours = Arc::new(ours);
        let (tell, said) = mpsc::channel(4);
        let listening = ours.clone();
        // It ends with the process.
        std::thread::Builder::new().name("kept-says".into()).spawn(move || {
            while let Ok(Some((word, _))) = listening.receive() {
                if tell.blocking_send(word).is_err() {
                    return;
                }
            }
        })?;
        Ok((child, ours, said))
    }
}

/// What a kept process is given.
pub(crate) struct Seat {
    /// Its end of the socket that came with its orders.
    pub(crate) socket: Option<OwnedFd>,
    /// Becomes the grace within which it is to end.
    pub(crate) stop: watch::Receiver<Option<Duration>>,
    channel: Arc<Channel>,
}

impl Seat {
    /// Says that the work is being done.
    pub(crate) fn begun(&self) {
        if let Err(error) = self.channel.send(&FromKept::Begun, &[]) {
            tracing::warn!(%error, "the supervisor was not told that the work has begun");
        }
    }
}

/// Runs as a kept process: `work` on a runtime of its own, with what [`Orders`] said. Standard input is the supervisor's socket.
pub(crate) fn run<T: DeserializeOwned>(
    what: &'static str,
    work: impl FnOnce(T, Seat) -> BoxFuture<'static, Result<(), Fault>>,
) -> Result<(), Fault> {
    let unable = |e: io::Error| Fault::new(Code::StartFailed).in_phase(Phase::Start).about(what).because(e);
    let fd = io::stdin().as_fd().try_clone_to_owned().map_err(unable)?;
    close_stdin().map_err(unable)?;
    let channel = Arc::new(Channel::from_fd(fd));
    let serve = || {
        let Some((ToKept::Start(start), sockets)) = channel.receive().map_err(unable)? else {
            return Err(Fault::new(Code::Invariant).about(what).fact("first message", "no orders"));
        };
        let start = serde_json::from_value(start).map_err(|e| unable(e.into()))?;
        let (tell, stop) = watch::channel(None);
        follow(channel.clone(), tell).map_err(unable)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(unable)?;
        // Fails only if another provider was chosen before: then that one is used.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let seat = Seat { socket: sockets.into_iter().next(), stop, channel: channel.clone() };
        runtime.block_on(async { work(start, seat).await })
    };
    let result = serve();
    if let Err(fault) = &result {
        // The supervisor decides what it means.
        let _ = channel.send(&FromKept::Failed(Box::new(fault.record())), &[]);
    }
    result
}

/// The supervisor is heard by a thread of its own, so that nothing that hangs can keep this process alive.
fn follow(channel: Arc<Channel>, tell: watch::Sender<Option<Duration>>) -> io::Result<()> {
    let listen = move || {
        loop {
            match channel.receive::<ToKept>() {
                Ok(Some((ToKept::Stop { grace }, _))) => drop(tell.send_replace(Some(grace))),
                Ok(Some((ToKept::Start(_), _))) => tracing::warn!("told to start twice"),
                // There is no mesh any more.
                Ok(None) | Err(_) => std::process::exit(0),
            }
        }
    };
    std::thread::Builder::new().name("supervisor-says".into()).spawn(listen).map(drop)
}

/// The socket has one holder, so that its end is this process's.
fn close_stdin() -> io::Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdin(&null)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_ends_quickly_waits_longer_each_time_and_one_that_did_well_not_at_all() {
        let quick = Duration::from_millis(1);
        let mut wait = Duration::ZERO;
        let waits: Vec<u128> = (0..7)
            .map(|_| {
                wait = wait_after(quick, wait);
                wait.as_millis()
            })
            .collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        assert_eq!(wait_after(WELL, wait), Duration::ZERO);
    }
}
