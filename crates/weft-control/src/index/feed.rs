//! The watches that feed the index, and whether it has heard from all of them.

use super::{
    kinds::Indexed,
    store::{Change, Store, change},
};
use kube::Client;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use weft_kube::{
    core::{
        endpoint_slice::EndpointSlice,
        node::{Job, Namespace, Node, ReplicaSet},
        pod::Pod,
        service::Service,
    },
    policy::{
        authorization::{AuthorizationPolicy, MeshTlsAuthentication, NetworkAuthentication},
        egress_network::EgressNetwork,
        external_workload::ExternalWorkload,
        grpc_route::GrpcRoute,
        http_route::{GatewayHttpRoute, PolicyHttpRoute},
        rate_limit::HttpLocalRateLimitPolicy,
        reference_grant::ReferenceGrant,
        route::{TcpRoute, TlsRoute},
        server::Server,
        server_authorization::ServerAuthorization,
        service_profile::ServiceProfile,
    },
    watch::{Event, Progress, Pulse, Scope, Watch, heartbeat},
};

/// Events on their way from the watches to the index.
const QUEUE: usize = 1024;
/// How many of them are applied before views are computed again.
const BATCH: usize = 256;
/// How often subjects without readers are looked for.
const SWEEP: Duration = Duration::from_secs(30);

/// How the watches are doing.
#[derive(Clone, Debug)]
pub struct Feed {
    pub pulse: Pulse,
    pub progress: Arc<Vec<Arc<Progress>>>,
    /// Becomes true when every kind was received once and applied.
    pub synced: watch::Receiver<bool>,
}

/// Starts the watches and the one task that applies what they say.
pub fn start(client: &Client, store: &Arc<Store>, tasks: &mut JoinSet<()>) -> Feed {
    let pulse = Pulse::default();
    let (out, changes) = mpsc::channel(QUEUE);
    let mut watches = Watches { client, pulse: &pulse, out, tasks, progress: Vec::new() };
    watches.add::<Namespace>();
    watches.add::<Node>();
    watches.add::<ReplicaSet>();
    watches.add::<Job>();
    watches.add::<Pod>();
    watches.add::<Service>();
    watches.add::<EndpointSlice>();
    watches.add::<Server>();
    watches.add::<AuthorizationPolicy>();
    watches.add::<MeshTlsAuthentication>();
    watches.add::<NetworkAuthentication>();
    watches.add::<PolicyHttpRoute>();
    watches.add::<GatewayHttpRoute>();
    watches.add::<GrpcRoute>();
    watches.add::<TlsRoute>();
    watches.add::<TcpRoute>();
    watches.add::<ReferenceGrant>();
    watches.add::<EgressNetwork>();
    watches.add::<ServerAuthorization>();
    watches.add::<HttpLocalRateLimitPolicy>();
    watches.add::<ExternalWorkload>();
    watches.add::<ServiceProfile>();
    let kinds = watches.progress.len();
    let progress = Arc::new(watches.progress);
    let (synced, receiver) = watch::channel(false);
    tasks.spawn(heartbeat(client.clone(), pulse.clone(), store.config.heartbeat));
    tasks.spawn(apply(store.clone(), changes, kinds, synced));
    Feed { pulse, progress, synced: receiver }
}

struct Watches<'a> {
    client: &'a Client,
    pulse: &'a Pulse,
    out: mpsc::Sender<Fed>,
    tasks: &'a mut JoinSet<()>,
    progress: Vec<Arc<Progress>>,
}

/// A change, and whether it is a kind's whole set.
struct Fed {
    change: Change,
    whole: Option<&'static str>,
}

impl Watches<'_> {
    fn add<K: Indexed>(&mut self) {
        let watch = Watch::new::<K>(self.client.clone(), Scope::default(), self.pulse.clone());
        self.progress.push(watch.progress());
        self.tasks.spawn(watch.run::<K, Fed>(self.out.clone(), |event| Fed {
            whole: matches!(event, Event::Replaced(_) | Event::Absent).then_some(std::any::type_name::<K>()),
            change: change(event),
        }));
    }
}

async fn apply(
    store: Arc<Store>,
    mut changes: mpsc::Receiver<Fed>,
    kinds: usize,
    synced: watch::Sender<bool>,
) {
    let mut whole = std::collections::HashSet::new();
    let mut batch = Vec::with_capacity(BATCH);
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            received = changes.recv_many(&mut batch, BATCH) => {
                if received == 0 {
                    return;
                }
                whole.extend(batch.iter().filter_map(|fed| fed.whole));
                store.apply(batch.drain(..).map(|fed| fed.change));
                if whole.len() == kinds && !*synced.borrow() {
                    tracing::info!("the index has heard of every kind");
                    synced.send_replace(true);
                }
            }
            _ = sweep.tick() => store.sweep(),
        }
    }
}
