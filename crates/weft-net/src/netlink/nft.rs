//! nf_tables: tables, chains, rules and sets, built as one transaction.
//!
//! Integers of nf_tables are big-endian. Registers that `meta`, `numgen` and `jhash` fill are host-endian; packet fields are
//! as on the wire. Registers: 1 is 16 bytes long, 8 to 23 are four bytes each.

use super::{Attrs, Message, NLM_F_APPEND, NLM_F_CREATE, NetlinkError, Socket, zero_ended};
use rustix::net::netlink;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

const NEWTABLE: u16 = 0;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const NEWRULE: u16 = 6;
const NEWSET: u16 = 9;
const NEWSETELEM: u16 = 12;

/// The address families of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Both IP versions.
    Inet = 1,
    Ipv4 = 2,
    Ipv6 = 10,
}

/// Where a base chain hooks in.
#[derive(Clone, Copy, Debug)]
pub enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

/// Priorities of base chains, as the `nft` program names them.
pub const PRIORITY_DSTNAT: i32 = -100;
pub const PRIORITY_SRCNAT: i32 = 100;
pub const PRIORITY_FILTER: i32 = 0;
/// Just after destination NAT.
pub const PRIORITY_AFTER_DSTNAT: i32 = -90;

/// What a rule ends with when it decides where to go on.
#[derive(Clone, Debug)]
pub enum Verdict {
    Return,
    Accept,
    Drop,
    Goto(String),
    Jump(String),
}

impl Verdict {
    /// `NFTA_DATA_VERDICT` inside a data attribute.
    fn fill(&self, data: &mut Attrs) {
        let (code, chain): (i32, Option<&str>) = match self {
            Verdict::Drop => (0, None),
            Verdict::Accept => (1, None),
            Verdict::Jump(chain) => (-3, Some(chain)),
            Verdict::Goto(chain) => (-4, Some(chain)),
            Verdict::Return => (-5, None),
        };
        data.nest(2, |v| {
            v.attr(1, &code.to_be_bytes());
            if let Some(chain) = chain {
                v.attr(2, &zero_ended(chain));
            }
        });
    }
}

/// Which metadata a [`Rule`] loads.
#[derive(Clone, Copy, Debug)]
pub enum Meta {
    Mark = 3,
    InputInterface = 4,
    OutputInterface = 5,
    SocketUid = 10,
    SocketGid = 11,
    Family = 15,
    L4Protocol = 16,
}

/// A header of the packet.
#[derive(Clone, Copy, Debug)]
pub enum Base {
    Network = 1,
    Transport = 2,
}

/// An address of the IPv4 header, by its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    Source = 12,
    Destination = 16,
}

#[derive(Clone, Copy, Debug)]
pub enum Compare {
    Equal = 0,
    NotEqual = 1,
    AtMost = 3,
    AtLeast = 5,
}

/// How `reject` answers.
#[derive(Clone, Copy, Debug)]
pub enum Reject {
    TcpReset,
    /// An ICMP "port unreachable" of the packet's own IP version.
    PortUnreachable,
}

/// The expressions of one rule, in the order in which the kernel runs them.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    expressions: Attrs,
    comment: Option<String>,
}

impl Rule {
    pub fn new() -> Self {
        Self::default()
    }

    fn expression(mut self, name: &str, fill: impl FnOnce(&mut Attrs)) -> Self {
        self.expressions.nest(1, |e| {
            e.attr(1, &zero_ended(name)).nest(2, fill);
        });
        self
    }

    /// What listings show beside the rule; at most 127 bytes are kept.
    pub fn comment(mut self, comment: &str) -> Self {
        const LONGEST: usize = 127;
        let end = comment.floor_char_boundary(LONGEST);
        self.comment = Some(comment[..end].to_owned());
        self
    }

    /// `NFTA_RULE_EXPRESSIONS` of a message.
    pub(super) fn fill(&self, message: &mut Message) {
        message.nest(4, |e| e.clone_from(&self.expressions));
    }

    pub fn meta(self, key: Meta, register: u32) -> Self {
        self.expression("meta", |e| {
            e.attr(2, &(key as u32).to_be_bytes()).attr(1, &register.to_be_bytes());
        })
    }

