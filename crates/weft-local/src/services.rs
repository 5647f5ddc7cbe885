//! The Services and their endpoints, as one value that DNS and address translation follow.

use futures_util::TryStreamExt;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api, Client, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
};
use tokio::sync::watch;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// Everything known at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Services {
    pub(crate) services: BTreeMap<Key, Arc<Service>>,
    pub(crate) slices: BTreeMap<Key, Arc<EndpointSlice>>,
}

/// One address behind a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) ip: Ipv4Addr,
    /// Set for pods with a `hostname` whose `subdomain` is the service.
    pub(crate) hostname: Option<String>,
    /// Port names (empty for the only one), protocols and numbers.
    pub(crate) ports: Vec<(String, String, u16)>,
}

impl Services {
    /// Addresses that take traffic: the ready ones; if there are none, those that end but still serve.
    pub(crate) fn endpoints(&self, key: &Key) -> Vec<Endpoint> {
        let (mut ready, mut ending) = (Vec::new(), Vec::new());
        for slice in self.slices.values().filter(|s| owner(s).as_ref() == Some(key)) {
            let ports: Vec<_> = slice
                .ports
                .iter()
                .flatten()
                .filter_map(|p| {
                    let number = p.port.and_then(|n| u16::try_from(n).ok())?;
                    let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".into());
                    Some((p.name.clone().unwrap_or_default(), protocol, number))
                })
                .collect();
            for endpoint in &slice.endpoints {
                let Some(ip) = endpoint.addresses.first().and_then(|a| a.parse().ok()) else { continue };
                let conditions = endpoint.conditions.clone().unwrap_or_default();
                let found = Endpoint { ip, hostname: endpoint.hostname.clone(), ports: ports.clone() };
                if conditions.ready != Some(false) {
                    ready.push(found);
                } else if conditions.serving == Some(true) && conditions.terminating == Some(true) {
                    ending.push(found);
                }
            }
        }
        let mut chosen = if ready.is_empty() { ending } else { ready };
        chosen.sort_by_key(|e| e.ip);
        chosen
    }

    pub(crate) fn has_namespace(&self, namespace: &str) -> bool {
        self.services.keys().any(|(ns, _)| ns == namespace)
    }

    /// The translations to set up, ordered.
    pub(crate) fn translations(&self) -> Vec<Translation> {
        let mut all = Vec::new();
        for (key, service) in &self.services {
            let Some(ip) = cluster_ip(service) else { continue };
            let spec = service.spec.as_ref();
            let affinity = spec.and_then(|s| s.session_affinity.as_deref()) == Some("ClientIP");
            let endpoints = self.endpoints(key);
            for port in spec.iter().flat_map(|s| s.ports.iter().flatten()) {
                let name = port.name.as_deref().unwrap_or_default();
                let protocol = match port.protocol.as_deref().unwrap_or("TCP") {
                    "TCP" => libc::IPPROTO_TCP as u8,
                    "UDP" => libc::IPPROTO_UDP as u8,
                    _ => continue,
                };
                let Ok(number) = u16::try_from(port.port) else { continue };
                let targets: BTreeSet<SocketAddrV4> = endpoints
                    .iter()
                    .filter_map(|e| {
                        let target = e.ports.iter().find(|(n, ..)| n == name)?;
                        Some(SocketAddrV4::new(e.ip, target.2))
                    })
                    .collect();
                let targets = targets.into_iter().collect();
                all.push(Translation { ip, protocol, port: number, targets, affinity });
            }
        }
        all.sort_by_key(|t| (t.ip, t.protocol, t.port));
        all.dedup_by_key(|t| (t.ip, t.protocol, t.port));
        all
    }
}

/// One port of a ClusterIP and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    pub(crate) ip: Ipv4Addr,
    pub(crate) protocol: u8,
    pub(crate) port: u16,
    pub(crate) targets: Vec<SocketAddrV4>,
    /// A client keeps its target.
    pub(crate) affinity: bool,
}

/// The service's own address; `None` for headless and external ones.
pub(crate) fn cluster_ip(service: &Service) -> Option<Ipv4Addr> {
    service.spec.as_ref()?.cluster_ip.as_deref()?.parse().ok()
}

/// The service that a slice belongs to.
fn owner(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.labels().get("kubernetes.io/service-name")?;
    Some((slice.namespace()?, name.clone()))
}

