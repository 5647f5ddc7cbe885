//! All Kubernetes knowledge: the kinds that weft reads, watches that survive, the client.
//!
//! The kinds are our own and hold only what weft uses: a watch cache of whole objects is where controllers lose their
//! memory, and a type that knows every field breaks on the first one it does not know.

pub mod api;
pub mod backoff;
pub mod core;
pub mod fetch;
pub mod kind;
pub mod meta;
pub mod policy;
pub mod selector;
pub mod shared;
pub mod watch;
