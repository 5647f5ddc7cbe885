//! What crosses between weft's programs: `linkerd2-proxy-api` messages to and from model values, the transport header,
//! the optional `weft.dev` service, and the records that proxies, controller and command line share.

pub mod record;
