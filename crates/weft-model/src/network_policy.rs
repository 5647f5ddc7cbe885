//! Kubernetes NetworkPolicies: who may open a connection to whom.
//!
//! Semantics of the Kubernetes documentation ("Network Policies"): a pod is isolated in a direction once a policy that
//! covers that direction selects it; then it may do what any of those policies lists, and nothing else. A connection has to
//! be permitted on both of its ends. Answers follow connections. What a pod sends to itself, and traffic between a pod and
//! the node that it runs on, are permitted always.

mod miss;

pub use miss::{Lack, Miss, misses};

use crate::selector::{Labels, Selector};
use ipnet::IpNet;
use std::net::IpAddr;

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPolicy {
    pub namespace: String,
    pub name: String,
    /// Which pods of its namespace.
    pub pods: Selector,
    /// `None` if the policy says nothing about what the pods receive; without rules it permits nothing.
    pub ingress: Option<Vec<Rule>>,
    /// The same for what the pods open.
    pub egress: Option<Vec<Rule>>,
}

/// Traffic that matches one of the peers and one of the ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Empty: anybody.
    pub peers: Vec<Peer>,
    /// Empty: any port of any protocol.
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Pods of the policy's own namespace, or of every namespace with such labels.
    Pods {
        namespaces: Option<Selector>,
        pods: Selector,
    },
    Block {
        network: IpNet,
        except: Vec<IpNet>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub protocol: Protocol,
    pub port: PortMatch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortMatch {
    Any,
    /// From, to, both included.
    Range(u16, u16),
    /// A container port of the pod that is connected to.
    Named(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Ingress,
    Egress,
}

/// A pod, as far as policies see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub labels: Labels,
    pub namespace_labels: Labels,
    pub ips: Vec<IpAddr>,
    /// It has the node's addresses: no policy selects it, and no peer means it but by address.
    pub host_network: bool,
    /// Named container ports.
    pub ports: Vec<(String, Protocol, u16)>,
}

/// An end of a connection: an address, and the pod that holds it, if one does.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    pub ip: IpAddr,
    pub pod: Option<&'a Pod>,
}

/// What one end of a connection says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side<'a> {
    /// No policy isolates the pod in this direction, or the end is no pod.
    Open,
    /// Permitted by this policy, the first of them.
    Permitted(&'a NetworkPolicy),
    /// Isolated by these policies, and none of them permits it.
    Refused(Vec<&'a NetworkPolicy>),
}

/// Whether a connection may be opened, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    pub egress: Side<'a>,
    pub ingress: Side<'a>,
}

impl Decision<'_> {
    pub fn permits(&self) -> bool {
        ![&self.egress, &self.ingress].into_iter().any(|side| matches!(side, Side::Refused(_)))
    }
}

/// Whether `from` may open a connection to `to`. Where one end is the node of the other, nobody needs to ask.
pub fn decide<'a>(
    policies: &'a [NetworkPolicy],
    from: End<'_>,
    to: End<'_>,
    protocol: Protocol,
    port: u16,
) -> Decision<'a> {
    let itself = from.ip == to.ip || from.pod.is_some_and(|pod| pod.ips.contains(&to.ip));
    if itself {
        return Decision { egress: Side::Open, ingress: Side::Open };
    }
    let side = |direction, own: End<'_>, other: End<'_>| {
        let Some(pod) = own.pod else { return Side::Open };
        let isolating: Vec<_> = isolating(policies, pod, direction).collect();
        if isolating.is_empty() {
            return Side::Open;
        }
        let permits = |(policy, rules): &(&NetworkPolicy, &[Rule])| {
            rules.iter().any(|rule| {
                rule.means(policy, other) && rule.numbers(to.pod).iter().any(|n| n.contains(protocol, port))
            })
        };
        match isolating.iter().find(|one| permits(one)) {
            Some((policy, _)) => Side::Permitted(policy),
            None => Side::Refused(isolating.into_iter().map(|(policy, _)| policy).collect()),
        }
    };
    Decision { egress: side(Direction::Egress, from, to), ingress: side(Direction::Ingress, to, from) }
}

/// The policies that isolate a pod in a direction, with their rules for it.
fn isolating<'a>(
    policies: &'a [NetworkPolicy],
    pod: &Pod,
    direction: Direction,
) -> impl Iterator<Item = (&'a NetworkPolicy, &'a [Rule])> {
    policies.iter().filter(|policy| policy.selects(pod)).filter_map(move |policy| {
        let rules = match direction {
            Direction::Ingress => &policy.ingress,
            Direction::Egress => &policy.egress,
        };
        Some((policy, rules.as_deref()?))
    })
}

/// One thing that an isolated pod may do, with selectors and names resolved for whoever enforces it by addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The other end.
    pub peer: Addresses,
    pub ports: Ports,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    Any,
    These(Vec<IpAddr>),
    Block { network: IpNet, except: Vec<IpNet> },
}

/// Ports of the end that is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Of any protocol.
    Any,
    /// From, to, both included.
    Of(Protocol, u16, u16),
}

