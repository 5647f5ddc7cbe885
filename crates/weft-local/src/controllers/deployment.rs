//! Deployments: a ReplicaSet per template, and the way from the old ones to the new one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::error::ApiError;
use crate::api::store::Change;
use crate::api::update::Part;
use crate::api::{Api, meta};

use super::client::{Client, controlled_by};
use super::drive::{Controller, Key, Outcome, controller_keys, drive, own_key};
use super::pods;

const RESOURCE: &str = "deployments.apps";
const SETS: &str = "replicasets.apps";
const REVISION: &str = "deployment.kubernetes.io/revision";
const HASH: &str = "pod-template-hash";

pub(super) async fn run(api: Arc<Api>) {
    drive(&Deployments { client: Client::new(&api, "deployment-controller") }).await;
}

struct Deployments {
    client: Client,
}

impl Controller for Deployments {
    const RESOURCES: &[&str] = &[RESOURCE, SETS, "pods"];

    fn client(&self) -> &Client {
        &self.client
    }

    fn keys(&self, change: &Change) -> Vec<Key> {
        match &*change.resource {
            RESOURCE => vec![own_key(change)],
            SETS => controller_keys(change, "Deployment"),
            // A pod that goes may be the last old one that `Recreate` waits for.
            _ => {
                let sets = controller_keys(change, "ReplicaSet");
                let owner = |(namespace, name): Key| {
                    let set = self.client.api.store.get(SETS, &namespace, &name)?;
                    let owner = meta::controller_of(&set)?;
                    Some((namespace, meta::text(owner, "/name").to_owned()))
                };
                sets.into_iter().filter_map(owner).collect()
            }
        }
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        reconcile(&self.client, key).await
    }
}

async fn reconcile(client: &Client, (namespace, name): &Key) -> Outcome {
    let Some(deployment) = client.get(RESOURCE, namespace, name) else { return Ok(None) };
    if meta::deleting(&deployment) {
        return Ok(None);
    }
    let mut sets = client.controlled(SETS, &deployment);
    sets.sort_by_key(|set| revision(set));
    let mut current = sets.iter().find(|set| same_template(set, &deployment)).cloned();
    let paused = deployment["spec"]["paused"] == json!(true);
    if !paused {
        current = Some(match current {
            Some(set) => keep_current(client, &deployment, set, &sets).await?,
            None => create_set(client, &deployment, &sets).await?,
        });
    }
    let old: Vec<Arc<Value>> = sets
        .iter()
        .filter(|set| current.as_ref().is_none_or(|current| meta::uid(current) != meta::uid(set)))
        .cloned()
        .collect();
    if paused {
        scale_paused(client, &deployment, current.as_ref().or(sets.last())).await?;
    } else if let Some(current) = &current {
        if deployment["spec"]["strategy"]["type"] == "Recreate" {
            recreate(client, &deployment, current, &old).await?;
        } else {
            roll(client, &deployment, current, &old).await?;
        }
        remove_history(client, &deployment, &old).await?;
    }
    write_status(client, namespace, name, current.as_deref()).await
}

fn wanted(deployment: &Value) -> i64 {
    meta::int(deployment, "/spec/replicas").unwrap_or(1)
}

fn replicas(set: &Value) -> i64 {
    meta::int(set, "/spec/replicas").unwrap_or(0)
}

fn available(set: &Value) -> i64 {
    // A status that is behind the specification may count pods that are about to go: never more than asked for.
    meta::int(set, "/status/availableReplicas").unwrap_or(0).min(replicas(set))
}

fn revision(set: &Value) -> i64 {
    set["metadata"]["annotations"][REVISION].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Whether a ReplicaSet was made for the Deployment's present template.
fn same_template(set: &Value, deployment: &Value) -> bool {
    let mut template = set["spec"]["template"].clone();
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH);
    }
    normal(&template) == normal(&deployment["spec"]["template"])
}

/// A template without what is empty either way.
fn normal(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()));
    }
    template
}

/// `maxSurge` and `maxUnavailable` in pods: the first is rounded up, the second down, and not both are 0.
fn bounds(deployment: &Value) -> (i64, i64) {
    let number = |field: &str, up: bool| {
        let value = &deployment["spec"]["strategy"]["rollingUpdate"][field];
        let percent =
            value.as_str().and_then(|text| text.strip_suffix('%')).and_then(|text| text.parse::<i64>().ok());
        match percent {
            Some(percent) if up => (wanted(deployment) * percent + 99) / 100,
            Some(percent) => wanted(deployment) * percent / 100,
            None => value.as_i64().unwrap_or(0),
        }
    };
    if deployment["spec"]["strategy"]["type"] == "Recreate" {
        return (0, 0);
    }
    match (number("maxSurge", true), number("maxUnavailable", false)) {
        (0, 0) => (0, 1),
        bounds => bounds,
    }
}

