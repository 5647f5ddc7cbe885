//! Jobs: pods that run to completion. Whether a pod has, is its phase; native sidecars do not hold it back.
//!
//! Finished pods are counted where they lie; counts never shrink, so a finished pod may be deleted.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::store::Change;
use crate::api::{Api, meta};

use super::client::Client;
use super::drive::{Controller, Key, Outcome, controller_keys, drive, own_key};
use super::pods;

const RESOURCE: &str = "jobs.batch";

/// The pause before a failed pod is replaced: doubled with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

pub(super) async fn run(api: Arc<Api>) {
    drive(&Jobs { client: Client::new(&api, "job-controller") }).await;
}

struct Jobs {
    client: Client,
}

impl Controller for Jobs {
    const RESOURCES: &[&str] = &[RESOURCE, "pods"];

    fn client(&self) -> &Client {
        &self.client
    }

    fn keys(&self, change: &Change) -> Vec<Key> {
        match &*change.resource {
            RESOURCE => vec![own_key(change)],
            _ => controller_keys(change, "Job"),
        }
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        reconcile(&self.client, key).await
    }
}

/// How a Job stands.
struct Counts {
    active: Vec<Arc<Value>>,
    ready: i64,
    terminating: i64,
    succeeded: i64,
    failed: i64,
    /// Restarts of containers in place, which `restartPolicy: OnFailure` leads to.
    restarts: i64,
    last_failure: Option<Timestamp>,
}

fn count(job: &Value, owned: &[Arc<Value>]) -> Counts {
    let phase = |wanted: &str| {
        let found = owned.iter().filter(|pod| meta::text(pod, "/status/phase") == wanted).count();
        i64::try_from(found).unwrap_or(i64::MAX)
    };
    let before = |field: &str| meta::int(job, &format!("/status/{field}")).unwrap_or(0);
    let active: Vec<Arc<Value>> = owned.iter().filter(|pod| pods::is_active(pod)).cloned().collect();
    let statuses = |pod: &Value| -> Vec<Value> {
        let lists = ["/status/initContainerStatuses", "/status/containerStatuses"];
        lists.iter().flat_map(|list| meta::items(pod, list)).cloned().collect()
    };
    let ended = |pod: &Arc<Value>| {
        statuses(pod)
            .iter()
            .filter_map(|status| meta::parse_time(meta::text(status, "/state/terminated/finishedAt")))
            .max()
            .or_else(|| meta::parse_time(meta::text(pod, "/metadata/creationTimestamp")))
    };
    let failed_pods = owned.iter().filter(|pod| meta::text(pod, "/status/phase") == "Failed");
    Counts {
        ready: i64::try_from(active.iter().filter(|pod| pods::is_ready(pod)).count()).unwrap_or(i64::MAX),
        terminating: i64::try_from(
            owned.iter().filter(|pod| meta::deleting(pod) && !pods::is_finished(pod)).count(),
        )
        .unwrap_or(i64::MAX),
        succeeded: phase("Succeeded").max(before("succeeded")),
        failed: phase("Failed").max(before("failed")),
        restarts: active
            .iter()
            .flat_map(|pod| statuses(pod))
            .filter_map(|s| s["restartCount"].as_i64())
            .sum(),
        last_failure: failed_pods.filter_map(ended).max(),
        active,
    }
}

/// What ends a Job, or lets it go on.
enum Verdict {
    GoOn,
    Complete,
    Failed(&'static str, &'static str),
}

