//! The mesh's controller, a process of its own beside the supervisor: if it ends, another takes over ([`crate::keeper`]), as on
//! a cluster. Proxies keep what they know meanwhile.

use crate::{
    entry,
    keeper::{self, Keeper, Orders},
    network::Network,
    supervisor,
};
use futures_util::future::BoxFuture;
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{path::PathBuf, time::Duration};
use tokio::sync::watch;
use weft_fault::Fault;

const WHAT: &str = "the controller";

/// The mesh's controller, given by the program: this crate knows nothing about it. It runs until its seat's `stop`, and
/// is started when the API answers.
pub type Controller = Box<dyn FnOnce(Seat) -> BoxFuture<'static, Result<(), Fault>> + Send>;

/// What the controller is given.
pub struct Seat {
    /// An administrator's client of the API.
    pub client: Client,
    /// Where it is to listen ([`Network::node_ip`]) and what is in the mesh.
    pub network: Network,
    pub state_dir: PathBuf,
    /// The API is not the mesh's own: its server only leads to what it knows as a pod.
    pub external: bool,
    /// An earlier controller of this mesh has brought its objects into the API. They may have been changed since (the
    /// identity issuer, for one): they are to stay as they are.
    pub furnished: bool,
    /// To be called once its objects are there.
    pub has_furnished: Box<dyn FnOnce() + Send>,
    /// What `weft up` was given for it: [`crate::up::UpConfig::controller`].
    pub options: Value,
    /// Becomes a time to end within when the mesh ends and all pods have ended.
    pub stop: watch::Receiver<Option<Duration>>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Of the API, as this machine's inside reaches it. Holds a key: never printed.
    pub(crate) kubeconfig: String,
    pub(crate) network: Network,
    pub(crate) state_dir: PathBuf,
    pub(crate) external: bool,
    pub(crate) furnished: bool,
    pub(crate) options: Value,
}

/// Who keeps a controller running.
pub(crate) fn keeper(mesh: &str, start: Start) -> Keeper {
    Keeper {
        what: WHAT,
        role: entry::CONTROLLER,
        mesh: mesh.to_owned(),
        log: start.state_dir.join("controller.log"),
        last_words: Duration::from_secs(2),
        order: Box::new(move |furnished| {
            let start = serde_json::to_value(Start { furnished, ..start.clone() })?;
            Ok(Orders { start, socket: None })
        }),
    }
}

/// Runs as the controller.
pub(crate) fn run(controller: Controller) -> Result<(), Fault> {
    keeper::run(WHAT, |start: Start, seat| {
        Box::pin(async move {
            let client = supervisor::client(&start.kubeconfig).await?;
            let Start { network, state_dir, external, furnished, options, .. } = start;
            let stop = seat.stop.clone();
            let has_furnished = Box::new(move || seat.begun());
            controller(Seat { client, network, state_dir, external, furnished, has_furnished, options, stop })
                .await
        })
    })
}
