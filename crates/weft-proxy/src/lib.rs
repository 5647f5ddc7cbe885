//! The data plane: accept, detect, inbound, outbound, http, balance, retry, drain, flight recorder, admin.
