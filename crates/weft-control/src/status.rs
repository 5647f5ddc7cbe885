//! Statuses: what is in force, and why not where it is not.
//!
//! Only for people to read. Objects are served as soon as the index has them; nothing waits for a status. What is said here
//! is computed by the functions that decide what is served.

mod condition;
mod overlap;
mod policies;
mod routes;
#[cfg(test)]
mod tests;

use crate::{
    authority::every,
    config::ControllerConfig,
    events::{Event, Events},
    index::{reader::Reader, store::Store},
    lease::Leadership,
};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use std::{collections::HashSet, sync::Arc, time::Duration};
use tokio::sync::watch;
use weft_kube::api;

/// Linkerd's name, so that its replicas and ours do not write against each other during a migration.
pub const LEASE: &str = "policy-controller-write";
/// As entries of routes name us.
const CONTROLLER: &str = "linkerd.io/policy-controller";
/// As events do.
const COMPONENT: &str = "policy-controller";
/// So many warnings without a status are remembered as told; then all are told again.
const TOLD: usize = 10_000;
/// After a write that failed, until everything is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// A status that should be written.
#[derive(Clone, Debug, PartialEq)]
struct Write {
    /// The object's own path.
    path: String,
    /// The version it was made from: somebody else's write in between must not be undone.
    version: String,
    /// The object, as events refer to it.
    about: Value,
    /// Null where the status is somebody else's, and there are only warnings.
    status: Value,
    /// What people should hear of beside the status: a word and a sentence.
    warnings: Vec<(String, String)>,
}

/// Some of the statuses that should be written. Kinds are looked at one after the other, so that none keeps the index waiting
/// for long.
type Part = fn(&Reader<'_>, &ControllerConfig, Timestamp) -> Vec<Write>;

const PARTS: [Part; 9] = [
    routes::pending,
    policies::servers,
    policies::server_authorizations,
    policies::authorization_policies,
    policies::authentications,
    policies::rate_limits,
    policies::egress_networks,
    policies::service_profiles,
    policies::services,
];

/// Keeps the statuses in step, while this replica may. Runs until dropped.
pub async fn write(
    client: Client,
    events: Events,
    store: Arc<Store>,
    mut synced: watch::Receiver<bool>,
    mut leadership: Leadership,
) {
    // Before that, parents and backends would be called missing that are not.
    if synced.wait_for(|synced| *synced).await.is_err() {
        return;
    }
    let mut timer = every(Duration::from_secs(1));
    // Of the index that everything was written for.
    let mut done = None;
    let mut told = HashSet::new();
    loop {
        timer.tick().await;
        if !leadership.holds() {
            // Whoever writes meanwhile may leave things undone.
            done = None;
            leadership.held().await;
        }
        let revision = store.revision();
        if done == Some(revision) {
            continue;
        }
        done = all(&client, &events, &store, &leadership, &mut told).await.then_some(revision);
        if done.is_none() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether everything that should be written was.
async fn all(
    client: &Client,
    events: &Events,
    store: &Store,
    leadership: &Leadership,
    told: &mut HashSet<(String, String)>,
) -> bool {
    if told.len() > TOLD {
        told.clear();
    }
    let mut complete = true;
    for part in PARTS {
        for write in store.look(|reader, config| part(reader, config, Timestamp::now())) {
            // Writing takes a while, and another replica may have taken over.
            if !leadership.holds() {
                return false;
            }
            if write.status.is_null() {
                let mut warnings = write.warnings.clone();
                warnings.retain(|(_, message)| told.insert((write.path.clone(), message.clone())));
                warn(events, &Write { warnings, ..write });
            } else {
                match put(client, events, &write).await {
                    Put::Done => {}
                    Put::Refused => complete = false,
                    Put::Failed => return false,
                }
            }
        }
    }
    complete
}

/// What became of a write.
enum Put {
    Done,
    /// The API does not take this one; the next may well be taken.
    Refused,
    /// The next one would meet the same.
    Failed,
}

async fn put(client: &Client, events: &Events, write: &Write) -> Put {
    let patch = json!({"metadata": {"resourceVersion": write.version}, "status": write.status});
    match api::merge(client, &format!("{}/status", write.path), &patch).await {
        Ok(_) => warn(events, write),
        // Gone or changed in the meantime: its event brings us back here.
        Err(error) if matches!(error.code(), Some(404 | 409)) => {}
        Err(error) => {
            tracing::warn!(path = write.path, %error, "a status could not be written");
            return match error.code() {
                Some(400 | 403 | 422) => Put::Refused,
                _ => Put::Failed,
            };
        }
    }
    Put::Done
}

fn warn(events: &Events, write: &Write) {
    for (reason, message) in &write.warnings {
        events.tell(Event {
            about: write.about.clone(),
            warning: true,
            reason: reason.clone(),
            message: message.clone(),
            detail: String::new(),
            component: COMPONENT,
        });
    }
}
