//! What the replicas of a controller say of one authority, side by side. Pure.

use crate::columns::{age, aligned};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    sync::Arc,
};
use weft_model::{
    identity::PeerIdentity,
    outbound::{Endpoint, ProtocolHint},
};

/// What one replica answered.
pub(super) struct Answer {
    pub(super) replica: String,
    pub(super) endpoints: Vec<Arc<Endpoint>>,
}

/// A proxy that holds something else than the controller says now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OtherView {
    pub(super) proxy: String,
    pub(super) addr: Option<SocketAddr>,
    /// What it holds, in words.
    pub(super) holds: String,
}

/// Everything about one authority.
pub(super) struct Found {
    pub(super) authority: String,
    pub(super) answers: Vec<Answer>,
    pub(super) others: Vec<OtherView>,
    /// For how long pods have run, in seconds, by `namespace/name`.
    pub(super) ages: HashMap<String, u64>,
}

impl Found {
    /// Every address that anybody names, with the first description of it.
    fn union(&self) -> BTreeMap<SocketAddr, &Arc<Endpoint>> {
        let mut all = BTreeMap::new();
        for endpoint in self.answers.iter().flat_map(|answer| &answer.endpoints) {
            all.entry(endpoint.addr).or_insert(endpoint);
        }
        all
    }

    /// Where replicas contradict each other, in sentences.
    pub(super) fn disagreements(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (addr, _) in self.union() {
            let mut said: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for answer in &self.answers {
                let endpoint = answer.endpoints.iter().find(|endpoint| endpoint.addr == addr);
                let words = endpoint.map_or("not there".to_owned(), |endpoint| essence_of(endpoint));
                said.entry(words).or_default().push(&answer.replica);
            }
            if said.len() > 1 {
                let said: Vec<String> = said
                    .iter()
                    .map(|(words, replicas)| format!("{words} according to {}", replicas.join(", ")))
                    .collect();
                found.push(format!("{addr} is {}", said.join("; ")));
            }
        }
        found
    }

    fn age(&self, endpoint: &Endpoint) -> Option<u64> {
        let labels = &endpoint.labels;
        let pod = format!("{}/{}", labels.get("namespace")?, labels.get("pod")?);
        self.ages.get(&pod).copied()
    }

    pub(super) fn rows(&self, wide: bool) -> Vec<Vec<String>> {
        let row = |endpoint: &Arc<Endpoint>| {
            let label = |name: &str| endpoint.labels.get(name).cloned().unwrap_or_default();
            let mut row = vec![
                label("namespace"),
                endpoint.addr.ip().to_string(),
                endpoint.addr.port().to_string(),
                label("pod"),
                service(endpoint),
                identity(endpoint, wide),
                hints(endpoint),
                label("zone"),
                endpoint.weight.to_string(),
                self.age(endpoint).map(age).unwrap_or_default(),
            ];
            if self.answers.len() > 1 {
                let lists = |answer: &&Answer| answer.endpoints.iter().any(|e| e.addr == endpoint.addr);
                let seen = self.answers.iter().filter(lists).count();
                row.push(format!("{seen}/{}", self.answers.len()));
            }
            row
        };
        self.union().into_values().map(row).collect()
    }

    /// Linkerd's members, then weft's own.
    pub(super) fn json(&self) -> Vec<Value> {
        let one = |endpoint: &Arc<Endpoint>| {
            let label = |name: &str| endpoint.labels.get(name).cloned().unwrap_or_default();
            let lists = |answer: &&Answer| answer.endpoints.iter().any(|e| e.addr == endpoint.addr);
            let replicas: Vec<&str> =
                self.answers.iter().filter(lists).map(|answer| answer.replica.as_str()).collect();
            let others: Vec<Value> = self
                .others
                .iter()
                .filter(|other| other.addr == Some(endpoint.addr))
                .map(|other| json!({"proxy": other.proxy, "holds": other.holds}))
                .collect();
            json!({
                "namespace": label("namespace"),
                "ip": endpoint.addr.ip().to_string(),
                "port": endpoint.addr.port(),
                "pod": label("pod"),
                "service": service(endpoint),
                "weight": endpoint.weight,
                "labels": *endpoint.labels,
                "authority": self.authority,
                "state": state(endpoint),
                "identity": endpoint.identity.id().map(ToString::to_string),
                "protocol": protocol(endpoint),
                "transportPort": endpoint.transport_port,
                "authorityOverride": endpoint.authority_override,
                "ageSeconds": self.age(endpoint),
                "replicas": replicas,
                "otherViews": others,
            })
        };
        self.union().into_values().map(one).collect()
    }
}

pub(super) fn table(found: &[Found], wide: bool) -> String {
    let mut rows = Vec::new();
    let mut titles =
        vec!["NAMESPACE", "IP", "PORT", "POD", "SERVICE", "IDENTITY", "HINTS", "ZONE", "WEIGHT", "AGE"];
    if found.iter().any(|found| found.answers.len() > 1) {
        titles.push("REPLICAS");
    }
    rows.push(titles.into_iter().map(str::to_owned).collect());
    rows.extend(found.iter().flat_map(|found| found.rows(wide)));
    aligned(&rows)
}

/// `store.shop`.
fn service(endpoint: &Endpoint) -> String {
    match (endpoint.labels.get("service"), endpoint.labels.get("namespace")) {
        (Some(service), Some(namespace)) => format!("{service}.{namespace}"),
        (Some(service), None) => service.clone(),
        (None, _) => String::new(),
    }
}

