//! Links, addresses, routes and neighbours.

use super::{Answer, Attrs, Message, NLM_F_CREATE, NLM_F_EXCL, NetlinkError, Socket, attributes, zero_ended};
use std::{
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsRawFd, BorrowedFd},
};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const IFF_UP: u32 = 1;
const REPLACE: u16 = 0x100;

/// The index of `lo` in every network namespace.
pub const LOOPBACK: u32 = 1;

/// A hardware address.
pub type Mac = [u8; 6];

/// Where the other end of a new pair is born.
#[derive(Clone, Copy, Debug)]
pub enum PeerNamespace<'a> {
    Fd(BorrowedFd<'a>),
    /// Where this end is.
    Same,
}

/// A pair of virtual Ethernet devices to create.
#[derive(Clone, Copy, Debug)]
pub struct VethPair<'a> {
    pub name: &'a str,
    pub mac: Mac,
    pub peer_name: &'a str,
    pub peer_mac: Mac,
    /// The peer's interface index in its namespace; 0 lets the kernel choose.
    pub peer_index: u32,
    pub peer_namespace: PeerNamespace<'a>,
}

/// A route to add or replace.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub destination: IpAddr,
    pub prefix: u8,
    pub interface: u32,
    /// The next hop; it is taken to be on the link, whatever the addresses say.
    pub via: Option<IpAddr>,
    /// The source address of connections that this machine makes along the route.
    pub source: Option<IpAddr>,
}

/// A destination that the machine already routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExistingRoute {
    pub destination: Ipv4Addr,
    pub prefix: u8,
    pub interface: u32,
}

/// A `NETLINK_ROUTE` socket of one network namespace.
#[derive(Debug)]
pub struct RouteSocket(Socket);

impl RouteSocket {
    /// Opens one in the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        // Protocol 0 is NETLINK_ROUTE.
        Ok(RouteSocket(Socket::open(None)?))
    }

    /// Creates the pair; this end is up when it returns.
    pub fn create_veth(&mut self, pair: &VethPair<'_>) -> Result<u32, NetlinkError> {
        let mut m = link_message("create a veth pair", RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, 0, true);
        m.attr(3, &zero_ended(pair.name)).attr(1, &pair.mac).nest(18, |info| {
            info.attr(1, b"veth").nest(2, |data| {
                let mut peer = Attrs(ifinfo(pair.peer_index, false));
                peer.attr(3, &zero_ended(pair.peer_name)).attr(1, &pair.peer_mac);
                match pair.peer_namespace {
                    PeerNamespace::Fd(fd) => {
                        peer.attr(28, &fd.as_raw_fd().to_ne_bytes());
                    }
                    PeerNamespace::Same => {}
                }
                data.attr(1, &peer.0);
            });
        });
        self.0.send_each(&[m])?;
        self.link_index(pair.name)
    }

    /// Moves a link into the network namespace of a process, under a new name.
    pub fn move_link(&mut self, interface: u32, process: u32, name: &str) -> Result<(), NetlinkError> {
        let mut m = link_message("move a link", RTM_NEWLINK, 0, interface, false);
        m.attr(3, &zero_ended(name)).attr(19, &process.to_ne_bytes());
        self.0.send_each(&[m])
    }

    /// Deletes a link (and with it its peer). A link that is not there is no error.
    pub fn delete_link(&mut self, name: &str) -> Result<(), NetlinkError> {
        let mut m = link_message("delete a link", RTM_DELLINK, 0, 0, false);
        m.attr(3, &zero_ended(name));
        match self.0.send_each(&[m]) {
            Err(e) if e.absent() => Ok(()),
            other => other,
        }
    }

    /// The index of the link of this name.
    pub fn link_index(&mut self, name: &str) -> Result<u32, NetlinkError> {
        let step = "find a link";
        let mut m = link_message(step, RTM_GETLINK, 0, 0, false);
        m.attr(3, &zero_ended(name));
        let answer = self.0.ask(&m)?;
        let index = answer.body.get(4..8).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes);
        index.ok_or_else(|| NetlinkError::new(step, std::io::ErrorKind::InvalidData))
    }

    /// Whether a link of this name exists.
    pub fn has_link(&mut self, name: &str) -> Result<bool, NetlinkError> {
        match self.link_index(name) {
            Ok(_) => Ok(true),
            Err(e) if e.absent() => Ok(false),
            Err(e) => Err(e),
        }
    }

    pub fn set_up(&mut self, interface: u32) -> Result<(), NetlinkError> {
        self.0.send_each(&[link_message("set a link up", RTM_NEWLINK, 0, interface, true)])
    }

    /// Adds addresses; those already there are left.
    pub fn add_addresses(&mut self, interface: u32, addresses: &[(IpAddr, u8)]) -> Result<(), NetlinkError> {
        let messages: Vec<_> = addresses
            .iter()
            .map(|(ip, prefix)| {
                let (family, bytes) = family_and_bytes(*ip);
                let mut fixed = vec![family, *prefix, 0, 0];
                fixed.extend_from_slice(&interface.to_ne_bytes());
                let mut m = Message::new("add an address", RTM_NEWADDR, NLM_F_CREATE | REPLACE, &fixed);
                // IFA_F_NODAD: an address on a point-to-point link is usable at once.
                m.attr(2, &bytes).attr(1, &bytes).attr(8, &2u32.to_ne_bytes());
                m
            })
            .collect();
        self.0.send_each(&messages)
    }

    /// Adds the routes, replacing those with the same destination.
    pub fn add_routes(&mut self, routes: &[Route]) -> Result<(), NetlinkError> {
        let messages: Vec<_> = routes.iter().map(route_message).collect();
        self.0.send_each(&messages)
    }

    /// Adds a permanent neighbour: needed for IPv6, whose neighbour discovery is not answered for addresses of `lo`.
    pub fn add_neighbour(&mut self, interface: u32, ip: IpAddr, mac: Mac) -> Result<(), NetlinkError> {
        const PERMANENT: u16 = 0x80;
        let (family, bytes) = family_and_bytes(ip);
        let mut fixed = vec![family, 0, 0, 0];
        fixed.extend_from_slice(&interface.to_ne_bytes());
        fixed.extend_from_slice(&PERMANENT.to_ne_bytes());
        fixed.extend_from_slice(&[0, 0]);
        let mut m = Message::new("add a neighbour", RTM_NEWNEIGH, NLM_F_CREATE | REPLACE, &fixed);
        m.attr(1, &bytes).attr(2, &mac);
        self.0.send_each(&[m])
    }

    /// The IPv4 routes of every table, local addresses included.
    pub fn ipv4_routes(&mut self) -> Result<Vec<ExistingRoute>, NetlinkError> {
        let mut fixed = [0u8; 12];
        fixed[0] = libc::AF_INET as u8;
        let answers = self.0.dump(&Message::new("list routes", RTM_GETROUTE, 0, &fixed))?;
        Ok(answers.iter().filter_map(existing_route).collect())
    }
}

