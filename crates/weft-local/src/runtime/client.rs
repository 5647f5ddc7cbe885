//! The agent's end of the runtime's socket.

use super::{
    launch::Launch,
    wire::{self, Answer, Ask, Exit, FromRuntime, HeldPod, Output, PodName, RunName, RunState, ToRuntime},
};
use parking_lot::Mutex;
use rustix::process::Signal;
use std::{collections::HashMap, net::Ipv4Addr, sync::Arc};
use tokio::{
    net::{UnixStream, unix::OwnedReadHalf},
    sync::{mpsc, oneshot},
};

/// Asks the runtime. What is refused comes as a text that says what to do, for a status or an event.
///
/// Without deadlines of its own: the runtime is the process whose end is this one's, and it keeps those of what it does.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeClient {
    to: mpsc::Sender<ToRuntime>,
    calls: Arc<Mutex<Calls>>,
}

#[derive(Debug, Default)]
struct Calls {
    last: u64,
    /// Nothing will be answered any more.
    closed: bool,
    waiting: HashMap<u64, oneshot::Sender<Result<Answer, String>>>,
}

/// A call under way. Dropped before it was answered, it is taken back.
struct Call<'a> {
    of: &'a RuntimeClient,
    number: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.of.calls.lock().waiting.remove(&self.number).is_none() {
            return;
        }
        let forget = ToRuntime::Forget { call: self.number };
        if let Err(mpsc::error::TrySendError::Full(forget)) = self.of.to.try_send(forget) {
            let to = self.of.to.clone();
            tokio::spawn(async move { to.send(forget).await });
        }
    }
}

impl RuntimeClient {
    pub(crate) fn new(runtime: UnixStream) -> Self {
        let (from, mut write) = runtime.into_split();
        let (to, mut asked) = mpsc::channel(64);
        tokio::spawn(async move {
            while let Some(frame) = asked.recv().await {
                if let Err(error) = wire::write(&mut write, &frame).await {
                    tracing::warn!(%error, "the runtime is not reached");
                }
            }
        });
        let calls = Arc::<Mutex<Calls>>::default();
        tokio::spawn(take_answers(from, calls.clone()));
        RuntimeClient { to, calls }
    }

    async fn ask(&self, ask: Ask) -> Result<Answer, String> {
        let gone = || "the mesh's runtime is gone".to_owned();
        let (answer, answered) = oneshot::channel();
        let number = {
            let mut calls = self.calls.lock();
            if calls.closed {
                return Err(gone());
            }
            calls.last += 1;
            let number = calls.last;
            calls.waiting.insert(number, answer);
            number
        };
        let call = Call { of: self, number };
        self.to.send(ToRuntime::Ask { call: number, ask }).await.map_err(|_| gone())?;
        let answered = answered.await;
        drop(call);
        answered.unwrap_or_else(|_| Err(gone()))
    }

    pub(crate) async fn list(&self) -> Result<Vec<HeldPod>, String> {
        match self.ask(Ask::List).await? {
            Answer::Pods(pods) => Ok(pods),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes a pod's namespaces; its address.
    pub(crate) async fn create(&self, name: PodName, hostname: String) -> Result<Ipv4Addr, String> {
        match self.ask(Ask::Create { name, hostname }).await? {
            Answer::Address(ip) => Ok(ip),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends what runs in a pod, and forgets it with its logs.
    pub(crate) async fn remove(&self, uid: &str) -> Result<(), String> {
        self.ask(Ask::Remove { pod: uid.to_owned() }).await.map(drop)
    }

    pub(crate) async fn start(&self, run: RunName, launch: Launch) -> Result<RunState, String> {
        match self.ask(Ask::Start { run, launch: Box::new(launch) }).await? {
            Answer::Run(state) => Ok(state),
            other => Err(unexpected(&other)),
        }
    }

    /// A process that is gone is no error.
    pub(crate) async fn signal(&self, run: &RunName, signal: Signal) -> Result<(), String> {
        self.ask(Ask::Signal { run: run.clone(), signal: signal.as_raw() }).await.map(drop)
    }

    /// Waits until a run has ended.
    pub(crate) async fn wait(&self, run: &RunName) -> Result<Exit, String> {
        match self.ask(Ask::Wait { run: run.clone() }).await? {
            Answer::Exit(exit) => Ok(exit),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs a command in a container; dropping the future kills it.
    pub(crate) async fn exec(&self, run: &RunName, command: Vec<String>) -> Result<Output, String> {
        match self.ask(Ask::Exec { run: run.clone(), command }).await? {
            Answer::Output(output) => Ok(output),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(answer: &Answer) -> String {
    format!("the mesh's runtime answered something else: {answer:?}")
}

async fn take_answers(mut from: OwnedReadHalf, calls: Arc<Mutex<Calls>>) {
    loop {
        match wire::read::<FromRuntime>(&mut from).await {
            Ok(Some(FromRuntime { call, answer })) => {
                let waiting = calls.lock().waiting.remove(&call);
                // Forgotten meanwhile, if not.
                if let Some(waiting) = waiting {
                    let _gone = waiting.send(answer);
                }
            }
            ended => {
                if let Err(error) = ended {
                    tracing::error!(%error, "the runtime is not understood");
                }
                let mut calls = calls.lock();
                calls.closed = true;
                calls.waiting.clear();
                return;
            }
        }
    }
}
