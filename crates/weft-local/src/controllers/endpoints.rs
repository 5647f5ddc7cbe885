//! Endpoints: the older form of what EndpointSlices say, one object for each Service with a selector.
//!
//! A real cluster still writes them, and `kubectl get endpoints` and older controllers read them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::store::{Change, Happened};
use crate::api::update::Part;
use crate::api::{Api, meta};

use super::client::Client;
use super::drive::{Controller, Key, Outcome, drive, own_key};
use super::endpoint_slice::{ports_of, selecting_services, selector_of};
use super::pods;

const ENDPOINTS: &str = "endpoints";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";

/// As many addresses as one object holds.
const MOST: usize = 1000;

pub(super) async fn run(api: Arc<Api>) {
    drive(&Endpoints { client: Client::new(&api, "endpoint-controller") }).await;
}

struct Endpoints {
    client: Client,
}

impl Controller for Endpoints {
    const RESOURCES: &[&str] = &["services", "pods", ENDPOINTS];

    fn client(&self) -> &Client {
        &self.client
    }

    fn keys(&self, change: &Change) -> Vec<Key> {
        match &*change.resource {
            "services" => vec![own_key(change)],
            // What others write stays; what is deleted is written again.
            ENDPOINTS if change.happened == Happened::Deleted => vec![own_key(change)],
            ENDPOINTS => Vec::new(),
            _ => selecting_services(&self.client, change),
        }
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        reconcile(&self.client, key).await
    }
}

async fn reconcile(client: &Client, (namespace, name): &Key) -> Outcome {
    let existing = client.get(ENDPOINTS, namespace, name);
    let Some(service) = client.get("services", namespace, name) else {
        // They have no owner that garbage collection would know.
        if let Some(existing) = existing {
            client.delete(ENDPOINTS, &existing).await?;
        }
        return Ok(None);
    };
    let Some(selector) = selector_of(&service).filter(|_| !meta::deleting(&service)) else { return Ok(None) };
    let mut pods = client.list("pods", namespace);
    pods.retain(|pod| selector.matches(meta::labels(pod)));
    let (labels, subsets) = (labels(&service), subsets(&service, &pods));
    let Some(existing) = existing else {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": name, "labels": labels },
        });
        set_subsets(&mut object, &subsets);
        client.create(ENDPOINTS, namespace, object).await?;
        return Ok(None);
    };
    if meta::items(&existing, "/subsets") == subsets && existing["metadata"]["labels"] == labels {
        return Ok(None);
    }
    let change = |object: &mut Value| {
        object["metadata"]["labels"] = labels.clone();
        set_subsets(object, &subsets);
    };
    match client.update(ENDPOINTS, &existing, Part::Main, change).await {
        // Deleted in between: that change is a key of its own.
        Err(error) if error.code == 404 => {}
        other => drop(other?),
    }
    Ok(None)
}

/// No subsets are no field, as a real server has it.
fn set_subsets(object: &mut Value, subsets: &[Value]) {
    let fields = meta::object_mut_self(object);
    if subsets.is_empty() {
        fields.shift_remove("subsets");
    } else {
        fields.insert("subsets".into(), json!(subsets));
    }
}

fn labels(service: &Value) -> Value {
    let mut labels = json!({});
    for (key, value) in meta::labels(service).into_iter().flatten() {
        labels[key] = value.clone();
    }
    labels[MANAGED_BY] = json!("endpoint-controller");
    if service["spec"]["clusterIP"] == "None" {
        labels["service.kubernetes.io/headless"] = json!("");
    }
    labels
}

/// The addresses that have a port, by whether they are ready and by how they are written.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
struct Addresses {
    ready: BTreeSet<String>,
    not_ready: BTreeSet<String>,
}

/// The addresses of a Service's pods: ports with the same addresses stand in one subset.
fn subsets(service: &Value, pods: &[Arc<Value>]) -> Vec<Value> {
    let unready_too = service["spec"]["publishNotReadyAddresses"] == json!(true);
    let serves = |pod: &&Arc<Value>| {
        !pods::is_finished(pod)
            && !meta::text(pod, "/status/podIP").is_empty()
            && (unready_too || !meta::deleting(pod))
    };
    let mut by_port: BTreeMap<String, Addresses> = BTreeMap::new();
    for pod in pods.iter().filter(serves).take(MOST) {
        let mut ports: Vec<Value> = ports_of(service, pod);
        for port in &mut ports {
            // Here, a port without a name lacks the field.
            if port["name"] == "" {
                meta::object_mut_self(port).shift_remove("name");
            }
        }
        // Without ports, a headless Service still has addresses.
        let portless = meta::items(service, "/spec/ports").is_empty();
        let keys = ports.iter().map(Value::to_string).chain(portless.then(String::new));
        let address = address(service, pod).to_string();
        for key in keys {
            let addresses = by_port.entry(key).or_default();
            let ready = unready_too || pods::is_ready(pod);
            if ready { &mut addresses.ready } else { &mut addresses.not_ready }.insert(address.clone());
        }
    }
    let mut by_addresses: BTreeMap<Addresses, Vec<String>> = BTreeMap::new();
    for (port, addresses) in by_port {
        by_addresses.entry(addresses).or_default().push(port);
    }
    by_addresses
        .into_iter()
        .map(|(Addresses { ready, not_ready }, ports)| {
            let mut subset = json!({});
            let lists = [("addresses", ready), ("notReadyAddresses", not_ready)];
            for (field, addresses) in lists.into_iter().filter(|(_, addresses)| !addresses.is_empty()) {
                subset[field] = read(addresses);
            }
            let ports: Vec<String> = ports.into_iter().filter(|port| !port.is_empty()).collect();
            if !ports.is_empty() {
                subset["ports"] = read(ports);
            }
            subset
        })
        .collect()
}

