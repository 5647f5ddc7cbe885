//! Routes between the pods of two meshes on this machine (`weft up --peer OTHER`).
//!
//! One pair of links joins the nodes of both. Addresses are not translated, so each side's policies see the other's pods as
//! addresses outside of the cluster; Services' addresses are known to their own mesh only. The process outside of the mesh
//! that was told of the peer makes the links, since only the machine's root may enter both nodes' namespaces. They go with
//! either mesh, and are made again when the other is back.

use crate::{
    network::{Network, overlap},
    state,
};
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    net::IpAddr,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::JoinHandle,
    time::Duration,
};
use weft_fault::{Code, Fault, Phase};
use weft_net::{
    namespace::{Enter, enter},
    netlink::route::{Mac, PeerNamespace, Route, RouteSocket, VethPair},
};

/// How often it is looked whether a peer came or went.
const LOOK: Duration = Duration::from_millis(500);

/// The file in the state directory that says where a mesh is.
pub(crate) const PLACE: &str = "place.json";

/// Where a mesh is, as its peers need to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Process 1 of the mesh, whose network namespace is the node's.
    pub(crate) supervisor: u32,
    pub(crate) network: Network,
}

impl Place {
    /// Of a mesh that runs.
    fn of(root: &Path, name: &str) -> Option<Self> {
        let place = std::fs::read(root.join(name).join(PLACE)).ok()?;
        let place = serde_json::from_slice(&place).ok()?;
        state::is_running(root, name).then_some(place)
    }

    fn namespace(&self) -> io::Result<File> {
        File::open(format!("/proc/{}/ns/net", self.supervisor))
    }
}

/// A `NETLINK_ROUTE` socket of a network namespace.
fn routes_in(namespace: &File) -> Result<RouteSocket, Fault> {
    enter(Enter { net: Some(namespace.as_fd()), ..Enter::default() }, || {
        RouteSocket::open().map_err(|e| e.error)
    })
}

/// Keeps the links to peers, until dropped.
#[derive(Debug)]
pub(crate) struct Peering {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Peering {
    fn drop(&mut self) {
        // The thread ends when nobody could stop it any more.
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Peering {
    /// Joins a mesh with its peers, now those that run, the others when they come.
    ///
    /// Says of each where its pods are, if it runs.
    pub(crate) fn start(
        own: Place,
        root: PathBuf,
        peers: &[String],
    ) -> Result<(Self, Vec<Option<Ipv4Net>>), Fault> {
        let node = own.namespace().map_err(|e| unable("find the mesh's own namespace", e))?;
        let mut links = Links { routes: routes_in(&node)?, own, root, last: BTreeMap::new() };
        // What is wrong from the beginning is told to whoever starts the mesh.
        let found = peers.iter().map(|peer| links.keep(peer)).collect::<Result<Vec<_>, _>>()?;
        let peers = peers.to_vec();
        let (stop, stopped) = mpsc::channel();
        let keep = move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                for peer in &peers {
                    if let Err(fault) = links.keep(peer) {
                        links.tell(peer, Told::Refused, || {
                            tracing::warn!(peer, ?fault, "no route to the peer");
                        });
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("peering".into()).spawn(keep);
        let thread = thread.map_err(|e| unable("start a thread", e))?;
        Ok((Peering { stop: Some(stop), thread: Some(thread) }, found))
    }
}

/// What was last said of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Absent,
    Refused,
    Joined(u32),
}

struct Links {
    own: Place,
    routes: RouteSocket,
    root: PathBuf,
    last: BTreeMap<String, Told>,
}

impl Links {
    /// Makes the link to a peer if the peer is there and the link is not.
    fn keep(&mut self, peer: &str) -> Result<Option<Ipv4Net>, Fault> {
        let Some(place) = Place::of(&self.root, peer) else {
            self.tell(peer, Told::Absent, || {
                tracing::info!(peer, "the peer is not running; it is joined when it is");
            });
            return Ok(None);
        };
        let pods = place.network.pods;
        if overlap(pods, self.own.network.pods) {
            return Err(Fault::new(Code::BadFlag)
                .in_phase(Phase::Start)
                .about(format!("--peer {peer}"))
                .fact("problem", "both meshes have the same pod addresses")
                .fact("pods", pods));
        }
        let here = place.network.peer_link();
        match self.routes.link_index(&here) {
            // Links go in pairs: the other end is there as well, with its routes.
            Ok(index) if self.last.get(peer) == Some(&Told::Joined(index)) => return Ok(Some(pods)),
            Err(e) if !e.absent() => return Err(e.into()),
            _ => {}
        }
        let index = self.join(&place, &here)?;
        self.tell(peer, Told::Joined(index), || {
            tracing::info!(peer, %pods, "the peer's pods are routed");
        });
        Ok(Some(pods))
    }

    fn join(&mut self, peer: &Place, here: &str) -> Result<u32, Fault> {
        let theirs = peer.namespace().map_err(|e| unable("find the peer's namespace", e))?;
        let mut their_routes = routes_in(&theirs)?;
        let there = self.own.network.peer_link();
        let pair = VethPair {
            name: here,
            mac: mac(&peer.network),
            peer_name: &there,
            peer_mac: mac(&self.own.network),
            peer_index: 0,
            peer_namespace: PeerNamespace::Fd(theirs.as_fd()),
        };
        match self.routes.create_veth(&pair) {
            Ok(_) => {}
            // The peer was told of this mesh, too, and was quicker; or this one was started again in between.
            Err(e) if e.exists() => {}
            Err(e) => return Err(e.into()),
        }
        let (ours, theirs) = (self.routes.link_index(here)?, their_routes.link_index(&there)?);
        lead(&mut self.routes, ours, &self.own.network, &peer.network)?;
        lead(&mut their_routes, theirs, &peer.network, &self.own.network)?;
        Ok(ours)
    }

    fn tell(&mut self, peer: &str, told: Told, say: impl FnOnce()) {
        if self.last.insert(peer.to_owned(), told) != Some(told) {
            say();
        }
    }
}

/// The hardware address of the link that leads to a mesh.
fn mac(to: &Network) -> Mac {
    let [a, b, ..] = to.pods.network().octets();
    [2, 0x78, a, b, 0, 1]
}

/// Routes the pods of `to` over a link, by way of their node.
fn lead(routes: &mut RouteSocket, link: u32, from: &Network, to: &Network) -> Result<(), Fault> {
    routes.set_up(link)?;
    let source: IpAddr = from.node_ip().into();
    routes.add_routes(&[Route {
        destination: to.pods.network().into(),
        prefix: to.pods.prefix_len(),
        interface: link,
        via: Some(to.node_ip().into()),
        source: Some(source),
    }])?;
    Ok(())
}

fn unable(step: &'static str, error: io::Error) -> Fault {
    Fault::new(Code::HostUnable).in_phase(Phase::Start).fact("step", step).because(error)
}
