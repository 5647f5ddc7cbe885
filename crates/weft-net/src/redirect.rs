//! The redirect of a pod's traffic into its proxy: what linkerd-init does, as one nf_tables transaction.
//!
//! Order and meaning of the rules are linkerd-init's. Applying them again replaces them.

use crate::netlink::{
    NetlinkError,
    nft::{Compare, Family, Hook, Meta, NftSocket, PRIORITY_DSTNAT, Rule, Table, Verdict},
    route::LOOPBACK,
};
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
        }
    }
}

/// Applies the redirect in the calling thread's network namespace.
pub fn apply(redirect: &Redirect) -> Result<(), NetlinkError> {
    NftSocket::open()?.apply(&table(redirect))
}

fn table(redirect: &Redirect) -> Table {
    const IN: &str = "inbound";
    const OUT: &str = "outbound";
    let mut table = Table::replace(Family::Inet, "weft_redirect");

    table.base_chain(IN, "nat", Hook::Prerouting, PRIORITY_DSTNAT);
    for range in &redirect.inbound_ports_to_ignore {
        table.rule(IN, Rule::new().tcp().destination_port(range.first, range.last).verdict(&Verdict::Return));
    }
    for subnet in &redirect.subnets_to_ignore {
        table.rule(IN, Rule::new().source_network(subnet.network, subnet.prefix).verdict(&Verdict::Return));
    }
    for range in &redirect.ports_to_redirect {
        let rule = Rule::new().tcp().destination_port(range.first, range.last);
        table.rule(IN, rule.redirect(redirect.incoming_proxy_port));
    }
    if redirect.ports_to_redirect.is_empty() {
        table.rule(IN, Rule::new().tcp().redirect(redirect.incoming_proxy_port));
    }

    table.base_chain(OUT, "nat", Hook::Output, PRIORITY_DSTNAT);
    let own = [
        (Meta::Mark, redirect.proxy_mark),
        (Meta::SocketUid, redirect.proxy_uid),
        (Meta::SocketGid, redirect.proxy_gid),
        (Meta::OutputInterface, Some(LOOPBACK)),
    ];
    for (meta, value) in own {
        if let Some(value) = value {
            let rule = Rule::new().meta(meta, 1).compare(1, Compare::Equal, &value.to_ne_bytes());
            table.rule(OUT, rule.verdict(&Verdict::Return));
        }
    }
    for range in &redirect.outbound_ports_to_ignore {
        table
            .rule(OUT, Rule::new().tcp().destination_port(range.first, range.last).verdict(&Verdict::Return));
    }
    table.rule(OUT, Rule::new().tcp().redirect(redirect.outgoing_proxy_port));
    table
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
}