impl Socket {
    /// Asks for one thing.
    pub(super) fn ask(&mut self, message: &Message) -> Result<Answer, NetlinkError> {
        self.seq = self.seq.wrapping_add(1);
        let mut bytes = Vec::new();
        message.write(self.seq, 0, &mut bytes);
        self.send(&bytes, message.step)?;
        loop {
            for answer in self.receive(message.step)? {
                if answer.seq != self.seq {
                    continue;
                }
                return match answer.error() {
                    Some((_, errno)) => {
                        Err(NetlinkError::new(message.step, std::io::Error::from_raw_os_error(errno)))
                    }
                    None => Ok(answer),
                };
            }
        }
    }
}

/// `struct ifinfomsg`.
fn ifinfo(index: u32, up: bool) -> Vec<u8> {
    let mut fixed = vec![0; 4];
    fixed.extend_from_slice(&index.to_ne_bytes());
    let flags = if up { IFF_UP } else { 0 };
    fixed.extend_from_slice(&flags.to_ne_bytes());
    fixed.extend_from_slice(&flags.to_ne_bytes());
    fixed
}

fn link_message(step: &'static str, kind: u16, flags: u16, index: u32, up: bool) -> Message {
    Message::new(step, kind, flags, &ifinfo(index, up))
}

fn route_message(route: &Route) -> Message {
    const TABLE_MAIN: u8 = 254;
    const PROTOCOL_STATIC: u8 = 4;
    const SCOPE_UNIVERSE: u8 = 0;
    const SCOPE_LINK: u8 = 253;
    const UNICAST: u8 = 1;
    const ONLINK: u32 = 4;
    let (family, destination) = family_and_bytes(route.destination);
    let scope =
        if route.via.is_some() || family == libc::AF_INET6 as u8 { SCOPE_UNIVERSE } else { SCOPE_LINK };
    let mut fixed = vec![family, route.prefix, 0, 0, TABLE_MAIN, PROTOCOL_STATIC, scope, UNICAST];
    fixed.extend_from_slice(&(if route.via.is_some() { ONLINK } else { 0 }).to_ne_bytes());
    let mut m = Message::new("add a route", RTM_NEWROUTE, NLM_F_CREATE | REPLACE, &fixed);
    if route.prefix > 0 {
        m.attr(1, &destination);
    }
    m.attr(4, &route.interface.to_ne_bytes());
    if let Some(via) = route.via {
        m.attr(5, &family_and_bytes(via).1);
    }
    if let Some(source) = route.source {
        m.attr(7, &family_and_bytes(source).1);
    }
    m
}

fn existing_route(answer: &Answer) -> Option<ExistingRoute> {
    let prefix = *answer.body.get(1)?;
    let mut route = ExistingRoute { destination: Ipv4Addr::UNSPECIFIED, prefix, interface: 0 };
    for (kind, value) in attributes(&answer.body, 12) {
        match kind {
            1 => route.destination = <[u8; 4]>::try_from(value).ok()?.into(),
            4 => route.interface = u32::from_ne_bytes(value.try_into().ok()?),
            _ => {}
        }
    }
    Some(route)
}

fn family_and_bytes(ip: IpAddr) -> (u8, Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => (libc::AF_INET as u8, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6 as u8, ip.octets().to_vec()),
    }
}
