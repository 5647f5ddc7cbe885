//! How values merge, by where they stand in an object: which lists are matched by keys, which maps are one value.
//!
//! A custom kind's schema says so. For built-in kinds this is the one table, for patches and for server-side apply alike.

use serde_json::Value;

use super::kinds::Kind;
use super::meta;

/// How the elements of a list are told apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Elements {
    /// Objects, by these fields.
    By(Vec<String>),
    /// Plain values, each once.
    Set,
    /// The list is one value.
    Atomic,
}

/// The same, as a row of the table has it.
#[derive(Clone, Copy)]
enum Keys {
    By(&'static [&'static str]),
    Set,
    Atomic,
}

impl From<Keys> for Elements {
    fn from(keys: Keys) -> Self {
        match keys {
            Keys::By(names) => Self::By(names.iter().map(|&name| name.to_owned()).collect()),
            Keys::Set => Self::Set,
            Keys::Atomic => Self::Atomic,
        }
    }
}

use Keys::{Atomic, By, Set};

/// The fields that hold containers.
const CONTAINERS: &[&str] = &["containers", "initContainers", "ephemeralContainers"];
/// The object itself.
const ROOT: &[&str] = &[""];

/// Lists that merge: the fields in which the object stands that has the list, the list, how it merges when it is applied, and
/// how when it is patched (by one key). All others are one value either way.
const LISTS: &[(&[&str], &str, Keys, Keys)] = &[
    (&["metadata"], "finalizers", Set, Set),
    (&["metadata"], "ownerReferences", By(&["uid"]), By(&["uid"])),
    // Pods, and templates of pods.
    (&["spec"], "containers", By(&["name"]), By(&["name"])),
    (&["spec"], "initContainers", By(&["name"]), By(&["name"])),
    (&["spec"], "ephemeralContainers", By(&["name"]), By(&["name"])),
    (&["spec"], "volumes", By(&["name"]), By(&["name"])),
    (&["spec"], "imagePullSecrets", By(&["name"]), By(&["name"])),
    (&["spec"], "hostAliases", By(&["ip"]), By(&["ip"])),
    (&["spec"], "resourceClaims", By(&["name"]), By(&["name"])),
    (&["spec"], "schedulingGates", By(&["name"]), By(&["name"])),
    (&["spec"], "topologySpreadConstraints", By(&["topologyKey", "whenUnsatisfiable"]), By(&["topologyKey"])),
    (CONTAINERS, "env", By(&["name"]), By(&["name"])),
    (CONTAINERS, "ports", By(&["containerPort", "protocol"]), By(&["containerPort"])),
    (CONTAINERS, "volumeMounts", By(&["mountPath"]), By(&["mountPath"])),
    (CONTAINERS, "volumeDevices", By(&["devicePath"]), By(&["devicePath"])),
    (&["resources"], "claims", By(&["name"]), Atomic),
    (&["status"], "podIPs", By(&["ip"]), By(&["ip"])),
    (&["status"], "hostIPs", Atomic, By(&["ip"])),
    (&["status"], "resourceClaimStatuses", By(&["name"]), By(&["name"])),
    // Services, slices, nodes, webhooks.
    (&["spec"], "ports", By(&["port", "protocol"]), By(&["port"])),
    (&["endpoints"], "addresses", Set, Atomic),
    (&["spec"], "podCIDRs", Set, Set),
    (&["status"], "addresses", By(&["type"]), By(&["type"])),
    (&["status"], "conditions", By(&["type"]), By(&["type"])),
    (ROOT, "secrets", By(&["name"]), By(&["name"])),
    (ROOT, "webhooks", By(&["name"]), By(&["name"])),
    (&["webhooks"], "matchConditions", By(&["name"]), By(&["name"])),
    // Jobs.
    (&["uncountedTerminatedPods"], "failed", Set, Atomic),
    (&["uncountedTerminatedPods"], "succeeded", Set, Atomic),
    (&["onExitCodes"], "values", Set, Atomic),
];

