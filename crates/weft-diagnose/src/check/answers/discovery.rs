//! Do the proxies and the controller see what the API has?

use super::{
    super::{
        Answer, Category, Check, Findings, Reply,
        facts::{Facts, Pod, Read},
        names::{PROXY_PORTS, SKIP_INBOUND},
    },
    data_plane::ports,
    proxies,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};
use weft_kube::core::{endpoint_slice::SERVICE_NAME, service::Service};
use weft_wire::record::Direction;

pub(in super::super) const DISCOVERY: Category = Category {
    name: "weft-discovery",
    checks: &[
        Check::warning("weft-discovery-identity", "meshed pods are reached with their identity", identity).retried().doc(
            "A proxy has connections in plaintext to a pod that has a proxy: it was told of the pod without its identity, and has kept that. The server's policy answers such callers 403, however often they try.",
            "weft's proxies ask again by themselves within seconds. With Linkerd's, restart the calling pod, or leave the address alone for ten seconds; `weft explain FROM TO` tells since when.",
        ),
        Check::warning("weft-discovery-stale", "proxies know who has an address now", stale).retried().doc(
            "A proxy has connections to an address under the name or identity of a pod that is gone or has another: what it knows is older than what the API says.",
            "If it stays so, restart the calling pod, and see weft-controller-follows.",
        ),
        Check::error("weft-discovery-endpoints", "the controller's endpoints are those of the API", endpoints).retried().doc(
            "For some Service, the controller tells proxies other addresses than the EndpointSlices have, or a meshed pod without its identity.",
            "See weft-controller-follows; a controller that does not catch up is helped by a restart, and it should be reported.",
        ),
        Check::warning("weft-duplicate-ips", "no two pods have the same address", duplicates).retried().doc(
            "Two pods that live have one address, so that nobody can tell which of them a connection is for: a fault of the CNI plugin's address management, or a pod that was left over after a node was lost.",
            "Delete the pod that is not reached; look at the CNI plugin's allocations.",
        ),
        Check::warning("weft-undeclared-ports", "ports that serve are declared", undeclared).doc(
            "A pod serves on a port that no container of it declares. Policies that name ports do not find it, and named and opaque ports cannot mean it.",
            "Add the port to `containers[].ports`.",
        ),
    ],
};

/// Pods that hold an address of their own now, by it.
fn by_ip(facts: &Facts) -> Read<BTreeMap<IpAddr, &Pod>> {
    let live =
        facts.pods.as_ref()?.iter().filter(|pod| !pod.object.is_finished() && !pod.object.spec.host_network);
    Ok(live.flat_map(|pod| pod.object.ips().into_iter().map(move |ip| (ip, pod))).collect())
}

/// Whether connections to this port of a pod are to go through its proxy.
fn is_proxied(pod: &Pod, port: u16) -> bool {
    let skipped = pod.object.metadata.annotation(SKIP_INBOUND).unwrap_or_default();
    !PROXY_PORTS.contains(&port) && !ports(skipped)(port, None)
}

/// Reasons for plaintext that have nothing to do with what was told of the server.
const OTHERWISE: [&str; 4] = ["loopback", "disabled", "opaque", "passthrough"];