    pub fn payload(self, base: Base, offset: u32, length: u32, register: u32) -> Self {
        self.expression("payload", |e| {
            e.attr(1, &register.to_be_bytes())
                .attr(2, &(base as u32).to_be_bytes())
                .attr(3, &offset.to_be_bytes())
                .attr(4, &length.to_be_bytes());
        })
    }

    pub fn compare(self, register: u32, how: Compare, value: &[u8]) -> Self {
        self.expression("cmp", |e| {
            e.attr(1, &register.to_be_bytes()).attr(2, &(how as u32).to_be_bytes()).nest(3, |d| {
                d.attr(1, value);
            });
        })
    }

    /// Keeps only the bits of `mask`.
    pub fn mask(self, register: u32, mask: &[u8]) -> Self {
        let length = u32::try_from(mask.len()).expect("a mask is at most 16 bytes long");
        self.expression("bitwise", |e| {
            e.attr(1, &register.to_be_bytes())
                .attr(2, &register.to_be_bytes())
                .attr(3, &length.to_be_bytes())
                .nest(4, |d| {
                    d.attr(1, mask);
                })
                .nest(5, |d| {
                    d.attr(1, &vec![0; mask.len()]);
                });
        })
    }

    /// TCP only (the transport header is not looked at otherwise).
    pub fn tcp(self) -> Self {
        self.protocol(libc::IPPROTO_TCP as u8)
    }

    /// Of this protocol only (`IPPROTO_*`).
    pub fn protocol(self, number: u8) -> Self {
        self.meta(Meta::L4Protocol, 1).compare(1, Compare::Equal, &[number])
    }

    /// The packet belongs to a connection that was let through before, or to one that such a connection opened.
    pub fn established(self) -> Self {
        const STATE: u32 = 0;
        const ESTABLISHED: u32 = 1 << 1;
        const RELATED: u32 = 1 << 2;
        self.conntrack(STATE, ESTABLISHED | RELATED)
    }

    /// The connection's destination port lies in the range, both ends included.
    pub fn destination_port(self, first: u16, last: u16) -> Self {
        let loaded = self.payload(Base::Transport, 2, 2, 1);
        if first == last {
            return loaded.compare(1, Compare::Equal, &first.to_be_bytes());
        }
        loaded.compare(1, Compare::AtLeast, &first.to_be_bytes()).compare(
            1,
            Compare::AtMost,
            &last.to_be_bytes(),
        )
    }

    /// An address of the packet's IPv4 header, source or destination, in the network or outside of it.
    pub fn address(self, which: Address, network: Ipv4Addr, prefix: u8, inside: bool) -> Self {
        let mask = prefix_mask(prefix, 4);
        let bytes: Vec<u8> = network.octets().iter().zip(&mask).map(|(b, m)| b & m).collect();
        let how = if inside { Compare::Equal } else { Compare::NotEqual };
        self.load_address(which, 1).mask(1, &mask).compare(1, how, &bytes)
    }

    pub fn load_address(self, which: Address, register: u32) -> Self {
        self.payload(Base::Network, which as u32, 4, register)
    }

    /// The packet comes from this network.
    pub fn source_network(self, network: IpAddr, prefix: u8) -> Self {
        self.network(network, prefix, 12, 8)
    }

    /// The packet goes to this network.
    pub fn destination_network(self, network: IpAddr, prefix: u8) -> Self {
        self.network(network, prefix, 16, 24)
    }

    fn network(self, network: IpAddr, prefix: u8, offset4: u32, offset6: u32) -> Self {
        const NFPROTO_IPV4: u8 = 2;
        const NFPROTO_IPV6: u8 = 10;
        let (family, offset, mut bytes) = match network {
            IpAddr::V4(ip) => (NFPROTO_IPV4, offset4, ip.octets().to_vec()),
            IpAddr::V6(ip) => (NFPROTO_IPV6, offset6, ip.octets().to_vec()),
        };
        let mask = prefix_mask(prefix, bytes.len());
        bytes.iter_mut().zip(&mask).for_each(|(b, m)| *b &= m);
        let length = u32::try_from(bytes.len()).expect("4 or 16");
        self.meta(Meta::Family, 1)
            .compare(1, Compare::Equal, &[family])
            .payload(Base::Network, offset, length, 1)
            .mask(1, &mask)
            .compare(1, Compare::Equal, &bytes)
    }