/// Maps that are one value when they are applied: selectors and references.
const ATOMIC_MAPS: [&str; 17] = [
    "selector",
    "nodeSelector",
    "labelSelector",
    "namespaceSelector",
    "objectSelector",
    "podSelector",
    "fieldRef",
    "secretKeyRef",
    "configMapKeyRef",
    "fileKeyRef",
    "resourceFieldRef",
    "roleRef",
    "involvedObject",
    "regarding",
    "related",
    "targetRef",
    "nodePublishSecretRef",
];

/// Lists that merge by keys, whose elements are one value each.
const ATOMIC_ITEMS: [&str; 3] = ["ownerReferences", "imagePullSecrets", "secrets"];

/// Where in an object a value stands, as far as merging needs to know.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    kind: &'a Kind,
    /// The schema of the value, in a custom kind.
    schema: Option<&'a Value>,
    /// The field of the object that has this field.
    parent: &'a str,
    field: &'a str,
    /// Whether this is an element of the list in that field.
    item: bool,
    /// The object itself.
    pub(super) root: bool,
}

impl<'a> Place<'a> {
    pub(super) fn of(kind: &'a Kind) -> Self {
        Self { kind, schema: kind.schema(), parent: "", field: "", item: false, root: true }
    }

    pub(super) fn inner(self, field: &'a str) -> Self {
        // Metadata is not part of a custom kind's schema, and merges by name everywhere.
        let schema = match self.schema {
            Some(_) if self.root && field == "metadata" => None,
            Some(schema) => Some(
                schema["properties"]
                    .get(field)
                    .or_else(|| schema.get("additionalProperties"))
                    .unwrap_or(&Value::Null),
            ),
            None => None,
        };
        Self { kind: self.kind, schema, parent: self.field, field, item: false, root: false }
    }

    pub(super) fn item(self) -> Self {
        Self { schema: self.schema.map(|schema| &schema["items"]), item: true, root: false, ..self }
    }

    /// Whether the field is no part of the schema but an entry of a free-form map: those are owned as such.
    pub(super) fn is_entry(self, field: &str) -> bool {
        self.schema.is_some_and(|schema| schema["properties"].get(field).is_none())
    }

    /// Maps that are one value: a selector is replaced whole.
    pub(super) fn is_atomic(self) -> bool {
        match self.schema {
            Some(schema) => schema["x-kubernetes-map-type"] == "atomic",
            None if self.item => ATOMIC_ITEMS.contains(&self.field),
            None => ATOMIC_MAPS.contains(&self.field),
        }
    }

    /// How a list merges when it is applied.
    pub(super) fn elements(self) -> Elements {
        let Some(schema) = self.schema else {
            // A Job's conditions are an exception.
            if self.field == "conditions" && self.kind.kind == "Job" {
                return Elements::Atomic;
            }
            return self.row().map_or(Elements::Atomic, |(applied, _)| applied.into());
        };
        match schema["x-kubernetes-list-type"].as_str() {
            Some("map") => Elements::By(
                meta::items(schema, "/x-kubernetes-list-map-keys")
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
            ),
            Some("set") => Elements::Set,
            _ => Elements::Atomic,
        }
    }

    /// How a list of a built-in kind merges in a strategic merge patch.
    pub(super) fn patched(self) -> Elements {
        self.row().map_or(Elements::Atomic, |(_, patched)| patched.into())
    }

