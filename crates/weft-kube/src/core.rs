//! Kinds of Kubernetes itself.

pub mod endpoint_slice;
pub mod lease;
pub mod network_policy;
pub mod node;
pub mod pod;
pub mod rollout;
pub mod service;
