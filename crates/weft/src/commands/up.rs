//! `weft up`: a whole mesh on this machine, from manifests to a table of who talks to whom.

use crate::{
    apply,
    borrowed::Brought,
    controller::Settings,
    live, manifest,
    manifest::Document,
    mesh,
    ready::{self, PodState},
    screen::Screen,
};
use anyhow::{Context as _, Result, bail};
use ipnet::Ipv4Net;
use kube::{Client, config::Kubeconfig};
use owo_colors::OwoColorize as _;
use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::spawn_blocking,
    time::sleep,
};
use weft_fault::{Code, Fault};
use weft_local::{
    external::External,
    network::Asked,
    state::place::root_of,
    up::{Mesh, MeshInfo, UpConfig, down, start_detached},
};

/// How often readiness is looked at.
const POLL: Duration = Duration::from_millis(100);
/// What the controller may take until it answers.
const CONTROLLER_DEADLINE: Duration = Duration::from_secs(60);
/// What running containers get at the end, beside their own grace period.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Run Kubernetes manifests as a meshed cluster on this machine
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Containers need a `command`: they run as processes of this machine, each pod in a network namespace of its own.
Pods are meshed where `linkerd.io/inject: enabled` stands on them or on their namespace.

It needs no root. Without, containers run as you (`runAsUser` and the like are refused), write what you may write,
and the mesh is reached from here by `weft exec` and `kubectl port-forward`; as root, by pods' and services' addresses
too. Each user has meshes of its own.

Examples:
  weft up examples/shop                 start, show traffic until Ctrl-C, leave nothing behind
  weft up --detach shop.yaml extra/     start in the background; `weft down` ends it
  weft up --name east --peer west east/ a second mesh, whose pods reach those of `weft up --name west` (as root)
  export KUBECONFIG=…; kubectl get pods -A     with the file that `weft up` names when all is ready"
)]
pub(crate) struct Up {
    /// Files and folders with manifests.
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Leave it running in the background once everything is ready.
    #[arg(short, long)]
    detach: bool,
    /// Name of the mesh. Its state is kept in $XDG_RUNTIME_DIR/weft/NAME or /tmp/weft-UID/NAME, root's in /run/weft/NAME.
    #[arg(long = "name", alias = "mesh", default_value = "weft", value_name = "NAME", value_parser = mesh_name)]
    mesh: String,
    /// Route between the pods of this mesh and those of another on this machine, as soon as both run; may be repeated. Needs
    /// root.
    #[arg(long, value_name = "NAME", value_parser = mesh_name)]
    peer: Vec<String>,
    /// Range of pods' addresses, a /16; the first free one from 10.77.0.0/16 on without it.
    #[arg(long, value_name = "CIDR")]
    pod_cidr: Option<Ipv4Net>,
    /// Range of services' addresses; the first free /16 from 10.78.0.0/16 on without it.
    #[arg(long, value_name = "CIDR", conflicts_with = "kubeconfig")]
    service_cidr: Option<Ipv4Net>,
    /// Print a table now and then in place of the live view, as it does where it is not on a terminal.
    #[arg(long, conflicts_with = "detach")]
    plain: bool,
    /// Port of the Kubernetes API on 127.0.0.1; a free one without it.
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    api_port: u16,
    /// Join the cluster of this kubeconfig as a node, instead of an API in memory. Its API server must be on this machine. Needs root.
    #[arg(long, value_name = "FILE", conflicts_with = "api_port")]
    kubeconfig: Option<PathBuf>,
    /// Trust anchors to use instead of new ones (PEM).
    #[arg(long, value_name = "FILE", requires = "issuer")]
    trust_anchor: Option<PathBuf>,
    /// Issuer to sign with: certificate and key in one file (PEM, P-256), signed by a trust anchor.
    #[arg(long, value_name = "FILE", requires = "trust_anchor")]
    issuer: Option<PathBuf>,
    /// Log level of injected proxies.
    #[arg(long, default_value = "warn,weft=info", value_name = "FILTER")]
    proxy_log_level: String,
    /// How long `--detach` waits for every pod to become ready, in seconds.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,
}

