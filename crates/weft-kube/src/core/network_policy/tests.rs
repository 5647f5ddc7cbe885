//! Truth tables: what the documentation of Kubernetes says of NetworkPolicies, case by case, over one small cluster.

use super::*;
use serde_json::{Value, json};
use std::net::IpAddr;
use weft_model::network_policy::{self as model, Direction, End, Protocol, decide};

/// Two namespaces of a shop, one of a monitor; two pods in each, and one with the node's addresses.
fn cluster() -> Vec<model::Pod> {
    let namespaces = [
        ("shop", json!({"team": "sales", "kubernetes.io/metadata.name": "shop"})),
        ("bank", json!({"team": "money", "kubernetes.io/metadata.name": "bank"})),
        ("watch", json!({"team": "sales", "kubernetes.io/metadata.name": "watch"})),
    ];
    let mut pods = Vec::new();
    for (n, (namespace, labels)) in namespaces.into_iter().enumerate() {
        let labels: Labels = serde_json::from_value(labels).unwrap();
        for (m, app) in ["web", "db"].into_iter().enumerate() {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": app, "namespace": namespace, "labels": {"app": app}},
                "spec": {"containers": [{"name": "c", "ports": [
                    // The same name stands for another port in each namespace.
                    {"name": "serve", "containerPort": 8000 + n}, {"name": "serve", "containerPort": 9000, "protocol": "UDP"}]}]},
                "status": {"phase": "Running", "podIP": format!("10.77.{n}.{m}")}}))
            .unwrap();
            pods.push(pod_to_model(&pod, &labels));
        }
    }
    let host: Pod = serde_json::from_value(json!({
        "metadata": {"name": "host", "namespace": "shop", "labels": {"app": "web"}}, "spec": {"hostNetwork": true},
        "status": {"phase": "Running", "podIP": "192.168.0.10"}}))
    .unwrap();
    pods.push(pod_to_model(&host, &Labels::new()));
    pods
}

fn policies(specs: &[(&str, Value)]) -> Vec<model::NetworkPolicy> {
    let read = |(n, (namespace, spec)): (usize, &(&str, Value))| {
        let object = json!({"metadata": {"name": format!("p{n}"), "namespace": namespace}, "spec": spec});
        serde_json::from_value::<NetworkPolicy>(object).unwrap().to_model()
    };
    specs.iter().enumerate().map(read).collect()
}

/// `shop/web`, or an address outside the cluster.
fn end<'a>(pods: &'a [model::Pod], name: &str) -> End<'a> {
    match name.parse::<IpAddr>() {
        Ok(ip) => End { ip, pod: None },
        Err(_) => {
            let pod = pods.iter().find(|p| format!("{}/{}", p.namespace, p.name) == name).unwrap();
            End { ip: pod.ips[0], pod: Some(pod) }
        }
    }
}

/// Each row: from, to, protocol and port, whether it may be.
fn check(specs: &[(&str, Value)], rows: &[(&str, &str, &str, bool)]) {
    let (pods, policies) = (cluster(), policies(specs));
    for (from, to, port, expected) in rows {
        let (protocol, number) = port.split_once(' ').unwrap();
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => Protocol::Sctp,
        };
        let number: u16 = number.parse().unwrap();
        let (from, to) = (end(&pods, from), end(&pods, to));
        let decision = decide(&policies, from, to, protocol, number);
        assert_eq!(decision.permits(), *expected, "{from:?} to {to:?} {port}: {decision:?}");

        // Whoever enforces it by addresses decides the same.
        let by_address = |own: End<'_>, other: End<'_>, direction| {
            let Some(pod) = own.pod else { return true };
            let permits = model::permits(&policies, &pods, pod, direction);
            permits.is_none_or(|permits| {
                permits.iter().any(|p| p.peer.contain(other.ip) && p.ports.contains(protocol, number))
            })
        };
        let enforced = from.ip == to.ip
            || (by_address(from, to, Direction::Egress) && by_address(to, from, Direction::Ingress));
        assert_eq!(enforced, *expected, "by addresses: {from:?} to {to:?} {port}");
    }
}

#[test]
fn without_a_policy_everything_is_open() {
    check(&[], &[("bank/web", "shop/db", "tcp 80", true), ("8.8.8.8", "shop/db", "udp 53", true)]);
}

