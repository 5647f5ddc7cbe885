//! The data plane: accept, detect, inbound, outbound, http, balance, retry, drain, flight recorder, admin.

pub mod certify;
pub mod config;
pub mod control;
pub mod discovery;
pub mod drain;
pub mod identity;
pub mod mesh;
pub mod metrics;
pub mod record;