fn set_annotations(deployment: &Value, revision: i64) -> Value {
    let (surge, _) = bounds(deployment);
    let mut annotations = json!({});
    for (key, value) in deployment["metadata"]["annotations"].as_object().into_iter().flatten() {
        if key != "kubectl.kubernetes.io/last-applied-configuration"
            && !key.starts_with("deployment.kubernetes.io/")
        {
            annotations[key] = value.clone();
        }
    }
    annotations["deployment.kubernetes.io/desired-replicas"] = json!(wanted(deployment).to_string());
    annotations["deployment.kubernetes.io/max-replicas"] = json!((wanted(deployment) + surge).to_string());
    annotations[REVISION] = json!(revision.to_string());
    annotations
}

async fn create_set(
    client: &Client,
    deployment: &Arc<Value>,
    sets: &[Arc<Value>],
) -> Result<Arc<Value>, ApiError> {
    let next = sets.iter().map(|set| revision(set)).max().unwrap_or(0) + 1;
    let collisions = meta::int(deployment, "/status/collisionCount").unwrap_or(0);
    let seed = json!([normal(&deployment["spec"]["template"]), collisions]);
    let hash = meta::stable_suffix(&seed);
    let mut template = deployment["spec"]["template"].clone();
    template["metadata"]["labels"] = with_hash(&deployment["spec"]["template"]["metadata"]["labels"], &hash);
    let mut selector = deployment["spec"]["selector"].clone();
    selector["matchLabels"] = with_hash(&selector["matchLabels"], &hash);
    let others: i64 = sets.iter().map(|set| replicas(set)).sum();
    let (surge, _) = bounds(deployment);
    let recreate = deployment["spec"]["strategy"]["type"] == "Recreate";
    let start = match (recreate, others) {
        (_, 0) => wanted(deployment),
        (true, _) => 0,
        (false, others) => (wanted(deployment) + surge - others).clamp(0, wanted(deployment)),
    };
    let mut spec = json!({ "replicas": start, "selector": selector, "template": template });
    if let Some(seconds) = deployment["spec"].get("minReadySeconds") {
        spec["minReadySeconds"] = seconds.clone();
    }
    let set = json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": format!("{}-{hash}", meta::name(deployment)),
            "labels": template["metadata"]["labels"],
            "annotations": set_annotations(deployment, next),
            "ownerReferences": controlled_by(deployment),
        },
        "spec": spec,
    });
    let created = match client.create(SETS, meta::namespace(deployment), set).await {
        Err(error) if error.reason == "AlreadyExists" => {
            // The name belongs to somebody else: another hash next time.
            let mut status = deployment["status"].clone();
            status["collisionCount"] = json!(collisions + 1);
            client.set_status(RESOURCE, deployment, status).await?;
            return Err(error);
        }
        other => other?,
    };
    if start > 0 {
        let message = format!("Scaled up replica set {} from 0 to {start}", meta::name(&created));
        client.event(deployment, false, "ScalingReplicaSet", &message).await;
    }
    note_revision(client, deployment, next).await?;
    Ok(created)
}

fn with_hash(labels: &Value, hash: &str) -> Value {
    let mut labels = if labels.is_object() { labels.clone() } else { json!({}) };
    labels[HASH] = json!(hash);
    labels
}

async fn note_revision(client: &Client, deployment: &Value, number: i64) -> Result<(), ApiError> {
    if revision(deployment) == number {
        return Ok(());
    }
    let note = |deployment: &mut Value| {
        let annotations = meta::metadata_mut(deployment).entry("annotations").or_insert(Value::Null);
        meta::object_mut_self(annotations).insert(REVISION.to_owned(), json!(number.to_string()));
    };
    // Along with the status: as a change of the specification it would count as a new generation.
    client.update(RESOURCE, deployment, Part::Status, note).await?;
    Ok(())
}

