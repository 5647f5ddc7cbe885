//! NetworkPolicies against what the mesh itself needs: the control plane, and the proxies' own port.

use super::{
    super::{
        Answer, Category, Check, Findings, Reply,
        facts::{Facts, Pod, Read},
        names::{ADMIN_PORT, INBOUND_PORT, OPAQUE_PORTS},
    },
    data_plane::{opaque_ports, ports},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};
use weft_kube::core::{endpoint_slice::SERVICE_NAME, network_policy::pod_to_model};
use weft_model::{
    network_policy::{self as model, Decision, Direction, End, Lack, Miss, Protocol, Side, decide, misses},
    selector::{Labels, Operator, Requirement},
};

pub(in super::super) const NETWORK: Category = Category {
    name: "weft-network-policy",
    checks: &[
        Check::error("weft-network-policy-control-plane", "NetworkPolicies let proxies reach the control plane", control_plane)
            .doc(
                "A NetworkPolicy drops what a proxy sends to the controller: it gets no certificate and learns of no destination. The log then says `identity required` or `fail-fast`, and names no policy.",
                "The message names policy, rule and label. Add the label, or a rule for the ports 8080 (identity), 8086 (destination) and 8090 (policy) of the control plane's namespace; both ends must permit it.",
            ),
        Check::error("weft-network-policy-proxy-port", "NetworkPolicies that permit opaque ports permit the proxies' port", proxy_port)
            .doc(
                "Opaque traffic between meshed pods goes to port 4143 of the server's proxy, not to the application's port. A policy permits the latter and drops the former.",
                "Permit 4143 wherever the opaque port is permitted, to and from the same pods.",
            ),
        Check::warning("weft-network-policy-metrics", "NetworkPolicies let Prometheus read the proxies", metrics).doc(
            "A NetworkPolicy drops what a Prometheus of the cluster asks of a proxy's admin port (4191): its pods are missing from dashboards and alerts.",
            "Permit 4191 from Prometheus's pods.",
        ),
        Check::warning("weft-network-policy-engines", "all network policies can be evaluated", engines).doc(
            "There are policies of another engine (Cilium, Calico, AdminNetworkPolicy), which is not evaluated here: the answers of this category hold without them.",
            "Compare with what the engine's own tool says.",
        ),
    ],
};

/// The pods as policies see them.
struct World<'f> {
    policies: Vec<model::NetworkPolicy>,
    pods: Vec<(&'f Pod, model::Pod)>,
}

impl<'f> World<'f> {
    fn of(facts: &'f Facts) -> Read<World<'f>> {
        let namespaces = facts.namespaces.as_ref()?;
        let labels: BTreeMap<&str, &Labels> =
            namespaces.iter().map(|ns| (ns.name.as_str(), &*ns.labels)).collect();
        let none = Labels::new();
        let live = facts.pods.as_ref()?.iter().filter(|pod| !pod.object.is_finished());
        let pods = live.map(|pod| {
            let of = labels.get(pod.object.metadata.namespace.as_str()).copied().unwrap_or(&none);
            (pod, pod_to_model(&pod.object, of))
        });
        let policies =
            facts.policies.network_policies.as_ref()?.iter().map(|policy| policy.to_model()).collect();
        Ok(World { policies, pods: pods.collect() })
    }

    fn by_ip(&self, ip: IpAddr) -> Option<&model::Pod> {
        self.pods.iter().map(|(_, pod)| pod).find(|pod| !pod.host_network && pod.ips.contains(&ip))
    }

    /// One pod for each set of labels of a namespace: policies cannot tell the others from it.
    fn kinds<'w>(&'w self, wanted: impl Fn(&Pod) -> bool + 'w) -> Vec<&'w (&'f Pod, model::Pod)> {
        let mut seen = BTreeSet::new();
        self.pods
            .iter()
            .filter(|(pod, model)| {
                let mut labels = model.labels.clone();
                labels.remove("pod-template-hash");
                wanted(pod) && !model.ips.is_empty() && seen.insert((model.namespace.clone(), labels))
            })
            .collect()
    }
}

fn end(pod: &model::Pod) -> Option<End<'_>> {
    Some(End { ip: *pod.ips.first()?, pod: Some(pod) })
}

