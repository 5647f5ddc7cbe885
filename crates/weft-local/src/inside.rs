//! The machine inside a mesh: its mounts, its settings, its addresses, and where its packets go.

use crate::{
    network::{GATEWAY, Network},
    node::NODE_NAME,
    refusal::MOUNT_PROC,
};
use rustix::mount::MountFlags;
use std::{fs, io, net::Ipv4Addr, path::Path};
use weft_fault::{Code, Fault, Phase};
use weft_net::{
    mount,
    netlink::route::{LOOPBACK, Route, RouteSocket},
};

/// Private mounts, a `/proc` of the new process numbers, and memory for the pods' files. Or the step that failed, and why.
pub(crate) fn mounts(state_dir: &Path) -> Result<(), (&'static str, io::Error)> {
    let failed = |step| move |error| (step, error);
    mount::make_private().map_err(failed("make mounts private"))?;
    let sealed = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount::filesystem("proc", Path::new("/proc"), sealed, "").map_err(failed(MOUNT_PROC))?;
    mount::tmpfs(&state_dir.join("pods"), "mode=755").map_err(failed("mount a tmpfs"))
}

/// The node's addresses are on its loopback: the node itself, the pods' gateway, and DNS.
pub(crate) fn addresses(route: &mut RouteSocket, network: &Network) -> Result<(), Fault> {
    rustix::system::sethostname(NODE_NAME.as_bytes()).map_err(|e| unable("set the host name")(e.into()))?;
    for (path, value) in [("ip_forward", "1"), ("ip_unprivileged_port_start", "0")] {
        fs::write(Path::new("/proc/sys/net/ipv4").join(path), value).map_err(unable("set a sysctl"))?;
    }
    route.set_up(LOOPBACK)?;
    route.add_addresses(
        LOOPBACK,
        &[(network.node_ip().into(), 32), (GATEWAY.into(), 32), (network.dns_ip().into(), 32)],
    )?;
    // Without a route, packets to a service would be refused before they are translated. Those to a pod that is gone
    // would leave by the default route and come back; pods that are there have routes of their own.
    let source = Some(network.node_ip().into());
    let to_loopback = [network.services, network.pods].map(|range| Route {
        destination: range.network().into(),
        prefix: range.prefix_len(),
        interface: LOOPBACK,
        via: None,
        source,
    });
    route.add_routes(&to_loopback)?;
    Ok(())
}

/// This side of the link to the outside: everything that is not the mesh's goes there. Returns its index.
pub(crate) fn link(route: &mut RouteSocket, network: &Network) -> Result<u32, Fault> {
    let interface = route.link_index("host0")?;
    route.set_up(interface)?;
    let source = Some(network.node_ip().into());
    let host = Route { destination: network.host_ip().into(), prefix: 32, interface, via: None, source };
    let everything = Route {
        destination: Ipv4Addr::UNSPECIFIED.into(),
        prefix: 0,
        interface,
        via: Some(network.host_ip().into()),
        source,
    };
    route.add_routes(&[host, everything])?;
    Ok(interface)
}

/// Nothing leads outside: what is addressed there goes the way of what is addressed to a pod that is gone, and is refused.
pub(crate) fn nowhere(route: &mut RouteSocket, network: &Network) -> Result<(), Fault> {
    let everything = Route {
        destination: Ipv4Addr::UNSPECIFIED.into(),
        prefix: 0,
        interface: LOOPBACK,
        via: None,
        source: Some(network.node_ip().into()),
    };
    route.add_routes(&[everything])?;
    Ok(())
}

pub(crate) fn unable(step: &'static str) -> impl FnOnce(io::Error) -> Fault {
    move |e| Fault::new(Code::HostUnable).in_phase(Phase::Start).fact("step", step).because(e)
}
