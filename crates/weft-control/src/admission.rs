//! Injection: which pods get a proxy, and what it takes.

pub mod decide;
pub mod environment;
pub mod inject;
pub mod opt_in;
#[cfg(test)]
mod tests;
pub mod webhook;
