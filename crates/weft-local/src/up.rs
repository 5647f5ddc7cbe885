//! The outside of `weft up`: starts the supervisor in namespaces of its own, makes the link to it, and ends it.

use crate::{
    channel::{Channel, FromSupervisor, SupervisorConfig, ToSupervisor},
    entry,
    external::{External, Relay},
    network::{Asked, Network},
    peering::{PLACE, Peering, Place},
    state::{self, State},
};
use ipnet::Ipv4Net;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use weft_fault::{Code, Fault, FaultRecord, Phase};
use weft_net::{
    namespace::{Enter, Fresh, enter},
    netlink::route::{PeerNamespace, Route, RouteSocket, VethPair},
    process::Pidfd,
};

/// How long the supervisor may take for one step of its start.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// What `weft up` is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpConfig {
    /// The mesh's name: its state is in `/run/weft/NAME`.
    pub name: String,
    pub state_root: PathBuf,
    /// The port of the API on 127.0.0.1; 0 takes a free one.
    pub api_port: u16,
    /// The ranges of pods and services, where they are not to be any free ones.
    pub ranges: Asked,
    /// Meshes on this machine whose pods reach this one's, and the other way round, as soon as both run.
    pub peers: Vec<String>,
    /// Instead of an API of the mesh's own.
    pub external: Option<External>,
    /// Handed to the controller unread: trust anchors, log levels, whatever `weft up` was given for it.
    pub controller: serde_json::Value,
}

impl Default for UpConfig {
    fn default() -> Self {
        UpConfig {
            name: "default".into(),
            state_root: state::ROOT.into(),
            api_port: 0,
            ranges: Asked::default(),
            peers: Vec::new(),
            external: None,
            controller: serde_json::Value::Null,
        }
    }
}

/// What a user needs to know about a mesh that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeshInfo {
    pub name: String,
    pub network: Network,
    pub kubeconfig: PathBuf,
    pub api: SocketAddr,
    /// Whether this machine reaches pods and services directly.
    pub host_link: bool,
    /// The peers at the start; of those that run, where their pods are.
    pub peers: Vec<(String, Option<Ipv4Net>)>,
}

/// A mesh that runs. Dropping it ends it at once: nothing in it outlives this value, nor this process.
#[derive(Debug)]
pub struct Mesh {
    info: MeshInfo,
    channel: Channel,
    supervisor: Child,
    state: Option<State>,
    /// How the mesh reaches an external API.
    relay: Option<Relay>,
    peering: Option<Peering>,
}

