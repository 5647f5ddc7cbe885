//! The outside of `weft up`: starts the supervisor in namespaces of its own, makes the link to it, and ends it.

use crate::{
    channel::{Channel, FromSupervisor, SupervisorConfig, ToSupervisor},
    entry,
    external::{External, Relay},
    host_link::HostLink,
    network::{Asked, Network},
    peering::{PLACE, Peering, Place},
    refusal::{self, Settings},
    rights::Rights,
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
    process::Pidfd,
};

/// How long the supervisor may take for one step of its start.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// What `weft up` is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpConfig {
    /// The mesh's name.
    pub name: String,
    /// Its state is in a directory of its name below this one: [`state::place::root_of`].
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
            state_root: state::place::ROOT.into(),
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
        let rights = Rights::of_this_process();
        if rights == Rights::User {
            refuse_links(config)?;
        }
        config.ranges.check()?;
        let services = config.external.as_ref().map(|external| external.services);
        services.map_or(Ok(()), |services| config.ranges.check_beside(services))?;
        let state = State::take(&config.state_root, &config.name)?;
        let prepared = match prepare(config, rights, &state) {
            Ok(prepared) => prepared,
            Err(fault) => {
                // Nothing runs yet: what was made is only in the way of the next attempt.
                if let Err(left) = state.remove() {
                    tracing::warn!("something is left of the attempt: {left:?}");
                }
                return Err(fault);
            }
        };
        let Prepared { network, mut link, listener, api, resolver, ours, supervisor } = prepared;
        let wrap = |step| move |e: io::Error| start_failed(step, e);
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
            rights,
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
        match mesh.channel.send(&start, &[listener.as_fd(), resolver.as_fd()]) {
            // It has ended already, and said why.
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
            sent => sent.map_err(talk)?,
        }

        // 3. The link, once there is a namespace to put its other end into.
        loop {
            match mesh.receive()? {
                FromSupervisor::Namespaces => {
                    if let Some(link) = &mut link {
                        let made = link.give(&network, mesh.supervisor.id());
                        if let Err(e) = &made {
                            tracing::warn!(error = %e, "no link between this machine and the mesh");
                        }
                        mesh.info.host_link = made.is_ok();
                        if let Some(external) = &config.external {
                            made?;
                            let relay = Relay::start(network.host_ip().into(), external.address);
                            mesh.relay = Some(relay.map_err(wrap("listen for the mesh's calls of the API"))?);
                        }
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
                FromSupervisor::Refused(refusal) => {
                    return Err(refusal::explain(&refusal, &Settings::read()));
                }
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

/// What there is before a mesh's supervisor is told to start.
struct Prepared {
    network: Network,
    link: Option<HostLink>,
    /// The API's, outside.
    listener: TcpListener,
    api: SocketAddr,
    /// To the name servers.
    resolver: UdpSocket,
    ours: Channel,
    supervisor: Child,
}

fn prepare(config: &UpConfig, rights: Rights, state: &State) -> Result<Prepared, Fault> {
    let services = config.external.as_ref().map(|external| external.services);
    let (network, link) = match rights {
        Rights::Root => {
            let (network, link) = HostLink::reserve(state, config.ranges, services)?;
            (network, Some(link))
        }
        Rights::User => {
            state.write_holder("", 0)?;
            (Network::for_nobody_else(config.ranges)?, None)
        }
    };
    if services.is_none() && network != Network::usual() && config.ranges == Asked::default() {
        tracing::warn!(pods = %network.pods, services = %network.services,
            "the usual addresses are in use on this machine; taking the next free ones");
    }

    // 1. What must be of the outside: the API's listener, and a socket to the name servers.
    let wrap = |step| move |e: io::Error| start_failed(step, e);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, config.api_port)).map_err(|e| {
        let asked = format!("--api-port {}", config.api_port);
        Fault::new(Code::BadFlag).in_phase(Phase::Start).about(asked).because(e)
    })?;
    let api = match &config.external {
        Some(external) => external.address,
        None => listener.local_addr().map_err(wrap("listen"))?,
    };
    let resolver = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(wrap("open a socket"))?;

    // 2. The supervisor: process 1 of its namespaces, with the life line as its standard input.
    let (ours, theirs) = Channel::pair().map_err(wrap("make a socket pair"))?;
    let supervisor = spawn_supervisor(rights, state, theirs)?;
    Ok(Prepared { network, link, listener, api, resolver, ours, supervisor })
}

/// The supervisor, or the process that it is a child of and ends with.
fn spawn_supervisor(rights: Rights, state: &State, channel: Channel) -> Result<Child, Fault> {
    let log = File::options()
        .append(true)
        .create(true)
        .open(state.path().join("supervisor.log"))
        .map_err(|e| start_failed("open the supervisor's log", e))?;
    // Dropped with this function's scope: the life line must have no other holder of the inner end.
    let stdin = Stdio::from(channel.into_fd());
    let spawn = move |role| {
        let mut command = Command::new("/proc/self/exe");
        command.arg(role).stdin(stdin).stdout(Stdio::from(log.try_clone()?)).stderr(log);
        // Its own process group: Ctrl-C reaches only the outside, which then ends the mesh in order.
        command.process_group(0).spawn()
    };
    match rights {
        Rights::Root => {
            enter(Enter { fresh: Some(Fresh::Machine), ..Enter::default() }, || spawn(entry::SUPERVISOR))
        }
        Rights::User => spawn(entry::DOORWAY).map_err(|e| start_failed("start the supervisor", e)),
    }
}

/// What needs links that only root can make: an API server calls the mesh's webhooks, and leads to its pods, at addresses that
/// this machine has to have a route to; and the namespaces of two meshes have nothing in common but this machine.
fn refuse_links(config: &UpConfig) -> Result<(), Fault> {
    let (flag, step) = if config.external.is_some() {
        ("--kubeconfig", "make the link by which the API server reaches the mesh")
    } else if !config.peers.is_empty() {
        ("--peer", "make the link between the meshes")
    } else {
        return Ok(());
    };
    let fault = Fault::new(Code::HostUnable).in_phase(Phase::Start).about(flag);
    Err(fault.fact("step", step).fact("setting", "run as root: sudo weft up"))
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
    fn without_root_what_needs_a_link_is_refused_by_its_flag() {
        assert!(refuse_links(&UpConfig::default()).is_ok());
        let external = External {
            kubeconfig: String::new(),
            address: "192.0.2.1:6443".parse().unwrap(),
            services: "10.96.0.0/12".parse().unwrap(),
        };
        let joins = UpConfig { external: Some(external), ..UpConfig::default() };
        let peers = UpConfig { peers: vec!["east".to_owned()], ..UpConfig::default() };
        for (config, flag) in [(joins, "--kubeconfig"), (peers, "--peer")] {
            let fault = format!("{:?}", refuse_links(&config).unwrap_err());
            for part in ["NOD-004", flag, "run as root: sudo weft up"] {
                assert!(fault.contains(part), "{part}: {fault}");
            }
        }
    }

    #[test]
    fn name_servers_of_resolv_conf() {
        let text = "# x\nsearch a b\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\nnameserver 127.0.0.53 \n";
        let found: Vec<String> = name_servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.1:53", "127.0.0.53:53"]);
    }
}
