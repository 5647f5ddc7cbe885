//! One pod from its sandbox to its end: init containers in order, sidecars around, main containers together.

use super::{
    Node,
    container::ContainerTask,
    env::Place,
    plan::hostname,
    status::{self, Doing, Facts, Record, Role},
    volumes::Volumes,
};
use crate::runtime::{
    explain,
    wire::{HeldContainer, HeldPod, PodName, RunName},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

/// How long the API may take to take a status or to delete a pod, before it is asked again.
const API_PATIENCE: Duration = Duration::from_secs(10);

/// What the agent wants of a pod.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Run(Arc<Pod>),
    /// It is being deleted: end it by then.
    End(Arc<Pod>, Instant),
    /// Its object is gone: end it at once.
    Gone,
}

/// A pod that runs, as its containers' tasks share it.
pub(crate) struct PodRun {
    pub(crate) node: Arc<Node>,
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) volumes: tokio::sync::Mutex<Volumes>,
    object: Mutex<Arc<Pod>>,
    records: Mutex<Vec<Record>>,
    /// Why the pod as a whole failed: reason and message.
    failed: Mutex<Option<(String, String)>>,
    /// What an earlier agent left, until its tasks have taken it over.
    held: Mutex<Vec<HeldContainer>>,
    started: Timestamp,
    changed: watch::Sender<u64>,
}

impl PodRun {
    /// The object as last seen.
    pub(crate) fn object(&self) -> Arc<Pod> {
        self.object.lock().clone()
    }

    pub(crate) fn change(&self, container: &str, change: impl FnOnce(&mut Record)) {
        let mut records = self.records.lock();
        let Some(record) = records.iter_mut().find(|r| r.name == container) else { return };
        let before = record.clone();
        change(record);
        let differs = *record != before;
        drop(records);
        if differs {
            self.changed.send_modify(|n| *n += 1);
        }
    }

    pub(crate) fn record(&self, container: &str) -> Option<Record> {
        self.records.lock().iter().find(|r| r.name == container).cloned()
    }

    /// The name of a container's run.
    pub(crate) fn run_name(&self, container: &str, number: i32) -> RunName {
        RunName { pod: self.uid.clone(), container: container.to_owned(), number }
    }

    fn take_held(&self, container: &str) -> Option<HeldContainer> {
        let mut held = self.held.lock();
        let at = held.iter().position(|c| c.name == container)?;
        Some(held.swap_remove(at))
    }

