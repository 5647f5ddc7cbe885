//! Does the control plane run?

use super::super::{
    Answer, Category, Check, Findings, Reply,
    facts::{Facts, Plane, Pod, Read},
    names::HEARTBEAT,
};
use ipnet::IpNet;
use serde_json::Value;
use std::net::IpAddr;

pub(in super::super) const EXISTENCE: Category = Category {
    name: "linkerd-existence",
    checks: &[
        Check::error("l5d-existence-linkerd-config", "'linkerd-config' config map exists", config).fatal().doc(
            "There is no control plane in the namespace, or its settings were deleted.",
            "`weft install | kubectl apply -f -`; if it is in another namespace, name that with `-L`.",
        ),
        Check::error("l5d-existence-sa", "heartbeat ServiceAccount exists", heartbeat).fatal().doc(
            "The account of Linkerd's heartbeat is missing although it is not disabled. weft has no heartbeat.",
            "Apply the installation again.",
        ),
        Check::error("l5d-existence-replicasets", "control plane replica sets are ready", replica_sets)
            .fatal()
            .retried()
            .doc(
                "A Deployment of the control plane has fewer ready pods than it wants.",
                "`kubectl -n linkerd get pods` and `kubectl -n linkerd describe pod` of the one that is not ready.",
            ),
        Check::warning("l5d-existence-unschedulable-pods", "no unschedulable pods", schedulable).retried().doc(
            "No node takes a pod of the control plane: for want of room, or because of taints, affinities or topology.",
            "Make room or change the constraint that the message names; three replicas that must be apart need three nodes.",
        ),
        Check::error("l5d-api-control-ready", "control plane pods are ready", ready).fatal().retried().doc(
            "A pod of the control plane is not ready, or the controller says what it waits for: lists of objects, a usable issuer, the webhooks' certificates.",
            "Read what it waits for; `kubectl -n linkerd logs deploy/weft-controller`, or the controller's log of `weft up`, says more.",
        ),
        Check::error("l5d-cluster-networks-cidr", "cluster networks contains all node podCIDRs", node_networks).doc(
            "Pods of a node have addresses that the control plane takes for the outside: their identities are not used.",
            "Add the network: `weft upgrade --set clusterNetworks=… | kubectl apply -f -`.",
        ),
        Check::error("l5d-cluster-networks-pods", "cluster networks contains all pods", pod_networks).doc(
            "A pod has an address that the control plane takes for the outside: traffic to it is not meshed as it should be.",
            "Add the network: `weft upgrade --set clusterNetworks=… | kubectl apply -f -`.",
        ),
        Check::error("l5d-cluster-networks-pods", "cluster networks contains all services", service_networks).doc(
            "A Service has an address that the control plane takes for the outside: its policies and profiles do not hold.",
            "Add the network: `weft upgrade --set clusterNetworks=… | kubectl apply -f -`.",
        ),
    ],
};

fn config(facts: &Facts) -> Reply {
    let namespace = &facts.asked.control_namespace;
    match facts.plane.config.as_ref()? {
        None => Answer::bad(format!("there is no ConfigMap linkerd-config in namespace {namespace}")),
        Some(config) => Answer::if_so(config.flaw.is_none(), || config.flaw.clone().unwrap_or_default()),
    }
}

fn heartbeat(facts: &Facts) -> Reply {
    let disabled = facts.setting(&["disableHeartBeat"])?.and_then(Value::as_bool).unwrap_or(false);
    if facts.plane()? != Some(Plane::Linkerd) || disabled {
        return Ok(Answer::Idle);
    }
    let there = facts.plane.accounts.as_ref()?.contains(HEARTBEAT);
    Answer::if_so(there, || format!("missing: {HEARTBEAT}"))
}

fn replica_sets(facts: &Facts) -> Reply {
    if facts.plane()? == Some(Plane::Local) {
        return Ok(Answer::Idle);
    }
    let all = facts.plane.workloads.as_ref()?;
    if all.is_empty() {
        return Answer::bad("the control plane has no Deployment");
    }
    let behind = all.iter().filter(|workload| workload.ready < workload.wanted);
    behind
        .map(|w| format!("{} {}: {} of {} pods are ready", w.kind, w.name, w.ready, w.wanted))
        .collect::<Findings>()
        .reply("not ready:")
}

fn schedulable(facts: &Facts) -> Reply {
    let pods = facts.control_pods()?;
    pods.filter_map(|pod| Some(format!("{}: {}", pod.name(), pod.unschedulable.as_ref()?)))
        .collect::<Findings>()
        .reply("no node takes:")
}

fn ready(facts: &Facts) -> Reply {
    let mut found = Findings::default();
    let mut pods = 0;
    for pod in facts.control_pods()? {
        pods += 1;
        if !pod.ready {
            found.problem(format!("{}: {}", pod.name(), why_not(pod)));
        }
    }
    let plane = facts.plane()?;
    if pods == 0 && plane != Some(Plane::Local) {
        return Answer::bad("the control plane has no pod");
    }
    match &facts.controller {
        Some(Ok(controller)) => {
            found.problems.extend(controller.waits.as_ref().map(|waits| format!("the controller: {waits}")));
        }
        Some(Err(unread)) => found.unknown(format!("the controller: {unread}")),
        None => {}
    }
    found.reply("not ready:")
}

