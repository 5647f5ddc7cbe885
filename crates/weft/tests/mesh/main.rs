//! Whole meshes: `weft up` with real processes, real redirects and real TLS. One file per capability.
//!
//! They need root and network namespaces; where these are impossible each test says SKIPPED and why.

mod admin;
#[path = "../../../weft-control/tests/support/cluster.rs"]
mod api;
mod capture;
mod external;
mod harness;
mod identity;
mod leftovers;
mod machine;
mod pods;
mod restarts;
mod rotation;
mod shop;
