//! Identities, workloads, routes, policies: immutable values, and the pure decisions over them.
//!
//! Nothing here does I/O, awaits, logs or knows a wire format. A decision is a function of a snapshot and of the
//! request, so that it can be tested as a table.

pub mod balance;
pub mod breaker;
pub mod extension;
pub mod http;
pub mod identity;
pub mod inbound;
pub mod meta;
pub mod network_policy;
pub mod outbound;
pub mod profile;
pub mod retry;
pub mod selector;
pub mod workload;
