//! Process 1 of a mesh: sets up the node's network, then runs the API, its controllers, the pods' runtime, DNS and address
//! translation, and keeps a process of the node agent and one of the mesh's controller.

use crate::{
    api::{self, ApiServer},
    border,
    channel::{Channel, FromSupervisor, Refusal, SupervisorConfig, ToSupervisor},
    controller, controllers,
    dns::Dns,
    external::External,
    inside,
    network::Network,
    network_policy,
    node::{self, NODE_NAME, scheduler},
    rights::Rights,
    runtime::Runtime,
    service_nat, services,
};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Api, Client, api::PostParams, config::Kubeconfig};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener, UdpSocket as StdUdpSocket},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::watch,
};
use weft_fault::{Code, Fault, Phase};
use weft_net::netlink::{nft::NftSocket, route::RouteSocket};

/// The API's port on the node's address.
pub const API_PORT: u16 = 6443;

/// Runs as process 1. Standard input is the life line.
pub(crate) fn run() -> Result<(), Fault> {
    let fd = io::stdin().as_fd().try_clone_to_owned().map_err(failed("take the life line"))?;
    let channel = Arc::new(Channel::from_fd(fd));
    let result = serve(&channel);
    if let Err(fault) = &result {
        // Whoever is told prints it; the log has it too.
        let _ = channel.send(&FromSupervisor::Failed(Box::new(fault.record())), &[]);
    }
    result
}

fn serve(channel: &Arc<Channel>) -> Result<(), Fault> {
    let (first, fds) = receive(channel)?;
    let ToSupervisor::Start(config) = first else {
        return Err(Fault::new(Code::Invariant).fact("first message", format!("{first:?}")));
    };
    let [listener, resolver] = <[OwnedFd; 2]>::try_from(fds)
        .map_err(|fds| Fault::new(Code::Invariant).fact("descriptors", fds.len()))?;

    // 1. Room for many pods: each takes about ten descriptors, and what a login gives is often 1,024. And files of the mode that
    // a container means, whatever whoever ran `weft up` usually withholds.
    raise_descriptor_limit();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));

    // 2. The machine inside: mounts, settings, addresses. Nothing has been started yet that could see half of it.
    if let Err((step, error)) = inside::mounts(&config.state_dir) {
        // Which setting is in the way is seen outside.
        if config.rights == Rights::User {
            say(channel, &FromSupervisor::Refused(Refusal::new(step, &error)))?;
        }
        return Err(inside::unable(step)(error));
    }
    let mut route = RouteSocket::open()?;
    inside::addresses(&mut route, &config.network)?;

    // 3. The link, whose other end only the outside can make.
    say(channel, &FromSupervisor::Namespaces)?;
    let (ToSupervisor::HostLink { made, api }, _) = receive(channel)? else {
        return Err(Fault::new(Code::Invariant).fact("message", "something other than the link"));
    };
    if made {
        let interface = inside::link(&mut route, &config.network)?;
        // A cluster that is there already may have its own ways in.
        if config.external.is_none() {
            border::close(&mut NftSocket::open()?, &config.network, interface)?;
        }
    } else {
        inside::nowhere(&mut route, &config.network)?;
    }

    // 4. Everything else.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(failed("start the runtime"))?;
    let (stop, stopped) = watch::channel(None);
    follow_life_line(channel.clone(), stop)?;
    let source = match (&config.external, api) {
        (Some(external), Some(at)) => Source::External(external.clone(), at),
        _ => Source::Own(listener),
    };
    runtime.block_on(mesh(channel, *config, source, resolver, stopped))
}

/// The life line is read by a thread of its own, so that nothing that hangs can keep the mesh alive.
fn follow_life_line(channel: Arc<Channel>, stop: watch::Sender<Option<Duration>>) -> Result<(), Fault> {
    let follow = move || {
        loop {
            match channel.receive::<ToSupervisor>() {
                Ok(Some((ToSupervisor::Stop { grace }, _))) => drop(stop.send_replace(Some(grace))),
                Ok(Some((other, _))) => tracing::warn!(?other, "an unexpected message from outside"),
                // The end of process 1 is the end of every process in here.
                Ok(None) | Err(_) => std::process::exit(0),
            }
        }
    };
    let thread = std::thread::Builder::new().name("life-line".into()).spawn(follow);
    thread.map(drop).map_err(failed("start a thread"))
}

/// The API of a mesh.
enum Source {
    /// One of its own, in memory, with this listener outside.
    Own(OwnedFd),
    /// One that is there already, and where it is reached from inside.
    External(External, SocketAddr),
}

