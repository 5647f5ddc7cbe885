//! Development only: certificates, a scripted controller and raw-byte peers.

pub mod controller;
pub mod pki;
pub mod raw;
