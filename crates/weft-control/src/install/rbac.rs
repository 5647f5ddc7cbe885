//! What the controller may do: what it reads, and the few things it writes.

use super::{
    objects::{CONTROLLER, labels, meta},
    template::{namespace, text},
    webhooks::{CONFIGURATIONS, SECRETS},
};
use crate::{
    authority::{ISSUER_SECRET, ROOTS_CONFIG_MAP},
    journal::keep::CONFIG_MAP as JOURNAL,
    trust_roots::NAMESPACE_ROOTS,
};
use serde_json::{Value, json};

/// Kinds of each policy group, in the plural.
pub const POLICY_KINDS: [&str; 8] = [
    "servers",
    "serverauthorizations",
    "authorizationpolicies",
    "meshtlsauthentications",
    "networkauthentications",
    "httproutes",
    "httplocalratelimitpolicies",
    "egressnetworks",
];
pub const GATEWAY_ROUTES: [&str; 4] = ["httproutes", "grpcroutes", "tlsroutes", "tcproutes"];

/// Accounts whose names are identities of the control plane. They hold no rights; they keep the names from others.
const NAMES: [&str; 3] = ["linkerd-destination", "linkerd-identity", "linkerd-proxy-injector"];

pub fn objects() -> Vec<Value> {
    let mut objects: Vec<Value> = NAMES
        .into_iter()
        .chain([CONTROLLER])
        .map(|name| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(name)}))
        .collect();
    let cluster_name = text(&[json!("weft-"), namespace(), json!("-controller")]);
    let subjects = json!([{"kind": "ServiceAccount", "name": CONTROLLER, "namespace": namespace()}]);
    let group = "rbac.authorization.k8s.io";
    let api = format!("{group}/v1");
    objects.extend([
        json!({"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": cluster_name, "labels": labels()},
            "rules": cluster_rules()}),
        json!({"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": {"name": cluster_name, "labels": labels()},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": cluster_name}, "subjects": subjects}),
        json!({"apiVersion": api, "kind": "Role", "metadata": meta(CONTROLLER), "rules": own_rules()}),
        json!({"apiVersion": api, "kind": "RoleBinding", "metadata": meta(CONTROLLER),
            "roleRef": {"apiGroup": group, "kind": "Role", "name": CONTROLLER}, "subjects": subjects}),
    ]);
    objects
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

fn named(group: &str, resources: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "resourceNames": names, "verbs": verbs})
}

fn cluster_rules() -> Value {
    let read = ["get", "list", "watch"];
    let status =
        |kinds: &[&str]| -> Vec<String> { kinds.iter().map(|kind| format!("{kind}/status")).collect() };
    let statuses = |group: &str, kinds: &[&str]| json!({"apiGroups": [group], "resources": status(kinds), "verbs": ["patch"]});
    json!([
        rule("", &["namespaces", "nodes", "pods", "services"], &read),
        // Those of ExternalWorkloads are written.
        rule("discovery.k8s.io", &["endpointslices"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("apps", &["replicasets", "deployments", "statefulsets", "daemonsets"], &read),
        rule("batch", &["jobs"], &read),
        // For the journal.
        rule("networking.k8s.io", &["networkpolicies"], &read),
        rule("multicluster.linkerd.io", &["links"], &read),
        rule("linkerd.io", &["serviceprofiles"], &read),
        rule("workload.linkerd.io", &["externalworkloads"], &read),
        rule("policy.linkerd.io", &POLICY_KINDS, &read),
        rule("gateway.networking.k8s.io", &[&GATEWAY_ROUTES[..], &["referencegrants"]].concat(), &read),
        statuses("policy.linkerd.io", &POLICY_KINDS),
        statuses("gateway.networking.k8s.io", &GATEWAY_ROUTES),
        // Marks namespaces that opted in, for the selectors of webhooks.
        rule("", &["namespaces"], &["patch"]),
        rule("", &["events"], &["create", "patch"]),
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        // The trust roots in namespaces with proxies.
        named("", &["configmaps"], &[NAMESPACE_ROOTS], &["create", "patch"]),
        // The CA of its own webhooks.
        named(
            "admissionregistration.k8s.io",
            &["mutatingwebhookconfigurations"],
            &CONFIGURATIONS[..1],
            &["get", "patch"]
        ),
        named(
            "admissionregistration.k8s.io",
            &["validatingwebhookconfigurations"],
            &CONFIGURATIONS[1..],
            &["get", "patch"]
        ),
    ])
}

fn own_rules() -> Value {
    let read = ["get", "list", "watch"];
    json!([
        named("", &["secrets"], &[ISSUER_SECRET], &read),
        named("", &["secrets"], &SECRETS, &["get", "update"]),
        // Names cannot restrict what is created.
        rule("", &["secrets"], &["create"]),
        named("", &["configmaps"], &[ROOTS_CONFIG_MAP, "linkerd-config"], &read),
        named("", &["configmaps"], &[JOURNAL], &["get", "patch"]),
        rule("", &["configmaps"], &["create"]),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update", "patch"]),
    ])
}
