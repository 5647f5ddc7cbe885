//! Admission: which pods get a proxy and what it takes, and which policies are refused.

pub mod decide;
pub mod environment;
pub mod inject;
pub mod opt_in;
#[cfg(test)]
mod tests;
pub mod validate;
pub mod webhook;
