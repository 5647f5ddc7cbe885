//! The border of a mesh: connections come in from this machine and from meshes that were asked for as peers, and from nowhere
//! else, whether this machine forwards packets or not. What pods themselves have opened is answered.

use crate::network::Network;
use weft_fault::Fault;
use weft_net::netlink::nft::{
    Address, Compare, Family, Hook, Meta, NftSocket, PRIORITY_AFTER_DSTNAT, Reject, Rule, Table, Verdict,
};

/// Closes the border on `interface`, the node's end of the link to this machine. `socket` is of the node's namespace.
pub(crate) fn close(socket: &mut NftSocket, network: &Network, interface: u32) -> Result<(), Fault> {
    let chain = "from-outside";
    let mut table = Table::replace(Family::Ipv4, "weft_border");
    table.base_chain(chain, "filter", Hook::Prerouting, PRIORITY_AFTER_DSTNAT);
    let inside = Rule::new().meta(Meta::InputInterface, 1);
    table.rule(
        chain,
        inside.compare(1, Compare::NotEqual, &interface.to_ne_bytes()).verdict(&Verdict::Accept),
    );
    table.rule(chain, Rule::new().established().verdict(&Verdict::Accept));
    let machine = Rule::new().address(Address::Source, network.host_ip(), 32, true);
    table.rule(chain, machine.verdict(&Verdict::Accept));
    // Refused rather than dropped: who tries is told at once.
    table.rule(chain, Rule::new().tcp().reject(Reject::TcpReset));
    table.rule(chain, Rule::new().verdict(&Verdict::Drop));
    Ok(socket.apply(&table)?)
}
