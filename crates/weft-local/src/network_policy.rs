//! NetworkPolicies: what a cluster's network plugin does, as one nf_tables table of the node's namespace, replaced whole at
//! each change. What is permitted is decided by `weft_model::network_policy`; here it is only written as rules.
//!
//! What is not permitted is dropped, as most plugins do: a client sees a timeout, here as in a cluster. Connections that
//! were let through once stay. Traffic between a pod and its node is always let through, as Kubernetes says; but what on
//! the node stands in for pods of a cluster (the name server, the mesh's controller) is asked for as those pods would be.

use crate::{
    network::Network,
    services::{Services, cluster_ip},
};
use kube::{Client, ResourceExt};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};
use tokio::sync::{mpsc, watch};
use weft_kube::{
    core::{
        network_policy::{NetworkPolicy, pod_to_model},
        node::Namespace,
        pod::Pod,
    },
    kind::Kind,
    meta::{Meta, ObjectName},
    watch::{Event, Pulse, Scope, Watch, heartbeat},
};
use weft_model::{
    network_policy::{self as model, Addresses, Direction, Permit, Ports, Protocol},
    selector::{Labels, Selector},
};
use weft_net::netlink::{
    NetlinkError,
    nft::{Address, Family, Hook, NftSocket, PRIORITY_FILTER, Rule, Table, Verdict},
};

const TABLE: &str = "weft_policies";
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Changes that wait to be taken up, and how many are taken up before the table is made anew.
const QUEUE: usize = 256;

/// Keeps the table in step with policies, pods and namespaces. `socket` is of the node's namespace.
pub(crate) async fn follow(
    client: Client,
    network: Network,
    mut services: watch::Receiver<Arc<Services>>,
    mut socket: NftSocket,
) {
    let pulse = Pulse::default();
    let (out, mut changes) = mpsc::channel(QUEUE);
    fn start<K: Kind>(
        client: &Client,
        pulse: &Pulse,
        out: &mpsc::Sender<Change>,
        change: impl Fn(Event<K>) -> Change + Send + Sync + 'static,
    ) {
        let watch = Watch::new::<K>(client.clone(), Scope::default(), pulse.clone());
        tokio::spawn(watch.run::<K, _>(out.clone(), change));
    }
    start(&client, &pulse, &out, Change::Policy);
    start(&client, &pulse, &out, Change::Namespace);
    start(&client, &pulse, &out, Change::Pod);
    drop(out);
    tokio::spawn(heartbeat(client.clone(), pulse.clone(), HEARTBEAT));
    let mut known = Known::default();
    let mut before = Rules::default();
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            taken = changes.recv_many(&mut batch, QUEUE) => if taken == 0 { return },
            changed = services.changed() => if changed.is_err() { return },
        }
        batch.drain(..).for_each(|change| known.take(change));
        let now = known.rules(&network, &services.borrow());
        if now == before {
            continue;
        }
        match apply(&mut socket, &network, &now) {
            Ok(()) => before = now,
            Err(error) => tracing::error!(%error, "network policies are not up to date"),
        }
    }
}

fn apply(socket: &mut NftSocket, network: &Network, rules: &Rules) -> Result<(), NetlinkError> {
    socket.apply(&if rules.pods.is_empty() {
        Table::remove(Family::Ipv4, TABLE)
    } else {
        rules.table(network)
    })
}

enum Change {
    Policy(Event<NetworkPolicy>),
    Namespace(Event<Namespace>),
    Pod(Event<Pod>),
}

/// The objects as they are.
#[derive(Debug, Default)]
struct Known {
    policies: BTreeMap<ObjectName, model::NetworkPolicy>,
    namespaces: BTreeMap<ObjectName, Arc<Namespace>>,
    pods: BTreeMap<ObjectName, Arc<Pod>>,
}

impl Known {
    fn take(&mut self, change: Change) {
        match change {
            Change::Policy(event) => {
                take(event, &mut self.policies, |p| p.to_model(), |meta| Some(closed(meta)))
            }
            Change::Namespace(event) => take(event, &mut self.namespaces, |n| n, |_| None),
            Change::Pod(event) => take(event, &mut self.pods, |p| p, |_| None),
        }
    }

