//! What a container runtime does on a cluster: pods' namespaces and addresses, containers' processes and their output.
//!
//! It is part of the supervisor, so that pods outlive the node agent, a process of its own that may end and be started again
//! ([`crate::node`]). The agent asks it through a socket ([`wire`], [`client`]). What the API asks of a node needs no agent
//! and is answered here ([`streams`]).

pub(crate) mod client;
pub(crate) mod init;
pub(crate) mod launch;
mod logs;
mod process;
mod root;
mod sandbox;
mod serve;
mod streams;
pub(crate) mod wire;

pub(crate) use root::WEFT_DIR;

use crate::{network::Network, rights::Rights};
use jiff::Timestamp;
use launch::Launch;
use logs::RunLog;
use parking_lot::Mutex;
use process::{Joining, Process, exit_code};
use rustix::process::Signal;
use sandbox::{Sandbox, Sandboxes};
use std::{
    collections::HashMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Child,
    sync::watch,
    time::timeout,
};
use weft_fault::{Code, Fault, Phase};
use weft_net::netlink::route::RouteSocket;
use wire::{Exit, HeldContainer, HeldPod, Output, PodName, RunName, RunState};

/// The pods that this machine holds.
pub(crate) struct Runtime {
    sandboxes: Arc<Sandboxes>,
    logs: PathBuf,
    /// By uid.
    pods: Mutex<HashMap<String, Arc<Pod>>>,
    /// One agent is served at a time: what the one before had begun is finished first.
    serving: tokio::sync::Mutex<()>,
}

/// A pod: its namespaces, and what ran in it.
#[derive(Debug)]
struct Pod {
    name: PodName,
    sandbox: Arc<Sandbox>,
    since: Timestamp,
    /// `None` when the pod was removed.
    containers: Mutex<Option<HashMap<String, Container>>>,
}

/// A container's present run and the one before. Both keep their logs.
#[derive(Clone, Debug)]
struct Container {
    now: Arc<Run>,
    before: Option<Arc<Run>>,
}

/// A run of a container's process.
#[derive(Debug)]
struct Run {
    /// How many there were before.
    number: i32,
    started: Option<Timestamp>,
    /// `None` if it could not be started.
    process: Option<Arc<Process>>,
    log: Arc<RunLog>,
    exit: watch::Sender<Option<Exit>>,
}

impl Run {
    fn is_over(&self) -> bool {
        self.exit.borrow().is_some()
    }

    fn signal(&self, signal: Signal) -> std::io::Result<()> {
        match &self.process {
            Some(process) if !self.is_over() => process.pidfd.signal(signal),
            _ => Ok(()),
        }
    }

    fn state(&self) -> RunState {
        RunState { number: self.number, started: self.started, exit: self.exit.borrow().clone() }
    }

    /// Sees the process to its end, and its output.
    async fn follow(self: Arc<Self>, mut child: Child) {
        let pumps = [
            child.stdout.take().map(|out| tokio::spawn(self.log.clone().pump(out, "stdout"))),
            child.stderr.take().map(|err| tokio::spawn(self.log.clone().pump(err, "stderr"))),
        ];
        let code = child.wait().await.map_or(255, exit_code);
        let finished = Timestamp::now();
        for pump in pumps.into_iter().flatten() {
            let stop = pump.abort_handle();
            // The last process closed the pipes; only one that hangs in the kernel could still hold them.
            if timeout(Duration::from_secs(2), pump).await.is_err() {
                stop.abort();
            }
        }
        self.log.close();
        self.exit.send_replace(Some(Exit { code, message: String::new(), finished }));
    }
}

impl Runtime {
    /// Must be called on a thread in the node's network namespace. `logs` is a directory of this machine's inside.
    pub(crate) fn new(network: Network, rights: Rights, logs: PathBuf) -> Result<Arc<Self>, Fault> {
        Ok(Arc::new(Runtime {
            sandboxes: Arc::new(Sandboxes::new(network, rights, RouteSocket::open()?)),
            logs,
            pods: Mutex::default(),
            serving: tokio::sync::Mutex::default(),
        }))
    }

    fn pod(&self, uid: &str) -> Result<Arc<Pod>, Fault> {
        let found = self.pods.lock().get(uid).cloned();
        found.ok_or_else(|| Fault::new(Code::NotRunning).in_phase(Phase::Start).about(uid))
    }

    /// The present run of a container, if it is the one of that number.
    fn run(&self, name: &RunName) -> Result<Arc<Run>, Fault> {
        let pod = self.pod(&name.pod)?;
        let containers = pod.containers.lock();
        let found = containers.as_ref().and_then(|all| all.get(&name.container));
        let run = found.map(|container| container.now.clone()).filter(|run| run.number == name.number);
        run.ok_or_else(|| Fault::new(Code::NotRunning).in_phase(Phase::Start).about(&name.container))
    }

    fn list(&self) -> Vec<HeldPod> {
        let pods: Vec<Arc<Pod>> = self.pods.lock().values().cloned().collect();
        pods.iter().map(|pod| pod.state()).collect()
    }

    /// Makes a pod's namespaces, link and address.
    async fn create(&self, name: PodName, hostname: String) -> Result<Ipv4Addr, Fault> {
        let sandboxes = self.sandboxes.clone();
        let made = tokio::task::spawn_blocking(move || sandboxes.create(&hostname)).await;
        let sandbox = made.unwrap_or_else(|e| Err(Fault::new(Code::Invariant).because(e)))?;
        let (uid, ip) = (name.uid.clone(), sandbox.ip);
        // Of an agent that nobody took over from.
        self.remove(&uid);
        let pod = Pod {
            name,
            sandbox: Arc::new(sandbox),
            since: Timestamp::now(),
            containers: Mutex::new(Some(HashMap::new())),
        };
        self.pods.lock().insert(uid, Arc::new(pod));
        Ok(ip)
    }

