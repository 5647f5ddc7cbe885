//! What kube-controller-manager does for a real cluster, as tasks on the store.
//!
//! Each controller is level-triggered: a change names keys, and for each key the controller compares what is with
//! what should be, from the store alone. Nothing is remembered between runs but when to look again.

mod client;
mod deployment;
mod drive;
mod endpoint_mirror;
mod endpoint_slice;
mod endpoints;
mod garbage;
mod job;
mod namespace;
mod pods;
mod replica_set;

use std::sync::Arc;

use crate::api::Api;

/// Runs all controllers until the future is dropped.
pub async fn run(api: Arc<Api>) {
    tokio::join!(
        namespace::run(api.clone()),
        garbage::run(api.clone()),
        garbage::expire_events(api.clone()),
        deployment::run(api.clone()),
        replica_set::run(api.clone()),
        job::run(api.clone()),
        endpoint_slice::run(api.clone()),
        endpoint_mirror::run(api.clone()),
        endpoints::run(api.clone()),
    );
}
