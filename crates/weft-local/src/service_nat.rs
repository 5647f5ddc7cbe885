//! ClusterIPs: what kube-proxy does, as one nf_tables table of the node's namespace, replaced whole at each change.

use crate::{
    network::Network,
    services::{Services, Translation},
};
use std::{collections::BTreeSet, net::SocketAddrV4, sync::Arc};
use tokio::sync::watch;
use weft_fault::Fault;
use weft_net::netlink::{
    nft::{
        Base, Compare, Family, Hook, Meta, NftSocket, PRIORITY_AFTER_DSTNAT, PRIORITY_DSTNAT,
        PRIORITY_FILTER, PRIORITY_SRCNAT, Reject, Rule, Table, Verdict,
    },
    route::LOOPBACK,
};

/// Keeps the table in step with the services. `socket` is of the node's namespace.
pub(crate) async fn follow(
    mut socket: NftSocket,
    network: Network,
    mut services: watch::Receiver<Arc<Services>>,
) {
    let mut before = Vec::new();
    loop {
        let now = services.borrow_and_update().translations();
        if now != before {
            match apply(&mut socket, &network, &before, &now) {
                Ok(()) => before = now,
                Err(fault) => tracing::error!(?fault, "service addresses are not up to date"),
            }
        }
        if services.changed().await.is_err() {
            return;
        }
    }
}

/// A tenth of a millisecond: not worth another thread.
fn apply(
    socket: &mut NftSocket,
    network: &Network,
    before: &[Translation],
    now: &[Translation],
) -> Result<(), Fault> {
    socket.apply(&table(network, now))?;
    // A UDP flow keeps its old target as long as datagrams follow each other, unless it is forgotten.
    const UDP: u8 = libc::IPPROTO_UDP as u8;
    for old in before.iter().filter(|t| t.protocol == UDP && !now.contains(t)) {
        let flows = socket.udp_flows_to(SocketAddrV4::new(old.ip, old.port))?;
        socket.forget_udp_flows(&flows)?;
    }
    Ok(())
}

/// The table. Rules may not hold the address of DNS, which is the node's own.
pub(crate) fn table(network: &Network, translations: &[Translation]) -> Table {
    const MAP: &str = "services";
    const HAIRPIN: &str = "hairpin";
    let mut table = Table::replace(Family::Ipv4, "weft_services");
    let dns = network.dns_ip();
    let mut entries = Vec::new();
    let mut pairs = BTreeSet::new();
    for (n, t) in translations.iter().enumerate().filter(|(_, t)| t.ip != dns && !t.targets.is_empty()) {
        let chain = format!("service{n}");
        let count = u32::try_from(t.targets.len()).expect("fewer than 2^32 endpoints");
        table.chain(&chain);
        let (map, id) = table.numbered_addresses(&t.targets);
        let number =
            if t.affinity { Rule::new().source_hash(1, count) } else { Rule::new().random(1, count) };
        table.rule(&chain, number.lookup(map, Some(id), 1, 8).destination_nat(8, 9));
        entries.push(((t.ip, t.protocol, t.port), chain));
        pairs.extend(t.targets.iter().map(|target| (*target.ip(), *target.ip())));
    }
    table.service_map(MAP, &entries);
    table.address_pairs(HAIRPIN, &pairs.into_iter().collect::<Vec<_>>());

    // From pods and from the node itself.
    for (name, hook) in [("from-pods", Hook::Prerouting), ("from-node", Hook::Output)] {
        table.base_chain(name, "nat", hook, PRIORITY_DSTNAT);
        let key = Rule::new().payload(Base::Network, 16, 4, 8).meta(Meta::L4Protocol, 9).payload(
            Base::Transport,
            2,
            2,
            10,
        );
        table.rule(name, key.lookup(MAP, None, 8, 0));
    }

    // What is still addressed to a service after translation has no endpoint: refuse rather than let it time out.
    table.base_chain("unserved", "filter", Hook::Prerouting, PRIORITY_AFTER_DSTNAT);
    table.rule("unserved", Rule::new().destination_network(dns.into(), 32).verdict(&Verdict::Accept));
    let range = |rule: Rule| {
        rule.destination_network(network.services.network().into(), network.services.prefix_len())
    };
    table.rule("unserved", range(Rule::new()).tcp().reject(Reject::TcpReset));
    table.rule("unserved", range(Rule::new()).reject(Reject::PortUnreachable));

    // The address of a pod that is gone, which the node routes to its loopback: likewise.
    table.base_chain("gone", "filter", Hook::Forward, PRIORITY_FILTER);
    let to_loopback =
        || Rule::new().meta(Meta::OutputInterface, 1).compare(1, Compare::Equal, &LOOPBACK.to_ne_bytes());
    table.rule("gone", to_loopback().tcp().reject(Reject::TcpReset));
    table.rule("gone", to_loopback().reject(Reject::PortUnreachable));

    // A pod that reached itself through its service must not see its own address as the peer's.
    table.base_chain("to-itself", "nat", Hook::Postrouting, PRIORITY_SRCNAT);
    let itself = Rule::new()
        .was_destination_nat()
        .payload(Base::Network, 12, 4, 8)
        .payload(Base::Network, 16, 4, 9)
        .contained(HAIRPIN, None, 8)
        .masquerade();
    table.rule("to-itself", itself);
    table
}