impl Up {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let documents = match manifest::load(&self.paths) {
            Ok(documents) => documents,
            Err(faults) => return Ok(refuse(&faults)),
        };
        let not_run = manifest::not_run(&documents);
        // A cluster that is there may run them elsewhere.
        if self.kubeconfig.is_none() && !not_run.is_empty() {
            return Ok(refuse(&not_run));
        }
        if self.peer.contains(&self.mesh) {
            bail!("--peer {} is this mesh itself: --name gives it another name", self.mesh);
        }
        let started = Instant::now();
        let (external, brought) = self.external(&documents)?.unzip();
        let config = UpConfig {
            name: self.mesh.clone(),
            state_root: root_of(&self.mesh)?,
            api_port: self.api_port,
            ranges: Asked {
                pods: self.pod_cidr.map(|range| range.trunc()),
                services: self.service_cidr.map(|range| range.trunc()),
            },
            peers: self.peer.clone(),
            external,
            controller: serde_json::to_value(Settings::read(
                self.trust_anchor.as_deref(),
                self.issuer.as_deref(),
                &self.proxy_log_level,
            )?)?,
        };
        if self.detach {
            let info = start_detached(&config)?;
            if let Some(brought) = &brought {
                brought.write(&info.name)?;
            }
            return crate::on_runtime(self.settle_detached(&info, &documents, started));
        }
        let live = !self.plain && is_interactive();
        crate::on_runtime(attend(config, brought, &documents, started, live))
    }

    /// The API that is there already, if one is named and fit for a mesh, and what the mesh will bring there.
    fn external(&self, documents: &[Document]) -> Result<Option<(External, Brought)>> {
        let Some(path) = &self.kubeconfig else { return Ok(None) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let external = External::read(path).await?;
            let client = mesh::client_from(Kubeconfig::from_yaml(&external.kubeconfig)?).await?;
            let named = || format!("--kubeconfig {}", path.display());
            let brought = Brought::find(&client, documents).await.with_context(named)?;
            Ok(Some((external, brought)))
        })
    }

    async fn settle_detached(
        &self,
        info: &MeshInfo,
        documents: &[Document],
        started: Instant,
    ) -> Result<ExitCode> {
        let client = match bring_up(info, documents, started).await {
            Ok(Some(client)) => client,
            // Nobody could correct the manifests and start again while it runs.
            other => {
                anstream::eprintln!("ending the mesh again …");
                take_out(&self.mesh).await;
                down(&root_of(&self.mesh)?, &self.mesh)?;
                return other.map(|_| ExitCode::from(1));
            }
        };
        let deadline = Duration::from_secs(self.timeout);
        let settled = tokio::time::timeout(deadline, wait_ready(&client, started)).await;
        introduce(info);
        match settled {
            Ok(waited) => waited.map(|()| ExitCode::SUCCESS),
            Err(_) => {
                let pods = ready::pods(&client).await?;
                for (pod, state) in pods {
                    if let PodState::Waiting(why) | PodState::Troubled(why) = state {
                        anstream::eprintln!("  {} {pod}: {why}", "×".red());
                    }
                }
                bail!(
                    "not everything is ready after {} s; it goes on running, `weft down{}` ends it",
                    self.timeout,
                    flag(&self.mesh)
                )
            }
        }
    }
}

/// Somebody looks and can press keys.
fn is_interactive() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !dumb
}

/// A name becomes part of paths and of a link's name.
fn mesh_name(text: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.is_empty() || text.len() > 30 || !text.chars().all(fine) || text.starts_with('-') {
        return Err("use up to 30 lower-case letters, digits and hyphens".into());
    }
    Ok(text.to_string())
}

/// Every problem of the files, and the exit code for them.
fn refuse(faults: &[Fault]) -> ExitCode {
    let mut remedies = Vec::new();
    for fault in faults {
        anstream::eprintln!("{} {fault}", "×".red());
        if !remedies.contains(&fault.code()) {
            remedies.push(fault.code());
        }
    }
    for code in remedies {
        anstream::eprintln!("  → {} {}", code.id(), code.remedy());
    }
    ExitCode::from(2)
}

/// Starts the mesh, shows it until Ctrl-C, and ends it.
async fn attend(
    config: UpConfig,
    brought: Option<Brought>,
    documents: &[Document],
    started: Instant,
    live: bool,
) -> Result<ExitCode> {
    // Before anything is made that would be left behind: from here on, a signal ends the mesh in order.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // The terminal was closed.
    let mut hangup = signal(SignalKind::hangup())?;
    let mesh = spawn_blocking(move || Mesh::start(&config)).await??;
    if let Some(brought) = brought {
        brought.write(&mesh.info().name)?;
    }
    let shown = tokio::select! {
        biased;
        _ = interrupt.recv() => Ok(ExitCode::SUCCESS),
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
        _ = hangup.recv() => Ok(ExitCode::SUCCESS),
        ended = show(&mesh, documents, started, live) => ended,
    };
    // Nobody may be left to read this: then it is not worth failing for.
    let _ = writeln!(anstream::stderr(), "stopping …");
    let stopping = Instant::now();
    take_out(&mesh.info().name).await;
    spawn_blocking(move || mesh.stop(STOP_GRACE)).await??;
    let took = stopping.elapsed().as_secs_f64();
    let _ = writeln!(anstream::stderr(), "everything is gone after {took:.1} s");
    shown
}