/// Why a pod is not ready.
pub(super) fn why_not(pod: &Pod) -> String {
    pod.waiting.clone().unwrap_or_else(|| format!("its phase is {}", pod.object.status.phase))
}

/// What the control plane takes for the cluster.
fn networks(facts: &Facts) -> Read<Option<Vec<IpNet>>> {
    let Some(text) = facts.setting(&["clusterNetworks"])?.and_then(Value::as_str) else { return Ok(None) };
    Ok(Some(text.split(',').filter_map(|net| net.trim().parse().ok()).collect()))
}

fn node_networks(facts: &Facts) -> Reply {
    let Some(networks) = networks(facts)? else { return Ok(Answer::Idle) };
    let nodes = facts.nodes.as_ref()?;
    let outside = |cidr: &str| {
        cidr.parse::<IpNet>().is_ok_and(|net| !networks.iter().any(|known| known.contains(&net)))
    };
    let of = nodes.iter().flat_map(|node| node.networks.iter().map(move |cidr| (node, cidr)));
    of.filter(|(_, cidr)| outside(cidr))
        .map(|(node, cidr)| format!("{cidr} of node {}", node.name))
        .collect::<Findings>()
        .reply("not in clusterNetworks:")
}

fn outside<'a>(networks: &[IpNet], all: impl Iterator<Item = (String, Vec<IpAddr>)> + 'a) -> Findings {
    let known = |ip: &IpAddr| networks.iter().any(|net| net.contains(ip));
    all.filter_map(|(name, ips)| {
        let ip = ips.into_iter().find(|ip| !known(ip))?;
        Some(format!("{name} ({ip})"))
    })
    .collect()
}

fn pod_networks(facts: &Facts) -> Reply {
    let Some(networks) = networks(facts)? else { return Ok(Answer::Idle) };
    let pods = facts.pods.as_ref()?.iter().filter(|p| !p.object.spec.host_network && !p.object.is_finished());
    outside(&networks, pods.map(|pod| (pod.name().to_string(), pod.object.ips())))
        .reply("not in clusterNetworks:")
}

fn service_networks(facts: &Facts) -> Reply {
    let Some(networks) = networks(facts)? else { return Ok(Answer::Idle) };
    let services = facts.services.as_ref()?.iter();
    let all = services.map(|service| (service.metadata.key().to_string(), service.cluster_ips()));
    outside(&networks, all).reply("not in clusterNetworks:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::{
        Unread,
        healthy::{healthy, installed},
    };

    fn bad(reply: Reply) -> String {
        match reply {
            Ok(Answer::Bad(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_control_plane_that_is_not_ready_says_why() {
        let mut facts = installed();
        for check in EXISTENCE.checks {
            let answer = check.answer(&facts);
            assert!(matches!(answer, Answer::Good | Answer::Idle), "{} {answer:?}", check.says);
        }
        facts.plane.workloads.as_mut().unwrap()[0].ready = 0;
        assert!(bad(replica_sets(&facts)).contains("0 of 1 pods"));
        let pods = facts.pods.as_mut().unwrap();
        pods[0].ready = false;
        pods[0].waiting = Some("container controller: ImagePullBackOff".into());
        pods[0].unschedulable = Some("0/1 nodes are available".into());
        assert!(
            bad(ready(&facts)).contains("linkerd/weft-controller-1: container controller: ImagePullBackOff")
        );
        assert!(bad(schedulable(&facts)).contains("0/1 nodes"));
        facts.plane.config = Ok(None);
        assert!(bad(config(&facts)).contains("no ConfigMap linkerd-config"));
    }

    #[test]
    fn the_controller_of_a_local_mesh_is_asked_itself() {
        let mut facts = healthy();
        assert_eq!(ready(&facts), Ok(Answer::Good));
        facts.controller.as_mut().unwrap().as_mut().unwrap().waits =
            Some("waiting for a usable issuer".into());
        assert!(bad(ready(&facts)).contains("usable issuer"));
        facts.controller = Some(Err(Unread::Silent("no answer within 3 s".into())));
        assert!(matches!(ready(&facts), Ok(Answer::Unknown(why)) if why.contains("no answer")));
    }

    #[test]
    fn addresses_outside_of_the_clusters_networks_are_named() {
        let mut facts = installed();
        let config = facts.plane.config.as_mut().unwrap().as_mut().unwrap();
        config.values["clusterNetworks"] = "192.168.0.0/16".into();
        assert!(bad(pod_networks(&facts)).contains("shop/web-1 (10.77.0.11)"));
        assert!(bad(service_networks(&facts)).contains("shop/store (10.78.0.10)"));
        assert!(bad(node_networks(&facts)).contains("10.77.0.0/24 of node one"));
    }
}
