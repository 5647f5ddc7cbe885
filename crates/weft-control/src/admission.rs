//! Admission: which pods get a proxy and what it takes, and which policies are refused.

pub mod certificates;
pub mod containers;
pub mod decide;
pub mod environment;
pub mod events;
pub mod inject;
pub mod machine;
pub mod manifest;
pub mod metrics;
pub mod opaque;
pub mod opt_in;
pub mod settings;
#[cfg(test)]
mod tests;
pub mod validate;
pub mod webhook;
