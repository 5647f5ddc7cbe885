//! What the injector was asked and what it answered, by Linkerd's names. Its labels for single annotations are left out:
//! their values are anybody's text.

use super::decide::{Annotations, INJECT};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Series of one family. Namespaces beyond that are not counted apart.
const MOST: usize = 4_096;
/// What namespaces are called that are not counted apart.
const OTHERS: &str = "others";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// Kind of the object that controls the pod, in lower case; empty if nobody does.
    pub owner_kind: String,
    pub namespace: String,
    /// Who says whether it is injected: `workload`, `namespace`, or nobody.
    pub annotation_at: &'static str,
}

/// `None`: injected. Otherwise the word for why not.
pub type Skipped = Option<&'static str>;

#[derive(Debug, Default)]
pub struct Injections(Mutex<Counts>);

#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub requests: BTreeMap<Asked, u64>,
    pub responses: BTreeMap<(Asked, Skipped), u64>,
}

/// Where the annotation stands that decides.
pub fn annotation_at(pod: &Annotations, namespace: &Annotations) -> &'static str {
    match (pod.contains_key(INJECT), namespace.contains_key(INJECT)) {
        (true, _) => "workload",
        (false, true) => "namespace",
        (false, false) => "",
    }
}

impl Asked {
    /// Whoever reaches the webhook may write anything: what is no name is counted with the others.
    pub fn new(owner_kind: &str, namespace: &str, annotation_at: &'static str) -> Self {
        let name = |text: &str| match text.len() <= 63
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
        {
            true => text.to_owned(),
            false => OTHERS.to_owned(),
        };
        Asked { owner_kind: name(owner_kind), namespace: name(namespace), annotation_at }
    }
}

impl Injections {
    pub fn asked(&self, asked: &Asked) {
        count(&mut self.0.lock().requests, asked.clone(), |asked| OTHERS.clone_into(&mut asked.namespace));
    }

    pub fn answered(&self, asked: &Asked, skipped: Skipped) {
        let others = |(asked, _): &mut (Asked, Skipped)| OTHERS.clone_into(&mut asked.namespace);
        count(&mut self.0.lock().responses, (asked.clone(), skipped), others);
    }

    pub fn counts(&self) -> Counts {
        self.0.lock().clone()
    }
}

fn count<K: Ord>(series: &mut BTreeMap<K, u64>, mut key: K, others: impl FnOnce(&mut K)) {
    if series.len() >= MOST && !series.contains_key(&key) {
        others(&mut key);
    }
    *series.entry(key).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_beyond_the_bound_are_counted_together() {
        let injections = Injections::default();
        let asked = |n: usize| Asked::new("replicaset", &format!("ns-{n}"), "namespace");
        for n in 0..MOST + 10 {
            injections.asked(&asked(n));
            injections.answered(&asked(n), Some("host_network_enabled"));
        }
        injections.asked(&asked(1));
        let counts = injections.counts();
        assert_eq!(counts.requests[&asked(1)], 2);
        let others = Asked { namespace: OTHERS.to_owned(), ..asked(0) };
        assert_eq!(counts.requests[&others], 10);
        assert_eq!(counts.responses[&(others, Some("host_network_enabled"))], 10);
        assert_eq!(counts.requests.len(), MOST + 1);
        assert_eq!(Asked::new("pod", "a\"} 1\n", "").namespace, OTHERS);
    }
}
