//! What crosses between weft's programs: `linkerd2-proxy-api` messages to and from model values, the transport header,
//! the optional `weft.dev` service, and the records that proxies, controller and command line share.
//!
//! Each conversion module has `to_api` (for the controller) and `from_api` (for the proxy). Absent fields that change
//! what traffic may do make the whole message [`Invalid`]; fields that nothing reads are written for stock peers and not
//! asked for.

pub mod cached;
pub mod common;
pub mod destination;
pub mod extension;
pub mod inbound;
mod matches;
pub mod mesh;
pub mod outbound;
pub mod profile;
pub mod record;
#[cfg(test)]
mod tests;
pub mod transport_answer;
pub mod transport_header;