/// Values that were written as text to be compared.
fn read(texts: impl IntoIterator<Item = String>) -> Value {
    texts.into_iter().map(|text| serde_json::from_str::<Value>(&text).unwrap_or_default()).collect()
}

/// The address comes first, so that addresses are in order as they are written.
fn address(service: &Value, pod: &Value) -> Value {
    let mut address = json!({ "ip": meta::text(pod, "/status/podIP") });
    let hostname = meta::text(pod, "/spec/hostname");
    if !hostname.is_empty() && meta::text(pod, "/spec/subdomain") == meta::name(service) {
        address["hostname"] = json!(hostname);
    }
    let node = meta::text(pod, "/spec/nodeName");
    if !node.is_empty() {
        address["nodeName"] = json!(node);
    }
    address["targetRef"] = json!({
        "kind": "Pod", "namespace": meta::namespace(pod), "name": meta::name(pod), "uid": meta::uid(pod),
    });
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, ip: &str, ready: bool, http: u16) -> Arc<Value> {
        Arc::new(json!({
            "metadata": { "name": name, "namespace": "e", "uid": name },
            "spec": { "nodeName": "n1", "hostname": "h", "subdomain": if name == "p2" { "hl" } else { "" },
                "containers": [{ "ports": [{ "name": "http", "containerPort": http, "protocol": "TCP" }] }] },
            "status": { "podIP": ip, "phase": "Running",
                "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
        }))
    }

    /// Four pods: p3 is not ready, p4 serves at another port.
    fn pods() -> Vec<Arc<Value>> {
        vec![
            pod("p1", "10.1.0.9", true, 8080),
            pod("p2", "10.1.0.10", true, 8080),
            pod("p3", "10.1.0.3", false, 8080),
            pod("p4", "10.1.0.4", true, 9090),
        ]
    }

    /// The names of pods, and the ports, as `READY|NOT READY|PORTS`.
    fn shown(service: Value, pods: &[Arc<Value>]) -> Vec<String> {
        let subsets = subsets(&service, pods);
        let mut all: Vec<String> = subsets
            .iter()
            .map(|subset| {
                let list = |list: &str, field: &str| {
                    let items = meta::items(subset, list).iter();
                    items
                        .map(|item| item.pointer(field).unwrap().to_string().replace('"', ""))
                        .collect::<Vec<_>>()
                        .join(",")
                };
                let names = "/targetRef/name";
                format!(
                    "{}|{}|{}",
                    list("/addresses", names),
                    list("/notReadyAddresses", names),
                    list("/ports", "/port")
                )
            })
            .collect();
        all.sort();
        all
    }

    fn service(name: &str, spec: Value) -> Value {
        json!({ "metadata": { "name": name }, "spec": spec })
    }

    fn port(port: u16, target: Value, name: &str) -> Value {
        json!({ "port": port, "targetPort": target, "protocol": "TCP", "name": name })
    }

    /// As the controllers of a 1.36 cluster wrote them for these pods and Services.
    #[test]
    fn subsets_are_those_of_a_real_controller() {
        let two = json!({ "ports": [port(80, json!("http"), "http"), port(81, json!(81), "x")] });
        assert_eq!(shown(service("s1", two), &pods()), ["p2,p1|p3|8080", "p2,p4,p1|p3|81", "p4||9090"]);
        assert_eq!(shown(service("hl", json!({ "clusterIP": "None" })), &pods()), ["p2,p4,p1|p3|"]);
        let all = json!({ "publishNotReadyAddresses": true, "ports": [port(80, json!(8080), "")] });
        assert_eq!(shown(service("pub", all.clone()), &pods()), ["p2,p3,p4,p1||8080"]);
        let none = json!({ "ports": [port(80, json!("nope"), "")] });
        assert!(subsets(&service("miss", none), &pods()).is_empty());
        // Ports with the same addresses share a subset, in a form without empty fields.
        let same = json!({ "ports": [port(80, json!(80), "a"), port(81, json!(81), "b")] });
        assert_eq!(shown(service("s", same), &pods()[..2]), ["p2,p1||80,81"]);
        let found = subsets(&service("pub", all), &pods()[..1]);
        let target = json!({ "kind": "Pod", "namespace": "e", "name": "p1", "uid": "p1" });
        let address = json!({ "ip": "10.1.0.9", "nodeName": "n1", "targetRef": target });
        assert_eq!(
            found,
            [json!({ "addresses": [address], "ports": [{ "protocol": "TCP", "port": 8080 }] })]
        );
        let headless = subsets(&service("hl", json!({ "clusterIP": "None" })), &pods());
        assert_eq!(headless[0]["addresses"][0]["hostname"], "h");
    }

    #[test]
    fn pods_that_end_have_no_address() {
        let spec = json!({ "ports": [port(80, json!(80), "")] });
        let change = |at: &str, value: Value| {
            let mut pod = Value::clone(&pods()[0]);
            pod.pointer_mut(at).unwrap()[if at == "/metadata" { "deletionTimestamp" } else { "phase" }] =
                value;
            vec![Arc::new(pod)]
        };
        assert!(subsets(&service("s", spec.clone()), &change("/status", json!("Succeeded"))).is_empty());
        let going = change("/metadata", json!("2026-01-01T00:00:00Z"));
        assert!(subsets(&service("s", spec.clone()), &going).is_empty());
        let mut all = spec;
        all["publishNotReadyAddresses"] = json!(true);
        assert_eq!(shown(service("s", all), &going), ["p1||80"]);
    }
}
