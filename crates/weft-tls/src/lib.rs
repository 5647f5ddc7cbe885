//! Keys, certificate requests, the certificate authority, and handshakes that yield a verified identity.
//!
//! TLS 1.3 only, aws-lc-rs everywhere and always given explicitly: nothing here depends on a process-wide default.

pub mod authority;
pub mod bundle;
pub mod certificate;
pub mod credentials;
pub mod failure;
pub mod handshake;
pub mod hello;
pub mod keys;
pub mod named;
pub mod provider;
pub mod request;
#[cfg(test)]
mod tests;
pub mod verify;