    /// Loads a value.
    pub fn immediate(self, register: u32, value: &[u8]) -> Self {
        self.expression("immediate", |e| {
            e.attr(1, &register.to_be_bytes()).nest(2, |d| {
                d.attr(1, value);
            });
        })
    }

    pub fn verdict(self, verdict: &Verdict) -> Self {
        self.expression("immediate", |e| {
            e.attr(1, &0u32.to_be_bytes()).nest(2, |d| verdict.fill(d));
        })
    }

    /// Redirects to this machine, to the port given.
    pub fn redirect(self, port: u16) -> Self {
        self.immediate(1, &port.to_be_bytes()).expression("redir", |e| {
            e.attr(1, &1u32.to_be_bytes());
        })
    }

    /// Translates the destination to the IPv4 address and port in two registers.
    pub fn destination_nat(self, address: u32, port: u32) -> Self {
        self.expression("nat", |e| {
            e.attr(1, &1u32.to_be_bytes())
                .attr(2, &(libc::AF_INET as u32).to_be_bytes())
                .attr(3, &address.to_be_bytes())
                .attr(5, &port.to_be_bytes());
        })
    }

    pub fn masquerade(self) -> Self {
        self.expression("masq", |_| {})
    }

    pub fn reject(self, how: Reject) -> Self {
        // NFT_REJECT_TCP_RST = 1; NFT_REJECT_ICMPX_UNREACH = 2 with code 1, port unreachable.
        let (kind, code) = match how {
            Reject::TcpReset => (1u32, 0u8),
            Reject::PortUnreachable => (2, 1),
        };
        self.expression("reject", |e| {
            e.attr(1, &kind.to_be_bytes()).attr(2, &[code]);
        })
    }

    /// A random number below `modulus`.
    pub fn random(self, register: u32, modulus: u32) -> Self {
        self.expression("numgen", |e| {
            e.attr(1, &register.to_be_bytes()).attr(2, &modulus.to_be_bytes()).attr(3, &1u32.to_be_bytes());
        })
    }

    /// A number below `modulus` that is always the same for one IPv4 source address.
    pub fn source_hash(self, register: u32, modulus: u32) -> Self {
        self.payload(Base::Network, 12, 4, register).expression("hash", |e| {
            e.attr(1, &register.to_be_bytes())
                .attr(2, &register.to_be_bytes())
                .attr(3, &4u32.to_be_bytes())
                .attr(4, &modulus.to_be_bytes())
                .attr(5, &0x77_65_66_74u32.to_be_bytes())
                .attr(7, &0u32.to_be_bytes());
        })
    }

    /// The connection's destination was translated (`ct status dnat`).
    pub fn was_destination_nat(self) -> Self {
        const STATUS: u32 = 2;
        const DST_NAT: u32 = 1 << 5;
        self.conntrack(STATUS, DST_NAT)
    }

    /// Any of these bits is set in what connection tracking knows.
    fn conntrack(self, key: u32, bits: u32) -> Self {
        self.expression("ct", |e| {
            e.attr(1, &1u32.to_be_bytes()).attr(2, &key.to_be_bytes());
        })
        .mask(1, &bits.to_ne_bytes())
        .compare(1, Compare::NotEqual, &0u32.to_ne_bytes())
    }

    /// Looks up the key that begins in register `key`; the value of a map goes to register `value` (0: a verdict).
    pub fn lookup(self, set: &str, set_id: Option<u32>, key: u32, value: u32) -> Self {
        self.expression("lookup", |e| {
            e.attr(1, &zero_ended(set)).attr(2, &key.to_be_bytes()).attr(3, &value.to_be_bytes());
            if let Some(id) = set_id {
                e.attr(4, &id.to_be_bytes());
            }
        })
    }

    /// The key that begins in register `key` is in the set. An anonymous set has a number.
    pub fn contained(self, set: &str, set_id: Option<u32>, key: u32) -> Self {
        self.expression("lookup", |e| {
            e.attr(1, &zero_ended(set)).attr(2, &key.to_be_bytes());
            if let Some(id) = set_id {
                e.attr(4, &id.to_be_bytes());
            }
        })
    }
}

