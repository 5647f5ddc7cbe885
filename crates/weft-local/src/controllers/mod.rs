//! What kube-controller-manager does for a real cluster, as tasks on the store.
