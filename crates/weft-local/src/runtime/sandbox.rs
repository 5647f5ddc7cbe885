//! A pod's address, network namespace and link to the node.

use crate::{
    network::{GATEWAY, Network},
    rights::Rights,
};
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};
use weft_fault::{Code, Fault, Phase};
use weft_net::{
    namespace::PodNamespaces,
    netlink::route::{LOOPBACK, PeerNamespace, Route, RouteSocket, VethPair},
};

/// Makes sandboxes and keeps account of the addresses.
#[derive(Debug)]
pub(crate) struct Sandboxes {
    network: Network,
    rights: Rights,
    node: Mutex<RouteSocket>,
    addresses: Mutex<Addresses>,
}

/// Addresses are taken in order and come round late, since what others remember of one is stale when it comes back.
#[derive(Debug, Default)]
struct Addresses {
    used: BTreeSet<Ipv4Addr>,
    last: Option<Ipv4Addr>,
}

impl Addresses {
    fn take(&mut self, network: &Network) -> Option<Ipv4Addr> {
        let after = self.last.map_or(0, u32::from);
        let free = |ip: &Ipv4Addr| !self.used.contains(ip);
        let next = network.pod_ips().skip_while(|ip| u32::from(*ip) <= after).find(free);
        let ip = next.or_else(|| network.pod_ips().find(free))?;
        self.used.insert(ip);
        self.last = Some(ip);
        Some(ip)
    }
}

/// The namespaces of a pod. Dropping it removes the link and frees the address.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) ip: Ipv4Addr,
    pub(crate) namespaces: PodNamespaces,
    link: String,
    of: Arc<Sandboxes>,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Err(error) = self.of.node.lock().delete_link(&self.link) {
            tracing::warn!(%error, link = self.link, "a pod's link is left");
        }
        self.of.release(self.ip);
    }
}

/// Settings of a pod's network namespace: any port may be bound and any user that there is may ping, as in a container runtime.
fn sysctls(rights: Rights) -> [(&'static str, &'static str); 2] {
    let groups = match rights {
        Rights::Root => "0 2147483647",
        Rights::User => "0 0",
    };
    [("ipv4/ip_unprivileged_port_start", "0"), ("ipv4/ping_group_range", groups)]
}

impl Sandboxes {
    /// `node` is a socket of the node's network namespace.
    pub(crate) fn new(network: Network, rights: Rights, node: RouteSocket) -> Self {
        Sandboxes { network, rights, node: Mutex::new(node), addresses: Mutex::default() }
    }

    /// Makes a sandbox. Blocks for about a millisecond.
    pub(crate) fn create(self: &Arc<Self>, hostname: &str) -> Result<Sandbox, Fault> {
        let ip = self.addresses.lock().take(&self.network).ok_or_else(|| {
            Fault::new(Code::HostUnable).in_phase(Phase::Start).fact("step", "every pod address is taken")
        })?;
        self.build(ip, hostname).inspect_err(|_| self.release(ip))
    }

    fn build(self: &Arc<Self>, ip: Ipv4Addr, hostname: &str) -> Result<Sandbox, Fault> {
        let (namespaces, mut sockets) = PodNamespaces::create(hostname, &sysctls(self.rights))?;
        let [_, b, c, d] = ip.octets();
        let link = format!("pod{c}-{d}");
        {
            let mut node = self.node.lock();
            let pair = VethPair {
                name: &link,
                mac: [2, 0x77, b, c, d, 1],
                peer_name: "eth0",
                peer_mac: [2, 0x77, b, c, d, 2],
                peer_index: 2,
                peer_namespace: PeerNamespace::Fd(namespaces.net()),
            };
            let index = match node.create_veth(&pair) {
                // The link of the pod that had this address before goes when its namespace does, a little later.
                Err(e) if e.exists() => {
                    node.delete_link(&link)?;
                    node.create_veth(&pair)?
                }
                other => other?,
            };
            let source = Some(IpAddr::V4(self.network.node_ip()));
            node.add_routes(&[Route {
                destination: ip.into(),
                prefix: 32,
                interface: index,
                via: None,
                source,
            }])?;
        }
        let pod = &mut sockets.route;
        pod.set_up(LOOPBACK)?;
        pod.set_up(2)?;
        pod.add_addresses(2, &[(ip.into(), 32)])?;
        pod.add_routes(&[Route {
            destination: Ipv4Addr::UNSPECIFIED.into(),
            prefix: 0,
            interface: 2,
            via: Some(GATEWAY.into()),
            source: None,
        }])?;
        Ok(Sandbox { ip, namespaces, link, of: self.clone() })
    }

    fn release(&self, ip: Ipv4Addr) {
        self.addresses.lock().used.remove(&ip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_round_late() {
        let network = Network::usual();
        let mut addresses = Addresses::default();
        let first = addresses.take(&network).unwrap();
        let second = addresses.take(&network).unwrap();
        assert_eq!((first.octets()[3], second.octets()[3]), (2, 3));
        addresses.used.remove(&first);
        assert_eq!(addresses.take(&network).unwrap().octets()[3], 4);
        addresses.last = network.pod_ips().last();
        assert_eq!(addresses.take(&network), Some(first));
    }
}
