//! Development only: certificates, a scripted controller and raw-byte peers.

pub mod channel;
pub mod controller;
pub mod h2raw;
pub mod http1;
pub mod pki;
pub mod raw;
