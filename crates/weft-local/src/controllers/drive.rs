//! The loop that all controllers share: changes become keys, keys are reconciled, failures are tried again later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::api::error::ApiError;
use crate::api::meta;
use crate::api::store::Change;

use super::client::Client;

/// Namespace and name, or whatever else a controller names its work by.
pub(super) type Key = (String, String);

/// The first delay after a failure, and the longest.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// What a reconciliation answers: done, or look again after a while.
pub(super) type Outcome = Result<Option<Duration>, ApiError>;

/// One controller.
pub(super) trait Controller: Sync {
    /// The resources whose changes concern it; none named means all.
    const RESOURCES: &[&str];

    fn client(&self) -> &Client;

    /// What a change concerns.
    fn keys(&self, change: &Change) -> Vec<Key>;

    /// Brings one key in order.
    fn reconcile(&self, key: &Key) -> impl Future<Output = Outcome> + Send;
}

/// Runs a controller.
pub(super) async fn drive<C: Controller>(controller: &C) {
    let client = controller.client();
    let mut changed = client.api.store.subscribe();
    let mut position = None;
    let mut due: BTreeSet<Key> = BTreeSet::new();
    let mut later: BTreeMap<Key, Instant> = BTreeMap::new();
    let mut failures: BTreeMap<Key, u32> = BTreeMap::new();
    loop {
        changed.mark_unchanged();
        position = Some(collect(controller, position, &mut due));
        let now = Instant::now();
        let ripe: Vec<Key> = later.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in ripe {
            later.remove(&key);
            due.insert(key);
        }
        let Some(key) = due.pop_first() else {
            let next = later.values().min().copied();
            tokio::select! {
                woken = changed.changed() => if woken.is_err() { return },
                () = sleep_until(next) => {}
            }
            continue;
        };
        match controller.reconcile(&key).await {
            Ok(again) => {
                failures.remove(&key);
                match again {
                    Some(after) => later.insert(key, Instant::now() + after),
                    None => later.remove(&key),
                };
            }
            Err(error) => {
                let count = failures.entry(key.clone()).or_insert(0);
                *count = (*count + 1).min(16);
                let delay = (FIRST_RETRY * (1 << (*count - 1))).min(LONGEST_RETRY);
                tracing::debug!(controller = client.name(), ?key, %error, ?delay, "reconciliation failed");
                later.insert(key, Instant::now() + delay);
            }
        }
        // A controller with much to do must not keep others from running.
        tokio::task::yield_now().await;
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Adds the keys of everything that changed since `position`; without one, or if too much changed, of everything.
fn collect<C: Controller>(controller: &C, position: Option<u64>, due: &mut BTreeSet<Key>) -> u64 {
    let store = &controller.client().api.store;
    let concerns = |resource: &str| C::RESOURCES.is_empty() || C::RESOURCES.contains(&resource);
    if let Some(position) = position
        && let Ok((changes, revision)) = store.all_since(position)
    {
        for change in changes.iter().filter(|change| concerns(&change.resource)) {
            due.extend(controller.keys(change));
        }
        return revision;
    }
    let revision = store.revision();
    for resource in store.resources().into_iter().filter(|resource| concerns(resource)) {
        for object in store.list(&resource, None).0 {
            due.extend(controller.keys(&Change {
                revision,
                resource: resource.clone(),
                happened: crate::api::store::Happened::Added,
                object,
                previous: None,
            }));
        }
    }
    revision
}

/// The key of the changed object itself.
pub(super) fn own_key(change: &Change) -> Key {
    (meta::namespace(&change.object).to_owned(), meta::name(&change.object).to_owned())
}

/// The key of the object of a kind that controls the changed one, before or after the change.
pub(super) fn controller_keys(change: &Change, kind: &str) -> Vec<Key> {
    let states = [Some(&change.object), change.previous.as_ref()];
    let mut keys: Vec<Key> = states
        .into_iter()
        .flatten()
        .filter_map(|object| {
            let owner = meta::controller_of(object)?;
            (owner["kind"] == kind)
                .then(|| (meta::namespace(object).to_owned(), meta::text(owner, "/name").to_owned()))
        })
        .collect();
    keys.dedup();
    keys
}
