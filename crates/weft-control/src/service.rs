//! The gRPC services: questions in, views out as messages.

pub mod client;
pub mod destination;
pub mod identity;
pub mod inbound;
pub mod mesh;
pub mod outbound;
pub mod stream;
