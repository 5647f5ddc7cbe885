//! The data plane: accept, detect, inbound, outbound, http, balance, retry, drain, flight recorder, admin.

mod accept;
pub mod access_log;
pub mod admin;
pub mod certify;
pub mod config;
mod connect;
pub mod control;
mod deadline;
mod detect;
pub mod discovery;
pub mod drain;
mod http;
pub mod identity;
pub mod inbound;
mod io;
mod latest;
pub mod log;
pub mod mesh;
pub mod metrics;
pub mod outbound;
pub mod record;
mod report;
pub mod runtime;
pub mod starvation;
pub mod watchdog;