fn identity(facts: &Facts) -> Reply {
    let pods = by_ip(facts)?;
    let control = &facts.asked.control_namespace;
    let mut found: BTreeSet<String> = BTreeSet::new();
    for (name, proxy) in facts.proxies.iter().filter_map(|(name, read)| Some((name, read.as_ref().ok()?))) {
        // 1. Connections that are open now, as every proxy counts them.
        let open = proxy.family("tcp_open_connections").filter(|sample| {
            sample.value > 0.0
                && sample.label("direction") == "outbound"
                && sample.label("peer") == "dst"
                && !matches!(sample.label("tls"), "true" | "opaque")
                && !OTHERWISE.contains(&sample.label("no_tls_reason"))
        });
        for sample in open {
            let Ok(addr) = sample.label("target_addr").parse::<SocketAddr>() else { continue };
            let Some(to) =
                pods.get(&addr.ip()).filter(|to| to.is_meshed(control) && is_proxied(to, addr.port()))
            else {
                continue;
            };
            if to.name() != *name {
                let why = sample.label("no_tls_reason");
                found.insert(format!("{name} → {} ({addr}): {:.0} open, {why}", to.name(), sample.value));
            }
        }
        // 2. Those of the last minutes, as weft's remember them.
        for record in
            proxy.connections.iter().flatten().filter(|record| record.direction == Direction::Outbound)
        {
            let (Some(addr), Some(tls)) = (record.endpoint, record.tls.as_deref()) else { continue };
            let Some(to) =
                pods.get(&addr.ip()).filter(|to| to.is_meshed(control) && is_proxied(to, addr.port()))
            else {
                continue;
            };
            let was_ready =
                to.ready && to.ready_since_unix_ms.is_some_and(|since| since < record.started_unix_ms);
            let recent = record.started_unix_ms + super::faults::MINUTES * 60_000 > facts.now_unix_ms;
            if tls != "mutual" && !OTHERWISE.contains(&tls) && recent && was_ready && to.name() != *name {
                let ago = super::faults::ago(facts, record.started_unix_ms);
                found.insert(format!("{name} → {} ({addr}): in plaintext {ago}, {tls}", to.name()));
            }
        }
    }
    let mut found: Findings = found.into_iter().collect();
    proxies::unknown(facts, &mut found);
    found.reply("in plaintext to pods that have a proxy:")
}

fn stale(facts: &Facts) -> Reply {
    let pods = by_ip(facts)?;
    let control = &facts.asked.control_namespace;
    let mut found: BTreeSet<String> = BTreeSet::new();
    for (name, proxy) in facts.proxies.iter().filter_map(|(name, read)| Some((name, read.as_ref().ok()?))) {
        let open = proxy.family("tcp_open_connections").filter(|sample| {
            sample.value > 0.0 && sample.label("direction") == "outbound" && sample.label("peer") == "dst"
        });
        for sample in open {
            let Ok(addr) = sample.label("target_addr").parse::<SocketAddr>() else { continue };
            let (named, proved) = (sample.label("dst_pod"), sample.label("server_id"));
            match pods.get(&addr.ip()) {
                Some(pod) if !named.is_empty() && pod.object.metadata.name != named => {
                    found.insert(format!(
                        "{name} → {addr}: known as pod {named}, and it is {} now",
                        pod.name()
                    ));
                }
                Some(pod)
                    if pod.is_meshed(control) && !proved.is_empty() && proved != facts.identity_of(pod) =>
                {
                    found.insert(format!(
                        "{name} → {addr}: as {proved}, and {} is {}",
                        pod.name(),
                        facts.identity_of(pod)
                    ));
                }
                None if !named.is_empty() => {
                    found.insert(format!(
                        "{name} → {addr}: known as pod {named}, and no pod has that address"
                    ));
                }
                _ => {}
            }
        }
    }
    let mut found: Findings = found.into_iter().collect();
    proxies::unknown(facts, &mut found);
    found.reply("known as something else:")
}

/// What the EndpointSlices say of a Service's port: ready addresses.
fn of_slices(facts: &Facts, service: &Service, port: u16) -> Read<Option<BTreeSet<String>>> {
    let Some(declared) = service.port(port) else { return Ok(None) };
    let meta = &service.metadata;
    let own = facts.slices.as_ref()?.iter().filter(|slice| {
        slice.metadata.namespace == meta.namespace
            && slice.metadata.label(SERVICE_NAME) == Some(&meta.name)
            && slice.address_type == "IPv4"
    });
    let mut ready = BTreeSet::new();
    for slice in own {
        for number in slice.ports.iter().filter(|p| p.name == declared.name).filter_map(|p| p.port) {
            let endpoints =
                slice.endpoints.iter().filter(|endpoint| endpoint.conditions.ready != Some(false));
            ready.extend(endpoints.flat_map(|e| &e.addresses).map(|ip| format!("{ip}:{number}")));
        }
    }
    Ok(Some(ready))
}

