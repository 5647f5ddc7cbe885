//! The data plane: accept, detect, inbound, outbound, http, balance, retry, drain, flight recorder, admin.

pub mod config;
pub mod discovery;
pub mod drain;
pub mod identity;
pub mod mesh;
pub mod metrics;
pub mod record;
