//! The checks themselves, by what they are about.

pub(super) mod api;
pub(super) mod clocks;
pub(super) mod cni;
pub(super) mod config;
pub(super) mod data_plane;
pub(super) mod discovery;
pub(super) mod existence;
pub(super) mod extension;
pub(super) mod faults;
pub(super) mod identity;
pub(super) mod leaves;
pub(super) mod network;
pub(super) mod policy;
pub(super) mod pre;
pub(super) mod proxies;
pub(super) mod stalls;
pub(super) mod version;
pub(super) mod webhooks;
