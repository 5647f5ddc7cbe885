//! EndpointSlices of Endpoints that people write for Services without a selector: slices are what proxies and names follow.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::error::ApiError;
use crate::api::store::Change;
use crate::api::update::Part;
use crate::api::{Api, meta};

use super::client::{Client, controlled_by};
use super::drive::{Controller, Key, Outcome, drive, own_key};
use super::endpoint_slice::{MANAGED_BY, SERVICE_NAME, SLICES, or_null, same_ports, selector_of};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";

/// As many addresses of a subset as are mirrored.
const MOST: usize = 1000;

pub(super) async fn run(api: Arc<Api>) {
    drive(&Mirror { client: Client::new(&api, "endpointslicemirroring-controller") }).await;
}

struct Mirror {
    client: Client,
}

impl Controller for Mirror {
    const RESOURCES: &[&str] = &["services", "endpoints", SLICES];

    fn client(&self) -> &Client {
        &self.client
    }

    fn keys(&self, change: &Change) -> Vec<Key> {
        if &*change.resource != SLICES {
            return vec![own_key(change)];
        }
        if !is_ours(&change.object) {
            return Vec::new();
        }
        let service = meta::labels(&change.object).and_then(|labels| labels.get(SERVICE_NAME)?.as_str());
        let key = |name: &str| (meta::namespace(&change.object).to_owned(), name.to_owned());
        service.map(key).into_iter().collect()
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        reconcile(&self.client, key).await
    }
}

fn is_ours(slice: &Value) -> bool {
    meta::labels(slice).is_some_and(|labels| labels.get(MANAGED_BY).is_some_and(|by| by == MANAGER))
}

async fn reconcile(client: &Client, (namespace, name): &Key) -> Outcome {
    let mut existing = client.list(SLICES, namespace);
    existing.retain(|slice| {
        is_ours(slice)
            && !meta::deleting(slice)
            && meta::labels(slice).is_some_and(|labels| labels.get(SERVICE_NAME).is_some_and(|of| of == name))
    });
    let wanted = match client.get("endpoints", namespace, name) {
        Some(endpoints) if is_mirrored(client, &endpoints) => slices(&endpoints),
        _ => Vec::new(),
    };
    for slice in wanted {
        // The slice with these ports stays, so that its endpoints move the least.
        let same = existing.iter().position(|old| {
            old["addressType"] == slice["addressType"] && same_ports(old, meta::items(&slice, "/ports"))
        });
        match same {
            Some(at) => update(client, &existing.remove(at), &slice).await?,
            None => drop(client.create(SLICES, namespace, slice).await?),
        }
    }
    for slice in existing {
        client.delete(SLICES, &slice).await?;
    }
    Ok(None)
}

/// Endpoints of a Service for which no other controller writes slices.
fn is_mirrored(client: &Client, endpoints: &Value) -> bool {
    let skipped = meta::labels(endpoints).and_then(|labels| labels.get(SKIP)) == Some(&json!("true"));
    let service = client.get("services", meta::namespace(endpoints), meta::name(endpoints));
    !skipped && !meta::deleting(endpoints) && service.is_some_and(|service| selector_of(&service).is_none())
}

