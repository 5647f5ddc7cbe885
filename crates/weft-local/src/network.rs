//! The addresses of one mesh on this machine.

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use weft_fault::{Code, Fault, Phase};
use weft_net::netlink::route::{ExistingRoute, RouteSocket};

/// The ranges of pods and services, and the fixed addresses in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Pods and the node. A /16.
    pub pods: Ipv4Net,
    /// Services. A /16, unless the API is there already.
    pub services: Ipv4Net,
}

/// What `weft up` was told of the ranges, in place of free ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub pods: Option<Ipv4Net>,
    pub services: Option<Ipv4Net>,
}

impl Asked {
    /// Refuses ranges that the fixed addresses do not fit into, that are nobody's to give, or that overlap.
    pub fn check(&self) -> Result<(), Fault> {
        let refuse = |flag: &str, range: Ipv4Net, expected: &str| {
            let fault = Fault::new(Code::BadFlag).in_phase(Phase::Start).about(flag);
            Err(fault.fact("given", range).fact("expected", expected))
        };
        if let Some(pods) = self.pods.filter(|pods| pods.prefix_len() != 16) {
            return refuse("--pod-cidr", pods, "a /16, such as 10.77.0.0/16");
        }
        if let Some(services) = self.services.filter(|range| !(12..=24).contains(&range.prefix_len())) {
            return refuse("--service-cidr", services, "a /12 to /24, such as 10.78.0.0/16");
        }
        for (flag, range) in [("--pod-cidr", self.pods), ("--service-cidr", self.services)] {
            if let Some(range) = range.filter(|range| reserved().any(|reserved| overlap(*range, reserved))) {
                return refuse(flag, range, "addresses that single machines may have, such as in 10.0.0.0/8");
            }
        }
        match (self.pods, self.services) {
            (Some(pods), Some(services)) if overlap(pods, services) => {
                refuse("--service-cidr", services, &format!("a range outside of {pods}"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses pods in the range of an API that is there already.
    pub fn check_beside(&self, services: Ipv4Net) -> Result<(), Fault> {
        match self.pods.filter(|pods| overlap(*pods, services)) {
            Some(pods) => Err(Fault::new(Code::BadFlag)
                .in_phase(Phase::Start)
                .about("--pod-cidr")
                .fact("given", pods)
                .fact("expected", format!("a range outside of the cluster's Services, {services}"))),
            None => Ok(()),
        }
    }
}

/// What no pod or service can have: "this network", loopback, link-local (the pods' gateway is there), multicast and beyond.
fn reserved() -> impl Iterator<Item = Ipv4Net> {
    let ranges = [([0, 0, 0, 0], 8), ([127, 0, 0, 0], 8), ([169, 254, 0, 0], 16), ([224, 0, 0, 0], 3)];
    ranges.into_iter().map(|(network, prefix)| Ipv4Net::new_assert(network.into(), prefix))
}

/// Whether two ranges have an address in common.
pub(crate) fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
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

    /// The pairs that this machine does not route yet, the usual one first; with the ranges that were asked for.
    pub fn free(routes: &[ExistingRoute], asked: Asked) -> Vec<Self> {
        // A default route covers everything and collides with nothing.
        let taken: Vec<Ipv4Net> = routes
            .iter()
            .filter(|r| r.prefix > 0)
            .filter_map(|r| Ipv4Net::new(r.destination, r.prefix).ok())
            .collect();
        let free = |range: Ipv4Net| !taken.iter().any(|t| overlap(*t, range));
        (0..u8::MAX)
            .map_while(Self::pair)
            .map(|n| Network {
                pods: asked.pods.unwrap_or(n.pods),
                services: asked.services.unwrap_or(n.services),
            })
            .filter(|n| free(n.pods) && free(n.services) && !overlap(n.pods, n.services))
            .collect()
    }

    /// The same, for an API that is there already and has its own range of Services; it has the addresses in `services`,
    /// whoever routes them.
    pub fn free_beside(routes: &[ExistingRoute], asked: Asked, services: Option<Ipv4Net>) -> Vec<Self> {
        let mut free = Self::free(routes, asked);
        if let Some(services) = services {
            free.retain(|network| !overlap(network.pods, services));
            free.iter_mut().for_each(|network| network.services = services);
        }
        free
    }

    /// The addresses of a mesh that has nothing to collide with.
    pub fn usual() -> Self {
        Self::pair(0).expect("the first pair exists")
    }

    /// The addresses of a mesh to which this machine has no route. Others of this machine are avoided as far as that can be:
    /// pods would not reach what has the same address outside.
    pub(crate) fn for_nobody_else(asked: Asked) -> Result<Self, Fault> {
        let routes = RouteSocket::open().and_then(|mut socket| socket.ipv4_routes());
        let free = |routes: &[ExistingRoute]| Self::free(routes, asked).into_iter().next();
        let network = free(&routes.unwrap_or_default()).or_else(|| free(&[]));
        network.ok_or_else(|| Self::none_free(asked))
    }

    /// Every pair is taken, or what was asked for.
    pub fn none_free(asked: Asked) -> Fault {
        let fault = Fault::new(Code::HostUnable).in_phase(Phase::Start).fact("step", "choose addresses");
        let ranges = [("--pod-cidr", asked.pods), ("--service-cidr", asked.services)];
        let named: Vec<String> =
            ranges.iter().filter_map(|(flag, range)| range.map(|range| format!("{flag} {range}"))).collect();
        if named.is_empty() {
            return fault.fact("setting", "a free pair of /16 networks between 10.77.0.0 and 10.255.0.0");
        }
        fault.fact(
            "setting",
            format!("ranges that this machine does not route yet, unlike {}", named.join(" ")),
        )
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
        format!("weft{}", self.tag())
    }
    /// In another mesh, the link that leads to this one.
    pub fn peer_link(&self) -> String {
        format!("peer{}", self.tag())
    }
    /// The /16 in a few characters: links have short names.
    fn tag(&self) -> String {
        match self.pods.network().octets() {
            [10, b, ..] => b.to_string(),
            [a, b, ..] => format!("{a}-{b}"),
        }
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
            assert_eq!(Network::free(&routes, Asked::default())[0].pods.to_string(), pods, "{routes:?}");
        };
        check(&["0.0.0.0/0", "192.168.1.0/24"], "10.77.0.0/16");
        check(&["10.77.3.0/24"], "10.79.0.0/16");
        check(&["10.78.0.0/16", "10.80.1.1/32"], "10.81.0.0/16");
        assert!(Network::free(&[route("10.0.0.0/8")], Asked::default()).is_empty());
    }

    #[test]
    fn takes_the_ranges_that_it_is_told() {
        let net = |text: &str| Some(text.parse().unwrap());
        let first = |routes: &[ExistingRoute], pods, services| {
            Network::free(routes, Asked { pods, services }).first().map(|n| (n.pods, n.services))
        };
        let (pods, services) = (net("172.20.0.0/16"), net("172.21.0.0/20"));
        assert_eq!(first(&[], pods, services), pods.zip(services));
        assert_eq!(first(&[route("10.78.0.0/16")], pods, None), pods.zip(net("10.80.0.0/16")));
        // Where the pair's other half would overlap with what was asked for, the next pair has it.
        assert_eq!(first(&[], net("10.78.0.0/16"), None), net("10.78.0.0/16").zip(net("10.80.0.0/16")));
        assert_eq!(first(&[route("172.16.0.0/12")], pods, services), None);
        let told = format!("{:?}", Network::none_free(Asked { pods, services: None }));
        assert!(told.contains("--pod-cidr 172.20.0.0/16"), "{told}");
    }

    #[test]
    fn ranges_that_do_not_fit_are_refused() {
        for (pods, services, fits) in [
            ("10.1.0.0/16", "10.2.0.0/16", true),
            ("10.1.0.0/16", "10.2.0.0/24", true),
            ("10.1.0.0/20", "10.2.0.0/16", false),
            ("10.1.0.0/16", "10.2.0.0/25", false),
            ("10.1.0.0/16", "10.1.128.0/17", false),
            ("10.1.0.0/16", "10.0.0.0/12", false),
            ("127.0.0.0/16", "10.2.0.0/16", false),
            ("169.254.0.0/16", "10.2.0.0/16", false),
            ("0.0.0.0/16", "10.2.0.0/16", false),
            ("10.1.0.0/16", "239.2.0.0/16", false),
            ("10.1.0.0/16", "126.0.0.0/12", true),
            ("10.1.0.0/16", "255.255.255.0/24", false),
        ] {
            let asked = Asked { pods: pods.parse().ok(), services: services.parse().ok() };
            assert_eq!(asked.check().is_ok(), fits, "{pods} {services}");
        }
        assert!(Asked::default().check().is_ok());
    }

    #[test]
    fn pods_keep_out_of_the_services_of_an_api_that_is_there() {
        let net = |text: &str| text.parse::<Ipv4Net>().unwrap();
        let first = |services| Network::free_beside(&[], Asked::default(), Some(net(services)))[0].pods;
        assert_eq!(first("10.96.0.0/12"), net("10.77.0.0/16"));
        assert_eq!(first("10.77.128.0/20"), net("10.79.0.0/16"));
        assert_eq!(first("10.64.0.0/12"), net("10.81.0.0/16"));
        let asked = Asked { pods: Some(net("10.100.0.0/16")), services: None };
        assert!(asked.check_beside(net("10.96.0.0/12")).is_err());
        assert!(asked.check_beside(net("10.43.0.0/16")).is_ok());
    }

    #[test]
    fn links_have_short_names() {
        let network = |pods: &str| Network { pods: pods.parse().unwrap(), ..Network::usual() };
        assert_eq!(network("10.77.0.0/16").host_link(), "weft77");
        assert_eq!(network("192.168.0.0/16").host_link(), "weft192-168");
        assert_eq!(network("192.168.0.0/16").peer_link(), "peer192-168");
        // With the suffix of its inner end; the kernel takes 15 characters.
        assert!("weft192-168-in".len() <= 15);
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
