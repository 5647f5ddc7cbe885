//! One container of a pod: started, probed, restarted and ended, until it is done.

use super::{
    backoff::CrashBackoff,
    env::Sources,
    logs::RunLog,
    plan,
    pod::PodRun,
    process::{self, Process, exit_code},
    status::{Doing, Ended, Record, Role},
    volumes::{config_map_data, source_failed},
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
    process::Child,
    sync::watch,
    task::JoinHandle,
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
    /// Set to the deadline when the container is to end.
    pub(crate) stop: watch::Receiver<Option<Instant>>,
}

/// A run of the container's process.
struct Run {
    child: Child,
    process: Arc<Process>,
    log: Arc<RunLog>,
    pumps: Vec<JoinHandle<()>>,
    started: Timestamp,
    clock: Instant,
}

impl ContainerTask {
    /// Returns when the container will not run again.
    pub(crate) async fn run(mut self) {
        let mut backoff = CrashBackoff::default();
        let mut number = 0;
        loop {
            let Some(started) = self.start_when_configured(number).await else { return };
            let (ended, ran) = match started {
                Ok(run) => {
                    let clock = run.clock;
                    (self.watch_over(run).await, clock.elapsed())
                }
                Err(fault) => (start_error(&fault), Duration::ZERO),
            };
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
    async fn start_when_configured(&mut self, number: i32) -> Option<Result<Run, Fault>> {
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

    async fn plan(&self) -> Result<super::launch::Launch, Fault> {
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

    async fn start(&self, number: i32, launch: super::launch::Launch) -> Result<Run, Fault> {
        let log = RunLog::create(&self.pod.log_dir(&self.container.name), number)
            .map_err(|e| Fault::new(Code::StartFailed).fact("step", "open the log").because(e))?;
        self.pod.begin_log(&self.container.name, log.clone());
        let started = process::start(self.pod.sandbox.clone(), launch).await;
        let (mut child, process) = match started {
            Ok(started) => started,
            Err(fault) => {
                self.warn("Failed", format!("Error: {}", explain(&fault)));
                log.close();
                return Err(fault);
            }
        };
        let mut pumps = Vec::new();
        if let Some(out) = child.stdout.take() {
            pumps.push(tokio::spawn(log.clone().pump(out, "stdout")));
        }
        if let Some(err) = child.stderr.take() {
            pumps.push(tokio::spawn(log.clone().pump(err, "stderr")));
        }
        self.pod.begin_process(&self.container.name, process.clone());
        Ok(Run { child, process, log, pumps, started: Timestamp::now(), clock: Instant::now() })
    }

    /// Probes a run until it ends by itself, fails its probes or is told to end.
    async fn watch_over(&mut self, mut run: Run) -> Ended {
        let unprobed = self.container.startup_probe.is_none();
        let ready = unprobed && self.container.readiness_probe.is_none();
        let hook = self.container.lifecycle.as_ref().and_then(|l| l.post_start.clone());
        let id = format!("weft://{}/{}/{}", self.pod.uid, self.container.name, run.started.as_millisecond());
        self.set(|r| {
            r.doing = Doing::Running { since: run.started };
            // A start hook counts as starting, a sidecar's too.
            r.started = unprobed && hook.is_none();
            r.ready = ready && hook.is_none();
            r.id = Some(id);
        });
        self.say("Started", format!("Started container {}", self.container.name));

        let (process, clock) = (run.process.clone(), run.clock);
        let reason_to_kill = {
            let probes = async {
                if let Some(hook) = &hook {
                    if let Err(why) = self.hook(hook, &process).await {
                        self.warn("FailedPostStartHook", format!("PostStartHook failed: {why}"));
                        return "FailedPostStartHook".to_string();
                    }
                    self.set(|r| {
                        r.started = unprobed;
                        r.ready = ready;
                    });
                }
                self.probe(&process, clock).await
            };
            let mut stop = self.stop.clone();
            tokio::select! {
                biased;
                status = run.child.wait() => {
                    return self.finish(run, status.map_or(255, exit_code)).await;
                }
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
    async fn terminate(&self, mut run: Run, deadline: &mut watch::Receiver<Option<Instant>>) -> Ended {
        let hook = self.container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
        if let Some(hook) = hook {
            let process = run.process.clone();
            tokio::select! {
                status = run.child.wait() => return self.finish(run, status.map_or(255, exit_code)).await,
                result = self.hook(hook, &process) => if let Err(why) = result {
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
        self.signal(&run, signal);
        tokio::select! {
            status = run.child.wait() => return self.finish(run, status.map_or(255, exit_code)).await,
            () = passed(deadline) => self.signal(&run, Signal::KILL),
        }
        // Commands set into the container are reaped by their own tasks; without that, this wait would not end.
        match timeout(KILL_PATIENCE, run.child.wait()).await {
            Ok(status) => self.finish(run, status.map_or(255, exit_code)).await,
            Err(_) => {
                tracing::warn!(pod = %self.pod.name, container = self.container.name, "a process does not die");
                self.finish(run, 137).await
            }
        }
    }

    fn signal(&self, run: &Run, signal: Signal) {
        if let Err(error) = run.process.pidfd.signal(signal) {
            tracing::warn!(%error, pod = %self.pod.name, container = self.container.name, "no signal could be sent");
        }
    }

    /// The run is over: its output is drained and its log closed.
    async fn finish(&self, run: Run, code: i32) -> Ended {
        self.pod.end_process(&self.container.name);
        for pump in run.pumps {
            let stop = pump.abort_handle();
            // The last process closed the pipes; only one that hangs in the kernel could still hold them.
            if timeout(Duration::from_secs(2), pump).await.is_err() {
                stop.abort();
            }
        }
        run.log.close();
        Ended {
            code,
            reason: if code == 0 { "Completed" } else { "Error" },
            message: String::new(),
            started: Some(run.started),
            finished: Timestamp::now(),
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

fn start_error(fault: &Fault) -> Ended {
    Ended {
        code: 128,
        reason: "StartError",
        message: explain(fault),
        started: None,
        finished: Timestamp::now(),
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
