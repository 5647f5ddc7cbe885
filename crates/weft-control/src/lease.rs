//! One writer among several replicas: a `coordination.k8s.io/v1` Lease, as Kubernetes' own controllers use it.
//!
//! No clocks are compared. A holder counts from before its last successful renewal was sent; a contender counts from
//! when it saw the record change last, and takes over after the whole duration that the record names. A holder gives up
//! well before that, so that a write which is under way when it does has ended before anybody else may begin.

use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use weft_kube::{
    api::{self, ApiError},
    core::lease::{Lease, LeaseSpec},
    kind::Kind,
    meta::ObjectName,
};

/// What a replica contends for, and under which name.
#[derive(Clone, Debug)]
pub struct Claim {
    pub lease: ObjectName,
    /// Of this process alone: a restarted controller must not take itself for its predecessor.
    pub holder: String,
    pub timings: Timings,
}

#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// For how long others keep off after a renewal. Whole seconds.
    pub lasts: Duration,
    /// A holder that could not renew for this long stops writing. Less than `lasts` by more than any write takes.
    pub gives_up: Duration,
    pub retry: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Timings {
            lasts: Duration::from_secs(30),
            gives_up: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// Whether this replica may write. Ask before every write.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

impl Leadership {
    pub fn holds(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until this replica may write. For ever, if it will not.
    pub async fn held(&mut self) {
        while !self.holds() {
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// A name for this process: the machine's (on Kubernetes: the pod's), and something that a restart changes.
pub fn holder_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let started = Timestamp::now().as_nanosecond();
    format!("{}_{:x}-{started:x}", host.trim(), std::process::id())
}

/// Contends for the lease until `stopping`, and gives it back then.
pub fn contend(
    client: Client,
    claim: Claim,
    stopping: CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Leadership {
    let (until, receiver) = watch::channel(None);
    tasks.spawn(async move {
        let mut contest = Contest { client, claim, until, seen: None };
        let ended = stopping.run_until_cancelled(contest.run()).await;
        if ended.is_none() {
            contest.release().await;
        }
    });
    Leadership(receiver)
}

struct Contest {
    client: Client,
    claim: Claim,
    until: watch::Sender<Option<Instant>>,
    /// The version of the record seen last, and since when it has been that.
    seen: Option<(String, Instant)>,
}

impl Contest {
    async fn run(&mut self) {
        loop {
            if let Err(error) = self.step().await {
                // Whoever holds it goes on for a while; who cannot renew stops by itself.
                tracing::debug!(lease = %self.claim.lease, %error, "the lease could not be read or written");
            }
            sleep(self.claim.timings.retry).await;
        }
    }

    async fn step(&mut self) -> Result<(), ApiError> {
        let sent = Instant::now();
        let record = match api::get::<Lease>(&self.client, &self.path()).await {
            Ok(record) => Some(record),
            Err(error) if error.code() == Some(404) => None,
            Err(error) => return Err(error),
        };
        let unchanged = self.unchanged(record.as_ref());
        let Some(spec) = next(&self.claim, record.as_ref().map(|r| &r.spec), unchanged, Timestamp::now())
        else {
            self.lost();
            return Ok(());
        };
        let written = match &record {
            None => self.create(&spec).await,
            Some(record) => self.replace(&record.metadata.resource_version, &spec).await,
        };
        match written {
            Ok(_) => {
                self.seen = None;
                if self.until.borrow().is_none() {
                    let holder = &self.claim.holder;
                    tracing::info!(lease = %self.claim.lease, holder, "this replica writes from now on");
                }
                self.until.send_replace(Some(sent + self.claim.timings.gives_up));
                Ok(())
            }
            // Somebody else was faster.
            Err(error) if error.code() == Some(409) => {
                self.lost();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// For how long the record has been as it is now, as far as was seen.
    fn unchanged(&mut self, record: Option<&Lease>) -> Duration {
        let version = record.map(|r| r.metadata.resource_version.clone()).unwrap_or_default();
        match &self.seen {
            Some((seen, since)) if *seen == version => since.elapsed(),
            _ => {
                self.seen = Some((version, Instant::now()));
                Duration::ZERO
            }
        }
    }

    fn lost(&self) {
        if self.until.send_replace(None).is_some() {
            tracing::info!(lease = %self.claim.lease, "another replica writes from now on");
        }
    }

    /// Lets a successor begin at once. The caller has stopped writing.
    async fn release(&mut self) {
        if self.until.send_replace(None).is_none() {
            return;
        }
        let released = async {
            let record = api::get::<Lease>(&self.client, &self.path()).await?;
            if record.spec.holder_identity != self.claim.holder {
                return Ok(());
            }
            let empty = json!({"holderIdentity": "", "leaseDurationSeconds": 1});
            self.replace(&record.metadata.resource_version, &empty).await.map(drop)
        };
        let released: Result<(), ApiError> = released.await;
        if let Err(error) = released {
            tracing::debug!(lease = %self.claim.lease, %error, "the lease could not be given back");
        }
    }

    fn path(&self) -> String {
        format!("{}/{}", Lease::path(Some(&self.claim.lease.namespace)), self.claim.lease.name)
    }

    async fn create(&self, spec: &Value) -> Result<Value, ApiError> {
        let ObjectName { namespace, name } = &self.claim.lease;
        let object = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec});
        api::create(&self.client, &Lease::path(Some(namespace)), &object).await
    }

    /// Only from the version that the decision was made from.
    async fn replace(&self, version: &str, spec: &Value) -> Result<Value, ApiError> {
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": spec});
        api::merge(&self.client, &self.path(), &patch).await
    }
}

/// What to write into a record that has been as it is for `unchanged`; `None` to keep off.
fn next(claim: &Claim, record: Option<&LeaseSpec>, unchanged: Duration, now: Timestamp) -> Option<Value> {
    let now = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let seconds = claim.timings.lasts.as_secs().max(1);
    let Some(record) = record else {
        return Some(json!({"holderIdentity": claim.holder, "leaseDurationSeconds": seconds,
            "acquireTime": now, "renewTime": now, "leaseTransitions": 0}));
    };
    if record.holder_identity == claim.holder {
        return Some(
            json!({"holderIdentity": claim.holder, "leaseDurationSeconds": seconds, "renewTime": now}),
        );
    }
    let lasts = record.lease_duration_seconds.map_or(claim.timings.lasts, |s| Duration::from_secs(s.into()));
    if !record.holder_identity.is_empty() && unchanged < lasts {
        return None;
    }
    Some(json!({"holderIdentity": claim.holder, "leaseDurationSeconds": seconds,
        "acquireTime": now, "renewTime": now, "leaseTransitions": record.lease_transitions.saturating_add(1)}))
}

#[cfg(test)]
mod tests;