/// "Default deny all ingress", and what it leaves.
#[test]
fn a_policy_without_rules_isolates_its_pods_and_no_others() {
    let deny = json!({"podSelector": {}, "policyTypes": ["Ingress"]});
    let rows = [
        ("shop/web", "shop/db", "tcp 80", false),
        ("bank/web", "shop/db", "tcp 80", false),
        ("8.8.8.8", "shop/db", "udp 53", false),
        // What it opens itself is not ingress, and its namespace is not the others'.
        ("shop/db", "bank/web", "tcp 80", true),
        ("shop/db", "8.8.8.8", "tcp 443", true),
        // A pod reaches itself.
        ("shop/db", "shop/db", "tcp 80", true),
        // The node's addresses are nobody's to isolate.
        ("bank/web", "shop/host", "tcp 80", true),
    ];
    check(&[("shop", deny)], &rows);
    // Not saying which directions means ingress.
    check(&[("shop", json!({"podSelector": {}}))], &rows);
    check(&[("shop", json!({"podSelector": {}, "policyTypes": []}))], &rows);
}

/// "Allow all ingress" wins over any other policy.
#[test]
fn policies_add_up() {
    let deny = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]});
    let allow =
        json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{}], "policyTypes": ["Ingress"]});
    let rows = [
        ("bank/web", "shop/db", "tcp 80", true),
        ("bank/web", "shop/web", "tcp 80", false),
        // The db's own connections stay denied.
        ("shop/db", "bank/web", "tcp 80", false),
        // Permitted on the server's side, denied on the client's.
        ("shop/web", "shop/db", "tcp 80", false),
    ];
    check(&[("shop", deny), ("shop", allow)], &rows);
}

/// "Default deny all egress" and "allow all egress".
#[test]
fn egress_is_covered_when_it_is_named_or_has_rules() {
    let deny = json!({"podSelector": {}, "policyTypes": ["Egress"]});
    let rows = [
        ("shop/web", "bank/db", "tcp 80", false),
        ("shop/web", "8.8.8.8", "tcp 80", false),
        ("bank/db", "shop/web", "tcp 80", true),
    ];
    check(&[("shop", deny.clone())], &rows);
    let allow = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]});
    check(&[("shop", deny), ("shop", allow)], &[("shop/web", "bank/db", "tcp 80", true)]);
    // With rules for egress and no types: both directions.
    let both = json!({"podSelector": {}, "egress": [{"to": [{"podSelector": {}}]}]});
    let rows = [
        ("shop/web", "bank/db", "tcp 80", false),
        ("bank/db", "shop/web", "tcp 80", false),
        // The client may, and the server is isolated for ingress as well.
        ("shop/web", "shop/db", "tcp 80", false),
    ];
    check(&[("shop", both)], &rows);
}

/// One element with two selectors is "and"; two elements are "or".
#[test]
fn selectors_of_one_peer_must_both_hold() {
    let namespace = json!({"matchLabels": {"team": "sales"}});
    let pods = json!({"matchLabels": {"app": "web"}});
    let both = json!({"podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"namespaceSelector": namespace, "podSelector": pods}]}]});
    let rows = [
        ("watch/web", "shop/db", "tcp 80", true),
        ("shop/web", "shop/db", "tcp 80", true),
        ("watch/db", "shop/db", "tcp 80", false),
        ("bank/web", "shop/db", "tcp 80", false),
        ("10.0.0.1", "shop/db", "tcp 80", false),
    ];
    check(&[("shop", both)], &rows);
    let either = json!({"podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"namespaceSelector": namespace}, {"podSelector": pods}]}]});
    let rows = [
        ("watch/db", "shop/db", "tcp 80", true),
        // The pod selector alone means the policy's own namespace.
        ("bank/web", "shop/db", "tcp 80", false),
        ("shop/web", "shop/db", "tcp 80", true),
    ];
    check(&[("shop", either)], &rows);
}

/// An empty namespace selector is every namespace; an empty list of peers is everybody.
#[test]
fn empty_is_not_nothing() {
    let every = json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]});
    let rows = [("bank/db", "shop/web", "tcp 80", true), ("9.9.9.9", "shop/web", "tcp 80", false)];
    check(&[("shop", every)], &rows);
    let anybody = json!({"podSelector": {}, "ingress": [{"from": [], "ports": [{"port": 80}]}]});
    let rows = [("9.9.9.9", "shop/web", "tcp 80", true), ("9.9.9.9", "shop/web", "tcp 81", false)];
    check(&[("shop", anybody)], &rows);
    // A pod with the node's addresses is not meant by selectors.
    let own = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
    check(&[("shop", own)], &[("shop/host", "shop/web", "tcp 80", false)]);
}

/// A namespace is named by the label that every namespace has; expressions hold as everywhere.
#[test]
fn namespaces_by_name_and_by_expression() {
    let by_name = json!({"podSelector": {}, "ingress": [{"from": [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "bank"}}}]}]});
    let rows = [("bank/db", "shop/web", "tcp 80", true), ("watch/db", "shop/web", "tcp 80", false)];
    check(&[("shop", by_name)], &rows);
    let several = json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["bank"]}]}}]}]});
    let rows = [("bank/db", "shop/web", "tcp 80", false), ("watch/db", "shop/web", "tcp 80", true)];
    check(&[("shop", several)], &rows);
}

