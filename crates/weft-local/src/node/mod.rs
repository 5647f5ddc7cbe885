//! The node agent: pods as processes in network namespaces.