impl Ports {
    pub fn contains(self, protocol: Protocol, port: u16) -> bool {
        match self {
            Ports::Any => true,
            Ports::Of(own, from, to) => own == protocol && (from..=to).contains(&port),
        }
    }
}

/// What a pod may do among these pods. `None` if no policy isolates it in this direction.
pub fn permits(
    policies: &[NetworkPolicy],
    pods: &[Pod],
    pod: &Pod,
    direction: Direction,
) -> Option<Vec<Permit>> {
    let mut isolated = false;
    let mut permits = Vec::new();
    for (policy, rules) in isolating(policies, pod, direction) {
        isolated = true;
        for rule in rules {
            rule.permits(policy, pods, pod, direction, &mut permits);
        }
    }
    isolated.then_some(permits)
}

impl NetworkPolicy {
    pub fn selects(&self, pod: &Pod) -> bool {
        !pod.host_network && self.namespace == pod.namespace && self.pods.selects(&pod.labels)
    }
}

impl Rule {
    /// Whether it means the other end.
    fn means(&self, policy: &NetworkPolicy, other: End<'_>) -> bool {
        self.peers.is_empty()
            || self.peers.iter().any(|peer| match peer {
                Peer::Block { network, except } => holds(network, except, other.ip),
                Peer::Pods { .. } => other.pod.is_some_and(|pod| peer.selects(policy, pod)),
            })
    }

    /// The ports that it means where `to` is connected to. A name that `to` does not have means none.
    fn numbers(&self, to: Option<&Pod>) -> Vec<Ports> {
        if self.ports.is_empty() {
            return vec![Ports::Any];
        }
        let mut numbers = Vec::new();
        for Port { protocol, port } in &self.ports {
            match port {
                PortMatch::Any => numbers.push(Ports::Of(*protocol, 0, u16::MAX)),
                PortMatch::Range(from, to) => numbers.push(Ports::Of(*protocol, *from, *to)),
                PortMatch::Named(name) => numbers.extend(
                    to.into_iter()
                        .flat_map(|pod| &pod.ports)
                        .filter(|(own, of, _)| own == name && of == protocol)
                        .map(|(.., number)| Ports::Of(*protocol, *number, *number)),
                ),
            }
        }
        numbers
    }

    fn permits(
        &self,
        policy: &NetworkPolicy,
        pods: &[Pod],
        pod: &Pod,
        direction: Direction,
        permits: &mut Vec<Permit>,
    ) {
        let mut peers: Vec<Addresses> = self
            .peers
            .iter()
            .filter_map(|peer| match peer {
                Peer::Block { network, except } => {
                    Some(Addresses::Block { network: *network, except: except.clone() })
                }
                Peer::Pods { .. } => None,
            })
            .collect();
        if self.peers.is_empty() {
            peers.push(Addresses::Any);
        }
        let selected = |other: &&Pod| self.peers.iter().any(|peer| peer.selects(policy, other));
        // A name stands for another number in each pod that may be connected to.
        let by_name = direction == Direction::Egress
            && self.ports.iter().any(|p| matches!(p.port, PortMatch::Named(_)));
        if by_name {
            for to in pods {
                let means = |ip: &&IpAddr| self.means(policy, End { ip: **ip, pod: Some(to) });
                let meant: Vec<IpAddr> = to.ips.iter().filter(means).copied().collect();
                if !meant.is_empty() {
                    let ports = self.numbers(Some(to)).into_iter();
                    permits
                        .extend(ports.map(|ports| Permit { peer: Addresses::These(meant.clone()), ports }));
                }
            }
        } else {
            let ips: Vec<IpAddr> = pods.iter().filter(selected).flat_map(|pod| &pod.ips).copied().collect();
            if !ips.is_empty() {
                peers.push(Addresses::These(ips));
            }
        }
        // Those of numbers hold for everybody, the outside included.
        let to = (direction == Direction::Ingress).then_some(pod);
        for ports in self.numbers(to) {
            permits.extend(peers.iter().cloned().map(|peer| Permit { peer, ports }));
        }
    }
}

impl Peer {
    fn selects(&self, policy: &NetworkPolicy, pod: &Pod) -> bool {
        match self {
            Peer::Block { .. } => false,
            Peer::Pods { namespaces, pods } => {
                let there = match namespaces {
                    None => pod.namespace == policy.namespace,
                    Some(namespaces) => namespaces.selects(&pod.namespace_labels),
                };
                !pod.host_network && there && pods.selects(&pod.labels)
            }
        }
    }
}

impl Addresses {
    pub fn contain(&self, ip: IpAddr) -> bool {
        match self {
            Addresses::Any => true,
            Addresses::These(ips) => ips.contains(&ip),
            Addresses::Block { network, except } => holds(network, except, ip),
        }
    }
}

fn holds(network: &IpNet, except: &[IpNet], ip: IpAddr) -> bool {
    network.contains(&ip) && !except.iter().any(|net| net.contains(&ip))
}