/// Why NetworkPolicies refuse a connection from one pod to the other, if they do.
pub(super) fn why_refused(facts: &Facts, from: &Pod, to: &Pod, port: u16) -> Option<String> {
    let world = World::of(facts).ok()?;
    let of =
        |wanted: &Pod| world.pods.iter().find(|(pod, _)| pod.name() == wanted.name()).map(|(_, model)| model);
    refusal(&world.policies, end(of(from)?)?, end(of(to)?)?, port)
}

/// The policies that refuse a connection, the rule that nearly permits it, and what it lacks.
fn refusal(policies: &[model::NetworkPolicy], from: End<'_>, to: End<'_>, port: u16) -> Option<String> {
    let Decision { egress, ingress } = decide(policies, from, to, Protocol::Tcp, port);
    let side = |side: Side<'_>, direction, own, other: End<'_>| {
        let Side::Refused(by) = side else { return None };
        let names: Vec<String> =
            by.iter().map(|policy| format!("{}/{}", policy.namespace, policy.name)).collect();
        let way = if direction == Direction::Ingress { "ingress" } else { "egress" };
        let nearest = misses(policies, direction, own, other, Protocol::Tcp, port).into_iter().next();
        let why = nearest.map(|miss| format!(": {}", lacks(&miss, other, port))).unwrap_or_default();
        Some(format!("NetworkPolicy {} refuses it ({way}){why}", names.join(", ")))
    };
    side(ingress, Direction::Ingress, to, from).or_else(|| side(egress, Direction::Egress, from, to))
}

/// What the nearest rule asks for that is not so, and how it would be.
fn lacks(miss: &Miss<'_>, other: End<'_>, port: u16) -> String {
    let rule = format!("rule {} of {}", miss.rule.map_or(0, |at| at + 1), miss.policy.name);
    let who = other.pod.map_or(other.ip.to_string(), |pod| format!("{}/{}", pod.namespace, pod.name));
    match &miss.lacks {
        Lack::Everything => format!("{} permits nothing in that direction", miss.policy.name),
        Lack::Port => format!("{rule} means {who}, but not port {port}"),
        Lack::Namespace => format!(
            "{rule} means pods of namespace {} only, and {who} is in another; it has no namespaceSelector",
            miss.policy.namespace
        ),
        Lack::Address => format!("{rule} means other addresses than {}", other.ip),
        Lack::Labels { namespace, pod } => {
            let own = other.pod.map_or("", |pod| pod.namespace.as_str());
            let mut parts = Vec::new();
            if !namespace.is_empty() {
                let fix =
                    command(namespace).map(|labels| format!(" (`kubectl label namespace {own} {labels}`)"));
                let asks = all(namespace);
                parts.push(format!("namespace {own} lacks {asks}{}", fix.unwrap_or_default()));
            }
            if !pod.is_empty() {
                parts.push(format!("pod {who} lacks {}", all(pod)));
            }
            format!("{rule} would permit it, but {}", parts.join(" and "))
        }
    }
}

