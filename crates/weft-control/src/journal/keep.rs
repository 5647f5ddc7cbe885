//! The journal's lasting part, in a ConfigMap that outlives the controller.
//!
//! Every replica reads it once, and the one that holds the lease writes it, at most every few seconds: always the union of
//! what is there and what it saw itself, and only if nobody wrote in between.

use super::merge;
use crate::{authority::every, index::store::Store, lease::Leadership};
use kube::Client;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use weft_kube::{
    api::{self, ApiError},
    backoff::Backoff,
    core::node::ConfigMap,
    kind::Kind,
};
use weft_wire::record::JournalEntry;

pub const CONFIG_MAP: &str = "weft-journal";
pub const LEASE: &str = "weft-journal-write";
const KEY: &str = "entries.json";
/// An object may have about 1 MiB; the oldest entries go beyond this.
const BYTES: usize = 256 << 10;
const PERIOD: Duration = Duration::from_secs(3);

/// Reads what was written before, then writes what is new until `stopping`, and once more then.
pub async fn keep(client: Client, store: Arc<Store>, leadership: Leadership, stopping: CancellationToken) {
    let place = Place { client, namespace: store.config.control_namespace.clone() };
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
    let mut written = 0;
    loop {
        match place.read().await {
            Ok((_, before)) => break store.journal.remember(before),
            Err(error) => tracing::debug!(%error, "the journal could not be read"),
        }
        if stopping.run_until_cancelled(sleep(backoff.next_delay())).await.is_none() {
            return;
        }
    }
    backoff.reset();
    let mut timer = every(PERIOD);
    let mut held = false;
    loop {
        let last = stopping.run_until_cancelled(timer.tick()).await.is_none();
        // The lease is given back at the same time; nothing is lost if a successor writes now, too.
        held = leadership.holds() || (last && held);
        let (own, count) = store.journal.lasting();
        if held && count != written {
            match place.write(own).await {
                Ok(()) => written = count,
                // Somebody wrote in between: again, from what is there then.
                Err(error) if error.code() == Some(409) => {}
                Err(error) => {
                    tracing::warn!(%error, "the journal could not be written");
                    if !last {
                        sleep(backoff.next_delay()).await;
                    }
                }
            }
        }
        if last {
            return;
        }
    }
}

struct Place {
    client: Client,
    namespace: String,
}

impl Place {
    fn path(&self) -> String {
        format!("{}/{CONFIG_MAP}", ConfigMap::path(Some(&self.namespace)))
    }

    /// The version, if it is there, and its entries. What cannot be read as entries is none, and is overwritten.
    async fn read(&self) -> Result<(Option<String>, Vec<JournalEntry>), ApiError> {
        match api::get::<ConfigMap>(&self.client, &self.path()).await {
            Ok(map) => {
                let text = map.data.get(KEY).map(String::as_str).unwrap_or_default();
                Ok((Some(map.metadata.resource_version), serde_json::from_str(text).unwrap_or_default()))
            }
            Err(error) if error.code() == Some(404) => Ok((None, Vec::new())),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, own: Vec<JournalEntry>) -> Result<(), ApiError> {
        let (version, before) = self.read().await?;
        let data = json!({KEY: text(&merge(before, own))});
        let Some(version) = version else {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
                "metadata": {"name": CONFIG_MAP, "namespace": self.namespace,
                    "labels": {"linkerd.io/control-plane-ns": self.namespace}}});
            return api::create(&self.client, &ConfigMap::path(Some(&self.namespace)), &object)
                .await
                .map(drop);
        };
        let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
        api::merge(&self.client, &self.path(), &patch).await.map(drop)
    }
}

/// As many of the newest entries as have room, oldest first.
fn text(entries: &[JournalEntry]) -> String {
    let mut lines = Vec::new();
    let mut bytes = 2;
    for entry in entries.iter().rev() {
        let Ok(line) = serde_json::to_string(entry) else { continue };
        bytes += line.len() + 2;
        if bytes > BYTES {
            break;
        }
        lines.push(line);
    }
    lines.reverse();
    format!("[{}]", lines.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::{super::change, *};

    #[test]
    fn the_newest_entries_have_room() {
        let entries: Vec<JournalEntry> =
            (0..2000).map(|n| change(format!("Server shop/s{n}"), "x".repeat(300))).collect();
        let text = text(&entries);
        assert!(text.len() <= BYTES);
        let read: Vec<JournalEntry> = serde_json::from_str(&text).unwrap();
        assert!(read.len() > 400);
        assert_eq!(read.last(), entries.last());
    }
}