fn prefix_mask(prefix: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| {
            let bits = usize::from(prefix).saturating_sub(i * 8).min(8);
            u8::try_from(0xff00u16 >> bits & 0xff).expect("masked to a byte")
        })
        .collect()
}

/// A transaction that replaces one table, whatever it held before.
#[derive(Debug)]
pub struct Table {
    family: Family,
    name: String,
    messages: Vec<Message>,
    sets: u32,
}

impl Table {
    /// Begins with an empty table.
    pub fn replace(family: Family, name: &str) -> Self {
        let mut table = Table::remove(family, name);
        table.table_message("add a table", NEWTABLE);
        table
    }

    /// Removes a table, which need not exist.
    pub fn remove(family: Family, name: &str) -> Self {
        let mut table = Table { family, name: name.to_string(), messages: Vec::new(), sets: 0 };
        // Added first so that the deletion cannot fail.
        table.table_message("add a table", NEWTABLE);
        table.table_message("delete a table", DELTABLE);
        table
    }

    /// In the same transaction, [`Table::replace`]s the table of the same name in another family.
    pub fn then_replace(mut self, family: Family) -> Self {
        let next = Table::replace(family, &self.name);
        self.messages.extend(next.messages);
        self.family = family;
        self
    }

    fn table_message(&mut self, step: &'static str, operation: u16) {
        let flags = if operation == NEWTABLE { NLM_F_CREATE } else { 0 };
        let mut m = self.message(step, operation, flags);
        m.attr(1, &zero_ended(&self.name));
        self.messages.push(m);
    }

    fn message(&self, step: &'static str, operation: u16, flags: u16) -> Message {
        Message::new(step, 0x0a00 | operation, flags, &[self.family as u8, 0, 0, 0])
    }

    /// A chain that packets pass. `kind` is `nat` or `filter`.
    pub fn base_chain(&mut self, name: &str, kind: &str, hook: Hook, priority: i32) -> &mut Self {
        let mut m = self.message("add a base chain", NEWCHAIN, NLM_F_CREATE);
        m.attr(1, &zero_ended(&self.name))
            .attr(3, &zero_ended(name))
            .nest(4, |h| {
                h.attr(1, &(hook as u32).to_be_bytes()).attr(2, &priority.to_be_bytes());
            })
            .attr(7, &zero_ended(kind));
        self.messages.push(m);
        self
    }

    /// A chain that only other rules lead to.
    pub fn chain(&mut self, name: &str) -> &mut Self {
        let mut m = self.message("add a chain", NEWCHAIN, NLM_F_CREATE);
        m.attr(1, &zero_ended(&self.name)).attr(3, &zero_ended(name));
        self.messages.push(m);
        self
    }

    pub fn rule(&mut self, chain: &str, rule: Rule) -> &mut Self {
        let mut m = self.message("add a rule", NEWRULE, NLM_F_CREATE | NLM_F_APPEND);
        m.attr(1, &zero_ended(&self.name)).attr(2, &zero_ended(chain));
        rule.fill(&mut m);
        if let Some(comment) = rule.comment {
            // NFTA_RULE_USERDATA holds type, length, value; type 0 is a comment, ended by a zero byte.
            let mut user = vec![0, u8::try_from(comment.len() + 1).expect("`Rule::comment` bounds it")];
            user.extend(zero_ended(&comment));
            m.attr(7, &user);
        }
        self.messages.push(m);
        self
    }

    /// A map from (IPv4 address, protocol, port) to a chain.
    pub fn service_map(&mut self, name: &str, entries: &[((Ipv4Addr, u8, u16), String)]) -> &mut Self {
        // Address, protocol and port each fill a word, as three registers do.
        let key = |(ip, protocol, port): &(Ipv4Addr, u8, u16)| {
            let mut k = ip.octets().to_vec();
            k.extend_from_slice(&[*protocol, 0, 0, 0]);
            k.extend_from_slice(&port.to_be_bytes());
            k.extend_from_slice(&[0, 0]);
            k
        };
        let id = self.new_set(name, MAP, 12, Some((VERDICT, 0)));
        let elements: Vec<_> = entries
            .iter()
            .map(|(k, chain)| (key(k), Some(Value::Verdict(Verdict::Goto(chain.clone())))))
            .collect();
        self.elements(name, id, &elements);
        self
    }