impl Mesh {
    /// Starts the API, the controller, the node agent and DNS, and returns when the API answers. Blocks.
    ///
    /// The program must call [`entry::hidden`] first thing in its `main`, since it is started again as the supervisor.
    pub fn start(config: &UpConfig) -> Result<Mesh, Fault> {
        if !rustix::process::geteuid().is_root() {
            return Err(Fault::new(Code::HostUnable)
                .in_phase(Phase::Start)
                .fact("step", "make namespaces")
                .fact("setting", "run as root"));
        }
        config.ranges.check()?;
        let state = State::take(&config.state_root, &config.name)?;
        let mut host = RouteSocket::open()?;
        let (mut network, link) = reserve(&mut host, &state, config.ranges)?;
        if let Some(external) = &config.external {
            network.services = external.services;
        } else if network != Network::usual() && config.ranges == Asked::default() {
            tracing::warn!(pods = %network.pods, services = %network.services,
                "the usual addresses are in use on this machine; taking the next free ones");
        }

        // 1. What must be of the outside: the API's listener, and a socket to the name servers.
        let wrap = |step| move |e: io::Error| start_failed(step, e);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, config.api_port)).map_err(wrap("listen"))?;
        let api = match &config.external {
            Some(external) => external.address,
            None => listener.local_addr().map_err(wrap("listen"))?,
        };
        let resolver = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(wrap("open a socket"))?;

        // 2. The supervisor: process 1 of its namespaces, with the life line as its standard input.
        let (ours, theirs) = Channel::pair().map_err(wrap("make a socket pair"))?;
        let supervisor = spawn_supervisor(&state, theirs)?;
        let mut mesh = Mesh {
            info: MeshInfo {
                name: config.name.clone(),
                network,
                kubeconfig: state.path().join("kubeconfig"),
                api,
                host_link: false,
                peers: Vec::new(),
            },
            channel: ours,
            supervisor,
            state: Some(state),
            relay: None,
            peering: None,
        };
        let supervisor_config = SupervisorConfig {
            name: config.name.clone(),
            state_dir: mesh.state_path().to_path_buf(),
            network,
            api_outside: api,
            external: config.external.clone(),
            name_servers: name_servers(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default()),
            controller: config.controller.clone(),
        };
        let start = ToSupervisor::Start(Box::new(supervisor_config));
        let talk = |e: io::Error| start_failed("talk to the supervisor", e);
        mesh.channel.set_deadline(Some(START_DEADLINE)).map_err(talk)?;
        mesh.channel.send(&start, &[listener.as_fd(), resolver.as_fd()]).map_err(talk)?;

        // 3. The link, once there is a namespace to put its other end into.
        loop {
            match mesh.receive()? {
                FromSupervisor::Namespaces => {
                    let made = link_host(&mut host, &network, link, mesh.supervisor.id());
                    if let Err(e) = &made {
                        tracing::warn!(error = %e, "no link between this machine and the mesh");
                    }
                    mesh.info.host_link = made.is_ok();
                    if let Some(external) = &config.external {
                        made?;
                        let relay = Relay::start(network.host_ip().into(), external.address);
                        mesh.relay = Some(relay.map_err(wrap("listen for the mesh's calls of the API"))?);
                    }
                    let api = mesh.relay.as_ref().map(|relay| relay.at);
                    let answer = ToSupervisor::HostLink { made: mesh.info.host_link, api };
                    mesh.channel.send(&answer, &[]).map_err(talk)?;
                }
                FromSupervisor::Ready { kubeconfig } => {
                    if let Some(state) = &mesh.state {
                        state.write("kubeconfig", kubeconfig.as_bytes())?;
                    }
                    mesh.find_peers(config)?;
                    mesh.channel.set_deadline(None).map_err(talk)?;
                    return Ok(mesh);
                }
                FromSupervisor::Failed(record) => return Err(revive(&record)),
            }
        }
    }

    pub fn info(&self) -> &MeshInfo {
        &self.info
    }

    /// Ends the pods (SIGTERM, then `grace`), then everything else, and removes the state directory. Blocks.
    pub fn stop(mut self, grace: Duration) -> Result<(), Fault> {
        // A supervisor that is gone needs no word.
        let _ = self.channel.send(&ToSupervisor::Stop { grace }, &[]);
        let _ = self.channel.set_deadline(Some(grace + Duration::from_secs(5)));
        while let Ok(Some(_)) = self.channel.receive::<FromSupervisor>() {}
        self.end()
    }

    /// The supervisor, to wait for with [`Pidfd::ended`]: it never ends by itself unless something is broken.
    pub fn supervisor(&self) -> io::Result<Pidfd> {
        Pidfd::open(self.supervisor.id())
    }

    /// The last line of the supervisor's log, which is removed with the mesh.
    pub fn last_words(&self) -> String {
        last_line(&self.state_path().join("supervisor.log"))
    }

    /// Tells other meshes where this one is, and joins it with its peers.
    fn find_peers(&mut self, config: &UpConfig) -> Result<(), Fault> {
        let place = Place { supervisor: self.supervisor.id(), network: self.info.network };
        if let Some(state) = &self.state {
            let json =
                serde_json::to_vec(&place).map_err(|e| start_failed("write down the network", e.into()))?;
            state.write(PLACE, &json)?;
        }
        if !config.peers.is_empty() {
            let (peering, found) = Peering::start(place, config.state_root.clone(), &config.peers)?;
            self.peering = Some(peering);
            self.info.peers = config.peers.iter().cloned().zip(found).collect();
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<FromSupervisor, Fault> {
        match self.channel.receive() {
            Ok(Some((message, _))) => Ok(message),
            Ok(None) => Err(start_failed("run the supervisor", io::ErrorKind::UnexpectedEof.into())
                .fact("log", self.state_path().join("supervisor.log").display())
                .fact("last", self.last_words())),
            Err(e) => Err(start_failed("wait for the supervisor", e)),
        }
    }

    fn state_path(&self) -> &Path {
        self.state.as_ref().map_or(Path::new(""), State::path)
    }

    fn end(&mut self) -> Result<(), Fault> {
        // It holds the node's namespace, which is to go.
        self.peering.take();
        if let Ok(process) = Pidfd::open(self.supervisor.id()) {
            let _ = process.signal(Signal::KILL);
        }
        let _ = self.supervisor.wait();
        self.state.take().map_or(Ok(()), State::remove)
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if self.state.is_some()
            && let Err(fault) = self.end()
        {
            tracing::warn!(%fault, "the mesh's state was not removed");
        }
    }
}

/// Starts a mesh that outlives this process, and returns when its API answers. Blocks. `weft down` ends it.
pub fn start_detached(config: &UpConfig) -> Result<MeshInfo, Fault> {
    let wrap = |e: io::Error| start_failed("start in the background", e);
    let mut command = Command::new("/proc/self/exe");
    command.arg(entry::OUTSIDE).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    // Its own process group: Ctrl-C in this terminal is not meant for it.
    let mut child = command.process_group(0).spawn().map_err(wrap)?;
    let stdin = child.stdin.take().ok_or_else(|| wrap(io::ErrorKind::BrokenPipe.into()))?;
    serde_json::to_writer(stdin, config).map_err(|e| wrap(e.into()))?;
    let stdout = child.stdout.take().ok_or_else(|| wrap(io::ErrorKind::BrokenPipe.into()))?;
    let mut answer = String::new();
    io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut answer).map_err(wrap)?;
    match serde_json::from_str::<Result<MeshInfo, FaultRecord>>(&answer) {
        Ok(Ok(info)) => Ok(info),
        Ok(Err(record)) => Err(revive(&record)),
        Err(e) => Err(wrap(e.into())),
    }
}

