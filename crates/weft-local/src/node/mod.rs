//! The node agent: runs the pods that the API binds to this node. It talks to the API as kubelet does and does what kubelet
//! does, with the machine's runtime ([`crate::runtime`]), in a process of its own. One that is started after another takes over the pods
//! that it finds, without touching what runs in them.

pub(crate) mod agent;
mod backoff;
mod checks;
mod container;
mod env;
mod events;
mod plan;
mod pod;
mod probe;
pub(crate) mod scheduler;
mod status;
mod user;
mod volumes;

use crate::{
    api::kubelet::MIRROR,
    keeper::Seat,
    runtime::{client::RuntimeClient, remove_dir, wire::HeldPod},
};
use futures_util::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{
            Node as NodeObject, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeStatus, NodeSystemInfo,
            Pod,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{MicroTime, Time},
    },
};
use kube::{
    Api, Client, Resource as _,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use pod::Order;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// The node's name.
pub const NODE_NAME: &str = "weft";

/// The node agent's state, shared by its pods.
pub(crate) struct Node {
    client: Client,
    runtime: RuntimeClient,
    ground: plan::Ground,
    /// The pods' files, on a file system in memory.
    pod_root: PathBuf,
    events: events::Events,
    /// What an earlier agent left, by uid, until it is taken over.
    held: Mutex<HashMap<String, HeldPod>>,
    /// How many pods' tasks have not ended.
    running: watch::Sender<usize>,
    /// Since when the node is as its conditions say.
    since: Timestamp,
}

/// How often the node says that it is there, as kubelet does; after four times as long it is given up.
const BEAT: Duration = Duration::from_secs(10);

/// How an agent is told to end: its pods get this long.
#[derive(Clone, Copy, Debug)]
struct Ending(Instant);

impl Node {
    /// Must be called in a tokio runtime.
    fn new(client: Client, runtime: RuntimeClient, start: &agent::Start) -> Self {
        Node {
            events: events::Events::start(client.clone()),
            client,
            runtime,
            ground: plan::Ground {
                rights: start.rights,
                network: start.network,
                cluster_domain: crate::CLUSTER_DOMAIN.to_string(),
                stage: start.state_dir.join("stage"),
                weft: plan::this_program(),
                path: start.path.clone(),
            },
            pod_root: start.state_dir.join("pods"),
            held: Mutex::default(),
            running: watch::Sender::new(0),
            since: start.since,
        }
    }

    /// Registers the node and runs its pods, until told by when they are to end; returns when they have.
    async fn run(self: Arc<Self>, mut seat: Seat) {
        match self.runtime.list().await {
            Ok(pods) => *self.held.lock() = pods.into_iter().map(|pod| (pod.name.uid.clone(), pod)).collect(),
            Err(error) => tracing::error!(error, "what runs already is not known"),
        }
        while let Err(error) = self.register().await {
            tracing::warn!(%error, "the node was not registered; trying again");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        seat.begun();
        let mut orders: HashMap<String, watch::Sender<Order>> = HashMap::new();
        let pods: Api<Pod> = Api::all(self.client.clone());
        let config = watcher::Config::default().fields(&format!("spec.nodeName={NODE_NAME}"));
        let events = watcher(pods, config).default_backoff();
        futures_util::pin_mut!(events);
        let mut listed = HashSet::new();
        let ending = loop {
            let event = tokio::select! {
                event = events.try_next() => event,
                grace = seat.stop.wait_for(Option::is_some) => {
                    let grace = grace.ok().and_then(|g| *g).unwrap_or_default();
                    break Ending(Instant::now() + grace);
                }
            };
            match event {
                Ok(Some(watcher::Event::Init)) => listed.clear(),
                Ok(Some(watcher::Event::InitApply(pod))) => {
                    listed.extend(pod.metadata.uid.clone());
                    self.take(&mut orders, pod);
                }
                // What was not listed went while nobody watched.
                Ok(Some(watcher::Event::InitDone)) => {
                    let gone = orders.iter().filter(|(uid, _)| !listed.contains(*uid));
                    gone.for_each(|(_, order)| drop(order.send_replace(Order::Gone)));
                    // And what went while there was no agent.
                    let left: Vec<String> = self.held.lock().drain().map(|(uid, _)| uid).collect();
                    for uid in left {
                        let node = self.clone();
                        tokio::spawn(async move { node.release(&uid).await });
                    }
                    self.sweep(&orders);
                }
                Ok(Some(watcher::Event::Apply(pod))) => self.take(&mut orders, pod),
                Ok(Some(watcher::Event::Delete(pod))) => {
                    if let Some(order) = pod.metadata.uid.as_ref().and_then(|uid| orders.get(uid)) {
                        order.send_replace(Order::Gone);
                    }
                }
                Ok(None) => break Ending(Instant::now()),
                Err(error) => tracing::warn!(%error, "the watch on pods was lost; it is taken up again"),
            }
            orders.retain(|_, order| !order.is_closed());
        };
        for order in orders.values() {
            order.send_modify(|order| {
                if let Order::Run(pod) = order {
                    *order = Order::End(pod.clone(), ending.0);
                }
            });
        }
        let mut running = self.running.subscribe();
        let all_ended = running.wait_for(|n| *n == 0);
        // A little later than the containers' own deadline, so that their last words are written.
        let _ = tokio::time::timeout_at(ending.0 + Duration::from_secs(3), all_ended).await;
    }

    /// Passes the newest version of a pod to its task, started when it is the first.
    fn take(self: &Arc<Self>, orders: &mut HashMap<String, watch::Sender<Order>>, pod: Pod) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        // It stands for something that runs already, as it does for kubelet.
        if pod.metadata.annotations.as_ref().is_some_and(|notes| notes.contains_key(MIRROR)) {
            return;
        }
        let grace = pod.metadata.deletion_grace_period_seconds.and_then(|s| u64::try_from(s).ok());
        let deleting = pod.metadata.deletion_timestamp.is_some();
        let pod = Arc::new(pod);
        let end = |pod| Order::End(pod, Instant::now() + Duration::from_secs(grace.unwrap_or(30)));
        match orders.get(&uid) {
            Some(order) => {
                order.send_if_modified(|now| match (&*now, deleting) {
                    (Order::Run(_), false) => {
                        *now = Order::Run(pod);
                        true
                    }
                    (Order::Run(_), true) => {
                        *now = end(pod);
                        true
                    }
                    // Deleted again, with another grace: it may only be brought forward.
                    (Order::End(_, at), _) => {
                        let sooner = matches!(&end(pod.clone()), Order::End(_, new) if new < at);
                        if sooner {
                            *now = end(pod);
                        }
                        sooner
                    }
                    (Order::Gone, _) => false,
                });
            }
            None => {
                let first = if deleting { end(pod) } else { Order::Run(pod) };
                let (order, follow) = watch::channel(first);
                orders.insert(uid.clone(), order);
                self.running.send_modify(|n| *n += 1);
                let node = self.clone();
                let held = self.held.lock().remove(&uid);
                tokio::spawn(async move {
                    pod::run(node.clone(), uid, held, follow).await;
                    node.running.send_modify(|n| *n -= 1);
                });
            }
        }
    }

    /// Keeps saying that the node is there, as kubelet does: to everybody with its Lease, and to an API server with a
    /// controller that gives up nodes which do not, with its status (`report`). A node that was deleted stays so, as with
    /// kubelet: `weft down` deletes it while this runs.
    pub(crate) async fn beat(self: Arc<Self>, report: bool) {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            match self.renew_lease().await {
                Ok(true) => {}
                // Not registered yet, or deleted.
                Ok(false) => {
                    beat.reset_after(BEAT / 10);
                    continue;
                }
                Err(error) => tracing::warn!(%error, "the node's lease was not renewed; trying again"),
            }
            if !report {
                continue;
            }
            match self.write_status().await {
                Ok(()) => {}
                Err(kube::Error::Api(answer)) if answer.code == 404 => {}
                Err(error) => tracing::warn!(%error, "the node's state was not written; trying again"),
            }
        }
    }

    /// Whether there is a node of which to say that it is there.
    async fn renew_lease(&self) -> Result<bool, kube::Error> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let now = MicroTime(Timestamp::now());
        let spec = LeaseSpec {
            holder_identity: Some(NODE_NAME.into()),
            lease_duration_seconds: Some(i32::try_from(4 * BEAT.as_secs()).expect("a short while")),
            renew_time: Some(now),
            ..LeaseSpec::default()
        };
        let patch = Patch::Merge(serde_json::json!({ "spec": spec }));
        match api.patch(NODE_NAME, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(e)) if e.code == 404 => {}
            other => return other.map(|_| true),
        }
        let nodes: Api<NodeObject> = Api::all(self.client.clone());
        let Some(node) = nodes.get_opt(NODE_NAME).await? else { return Ok(false) };
        let mut lease = Lease { spec: Some(spec), ..Lease::default() };
        lease.metadata.name = Some(NODE_NAME.into());
        // It goes with its node.
        lease.metadata.owner_references = node.owner_ref(&()).map(|owner| vec![owner]);
        api.create(&Default::default(), &lease).await.map(|_| true)
    }

    /// Writes the node's object, as `kubectl get nodes` shows it.
    async fn register(&self) -> Result<(), kube::Error> {
        let api: Api<NodeObject> = Api::all(self.client.clone());
        let mut node = NodeObject::default();
        node.metadata.name = Some(NODE_NAME.into());
        let labels = [
            ("kubernetes.io/hostname", NODE_NAME),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }),
        ];
        node.metadata.labels = Some(labels.map(|(k, v)| (k.to_string(), v.to_string())).into());
        match api.create(&Default::default(), &node).await {
            Err(kube::Error::Api(e)) if e.code == 409 => {}
            other => drop(other?),
        }
        self.write_status().await
    }

    async fn write_status(&self) -> Result<(), kube::Error> {
        let api: Api<NodeObject> = Api::all(self.client.clone());
        let status = serde_json::json!({ "status": self.node_status() });
        api.patch_status(NODE_NAME, &PatchParams::default(), &Patch::Merge(status)).await.map(drop)
    }

    fn node_status(&self) -> NodeStatus {
        let now = Time(Timestamp::now());
        let condition = |kind: &str, status: &str, reason: &str| NodeCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            last_heartbeat_time: Some(now.clone()),
            last_transition_time: Some(Time(self.since)),
            ..NodeCondition::default()
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = memory.lines().find_map(|l| l.strip_prefix("MemTotal:")).unwrap_or("0 kB");
        let capacity: BTreeMap<String, Quantity> = [
            ("cpu".to_string(), Quantity(cpus.to_string())),
            ("memory".to_string(), Quantity(format!("{}Ki", memory.trim().trim_end_matches(" kB")))),
            ("pods".to_string(), Quantity("500".into())),
        ]
        .into();
        let uname = rustix::system::uname();
        NodeStatus {
            addresses: Some(vec![
                NodeAddress {
                    type_: "InternalIP".into(),
                    address: self.ground.network.node_ip().to_string(),
                },
                NodeAddress { type_: "Hostname".into(), address: NODE_NAME.into() },
            ]),
            allocatable: Some(capacity.clone()),
            capacity: Some(capacity),
            conditions: Some(vec![condition("Ready", "True", "KubeletReady")]),
            daemon_endpoints: Some(NodeDaemonEndpoints::default()),
            node_info: Some(NodeSystemInfo {
                kernel_version: uname.release().to_string_lossy().into_owned(),
                operating_system: "linux".into(),
                architecture: if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }.into(),
                os_image: "processes of this machine".into(),
                container_runtime_version: format!("weft://{}", env!("CARGO_PKG_VERSION")),
                kubelet_version: format!("v1.36.0-weft{}", env!("CARGO_PKG_VERSION")),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }
    }

    /// Removes the files of pods that an earlier agent had all but ended.
    fn sweep(&self, orders: &HashMap<String, watch::Sender<Order>>) {
        for dir in std::fs::read_dir(&self.pod_root).into_iter().flatten().flatten() {
            if !dir.file_name().to_str().is_some_and(|uid| orders.contains_key(uid)) {
                volumes::unmount(&dir.path());
                remove_dir(&dir.path());
            }
        }
    }

    /// Ends what is left of a pod, and frees its address.
    async fn release(&self, uid: &str) {
        if let Err(error) = self.runtime.remove(uid).await {
            tracing::warn!(error, uid, "a pod's namespaces are left");
        }
        volumes::unmount(&self.pod_root.join(uid));
        remove_dir(&self.pod_root.join(uid));
    }
}
