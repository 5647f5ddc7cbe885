//! Keys, CSRs, CA, rotation, and handshakes that yield a verified identity.
