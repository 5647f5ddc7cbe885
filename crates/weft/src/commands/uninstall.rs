//! `weft uninstall`: what to delete.

use crate::{
    cluster,
    commands::install::{Form, note, print, refuse},
    mesh::Target,
};
use anyhow::Result;
use serde_json::{Value, json};
use std::{collections::BTreeSet, process::ExitCode};
use weft_control::install::crds;
use weft_fault::{Code, Fault};
use weft_kube::selector::LabelSelector;

/// How many pods are named.
const NAMED: usize = 10;

/// Print what belongs to the control plane, for `kubectl delete -f -`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Namespaces and CustomResourceDefinitions stay unless they are asked for: other people's labels,
NetworkPolicies and policies hang on them.

Examples:
  weft uninject deploy.yaml | kubectl apply -f -      workloads first
  weft uninstall | kubectl delete -f -
  weft uninstall --delete-namespace --crds | kubectl delete -f -

Exit codes: 0 printed, 1 pods of the mesh still run or nothing is installed, 2 something is wrong."
)]
pub(crate) struct Uninstall {
    #[command(flatten)]
    target: Target,
    /// Go on although pods of the mesh still run.
    #[arg(short, long)]
    force: bool,
    /// The control plane's namespace as well, with everything in it.
    #[arg(long = "delete-namespace")]
    with_namespace: bool,
    /// The CustomResourceDefinitions as well, with every policy and route that anybody made.
    #[arg(long)]
    crds: bool,
    /// YAML or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

impl Uninstall {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let client = self.target.cluster().await?;
        let namespace = &self.target.linkerd_namespace;
        let mut objects: Vec<Value> =
            cluster::objects(&client, namespace).await?.iter().map(cluster::named).collect();
        if objects.is_empty() {
            return Ok(refuse(Fault::new(Code::NotInstalled).about(namespace)));
        }
        let pods = cluster::meshed_pods(&client, namespace).await?;
        if !pods.is_empty() {
            let titles: Vec<String> = pods.iter().take(NAMED).map(title).collect();
            let fault =
                Fault::new(Code::StillInUse).fact("pods", pods.len()).fact("such-as", titles.join(", "));
            match self.force {
                false => return Ok(refuse(fault)),
                true => note(&format!(
                    "{} pods of the mesh lose their controller: {}",
                    pods.len(),
                    titles.join(", ")
                )),
            }
        }
        let path = format!("/api/v1/namespaces/{namespace}");
        if let Some(found) = cluster::get(&client, &path).await? {
            let policies = cluster::list(&client, "/apis/networking.k8s.io/v1/networkpolicies", None).await?;
            for name in depending(&policies, &found) {
                match self.with_namespace {
                    true => note(&format!(
                        "NetworkPolicy {name} selects the namespace {namespace} by its labels: without it, what the policy allows is allowed no more"
                    )),
                    false => {
                        note(&format!("NetworkPolicy {name} selects the namespace {namespace}, which stays"))
                    }
                }
            }
            if self.with_namespace {
                objects
                    .push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
            }
        }
        if self.crds {
            objects.extend(crds(true).iter().map(cluster::named));
        }
        print(&objects, self.output)
    }
}

fn title(object: &Value) -> String {
    let meta = &object["metadata"];
    format!(
        "{}/{}",
        meta["namespace"].as_str().unwrap_or_default(),
        meta["name"].as_str().unwrap_or_default()
    )
}

/// NetworkPolicies with a peer that is found by labels of this namespace.
fn depending(policies: &[Value], namespace: &Value) -> BTreeSet<String> {
    let labels = serde_json::from_value(namespace["metadata"]["labels"].clone()).unwrap_or_default();
    let selects = |peer: &Value| {
        let Some(selector) = peer.get("namespaceSelector") else { return false };
        // An empty selector names no label that could go.
        let names_labels = selector["matchLabels"].as_object().is_some_and(|m| !m.is_empty())
            || selector["matchExpressions"].as_array().is_some_and(|m| !m.is_empty());
        let read: Option<LabelSelector> = serde_json::from_value(selector.clone()).ok();
        names_labels && read.is_some_and(|selector| selector.selects(&labels))
    };
    policies
        .iter()
        .filter(|policy| {
            let rules = [("ingress", "from"), ("egress", "to")];
            rules.iter().any(|(direction, peers)| {
                let rules = policy["spec"][direction].as_array().into_iter().flatten();
                rules.filter_map(|rule| rule[peers].as_array()).flatten().any(selects)
            })
        })
        .map(title)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_that_hang_on_a_namespace() {
        let policy = |name: &str, peer: Value| json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"ingress": [{"from": [peer]}]}});
        let by_label = json!({"namespaceSelector": {"matchLabels": {"linkerd.io/is-control-plane": "true"}}});
        let policies = [
            policy("by-label", by_label.clone()),
            policy("other", json!({"namespaceSelector": {"matchLabels": {"a": "b"}}})),
            policy("all", json!({"namespaceSelector": {}})),
            policy("ip", json!({"ipBlock": {"cidr": "10.0.0.0/8"}})),
            json!({"metadata": {"namespace": "shop", "name": "out"}, "spec": {"egress": [{"to": [by_label]}]}}),
        ];
        let namespace = json!({"metadata": {"labels": {"linkerd.io/is-control-plane": "true"}}});
        let found: Vec<String> = depending(&policies, &namespace).into_iter().collect();
        assert_eq!(found, ["shop/by-label", "shop/out"]);
    }
}