#[test]
fn blocks_of_addresses_have_holes() {
    let block = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"ipBlock": {"cidr": "172.17.0.0/16", "except": ["172.17.1.0/24"]}}]}],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.77.0.0/16", "except": ["10.77.1.1/32"]}}], "ports": [{"port": 443}]}]});
    let rows = [
        ("172.17.0.5", "shop/web", "tcp 80", true),
        ("172.17.1.5", "shop/web", "tcp 80", false),
        ("172.18.0.5", "shop/web", "tcp 80", false),
        ("shop/web", "bank/web", "tcp 443", true),
        ("shop/web", "bank/db", "tcp 443", false),
        ("shop/web", "bank/web", "tcp 80", false),
    ];
    check(&[("shop", block)], &rows);
}

/// TCP unless it says so; a range has both its ends; no number is every number of that protocol.
#[test]
fn ports_and_protocols() {
    let ports = json!({"podSelector": {}, "ingress": [{"ports": [
        {"port": 80}, {"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 32000, "endPort": 32768},
        {"protocol": "SCTP"}]}]});
    let rows = [
        ("bank/web", "shop/web", "tcp 80", true),
        ("bank/web", "shop/web", "udp 80", false),
        ("bank/web", "shop/web", "udp 53", true),
        ("bank/web", "shop/web", "tcp 53", false),
        ("bank/web", "shop/web", "tcp 31999", false),
        ("bank/web", "shop/web", "tcp 32000", true),
        ("bank/web", "shop/web", "tcp 32768", true),
        ("bank/web", "shop/web", "tcp 32769", false),
        ("bank/web", "shop/web", "sctp 1", true),
    ];
    check(&[("shop", ports)], &rows);
}

/// A name stands for the port of that name of the pod that is connected to.
#[test]
fn named_ports_are_those_of_the_server() {
    let ingress = json!({"podSelector": {}, "ingress": [{"ports": [{"port": "serve"}]}]});
    let rows = [
        ("bank/web", "shop/web", "tcp 8000", true),
        ("bank/web", "shop/web", "tcp 8001", false),
        // The same name of another protocol is not meant.
        ("bank/web", "shop/web", "udp 9000", false),
    ];
    check(&[("shop", ingress)], &rows);
    let egress = json!({"podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"namespaceSelector": {}}], "ports": [{"port": "serve"}, {"port": 53, "protocol": "UDP"}]}]});
    let rows = [
        ("shop/web", "bank/web", "tcp 8001", true),
        ("shop/web", "bank/web", "tcp 8000", false),
        ("shop/web", "watch/web", "tcp 8002", true),
        ("shop/web", "bank/web", "udp 53", true),
        // Nobody outside has names.
        ("shop/web", "9.9.9.9", "tcp 8001", false),
    ];
    check(&[("shop", egress)], &rows);
    let nobody = json!({"podSelector": {}, "ingress": [{"ports": [{"port": "no-such"}]}]});
    check(&[("shop", nobody)], &[("bank/web", "shop/web", "tcp 80", false)]);
}

/// F2: a gateway that only meshed namespaces may reach, and the label that goes.
#[test]
fn a_refusal_names_the_policies() {
    let gateway = json!({"podSelector": {"matchLabels": {"app": "web"}},
        "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"mesh": "yes"}}}]}]});
    let (pods, policies) = (cluster(), policies(&[("bank", gateway)]));
    let decision = decide(&policies, end(&pods, "shop/web"), end(&pods, "bank/web"), Protocol::Tcp, 4143);
    let model::Side::Refused(by) = decision.ingress else { panic!("refused where it arrives") };
    assert_eq!(by.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["p0"]);
    assert_eq!(decision.egress, model::Side::Open);
}

#[test]
fn what_cannot_be_read_is_refused_where_it_is_wrong() {
    for (spec, part) in [
        (json!({"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}]}), "invalid"),
        (json!({"policyTypes": ["Sideways"]}), "Sideways"),
        (json!({"ingress": [{"ports": [{"protocol": "ICMP"}]}]}), "ICMP"),
        (json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}), "Near"),
    ] {
        let object = json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": spec});
        let error = serde_json::from_value::<NetworkPolicy>(object).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
