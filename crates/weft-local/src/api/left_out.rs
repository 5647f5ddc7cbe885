//! What this API leaves out on purpose, and what it says to whoever asks for it. `docs/api.md` has the list for people; a test
//! holds each of its rows against an answer.

use super::error::ApiError;

/// Kinds that nothing acts on, and what to do instead. They may be looked for, as clients do that prune or list everything; to
/// make one is refused, which is better than to accept it in silence.
pub const KINDS: [(&str, &str); 14] = [
    ("StatefulSet", "use a Deployment, or Pods with names of their own"),
    ("DaemonSet", "use a Deployment: there is one node"),
    ("CronJob", "use a Job"),
    ("ReplicationController", "use a Deployment"),
    ("HorizontalPodAutoscaler", "nothing measures pods; use kubectl scale"),
    ("PersistentVolume", "use a hostPath or emptyDir volume"),
    ("PersistentVolumeClaim", "use a hostPath or emptyDir volume"),
    ("StorageClass", "use a hostPath or emptyDir volume"),
    ("Ingress", "this machine reaches Services directly"),
    ("IngressClass", "this machine reaches Services directly"),
    ("ResourceQuota", "nothing is counted here; leave it out"),
    ("LimitRange", "containers are given no limits here; leave it out"),
    ("PriorityClass", "no pod gives way to another on one node; leave it out"),
    ("RuntimeClass", "every container is a process of this machine; leave it out"),
];

/// Parts of pods that are not served, and what to do instead.
const PARTS_OF_PODS: [(&str, &str); 3] = [
    ("eviction", "weft evicts no pods: there is one node to run them; delete the pod"),
    (
        "ephemeralcontainers",
        "weft adds no containers to pods that run: there are no images to take a debugger from. Every program of this machine \
         is in the pod's containers already: use kubectl exec, or weft exec",
    ),
    (
        "resize",
        "weft resizes no containers: they are given no limits here; to change what a pod asks for, make it anew",
    ),
];

/// What is said to whoever attaches to a container's input.
const INPUT: &str = "weft gives containers no input to attach to: start a program in the container with kubectl exec -i, or \
    weft exec, or attach without -i to see the output";

/// Why none of a kind is made.
pub(super) fn kind(kind: &str) -> Option<ApiError> {
    let (_, instead) = KINDS.iter().find(|(known, _)| *known == kind)?;
    let many = match kind {
        _ if kind.ends_with('s') => format!("{kind}es"),
        _ => format!("{kind}s"),
    };
    Some(refused(&format!("weft runs no {many}: {instead}")))
}

/// Why a part of a pod is not served.
pub(super) fn part_of_pod(subresource: &str) -> Option<ApiError> {
    let found = PARTS_OF_PODS.iter().find(|(known, _)| *known == subresource);
    found.map(|(_, why)| refused(why))
}

/// Why nobody attaches to the input of a container that has one on a real node.
pub(super) fn input() -> ApiError {
    refused(INPUT)
}

/// Why a body in protobuf was not read.
pub(super) fn in_protobuf(kind: &str) -> String {
    let instead = match kind {
        "Pod" => "in place of kubectl debug, use kubectl exec, or weft exec",
        _ => "send it as JSON",
    };
    format!("weft reads few kinds in protobuf, and this {kind} not: {instead}")
}

fn refused(why: &str) -> ApiError {
    ApiError::new(501, "NotImplemented", why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::Kinds;

    #[test]
    fn every_kind_is_one_that_may_be_looked_for() {
        let kinds = Kinds::default();
        for (kind, _) in KINDS {
            assert!(kinds.all().iter().any(|known| known.kind == kind), "{kind}");
        }
        let of = |api_version, name| kinds.find_kind(api_version, name).unwrap().not_run();
        assert!(
            of("apps/v1", "StatefulSet").is_some_and(|e| e.message.starts_with("weft runs no StatefulSets:"))
        );
        assert!(of("networking.k8s.io/v1", "Ingress").is_some_and(|e| e.message.contains("no Ingresses:")));
        assert!(of("v1", "Pod").is_none());
    }
}
