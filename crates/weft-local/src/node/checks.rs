//! What a container is asked while it runs: probes, hooks, and the commands of both.

use super::{
    container::ContainerTask,
    probe::{self, Outcome, Thresholds, Timing},
};
use crate::runtime::wire::RunName;
use k8s_openapi::api::core::v1::{ExecAction, HTTPGetAction, LifecycleHandler, Probe};
use std::{future::pending, net::SocketAddr, time::Duration};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout};

impl ContainerTask {
    /// Runs the probes. Returns the name of the one for which the container must be killed.
    pub(super) async fn probe(&self, run: &RunName, clock: Instant) -> String {
        let has_started = self.pod.record(&self.container.name).is_some_and(|r| r.started);
        if let Some(startup) = self.container.startup_probe.as_ref().filter(|_| !has_started) {
            let mut thresholds = Thresholds::of(startup);
            let passed = self
                .each_result(startup, ("Startup", true), (run, clock), |outcome| {
                    match thresholds.observe(outcome) {
                        Some(Outcome::Success) => Some(true),
                        Some(Outcome::Failure) => Some(false),
                        None => None,
                    }
                })
                .await;
            if !passed {
                return "startup probe".into();
            }
        }
        self.set(|r| {
            r.started = true;
            // One that was taken over may be known to be.
            r.ready |= self.container.readiness_probe.is_none();
        });
        let liveness = async {
            let Some(liveness) = &self.container.liveness_probe else { return pending().await };
            let mut thresholds = Thresholds::of(liveness);
            self.each_result(liveness, ("Liveness", false), (run, clock), |outcome| {
                (thresholds.observe(outcome) == Some(Outcome::Failure)).then_some(())
            })
            .await;
            "liveness probe".to_string()
        };
        let readiness = async {
            let Some(readiness) = &self.container.readiness_probe else { return pending().await };
            let mut thresholds = Thresholds::of(readiness);
            let never: Option<String> = None;
            self.each_result(readiness, ("Readiness", true), (run, clock), |outcome| {
                if let Some(outcome) = thresholds.observe(outcome) {
                    self.set(|r| r.ready = outcome == Outcome::Success);
                }
                never.clone()
            })
            .await
        };
        tokio::select! {
            why = liveness => why,
            why = readiness => why,
        }
    }

    /// Probes for ever, or until `observe` returns something. With `eager` the first success is looked for often.
    async fn each_result<T>(
        &self,
        probe: &Probe,
        (kind, eager): (&str, bool),
        (run, clock): (&RunName, Instant),
        mut observe: impl FnMut(Outcome) -> Option<T>,
    ) -> T {
        let timing = Timing::of(probe);
        sleep_until(clock + timing.delay).await;
        let mut first = Instant::now();
        if eager && self.succeeds_soon(probe, timing, run).await {
            if let Some(decided) = observe(Outcome::Success) {
                return decided;
            }
            first = Instant::now() + timing.period;
        }
        let mut ticks = interval_at(first, timing.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let result = match timeout(timing.timeout, self.probe_once(probe, run)).await {
                Ok(result) => result,
                Err(_) => Err(format!("no answer within {}s", timing.timeout.as_secs())),
            };
            let outcome = match &result {
                Ok(()) => Outcome::Success,
                Err(why) => {
                    self.warn("Unhealthy", format!("{kind} probe failed: {why}"));
                    Outcome::Failure
                }
            };
            if let Some(decided) = observe(outcome) {
                return decided;
            }
        }
    }

    /// Looks for the first success at short intervals during one period. What starts is mostly ready in a fraction of it, and
    /// whoever waits for it should not wait for the rest. Failures in this time do not count.
    async fn succeeds_soon(&self, probe: &Probe, timing: Timing, run: &RunName) -> bool {
        const LONGEST: Duration = Duration::from_millis(500);
        let until = Instant::now() + timing.period;
        // A command costs a process.
        let mut pause = Duration::from_millis(if probe.exec.is_some() { 100 } else { 20 });
        loop {
            if let Ok(Ok(())) = timeout(timing.timeout, self.probe_once(probe, run)).await {
                return true;
            }
            sleep_until((Instant::now() + pause).min(until)).await;
            if Instant::now() >= until {
                return false;
            }
            pause = (pause * 3 / 2).min(LONGEST);
        }
    }

    async fn probe_once(&self, probe: &Probe, run: &RunName) -> Result<(), String> {
        if let Some(get) = &probe.http_get {
            return self.http_get(get).await;
        }
        if let Some(socket) = &probe.tcp_socket {
            let port = probe::port_of(&self.container, &socket.port)?;
            return probe::tcp(SocketAddr::from((self.pod.place.pod_ip, port))).await;
        }
        if let Some(grpc) = &probe.grpc {
            // The health service is not asked; that something accepts is what can be said.
            let port = u16::try_from(grpc.port).map_err(|_| "the port is out of range".to_string())?;
            return probe::tcp(SocketAddr::from((self.pod.place.pod_ip, port))).await;
        }
        match &probe.exec {
            Some(exec) => self.exec(exec, run).await,
            None => Ok(()),
        }
    }

    pub(super) async fn hook(&self, hook: &LifecycleHandler, run: &RunName) -> Result<(), String> {
        if let Some(exec) = &hook.exec {
            return self.exec(exec, run).await;
        }
        if let Some(get) = &hook.http_get {
            return self.http_get(get).await;
        }
        if let Some(pause) = &hook.sleep {
            sleep(Duration::from_secs(u64::try_from(pause.seconds).unwrap_or(0))).await;
        }
        Ok(())
    }

    async fn http_get(&self, get: &HTTPGetAction) -> Result<(), String> {
        probe::http_get(&self.container, self.pod.place.pod_ip, get).await
    }

    /// Runs a command in the container; dropping the future kills it.
    async fn exec(&self, exec: &ExecAction, run: &RunName) -> Result<(), String> {
        let command = exec.command.clone().unwrap_or_default();
        let output = self.pod.node.runtime.exec(run, command).await?;
        if output.code == 0 {
            return Ok(());
        }
        let text: String = output.text.trim().chars().take(300).collect();
        Err(format!("command exited with {}: {text}", output.code))
    }
}
