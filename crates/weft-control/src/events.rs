//! Kubernetes events: where people look with `kubectl describe`.
//!
//! Whoever tells one never waits: the queue is bounded, and what does not fit is left out. The same thing said again
//! about the same object within a while is counted up in the event that is there, as client-go's recorders do.

use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use std::{collections::HashMap, future::Future, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use weft_kube::api;

/// Events on their way.
const QUEUE: usize = 1_024;
/// So many different ones are remembered as written.
const REMEMBERED: usize = 1_024;
/// Said again within this, it is the same event.
const WHILE: Duration = Duration::from_secs(600);
/// What comes within this goes in one write.
const GATHER: Duration = Duration::from_secs(1);
/// No message is longer: an API server refuses more.
const MESSAGE_LIMIT: usize = 1_000;

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// As events refer to objects: apiVersion, kind, namespace, name, uid.
    pub about: Value,
    pub warning: bool,
    /// One word, by which events are searched for.
    pub reason: String,
    pub message: String,
    /// Ends the message and may differ each time that the same thing happens; the last one is kept.
    pub detail: String,
    /// Which part of the control plane says so, by Linkerd's name.
    pub component: &'static str,
}

/// The way to the writer.
#[derive(Clone, Debug)]
pub struct Events(mpsc::Sender<Event>);

impl Events {
    /// A writer that ends with the last sender.
    pub fn start(client: Client) -> (Self, impl Future<Output = ()>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Events(sender), write(client, receiver))
    }

    pub fn tell(&self, event: Event) {
        if let Err(error) = self.0.try_send(event) {
            tracing::debug!(%error, "an event is left out");
        }
    }
}

/// What makes two events the same.
type Key = (String, String, String);

fn key(event: &Event) -> Key {
    (event.about.to_string(), event.reason.clone(), event.message.clone())
}

/// An event that is in the API.
struct Written {
    path: String,
    count: u64,
    since: Instant,
}

/// How often one event came since the last write, and how it came last.
struct Due {
    event: Event,
    times: u64,
}

async fn write(client: Client, mut events: mpsc::Receiver<Event>) {
    let mut written: HashMap<Key, Written> = HashMap::new();
    while let Some(first) = events.recv().await {
        sleep(GATHER).await;
        let mut due: Vec<Due> = Vec::new();
        gather(&mut due, first);
        while let Ok(event) = events.try_recv() {
            gather(&mut due, event);
        }
        for Due { event, times } in due {
            let key = key(&event);
            if written.get(&key).is_some_and(|w| w.since.elapsed() > WHILE) {
                written.remove(&key);
            }
            if let Some(known) = written.get_mut(&key) {
                let patch =
                    json!({"count": known.count + times, "message": text(&event), "lastTimestamp": now()});
                match api::merge(&client, &known.path, &patch).await {
                    Ok(_) => {
                        known.count += times;
                        continue;
                    }
                    // Old events are taken away by the API server.
                    Err(error) if error.code() == Some(404) => {}
                    Err(error) => {
                        tracing::debug!(%error, "an event could not be counted up");
                        continue;
                    }
                }
            }
            let namespace = event.about["namespace"].as_str().unwrap_or("default");
            let collection = format!("/api/v1/namespaces/{namespace}/events");
            match api::create(&client, &collection, &object(&event, times)).await {
                Ok(created) => {
                    if written.len() >= REMEMBERED {
                        written.clear();
                    }
                    let name = created["metadata"]["name"].as_str().unwrap_or_default();
                    let path = format!("{collection}/{name}");
                    written.insert(key, Written { path, count: times, since: Instant::now() });
                }
                Err(error) => tracing::debug!(%error, "an event could not be written"),
            }
        }
    }
}

fn gather(due: &mut Vec<Due>, event: Event) {
    match due.iter_mut().find(|due| key(&due.event) == key(&event)) {
        Some(due) => {
            due.times += 1;
            due.event = event;
        }
        None => due.push(Due { event, times: 1 }),
    }
}

fn text(event: &Event) -> String {
    let mut text = format!("{}{}", event.message, event.detail);
    if text.len() > MESSAGE_LIMIT {
        let end = (0..=MESSAGE_LIMIT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn object(event: &Event, count: u64) -> Value {
    let now = now();
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {
            "generateName": format!("{}.", event.about["name"].as_str().unwrap_or("weft")),
            "namespace": event.about["namespace"],
        },
        "involvedObject": event.about,
        "type": if event.warning { "Warning" } else { "Normal" },
        "reason": event.reason, "message": text(event), "count": count,
        "firstTimestamp": now, "lastTimestamp": now,
        "source": {"component": event.component},
        "reportingComponent": event.component, "reportingInstance": "weft",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(message: &str, detail: &str) -> Event {
        Event {
            about: json!({"kind": "ServiceAccount", "namespace": "shop", "name": "store"}),
            warning: false,
            reason: "Told".to_owned(),
            message: message.to_owned(),
            detail: detail.to_owned(),
            component: "test",
        }
    }

    #[test]
    fn the_same_thing_said_again_is_counted_and_its_last_detail_kept() {
        let mut due = Vec::new();
        for (message, detail) in [("a", " 1"), ("b", ""), ("a", " 2")] {
            gather(&mut due, event(message, detail));
        }
        let counted: Vec<_> = due.iter().map(|d| (text(&d.event), d.times)).collect();
        assert_eq!(counted, [("a 2".to_owned(), 2), ("b".to_owned(), 1)]);
        let object = object(&due[0].event, 2);
        assert_eq!((&object["count"], &object["type"]), (&json!(2), &json!("Normal")));
        assert_eq!(object["metadata"]["generateName"], "store.");
        let mut other = event("a", "");
        other.about["name"] = json!("other");
        gather(&mut due, other);
        assert_eq!(due.len(), 3);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let long = text(&event(&"é".repeat(900), ""));
        assert!(long.len() <= MESSAGE_LIMIT + '…'.len_utf8() && long.ends_with("é…"), "{}", long.len());
    }
}
