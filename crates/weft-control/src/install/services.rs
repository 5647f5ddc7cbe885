//! The Services under whose names proxies and the API server find the controller.

use super::{
    objects::{meta, selector},
    webhooks,
};
use crate::config::Ports;
use serde_json::{Value, json};

/// A Service whose only endpoints are the controller's.
pub struct ControlService {
    pub name: &'static str,
    headless: bool,
    /// Name, Service port, port of the controller.
    pub ports: Vec<(&'static str, u16, u16)>,
}

pub fn services(ports: Ports) -> Vec<ControlService> {
    let grpc = ("grpc", ports.destination, ports.destination);
    let identity = ("grpc", ports.identity, ports.identity);
    let admin = ("admin-http", ports.admin, ports.admin);
    let service = |name, headless, ports: &[(&'static str, u16, u16)]| ControlService {
        name,
        headless,
        ports: ports.to_vec(),
    };
    let mut all = vec![
        service("linkerd-dst", false, &[grpc, admin]),
        service("linkerd-dst-headless", true, &[grpc]),
        service("linkerd-policy", true, &[("grpc", ports.policy, ports.policy)]),
        service("linkerd-identity", false, &[identity]),
        service("linkerd-identity-headless", true, &[identity]),
    ];
    all.extend(webhooks::SERVICES.map(|name| service(name, false, &[("webhook", 443, ports.webhook)])));
    all
}

impl ControlService {
    /// `selected`: the controller's pods stand behind it; otherwise somebody else writes its endpoints.
    pub fn object(&self, selected: bool) -> Value {
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|(name, port, target)| {
                json!({"name": name, "port": port, "targetPort": target, "protocol": "TCP"})
            })
            .collect();
        let mut spec = json!({"type": "ClusterIP", "ports": ports});
        if self.headless {
            spec["clusterIP"] = json!("None");
        }
        if selected {
            spec["selector"] = selector();
        }
        json!({"apiVersion": "v1", "kind": "Service", "metadata": meta(self.name), "spec": spec})
    }
}