    /// A map from IPv4 addresses to chains that are jumped to, and come back from.
    pub fn chains_by_address(&mut self, name: &str, entries: &[(Ipv4Addr, String)]) -> &mut Self {
        let id = self.new_set(name, MAP, 4, Some((VERDICT, 0)));
        let elements: Vec<_> = entries
            .iter()
            .map(|(ip, chain)| (ip.octets().to_vec(), Some(Value::Verdict(Verdict::Jump(chain.clone())))))
            .collect();
        self.elements(name, id, &elements);
        self
    }

    /// An anonymous set of IPv4 addresses. Its name and number are for [`Rule::contained`].
    pub fn addresses(&mut self, addresses: &[Ipv4Addr]) -> (&'static str, u32) {
        let name = "__set%d";
        let id = self.new_set(name, ANONYMOUS | CONSTANT, 4, None);
        let elements: Vec<_> = addresses.iter().map(|ip| (ip.octets().to_vec(), None)).collect();
        self.elements(name, id, &elements);
        (name, id)
    }

    /// A set of pairs of IPv4 addresses (source and destination, say).
    pub fn address_pairs(&mut self, name: &str, pairs: &[(Ipv4Addr, Ipv4Addr)]) -> &mut Self {
        let id = self.new_set(name, 0, 8, None);
        let elements: Vec<_> = pairs.iter().map(|(a, b)| ([a.octets(), b.octets()].concat(), None)).collect();
        self.elements(name, id, &elements);
        self
    }

    /// An anonymous map from 0, 1, 2 … to the addresses. Its name and number are for [`Rule::lookup`].
    pub fn numbered_addresses(&mut self, addresses: &[SocketAddrV4]) -> (&'static str, u32) {
        let elements: Vec<_> = addresses
            .iter()
            .enumerate()
            .map(|(i, a)| {
                let number = u32::try_from(i).expect("fewer than 2^32 endpoints");
                let mut value = a.ip().octets().to_vec();
                value.extend_from_slice(&a.port().to_be_bytes());
                value.extend_from_slice(&[0, 0]);
                (number.to_ne_bytes().to_vec(), Some(Value::Bytes(value)))
            })
            .collect();
        let name = "__map%d";
        let id = self.new_set(name, ANONYMOUS | CONSTANT | MAP, 4, Some((0, 8)));
        self.elements(name, id, &elements);
        (name, id)
    }

    fn new_set(&mut self, name: &str, flags: u32, key_length: u32, data: Option<(u32, u32)>) -> u32 {
        self.sets += 1;
        let id = self.sets;
        let mut m = self.message("add a set", NEWSET, NLM_F_CREATE);
        m.attr(1, &zero_ended(&self.name))
            .attr(2, &zero_ended(name))
            .attr(3, &flags.to_be_bytes())
            .attr(4, &0u32.to_be_bytes())
            .attr(5, &key_length.to_be_bytes());
        if let Some((kind, length)) = data {
            m.attr(6, &kind.to_be_bytes());
            if length > 0 {
                m.attr(7, &length.to_be_bytes());
            }
        }
        m.attr(10, &id.to_be_bytes());
        self.messages.push(m);
        id
    }

    fn elements(&mut self, name: &str, id: u32, elements: &[(Vec<u8>, Option<Value>)]) {
        // An attribute is at most 64 kB long.
        for part in elements.chunks(400) {
            let mut m = self.message("add set elements", NEWSETELEM, NLM_F_CREATE);
            m.attr(1, &zero_ended(&self.name)).attr(2, &zero_ended(name)).attr(4, &id.to_be_bytes());
            m.nest(3, |list| {
                for (key, value) in part {
                    list.nest(1, |e| {
                        e.nest(1, |k| {
                            k.attr(1, key);
                        });
                        match value {
                            Some(Value::Bytes(bytes)) => {
                                e.nest(2, |d| {
                                    d.attr(1, bytes);
                                });
                            }
                            Some(Value::Verdict(verdict)) => {
                                e.nest(2, |d| verdict.fill(d));
                            }
                            None => {}
                        }
                    });
                }
            });
            self.messages.push(m);
        }
    }
}

/// The type of a map's values that are verdicts.
const VERDICT: u32 = 0xffff_ff00;
const ANONYMOUS: u32 = 1;
const CONSTANT: u32 = 2;
const MAP: u32 = 8;

