//! Views: what the index says about one subject. Pure functions of the index; nothing here is ever edited in place.

pub mod address;
pub mod authorization;
pub mod backend;
pub mod beside;
pub mod confirm;
pub mod decision;
pub mod endpoints;
pub mod inbound;
pub mod outbound;
pub mod profile;
pub mod requirement;
pub mod routes;
pub mod service_port;
pub mod service_settings;
#[cfg(test)]
mod tests;
pub mod workload;
