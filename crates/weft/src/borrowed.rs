//! A mesh on an API that is not its own (`weft up --kubeconfig`): what it brought there, and how it takes that out again.

use crate::{
    apply::{Applier, api_message},
    cluster,
    manifest::Document,
    mesh,
};
use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams},
    config::Kubeconfig,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    fs::OpenOptions, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::PathBuf, time::Duration,
};
use tokio::time::{Instant, sleep};
use weft_control::install::objects::{CONFIG_MAP, CREATED_BY};
use weft_fault::{Code, Fault};
use weft_local::{api::kubelet::MIRROR, node::NODE_NAME, state::place::root_of};

/// The control plane's namespace; `weft up` has no other.
const CONTROL: &str = "linkerd";
/// In the state directory of a mesh.
const FILE: &str = "brought.json";
/// What pods may take to end once their owners are gone, until they are deleted without waiting.
const ENDING: Duration = Duration::from_secs(40);
const LOOK: Duration = Duration::from_millis(200);
/// A node that has said nothing for so long, three times its usual pause, is gone.
const QUIET: Duration = Duration::from_secs(30);

/// The objects that were not there before, in the order in which they came.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Brought(Vec<Value>);

fn file(mesh: &str) -> Result<PathBuf> {
    Ok(root_of(mesh)?.join(mesh).join(FILE))
}

/// Whether the control plane that is there was left by a mesh that was killed. Fails if it is somebody else's: two would
/// undo each other's work.
async fn left_over(client: &Client) -> Result<bool> {
    let path = format!("/api/v1/namespaces/{CONTROL}/configmaps/{CONFIG_MAP}");
    let Some(config) = cluster::get(client, &path).await? else { return Ok(false) };
    let by = config["metadata"]["annotations"][CREATED_BY].as_str().unwrap_or("somebody");
    if by.starts_with("weft/up") {
        return Ok(true);
    }
    let code = if by.starts_with("weft/") { Code::AlreadyInstalled } else { Code::OtherControlPlane };
    Err(Fault::new(code).about(CONTROL).fact("created-by", by).into())
}

/// Fails if another mesh is this cluster's node already, or has this API in its memory: both would run the same pods.
async fn no_other_mesh(client: &Client) -> Result<()> {
    let Some(node) = cluster::get(client, &format!("/api/v1/nodes/{NODE_NAME}")).await? else {
        return Ok(());
    };
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE_NAME}");
    let lease = cluster::get(client, &lease).await?.unwrap_or_default();
    let now = Timestamp::now();
    match beats(&node, now) || beats(&lease, now) {
        true => Err(Fault::new(Code::AlreadyRunning)
            .about(format!("node {NODE_NAME}"))
            .fact("after-a-kill", "it counts as running for half a minute")
            .into()),
        false => Ok(()),
    }
}

/// Whether a node has said a short while ago that it is there, by itself or by its Lease.
fn beats(object: &Value, now: Timestamp) -> bool {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let times = conditions.map(|condition| &condition["lastHeartbeatTime"]);
    let mut times = times.chain([&object["spec"]["renewTime"]]).filter_map(Value::as_str);
    times.any(|at| at.parse::<Timestamp>().is_ok_and(|at| now.duration_since(at).unsigned_abs() < QUIET))
}