    /// The grace of the specification.
    pub(crate) fn spec_grace(&self) -> Duration {
        let pod = self.object();
        let seconds = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30);
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.node.client.clone(), &self.namespace)
    }

    /// Writes the status now; whether the object still exists.
    async fn write_status(&self) -> Result<bool, String> {
        match timeout(API_PATIENCE, self.patch_status()).await {
            Ok(written) => written.map_err(|e| e.to_string()),
            Err(_) => Err(format!("no answer within {} s", API_PATIENCE.as_secs())),
        }
    }

    async fn patch_status(&self) -> Result<bool, kube::Error> {
        let pod = self.object();
        let status = {
            let failed = self.failed.lock();
            let facts = Facts {
                now: Timestamp::now(),
                pod_ip: Some(self.place.pod_ip),
                host_ip: self.place.host_ip,
                started: self.started,
                failed: failed.as_ref().map(|(reason, message)| (reason.as_str(), message.as_str())),
            };
            status::status(&pod, &self.records.lock(), &facts)
        };
        // With the uid, so that a new pod of the same name is never written to.
        let patch = serde_json::json!({"metadata": {"uid": self.uid}, "status": status});
        match self.api().patch_status(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(now) => {
                // The next status keeps the times of unchanged conditions.
                let mut object = self.object.lock();
                if now.metadata.uid == object.metadata.uid {
                    let mut copy = Pod::clone(&object);
                    copy.status = now.status;
                    *object = Arc::new(copy);
                }
                Ok(true)
            }
            Err(kube::Error::Api(e)) if e.code == 404 => Ok(false),
            // Another pod has the name by now; or others wrote at the same time, and this is to be tried again.
            Err(kube::Error::Api(e)) if e.code == 409 => match self.api().get_opt(&self.name).await? {
                Some(now) if now.metadata.uid.as_ref() == Some(&self.uid) => Err(kube::Error::Api(e)),
                _ => Ok(false),
            },
            Err(e) => Err(e),
        }
    }

    /// Writes the status at each change, with patience for an API that is away.
    async fn keep_status(self: Arc<Self>) {
        let mut changed = self.changed.subscribe();
        changed.mark_changed();
        while changed.changed().await.is_ok() {
            changed.borrow_and_update();
            while let Err(error) = self.write_status().await {
                tracing::warn!(error, pod = self.name, "the pod's status was not written; trying again");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Keeps volumes with sources up to date.
    async fn keep_volumes(self: Arc<Self>) {
        loop {
            let next = self.volumes.lock().await.next_sync();
            sleep(next).await;
            let pod = self.object();
            let synced = self.volumes.lock().await.sync(&self.node.client, &pod).await;
            if let Err(fault) = synced {
                self.node.events.warn(&pod, None, "FailedMount", explain(&fault));
            }
        }
    }
}

/// A container's task: how to end it, and (since the task owns every receiver) how to see that it has ended.
struct Started {
    role: Role,
    stop: watch::Sender<Option<Instant>>,
}

/// Runs a pod until it is over and its object is gone. `held` is what an earlier agent left of it.
pub(crate) async fn run(
    node: Arc<Node>,
    uid: String,
    held: Option<HeldPod>,
    mut orders: watch::Receiver<Order>,
) {
    let first = orders.borrow_and_update().clone();
    let pod = match (&first, &held) {
        (Order::Run(pod), _) | (Order::End(pod, _), Some(_)) => pod.clone(),
        // Deleted before it was ever started here.
        _ => return finish_unstarted(&node, &first, &uid).await,
    };
    // A pod that ended under an earlier agent is not started again, but may not have been ended to the last.
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    let ended = matches!(phase, Some("Succeeded" | "Failed"));
    let runs = held.as_ref().is_some_and(|held| held.containers.iter().any(|c| c.now.exit.is_none()));
    if ended && !runs {
        let last = wait_end(&mut orders).await;
        return finish_unstarted(&node, &last, &uid).await;
    }
    let Some(run) = prepare(&node, &uid, pod.clone(), held, &mut orders).await else {
        let last = wait_end(&mut orders).await;
        return finish_unstarted(&node, &last, &uid).await;
    };
    if ended {
        let status = pod.status.clone().unwrap_or_default();
        if let Some(reason) = status.reason {
            *run.failed.lock() = Some((reason, status.message.unwrap_or_default()));
        }
    }
    let keepers = [tokio::spawn(run.clone().keep_status()), tokio::spawn(run.clone().keep_volumes())];

    let mut started = Vec::new();
    let over = ended
        || tokio::select! {
            // A pod that is over may be deleted in the same instant: its end comes first.
            biased;
            () = live(&run, &mut started) => true,
            () = wait_end_or_update(&run, &mut orders) => false,
            () = deadline_passed(&run) => {
                let text = "Pod was active on the node longer than the specified deadline";
                *run.failed.lock() = Some(("DeadlineExceeded".into(), text.into()));
                true
            }
        };
    let grace = Instant::now() + run.spec_grace();
    take_over_to_end(&run, &mut started, grace);
    if over {
        let (_keep, mut ends) = watch::channel(Order::End(run.object(), grace));
        end_containers(&run, started, &mut ends).await;
    } else {
        end_containers(&run, started, &mut orders).await;
    }
    for keeper in keepers {
        keeper.abort();
    }
    // The final status, then the object: whoever waits for the pod sees how it ended.
    let mut patience = 10;
    while let Err(error) = run.write_status().await {
        tracing::warn!(error, pod = run.name, "the pod's last status was not written; trying again");
        patience -= 1;
        if patience == 0 {
            break;
        }
        sleep(Duration::from_secs(1)).await;
    }
    // Logs and exit codes stay until the pod is deleted; the address goes when the namespaces do.
    if !matches!(wait_end(&mut orders).await, Order::Gone) {
        delete_object(&node, &run.namespace, &run.name, &run.uid).await;
    }
    node.release(&uid).await;
}

/// Makes the sandbox and the volumes, if they are not there yet; `None` if the pod is to end first.
async fn prepare(
    node: &Arc<Node>,
    uid: &str,
    pod: Arc<Pod>,
    held: Option<HeldPod>,
    orders: &mut watch::Receiver<Order>,
) -> Option<Arc<PodRun>> {
    let meta = &pod.metadata;
    let name = PodName {
        uid: uid.to_owned(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
    };
    let (pod_ip, started, containers) = match held {
        Some(held) => {
            let written = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
            (held.ip, written.map_or(held.since, |time| time.0), held.containers)
        }
        None => loop {
            match node.runtime.create(name.clone(), hostname(&pod)).await {
                Ok(ip) => break (ip, Timestamp::now(), Vec::new()),
                Err(error) => node.events.warn(&pod, None, "FailedCreatePodSandBox", error),
            }
            tokio::select! {
                () = sleep(Duration::from_secs(5)) => {}
                _ = wait_end(orders) => return None,
            }
        },
    };
    let place = Place { pod_ip, host_ip: node.ground.network.node_ip() };
    let records = status::records(&pod, uid, &containers);
    let is_new = containers.is_empty();
    let run = Arc::new(PodRun {
        node: node.clone(),
        uid: name.uid,
        namespace: name.namespace,
        name: name.name,
        place,
        volumes: tokio::sync::Mutex::new(Volumes::new(&node.pod_root.join(uid), place)),
        object: Mutex::new(pod),
        records: Mutex::new(records),
        failed: Mutex::default(),
        held: Mutex::new(containers),
        started,
        changed: watch::Sender::new(0),
    });
    // Those of containers that run are kept up to date beside them.
    (!is_new || make_volumes(&run, orders).await).then_some(run)
}

/// Makes the volumes, with patience; false if the pod is to end first.
async fn make_volumes(run: &PodRun, orders: &mut watch::Receiver<Order>) -> bool {
    loop {
        let pod = run.object();
        let synced = run.volumes.lock().await.sync(&run.node.client, &pod).await;
        let Err(fault) = synced else { return true };
        run.node.events.warn(&pod, None, "FailedMount", explain(&fault));
        if let Err(error) = run.write_status().await {
            tracing::debug!(error, pod = run.name, "the pod's status was not written");
        }
        tokio::select! {
            () = sleep(Duration::from_secs(2)) => {}
            () = wait_end_or_update(run, orders) => return false,
        }
    }
}

/// Starts the containers in order and returns when the main ones are over (or an init container failed for good).
async fn live(run: &Arc<PodRun>, started: &mut Vec<Started>) {
    let pod = run.object();
    let mut changed = run.changed.subscribe();
    for (role, container) in status::roles(&pod) {
        started.push(start(run, role, container, None));
        // Its turn is over when it has ended well, or runs if it is one that stays.
        loop {
            changed.borrow_and_update();
            let Some(record) = run.record(&container.name) else { return };
            if record.lets_next_start() {
                break;
            }
            let Some(last) = started.last() else { return };
            tokio::select! {
                // The task's last change of the record comes before its end.
                biased;
                _ = changed.changed() => {}
                // An init container that failed for good.
                () = last.stop.closed() => return,
            }
        }
        if role != Role::Main && started.iter().all(|s| s.role != Role::Main) {
            mark_creating(run);
        }
    }
    for main in started.iter().filter(|s| s.role == Role::Main) {
        main.stop.closed().await;
    }
}

/// Once nothing is left to initialise, main containers are no longer "initializing".
fn mark_creating(run: &PodRun) {
    let mut records = run.records.lock();
    if records.iter().all(|r| r.role == Role::Main || r.lets_next_start()) {
        for record in records.iter_mut().filter(|r| r.role == Role::Main) {
            if let Doing::Waiting { reason, .. } = &mut record.doing {
                *reason = "ContainerCreating";
            }
        }
    }
}

/// Starts a container's task, or has it take over what an earlier agent started. With `ends` it is to end by then.
fn start(run: &Arc<PodRun>, role: Role, container: &Container, ends: Option<Instant>) -> Started {
    let (stop, stopped) = watch::channel(ends);
    let held = run.take_held(&container.name);
    let task = ContainerTask { pod: run.clone(), container: container.clone(), role, held, stop: stopped };
    tokio::spawn(task.run());
    Started { role, stop }
}

/// What an earlier agent started and nobody has taken over, since the pod ends.
fn take_over_to_end(run: &Arc<PodRun>, started: &mut Vec<Started>, ends: Instant) {
    let left = |name: &str| run.held.lock().iter().any(|c| c.name == name);
    for (role, container) in status::roles(&run.object()) {
        if left(&container.name) {
            started.push(start(run, role, container, Some(ends)));
        }
    }
}

/// Ends main (and init) containers together, then the sidecars in reverse order.
async fn end_containers(run: &Arc<PodRun>, started: Vec<Started>, orders: &mut watch::Receiver<Order>) {
    let (sidecars, others): (Vec<_>, Vec<_>) = started.into_iter().partition(|s| s.role == Role::Sidecar);
    end_group(run, others, orders).await;
    for sidecar in sidecars.into_iter().rev() {
        end_group(run, vec![sidecar], orders).await;
    }
}

async fn end_group(run: &Arc<PodRun>, group: Vec<Started>, orders: &mut watch::Receiver<Order>) {
    // Whoever comes late, as sidecars do, still gets this long to say goodbye.
    const LEAST: Duration = Duration::from_secs(2);
    let tell = |order: &Order| {
        let deadline = match order {
            Order::Gone => Instant::now(),
            Order::End(_, at) => (*at).max(Instant::now() + LEAST),
            Order::Run(_) => Instant::now() + run.spec_grace(),
        };
        for member in &group {
            member.stop.send_if_modified(|now| {
                // Only ever brought forward.
                let sooner = now.is_none_or(|at| deadline < at);
                if sooner {
                    *now = Some(deadline);
                }
                sooner
            });
        }
    };
    tell(&orders.borrow_and_update().clone());
    for member in &group {
        loop {
            tokio::select! {
                () = member.stop.closed() => break,
                changed = orders.changed() => match changed {
                    Ok(()) => tell(&orders.borrow_and_update().clone()),
                    // Nobody can hurry it any more.
                    Err(_) => member.stop.closed().await,
                },
            }
        }
    }
}

/// Returns when the pod is to end; takes in new versions of its object meanwhile.
async fn wait_end_or_update(run: &PodRun, orders: &mut watch::Receiver<Order>) {
    loop {
        match orders.borrow_and_update().clone() {
            Order::Run(pod) => take_in(run, &pod),
            Order::End(pod, _) => return take_in(run, &pod),
            Order::Gone => return,
        }
        if orders.changed().await.is_err() {
            return;
        }
    }
}

/// A newer version of the object; our own status is newer than what comes back from the API.
fn take_in(run: &PodRun, pod: &Arc<Pod>) {
    let mut object = run.object.lock();
    let mut new = Pod::clone(pod);
    new.status = object.status.clone().or(new.status);
    *object = Arc::new(new);
}

/// The order that ends the pod, once there is one.
async fn wait_end(orders: &mut watch::Receiver<Order>) -> Order {
    match orders.wait_for(|o| !matches!(o, Order::Run(_))).await {
        Ok(order) => order.clone(),
        Err(_) => Order::Gone,
    }
}

async fn deadline_passed(run: &PodRun) {
    let pod = run.object();
    let seconds = pod.spec.as_ref().and_then(|s| s.active_deadline_seconds);
    match seconds.and_then(|s| u64::try_from(s).ok()) {
        Some(seconds) => {
            let ran = Duration::try_from(Timestamp::now().duration_since(run.started)).unwrap_or_default();
            sleep(Duration::from_secs(seconds).saturating_sub(ran)).await;
        }
        None => std::future::pending().await,
    }
}

/// A pod without processes: only its object has to go.
async fn finish_unstarted(node: &Node, order: &Order, uid: &str) {
    if let Order::End(pod, _) = order {
        let meta = &pod.metadata;
        let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        delete_object(node, namespace.unwrap_or_default(), name.unwrap_or_default(), uid).await;
    }
    node.release(uid).await;
}

async fn delete_object(node: &Node, namespace: &str, name: &str, uid: &str) {
    let api: Api<Pod> = Api::namespaced(node.client.clone(), namespace);
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(uid.to_string()), resource_version: None }),
        ..DeleteParams::default()
    };
    for _ in 0..30 {
        match timeout(API_PATIENCE, api.delete(name, &params)).await {
            Ok(Ok(_)) => return,
            Ok(Err(kube::Error::Api(e))) if e.code == 404 || e.code == 409 => return,
            Ok(Err(error)) => {
                tracing::warn!(%error, pod = name, "the pod's object was not deleted; trying again")
            }
            Err(_) => tracing::warn!(pod = name, "deleting the pod's object is not answered; trying again"),
        }
        sleep(Duration::from_secs(1)).await;
    }
}
