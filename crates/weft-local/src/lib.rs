//! `weft up`: the in-memory Kubernetes API ([`api`]), what kube-controller-manager does for it ([`controllers`]),
//! and the node agent that runs pods as processes of this machine ([`node`]).
//!
//! The API keeps raw JSON objects and one ordered log of changes; it knows nothing about the node agent except
//! the [`api::kubelet::Kubelet`] trait. The node agent talks to the API as any client would, through `kube`.

pub mod api;
pub mod controllers;
pub mod node;
