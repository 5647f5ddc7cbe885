//! Kinds of Linkerd and of the Gateway API, and what they mean as model values.

pub mod access;
pub mod authorization;
pub mod external_workload;
pub mod http_route;
pub mod rate_limit;
pub mod reference;
pub mod route_convert;
pub mod server;
pub mod service_profile;