fn endpoints(facts: &Facts) -> Reply {
    let Some(controller) = &facts.controller else { return Ok(Answer::Idle) };
    let controller = controller.as_ref()?;
    let pods = by_ip(facts)?;
    let services = facts.services.as_ref()?;
    let control = &facts.asked.control_namespace;
    let mut found = Findings::default();
    for view in &controller.endpoints {
        let what = format!("{}:{}", view.service, view.port);
        let told = match &view.endpoints {
            Ok(told) => told,
            Err(unread) => {
                found.unknown(format!("{what}: {unread}"));
                continue;
            }
        };
        let Some(service) = services.iter().find(|service| service.metadata.key() == view.service) else {
            continue;
        };
        let Some(wanted) = of_slices(facts, service, view.port)? else { continue };
        let addresses: BTreeSet<String> = told.iter().map(|(addr, _)| addr.clone()).collect();
        let lacks: Vec<&str> = wanted.difference(&addresses).map(String::as_str).collect();
        let besides: Vec<&str> = addresses.difference(&wanted).map(String::as_str).collect();
        if !lacks.is_empty() || !besides.is_empty() {
            found.problem(format!(
                "{what}: lacks [{}], has besides [{}]",
                lacks.join(" "),
                besides.join(" ")
            ));
        }
        for (addr, identity) in told {
            let Ok(socket) = addr.parse::<SocketAddr>() else { continue };
            let Some(pod) = pods.get(&socket.ip()).filter(|pod| pod.is_meshed(control)) else { continue };
            if is_proxied(pod, socket.port()) && *identity != facts.identity_of(pod) {
                let said = if identity.is_empty() { "no identity" } else { identity };
                found.problem(format!("{what}: {} ({addr}) is given {said}", pod.name()));
            }
        }
    }
    if controller.not_asked > 0 {
        found.unknown(format!("{} more ports of Services were not asked about", controller.not_asked));
    }
    found.reply("other than in the API:")
}

fn duplicates(facts: &Facts) -> Reply {
    let mut by_ip: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
    for pod in
        facts.pods.as_ref()?.iter().filter(|pod| !pod.object.is_finished() && !pod.object.spec.host_network)
    {
        for ip in pod.object.ips() {
            by_ip.entry(ip).or_default().push(pod.name().to_string());
        }
    }
    let several = by_ip.into_iter().filter(|(_, pods)| pods.len() > 1);
    several
        .map(|(ip, pods)| format!("{ip}: {}", pods.join(", ")))
        .collect::<Findings>()
        .reply("addresses of several pods:")
}

