//! Development only: raw-byte peers, namespaces, fake controllers.