    /// What every isolated pod may do.
    fn rules(&self, network: &Network, services: &Services) -> Rules {
        if self.policies.is_empty() {
            return Rules::default();
        }
        let labels = |namespace: &str| -> Labels {
            let known = self.namespaces.get(&ObjectName::new("", namespace));
            known.map(|n| (*n.metadata.labels).clone()).unwrap_or_default()
        };
        let policies: Vec<model::NetworkPolicy> = self.policies.values().cloned().collect();
        let own: Vec<model::Pod> =
            self.pods.values().map(|pod| pod_to_model(pod, &labels(&pod.metadata.namespace))).collect();
        let (stand_ins, places) = stand_ins(network, services, labels);
        let pods: Vec<model::Pod> = own.iter().cloned().chain(stand_ins).collect();
        let mut rules = Rules { pods: Vec::new(), stand_ins: places };
        for pod in own.iter().filter(|pod| !pod.ips.is_empty() && !pod.host_network) {
            let permits = |direction| model::permits(&policies, &pods, pod, direction);
            let (ingress, egress) = (permits(Direction::Ingress), permits(Direction::Egress));
            for ip in pod.ips.iter().filter_map(ipv4) {
                if ingress.is_some() || egress.is_some() {
                    rules.pods.push(Isolated { ip, ingress: ingress.clone(), egress: egress.clone() });
                }
            }
        }
        rules
    }
}

/// Takes an event into a set. An object that cannot be read is what `unreadable` makes of it.
fn take<K: Kind, V>(
    event: Event<K>,
    known: &mut BTreeMap<ObjectName, V>,
    value: impl Fn(Arc<K>) -> V,
    unreadable: impl Fn(&Meta) -> Option<V>,
) {
    let one = |known: &mut BTreeMap<ObjectName, V>,
               object: Result<Arc<K>, Box<weft_kube::kind::Undecodable>>| {
        let (name, new) = match object {
            Ok(object) => (object.meta().key(), Some(value(object))),
            Err(bad) => {
                tracing::error!(kind = K::KIND, name = %bad.meta.key(), reason = bad.reason, "cannot be read");
                (bad.meta.key(), unreadable(&bad.meta))
            }
        };
        match new {
            Some(new) => drop(known.insert(name, new)),
            None => drop(known.remove(&name)),
        }
    };
    match event {
        Event::Replaced(objects) => {
            known.clear();
            objects.into_iter().for_each(|object| one(known, object.map(Arc::new)));
        }
        Event::Applied(object) => one(known, Ok(object)),
        Event::Undecodable(bad) => one(known, Err(bad)),
        Event::Deleted(name) => drop(known.remove(&name)),
        Event::Absent => known.clear(),
    }
}

/// A policy that cannot be read may have been meant to deny anything: its whole namespace is closed.
fn closed(meta: &Meta) -> model::NetworkPolicy {
    model::NetworkPolicy {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        pods: Selector::default(),
        ingress: Some(Vec::new()),
        egress: Some(Vec::new()),
    }
}

/// Where on the node something is that would be a pod elsewhere: address, protocol, port.
type Place = (Ipv4Addr, Protocol, u16);

/// What serves on the node for a Service, as a pod of the Service's namespace with the labels of the Service.
fn stand_ins(
    network: &Network,
    services: &Services,
    labels: impl Fn(&str) -> Labels,
) -> (Vec<model::Pod>, Vec<Place>) {
    let (mut pods, mut places) = (Vec::new(), Vec::new());
    let mut stand_in =
        |namespace: &str, name: &str, labels: Labels, namespace_labels: Labels, at: Ipv4Addr| {
            pods.push(model::Pod {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                labels,
                namespace_labels,
                ips: vec![at.into()],
                ..model::Pod::default()
            });
        };
    for (key @ (namespace, name), service) in &services.services {
        if cluster_ip(service) == Some(network.dns_ip()) {
            let dns = [("k8s-app".to_owned(), "kube-dns".to_owned())].into();
            stand_in(namespace, name, dns, labels(namespace), network.dns_ip());
            places.extend([Protocol::Udp, Protocol::Tcp].map(|protocol| (network.dns_ip(), protocol, 53)));
            continue;
        }
        // The API server is the node's own, in a cluster as well.
        let is_api = cluster_ip(service) == Some(network.api_service_ip());
        let here = services.endpoints(key).into_iter().filter(|endpoint| endpoint.ip == network.node_ip());
        for endpoint in here.filter(|_| !is_api) {
            stand_in(namespace, name, service.labels().clone(), labels(namespace), endpoint.ip);
            let tcp = endpoint.ports.iter().filter(|(_, protocol, _)| protocol == "TCP");
            places.extend(tcp.map(|(.., port)| (endpoint.ip, Protocol::Tcp, *port)));
        }
    }
    places.sort_unstable();
    places.dedup();
    (pods, places)
}

