//! Kinds of Linkerd and of the Gateway API, and what they mean as model values.

pub mod access;
pub mod authorization;
pub mod egress_network;
pub mod external_workload;
pub mod grpc_route;
pub mod http_route;
pub mod rate_limit;
pub mod reference;
pub mod reference_grant;
pub mod route;
pub mod route_convert;
pub mod server;
pub mod server_authorization;
pub mod service_profile;
pub mod status;
