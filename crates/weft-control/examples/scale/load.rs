//! The subscribers, and what is measured.

use crate::{config, objects::Shape, source::Source};
use linkerd2_proxy_api::destination::{
    GetDestination, destination_client::DestinationClient, update::Update,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    net::SocketAddr,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tonic::transport::{Channel, Endpoint, Uri};
use weft_control::bootstrap::{IdentityFiles, bootstrap_objects};
use weft_model::identity::Identity;
use weft_tls::{bundle::TrustBundle, credentials, handshake};
use weft_wire::destination::socket_from_api;

pub(crate) struct Plan {
    pub(crate) streams: usize,
    /// Streams are spread over so many services.
    pub(crate) watched: usize,
    pub(crate) single_changes: usize,
    /// Changes per second of the long run.
    pub(crate) rate: usize,
    pub(crate) lasts: Duration,
}

const LIMIT: Duration = Duration::from_secs(120);

pub(crate) async fn run(shape: Shape, plan: Plan) -> Value {
    let identity = IdentityFiles::generate(&config()).expect("an identity");
    let wanted = ["linkerd-identity-issuer", "linkerd-identity-trust-roots"];
    let fixed = bootstrap_objects(&config(), &identity);
    let fixed: Vec<Value> =
        fixed.into_iter().filter(|o| wanted.iter().any(|name| o["metadata"]["name"] == *name)).collect();
    let source = Source::new(shape, fixed);
    let addr = source.serve().await;
    let kubeconfig = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(kubeconfig.path(), kubeconfig_for(addr)).expect("a kubeconfig");

    // 1. Cold start: from the process to the first answer.
    let began = Instant::now();
    let (controller, at) = spawn(kubeconfig.path()).await;
    let roots = Arc::new(TrustBundle::parse(&identity.trust_roots).expect("roots"));
    let first = Subscriber::start(0, at, &roots);
    first.until(|seen| seen.addrs.len() == shape.each).await;
    let cold_start = began.elapsed();
    let pid = controller.id().expect("it runs");
    let memory_idle = memory(pid, "VmRSS");
    eprintln!("cold start {cold_start:?}, {memory_idle} MB");

    // 2. All subscribers.
    let began = Instant::now();
    let mut all = subscribe(&plan, at, &roots);
    for one in &all {
        one.until(|seen| seen.addrs.len() == shape.each).await;
    }
    let connect = began.elapsed();
    let memory_subscribed = memory(pid, "VmRSS");
    eprintln!("{} streams in {connect:?}, {memory_subscribed} MB", all.len());

    // 3. One change at a time.
    let mut latencies = Vec::new();
    for n in 0..plan.single_changes {
        let service = n % plan.watched;
        let began = Instant::now();
        let ready = source.toggle(service, 0);
        for one in all.iter().filter(|one| one.service == service) {
            let at = one.until(|seen| seen.addrs.len() == ready).await;
            latencies.push(at.saturating_duration_since(began));
        }
    }
    latencies.sort();
    let quantile = |q: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let at = (latencies.len().saturating_sub(1) as f64 * q) as usize;
        ms(latencies.get(at).copied().unwrap_or_default())
    };
    eprintln!("one change: p50 {} ms, p99 {} ms", quantile(0.5), quantile(0.99));

    // 4. Many changes: in the end everybody knows what is.
    let began = Instant::now();
    let mut sent = 0_u32;
    while began.elapsed() < plan.lasts {
        let service = usize::try_from(sent).expect("few") * 31 % plan.watched;
        source.toggle(service, usize::try_from(sent).expect("few") * 17 % shape.each);
        sent += 1;
        let due = Duration::from_secs(1) * sent / u32::try_from(plan.rate).expect("a rate");
        sleep(due.saturating_sub(began.elapsed())).await;
    }
    let ended = Instant::now();
    let mut wrong = 0;
    for one in &all {
        let expected: BTreeSet<SocketAddr> = source.ready(one.service).into_iter().collect();
        let settled = timeout(Duration::from_secs(10), one.until(|seen| seen.addrs == expected)).await;
        wrong += usize::from(settled.is_err());
    }
    let settled = ended.elapsed();
    let broken = all.iter().filter(|one| one.seen.borrow().ended).count();
    let memory_changed = memory(pid, "VmRSS");
    eprintln!("{sent} changes, {wrong} streams wrong, {broken} ended, settled after {settled:?}");

    // 5. Everybody comes back at once.
    all.clear();
    sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    let all = subscribe(&plan, at, &roots);
    for one in &all {
        one.until(|seen| !seen.addrs.is_empty()).await;
    }
    let reconnect = began.elapsed();
    let peak = memory(pid, "VmHWM");
    eprintln!("reconnected in {reconnect:?}");
    drop(controller);
    json!({
        "services": shape.services, "endpoints": shape.services * shape.each, "streams": plan.streams,
        "cold_start_ms": ms(cold_start),
        "memory_mb": {"idle": memory_idle, "subscribed": memory_subscribed, "after_changes": memory_changed, "peak": peak},
        "connect_ms": ms(connect),
        "one_change_ms": {"p50": quantile(0.5), "p99": quantile(0.99), "max": quantile(1.0), "samples": latencies.len()},
        "changes": {"rate": plan.rate, "sent": sent, "streams_wrong": wrong, "streams_ended": broken, "settled_ms": ms(settled)},
        "reconnect_ms": ms(reconnect),
    })
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

fn kubeconfig_for(addr: SocketAddr) -> String {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": format!("http://{addr}")}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]})
    .to_string()
}

async fn spawn(kubeconfig: &std::path::Path) -> (Child, SocketAddr) {
    let own = std::env::current_exe().expect("this program");
    let mut child = Command::new(own)
        .arg("controller")
        .arg(kubeconfig)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a controller");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = lines.next_line().await.expect("a line").expect("a line");
    let said: Value = serde_json::from_str(&line).expect("JSON");
    (child, said["destination"].as_str().expect("an address").parse().expect("an address"))
}

/// MB, from /proc.
fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kb = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kb.unwrap_or_default() / 1024
}