fn undeclared(facts: &Facts) -> Reply {
    let mut found = Findings::default();
    for pod in facts.meshed_pods()? {
        let Some(Ok(proxy)) = facts.proxies.get(&pod.name()) else { continue };
        let declared: BTreeSet<u16> = pod
            .object
            .all_containers()
            .flat_map(|container| &container.ports)
            .map(|port| port.container_port)
            .collect();
        let inbound =
            proxy.connections.iter().flatten().filter(|record| record.direction == Direction::Inbound);
        let served: BTreeSet<u16> = inbound
            .filter(|record| record.written_bytes > 0 && record.fault.is_none())
            .filter_map(|record| Some(record.server?.port()))
            .filter(|port| !PROXY_PORTS.contains(port) && !declared.contains(port))
            .collect();
        if !served.is_empty() {
            let all: Vec<String> = served.iter().map(ToString::to_string).collect();
            found.problem(format!("{}: {}", pod.name(), all.join(", ")));
        }
    }
    proxies::unknown(facts, &mut found);
    found.reply("ports that serve and are not declared:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::facts::healthy::{healthy, record},
        prom,
    };
    use weft_kube::meta::ObjectName;

    fn bad(reply: Reply) -> String {
        match reply {
            Ok(Answer::Bad(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    fn open(labels: &str) -> Facts {
        let mut facts = healthy();
        let page = format!(
            "tcp_open_connections{{direction=\"outbound\",peer=\"dst\",target_addr=\"10.77.0.12:8080\",{labels}}} 2\n"
        );
        facts.proxies.get_mut(&ObjectName::new("shop", "web-1")).unwrap().as_mut().unwrap().samples =
            prom::parse(&page, |_| true);
        facts
    }

    #[test]
    fn plaintext_to_a_meshed_pod_is_found() {
        for check in DISCOVERY.checks {
            assert_eq!(check.answer(&healthy()), Answer::Good, "{}", check.id);
        }
        let bare = "tls=\"no_identity\",no_tls_reason=\"not_provided_by_service_discovery\"";
        let said = bad(identity(&open(bare)));
        assert!(
            said.contains(
                "shop/web-1 → shop/store-1 (10.77.0.12:8080): 2 open, not_provided_by_service_discovery"
            ),
            "{said}"
        );
        assert_eq!(identity(&open("tls=\"true\"")), Ok(Answer::Good));
        let mut unmeshed = open(bare);
        unmeshed.pods.as_mut().unwrap()[1].proxy = None;
        assert_eq!(identity(&unmeshed), Ok(Answer::Good));
    }

    #[test]
    fn what_a_proxy_remembers_counts_where_the_pod_was_ready() {
        let mut facts = healthy();
        let mut record = record(Direction::Outbound, facts.now_unix_ms - 20_000);
        record.endpoint = Some("10.77.0.12:8080".parse().unwrap());
        record.tls = Some("not_provided_by_service_discovery".into());
        let web = facts.proxies.get_mut(&ObjectName::new("shop", "web-1")).unwrap().as_mut().unwrap();
        web.connections = Some(vec![record]);
        assert!(bad(identity(&facts)).contains("in plaintext 20 s ago"));
        facts.pods.as_mut().unwrap()[1].ready_since_unix_ms = Some(facts.now_unix_ms - 10_000);
        assert_eq!(identity(&facts), Ok(Answer::Good));
    }

    #[test]
    fn an_address_that_changed_hands_is_found() {
        let said = bad(stale(&open("tls=\"true\",dst_pod=\"store-0\"")));
        assert!(said.contains("known as pod store-0, and it is shop/store-1 now"), "{said}");
        let said = bad(stale(&open(
            "tls=\"true\",server_id=\"other.shop.serviceaccount.identity.linkerd.cluster.local\"",
        )));
        assert!(said.contains("as other.shop.serviceaccount"), "{said}");
        let mut gone = open("tls=\"true\",dst_pod=\"store-1\"");
        gone.pods.as_mut().unwrap().remove(1);
        assert!(bad(stale(&gone)).contains("no pod has that address"));
    }

    #[test]
    fn the_controllers_view_is_compared_with_the_slices() {
        let mut facts = healthy();
        let view = &mut facts.controller.as_mut().unwrap().as_mut().unwrap().endpoints[0];
        view.endpoints =
            Ok(vec![("10.77.0.12:8080".into(), String::new()), ("10.77.0.99:8080".into(), String::new())]);
        let said = bad(endpoints(&facts));
        assert!(said.contains("shop/store:80: lacks [], has besides [10.77.0.99:8080]"), "{said}");
        assert!(said.contains("shop/store-1 (10.77.0.12:8080) is given no identity"), "{said}");
    }

    #[test]
    fn two_pods_of_one_address_and_a_port_nobody_declared() {
        let mut facts = healthy();
        let twin = crate::check::facts::healthy::pod("shop", "twin", "10.77.0.12");
        facts.pods.as_mut().unwrap().push(twin);
        assert!(bad(duplicates(&facts)).contains("10.77.0.12: shop/store-1, shop/twin"));
        let mut served = record(Direction::Inbound, facts.now_unix_ms);
        (served.server, served.written_bytes) = (Some("10.77.0.12:9999".parse().unwrap()), 10);
        let store = facts.proxies.get_mut(&ObjectName::new("shop", "store-1")).unwrap().as_mut().unwrap();
        store.connections = Some(vec![served]);
        assert!(bad(undeclared(&facts)).contains("shop/store-1: 9999"));
    }
}