impl Brought {
    /// Finds out, before a mesh starts, what it will bring.
    pub(crate) async fn find(client: &Client, documents: &[Document]) -> Result<Brought> {
        no_other_mesh(client).await?;
        let control = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CONTROL}});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}});
        let mut applier = Applier::new(client.clone(), "weft-up");
        let mut new = vec![node];
        if left_over(client).await? || !applier.exists(&control).await? {
            new.push(control);
        }
        for document in documents {
            if !applier.exists(&document.object).await? {
                new.push(cluster::named(&document.object));
            }
        }
        Ok(Brought(new))
    }

    /// Writes it down for `weft down`.
    pub(crate) fn write(&self, mesh: &str) -> Result<()> {
        let path = file(mesh)?;
        let written = || -> Result<()> {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&path)?.write_all(&serde_json::to_vec(self)?)?;
            Ok(())
        };
        written().with_context(|| format!("writing {}", path.display()))
    }

    /// What a mesh of this name brought into an API that is not its own; `None` if it has its own, or there is none.
    pub(crate) fn of(mesh: &str) -> Result<Option<Brought>> {
        let path = file(mesh)?;
        match std::fs::read(&path) {
            Ok(bytes) => {
                let brought = serde_json::from_slice(&bytes);
                Ok(Some(brought.with_context(|| format!("reading {}", path.display()))?))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// Takes everything out again while the mesh still runs: its node agent ends the pods. Definitions stay, since
    /// others' objects would go with them.
    pub(crate) async fn take_out(&self, mesh: &str) -> Result<()> {
        let path = root_of(mesh)?.join(mesh).join("kubeconfig");
        let kubeconfig = Kubeconfig::read_from(&path).context("reading the mesh's kubeconfig")?;
        let client = mesh::client_from(kubeconfig).await?;
        let mut applier = Applier::new(client.clone(), "weft-up");
        let of_control = |object: &&Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            object["kind"] == "Node" || (object["kind"] == "Namespace" && name == CONTROL)
        };
        let stays = |object: &&Value| object["kind"] == "CustomResourceDefinition";
        let (control, documents): (Vec<&Value>, Vec<&Value>) = self.0.iter().partition(of_control);
        for object in documents.into_iter().rev().filter(|object| !stays(object)) {
            remove(&mut applier, object).await?;
        }
        end_pods(&client).await?;
        for object in cluster::objects(&client, CONTROL).await? {
            remove(&mut applier, &object).await?;
        }
        for object in control.into_iter().rev() {
            remove(&mut applier, object).await?;
        }
        Ok(())
    }
}

async fn remove(applier: &mut Applier, object: &Value) -> Result<()> {
    let removed = applier.remove(object).await;
    removed.map_err(|error| {
        let about = format!("{}/{}", object["kind"].as_str().unwrap_or_default(), object["metadata"]["name"]);
        Fault::new(Code::ApiRequestFailed).about(about).fact("answer", api_message(&error)).into()
    })
}

/// Waits until the node has no pods.
async fn end_pods(client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::all(client.clone());
    let here = ListParams::default().fields(&format!("spec.nodeName={NODE_NAME}"));
    let deadline = Instant::now() + ENDING;
    loop {
        let left = pods.list(&here).await?.items;
        if left.is_empty() {
            return Ok(());
        }
        // The controller's stand-in has nothing to end. Of others, whoever owns them may not end them: there may be no
        // controllers for that.
        let late = Instant::now() > deadline;
        let stands_in = |pod: &Pod| pod.annotations().contains_key(MIRROR);
        for pod in left.iter().filter(|pod| late || stands_in(pod)) {
            let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
            match api.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => drop(other?),
            }
        }
        if late {
            return Ok(());
        }
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_counts_as_running_for_half_a_minute() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let node = |at: &str| json!({"status": {"conditions": [{"type": "Ready", "lastHeartbeatTime": at}]}});
        assert!(beats(&node("2026-01-01T00:00:31Z"), now));
        // A clock that is a little ahead is no reason to run twice.
        assert!(beats(&node("2026-01-01T00:01:05Z"), now));
        assert!(!beats(&node("2026-01-01T00:00:30Z"), now));
        assert!(!beats(&json!({}), now));
        let lease = |at: &str| json!({"spec": {"holderIdentity": "weft", "renewTime": at}});
        assert!(beats(&lease("2026-01-01T00:00:59.000001Z"), now));
        assert!(!beats(&lease("2026-01-01T00:00:30.000000Z"), now));
    }
}
