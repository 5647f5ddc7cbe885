//! Whole meshes: `weft up` with real processes, real redirects and real TLS. One file per capability.
//!
//! As root, they are root's meshes, and some are an ordinary user's besides; as another user, all are that user's. They need
//! namespaces; where these are impossible each test says SKIPPED and why.

mod admin;
#[path = "../../../weft-control/tests/support/cluster.rs"]
mod api;
mod capture;
mod check;
mod clusters;
mod diagnostics;
mod external;
mod harness;
mod identity;
mod leftovers;
mod machine;
mod pods;
mod restarts;
mod rootless;
mod rotation;
mod shop;
mod who;
