//! CustomResourceDefinitions of the kinds that are enforced. A kind that would be accepted and ignored is not here.

use serde_json::{Value, json};

/// Group, kind, plural, singular, short names, versions (the stored one first), columns.
struct Definition {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    versions: &'static [&'static str],
    /// Name and JSON path.
    columns: &'static [(&'static str, &'static str)],
}

const POLICY: &str = "policy.linkerd.io";
const GATEWAY: &str = "gateway.networking.k8s.io";

const DEFINITIONS: &[Definition] = &[
    Definition {
        group: POLICY,
        kind: "Server",
        plural: "servers",
        short: &["srv"],
        versions: &["v1beta3", "v1beta2", "v1beta1"],
        columns: &[
            ("Port", ".spec.port"),
            ("Protocol", ".spec.proxyProtocol"),
            ("Access Policy", ".spec.accessPolicy"),
        ],
    },
    Definition {
        group: POLICY,
        kind: "AuthorizationPolicy",
        plural: "authorizationpolicies",
        short: &["authzpolicy"],
        versions: &["v1alpha1"],
        columns: &[("Target", ".spec.targetRef.name")],
    },
    Definition {
        group: POLICY,
        kind: "MeshTLSAuthentication",
        plural: "meshtlsauthentications",
        short: &["meshtlsauthn"],
        versions: &["v1alpha1"],
        columns: &[("Identities", ".spec.identities")],
    },
    Definition {
        group: POLICY,
        kind: "NetworkAuthentication",
        plural: "networkauthentications",
        short: &["netauthn", "networkauthn"],
        versions: &["v1alpha1"],
        columns: &[("Networks", ".spec.networks[*].cidr")],
    },
    Definition {
        group: POLICY,
        kind: "HTTPRoute",
        plural: "httproutes",
        short: &[],
        versions: &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"],
        columns: &[("Hostnames", ".spec.hostnames")],
    },
    Definition {
        group: POLICY,
        kind: "HTTPLocalRateLimitPolicy",
        plural: "httplocalratelimitpolicies",
        short: &[],
        versions: &["v1alpha1"],
        columns: &[("Target_name", ".spec.targetRef.name")],
    },
    Definition {
        group: GATEWAY,
        kind: "HTTPRoute",
        plural: "httproutes",
        short: &[],
        versions: &["v1", "v1beta1"],
        columns: &[("Hostnames", ".spec.hostnames")],
    },
];

pub(super) fn all() -> impl Iterator<Item = Value> {
    DEFINITIONS.iter().map(definition)
}

fn definition(d: &Definition) -> Value {
    let singular = d.kind.to_ascii_lowercase();
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut spec = open.clone();
    if d.kind == "Server" {
        // Users' tools rely on these being filled in.
        spec["properties"] = json!({
            "accessPolicy": {"type": "string", "default": "deny"},
            "proxyProtocol": {"type": "string", "default": "unknown"},
            "port": {"x-kubernetes-int-or-string": true},
        });
    }
    let columns: Vec<Value> = d
        .columns
        .iter()
        .map(|(name, path)| json!({"name": name, "type": "string", "jsonPath": path}))
        .chain([json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})])
        .collect();
    let versions: Vec<Value> = d
        .versions
        .iter()
        .enumerate()
        .map(|(at, version)| {
            json!({
                "name": version, "served": true, "storage": at == 0,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "required": ["spec"],
                    "properties": {"spec": spec, "status": open},
                }},
            })
        })
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", d.plural, d.group), "annotations": {
            // The API server wants it said that definitions in a k8s.io group are not from upstream.
            "api-approved.kubernetes.io": "unapproved, a reduced form made by weft"}},
        "spec": {
            "group": d.group, "scope": "Namespaced",
            "names": {"kind": d.kind, "listKind": format!("{}List", d.kind), "plural": d.plural,
                "singular": singular, "shortNames": d.short},
            "versions": versions,
        },
    })
}
