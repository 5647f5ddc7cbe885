//! The mesh's controller, a process of its own beside the supervisor: if it ends, however it ends, another takes over, as on
//! a cluster. Proxies keep what they know meanwhile.
//!
//! Both ends of it are here: [`Keeper`] in the supervisor, and [`run`] in the process. A socket pair is between them.

use crate::{channel::Channel, entry, network::Network, supervisor};
use futures_util::future::BoxFuture;
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    io,
    os::{fd::AsFd, unix::fs::OpenOptionsExt as _},
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

/// The mesh's controller, given by the program: this crate knows nothing about it. It runs until its seat's `stop`, and
/// is started when the API answers.
pub type Controller = Box<dyn FnOnce(Seat) -> BoxFuture<'static, Result<(), Fault>> + Send>;

/// What the controller is given.
pub struct Seat {
    /// An administrator's client of the API.
    pub client: Client,
    /// Where it is to listen ([`Network::node_ip`]) and what is in the mesh.
    pub network: Network,
    pub state_dir: PathBuf,
    /// The API is not the mesh's own: its server only leads to what it knows as a pod.
    pub external: bool,
    /// An earlier controller of this mesh has brought its objects into the API. They may have been changed since (the
    /// identity issuer, for one): they are to stay as they are.
    pub furnished: bool,
    /// To be called once its objects are there.
    pub has_furnished: Box<dyn FnOnce() + Send>,
    /// What `weft up` was given for it: [`crate::up::UpConfig::controller`].
    pub options: Value,
    /// Becomes true when the mesh ends and all pods have ended.
    pub stop: watch::Receiver<bool>,
}

/// From the supervisor.
#[derive(Serialize, Deserialize)]
enum ToController {
    Start(Box<Start>),
    Stop,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Of the API, as this machine's inside reaches it. Holds a key: never printed.
    pub(crate) kubeconfig: String,
    pub(crate) network: Network,
    pub(crate) state_dir: PathBuf,
    pub(crate) external: bool,
    pub(crate) furnished: bool,
    pub(crate) options: Value,
}

/// To the supervisor.
#[derive(Debug, Serialize, Deserialize)]
enum FromController {
    Furnished,
    Failed(Box<FaultRecord>),
}

/// What one that ends quickly makes the next one wait, doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// One that ran this long did well: the next starts at once.
const WELL: Duration = Duration::from_secs(10);
/// What one may take to end when told.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long the next one waits; `last` is what this one waited.
fn wait_after(ran: Duration, last: Duration) -> Duration {
    if ran >= WELL { Duration::ZERO } else { (last * 2).clamp(FIRST_WAIT, LONGEST_WAIT) }
}

/// Keeps a controller running.
pub(crate) struct Keeper {
    mesh: String,
    start: Start,
}

/// Returns when the mesh ends. Whoever would tell being gone counts too.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// How one controller ended.
enum End {
    Told,
    /// It said why.
    Failed(Fault),
    /// It could not say.
    Broke(String),
}

impl Keeper {
    /// The mesh's name shows in lists of processes.
    pub(crate) fn new(mesh: &str, start: Start) -> Self {
        Keeper { mesh: mesh.to_owned(), start }
    }