/// Until the mesh ends by itself.
async fn show(mesh: &Mesh, documents: &[Document], started: Instant, live: bool) -> Result<ExitCode> {
    let supervisor = mesh.supervisor()?;
    let work = async {
        let Some(client) = bring_up(mesh.info(), documents, started).await? else {
            return Ok(ExitCode::from(1));
        };
        introduce(mesh.info());
        wait_ready(&client, started).await?;
        if live { live::run(client, &mesh.info().name).await } else { Screen::new(client).run().await }
    };
    tokio::select! {
        ended = work => ended,
        _ = supervisor.ended() => {
            // Its log goes with the mesh.
            Err(Fault::new(Code::Invariant)
                .fact("problem", "the supervisor ended by itself")
                .fact("its log ends with", mesh.last_words())
                .into())
        }
    }
}

/// A client for the mesh once the documents are in it; none after telling what could not be applied.
async fn bring_up(info: &MeshInfo, documents: &[Document], started: Instant) -> Result<Option<Client>> {
    let client = connect(info, started).await?;
    Ok(bring_in(&client, documents, started).await?.then_some(client))
}

/// A client for the API, once the controller behind it answers too: from then on pods are injected.
async fn connect(info: &MeshInfo, started: Instant) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(&info.kubeconfig).context("reading the mesh's kubeconfig")?;
    let client = mesh::client_from(kubeconfig).await?;
    step(started, "the API answers", info.api);
    let deadline = Instant::now() + CONTROLLER_DEADLINE;
    loop {
        let request = http::Request::get("/api/v1/namespaces/linkerd/services/linkerd-dst:9990/proxy/ready");
        match client.request_text(request.body(Vec::new())?).await {
            Ok(_) => break,
            Err(error) if Instant::now() > deadline => {
                return Err(Fault::new(Code::ControllerUnreachable)
                    .fact("answer", apply::api_message(&error))
                    .into());
            }
            Err(_) => sleep(POLL / 4).await,
        }
    }
    step(started, "the controller answers", "destination, policy, identity, injector");
    Ok(client)
}

/// Applies the documents; false after telling what could not be.
async fn bring_in(client: &Client, documents: &[Document], started: Instant) -> Result<bool> {
    let faults = apply::documents(client, documents).await;
    if !faults.is_empty() {
        refuse(&faults);
        return Ok(false);
    }
    step(started, "applied", format!("{} objects", documents.len()));
    Ok(true)
}

/// Tells of each pod as it becomes ready, and returns when all are.
async fn wait_ready(client: &Client, started: Instant) -> Result<()> {
    let mut told: BTreeMap<String, PodState> = BTreeMap::new();
    loop {
        let pods = ready::pods(client).await?;
        for (pod, state) in &pods {
            if told.get(pod) == Some(state) {
                continue;
            }
            match state {
                PodState::Ready => step(started, "ready", pod),
                PodState::Done => step(started, "done", pod),
                PodState::Troubled(why) => {
                    anstream::eprintln!("{} {}  {pod}: {why}", elapsed(started), "trouble".red());
                }
                PodState::Waiting(_) => {}
            }
            told.insert(pod.clone(), state.clone());
        }
        let settled = pods.values().all(|s| matches!(s, PodState::Ready | PodState::Done));
        if settled && ready::owed(client).await? == 0 {
            step(started, "all pods are ready", pods.len());
            return Ok(());
        }
        sleep(POLL).await;
    }
}

/// Takes what was brought into somebody else's API out of it again; a mesh with its own has nothing to take out.
async fn take_out(mesh: &str) {
    let taken = match Brought::of(mesh) {
        Ok(Some(brought)) => brought.take_out(mesh).await,
        Ok(None) => return,
        Err(error) => Err(error),
    };
    if let Err(error) = taken {
        let _ =
            writeln!(anstream::stderr(), "{} not everything was taken out of the API: {error:#}", "×".red());
    }
}

fn introduce(info: &MeshInfo) {
    anstream::eprintln!("\n  export KUBECONFIG={}", info.kubeconfig.display());
    let flag = flag(&info.name);
    anstream::eprintln!(
        "  kubectl get pods -A;  weft logs{flag} -f NAME;  weft exec{flag} NAME -- CMD;  weft explain{flag} FROM TO"
    );
    for (peer, pods) in &info.peers {
        match pods {
            Some(pods) => anstream::eprintln!(
                "  the pods of {peer}, {pods}, reach those of this mesh, {}",
                info.network.pods
            ),
            None => anstream::eprintln!("  {peer} is not running; its pods are reached when it is"),
        }
    }
    anstream::eprintln!();
}

/// What other commands need to be told about a mesh that has not the usual name.
fn flag(mesh: &str) -> String {
    if mesh == "weft" { String::new() } else { format!(" --name {mesh}") }
}

fn step(started: Instant, what: &str, detail: impl std::fmt::Display) {
    anstream::eprintln!("{} {}  {detail}", elapsed(started), what.green());
}

fn elapsed(started: Instant) -> String {
    format!("{:>7.2} s", started.elapsed().as_secs_f64())
}
