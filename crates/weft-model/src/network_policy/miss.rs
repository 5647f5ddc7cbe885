//! How nearly a refused connection was permitted: the rule, and the label it lacks.

use super::{Direction, End, NetworkPolicy, Peer, Protocol, isolating};
use crate::selector::Requirement;

/// A rule of a policy that isolates one end, and why it does not permit the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss<'a> {
    pub policy: &'a NetworkPolicy,
    /// Its place in the policy's list for the direction, from 0; `None` if the policy has no rule there at all.
    pub rule: Option<usize>,
    pub lacks: Lack<'a>,
}

/// What would have to be otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack<'a> {
    /// The rule means the other end, but not this port.
    Port,
    /// The rule means pods with other labels: those of the other end's namespace and of itself that are not as required.
    Labels { namespace: Vec<&'a Requirement>, pod: Vec<&'a Requirement> },
    /// The rule means pods of the policy's own namespace, and the other end is in another.
    Namespace,
    /// The rule means addresses, and the other end has none of them; or it means pods, and the other end is none.
    Address,
    /// The policy permits nothing in this direction.
    Everything,
}

impl Lack<'_> {
    /// How much would have to change.
    fn distance(&self) -> usize {
        match self {
            Lack::Port => 1,
            Lack::Labels { namespace, pod } => namespace.len() + pod.len(),
            Lack::Namespace => 5,
            Lack::Address => 6,
            Lack::Everything => 7,
        }
    }
}

/// The rules that nearly permit a refused connection, nearest first. `own` is the end that is isolated in `direction`.
pub fn misses<'a>(
    policies: &'a [NetworkPolicy],
    direction: Direction,
    own: End<'_>,
    other: End<'_>,
    protocol: Protocol,
    port: u16,
) -> Vec<Miss<'a>> {
    let Some(pod) = own.pod else { return Vec::new() };
    let to = if direction == Direction::Ingress { own.pod } else { other.pod };
    let mut found = Vec::new();
    for (policy, rules) in isolating(policies, pod, direction) {
        if rules.is_empty() {
            found.push(Miss { policy, rule: None, lacks: Lack::Everything });
        }
        for (at, rule) in rules.iter().enumerate() {
            let rule_of = |lacks| Miss { policy, rule: Some(at), lacks };
            if rule.means(policy, other) {
                found.push(rule_of(Lack::Port));
            } else if rule.numbers(to).iter().any(|n| n.contains(protocol, port)) {
                found.extend(rule.peers.iter().map(|peer| rule_of(peer.lacks(policy, other))));
            }
        }
    }
    found.sort_by_key(|miss| miss.lacks.distance());
    found
}

impl Peer {
    /// Why it does not mean this end.
    fn lacks(&self, policy: &NetworkPolicy, other: End<'_>) -> Lack<'_> {
        let Peer::Pods { namespaces, pods } = self else { return Lack::Address };
        let Some(pod) = other.pod.filter(|pod| !pod.host_network) else { return Lack::Address };
        let namespace = match namespaces {
            None if pod.namespace != policy.namespace => return Lack::Namespace,
            None => Vec::new(),
            Some(namespaces) => namespaces.unmet(&pod.namespace_labels).collect(),
        };
        Lack::Labels { namespace, pod: pods.unmet(&pod.labels).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        network_policy::{Pod, Port, PortMatch, Rule},
        selector::{Operator, Selector},
    };

    fn labels(key: &str, value: &str) -> Selector {
        let requirement =
            Requirement { key: key.into(), operator: Operator::In, values: vec![value.to_owned()] };
        Selector { requirements: vec![requirement] }
    }

    fn pod(namespace: &str, ip: &str) -> Pod {
        Pod { namespace: namespace.into(), ips: vec![ip.parse().unwrap()], ..Pod::default() }
    }

    fn said(ingress: Vec<Rule>) -> Vec<String> {
        let policy = NetworkPolicy {
            namespace: "gate".into(),
            name: "only-mesh".into(),
            pods: Selector::default(),
            ingress: Some(ingress),
            egress: None,
        };
        let (from, to) = (pod("shop", "10.0.0.1"), pod("gate", "10.0.0.2"));
        let end = |pod| End { ip: Pod::clone(pod).ips[0], pod: Some(pod) };
        let policies = [policy];
        misses(&policies, Direction::Ingress, end(&to), end(&from), Protocol::Tcp, 4143)
            .iter()
            .map(|miss| {
                let names =
                    |all: &[&Requirement]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
                let lacks = match &miss.lacks {
                    Lack::Labels { namespace, pod } => {
                        format!("namespace {} pod {}", names(namespace), names(pod))
                    }
                    other => format!("{other:?}"),
                };
                format!("{:?} {lacks}", miss.rule)
            })
            .collect()
    }

    #[test]
    fn the_label_that_is_missing_comes_first() {
        let ports = |from, to| vec![Port { protocol: Protocol::Tcp, port: PortMatch::Range(from, to) }];
        let of = |namespaces: Option<Selector>, pods| vec![Peer::Pods { namespaces, pods }];
        let everywhere = || Some(Selector::default());
        let rules = vec![
            Rule { peers: of(None, Selector::default()), ports: vec![] },
            Rule { peers: of(everywhere(), labels("app", "web")), ports: ports(80, 80) },
            Rule { peers: of(Some(labels("mesh", "yes")), Selector::default()), ports: ports(4143, 4143) },
            Rule { peers: vec![], ports: ports(8080, 8090) },
        ];
        let want = ["Some(2) namespace mesh=yes pod ", "Some(3) Port", "Some(0) Namespace"];
        assert_eq!(said(rules), want);
        assert_eq!(said(vec![]), ["None Everything"]);
        let net = Peer::Block { network: "192.0.2.0/24".parse().unwrap(), except: vec![] };
        assert_eq!(said(vec![Rule { peers: vec![net], ports: vec![] }]), ["Some(0) Address"]);
    }

    #[test]
    fn who_is_no_pod_is_not_isolated() {
        let end = End { ip: "10.0.0.9".parse().unwrap(), pod: None };
        assert!(misses(&[], Direction::Egress, end, end, Protocol::Tcp, 80).is_empty());
    }
}