fn judge(job: &Value, counts: &Counts, now: Timestamp) -> Verdict {
    let limit = meta::int(job, "/spec/backoffLimit").unwrap_or(6);
    let done = match meta::int(job, "/spec/completions") {
        Some(wanted) => counts.succeeded >= wanted,
        None => counts.succeeded > 0 && counts.active.is_empty(),
    };
    if done {
        return Verdict::Complete;
    }
    let in_place = job["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure";
    let restarted_out = in_place && if limit == 0 { counts.restarts > 0 } else { counts.restarts >= limit };
    if counts.failed > limit || restarted_out {
        return Verdict::Failed("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    }
    let started = meta::parse_time(meta::text(job, "/status/startTime"));
    let deadline = meta::int(job, "/spec/activeDeadlineSeconds");
    if let (Some(started), Some(deadline)) = (started, deadline)
        && now.as_second() - started.as_second() >= deadline
    {
        return Verdict::Failed("DeadlineExceeded", "Job was active longer than specified deadline");
    }
    Verdict::GoOn
}

async fn reconcile(client: &Client, (namespace, name): &Key) -> Outcome {
    let Some(job) = client.get(RESOURCE, namespace, name) else { return Ok(None) };
    if meta::deleting(&job) {
        return Ok(None);
    }
    let now = Timestamp::now();
    if let Some(ended) = ended_at(&job) {
        return expire(client, &job, ended, now).await;
    }
    let owned = client.controlled("pods", &job);
    let mut counts = count(&job, &owned);
    let suspended = job["spec"]["suspend"] == json!(true);
    let verdict = if suspended { Verdict::GoOn } else { judge(&job, &counts, now) };
    let mut again = None;
    if suspended || !matches!(verdict, Verdict::GoOn) {
        // What still runs is of no use any more.
        for pod in counts.active.drain(..) {
            client.delete("pods", &pod).await?;
        }
        counts.ready = 0;
    } else {
        again = run_pods(client, &job, &mut counts, now).await?;
        if let Some(left) = deadline_left(&job, now) {
            again = Some(again.map_or(left, |soonest| soonest.min(left)));
        }
    }
    write_status(client, &job, &counts, &verdict, suspended).await?;
    Ok(again)
}

/// Makes and removes pods until as many run as should. Answers when to look again, if a replacement has to wait.
async fn run_pods(
    client: &Client,
    job: &Value,
    counts: &mut Counts,
    now: Timestamp,
) -> Result<Option<Duration>, crate::api::error::ApiError> {
    let parallelism = meta::int(job, "/spec/parallelism").unwrap_or(1);
    let active = i64::try_from(counts.active.len()).unwrap_or(i64::MAX);
    let wanted = match meta::int(job, "/spec/completions") {
        Some(completions) => parallelism.min(completions - counts.succeeded),
        // A work queue: once one has succeeded, no more are started.
        None if counts.succeeded > 0 => active,
        None => parallelism,
    };
    if active > wanted {
        let excess = usize::try_from(active - wanted).unwrap_or(0);
        let at = counts.active.len().saturating_sub(excess);
        for pod in counts.active.split_off(at) {
            client.delete("pods", &pod).await?;
        }
        return Ok(None);
    }
    if active == wanted {
        return Ok(None);
    }
    if let Some(last) = counts.last_failure {
        let doublings = u32::try_from(counts.failed.clamp(1, 10) - 1).unwrap_or(0);
        let pause = (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE);
        let since = u64::try_from((now - last).get_seconds()).unwrap_or(0);
        if Duration::from_secs(since) < pause {
            return Ok(Some(pause - Duration::from_secs(since)));
        }
    }
    for _ in active..wanted {
        match client.create("pods", meta::namespace(job), pods::from_template(job)).await {
            Ok(pod) => {
                let message = format!("Created pod: {}", meta::name(&pod));
                client.event(job, false, "SuccessfulCreate", &message).await;
                counts.active.push(pod);
            }
            Err(error) => {
                client.event(job, true, "FailedCreate", &format!("Error creating: {error}")).await;
                return Err(error);
            }
        }
    }
    Ok(None)
}

fn deadline_left(job: &Value, now: Timestamp) -> Option<Duration> {
    let deadline = meta::int(job, "/spec/activeDeadlineSeconds")?;
    let started = meta::parse_time(meta::text(job, "/status/startTime")).unwrap_or(now);
    let left = deadline - (now.as_second() - started.as_second());
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0).max(1)))
}

fn ended_at(job: &Value) -> Option<Timestamp> {
    let ended = ["Complete", "Failed"].iter().find_map(|kind| pods::condition(job, kind))?;
    meta::parse_time(meta::text(ended, "/lastTransitionTime"))
}

/// Removes a Job some time after its end, if it asks for that.
async fn expire(client: &Client, job: &Value, ended: Timestamp, now: Timestamp) -> Outcome {
    let Some(life) = meta::int(job, "/spec/ttlSecondsAfterFinished") else { return Ok(None) };
    let left = life - (now.as_second() - ended.as_second());
    match u64::try_from(left) {
        Ok(left) if left > 0 => Ok(Some(Duration::from_secs(left))),
        _ => {
            client.delete(RESOURCE, job).await?;
            Ok(None)
        }
    }
}

