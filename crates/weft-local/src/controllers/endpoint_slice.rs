//! EndpointSlices: for each Service with a selector, the addresses of its pods.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::error::ApiError;
use crate::api::selector::LabelSelector;
use crate::api::store::Change;
use crate::api::update::Part;
use crate::api::{Api, meta};

use super::client::{Client, controlled_by};
use super::drive::{Controller, Key, Outcome, drive, own_key};
use super::pods;

pub(super) const SLICES: &str = "endpointslices.discovery.k8s.io";
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";

/// As many endpoints as fit in one slice.
const SLICE_SIZE: usize = 100;

pub(super) async fn run(api: Arc<Api>) {
    drive(&EndpointSlices { client: Client::new(&api, "endpointslice-controller") }).await;
}

struct EndpointSlices {
    client: Client,
}

impl Controller for EndpointSlices {
    const RESOURCES: &[&str] = &["services", "pods", SLICES];

    fn client(&self) -> &Client {
        &self.client
    }

    fn keys(&self, change: &Change) -> Vec<Key> {
        match &*change.resource {
            "services" => vec![own_key(change)],
            SLICES => {
                let namespace = meta::namespace(&change.object).to_owned();
                let service = meta::labels(&change.object).and_then(|labels| labels.get(SERVICE_NAME));
                service
                    .and_then(Value::as_str)
                    .map(|service| (namespace, service.to_owned()))
                    .into_iter()
                    .collect()
            }
            _ => selecting_services(&self.client, change),
        }
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        reconcile(&self.client, key).await
    }
}

/// The Services that select the changed pod, or did.
pub(super) fn selecting_services(client: &Client, change: &Change) -> Vec<Key> {
    let namespace = meta::namespace(&change.object);
    let states = [Some(&change.object), change.previous.as_ref()];
    let selects = |service: &Arc<Value>| {
        let Some(selector) = selector_of(service) else { return false };
        states.iter().flatten().any(|pod| selector.matches(meta::labels(pod)))
    };
    let services = client.list("services", namespace);
    let selecting = services.iter().filter(|service| selects(service));
    selecting.map(|service| (namespace.to_owned(), meta::name(service).to_owned())).collect()
}

/// The selector, if this controller is to act on the Service at all.
pub(super) fn selector_of(service: &Value) -> Option<LabelSelector> {
    let labels = service["spec"]["selector"].as_object().filter(|labels| !labels.is_empty())?;
    (service["spec"]["type"] != "ExternalName").then(|| LabelSelector::from_labels(labels))
}

/// Endpoints with the same ports.
struct Group {
    ports: Vec<Value>,
    endpoints: Vec<Value>,
}

async fn reconcile(client: &Client, (namespace, name): &Key) -> Outcome {
    let Some(service) = client.get("services", namespace, name) else {
        // The slices go with their owner, by garbage collection.
        return Ok(None);
    };
    let Some(selector) = selector_of(&service).filter(|_| !meta::deleting(&service)) else { return Ok(None) };
    let mut pods = client.list("pods", namespace);
    pods.retain(|pod| selector.matches(meta::labels(pod)));
    let mut groups = group(client, &service, &pods);
    if groups.is_empty() {
        // A slice without endpoints says that there are none, rather than that nobody has looked.
        groups.push(Group { ports: Vec::new(), endpoints: Vec::new() });
    }

    let mut existing = client.list(SLICES, namespace);
    existing.retain(|slice| {
        meta::labels(slice).is_some_and(|labels| {
            labels.get(SERVICE_NAME).is_some_and(|service| service == name)
                && labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER)
        }) && !meta::deleting(slice)
    });
    let mut missing = Vec::new();
    for group in groups {
        // Prefer the slice that has these ports already: its endpoints then move the least.
        match existing.iter().position(|slice| same_ports(slice, &group.ports)) {
            Some(at) => update(client, &service, &existing.remove(at), &group).await?,
            None => missing.push(group),
        }
    }
    for group in missing {
        match existing.pop() {
            Some(slice) => update(client, &service, &slice, &group).await?,
            None => {
                client.create(SLICES, namespace, new_slice(&service, &group)).await?;
            }
        }
    }
    for slice in existing {
        client.delete(SLICES, &slice).await?;
    }
    Ok(None)
}

pub(super) fn same_ports(slice: &Value, ports: &[Value]) -> bool {
    meta::items(slice, "/ports") == ports
}

pub(super) fn or_null(list: &[Value]) -> Value {
    if list.is_empty() { Value::Null } else { json!(list) }
}