async fn update(client: &Client, slice: &Value, wanted: &Value) -> Result<(), ApiError> {
    let metadata = ["labels", "annotations"];
    let same = metadata.iter().all(|field| slice["metadata"][field] == wanted["metadata"][field]);
    if same && slice["endpoints"] == wanted["endpoints"] {
        return Ok(());
    }
    let change = |slice: &mut Value| {
        for field in metadata {
            slice["metadata"][field] = wanted["metadata"][field].clone();
        }
        slice["endpoints"] = wanted["endpoints"].clone();
    };
    match client.update(SLICES, slice, Part::Main, change).await {
        Err(error) if error.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// One slice for each family and list of ports.
fn slices(endpoints: &Value) -> Vec<Value> {
    let mut slices: Vec<Value> = Vec::new();
    for subset in meta::items(endpoints, "/subsets") {
        let ports: Vec<Value> = meta::items(subset, "/ports")
            .iter()
            .map(|port| {
                let mut entry = port.clone();
                entry["name"] = json!(meta::text(port, "/name"));
                entry
            })
            .collect();
        let ready = meta::items(subset, "/addresses").iter().map(|address| (address, true));
        let not_ready = meta::items(subset, "/notReadyAddresses").iter().map(|address| (address, false));
        for (address, ready) in ready.chain(not_ready).take(MOST) {
            let family = if meta::text(address, "/ip").contains(':') { "IPv6" } else { "IPv4" };
            let at = slices
                .iter()
                .position(|slice| slice["addressType"] == family && same_ports(slice, &ports))
                .unwrap_or_else(|| {
                    slices.push(new_slice(endpoints, family, &ports));
                    slices.len() - 1
                });
            if let Some(list) = slices[at]["endpoints"].as_array_mut() {
                list.push(endpoint(address, ready));
            }
        }
    }
    slices
}

fn endpoint(address: &Value, ready: bool) -> Value {
    let mut endpoint = json!({ "addresses": [address["ip"]], "conditions": { "ready": ready } });
    for field in ["hostname", "nodeName", "targetRef"] {
        if let Some(value) = address.get(field) {
            endpoint[field] = value.clone();
        }
    }
    endpoint
}

fn new_slice(endpoints: &Value, family: &str, ports: &[Value]) -> Value {
    let mut labels = json!({});
    for (key, value) in meta::labels(endpoints).into_iter().flatten() {
        labels[key] = value.clone();
    }
    labels[MANAGED_BY] = json!(MANAGER);
    labels[SERVICE_NAME] = json!(meta::name(endpoints));
    let mut slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "generateName": format!("{}-", meta::name(endpoints)),
            "labels": labels,
            "ownerReferences": controlled_by(endpoints),
        },
        "addressType": family,
        "endpoints": [],
        "ports": or_null(ports),
    });
    // Notes about how the Endpoints came about are not about the slice.
    let of_its_own = [
        "kubectl.kubernetes.io/last-applied-configuration",
        "endpoints.kubernetes.io/last-change-trigger-time",
    ];
    for (key, value) in endpoints["metadata"]["annotations"].as_object().into_iter().flatten() {
        if !of_its_own.contains(&key.as_str()) {
            slice["metadata"]["annotations"][key] = value.clone();
        }
    }
    slice
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the controllers of a 1.36 cluster wrote them for these Endpoints.
    #[test]
    fn slices_are_those_of_a_real_controller() {
        let endpoints = json!({
            "apiVersion": "v1", "kind": "Endpoints",
            "metadata": { "name": "a", "uid": "u", "labels": { "el": "ev" }, "annotations": {
                "k": "v", "kubectl.kubernetes.io/last-applied-configuration": "{}" } },
            "subsets": [
                { "addresses": [{ "ip": "10.1.1.1", "hostname": "h", "nodeName": "node" }],
                    "notReadyAddresses": [{ "ip": "10.1.1.3" }],
                    "ports": [{ "port": 80, "name": "a", "protocol": "TCP", "appProtocol": "http" }] },
                { "addresses": [{ "ip": "10.1.1.4" }, { "ip": "fd00::1" }], "ports": [{ "port": 82, "protocol": "TCP" }] },
                { "addresses": [{ "ip": "10.1.1.5" }], "ports": [{ "port": 82, "protocol": "TCP" }] },
            ],
        });
        let slices = slices(&endpoints);
        let shown: Vec<Value> =
            slices.iter().map(|s| json!([s["addressType"], s["endpoints"], s["ports"]])).collect();
        let ready = json!({ "ready": true });
        let alone = |ip: &str| json!({ "addresses": [ip], "conditions": ready });
        let unnamed = json!([{ "port": 82, "protocol": "TCP", "name": "" }]);
        assert_eq!(
            shown,
            [
                json!(["IPv4", [
                { "addresses": ["10.1.1.1"], "conditions": ready, "hostname": "h", "nodeName": "node" },
                { "addresses": ["10.1.1.3"], "conditions": { "ready": false } },
            ], [{ "port": 80, "protocol": "TCP", "name": "a", "appProtocol": "http" }]]),
                json!(["IPv4", [alone("10.1.1.4"), alone("10.1.1.5")], unnamed]),
                json!(["IPv6", [alone("fd00::1")], unnamed]),
            ]
        );
        let metadata = &slices[0]["metadata"];
        let labels = json!({ "el": "ev", MANAGED_BY: MANAGER, SERVICE_NAME: "a" });
        assert_eq!((&metadata["labels"], &metadata["annotations"]), (&labels, &json!({ "k": "v" })));
        assert_eq!(metadata["ownerReferences"][0]["kind"], "Endpoints");
    }
}