fn identity(endpoint: &Endpoint, wide: bool) -> String {
    match &endpoint.identity {
        PeerIdentity::Meshed { id, .. } if wide => id.to_string(),
        PeerIdentity::Meshed { id, .. } => match id.as_str().split_once(".serviceaccount.") {
            Some((short, _)) => short.to_owned(),
            None => id.to_string(),
        },
        PeerIdentity::Unmeshed => "none (unmeshed)".to_owned(),
        PeerIdentity::Unknown(_) => "none".to_owned(),
    }
}

fn state(endpoint: &Endpoint) -> &'static str {
    match &endpoint.identity {
        PeerIdentity::Meshed { .. } => "meshed",
        PeerIdentity::Unmeshed => "unmeshed",
        PeerIdentity::Unknown(_) => "unknown",
    }
}

fn protocol(endpoint: &Endpoint) -> &'static str {
    match endpoint.hint {
        ProtocolHint::Unknown => "unknown",
        ProtocolHint::H2 => "h2",
        ProtocolHint::Opaque => "opaque",
    }
}

/// `h2,direct:4143`: how it is spoken to, and on which port of its proxy.
fn hints(endpoint: &Endpoint) -> String {
    let mut hints = BTreeSet::new();
    if endpoint.hint != ProtocolHint::Unknown {
        hints.insert(protocol(endpoint).to_owned());
    }
    hints.extend(endpoint.transport_port.map(|port| format!("via:{port}")));
    hints.into_iter().collect::<Vec<_>>().join(",")
}

/// What connections depend on.
pub(super) fn essence_of(endpoint: &Endpoint) -> String {
    let hints = hints(endpoint);
    let identity = match endpoint.identity.id() {
        Some(id) => id.to_string(),
        None => "without an identity".to_owned(),
    };
    if hints.is_empty() { identity } else { format!("{identity} ({hints})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_model::identity::{Identity, Unknown};

    fn endpoint(addr: &str, id: Option<&str>) -> Arc<Endpoint> {
        let identity = match id {
            Some(id) => {
                let id =
                    Identity::parse(&format!("{id}.serviceaccount.identity.linkerd.cluster.local")).unwrap();
                PeerIdentity::Meshed { server_name: id.clone(), id }
            }
            None => PeerIdentity::Unknown(Unknown::Unmarked),
        };
        let mut endpoint = Endpoint::bare(addr.parse().unwrap(), identity);
        let labels = [("namespace", "shop"), ("pod", "store-1"), ("service", "store"), ("zone", "a")];
        endpoint.labels = Arc::new(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        endpoint.weight = 10_000;
        if id.is_some() {
            endpoint.hint = ProtocolHint::H2;
            endpoint.transport_port = Some(4143);
        }
        Arc::new(endpoint)
    }

    fn found(answers: &[&[Arc<Endpoint>]]) -> Found {
        let answers = answers.iter().enumerate().map(|(at, endpoints)| Answer {
            replica: format!("linkerd/dst-{at}"),
            endpoints: endpoints.to_vec(),
        });
        Found {
            authority: "store.shop.svc.cluster.local:80".into(),
            answers: answers.collect(),
            others: Vec::new(),
            ages: [("shop/store-1".to_owned(), 300)].into(),
        }
    }

    #[test]
    fn one_replica_makes_linkerds_table_and_more() {
        let found = found(&[&[endpoint("10.0.0.1:80", Some("store.shop")), endpoint("10.0.0.2:80", None)]]);
        assert_eq!(found.disagreements(), Vec::<String>::new());
        let text = table(&[found], false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("NAMESPACE  IP        PORT  POD      SERVICE     IDENTITY"), "{text}");
        assert!(!lines[0].contains("REPLICAS"));
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            [
                "shop",
                "10.0.0.1",
                "80",
                "store-1",
                "store.shop",
                "store.shop",
                "h2,via:4143",
                "a",
                "10000",
                "5m"
            ]
        );
        assert!(lines[2].contains(" none "), "{text}");
    }

    #[test]
    fn replicas_that_differ_are_quoted() {
        let meshed = endpoint("10.0.0.1:80", Some("store.shop"));
        let bare = endpoint("10.0.0.1:80", None);
        let extra = endpoint("10.0.0.2:80", None);
        let found = found(&[&[meshed.clone(), extra], &[bare], &[meshed]]);
        let said = found.disagreements();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("linkerd/dst-0, linkerd/dst-2") && said[0].contains("without an identity"));
        assert!(
            said[1].starts_with("10.0.0.2:80 is not there according to linkerd/dst-1, linkerd/dst-2"),
            "{said:?}"
        );
        let rows = found.rows(true);
        assert_eq!((rows[0].last().unwrap().as_str(), rows[1].last().unwrap().as_str()), ("3/3", "1/3"));
    }

    #[test]
    fn json_has_linkerds_members_first() {
        let mut found = found(&[&[endpoint("10.0.0.1:80", Some("store.shop"))]]);
        found.others = vec![OtherView {
            proxy: "shop/web-1".into(),
            addr: Some("10.0.0.1:80".parse().unwrap()),
            holds: "without an identity".into(),
        }];
        let json = &found.json()[0];
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).take(7).collect();
        assert_eq!(keys, ["namespace", "ip", "port", "pod", "service", "weight", "labels"]);
        assert_eq!(json["service"], "store.shop");
        assert_eq!(json["state"], "meshed");
        assert_eq!(json["ageSeconds"], 300);
        assert_eq!(json["otherViews"][0]["proxy"], "shop/web-1");
    }
}
