//! linkerd2-proxy-api messages to and from model values; the transport header; the weft.dev service.
