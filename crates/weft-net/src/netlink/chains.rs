//! Chains in a table of somebody else: found by what jumps to them, and taken out.

use super::{
    Message, NetlinkError, attributes,
    nft::{Family, NftSocket},
    zero_ended,
};

const GETCHAIN: u16 = 0x0a04;
const DELCHAIN: u16 = 0x0a05;
const GETRULE: u16 = 0x0a07;
const DELRULE: u16 = 0x0a08;
/// Attributes of a rule and of a chain.
const TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const CHAIN_NAME: u16 = 3;

impl NftSocket {
    /// Takes `chains` out of a table, and before that the rules of `hooks` that lead to them: in one transaction, so that
    /// no packet meets half of it. What is not there need not go.
    pub fn remove_chains(
        &mut self,
        family: Family,
        table: &str,
        hooks: &[&str],
        chains: &[&str],
    ) -> Result<(), NetlinkError> {
        let message = |step, kind| {
            let mut m = Message::new(step, kind, 0, &[family as u8, 0, 0, 0]);
            m.attr(TABLE, &zero_ended(table));
            m
        };
        let mut gone = Vec::new();
        for hook in hooks {
            let mut list = message("list rules", GETRULE);
            list.attr(RULE_CHAIN, &zero_ended(hook));
            let rules = match self.0.dump(&list) {
                Err(e) if e.absent() => continue,
                rules => rules?,
            };
            for handle in rules.iter().filter_map(|rule| leading_to(&rule.body, table, hook, chains)) {
                let mut m = message("delete a rule", DELRULE);
                m.attr(RULE_CHAIN, &zero_ended(hook)).attr(RULE_HANDLE, &handle);
                gone.push(m);
            }
        }
        for chain in chains {
            let mut find = message("find a chain", GETCHAIN);
            find.attr(CHAIN_NAME, &zero_ended(chain));
            match self.0.ask(&find) {
                Err(e) if e.absent() => continue,
                found => found?,
            };
            let mut empty = message("empty a chain", DELRULE);
            empty.attr(RULE_CHAIN, &zero_ended(chain));
            let mut m = message("delete a chain", DELCHAIN);
            m.attr(CHAIN_NAME, &zero_ended(chain));
            gone.extend([empty, m]);
        }
        self.0.send_batch(&gone)
    }
}

/// The handle of a rule of this chain that leads to one of `chains`. Within a rule a chain's whole name, ended by a zero
/// byte, stands for nothing but where it leads: comments are kept outside of its expressions.
fn leading_to(body: &[u8], table: &str, hook: &str, chains: &[&str]) -> Option<Vec<u8>> {
    let attributes = attributes(body, 4);
    let find = |kind| attributes.iter().find(|(k, _)| *k == kind).map(|(_, value)| *value);
    // Kernels before 5.11 list every rule of the family, whatever was asked for.
    if find(TABLE)? != zero_ended(table) || find(RULE_CHAIN)? != zero_ended(hook) {
        return None;
    }
    let expressions = find(RULE_EXPRESSIONS)?;
    let leads = chains.iter().any(|chain| {
        let name = zero_ended(chain);
        expressions.windows(name.len()).any(|window| window == name)
    });
    leads.then(|| find(RULE_HANDLE).map(<[u8]>::to_vec)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::nft::{Rule, Verdict};

    #[test]
    fn a_rule_is_known_by_where_it_leads() {
        let rule = |table: &str, hook: &str, to: &str| {
            let jump = Rule::new().tcp().verdict(&Verdict::Jump(to.to_owned()));
            let mut m = Message::new("test", GETRULE, 0, &[2, 0, 0, 0]);
            m.attr(TABLE, &zero_ended(table)).attr(RULE_CHAIN, &zero_ended(hook));
            m.attr(RULE_HANDLE, &7_u64.to_be_bytes());
            jump.fill(&mut m);
            m.body
        };
        let handle = |body: &[u8]| leading_to(body, "nat", "OUTPUT", &["PROXY_INIT_OUTPUT"]);
        assert_eq!(handle(&rule("nat", "OUTPUT", "PROXY_INIT_OUTPUT")), Some(7_u64.to_be_bytes().to_vec()));
        for other in [
            rule("nat", "OUTPUT", "PROXY_INIT_OUTPUT_2"),
            rule("nat", "OUTPUT", "DOCKER"),
            rule("nat", "PREROUTING", "PROXY_INIT_OUTPUT"),
            rule("filter", "OUTPUT", "PROXY_INIT_OUTPUT"),
            vec![2, 0, 0],
        ] {
            assert_eq!(handle(&other), None);
        }
    }
}