#[derive(Clone, Debug)]
enum Value {
    Bytes(Vec<u8>),
    Verdict(Verdict),
}

/// A `NETLINK_NETFILTER` socket of one network namespace.
#[derive(Debug)]
pub struct NftSocket(pub(super) Socket);

impl NftSocket {
    /// Opens one in the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(NftSocket(Socket::open(Some(netlink::NETFILTER))?))
    }

    /// Applies the table, wholly or not at all.
    pub fn apply(&mut self, table: &Table) -> Result<(), NetlinkError> {
        self.0.send_batch(&table.messages)
    }

    /// Whether a table of this name is there.
    pub fn has_table(&mut self, family: Family, name: &str) -> Result<bool, NetlinkError> {
        const GETTABLE: u16 = 0x0a01;
        let mut m = Message::new("find a table", GETTABLE, 0, &[family as u8, 0, 0, 0]);
        m.attr(1, &zero_ended(name));
        match self.0.ask(&m) {
            Ok(_) => Ok(true),
            Err(e) if e.absent() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Forgets the UDP flows to `destination`, so that the next datagram takes the present rules. A flow that is
    /// not there is no error.
    pub fn forget_udp_flows(&mut self, flows: &[UdpFlow]) -> Result<(), NetlinkError> {
        const CONNTRACK_DELETE: u16 = 0x0102;
        for flow in flows {
            let mut m =
                Message::new("forget a UDP flow", CONNTRACK_DELETE, 0, &[libc::AF_INET as u8, 0, 0, 0]);
            m.nest(1, |tuple| {
                tuple.nest(1, |ip| {
                    ip.attr(1, &flow.source.ip().octets()).attr(2, &flow.destination.ip().octets());
                });
                tuple.nest(2, |proto| {
                    proto
                        .attr(1, &[libc::IPPROTO_UDP as u8])
                        .attr(2, &flow.source.port().to_be_bytes())
                        .attr(3, &flow.destination.port().to_be_bytes());
                });
            });
            match self.0.send_each(&[m]) {
                Err(e) if !e.absent() => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// The UDP flows whose original destination is `destination`.
    pub fn udp_flows_to(&mut self, destination: SocketAddrV4) -> Result<Vec<UdpFlow>, NetlinkError> {
        const CONNTRACK_GET: u16 = 0x0101;
        let m = Message::new("list flows", CONNTRACK_GET, 0, &[libc::AF_INET as u8, 0, 0, 0]);
        let answers = self.0.dump(&m)?;
        Ok(answers
            .iter()
            .filter_map(|a| udp_flow(&a.body))
            .filter(|f| f.destination == destination)
            .collect())
    }
}

/// One UDP flow as its sender sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFlow {
    pub source: SocketAddrV4,
    pub destination: SocketAddrV4,
}

fn udp_flow(body: &[u8]) -> Option<UdpFlow> {
    use super::attributes;
    let find = |list: &[(u16, &[u8])], kind| list.iter().find(|(k, _)| *k == kind).map(|(_, v)| v.to_vec());
    let tuple = find(&attributes(body, 4), 1)?;
    let tuple = attributes(&tuple, 0);
    let (ip, proto) = (find(&tuple, 1)?, find(&tuple, 2)?);
    let (ip, proto) = (attributes(&ip, 0), attributes(&proto, 0));
    if find(&proto, 1)?.first() != Some(&(libc::IPPROTO_UDP as u8)) {
        return None;
    }
    let address = |kind| Some(Ipv4Addr::from(<[u8; 4]>::try_from(find(&ip, kind)?).ok()?));
    let port = |kind| Some(u16::from_be_bytes(find(&proto, kind)?.try_into().ok()?));
    Some(UdpFlow {
        source: SocketAddrV4::new(address(1)?, port(2)?),
        destination: SocketAddrV4::new(address(2)?, port(3)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        assert_eq!(prefix_mask(0, 4), [0, 0, 0, 0]);
        assert_eq!(prefix_mask(13, 4), [0xff, 0xf8, 0, 0]);
        assert_eq!(prefix_mask(32, 4), [0xff; 4]);
        assert_eq!(prefix_mask(64, 16)[7..9], [0xff, 0]);
    }
}