/// The process behind [`start_detached`]: holds the mesh until SIGTERM or SIGINT.
pub(crate) fn run_outside() -> Result<(), Fault> {
    let wrap = |e: io::Error| start_failed("run in the background", e);
    let config: UpConfig = serde_json::from_reader(io::stdin()).map_err(|e| wrap(e.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(wrap)?;
    // Before anything is made that a signal would leave behind.
    let (mut terminate, mut interrupt) = runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let terminate = signal(SignalKind::terminate()).map_err(wrap)?;
        Ok::<_, Fault>((terminate, signal(SignalKind::interrupt()).map_err(wrap)?))
    })?;
    let started = Mesh::start(&config);
    let answer = started.as_ref().map(Mesh::info).map_err(Fault::record);
    let answer = serde_json::to_string(&answer).map_err(|e| wrap(e.into()))?;
    // Whoever asked for the mesh may be gone, and then nobody knows of it: it goes too.
    writeln!(io::stdout(), "{answer}").map_err(wrap)?;
    let mesh = started?;
    runtime.block_on(async {
        let supervisor = mesh.supervisor().map_err(wrap)?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = supervisor.ended() => {}
        }
        Ok::<(), Fault>(())
    })?;
    mesh.stop(crate::STOP_GRACE)
}

/// Ends the mesh of this name and removes what it, or a killed one, left. Blocks.
pub fn down(state_root: &Path, name: &str) -> Result<(), Fault> {
    let grace = crate::STOP_GRACE + Duration::from_secs(10);
    if state::end(state_root, name, grace)? { Ok(()) } else { Err(Fault::new(Code::NotRunning).about(name)) }
}