fn all(requirements: &[&Requirement]) -> String {
    requirements.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The labels that meet these requirements, if adding labels does.
fn command(requirements: &[&Requirement]) -> Option<String> {
    let labels =
        requirements.iter().map(|requirement| match (requirement.operator, requirement.values.first()) {
            (Operator::In, Some(value)) => Some(format!("{}={value}", requirement.key)),
            _ => None,
        });
    labels.collect::<Option<Vec<_>>>().map(|labels| labels.join(" "))
}

/// Services by which proxies reach the control plane.
const CONTROL: [&str; 3] = ["linkerd-dst-headless", "linkerd-identity-headless", "linkerd-policy"];

/// Where proxies' questions go: Service, address, port.
fn control_addresses(facts: &Facts) -> Read<Vec<(String, IpAddr, u16)>> {
    let own = facts.slices.as_ref()?.iter().filter(|s| s.metadata.namespace == facts.asked.control_namespace);
    let mut found = BTreeSet::new();
    for slice in own {
        let Some(service) = slice.metadata.label(SERVICE_NAME).filter(|name| CONTROL.contains(name)) else {
            continue;
        };
        for ip in slice.endpoints.iter().flat_map(|e| &e.addresses).filter_map(|ip| ip.parse().ok()) {
            found.extend(slice.ports.iter().filter_map(|port| Some((service.to_owned(), ip, port.port?))));
        }
    }
    Ok(found.into_iter().collect())
}

fn control_plane(facts: &Facts) -> Reply {
    if facts.plane()?.is_none() {
        return Ok(Answer::Idle);
    }
    let world = World::of(facts)?;
    let control = &facts.asked.control_namespace;
    let addresses = control_addresses(facts)?;
    let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (pod, model) in world.kinds(|pod| pod.is_meshed(control) && facts.is_asked(pod)) {
        let Some(from) = end(model) else { continue };
        for (service, ip, port) in &addresses {
            let to = End { ip: *ip, pod: world.by_ip(*ip) };
            // Between a pod and its node nobody asks for permission.
            if to.pod.is_none() && pod.object.status.host_ip == ip.to_string() {
                continue;
            }
            if let Some(why) = refusal(&world.policies, from, to, *port) {
                refused.entry(why).or_default().push(format!("{} → {service}:{port}", pod.name()));
            }
        }
    }
    refused
        .into_iter()
        .map(|(why, ways)| format!("{}: {why}", ways.join(", ")))
        .collect::<Findings>()
        .reply("proxies that do not reach the control plane:")
}

/// Ports of a pod that carry opaque traffic.
fn opaque(facts: &Facts, pod: &Pod) -> Vec<u16> {
    let meta = &pod.object.metadata;
    let is_opaque = ports(&opaque_ports(facts, meta.annotation(OPAQUE_PORTS), &meta.namespace));
    let declared =
        pod.object.all_containers().flat_map(|container| &container.ports).filter(|port| port.is_tcp());
    declared
        .filter(|port| is_opaque(port.container_port, Some(&port.name)))
        .map(|port| port.container_port)
        .collect()
}

fn proxy_port(facts: &Facts) -> Reply {
    let world = World::of(facts)?;
    if world.policies.is_empty() {
        return Ok(Answer::Good);
    }
    let control = &facts.asked.control_namespace;
    let meshed = world.kinds(|pod| pod.is_meshed(control));
    let mut found = Findings::default();
    for (server, to) in meshed.iter().filter(|(pod, _)| facts.is_asked(pod)) {
        for port in opaque(facts, server) {
            for (client, from) in &meshed {
                let (Some(from), Some(to)) = (end(from), end(to)) else { continue };
                if !decide(&world.policies, from, to, Protocol::Tcp, port).permits() {
                    continue;
                }
                if let Some(why) = refusal(&world.policies, from, to, INBOUND_PORT) {
                    let (client, server) = (client.name(), server.name());
                    found.problem(format!(
                        "{client} → {server}: port {port} is permitted, {INBOUND_PORT} is not. {why}"
                    ));
                }
            }
        }
    }
    found.reply("opaque traffic that is dropped:")
}

fn is_prometheus(pod: &Pod) -> bool {
    let meta = &pod.object.metadata;
    ["app.kubernetes.io/name", "component", "app"].iter().any(|key| meta.label(key) == Some("prometheus"))
}

fn metrics(facts: &Facts) -> Reply {
    let world = World::of(facts)?;
    let scrapers = world.kinds(is_prometheus);
    if scrapers.is_empty() {
        return Ok(Answer::Idle);
    }
    let mut found = Findings::default();
    for (pod, to) in world.kinds(|pod| pod.is_meshed(&facts.asked.control_namespace) && facts.is_asked(pod)) {
        for (scraper, from) in &scrapers {
            let (Some(from), Some(to)) = (end(from), end(to)) else { continue };
            if let Some(why) = refusal(&world.policies, from, to, ADMIN_PORT) {
                found.problem(format!("{} → {}: {why}", scraper.name(), pod.name()));
            }
        }
    }
    found.reply("proxies that are not read:")
}

fn engines(facts: &Facts) -> Reply {
    let found = facts.policies.engines.as_ref()?;
    let some: Vec<String> =
        found.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}")).collect();
    Ok(if some.is_empty() {
        Answer::Good
    } else {
        Answer::Unknown(format!("not evaluated: {}", some.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::healthy::{healthy, installed, object, rename};
    use serde_json::{Value, json};

    fn bad(reply: Reply) -> String {
        match reply {
            Ok(Answer::Bad(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    fn policy(namespace: &str, spec: Value) -> weft_kube::core::network_policy::NetworkPolicy {
        object(json!({"metadata": {"name": "only-mesh", "namespace": namespace}, "spec": spec}))
    }

    #[test]
    fn the_label_that_keeps_a_proxy_from_the_controller_is_named() {
        let mut facts = installed();
        assert_eq!(control_plane(&facts), Ok(Answer::Good));
        let from = json!([{"namespaceSelector": {"matchLabels": {"mesh": "yes"}}}]);
        facts.policies.network_policies =
            Ok(vec![policy("linkerd", json!({"podSelector": {}, "ingress": [{"from": from}]}))]);
        let said = bad(control_plane(&facts));
        for wanted in [
            "shop/web-1 → linkerd-dst-headless:8086",
            "NetworkPolicy linkerd/only-mesh refuses it (ingress): rule 1 of only-mesh would permit it",
            "namespace shop lacks mesh=yes (`kubectl label namespace shop mesh=yes`)",
        ] {
            assert!(said.contains(wanted), "{said}");
        }
        let shop = facts.namespaces.as_mut().unwrap().iter_mut().find(|ns| ns.name == "shop").unwrap();
        shop.labels = rename(&shop.labels, "mesh", "yes");
        assert_eq!(control_plane(&facts), Ok(Answer::Good));
    }

    #[test]
    fn the_node_of_a_local_mesh_is_always_reached() {
        let mut facts = healthy();
        let nothing = json!({"podSelector": {}, "policyTypes": ["Egress"]});
        facts.policies.network_policies = Ok(vec![policy("shop", nothing)]);
        assert_eq!(control_plane(&facts), Ok(Answer::Good));
    }

    #[test]
    fn an_opaque_port_needs_the_proxys_as_well() {
        let mut facts = healthy();
        let ports = |port: u16| json!({"podSelector": {"matchLabels": {"app": "store"}}, "ingress": [{"ports": [{"port": port}]}]});
        facts.policies.network_policies = Ok(vec![policy("shop", ports(8080))]);
        assert_eq!(proxy_port(&facts), Ok(Answer::Good), "HTTP keeps its port");
        let store = &mut facts.pods.as_mut().unwrap()[1].object.metadata;
        store.annotations = rename(&store.annotations, OPAQUE_PORTS, "8080");
        let said = bad(proxy_port(&facts));
        assert!(said.contains("shop/web-1 → shop/store-1: port 8080 is permitted, 4143 is not"), "{said}");
        assert!(said.contains("rule 1 of only-mesh means shop/web-1, but not port 4143"), "{said}");
        facts.policies.network_policies = Ok(vec![policy("shop", ports(9999))]);
        assert_eq!(proxy_port(&facts), Ok(Answer::Good), "what is not permitted at all is meant");
    }

    #[test]
    fn prometheus_and_other_engines() {
        let mut facts = healthy();
        assert_eq!((metrics(&facts), engines(&facts)), (Ok(Answer::Idle), Ok(Answer::Good)));
        let mut prometheus = crate::check::facts::healthy::pod("metrics", "prometheus-0", "10.77.0.40");
        prometheus.object.metadata.labels = rename(&prometheus.object.metadata.labels, "app", "prometheus");
        facts.pods.as_mut().unwrap().push(prometheus);
        facts.policies.network_policies = Ok(vec![policy(
            "shop",
            json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}),
        )]);
        let said = bad(metrics(&facts));
        assert!(
            said.contains("metrics/prometheus-0 → shop/web-1") && said.contains("namespace shop only"),
            "{said}"
        );
        facts.policies.engines = Ok(vec![("ciliumnetworkpolicies.cilium.io".into(), 3)]);
        assert!(
            matches!(engines(&facts), Ok(Answer::Unknown(why)) if why.contains("3 ciliumnetworkpolicies"))
        );
    }
}
