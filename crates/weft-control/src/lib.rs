//! The controller: one index fed by watches; views computed from it by pure functions; streams that carry the views.
//!
//! ```text
//! watches ─► index (ordered, one task) ─► views (pure) ─► streams: destination · inbound · outbound policy · weft.dev
//!                     └─► journal                     └─► admin: authorize, endpoints, profile
//! ```

pub mod admin;
pub mod admission;
pub mod authority;
pub mod bootstrap;
pub mod config;
pub mod controller;
pub mod events;
pub mod external_slices;
pub mod index;
pub mod install;
pub mod journal;
pub mod lease;
pub mod ports;
pub mod serve;
pub mod service;
pub mod status;
pub mod trust_roots;
pub mod view;
