//! `weft up`: the in-memory Kubernetes API ([`api`]), what kube-controller-manager does for it ([`controllers`]),
//! the runtime that keeps pods as processes of this machine (`runtime`), and the node agent that says which ([`node`]).
//!
//! The API keeps raw JSON objects and one ordered log of changes; it knows nothing about the node except
//! the [`api::kubelet::Kubelet`] trait. The node agent talks to the API as any client would, through `kube`.
//!
//! From the outside in: [`up`] starts the supervisor and holds the mesh; [`entry`] is where the program comes back as one of
//! the processes inside; `doorway` is between them where there is no root; [`supervisor`] is process 1 of the mesh and runs
//! everything but the pods' own processes, the node agent and the mesh's [`controller`], which may end and be started again
//! (`keeper`).

pub mod api;
mod border;
pub mod channel;
pub mod controller;
pub mod controllers;
mod dns;
mod doorway;
pub mod entry;
pub mod external;
mod host_link;
mod inside;
mod keeper;
pub mod network;
mod network_policy;
pub mod node;
mod peering;
mod refusal;
pub mod rights;
mod runtime;
mod service_nat;
mod services;
pub mod state;
pub mod supervisor;
pub mod up;

use std::time::Duration;

/// The domain below which services have names.
pub const CLUSTER_DOMAIN: &str = "cluster.local";

/// How long the containers of a mesh that is being ended may take, whatever their pods say.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