/// Follows the API for ever.
pub(crate) async fn follow(client: Client, to: watch::Sender<Arc<Services>>) {
    let services = watcher(Api::<Service>::all(client.clone()), watcher::Config::default()).default_backoff();
    let slices = watcher(Api::<EndpointSlice>::all(client), watcher::Config::default()).default_backoff();
    futures_util::pin_mut!(services, slices);
    let mut now = Services::default();
    // While a new list comes in, the old one stays in force.
    let (mut new_services, mut new_slices) = (BTreeMap::new(), BTreeMap::new());
    loop {
        let changed = tokio::select! {
            event = services.try_next() => match event {
                Ok(Some(event)) => take(event, &mut now.services, &mut new_services),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "the watch on services was lost; it is taken up again");
                    false
                }
            },
            event = slices.try_next() => match event {
                Ok(Some(event)) => take(event, &mut now.slices, &mut new_slices),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "the watch on endpoint slices was lost; it is taken up again");
                    false
                }
            },
        };
        if changed {
            to.send_replace(Arc::new(now.clone()));
        }
    }
}

fn take<K: ResourceExt>(
    event: watcher::Event<K>,
    now: &mut BTreeMap<Key, Arc<K>>,
    new: &mut BTreeMap<Key, Arc<K>>,
) -> bool {
    let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
    match event {
        watcher::Event::Init => {
            new.clear();
            return false;
        }
        watcher::Event::InitApply(object) => {
            new.insert(key(&object), Arc::new(object));
            return false;
        }
        watcher::Event::InitDone => *now = std::mem::take(new),
        watcher::Event::Apply(object) => drop(now.insert(key(&object), Arc::new(object))),
        watcher::Event::Delete(object) => drop(now.remove(&key(&object))),
    }
    true
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// From plain objects, as the API would list them.
    pub(crate) fn services(objects: Value) -> Services {
        let mut all = Services::default();
        for object in objects.as_array().unwrap() {
            if object["kind"] == "Service" {
                let s: Service = serde_json::from_value(object.clone()).unwrap();
                all.services.insert((s.namespace().unwrap(), s.name_any()), Arc::new(s));
            } else {
                let s: EndpointSlice = serde_json::from_value(object.clone()).unwrap();
                all.slices.insert((s.namespace().unwrap(), s.name_any()), Arc::new(s));
            }
        }
        all
    }

    pub(crate) fn slice(service: &str, endpoints: Value, ports: Value) -> Value {
        json!({"kind": "EndpointSlice", "metadata": {"name": format!("{service}-x"), "namespace": "shop",
            "labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4", "endpoints": endpoints, "ports": ports})
    }

    #[test]
    fn translations_take_ready_endpoints_by_port_name() {
        let all = services(json!([
            {"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.78.0.20",
                "sessionAffinity": "ClientIP", "ports": [
                {"name": "http", "port": 80, "targetPort": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}]}},
            {"kind": "Service", "metadata": {"name": "none", "namespace": "shop"}, "spec": {"clusterIP": "10.78.0.21",
                "ports": [{"port": 80}]}},
            {"kind": "Service", "metadata": {"name": "headless", "namespace": "shop"}, "spec": {"clusterIP": "None",
                "ports": [{"port": 80}]}},
            slice("web", json!([
                {"addresses": ["10.77.0.3"], "conditions": {"ready": true}},
                {"addresses": ["10.77.0.2"]},
                {"addresses": ["10.77.0.4"], "conditions": {"ready": false}},
                {"addresses": ["10.77.0.5"], "conditions": {"ready": false, "serving": true, "terminating": true}}]),
                json!([{"name": "http", "port": 8080, "protocol": "TCP"}])),
        ]));
        let got: Vec<String> = all
            .translations()
            .iter()
            .map(|t| format!("{}:{}/{} {:?} {}", t.ip, t.port, t.protocol, t.targets, t.affinity))
            .collect();
        assert_eq!(
            got,
            [
                "10.78.0.20:80/6 [10.77.0.2:8080, 10.77.0.3:8080] true",
                "10.78.0.20:53/17 [] true",
                "10.78.0.21:80/6 [] false"
            ]
        );
    }

    #[test]
    fn the_last_endpoints_serve_while_they_end() {
        let ending = json!([{"addresses": ["10.77.0.5"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            {"addresses": ["10.77.0.6"], "conditions": {"ready": false, "serving": false, "terminating": true}}]);
        let all = services(json!([slice("web", ending, json!([]))]));
        let found = all.endpoints(&("shop".into(), "web".into()));
        assert_eq!(found.iter().map(|e| e.ip.octets()[3]).collect::<Vec<_>>(), [5]);
    }
}
