//! CustomResourceDefinitions of every kind that the controller reads.
//!
//! The versions of a kind have one schema: whoever reads an object in an old version and writes it back loses nothing that
//! a newer version's writer said. Schemas refuse what is wrong whatever else the cluster holds; what depends on more than
//! the object's shape is for the admission webhook.

mod gateway;
mod link;
mod policy;
mod profile;
mod route;
mod schema;
mod workload;

use schema::Schema;
use serde_json::{Value, json};

const POLICY: &str = "policy.linkerd.io";
const GATEWAY: &str = "gateway.networking.k8s.io";

/// One kind.
struct Definition {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    /// The stored one first.
    versions: &'static [&'static str],
    columns: &'static [Column],
    /// Of the kind as a whole.
    says: &'static str,
    spec: Schema,
    status: Schema,
}

/// A column of `kubectl get`: name, type, JSON path.
type Column = (&'static str, &'static str, &'static str);

/// The kinds of Linkerd's own groups.
pub fn linkerd() -> Vec<Value> {
    let mut all = policy::all();
    all.extend([profile::service_profile(), workload::external_workload(), link::link()]);
    all.iter().map(definition).collect()
}

/// The routes of the Gateway API. A cluster may have them already, from upstream and newer.
pub fn gateway() -> Vec<Value> {
    gateway::all().iter().map(definition).collect()
}

pub(super) fn all() -> impl Iterator<Item = Value> {
    linkerd().into_iter().chain(gateway())
}

fn definition(d: &Definition) -> Value {
    let columns: Vec<Value> = d
        .columns
        .iter()
        .chain(&[("Age", "date", ".metadata.creationTimestamp")])
        .map(|(name, kind, path)| json!({"name": name, "type": kind, "jsonPath": path}))
        .collect();
    let meta = |says: &str| json!({"type": "string", "description": says});
    let schema = json!({
        "type": "object", "description": d.says, "required": ["spec"],
        "properties": {
            "apiVersion": meta("Group and version of this object."),
            "kind": meta("The kind of this object."),
            "metadata": {"type": "object"},
            "spec": d.spec.json,
            "status": d.status.json,
        },
    });
    let versions: Vec<Value> = d
        .versions
        .iter()
        .enumerate()
        .map(|(at, version)| {
            json!({
                "name": version, "served": true, "storage": at == 0,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": schema},
            })
        })
        .collect();
    let mut object = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", d.plural, d.group)},
        "spec": {
            "group": d.group, "scope": "Namespaced",
            "names": {"kind": d.kind, "listKind": format!("{}List", d.kind), "plural": d.plural,
                "singular": d.kind.to_ascii_lowercase()},
            "versions": versions,
        },
    });
    // An API server does not keep an empty list: whoever applied one would be in conflict with all that follow.
    if !d.short.is_empty() {
        object["spec"]["names"]["shortNames"] = json!(d.short);
    }
    if d.group == GATEWAY {
        // The API server wants it said that definitions in a k8s.io group are not from upstream.
        object["metadata"]["annotations"] =
            json!({"api-approved.kubernetes.io": "unapproved, written for weft; upstream's may replace it"});
    }
    object
}

#[cfg(test)]
mod tests;
