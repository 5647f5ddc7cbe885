//! One container of a pod: started, probed, restarted and ended, until it is done.

use super::{
    backoff::CrashBackoff,
    env::Sources,
    plan,
    pod::PodRun,
    status::{Doing, Ended, Record, Role, run_id},
    volumes::{config_map_data, source_failed},
};
use crate::runtime::{
    explain,
    launch::Launch,
    wire::{Exit, HeldContainer, RunName, RunState},
};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Container, Secret},
};
use kube::Api;
use rustix::process::Signal;
use std::{collections::BTreeSet, future::pending, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use weft_fault::{Code, Fault};

/// Between two attempts to start a container whose configuration is not complete.
const CONFIG_RETRY: Duration = Duration::from_secs(5);
/// A process that does not die of SIGKILL hangs in the kernel; the agent goes on without it.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// One container's task.
pub(crate) struct ContainerTask {
    pub(crate) pod: Arc<PodRun>,
    pub(crate) container: Container,
    pub(crate) role: Role,
    /// What an earlier agent started.
    pub(crate) held: Option<HeldContainer>,
    /// Set to the deadline when the container is to end.
    pub(crate) stop: watch::Receiver<Option<Instant>>,
}

/// A run of the container's process.
struct Run {
    name: RunName,
    started: Timestamp,
    clock: Instant,
}

impl ContainerTask {
    /// Returns when the container will not run again.
    pub(crate) async fn run(mut self) {
        let mut backoff = CrashBackoff::default();
        let mut held = self.held.take().map(|held| held.now);
        let mut number = held.as_ref().map_or(0, |run| run.number);
        loop {
            let state = match held.take() {
                Some(run) => run,
                None => match self.start_when_configured(number).await {
                    Some(run) => run,
                    None => return,
                },
            };
            let ended = match (state.exit, state.started) {
                (Some(exit), started) => Ended::new(started, exit),
                (None, started) => self.watch_over(self.run_of(number, started)).await,
            };
            let ran = ended.started.map(|started| ended.finished.duration_since(started));
            let ran = ran.and_then(|ran| Duration::try_from(ran).ok()).unwrap_or_default();
            if self.is_stopping() || !self.restarts(ended.code) {
                self.set(|r| {
                    r.doing = Doing::Ended(ended);
                    r.ready = false;
                });
                return;
            }
            let wait = backoff.after_run(ran);
            let code = ended.code;
            self.set(|r| {
                r.ready = false;
                r.started = false;
                r.last = Some(ended.clone());
                r.doing = if wait.is_zero() {
                    Doing::Ended(ended)
                } else {
                    let message =
                        format!("back-off {}s restarting failed container={}", wait.as_secs(), r.name);
                    Doing::Waiting { reason: "CrashLoopBackOff", message }
                };
            });
            if !wait.is_zero() {
                let message = format!(
                    "Back-off restarting failed container {} (exit code {code})",
                    self.container.name
                );
                self.warn("BackOff", message);
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = stop_ordered(&mut self.stop) => {
                    self.set(|r| if let Some(last) = r.last.clone() { r.doing = Doing::Ended(last) });
                    return;
                }
            }
            number += 1;
            self.set(|r| r.restarts = number);
        }
    }

    /// Starts the process. Waits while what it needs from the API is missing; `None` when it is to end meanwhile.
    async fn start_when_configured(&mut self, number: i32) -> Option<RunState> {
        loop {
            if self.is_stopping() {
                self.set(|r| {
                    if let Doing::Waiting { .. } = r.doing {
                        r.doing = Doing::Ended(never_started())
                    }
                });
                return None;
            }
            let fault = match self.plan().await {
                Ok(launch) => return Some(self.start(number, launch).await),
                Err(fault) => fault,
            };
            let reason = match fault.code() {
                Code::NoCommand => "NoCommand",
                _ => "CreateContainerConfigError",
            };
            let message = explain(&fault);
            self.warn(if reason == "NoCommand" { reason } else { "Failed" }, message.clone());
            self.set(|r| r.doing = Doing::Waiting { reason, message });
            tokio::select! {
                () = sleep(CONFIG_RETRY) => {}
                () = stop_ordered(&mut self.stop) => {}
            }
        }
    }

    async fn plan(&self) -> Result<Launch, Fault> {
        let pod = self.pod.object();
        let sources = self.sources().await?;
        let volumes = self.pod.volumes.lock().await;
        plan::launch(&self.pod.node.ground, &pod, &self.container, self.pod.place, &sources, &volumes)
    }

    /// The ConfigMaps and Secrets that the container's environment names.
    async fn sources(&self) -> Result<Sources, Fault> {
        let (mut maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
        for from in self.container.env_from.iter().flatten() {
            maps.extend(from.config_map_ref.as_ref().map(|r| r.name.clone()));
            secrets.extend(from.secret_ref.as_ref().map(|r| r.name.clone()));
        }
        for from in self.container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()) {
            maps.extend(from.config_map_key_ref.as_ref().map(|r| r.name.clone()));
            secrets.extend(from.secret_key_ref.as_ref().map(|r| r.name.clone()));
        }
        let client = &self.pod.node.client;
        let mut sources = Sources::default();
        for name in maps {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), &self.pod.namespace);
            let found = api.get_opt(&name).await.map_err(|e| source_failed("ConfigMap", &name, e))?;
            sources.config_maps.extend(found.map(|m| (name, config_map_data(&m))));
        }
        for name in secrets {
            let api: Api<Secret> = Api::namespaced(client.clone(), &self.pod.namespace);
            let found = api.get_opt(&name).await.map_err(|e| source_failed("Secret", &name, e))?;
            let data = |s: Secret| s.data.into_iter().flatten().map(|(k, ByteString(v))| (k, v)).collect();
            sources.secrets.extend(found.map(|s| (name, data(s))));
        }
        Ok(sources)
    }

    async fn start(&self, number: i32, launch: Launch) -> RunState {
        let runtime = &self.pod.node.runtime;
        let run = runtime.start(self.run_name(number), launch).await.unwrap_or_else(|message| RunState {
            number,
            started: None,
            exit: Some(Exit { code: 128, message, finished: Timestamp::now() }),
        });
        if let (None, Some(exit)) = (run.started, &run.exit) {
            self.warn("Failed", format!("Error: {}", exit.message));
        }
        run
    }

    fn run_name(&self, number: i32) -> RunName {
        self.pod.run_name(&self.container.name, number)
    }

    fn run_of(&self, number: i32, started: Option<Timestamp>) -> Run {
        let started = started.unwrap_or_else(Timestamp::now);
        let ran = Duration::try_from(Timestamp::now().duration_since(started)).unwrap_or_default();
        let now = Instant::now();
        Run { name: self.run_name(number), started, clock: now.checked_sub(ran).unwrap_or(now) }
    }

    /// How a run ended, once it has.
    async fn ended(&self, run: &Run) -> Ended {
        let exit = self.pod.node.runtime.wait(&run.name).await;
        let exit = exit.unwrap_or_else(|message| Exit { code: 255, message, finished: Timestamp::now() });
        Ended::new(Some(run.started), exit)
    }

    /// Probes a run until it ends by itself, fails its probes or is told to end.
    async fn watch_over(&mut self, run: Run) -> Ended {
        let unprobed = self.container.startup_probe.is_none();
        let ready = unprobed && self.container.readiness_probe.is_none();
        let mut hook = self.container.lifecycle.as_ref().and_then(|l| l.post_start.clone());
        let id = run_id(&self.pod.uid, &self.container.name, run.started);
        if self.pod.record(&self.container.name).is_some_and(|r| r.id.as_ref() == Some(&id)) {
            // An earlier agent has started it, and its hook.
            hook = None;
        } else {
            self.set(|r| {
                r.doing = Doing::Running { since: run.started };
                // A start hook counts as starting, a sidecar's too.
                r.started = unprobed && hook.is_none();
                r.ready = ready && hook.is_none();
                r.id = Some(id);
            });
            self.say("Started", format!("Started container {}", self.container.name));
        }

        let reason_to_kill = {
            let probes = async {
                if let Some(hook) = &hook {
                    if let Err(why) = self.hook(hook, &run.name).await {
                        self.warn("FailedPostStartHook", format!("PostStartHook failed: {why}"));
                        return "FailedPostStartHook".to_string();
                    }
                    self.set(|r| {
                        r.started = unprobed;
                        r.ready = ready;
                    });
                }
                self.probe(&run.name, run.clock).await
            };
            let mut stop = self.stop.clone();
            tokio::select! {
                biased;
                ended = self.ended(&run) => return ended,
                () = stop_ordered(&mut stop) => None,
                why = probes => Some(why),
            }
        };
        if let Some(why) = reason_to_kill {
            let text = format!("Container {} failed {why}, will be restarted", self.container.name);
            self.say("Killing", text);
            let grace = self.grace(&why);
            let (_order, mut deadline) = watch::channel(Some(Instant::now() + grace));
            return self.terminate(run, &mut deadline).await;
        }
        self.say("Killing", format!("Stopping container {}", self.container.name));
        let mut deadline = self.stop.clone();
        self.terminate(run, &mut deadline).await
    }

    /// The grace of a container that its probe condemns.
    fn grace(&self, why: &str) -> Duration {
        let probe = match why {
            "startup probe" => self.container.startup_probe.as_ref(),
            _ => self.container.liveness_probe.as_ref(),
        };
        let own = probe.and_then(|p| p.termination_grace_period_seconds);
        own.and_then(|s| u64::try_from(s).ok()).map_or_else(|| self.pod.spec_grace(), Duration::from_secs)
    }

    /// preStop, SIGTERM, and SIGKILL at the deadline, which may still be brought forward.
    async fn terminate(&self, run: Run, deadline: &mut watch::Receiver<Option<Instant>>) -> Ended {
        let hook = self.container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
        if let Some(hook) = hook {
            tokio::select! {
                ended = self.ended(&run) => return ended,
                result = self.hook(hook, &run.name) => if let Err(why) = result {
                    self.warn("FailedPreStopHook", format!("PreStopHook failed: {why}"));
                },
                () = passed(deadline) => {}
            }
        }
        let name =
            self.container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref()).unwrap_or("SIGTERM");
        let signal = match name {
            "SIGINT" => Signal::INT,
            "SIGQUIT" => Signal::QUIT,
            "SIGHUP" => Signal::HUP,
            "SIGUSR1" => Signal::USR1,
            "SIGUSR2" => Signal::USR2,
            "SIGKILL" => Signal::KILL,
            _ => Signal::TERM,
        };
        self.signal(&run, signal).await;
        tokio::select! {
            ended = self.ended(&run) => return ended,
            () = passed(deadline) => self.signal(&run, Signal::KILL).await,
        }
        // Commands set into the container are reaped by their own tasks; without that, this wait would not end.
        match timeout(KILL_PATIENCE, self.ended(&run)).await {
            Ok(ended) => ended,
            Err(_) => {
                tracing::warn!(pod = %self.pod.name, container = self.container.name, "a process does not die");
                let exit = Exit { code: 137, message: String::new(), finished: Timestamp::now() };
                Ended::new(Some(run.started), exit)
            }
        }
    }

    async fn signal(&self, run: &Run, signal: Signal) {
        if let Err(error) = self.pod.node.runtime.signal(&run.name, signal).await {
            tracing::warn!(error, pod = %self.pod.name, container = self.container.name, "no signal could be sent");
        }
    }

    fn restarts(&self, code: i32) -> bool {
        let pod = self.pod.object();
        let policy = pod.spec.as_ref().and_then(|s| s.restart_policy.clone());
        match (self.role, policy.as_deref()) {
            (Role::Sidecar, _) => true,
            (Role::Init, Some("Never")) => false,
            (Role::Init, _) => code != 0,
            (Role::Main, Some("Never")) => false,
            (Role::Main, Some("OnFailure")) => code != 0,
            (Role::Main, _) => true,
        }
    }

    fn is_stopping(&self) -> bool {
        self.stop.borrow().is_some()
    }
    pub(super) fn set(&self, change: impl FnOnce(&mut Record)) {
        self.pod.change(&self.container.name, change);
    }
    fn say(&self, reason: &'static str, message: String) {
        self.pod.node.events.say(&self.pod.object(), Some(&self.container.name), reason, message);
    }
    pub(super) fn warn(&self, reason: &'static str, message: String) {
        self.pod.node.events.warn(&self.pod.object(), Some(&self.container.name), reason, message);
    }
}

/// Waits until the container is told to end. Whoever would tell it being gone counts too.
async fn stop_ordered(stop: &mut watch::Receiver<Option<Instant>>) {
    let _ = stop.wait_for(Option::is_some).await;
}

/// Waits until the deadline, wherever it is moved meanwhile.
async fn passed(deadline: &mut watch::Receiver<Option<Instant>>) {
    loop {
        let now = *deadline.borrow_and_update();
        let until = async {
            match now {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = until => return,
            changed = deadline.changed() => if changed.is_err() {
                // Nobody can move it any more.
                if let Some(at) = now {
                    sleep_until(at).await;
                }
                return;
            }
        }
    }
}

fn never_started() -> Ended {
    Ended {
        code: 137,
        reason: "ContainerStatusUnknown",
        message: "The pod ended before the container was started".into(),
        started: None,
        finished: Timestamp::now(),
    }
}
