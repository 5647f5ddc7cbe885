//! The redirect of a pod's traffic into its proxy: what linkerd-init does.
//!
//! Order and meaning of the rules are linkerd-init's. They are decided once, as a [`plan`]; the back ends ([`nft`] over
//! netlink, and the [`iptables`] programs) only say the same lines in their own words. Applying again replaces.

pub mod iptables;
pub mod nft;
pub mod set_up;

use std::{fmt, net::IpAddr, str::FromStr};

/// A port or a range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// A network in CIDR form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    pub network: IpAddr,
    pub prefix: u8,
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&list(&[*self], '-'))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

/// Text that is no port, range or network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRange(String);

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is neither a port, a range `first-last` nor a network `address/bits`", self.0)
    }
}

impl std::error::Error for BadRange {}

/// `80` or `8000-9000`; port 0 is none.
impl FromStr for PortRange {
    type Err = BadRange;
    fn from_str(text: &str) -> Result<Self, BadRange> {
        let bad = || BadRange(text.to_string());
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |s: &str| s.trim().parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(bad);
        let range = PortRange { first: port(first)?, last: port(last)? };
        if range.first > range.last { Err(bad()) } else { Ok(range) }
    }
}

/// `10.0.0.0/8`, `fd00::/8`.
impl FromStr for Subnet {
    type Err = BadRange;
    fn from_str(text: &str) -> Result<Self, BadRange> {
        let bad = || BadRange(text.to_string());
        let (network, prefix) = text.trim().split_once('/').ok_or_else(bad)?;
        let network: IpAddr = network.parse().map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        let longest = if network.is_ipv4() { 32 } else { 128 };
        if prefix > longest { Err(bad()) } else { Ok(Subnet { network, prefix }) }
    }
}

/// What to redirect, with linkerd-init's options.
#[derive(Clone, Debug)]
pub struct Redirect {
    pub incoming_proxy_port: u16,
    pub outgoing_proxy_port: u16,
    /// Sockets of this user are the proxy's own.
    pub proxy_uid: Option<u32>,
    pub proxy_gid: Option<u32>,
    /// Sockets with this mark are the proxy's own: how it is told apart without root.
    pub proxy_mark: Option<u32>,
    /// Only these incoming ports are redirected; all when empty.
    pub ports_to_redirect: Vec<PortRange>,
    pub inbound_ports_to_ignore: Vec<PortRange>,
    pub outbound_ports_to_ignore: Vec<PortRange>,
    /// Connections *from* these networks reach the application directly.
    pub subnets_to_ignore: Vec<Subnet>,
    /// IPv6 connections are redirected too.
    pub ipv6: bool,
}

impl Default for Redirect {
    fn default() -> Self {
        Redirect {
            incoming_proxy_port: 4143,
            outgoing_proxy_port: 4140,
            proxy_uid: Some(2102),
            proxy_gid: None,
            proxy_mark: None,
            ports_to_redirect: Vec::new(),
            inbound_ports_to_ignore: Vec::new(),
            outbound_ports_to_ignore: Vec::new(),
            subnets_to_ignore: Vec::new(),
            ipv6: true,
        }
    }
}

/// What a line of the plan matches. Lines with ports match TCP only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// At most [`SLOTS`] slots' worth of destination ports.
    Ports(Vec<PortRange>),
    Tcp,
    /// Whatever comes from this network, of any protocol.
    From(Subnet),
    Mark(u32),
    Uid(u32),
    Gid(u32),
    /// Whatever leaves by the loopback device.
    Loopback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Leave the packet alone.
    Return,
    /// Redirect it to this port.
    To(u16),
}

/// One rule, and the comment it carries so that people recognise it in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub when: When,
    pub act: Act,
    pub comment: String,
}

/// The rules of both directions, in the order in which they are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub inbound: Vec<Line>,
    pub outbound: Vec<Line>,
}

/// How many ports one `multiport` match of iptables holds; a range takes two.
pub const SLOTS: usize = 15;