/// The current ReplicaSet gets the highest revision (after an undo it is an old one) and up-to-date annotations.
async fn keep_current(
    client: &Client,
    deployment: &Value,
    set: Arc<Value>,
    sets: &[Arc<Value>],
) -> Result<Arc<Value>, ApiError> {
    let highest = sets
        .iter()
        .filter(|other| meta::uid(other) != meta::uid(&set))
        .map(|set| revision(set))
        .max()
        .unwrap_or(0);
    let own = if revision(&set) > highest { revision(&set) } else { highest + 1 };
    note_revision(client, deployment, own).await?;
    let annotations = set_annotations(deployment, own);
    let min_ready = deployment["spec"].get("minReadySeconds");
    if set["metadata"]["annotations"] == annotations && set["spec"].get("minReadySeconds") == min_ready {
        return Ok(set);
    }
    let change = |set: &mut Value| {
        set["metadata"]["annotations"] = annotations.clone();
        match min_ready {
            Some(seconds) => set["spec"]["minReadySeconds"] = seconds.clone(),
            None => {
                meta::object_mut(set, "spec").remove("minReadySeconds");
            }
        }
    };
    client.update(SETS, &set, Part::Main, change).await
}

async fn scale(client: &Client, deployment: &Value, set: &Value, to: i64) -> Result<(), ApiError> {
    let from = replicas(set);
    if from == to {
        return Ok(());
    }
    client.update(SETS, set, Part::Main, |set| set["spec"]["replicas"] = json!(to)).await?;
    let direction = if to > from { "up" } else { "down" };
    let message = format!("Scaled {direction} replica set {} from {from} to {to}", meta::name(set));
    client.event(deployment, false, "ScalingReplicaSet", &message).await;
    Ok(())
}

/// A paused Deployment is still scaled, but not rolled.
async fn scale_paused(client: &Client, deployment: &Value, set: Option<&Arc<Value>>) -> Result<(), ApiError> {
    match set {
        Some(set) => scale(client, deployment, set, wanted(deployment)).await,
        None => Ok(()),
    }
}

/// First all old pods go, then the new ones come.
async fn recreate(
    client: &Client,
    deployment: &Value,
    current: &Value,
    old: &[Arc<Value>],
) -> Result<(), ApiError> {
    let mut left = false;
    for set in old {
        scale(client, deployment, set, 0).await?;
        left |= client.controlled("pods", set).iter().any(|pod| !pods::is_finished(pod));
    }
    if left { Ok(()) } else { scale(client, deployment, current, wanted(deployment)).await }
}

/// New pods come and old ones go, never more than `maxSurge` above and `maxUnavailable` below what is wanted.
async fn roll(
    client: &Client,
    deployment: &Value,
    current: &Value,
    old: &[Arc<Value>],
) -> Result<(), ApiError> {
    let wanted = wanted(deployment);
    let (surge, unavailable) = bounds(deployment);
    let total: i64 = replicas(current) + old.iter().map(|set| replicas(set)).sum::<i64>();
    if replicas(current) > wanted {
        return scale(client, deployment, current, wanted).await;
    }
    if replicas(current) < wanted && total < wanted + surge {
        let more = (wanted + surge - total).min(wanted - replicas(current));
        return scale(client, deployment, current, replicas(current) + more).await;
    }
    let least = wanted - unavailable;
    // Old pods that do not serve anyway go first; they take nothing away. New ones that do not serve yet still count
    // as owed.
    let owed = replicas(current) - available(current);
    let room = total - least - owed;
    for set in old {
        let broken = (replicas(set) - available(set)).min(room);
        if broken > 0 {
            return scale(client, deployment, set, replicas(set) - broken).await;
        }
    }
    let serving = available(current) + old.iter().map(|set| available(set)).sum::<i64>();
    let mut spare = (serving - least).min(room);
    for set in old {
        let fewer = replicas(set).min(spare);
        if fewer > 0 {
            spare -= fewer;
            scale(client, deployment, set, replicas(set) - fewer).await?;
        }
    }
    Ok(())
}

/// Old ReplicaSets are kept for undoing, up to a number.
async fn remove_history(client: &Client, deployment: &Value, old: &[Arc<Value>]) -> Result<(), ApiError> {
    let limit =
        usize::try_from(meta::int(deployment, "/spec/revisionHistoryLimit").unwrap_or(10)).unwrap_or(0);
    let idle: Vec<_> = old
        .iter()
        .filter(|set| {
            replicas(set) == 0 && meta::int(set, "/status/replicas").unwrap_or(0) == 0 && !meta::deleting(set)
        })
        .collect();
    for set in idle.iter().take(idle.len().saturating_sub(limit)) {
        client.delete(SETS, set).await?;
    }
    Ok(())
}