    /// Ends whatever still runs, and forgets the pod. One that is not there is no error.
    fn remove(&self, uid: &str) {
        let Some(pod) = self.pods.lock().remove(uid) else { return };
        for container in pod.containers.lock().take().into_iter().flat_map(HashMap::into_values) {
            if let Err(error) = container.now.signal(Signal::KILL) {
                tracing::warn!(%error, pod = pod.name.name, "a container of a pod that is gone was not ended");
            }
        }
        remove_dir(&self.logs_of(&pod.name));
    }

    fn logs_of(&self, name: &PodName) -> PathBuf {
        self.logs.join(format!("{}_{}_{}", name.namespace, name.name, name.uid))
    }

    /// Starts a container. That it could not be started is a run, too: one that ended with 128.
    async fn start(&self, name: &RunName, launch: Launch) -> Result<RunState, Fault> {
        let pod = self.pod(&name.pod)?;
        let dir = self.logs_of(&pod.name).join(&name.container);
        let log = RunLog::create(&dir, name.number)
            .map_err(|e| Fault::new(Code::StartFailed).fact("step", "open the log").because(e))?;
        let run = |started, process, exit| {
            let exit = watch::Sender::new(exit);
            Arc::new(Run { number: name.number, started, process, log: log.clone(), exit })
        };
        // From now on the run before is the previous one, and its log with it.
        if let Some(containers) = pod.containers.lock().as_mut() {
            begin(containers, &name.container, run(None, None, None));
        }
        let run = match process::start(pod.sandbox.clone(), launch).await {
            Ok((child, process)) => {
                let run = run(Some(Timestamp::now()), Some(process), None);
                tokio::spawn(run.clone().follow(child));
                run
            }
            Err(fault) => {
                log.close();
                run(
                    None,
                    None,
                    Some(Exit { code: 128, message: explain(&fault), finished: Timestamp::now() }),
                )
            }
        };
        match pod.containers.lock().as_mut().and_then(|containers| containers.get_mut(&name.container)) {
            Some(container) => container.now = run.clone(),
            // Removed meanwhile.
            None => drop(run.signal(Signal::KILL)),
        }
        Ok(run.state())
    }

    /// Runs a command in a container until it ends; dropping the future kills it.
    async fn exec(&self, name: &RunName, command: Vec<String>) -> Result<Output, Fault> {
        let run = self.run(name)?;
        let Some(process) = run.process.clone().filter(|_| !run.is_over()) else {
            return Err(Fault::new(Code::NotRunning).in_phase(Phase::Start).about(&name.container));
        };
        let mut joined = process::join(process, Joining { command, stdin: false, tty: false }).await?;
        let (mut out, mut err) = (joined.child.stdout.take(), joined.child.stderr.take());
        // Both are read to the end, so that the command never blocks; their beginnings are kept.
        let read = async { tokio::join!(first_of(&mut out), first_of(&mut err)) };
        let (status, (mut text, more)) = tokio::join!(joined.child.wait(), read);
        text.extend_from_slice(&more);
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(Output { code: status.map_or(255, exit_code), text })
    }
}

impl Pod {
    fn state(&self) -> HeldPod {
        let containers = self.containers.lock();
        let state = |(name, container): (&String, &Container)| HeldContainer {
            name: name.clone(),
            now: container.now.state(),
            before: container.before.as_ref().map(|run| run.state()),
        };
        HeldPod {
            name: self.name.clone(),
            ip: self.sandbox.ip,
            since: self.since,
            containers: containers.iter().flatten().map(state).collect(),
        }
    }

    /// A container's runs; what a pod that was removed had is no more.
    fn container(&self, name: &str) -> Option<Container> {
        self.containers.lock().as_ref()?.get(name).cloned()
    }
}

/// Puts a new run in its place; the log of the one before the last goes.
fn begin(containers: &mut HashMap<String, Container>, name: &str, run: Arc<Run>) {
    let older = containers.remove(name);
    let before = older.map(|container| {
        if let Some(oldest) = container.before {
            oldest.log.remove();
        }
        container.now
    });
    containers.insert(name.to_owned(), Container { now: run, before });
}

async fn first_of<R: AsyncRead + Unpin>(from: &mut Option<R>) -> Vec<u8> {
    const KEPT: usize = 10 * 1024;
    let mut kept = Vec::new();
    let Some(from) = from else { return kept };
    let mut part = [0; 4096];
    while let Ok(n) = from.read(&mut part).await {
        if n == 0 {
            break;
        }
        let room = KEPT.saturating_sub(kept.len()).min(n);
        kept.extend_from_slice(&part[..room]);
    }
    kept
}

/// Removes a directory of weft's own. One that is gone is no error.
pub(crate) fn remove_dir(path: &Path) {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "a directory is left");
        }
        _ => {}
    }
}

/// A fault with its causes, for a status or an event: the reader of these sees nothing else.
pub(crate) fn explain(fault: &Fault) -> String {
    let mut text = fault.to_string();
    let mut next = std::error::Error::source(fault);
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    format!("{text}. {}", fault.code().remedy())
}