    fn row(self) -> Option<(Keys, Keys)> {
        let row =
            LISTS.iter().find(|(parents, list, ..)| *list == self.field && parents.contains(&self.parent));
        row.filter(|_| !self.item).map(|(_, _, applied, patched)| (*applied, *patched))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::Kinds;

    /// As the schemas of a 1.36 server say.
    #[test]
    fn lists_merge_as_on_a_real_server() {
        let kinds = Kinds::default();
        for (api_version, kind, path, applied, patched) in [
            ("v1", "Pod", "metadata.finalizers", "set", "set"),
            ("v1", "Pod", "metadata.ownerReferences", "uid", "uid"),
            ("v1", "Pod", "spec.containers[].ports", "containerPort,protocol", "containerPort"),
            ("v1", "Pod", "spec.initContainers[].env", "name", "name"),
            ("v1", "Pod", "spec.containers[].args", "atomic", "atomic"),
            ("v1", "Pod", "spec.containers[].envFrom", "atomic", "atomic"),
            ("v1", "Pod", "spec.containers[].resources.claims", "name", "atomic"),
            ("v1", "Pod", "spec.tolerations", "atomic", "atomic"),
            ("v1", "Pod", "spec.imagePullSecrets", "name", "name"),
            ("v1", "Pod", "status.conditions", "type", "type"),
            ("v1", "Pod", "status.podIPs", "ip", "ip"),
            ("v1", "Pod", "status.hostIPs", "atomic", "ip"),
            ("v1", "Pod", "status.containerStatuses", "atomic", "atomic"),
            (
                "apps/v1",
                "Deployment",
                "spec.template.spec.containers[].volumeMounts",
                "mountPath",
                "mountPath",
            ),
            (
                "apps/v1",
                "Deployment",
                "spec.template.spec.topologySpreadConstraints",
                "topologyKey,whenUnsatisfiable",
                "topologyKey",
            ),
            ("v1", "Service", "spec.ports", "port,protocol", "port"),
            ("v1", "Service", "spec.clusterIPs", "atomic", "atomic"),
            ("v1", "Service", "status.loadBalancer.ingress[].ports", "atomic", "atomic"),
            ("v1", "Endpoints", "subsets[].addresses", "atomic", "atomic"),
            ("v1", "Endpoints", "subsets[].ports", "atomic", "atomic"),
            ("discovery.k8s.io/v1", "EndpointSlice", "ports", "atomic", "atomic"),
            ("discovery.k8s.io/v1", "EndpointSlice", "endpoints", "atomic", "atomic"),
            ("discovery.k8s.io/v1", "EndpointSlice", "endpoints[].addresses", "set", "atomic"),
            ("networking.k8s.io/v1", "NetworkPolicy", "spec.ingress[].ports", "atomic", "atomic"),
            ("v1", "Node", "spec.taints", "atomic", "atomic"),
            ("v1", "Node", "status.addresses", "type", "type"),
            ("v1", "Namespace", "spec.finalizers", "atomic", "atomic"),
            ("v1", "ServiceAccount", "secrets", "name", "name"),
            ("v1", "ServiceAccount", "imagePullSecrets", "atomic", "atomic"),
            ("batch/v1", "Job", "status.conditions", "atomic", "type"),
            (
                "admissionregistration.k8s.io/v1",
                "ValidatingWebhookConfiguration",
                "webhooks[].matchConditions",
                "name",
                "name",
            ),
            ("rbac.authorization.k8s.io/v1", "Role", "rules", "atomic", "atomic"),
        ] {
            let found = kinds.find_kind(api_version, kind).unwrap();
            let place =
                path.split('.').fold(Place::of(&found), |place, part| match part.strip_suffix("[]") {
                    Some(list) => place.inner(list).item(),
                    None => place.inner(part),
                });
            let shown = |elements: Elements| match elements {
                Elements::By(keys) => keys.join(","),
                Elements::Set => "set".to_owned(),
                Elements::Atomic => "atomic".to_owned(),
            };
            let both = (shown(place.elements()), shown(place.patched()));
            assert_eq!(both, (applied.to_owned(), patched.to_owned()), "{kind} {path}");
        }
    }

    #[test]
    fn selectors_and_references_are_one_value() {
        let kinds = Kinds::default();
        let (service, pod) =
            (kinds.find_kind("v1", "Service").unwrap(), kinds.find_kind("v1", "Pod").unwrap());
        assert!(Place::of(&service).inner("spec").inner("selector").is_atomic());
        let of_pod = |list: &'static str, item: bool| {
            let list = Place::of(&pod).inner("spec").inner(list);
            if item { list.item() } else { list }
        };
        assert!(of_pod("nodeSelector", false).is_atomic() && of_pod("imagePullSecrets", true).is_atomic());
        assert!(!of_pod("containers", true).is_atomic() && !of_pod("securityContext", false).is_atomic());
        assert!(Place::of(&pod).inner("metadata").inner("ownerReferences").item().is_atomic());
    }
}