async fn write_status(client: &Client, namespace: &str, name: &str, current: Option<&Value>) -> Outcome {
    let Some(deployment) = client.get(RESOURCE, namespace, name) else { return Ok(None) };
    let sets = client.controlled(SETS, &deployment);
    let sum = |field: &str| -> i64 {
        sets.iter().filter_map(|set| meta::int(set, &format!("/status/{field}"))).sum()
    };
    let current = current.and_then(|set| client.get(SETS, namespace, meta::name(set)));
    let of_current = |field: &str| {
        current.as_ref().and_then(|set| meta::int(set, &format!("/status/{field}"))).unwrap_or(0)
    };
    let wanted = wanted(&deployment);
    let (total, updated) = (sum("replicas"), of_current("replicas"));
    let (ready, available) = (sum("readyReplicas"), sum("availableReplicas"));
    let mut status = json!({ "observedGeneration": deployment["metadata"]["generation"] });
    let counts = [
        ("replicas", total),
        ("updatedReplicas", updated),
        ("readyReplicas", ready),
        ("availableReplicas", available),
        ("unavailableReplicas", (wanted.max(total) - available).max(0)),
    ];
    for (field, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        status[field] = json!(count);
    }
    status["terminatingReplicas"] = json!(sum("terminatingReplicas"));
    if let Some(count) = deployment["status"].get("collisionCount") {
        status["collisionCount"] = count.clone();
    }
    let mut conditions = meta::items(&deployment, "/status/conditions").to_vec();
    let (_, unavailable) = bounds(&deployment);
    if available >= wanted - unavailable {
        let message = "Deployment has minimum availability.";
        pods::set_condition(&mut conditions, "Available", true, "MinimumReplicasAvailable", message);
    } else {
        let message = "Deployment does not have minimum availability.";
        pods::set_condition(&mut conditions, "Available", false, "MinimumReplicasUnavailable", message);
    }
    let complete = updated == wanted && total == wanted && available == wanted;
    let set_name = current.as_ref().map_or("", |set| meta::name(set));
    let again = progress(&deployment, &status, &mut conditions, complete, set_name);
    status["conditions"] = json!(conditions);
    client.set_status(RESOURCE, &deployment, status).await?;
    Ok(again)
}

/// The `Progressing` condition, and when its deadline is to be looked at.
fn progress(
    deployment: &Value,
    status: &Value,
    conditions: &mut Vec<Value>,
    complete: bool,
    set: &str,
) -> Option<Duration> {
    if complete {
        let message = format!("ReplicaSet \"{set}\" has successfully progressed.");
        pods::set_condition(conditions, "Progressing", true, "NewReplicaSetAvailable", &message);
        return None;
    }
    let counts = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "observedGeneration"];
    let moved = counts.iter().any(|field| deployment["status"].get(field) != status.get(field));
    let deadline = meta::int(deployment, "/spec/progressDeadlineSeconds").unwrap_or(600);
    let old = conditions.iter().find(|condition| condition["type"] == "Progressing");
    let since = old.and_then(|condition| meta::parse_time(meta::text(condition, "/lastUpdateTime")));
    let waited = since.map_or(0, |since| jiff::Timestamp::now().as_second() - since.as_second());
    if old.is_some() && !moved && waited >= deadline {
        let message = format!("ReplicaSet \"{set}\" has timed out progressing.");
        pods::set_condition(conditions, "Progressing", false, "ProgressDeadlineExceeded", &message);
        return None;
    }
    if old.is_none() || moved {
        let message = format!("ReplicaSet \"{set}\" is progressing.");
        pods::set_condition(conditions, "Progressing", true, "ReplicaSetUpdated", &message);
        // Progress is what the deadline counts from, even when it looks the same.
        if let Some(condition) = conditions.iter_mut().find(|condition| condition["type"] == "Progressing") {
            condition["lastUpdateTime"] = json!(meta::now());
        }
        return u64::try_from(deadline).ok().map(Duration::from_secs);
    }
    u64::try_from(deadline - waited).ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(replicas: i64, surge: Value, unavailable: Value) -> Value {
        json!({ "spec": { "replicas": replicas, "strategy": { "type": "RollingUpdate",
            "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } } } })
    }

    #[test]
    fn surge_rounds_up_and_unavailable_down() {
        assert_eq!(bounds(&deployment(3, json!("25%"), json!("25%"))), (1, 0));
        assert_eq!(bounds(&deployment(10, json!("25%"), json!("25%"))), (3, 2));
        assert_eq!(bounds(&deployment(1, json!(0), json!("25%"))), (0, 1));
        assert_eq!(bounds(&deployment(4, json!(2), json!(0))), (2, 0));
    }
}
