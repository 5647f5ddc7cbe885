//! Kinds that only the journal looks at: nothing is served from them, and nothing waits for them.

use super::words;
use crate::index::store::Store;
use kube::Client;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::{sync::mpsc, task::JoinSet};
use weft_kube::{
    core::{
        network_policy::NetworkPolicy,
        rollout::{DaemonSet, Deployment, Link, StatefulSet, Template},
    },
    kind::Kind,
    meta::ObjectName,
    watch::{Event, Pulse, Scope, Watch},
};

/// Starts to follow them.
pub fn start(client: &Client, store: &Arc<Store>, pulse: &Pulse, tasks: &mut JoinSet<()>) {
    follow::<Deployment>(client, store, pulse, tasks);
    follow::<StatefulSet>(client, store, pulse, tasks);
    follow::<DaemonSet>(client, store, pulse, tasks);
    follow::<NetworkPolicy>(client, store, pulse, tasks);
    follow::<Link>(client, store, pulse, tasks);
}

fn follow<K: Followed>(client: &Client, store: &Arc<Store>, pulse: &Pulse, tasks: &mut JoinSet<()>) {
    let watch = Watch::new::<K>(client.clone(), Scope::default(), pulse.clone());
    let (out, mut events) = mpsc::channel(64);
    tasks.spawn(watch.run::<K, Event<K>>(out, |event| event));
    let store = store.clone();
    tasks.spawn(async move {
        let mut known = Known::default();
        while let Some(event) = events.recv().await {
            for (name, text) in known.observe(event) {
                store.journal.lasts(format!("{} {name}", K::KIND), text);
            }
        }
    });
}

/// A kind whose changes are told.
trait Followed: Kind + PartialEq {
    /// What is different besides metadata; nothing to say if that is of no interest.
    fn details(old: &Self, new: &Self) -> Vec<String>;
}

macro_rules! rollouts {
    ($($kind:ty),*) => {$(
        impl Followed for $kind {
            fn details(old: &Self, new: &Self) -> Vec<String> {
                rollout(&old.spec.template, &new.spec.template)
            }
        }
    )*};
}
rollouts!(Deployment, StatefulSet, DaemonSet);

macro_rules! specified {
    ($($kind:ty),*) => {$(
        impl Followed for $kind {
            fn details(old: &Self, new: &Self) -> Vec<String> {
                if old.spec == new.spec { Vec::new() } else { vec!["its rules changed".to_owned()] }
            }
        }
    )*};
}
specified!(NetworkPolicy, Link);

/// Nothing if the pods stay as they are: scaling is no rollout.
fn rollout(old: &Template, new: &Template) -> Vec<String> {
    if old.hash == new.hash {
        return Vec::new();
    }
    if old.images == new.images {
        return vec!["new pods roll out".to_owned()];
    }
    vec![format!("new pods roll out, images {} to {}", old.images.join(" "), new.images.join(" "))]
}

#[derive(Debug)]
struct Known<K> {
    objects: BTreeMap<ObjectName, Arc<K>>,
    /// The whole set was heard of once: what comes now is a change.
    begun: bool,
}

impl<K> Default for Known<K> {
    fn default() -> Self {
        Known { objects: BTreeMap::new(), begun: false }
    }
}

impl<K: Followed> Known<K> {
    /// The changes that an event means, in words.
    fn observe(&mut self, event: Event<K>) -> Vec<(ObjectName, String)> {
        let mut said = Vec::new();
        match event {
            Event::Applied(object) => self.put(object, &mut said),
            Event::Deleted(name) => self.take(&name, &mut said),
            Event::Undecodable(bad) => self.take(&bad.meta.key(), &mut said),
            Event::Absent => {
                for name in self.objects.keys().cloned().collect::<Vec<_>>() {
                    self.take(&name, &mut said);
                }
                self.begun = true;
            }
            Event::Replaced(objects) => {
                let mut gone: BTreeSet<ObjectName> = self.objects.keys().cloned().collect();
                for object in objects.into_iter().flatten() {
                    gone.remove(&object.meta().key());
                    self.put(Arc::new(object), &mut said);
                }
                for name in gone {
                    self.take(&name, &mut said);
                }
                if !std::mem::replace(&mut self.begun, true) {
                    said.clear();
                }
            }
        }
        said
    }

    fn put(&mut self, new: Arc<K>, said: &mut Vec<(ObjectName, String)>) {
        let name = new.meta().key();
        match self.objects.insert(name.clone(), new.clone()) {
            None => said.push((name, words::written(None, &*new, Vec::new()))),
            Some(old) => {
                let mut details = words::metadata(old.meta(), new.meta());
                details.extend(K::details(&old, &new));
                if !details.is_empty() {
                    said.push((name, words::written(Some(&*old), &*new, details)));
                }
            }
        }
    }

    fn take(&mut self, name: &ObjectName, said: &mut Vec<(ObjectName, String)>) {
        if self.objects.remove(name).is_some() {
            said.push((name.clone(), "deleted".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::tests::object;
    use serde_json::{Value, json};

    fn deployment(version: &str, replicas: u32, image: &str, label: &str) -> Value {
        json!({"metadata": {"name": "web", "namespace": "shop", "resourceVersion": version,
                "labels": {"team": label}, "managedFields": [{"manager": "helm"}]},
            "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"image": image}]}}}})
    }

    #[test]
    fn rollouts_are_told_and_scaling_is_not() {
        let mut known = Known::<Deployment>::default();
        let listed = Event::Replaced(vec![Ok(object(deployment("1", 1, "web:1", "a")))]);
        assert!(known.observe(listed).is_empty(), "what was there is no change");
        let mut apply = |value: Value| -> Vec<String> {
            known.observe(Event::Applied(Arc::new(object(value)))).into_iter().map(|(_, text)| text).collect()
        };
        assert!(apply(deployment("2", 5, "web:1", "a")).is_empty());
        let said = apply(deployment("3", 5, "web:2", "b"));
        assert_eq!(said.len(), 1);
        for part in ["by helm", "version 2 to 3", "label team: \"a\" to \"b\"", "images web:1 to web:2"] {
            assert!(said[0].contains(part), "{said:?}");
        }
    }

    /// B46: the edit of a NetworkPolicy that nobody remembers.
    #[test]
    fn network_policies_are_told_also_when_the_watch_missed_them() {
        let mut known = Known::<NetworkPolicy>::default();
        let policy = |name: &str, label: &str| -> NetworkPolicy {
            object(json!({"metadata": {"name": name, "namespace": "linkerd"},
                "spec": {"podSelector": {"matchLabels": {"mesh": label}}}}))
        };
        assert!(known.observe(Event::Absent).is_empty());
        assert!(
            known.observe(Event::Replaced(vec![Ok(policy("a", "yes")), Ok(policy("b", "yes"))])).len() == 2
        );
        let said = known.observe(Event::Replaced(vec![Ok(policy("a", "no"))]));
        assert_eq!(said.len(), 2);
        assert!(said[0].1.contains("its rules changed"), "{said:?}");
        assert_eq!(said[1], (ObjectName::new("linkerd", "b"), "deleted".to_owned()));
    }
}