/// An API that answers.
struct Served {
    client: Client,
    /// For the outside.
    kubeconfig: String,
    /// For other processes inside.
    inside: String,
    /// The mesh's own, if that is it.
    own: Option<ApiServer>,
}

impl Source {
    async fn serve(self, config: &SupervisorConfig) -> Result<Served, Fault> {
        let network = &config.network;
        let listener = match self {
            Source::Own(listener) => listener,
            Source::External(external, at) => {
                let inside = external.kubeconfig_at(at)?;
                let client = client(&inside).await?;
                return Ok(Served { client, kubeconfig: external.kubeconfig, inside, own: None });
            }
        };
        // One listener outside, one on the node's address (to which the `kubernetes` service leads).
        let server = ApiServer::new(api_config(network))?;
        let inside = SocketAddr::from((network.node_ip(), API_PORT));
        let listeners = [tcp(listener)?, TcpListener::bind(inside).await.map_err(failed("listen"))?];
        for listener in listeners {
            let server = server.clone();
            tokio::spawn(async move { server.serve(listener).await });
        }
        tokio::spawn(controllers::run(server.api().clone()));
        let inside = server.kubeconfig(inside);
        let client = client(&inside).await?;
        own_objects(&client, network).await?;
        Ok(Served { client, kubeconfig: server.kubeconfig(config.api_outside), inside, own: Some(server) })
    }
}

async fn mesh(
    channel: &Channel,
    config: SupervisorConfig,
    source: Source,
    resolver: OwnedFd,
    mut stopped: watch::Receiver<Option<Duration>>,
) -> Result<(), Fault> {
    let network = config.network;
    // Fails only if another provider was chosen before: then that one is used.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();

    // 1. The API.
    let Served { client, kubeconfig, inside, own } = source.serve(&config).await?;

    // 2. Names and service addresses.
    let (to_services, services) = watch::channel(Arc::default());
    tokio::spawn(services::follow(client.clone(), to_services));
    tokio::spawn(service_nat::follow(NftSocket::open()?, network, services.clone()));
    tokio::spawn(network_policy::follow(client.clone(), network, services.clone(), NftSocket::open()?));
    let outside = (udp(resolver)?, config.name_servers.clone());
    let dns = Dns::new(network, crate::CLUSTER_DOMAIN, services, Some(outside));
    let at = SocketAddr::from((network.dns_ip(), 53));
    let dns_udp = UdpSocket::bind(at).await.map_err(failed("listen for DNS"))?;
    let dns_tcp = TcpListener::bind(at).await.map_err(failed("listen for DNS"))?;
    tokio::spawn(dns.serve(dns_udp, dns_tcp));

    // 3. The node and the mesh's controller.
    let runtime = Runtime::new(network, config.rights, config.state_dir.join("logs"))?;
    match &own {
        Some(server) => server.api().set_kubelet(runtime.clone()),
        // Another server may have nobody who binds pods to a node.
        None => drop(tokio::spawn(scheduler::run(client.clone()))),
    }
    let agent = node::agent::Start {
        kubeconfig: inside.clone(),
        network,
        rights: config.rights,
        state_dir: config.state_dir.clone(),
        path: std::env::var("PATH").ok(),
        // Another server hears of a node's health from the node.
        report: own.is_none(),
        since: Timestamp::now(),
    };
    let (end_pods, pods_end) = watch::channel(None);
    let mut agent = tokio::spawn(node::agent::keeper(&config.name, agent, runtime).run(pods_end));
    let (end_controller, stop) = watch::channel(None);
    let start = controller::Start {
        kubeconfig: inside,
        network,
        state_dir: config.state_dir.clone(),
        external: own.is_none(),
        furnished: false,
        options: config.controller.clone(),
    };
    let mut controller = tokio::spawn(controller::keeper(&config.name, start).run(stop));
    say(channel, &FromSupervisor::Ready { kubeconfig })?;

    // 4. Until the end: pods first, so that they still have a control plane while they drain.
    let grace = tokio::select! {
        grace = stopped.wait_for(Option::is_some) => grace.ok().and_then(|g| *g).unwrap_or_default(),
        ended = &mut controller => return Err(could_not_begin("the controller", ended)),
        ended = &mut agent => return Err(could_not_begin("the node agent", ended)),
    };
    end_pods.send_replace(Some(grace));
    // The keepers have deadlines of their own.
    if let Err(error) = agent.await {
        tracing::error!(%error, "the node agent's keeper failed");
    }
    end_controller.send_replace(Some(Duration::ZERO));
    if let Err(error) = controller.await {
        tracing::error!(%error, "the controller's keeper failed");
    }
    Ok(())
}