fn spawn_supervisor(state: &State, channel: Channel) -> Result<Child, Fault> {
    let log = File::options()
        .append(true)
        .create(true)
        .open(state.path().join("supervisor.log"))
        .map_err(|e| start_failed("open the supervisor's log", e))?;
    // Dropped with this function's scope: the life line must have no other holder of the inner end.
    let stdin = Stdio::from(channel.into_fd());
    enter(Enter { fresh: Some(Fresh::Machine), ..Enter::default() }, move || {
        let mut command = Command::new("/proc/self/exe");
        command.arg(entry::SUPERVISOR).stdin(stdin).stdout(Stdio::from(log.try_clone()?)).stderr(log);
        // Its own process group: Ctrl-C reaches only the outside, which then ends the mesh in order.
        command.process_group(0).spawn()
    })
}

/// Both ends of the link between this machine and the mesh.
#[derive(Clone, Copy, Debug)]
struct Link {
    here: u32,
    there: u32,
}

/// Takes addresses that nobody uses, by making the link whose name goes with them: only one mesh can.
fn reserve(host: &mut RouteSocket, state: &State, asked: Asked) -> Result<(Network, Link), Fault> {
    for network in Network::free(&host.ipv4_routes()?, asked) {
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
                return Ok((network, Link { here, there: host.link_index(&there)? }));
            }
            // Somebody else was quicker.
            Err(e) if e.exists() => state.write_holder("", 0)?,
            Err(e) => return Err(e.into()),
        }
    }
    Err(Network::none_free(asked))
}

/// Gives the mesh its end of the link, and this machine routes to pods and services.
fn link_host(host: &mut RouteSocket, network: &Network, link: Link, supervisor: u32) -> Result<(), Fault> {
    host.move_link(link.there, supervisor, "host0")?;
    let link = link.here;
    host.add_addresses(link, &[(network.host_ip().into(), 32)])?;
    let routes = [network.pods, network.services].map(|range| Route {
        destination: range.network().into(),
        prefix: range.prefix_len(),
        interface: link,
        via: Some(network.node_ip().into()),
        source: Some(network.host_ip().into()),
    });
    host.add_routes(&routes)?;
    Ok(())
}

/// The `nameserver` lines of a resolv.conf.
fn name_servers(resolv_conf: &str) -> Vec<SocketAddr> {
    resolv_conf
        .lines()
        .filter_map(|line| line.strip_prefix("nameserver"))
        .filter_map(|ip| ip.trim().parse::<Ipv4Addr>().ok())
        .map(|ip| SocketAddr::from((ip, 53)))
        .take(3)
        .collect()
}

fn start_failed(step: &'static str, error: io::Error) -> Fault {
    Fault::new(Code::StartFailed).in_phase(Phase::Start).fact("step", step).because(error)
}

/// A fault that another process reported.
pub(crate) fn revive(record: &FaultRecord) -> Fault {
    let mut fault = Fault::new(Code::find(&record.code).unwrap_or(Code::StartFailed)).in_phase(Phase::Start);
    if let Some(subject) = &record.subject {
        fault = fault.about(subject);
    }
    let evidence: Vec<String> = record.facts.iter().map(|(k, v)| format!("{k}={v}")).collect();
    if !evidence.is_empty() {
        fault = fault.fact("evidence", evidence.join(" "));
    }
    if record.causes.is_empty() { fault } else { fault.because(record.causes.join(": ")) }
}

fn last_line(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().last().unwrap_or("(empty)").chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_of_resolv_conf() {
        let text = "# x\nsearch a b\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\nnameserver 127.0.0.53 \n";
        let found: Vec<String> = name_servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.1:53", "127.0.0.53:53"]);
    }
}
