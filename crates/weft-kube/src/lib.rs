//! All Kubernetes knowledge: typed resources, watches, status writes, the client.