    /// Returns when told to stop; or, with its reason, when a mesh has no controller because the first could not begin.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<(), Fault> {
        let mut wait = Duration::ZERO;
        loop {
            let began = Instant::now();
            match self.once(&mut stop).await {
                End::Told => return Ok(()),
                End::Failed(fault) if !self.start.furnished => return Err(fault),
                End::Failed(fault) => tracing::error!(%fault, "the controller ended; another is started"),
                End::Broke(how) => tracing::error!(how, "the controller ended; another is started"),
            }
            wait = wait_after(began.elapsed(), wait);
            tokio::select! {
                () = told(&mut stop) => return Ok(()),
                () = sleep(wait) => {}
            }
        }
    }

    async fn once(&mut self, stop: &mut watch::Receiver<bool>) -> End {
        let (mut child, channel, mut said) = match self.spawn() {
            Ok(started) => started,
            Err(error) => return End::Broke(format!("it did not start: {error}")),
        };
        let mut failed = None;
        loop {
            tokio::select! {
                biased;
                word = said.recv() => match word {
                    Some(FromController::Furnished) => self.start.furnished = true,
                    Some(FromController::Failed(record)) => failed = Some(record),
                    // It has closed its end: what is left is its exit.
                    None => break,
                },
                () = told(stop) => {
                    let _ = channel.send(&ToController::Stop, &[]);
                    // Dropped, it is killed.
                    let _ = timeout(LAST_WORDS, child.wait()).await;
                    return End::Told;
                }
            }
        }
        let status = match timeout(LAST_WORDS, child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it hung when it ended".to_owned(),
        };
        match failed {
            Some(record) => End::Failed(crate::up::revive(&record)),
            None => End::Broke(status),
        }
    }

    /// A controller that was told to start, and what it says.
    fn spawn(&self) -> io::Result<(Child, Arc<Channel>, mpsc::Receiver<FromController>)> {
        let (ours, theirs) = Channel::pair()?;
        let mut command = Command::new("/proc/self/exe");
        // Its own log: each process exchanges the file that it writes when that has become large.
        let path = self.start.state_dir.join("controller.log");
        let log = std::fs::File::options().append(true).create(true).mode(0o600).open(path)?;
        command
            .arg(entry::CONTROLLER)
            .arg(&self.mesh)
            .stdin(Stdio::from(theirs.into_fd()))
            .stderr(Stdio::from(log))
            .kill_on_drop(true);
        let child = command.spawn()?;
        // This process's copy of the other end goes, so that its end is seen.
        drop(command);
        ours.send(&ToController::Start(Box::new(self.start.clone())), &[])?;
        let ours = Arc::new(ours);
        let (tell, said) = mpsc::channel(4);
        let listening = ours.clone();
        // It ends with the controller.
        std::thread::Builder::new().name("controller-says".into()).spawn(move || {
            while let Ok(Some((word, _))) = listening.receive() {
                if tell.blocking_send(word).is_err() {
                    return;
                }
            }
        })?;
        Ok((child, ours, said))
    }
}

/// Runs as the controller. Standard input is the supervisor's socket.
pub(crate) fn run(controller: Controller) -> Result<(), Fault> {
    let unable = |e: io::Error| Fault::new(Code::StartFailed).in_phase(Phase::Start).because(e);
    let fd = io::stdin().as_fd().try_clone_to_owned().map_err(unable)?;
    close_stdin().map_err(unable)?;
    let channel = Arc::new(Channel::from_fd(fd));
    let result = serve(&channel, controller);
    if let Err(fault) = &result {
        // The supervisor decides what it means.
        let _ = channel.send(&FromController::Failed(Box::new(fault.record())), &[]);
    }
    result
}

/// The socket has one holder, so that its end is this process's.
fn close_stdin() -> io::Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdin(&null)?)
}

fn serve(channel: &Arc<Channel>, controller: Controller) -> Result<(), Fault> {
    let broken = |e: io::Error| Fault::new(Code::StartFailed).in_phase(Phase::Start).because(e);
    let Some((ToController::Start(start), _)) = channel.receive().map_err(broken)? else {
        return Err(Fault::new(Code::Invariant).about("the controller").fact("first message", "no order"));
    };
    let (tell, stop) = watch::channel(false);
    let orders = channel.clone();
    let follow = move || {
        loop {
            match orders.receive::<ToController>() {
                Ok(Some((ToController::Stop, _))) => drop(tell.send_replace(true)),
                Ok(Some((ToController::Start(_), _))) => tracing::warn!("told to start twice"),
                // There is no mesh any more.
                Ok(None) | Err(_) => std::process::exit(0),
            }
        }
    };
    std::thread::Builder::new().name("supervisor-says".into()).spawn(follow).map_err(broken)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(broken)?;
    // Fails only if another provider was chosen before: then that one is used.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let tell_furnished = channel.clone();
    runtime.block_on(async move {
        let Start { kubeconfig, network, state_dir, external, furnished, options } = *start;
        let client = supervisor::client(&kubeconfig).await?;
        let has_furnished = Box::new(move || {
            if let Err(error) = tell_furnished.send(&FromController::Furnished, &[]) {
                tracing::warn!(%error, "the supervisor was not told that the control plane's objects are there");
            }
        });
        controller(Seat { client, network, state_dir, external, furnished, has_furnished, options, stop }).await
    })
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
