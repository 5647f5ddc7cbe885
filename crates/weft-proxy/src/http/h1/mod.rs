//! HTTP/1 (RFC 9110 and 9112), both ends of it.
//!
//! Strict: what two implementations could read differently is refused, never repaired. Idle connections own no buffer, a
//! message without a body costs one read and one write, and nothing here is shared between threads.

mod body;
pub(crate) mod chunked;
mod client;
mod conn;
pub(crate) mod encode;
pub(crate) mod head;
mod server;
#[cfg(test)]
mod tests;

pub(crate) use body::{Incoming, Interim, Upgrade, Upgraded};
pub(crate) use client::{Client, Lost};
pub(crate) use server::serve;
