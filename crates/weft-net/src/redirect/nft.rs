//! The plan as one nf_tables transaction over netlink: no program and no module of iptables is needed.

use super::{Act, Line, Plan, Redirect, When, list, plan};
use crate::netlink::{
    NetlinkError,
    nft::{Compare, Family, Hook, Meta, NftSocket, PRIORITY_DSTNAT, Rule, Table, Verdict},
    route::LOOPBACK,
};

const TABLE: &str = "weft_redirect";
const IN: &str = "PROXY_INIT_REDIRECT";
const OUT: &str = "PROXY_INIT_OUTPUT";

/// Applies the redirect in the calling thread's network namespace.
pub fn apply(redirect: &Redirect) -> Result<(), NetlinkError> {
    NftSocket::open()?.apply(&table(redirect))
}

/// Removes what [`apply`] set, if anything.
pub(super) fn remove() -> Result<(), NetlinkError> {
    let mut socket = NftSocket::open()?;
    for family in [Family::Inet, Family::Ipv4] {
        socket.apply(&Table::remove(family, TABLE))?;
    }
    Ok(())
}

/// Removes the chains that an earlier run by iptables on nf_tables, ours or linkerd-init's, left in its table: they would
/// redirect by the old options, and come first.
pub(super) fn remove_chains_of_iptables() -> Result<(), NetlinkError> {
    let mut socket = NftSocket::open()?;
    for family in [Family::Ipv4, Family::Ipv6] {
        socket.remove_chains(family, "nat", &["PREROUTING", "OUTPUT"], &[IN, OUT])?;
    }
    Ok(())
}

/// Whether [`apply`] was here. A transaction is all or nothing, so the table is as good as its rules.
pub(super) fn in_place(redirect: &Redirect) -> bool {
    NftSocket::open().and_then(|mut socket| socket.has_table(family(redirect).0, TABLE)).unwrap_or(false)
}

fn family(redirect: &Redirect) -> (Family, Family) {
    if redirect.ipv6 { (Family::Inet, Family::Ipv4) } else { (Family::Ipv4, Family::Inet) }
}

fn table(redirect: &Redirect) -> Table {
    let Plan { inbound, outbound } = plan(redirect);
    let (family, other) = family(redirect);
    let mut table = Table::remove(other, TABLE).then_replace(family);
    for (chain, hook, lines) in [(IN, Hook::Prerouting, inbound), (OUT, Hook::Output, outbound)] {
        table.base_chain(chain, "nat", hook, PRIORITY_DSTNAT);
        for line in &lines {
            for rule in rules(line, redirect.ipv6) {
                table.rule(chain, rule);
            }
        }
    }
    table
}

/// A line is one rule, or one for each range of its ports: any may match, and all end the same way.
fn rules(line: &Line, ipv6: bool) -> Vec<Rule> {
    let is =
        |meta, value: u32| vec![Rule::new().meta(meta, 1).compare(1, Compare::Equal, &value.to_ne_bytes())];
    let matching = match &line.when {
        When::Ports(ports) => {
            ports.iter().map(|r| Rule::new().tcp().destination_port(r.first, r.last)).collect()
        }
        When::Tcp => vec![Rule::new().tcp()],
        When::From(subnet) if subnet.network.is_ipv6() && !ipv6 => Vec::new(),
        When::From(subnet) => vec![Rule::new().source_network(subnet.network, subnet.prefix)],
        When::Mark(mark) => is(Meta::Mark, *mark),
        When::Uid(uid) => is(Meta::SocketUid, *uid),
        When::Gid(gid) => is(Meta::SocketGid, *gid),
        When::Loopback => is(Meta::OutputInterface, LOOPBACK),
    };
    let ended = |rule: Rule| match line.act {
        Act::Return => rule.verdict(&Verdict::Return),
        Act::To(port) => rule.redirect(port),
    };
    matching.into_iter().map(|rule| ended(rule).comment(&line.comment)).collect()
}

/// The table in the words of the `nft` program, for people.
pub(super) fn describe(redirect: &Redirect) -> String {
    let Plan { inbound, outbound } = plan(redirect);
    let family = if redirect.ipv6 { "inet" } else { "ip" };
    let mut text = format!("table {family} {TABLE} {{\n");
    for (chain, hook, lines) in [(IN, "prerouting", inbound), (OUT, "output", outbound)] {
        text.push_str(&format!("\tchain {chain} {{\n\t\ttype nat hook {hook} priority {PRIORITY_DSTNAT};\n"));
        for line in lines {
            let when = match &line.when {
                When::Ports(ports) => format!("tcp dport {{ {} }}", list(ports, '-').replace(',', ", ")),
                When::Tcp => "meta l4proto tcp".to_owned(),
                When::From(subnet) if subnet.network.is_ipv4() => format!("ip saddr {subnet}"),
                When::From(_) if !redirect.ipv6 => continue,
                When::From(subnet) => format!("ip6 saddr {subnet}"),
                When::Mark(mark) => format!("meta mark {mark:#x}"),
                When::Uid(uid) => format!("meta skuid {uid}"),
                When::Gid(gid) => format!("meta skgid {gid}"),
                When::Loopback => "oif lo".to_owned(),
            };
            let act = match line.act {
                Act::Return => "return".to_owned(),
                Act::To(port) => format!("redirect to :{port}"),
            };
            text.push_str(&format!("\t\t{when} {act} comment \"{}\"\n", line.comment));
        }
        text.push_str("\t}\n");
    }
    text.push_str("}\n");
    text
}
