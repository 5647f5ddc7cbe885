//! Events about pods, written beside the work: a full queue loses one rather than delay a container.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use std::collections::HashMap;
use tokio::sync::mpsc;

/// What the node agent says about a pod.
#[derive(Clone, Debug)]
pub(crate) struct Notice {
    about: ObjectReference,
    warning: bool,
    reason: &'static str,
    message: String,
}

/// Takes notices.
#[derive(Clone, Debug)]
pub(crate) struct Events(mpsc::Sender<Notice>);

impl Events {
    /// Starts the writer.
    pub(crate) fn start(client: Client) -> Self {
        let (to, from) = mpsc::channel(256);
        tokio::spawn(write(client, from));
        Events(to)
    }

    /// `container` is the name of the one it is about, if any.
    pub(crate) fn say(&self, pod: &Pod, container: Option<&str>, reason: &'static str, message: String) {
        self.send(pod, container, false, reason, message);
    }

    pub(crate) fn warn(&self, pod: &Pod, container: Option<&str>, reason: &'static str, message: String) {
        self.send(pod, container, true, reason, message);
    }

    fn send(&self, pod: &Pod, container: Option<&str>, warning: bool, reason: &'static str, message: String) {
        let about = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            resource_version: pod.metadata.resource_version.clone(),
            field_path: container.map(|c| format!("spec.containers{{{c}}}")),
        };
        // At most 1024 bytes are accepted.
        let message: String = message.chars().take(1000).collect();
        if self.0.try_send(Notice { about, warning, reason, message }).is_err() {
            tracing::debug!(reason, "an event was lost: the queue is full");
        }
    }
}

/// What makes two notices the same event.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    pod_uid: Option<String>,
    field_path: Option<String>,
    reason: &'static str,
    message: String,
}

/// An event that was written: its object's name, and how often it happened.
struct Counted {
    name: String,
    count: i32,
}

/// Repeated events become one with a count.
async fn write(client: Client, mut notices: mpsc::Receiver<Notice>) {
    const REMEMBERED: usize = 1000;
    let mut known: HashMap<Key, Counted> = HashMap::new();
    let mut number = 0u64;
    while let Some(notice) = notices.recv().await {
        let Some(namespace) = notice.about.namespace.clone() else { continue };
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let key = Key {
            pod_uid: notice.about.uid.clone(),
            field_path: notice.about.field_path.clone(),
            reason: notice.reason,
            message: notice.message.clone(),
        };
        let now = Timestamp::now();
        if let Some(Counted { name, count }) = known.get_mut(&key) {
            *count += 1;
            let patch = serde_json::json!({"count": *count, "lastTimestamp": Time(now)});
            match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => continue,
                // Expired or deleted: written anew.
                Err(error) => tracing::debug!(%error, "an event was not counted"),
            }
        }
        number += 1;
        let pod = notice.about.name.clone().unwrap_or_default();
        let name = format!("{pod}.{:x}{number:04x}", now.as_nanosecond());
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            involved_object: notice.about,
            reason: Some(notice.reason.to_string()),
            message: Some(notice.message),
            type_: Some(if notice.warning { "Warning" } else { "Normal" }.to_string()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource { component: Some("kubelet".into()), host: Some("weft".into()) }),
            reporting_component: Some("kubelet".into()),
            reporting_instance: Some("weft".into()),
            ..Event::default()
        };
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {
                if known.len() >= REMEMBERED {
                    known.clear();
                }
                known.insert(key, Counted { name, count: 1 });
            }
            Err(error) => tracing::debug!(%error, "an event was not written"),
        }
    }
}