/// A keeper that returned before it was told to.
fn could_not_begin(what: &'static str, ended: Result<Result<(), Fault>, tokio::task::JoinError>) -> Fault {
    let result = ended.unwrap_or_else(|e| Err(Fault::new(Code::Invariant).because(e)));
    let why = result.err().unwrap_or_else(|| Fault::new(Code::Invariant).fact("its keeper", "ended"));
    Fault::new(Code::StartFailed).in_phase(Phase::Start).about(what).because(why)
}

fn api_config(network: &Network) -> api::Config {
    let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_string);
    let full = format!("kubernetes.default.svc.{}", crate::CLUSTER_DOMAIN);
    api::Config {
        addresses: vec![network.node_ip().into(), network.api_service_ip().into()],
        names: names.into_iter().chain([full]).collect(),
        service_range: network.services,
        node: Some(NODE_NAME.to_string()),
        ..api::Config::default()
    }
}

/// An administrator's client.
pub(crate) async fn client(kubeconfig: &str) -> Result<Client, Fault> {
    let unusable = |what: &'static str, error: Box<dyn std::error::Error + Send + Sync>| {
        Fault::new(Code::Invariant).in_phase(Phase::Start).fact("step", what).because(error)
    };
    let kubeconfig =
        Kubeconfig::from_yaml(kubeconfig).map_err(|e| unusable("read the kubeconfig", e.into()))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .map_err(|e| unusable("read the kubeconfig", e.into()))?;
    Client::try_from(config).map_err(|e| unusable("make a client", e.into()))
}

/// The Services that every cluster has: `kubernetes`, and the name server, whose address nobody else may get.
async fn own_objects(client: &Client, network: &Network) -> Result<(), Fault> {
    let service = |namespace: &str, name: &str, ip: Ipv4Addr, ports: Value| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusterIP": ip.to_string(), "ports": ports}})
    };
    let https = json!([{"name": "https", "port": 443, "targetPort": API_PORT, "protocol": "TCP"}]);
    let domain = json!([{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]);
    create::<Service>(client, "default", service("default", "kubernetes", network.api_service_ip(), https))
        .await?;
    create::<Service>(client, "kube-system", service("kube-system", "kube-dns", network.dns_ip(), domain))
        .await?;
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "endpoints": [{"addresses": [network.node_ip().to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": API_PORT, "protocol": "TCP"}]});
    create::<EndpointSlice>(client, "default", slice).await
}

async fn create<K>(client: &Client, namespace: &str, object: Value) -> Result<(), Fault>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope> + Clone + std::fmt::Debug,
    K: Serialize + DeserializeOwned,
    K::DynamicType: Default,
{
    let unusable = |e: Box<dyn std::error::Error + Send + Sync>| {
        Fault::new(Code::Invariant)
            .in_phase(Phase::Start)
            .fact("step", "create the cluster's own objects")
            .because(e)
    };
    let object: K = serde_json::from_value(object).map_err(|e| unusable(e.into()))?;
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(e)) if e.code == 409 => Ok(()),
        other => other.map(drop).map_err(|e| unusable(e.into())),
    }
}

/// To what this user may have. Containers inherit it, as they do a container runtime's: not more than usual there, since
/// there are programs that close all that could be open.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const USUAL: u64 = 1 << 20;
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(USUAL, |most| most.min(USUAL));
    if limit.current.is_none_or(|now| now >= wanted) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

fn receive(channel: &Channel) -> Result<(ToSupervisor, Vec<OwnedFd>), Fault> {
    let received = channel.receive().map_err(failed("read the life line"))?;
    received.ok_or_else(|| failed("read the life line")(io::ErrorKind::UnexpectedEof.into()))
}

fn say(channel: &Channel, message: &FromSupervisor) -> Result<(), Fault> {
    channel.send(message, &[]).map_err(failed("write to the life line"))
}

fn tcp(fd: OwnedFd) -> Result<TcpListener, Fault> {
    let listener = StdTcpListener::from(fd);
    listener.set_nonblocking(true).map_err(failed("take the listener"))?;
    TcpListener::from_std(listener).map_err(failed("take the listener"))
}

fn udp(fd: OwnedFd) -> Result<UdpSocket, Fault> {
    let socket = StdUdpSocket::from(fd);
    socket.set_nonblocking(true).map_err(failed("take the socket"))?;
    UdpSocket::from_std(socket).map_err(failed("take the socket"))
}

fn failed(step: &'static str) -> impl FnOnce(io::Error) -> Fault {
    move |e| Fault::new(Code::StartFailed).in_phase(Phase::Start).fact("step", step).because(e)
}