fn labels(service: &Value) -> Value {
    let mut labels = json!({});
    for (key, value) in meta::labels(service).into_iter().flatten() {
        labels[key] = value.clone();
    }
    labels[MANAGED_BY] = json!(MANAGER);
    labels[SERVICE_NAME] = json!(meta::name(service));
    if service["spec"]["clusterIP"] == "None" {
        labels["service.kubernetes.io/headless"] = json!("");
    }
    labels
}

fn new_slice(service: &Value, group: &Group) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "generateName": format!("{}-", meta::name(service)),
            "labels": labels(service),
            "ownerReferences": controlled_by(service),
        },
        "addressType": "IPv4",
        "endpoints": or_null(&group.endpoints),
        "ports": or_null(&group.ports),
    })
}

async fn update(client: &Client, service: &Value, slice: &Value, group: &Group) -> Result<(), ApiError> {
    let labels = labels(service);
    let (endpoints, ports) = (or_null(&group.endpoints), or_null(&group.ports));
    if slice["endpoints"] == endpoints && slice["ports"] == ports && slice["metadata"]["labels"] == labels {
        return Ok(());
    }
    let change = |slice: &mut Value| {
        slice["endpoints"] = endpoints.clone();
        slice["ports"] = ports.clone();
        slice["metadata"]["labels"] = labels.clone();
    };
    match client.update(SLICES, slice, Part::Main, change).await {
        Err(error) if error.code == 404 => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

/// Groups the pods' endpoints by the ports they have, and cuts the groups to the size of a slice.
fn group(client: &Client, service: &Value, pods: &[Arc<Value>]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for pod in pods {
        if pods::is_finished(pod) || meta::text(pod, "/status/podIP").is_empty() {
            continue;
        }
        let ports = ports_of(service, pod);
        let endpoint = endpoint(client, service, pod);
        match groups.iter_mut().find(|group| group.ports == ports && group.endpoints.len() < SLICE_SIZE) {
            Some(group) => group.endpoints.push(endpoint),
            None => groups.push(Group { ports, endpoints: vec![endpoint] }),
        }
    }
    groups
}

/// The Service's ports on one pod; a named port that the pod lacks is left out.
pub(super) fn ports_of(service: &Value, pod: &Value) -> Vec<Value> {
    let mut ports = Vec::new();
    for port in meta::items(service, "/spec/ports") {
        let protocol = meta::text(port, "/protocol");
        let number = match &port["targetPort"] {
            Value::String(name) => named_port(pod, name, protocol),
            Value::Number(number) => number.as_i64(),
            _ => port["port"].as_i64(),
        };
        let Some(number) = number else { continue };
        let mut entry = json!({ "name": meta::text(port, "/name"), "protocol": protocol, "port": number });
        if let Some(application) = port.get("appProtocol") {
            entry["appProtocol"] = application.clone();
        }
        ports.push(entry);
    }
    ports
}

fn named_port(pod: &Value, name: &str, protocol: &str) -> Option<i64> {
    // Native sidecars serve too: their ports count as those of containers do.
    let sidecars = meta::items(pod, "/spec/initContainers").iter().filter(|c| c["restartPolicy"] == "Always");
    let containers = meta::items(pod, "/spec/containers").iter().chain(sidecars);
    let mut ports = containers.flat_map(|container| meta::items(container, "/ports"));
    ports.find(|port| port["name"] == name && port["protocol"] == protocol)?["containerPort"].as_i64()
}

fn endpoint(client: &Client, service: &Value, pod: &Value) -> Value {
    let (ready, terminating) = (pods::is_ready(pod), meta::deleting(pod));
    let unready_too = service["spec"]["publishNotReadyAddresses"] == json!(true);
    let mut endpoint = json!({
        "addresses": [meta::text(pod, "/status/podIP")],
        "conditions": {
            "ready": unready_too || (ready && !terminating),
            "serving": ready,
            "terminating": terminating,
        },
        "targetRef": {
            "kind": "Pod", "namespace": meta::namespace(pod), "name": meta::name(pod), "uid": meta::uid(pod),
        },
    });
    let hostname = meta::text(pod, "/spec/hostname");
    if !hostname.is_empty() && meta::text(pod, "/spec/subdomain") == meta::name(service) {
        endpoint["hostname"] = json!(hostname);
    }
    let node = meta::text(pod, "/spec/nodeName");
    if !node.is_empty() {
        endpoint["nodeName"] = json!(node);
        let zone = client.get("nodes", "", node);
        let zone = zone.as_ref().and_then(|node| meta::labels(node)?.get("topology.kubernetes.io/zone"));
        if let Some(zone) = zone {
            endpoint["zone"] = zone.clone();
        }
    }
    endpoint
}
