//! The link between this machine and a mesh of root's, by which pods and services are reached from here.

use crate::{
    network::{Asked, Network},
    state::State,
};
use ipnet::Ipv4Net;
use weft_fault::Fault;
use weft_net::netlink::route::{PeerNamespace, Route, RouteSocket, VethPair};

/// Both ends of the link.
#[derive(Debug)]
pub(crate) struct HostLink {
    host: RouteSocket,
    here: u32,
    there: u32,
}

impl HostLink {
    /// Takes addresses that nobody uses, by making the link whose name goes with them: only one mesh can.
    ///
    /// `services`: those of an API that is there already.
    pub(crate) fn reserve(
        state: &State,
        asked: Asked,
        services: Option<Ipv4Net>,
    ) -> Result<(Network, HostLink), Fault> {
        let mut host = RouteSocket::open()?;
        for network in Network::free_beside(&host.ipv4_routes()?, asked, services) {
            let [_, b, ..] = network.pods.network().octets();
            let name = network.host_link();
            if host.has_link(&name)? {
                continue;
            }
            // Before it is made, so that it is found if this process is killed in between.
            state.write_holder(&name, 0)?;
            let there = format!("{name}-in");
            let made = host.create_veth(&VethPair {
                name: &name,
                mac: [2, 0x77, b, 0, 0, 1],
                peer_name: &there,
                peer_mac: [2, 0x77, b, 0, 0, 2],
                peer_index: 0,
                peer_namespace: PeerNamespace::Same,
            });
            match made {
                Ok(here) => {
                    state.write_holder(&name, here)?;
                    let there = host.link_index(&there)?;
                    return Ok((network, HostLink { host, here, there }));
                }
                // Somebody else was quicker.
                Err(e) if e.exists() => state.write_holder("", 0)?,
                Err(e) => return Err(e.into()),
            }
        }
        Err(Network::none_free(asked))
    }

    /// Gives the mesh its end of the link, and this machine routes to pods and services.
    pub(crate) fn give(&mut self, network: &Network, supervisor: u32) -> Result<(), Fault> {
        self.host.move_link(self.there, supervisor, "host0")?;
        self.host.add_addresses(self.here, &[(network.host_ip().into(), 32)])?;
        let routes = [network.pods, network.services].map(|range| Route {
            destination: range.network().into(),
            prefix: range.prefix_len(),
            interface: self.here,
            via: Some(network.node_ip().into()),
            source: Some(network.host_ip().into()),
        });
        self.host.add_routes(&routes)?;
        Ok(())
    }
}
