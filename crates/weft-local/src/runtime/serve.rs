//! The runtime's end of the agent's socket.

use super::{
    Runtime, explain,
    wire::{self, Answer, Ask, FromRuntime, ToRuntime},
};
use rustix::process::Signal;
use std::{collections::HashMap, sync::Arc};
use tokio::{
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::{AbortHandle, JoinSet},
};
use weft_fault::{Code, Fault};

impl Ask {
    /// What only waits may be given up. What changes something is carried through, so that it is either done or not.
    fn only_waits(&self) -> bool {
        matches!(self, Ask::List | Ask::Wait { .. } | Ask::Exec { .. })
    }
}

impl Runtime {
    /// Answers an agent until it is gone.
    pub(crate) async fn serve(self: Arc<Self>, agent: UnixStream) {
        let _alone = self.serving.lock().await;
        let (from, to) = agent.into_split();
        let (answers, ready) = mpsc::channel(64);
        let writer = tokio::spawn(write_all(ready, to));
        let mut changes = JoinSet::new();
        let mut waits = JoinSet::new();
        if let Err(error) = self.clone().read_all(from, answers, &mut changes, &mut waits).await {
            tracing::warn!(%error, "the node agent is not understood");
        }
        // Kills commands, too.
        waits.shutdown().await;
        while changes.join_next().await.is_some() {}
        writer.abort();
    }

    async fn read_all(
        self: Arc<Self>,
        mut from: OwnedReadHalf,
        answers: mpsc::Sender<FromRuntime>,
        changes: &mut JoinSet<()>,
        waits: &mut JoinSet<()>,
    ) -> std::io::Result<()> {
        let mut forgettable: HashMap<u64, AbortHandle> = HashMap::new();
        while let Some(frame) = wire::read::<ToRuntime>(&mut from).await? {
            while changes.try_join_next().is_some() || waits.try_join_next().is_some() {}
            forgettable.retain(|_, wait| !wait.is_finished());
            let (call, ask) = match frame {
                ToRuntime::Ask { call, ask } => (call, ask),
                ToRuntime::Forget { call } => {
                    if let Some(wait) = forgettable.remove(&call) {
                        wait.abort();
                    }
                    continue;
                }
            };
            let (runtime, answers) = (self.clone(), answers.clone());
            let only_waits = ask.only_waits();
            let work = async move {
                let answer = runtime.answer(ask).await.map_err(|fault| explain(&fault));
                // Nobody listens any more: then it is not missed.
                let _gone = answers.send(FromRuntime { call, answer }).await;
            };
            if only_waits {
                forgettable.insert(call, waits.spawn(work));
            } else {
                changes.spawn(work);
            }
        }
        Ok(())
    }

    async fn answer(&self, ask: Ask) -> Result<Answer, Fault> {
        Ok(match ask {
            Ask::List => Answer::Pods(self.list()),
            Ask::Create { name, hostname } => Answer::Address(self.create(name, hostname).await?),
            Ask::Remove { pod } => {
                self.remove(&pod);
                Answer::Done
            }
            Ask::Start { run, launch } => Answer::Run(self.start(&run, *launch).await?),
            Ask::Signal { run, signal } => {
                let signal = Signal::from_named_raw(signal)
                    .ok_or_else(|| Fault::new(Code::Invariant).fact("signal", signal))?;
                self.run(&run)?.signal(signal).map_err(|e| Fault::new(Code::HostUnable).because(e))?;
                Answer::Done
            }
            Ask::Wait { run } => {
                let mut exit = self.run(&run)?.exit.subscribe();
                let ended = exit.wait_for(Option::is_some).await;
                let ended = ended.ok().and_then(|exit| exit.clone());
                Answer::Exit(ended.ok_or_else(|| Fault::new(Code::NotRunning).about(&run.container))?)
            }
            Ask::Exec { run, command } => Answer::Output(self.exec(&run, command).await?),
        })
    }
}

async fn write_all(mut answers: mpsc::Receiver<FromRuntime>, mut to: OwnedWriteHalf) {
    while let Some(answer) = answers.recv().await {
        if let Err(error) = wire::write(&mut to, &answer).await {
            tracing::debug!(%error, "an answer did not reach the node agent");
            return;
        }
    }
}
