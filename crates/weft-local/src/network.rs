//! The addresses of one mesh on this machine.

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use weft_fault::{Code, Fault, Phase};
use weft_net::netlink::route::ExistingRoute;

/// The ranges of pods and services, and the fixed addresses in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Pods and the node. A /16.
    pub pods: Ipv4Net,
    /// Services. A /16, unless the API is there already.
    pub services: Ipv4Net,
}

/// The next hop of every pod: an address of the node's loopback, so that it answers ARP without any proxying.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

impl Network {
    /// The `n`th pair: 10.77 and 10.78, then 10.79 and 10.80 …
    fn pair(n: u8) -> Option<Self> {
        let second = 77u8.checked_add(n.checked_mul(2)?)?;
        let range = |b| Ipv4Net::new(Ipv4Addr::new(10, b, 0, 0), 16).expect("16 is a prefix length");
        Some(Network { pods: range(second), services: range(second.checked_add(1)?) })
    }

    /// The pairs that this machine does not route yet, the usual one first.
    pub fn free(routes: &[ExistingRoute]) -> Vec<Self> {
        // A default route covers everything and collides with nothing.
        let taken: Vec<Ipv4Net> = routes
            .iter()
            .filter(|r| r.prefix > 0)
            .filter_map(|r| Ipv4Net::new(r.destination, r.prefix).ok())
            .collect();
        let free = |range: Ipv4Net| !taken.iter().any(|t| t.contains(&range) || range.contains(t));
        (0..u8::MAX).map_while(Self::pair).filter(|n| free(n.pods) && free(n.services)).collect()
    }

    /// The addresses of a mesh that has nothing to collide with.
    pub fn usual() -> Self {
        Self::pair(0).expect("the first pair exists")
    }

    /// Every pair is taken.
    pub fn none_free() -> Fault {
        Fault::new(Code::HostUnable)
            .in_phase(Phase::Start)
            .fact("step", "choose addresses")
            .fact("setting", "a free pair of /16 networks between 10.77.0.0 and 10.255.0.0")
    }

    /// In the range of an API that is there already, too, whatever its size.
    fn host(range: Ipv4Net, third: u8, fourth: u8) -> Ipv4Addr {
        let offset = u32::from(third) << 8 | u32::from(fourth);
        Ipv4Addr::from(u32::from(range.network()).saturating_add(offset))
    }
    /// The node: the API, the controller, and the source of probes.
    pub fn node_ip(&self) -> Ipv4Addr {
        Self::host(self.pods, 0, 1)
    }
    /// This machine outside the mesh, as pods see it.
    pub fn host_ip(&self) -> Ipv4Addr {
        Self::host(self.pods, 255, 254)
    }
    /// The ClusterIP of `kubernetes.default.svc`.
    pub fn api_service_ip(&self) -> Ipv4Addr {
        Self::host(self.services, 0, 1)
    }
    pub fn dns_ip(&self) -> Ipv4Addr {
        Self::host(self.services, 0, 10)
    }
    /// The host's end of the link into the mesh. Unique, since two meshes never have the same range.
    pub fn host_link(&self) -> String {
        format!("weft{}", self.pods.network().octets()[1])
    }
    /// The addresses that pods may have, in order.
    pub fn pod_ips(&self) -> impl Iterator<Item = Ipv4Addr> + use<> {
        let reserved = [self.pods.network(), self.node_ip(), self.host_ip(), self.pods.broadcast()];
        self.pods.hosts().filter(move |ip| !reserved.contains(ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(net: &str) -> ExistingRoute {
        let net: Ipv4Net = net.parse().unwrap();
        ExistingRoute { destination: net.network(), prefix: net.prefix_len(), interface: 2 }
    }

    #[test]
    fn takes_the_first_free_pair() {
        let check = |routes: &[&str], pods: &str| {
            let routes: Vec<_> = routes.iter().map(|r| route(r)).collect();
            assert_eq!(Network::free(&routes)[0].pods.to_string(), pods, "{routes:?}");
        };
        check(&["0.0.0.0/0", "192.168.1.0/24"], "10.77.0.0/16");
        check(&["10.77.3.0/24"], "10.79.0.0/16");
        check(&["10.78.0.0/16", "10.80.1.1/32"], "10.81.0.0/16");
        assert!(Network::free(&[route("10.0.0.0/8")]).is_empty());
    }

    #[test]
    fn addresses() {
        let n = Network::usual();
        assert_eq!(n.node_ip().to_string(), "10.77.0.1");
        assert_eq!(n.pod_ips().next().unwrap().to_string(), "10.77.0.2");
        assert_eq!(n.dns_ip().to_string(), "10.78.0.10");
        assert_eq!(n.host_ip().to_string(), "10.77.255.254");
        assert!(!n.pod_ips().any(|ip| ip == n.host_ip()));
    }
}
