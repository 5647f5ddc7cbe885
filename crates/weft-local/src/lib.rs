//! weft up: the in-memory Kubernetes API and the node agent.
