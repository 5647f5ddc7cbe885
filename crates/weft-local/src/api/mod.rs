//! The in-memory Kubernetes API.

pub mod error;
pub mod kubelet;