async fn write_status(
    client: &Client,
    job: &Value,
    counts: &Counts,
    verdict: &Verdict,
    suspended: bool,
) -> Result<(), crate::api::error::ApiError> {
    let mut status = json!({});
    let numbers = [
        ("active", i64::try_from(counts.active.len()).unwrap_or(i64::MAX)),
        ("succeeded", counts.succeeded),
        ("failed", counts.failed),
    ];
    for (field, number) in numbers.into_iter().filter(|(_, number)| *number > 0) {
        status[field] = json!(number);
    }
    status["ready"] = json!(counts.ready);
    status["terminating"] = json!(counts.terminating);
    status["uncountedTerminatedPods"] = json!({});
    let started = job["status"].get("startTime").cloned();
    if !suspended {
        status["startTime"] = started.unwrap_or_else(|| json!(meta::now()));
    }
    let mut conditions = meta::items(job, "/status/conditions").to_vec();
    let mut set = |kind: &str, holds: bool, reason: &str, message: &str| {
        let before = conditions.iter().find(|condition| condition["type"] == kind).cloned();
        if before.is_none() && !holds {
            return;
        }
        pods::set_condition(&mut conditions, kind, holds, reason, message);
        // This kind's conditions have a probe time instead of an update time.
        for condition in &mut conditions {
            let fields = meta::object_mut_self(condition);
            if let Some(updated) = fields.remove("lastUpdateTime") {
                fields.insert("lastProbeTime".into(), updated);
            }
        }
    };
    match verdict {
        Verdict::GoOn if suspended => set("Suspended", true, "JobSuspended", "Job suspended"),
        Verdict::GoOn => set("Suspended", false, "JobResumed", "Job resumed"),
        Verdict::Complete => {
            let message = "Reached expected number of succeeded pods";
            set("SuccessCriteriaMet", true, "CompletionsReached", message);
            set("Complete", true, "CompletionsReached", message);
            status["completionTime"] = json!(meta::now());
        }
        Verdict::Failed(reason, message) => {
            set("FailureTarget", true, reason, message);
            set("Failed", true, reason, message);
        }
    }
    if !conditions.is_empty() {
        status["conditions"] = json!(conditions);
    }
    client.set_status(RESOURCE, job, status).await?;
    match verdict {
        Verdict::GoOn => {}
        Verdict::Complete => client.event(job, false, "Completed", "Job completed").await,
        Verdict::Failed(reason, message) => client.event(job, true, reason, message).await,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(phase: &str) -> Arc<Value> {
        Arc::new(json!({ "status": { "phase": phase } }))
    }

    fn verdict(spec: Value, phases: &[&str]) -> &'static str {
        let job = json!({ "spec": spec, "status": { "startTime": "2026-01-01T00:00:00Z" } });
        let owned: Vec<_> = phases.iter().map(|phase| pod(phase)).collect();
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        match judge(&job, &count(&job, &owned), now) {
            Verdict::GoOn => "go on",
            Verdict::Complete => "complete",
            Verdict::Failed(reason, _) => reason,
        }
    }

    #[test]
    fn how_jobs_end() {
        assert_eq!(verdict(json!({ "completions": 2 }), &["Succeeded", "Running"]), "go on");
        assert_eq!(verdict(json!({ "completions": 2 }), &["Succeeded", "Succeeded", "Failed"]), "complete");
        assert_eq!(verdict(json!({}), &["Succeeded", "Running"]), "go on");
        assert_eq!(verdict(json!({}), &["Succeeded"]), "complete");
        assert_eq!(verdict(json!({ "completions": 1, "backoffLimit": 1 }), &["Failed"]), "go on");
        let limit = json!({ "completions": 1, "backoffLimit": 1 });
        assert_eq!(verdict(limit, &["Failed", "Failed"]), "BackoffLimitExceeded");
        let deadline = json!({ "completions": 1, "activeDeadlineSeconds": 60 });
        assert_eq!(verdict(deadline, &["Running"]), "DeadlineExceeded");
    }
}