fn ipv4(ip: &IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(ip) => Some(*ip),
        IpAddr::V6(_) => None,
    }
}

/// What the table says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rules {
    pods: Vec<Isolated>,
    stand_ins: Vec<Place>,
}

/// An isolated pod, and what it may do all the same.
#[derive(Debug, PartialEq, Eq)]
struct Isolated {
    ip: Ipv4Addr,
    ingress: Option<Vec<Permit>>,
    egress: Option<Vec<Permit>>,
}

impl Rules {
    fn table(&self, network: &Network) -> Table {
        const EGRESS: &str = "egress";
        const INGRESS: &str = "ingress";
        let mut table = Table::replace(Family::Ipv4, TABLE);
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for pod in &self.pods {
            let sides = [
                ("to", &pod.ingress, Address::Source, &mut receivers),
                ("from", &pod.egress, Address::Destination, &mut senders),
            ];
            for (which, permits, other, chains) in sides {
                let Some(permits) = permits else { continue };
                let chain = format!("{which}-{}", pod.ip);
                table.chain(&chain);
                permits.iter().for_each(|permit| write(&mut table, &chain, permit, other));
                table.rule(&chain, Rule::new().verdict(&Verdict::Drop));
                chains.push((pod.ip, chain));
            }
        }
        table.chains_by_address(EGRESS, &senders);
        table.chains_by_address(INGRESS, &receivers);

        let forwarded = "forwarded";
        table.base_chain(forwarded, "filter", Hook::Forward, PRIORITY_FILTER);
        table.rule(forwarded, Rule::new().established().verdict(&Verdict::Accept));
        for end in [Address::Source, Address::Destination] {
            let machine = Rule::new().address(end, network.host_ip(), 32, true);
            table.rule(forwarded, machine.verdict(&Verdict::Accept));
        }
        let sender = || Rule::new().load_address(Address::Source, 8).lookup(EGRESS, None, 8, 0);
        table.rule(forwarded, sender());
        table.rule(forwarded, Rule::new().load_address(Address::Destination, 8).lookup(INGRESS, None, 8, 0));

        let to_node = "to-node";
        table.base_chain(to_node, "filter", Hook::Input, PRIORITY_FILTER);
        table.rule(to_node, Rule::new().established().verdict(&Verdict::Accept));
        for (ip, protocol, port) in &self.stand_ins {
            let place = Rule::new().address(Address::Destination, *ip, 32, true);
            let place = place.protocol(number(*protocol)).destination_port(*port, *port);
            table.rule(to_node, place.load_address(Address::Source, 8).lookup(EGRESS, None, 8, 0));
        }
        table
    }
}

/// What is permitted goes back to where the chain was jumped from.
fn write(table: &mut Table, chain: &str, permit: &Permit, other: Address) {
    let mut rule = Rule::new();
    match &permit.peer {
        Addresses::Any => {}
        Addresses::These(ips) => {
            let ips: Vec<Ipv4Addr> = ips.iter().filter_map(ipv4).collect();
            if ips.is_empty() {
                return;
            }
            let (set, id) = table.addresses(&ips);
            rule = rule.load_address(other, 8).contained(set, Some(id), 8);
        }
        Addresses::Block { network, except } => {
            let ipnet::IpNet::V4(network) = network else { return };
            rule = rule.address(other, network.network(), network.prefix_len(), true);
            for hole in except {
                if let ipnet::IpNet::V4(hole) = hole {
                    rule = rule.address(other, hole.network(), hole.prefix_len(), false);
                }
            }
        }
    }
    if let Ports::Of(protocol, from, to) = permit.ports {
        rule = rule.protocol(number(protocol));
        if (from, to) != (0, u16::MAX) {
            rule = rule.destination_port(from, to);
        }
    }
    table.rule(chain, rule.verdict(&Verdict::Return));
}

fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => libc::IPPROTO_TCP as u8,
        Protocol::Udp => libc::IPPROTO_UDP as u8,
        Protocol::Sctp => libc::IPPROTO_SCTP as u8,
    }
}