/// Decides the rules.
pub fn plan(redirect: &Redirect) -> Plan {
    let ignored = |ranges: &[PortRange]| {
        in_slots(ranges).into_iter().map(|ports| {
            let comment = format!("ignore-port-{}", list(&ports, '-'));
            line(When::Ports(ports), Act::Return, &comment)
        })
    };
    let mut inbound: Vec<Line> = ignored(&redirect.inbound_ports_to_ignore).collect();
    for subnet in &redirect.subnets_to_ignore {
        let comment = format!("ignore-subnet-{subnet}");
        inbound.push(line(When::From(*subnet), Act::Return, &comment));
    }
    let proxy = Act::To(redirect.incoming_proxy_port);
    for ports in in_slots(&redirect.ports_to_redirect) {
        let comment = format!("redirect-port-{}-to-proxy-port", list(&ports, '-'));
        inbound.push(line(When::Ports(ports), proxy, &comment));
    }
    if redirect.ports_to_redirect.is_empty() {
        inbound.push(line(When::Tcp, proxy, "redirect-all-incoming-to-proxy-port"));
    }

    let own = [
        (redirect.proxy_mark.map(When::Mark), "ignore-proxy-mark"),
        (redirect.proxy_uid.map(When::Uid), "ignore-proxy-user-id"),
        (redirect.proxy_gid.map(When::Gid), "ignore-proxy-group-id"),
        (Some(When::Loopback), "ignore-loopback"),
    ];
    let mut outbound: Vec<Line> =
        own.into_iter().filter_map(|(when, comment)| Some(line(when?, Act::Return, comment))).collect();
    outbound.extend(ignored(&redirect.outbound_ports_to_ignore));
    outbound.push(line(
        When::Tcp,
        Act::To(redirect.outgoing_proxy_port),
        "redirect-all-outgoing-to-proxy-port",
    ));
    Plan { inbound, outbound }
}

fn line(when: When, act: Act, comment: &str) -> Line {
    Line { when, act, comment: format!("proxy-init/{comment}") }
}

/// Ranges in groups that fit one match.
fn in_slots(ranges: &[PortRange]) -> Vec<Vec<PortRange>> {
    let mut groups: Vec<Vec<PortRange>> = Vec::new();
    let mut free = 0;
    for range in ranges {
        let cost = if range.first == range.last { 1 } else { 2 };
        if cost > free {
            groups.push(Vec::new());
            free = SLOTS;
        }
        free -= cost;
        if let Some(group) = groups.last_mut() {
            group.push(*range);
        }
    }
    groups
}

/// Ports as a list, ranges written with `dash`.
fn list(ports: &[PortRange], dash: char) -> String {
    let one = |r: &PortRange| {
        if r.first == r.last { r.first.to_string() } else { format!("{}{dash}{}", r.first, r.last) }
    };
    ports.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_subnets() {
        assert_eq!("80".parse(), Ok(PortRange { first: 80, last: 80 }));
        assert_eq!("8000-9000".parse(), Ok(PortRange { first: 8000, last: 9000 }));
        for bad in ["", "0", "9-8", "65536", "a", "1-2-3"] {
            assert!(bad.parse::<PortRange>().is_err(), "{bad}");
        }
        assert!("10.0.0.0/8".parse::<Subnet>().is_ok() && "fd00::/64".parse::<Subnet>().is_ok());
        for bad in ["10.0.0.0", "10.0.0.0/33", "x/8", "::/129"] {
            assert!(bad.parse::<Subnet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_order_of_the_rules() {
        let redirect = Redirect {
            proxy_gid: Some(7),
            ports_to_redirect: vec!["80".parse().unwrap(), "8000-8010".parse().unwrap()],
            inbound_ports_to_ignore: vec!["4190-4191".parse().unwrap()],
            outbound_ports_to_ignore: vec!["443".parse().unwrap()],
            subnets_to_ignore: vec!["10.0.0.0/8".parse().unwrap()],
            ..Redirect::default()
        };
        let plan = plan(&redirect);
        let comments = |lines: &[Line]| lines.iter().map(|l| l.comment.clone()).collect::<Vec<_>>();
        assert_eq!(
            comments(&plan.inbound),
            [
                "proxy-init/ignore-port-4190-4191",
                "proxy-init/ignore-subnet-10.0.0.0/8",
                "proxy-init/redirect-port-80,8000-8010-to-proxy-port",
            ]
        );
        assert_eq!(
            comments(&plan.outbound),
            [
                "proxy-init/ignore-proxy-user-id",
                "proxy-init/ignore-proxy-group-id",
                "proxy-init/ignore-loopback",
                "proxy-init/ignore-port-443",
                "proxy-init/redirect-all-outgoing-to-proxy-port",
            ]
        );
    }

    #[test]
    fn a_match_holds_fifteen_slots_and_a_range_takes_two() {
        let single = |port| PortRange { first: port, last: port };
        let range = PortRange { first: 100, last: 200 };
        let mut ports: Vec<PortRange> = (1..=14).map(single).collect();
        ports.extend([range, single(300)]);
        let groups = in_slots(&ports);
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [14, 2]);
        assert_eq!(groups.concat(), ports);
        assert_eq!(in_slots(&[range; 8]).iter().map(Vec::len).collect::<Vec<_>>(), [7, 1]);
        assert!(in_slots(&[]).is_empty());
    }
}