fn subscribe(plan: &Plan, at: SocketAddr, roots: &Arc<TrustBundle>) -> Vec<Subscriber> {
    (0..plan.streams).map(|n| Subscriber::start(n % plan.watched, at, roots)).collect()
}

/// A connection with one stream, as each proxy has.
struct Subscriber {
    service: usize,
    seen: watch::Receiver<Seen>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    addrs: BTreeSet<SocketAddr>,
    at: Option<Instant>,
    ended: bool,
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Subscriber {
    fn start(service: usize, at: SocketAddr, roots: &Arc<TrustBundle>) -> Self {
        let (seen, receiver) = watch::channel(Seen::default());
        let roots = roots.clone();
        let task = tokio::spawn(async move {
            loop {
                let Some(channel) = connect(at, &roots).await else {
                    sleep(Duration::from_millis(20)).await;
                    continue;
                };
                follow(service, channel, &seen).await;
                seen.send_modify(|seen| seen.ended = true);
                return;
            }
        });
        Subscriber { service, seen: receiver, task }
    }

    /// When it was so for the first time after being asked.
    async fn until(&self, wanted: impl Fn(&Seen) -> bool) -> Instant {
        let mut seen = self.seen.clone();
        let found = timeout(LIMIT, seen.wait_for(|seen| wanted(seen))).await;
        let found = found.expect("not in time").expect("a subscriber");
        found.at.unwrap_or_else(Instant::now)
    }
}

async fn connect(at: SocketAddr, roots: &Arc<TrustBundle>) -> Option<Channel> {
    const SERVER: &str = "linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local";
    let roots = roots.clone();
    let connector = tower::service_fn(move |_: Uri| {
        let own = credentials::Client::anonymous(&roots);
        async move {
            let tcp = TcpStream::connect(at).await?;
            tcp.set_nodelay(true)?;
            let name = Identity::parse(SERVER).map_err(std::io::Error::other)?;
            let connected = handshake::connect(&own, tcp, &name, &name, handshake::Offer::Nothing)
                .await
                .map_err(|fault| std::io::Error::other(format!("{fault:?}")))?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(connected.stream))
        }
    });
    Endpoint::from_static("http://controller").connect_with_connector(connector).await.ok()
}

async fn follow(service: usize, channel: Channel, seen: &watch::Sender<Seen>) {
    let request = GetDestination {
        path: format!("{}.{}.svc.cluster.local:80", Shape::name(service), Shape::namespace(service)),
        ..GetDestination::default()
    };
    let Ok(answer) = DestinationClient::new(channel).get(request).await else { return };
    let mut updates = answer.into_inner();
    while let Ok(Some(update)) = updates.message().await {
        seen.send_modify(|seen| {
            match update.update {
                Some(Update::Add(set)) => {
                    let addrs = set.addrs.into_iter().filter_map(|a| socket_from_api(a.addr?).ok());
                    seen.addrs.extend(addrs);
                }
                Some(Update::Remove(set)) => {
                    for addr in set.addrs.into_iter().filter_map(|a| socket_from_api(a).ok()) {
                        seen.addrs.remove(&addr);
                    }
                }
                Some(Update::NoEndpoints(_)) => seen.addrs.clear(),
                None => {}
            }
            seen.at = Some(Instant::now());
        });
    }
}
