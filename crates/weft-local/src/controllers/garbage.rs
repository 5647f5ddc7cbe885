//! Garbage: objects whose owners are gone, owners that wait for their dependents, and old events.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::store::{Change, Happened};
use crate::api::update::Part;
use crate::api::{Api, meta};

use super::client::Client;
use super::drive::{Controller, Key, Outcome, drive};

/// How long events are kept, as on a real server.
const EVENT_LIFE: Duration = Duration::from_secs(3600);

pub(super) async fn run(api: Arc<Api>) {
    drive(&Garbage { client: Client::new(&api, "generic-garbage-collector") }).await;
}

struct Garbage {
    client: Client,
}

impl Controller for Garbage {
    const RESOURCES: &[&str] = &[];

    fn client(&self) -> &Client {
        &self.client
    }

    fn keys(&self, change: &Change) -> Vec<Key> {
        // The key is an owner's uid.
        let mut keys = Vec::new();
        let waits =
            meta::finalizers(&change.object).iter().any(|f| ["foregroundDeletion", "orphan"].contains(f));
        if change.happened == Happened::Deleted || (waits && meta::deleting(&change.object)) {
            keys.push((meta::uid(&change.object).to_owned(), String::new()));
        }
        if change.happened != Happened::Modified {
            for owner in meta::items(&change.object, "/metadata/ownerReferences") {
                keys.push((meta::text(owner, "/uid").to_owned(), String::new()));
            }
        }
        keys
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        reconcile(&self.client, &key.0).await
    }
}

/// Everything with its resource: dependents may be of any kind. The store of one machine is small enough to look
/// through; changes of status, the frequent ones, do not lead here.
fn everything(client: &Client) -> Vec<(Arc<str>, Arc<Value>)> {
    let store = &client.api.store;
    let resources = store.resources();
    let all = resources.into_iter().flat_map(|resource| {
        store.list(&resource, None).0.into_iter().map(move |object| (resource.clone(), object))
    });
    all.collect()
}

fn owned_by(object: &Value, uid: &str) -> bool {
    meta::items(object, "/metadata/ownerReferences").iter().any(|owner| meta::text(owner, "/uid") == uid)
}

async fn reconcile(client: &Client, uid: &str) -> Outcome {
    let all = everything(client);
    let dependents: Vec<_> = all.iter().filter(|(_, object)| owned_by(object, uid)).collect();
    let Some((resource, owner)) = all.iter().find(|(_, object)| meta::uid(object) == uid) else {
        for (resource, object) in dependents {
            let others = meta::items(object, "/metadata/ownerReferences")
                .iter()
                .map(|owner| meta::text(owner, "/uid"))
                .any(|other| other != uid && all.iter().any(|(_, object)| meta::uid(object) == other));
            if others {
                disown(client, resource, object, uid).await?;
            } else if !meta::deleting(object) {
                client.delete(resource, object).await?;
            }
        }
        return Ok(None);
    };
    if !meta::deleting(owner) {
        return Ok(None);
    }
    if meta::finalizers(owner).contains(&"orphan") {
        for (resource, object) in dependents {
            disown(client, resource, object, uid).await?;
        }
        release(client, resource, owner, "orphan").await?;
    } else if meta::finalizers(owner).contains(&"foregroundDeletion") {
        if dependents.is_empty() {
            release(client, resource, owner, "foregroundDeletion").await?;
        }
        for (resource, object) in dependents.into_iter().filter(|(_, object)| !meta::deleting(object)) {
            client.delete(resource, object).await?;
        }
    }
    Ok(None)
}

/// Removes one owner from an object.
async fn disown(
    client: &Client,
    resource: &str,
    object: &Value,
    uid: &str,
) -> Result<(), crate::api::error::ApiError> {
    let without = |object: &mut Value| {
        let list = object.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut);
        if let Some(list) = list {
            list.retain(|owner| meta::text(owner, "/uid") != uid);
        }
    };
    gone_is_fine(client.update(resource, object, Part::Main, without).await)
}

/// Removes one finalizer from an object.
async fn release(
    client: &Client,
    resource: &str,
    object: &Value,
    finalizer: &str,
) -> Result<(), crate::api::error::ApiError> {
    let without = |object: &mut Value| {
        let left: Vec<String> = meta::finalizers(object)
            .into_iter()
            .filter(|held| *held != finalizer)
            .map(str::to_owned)
            .collect();
        object["metadata"]["finalizers"] = json!(left);
    };
    gone_is_fine(client.update(resource, object, Part::Main, without).await)
}

fn gone_is_fine(
    result: Result<Arc<Value>, crate::api::error::ApiError>,
) -> Result<(), crate::api::error::ApiError> {
    match result {
        Err(error) if error.code == 404 => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

/// Removes events when they are old.
pub(super) async fn expire_events(api: Arc<Api>) {
    let client = Client::new(&api, "event-expiry");
    let mut tick = tokio::time::interval(Duration::from_secs(60));
    loop {
        tick.tick().await;
        let oldest = jiff::Timestamp::now() - EVENT_LIFE;
        for event in api.store.list("events", None).0 {
            let last = ["/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"]
                .into_iter()
                .find_map(|field| meta::parse_time(meta::text(&event, field)));
            if last.is_some_and(|last| last < oldest)
                && let Err(error) = client.delete("events", &event).await
            {
                tracing::debug!(%error, "old event not removed");
            }
        }
    }
}
