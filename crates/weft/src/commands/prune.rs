//! `weft prune`: what a control plane left that this version has no use for.

use crate::{
    cluster::{self, Existing},
    commands::install::{Form, checked, print, recognised, refuse},
    mesh::Target,
};
use anyhow::Result;
use serde_json::Value;
use std::{collections::HashSet, process::ExitCode};
use weft_control::{
    install::{control_plane, webhooks::SECRETS},
    journal::keep::CONFIG_MAP as JOURNAL,
    trust_roots::NAMESPACE_ROOTS,
};
use weft_fault::{Code, Fault};

/// Print objects of the control plane that this version does not install, for `kubectl delete -f -`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "After an upgrade, or after `weft install --replace`: what an older version or Linkerd left behind.

Examples:
  weft prune                                     look first
  weft prune | kubectl delete -f -

Exit codes: 0 printed, 1 nothing is installed, 2 something is wrong."
)]
pub(crate) struct Prune {
    #[command(flatten)]
    target: Target,
    /// YAML or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

impl Prune {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let client = self.target.cluster().await?;
        let namespace = &self.target.linkerd_namespace;
        if cluster::existing(&client, namespace).await? != Existing::Weft {
            return Ok(refuse(Fault::new(Code::NotInstalled).about(namespace)));
        }
        let overrides = recognised(&cluster::settings(&client, namespace).await?);
        let wanted = control_plane(&checked(&overrides, false)?, namespace);
        let left = left_over(&cluster::objects(&client, namespace).await?, &wanted);
        print(&left, self.output)
    }
}

/// What is there and not wanted. Issuer, trust anchors and the webhooks' certificates are never left over, whoever made them,
/// nor is the journal, which the controller keeps.
fn left_over(there: &[Value], wanted: &[Value]) -> Vec<Value> {
    let key = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        // The group without its version: the same object is served in several.
        let version = text(&object["apiVersion"]);
        let group = version.rsplit_once('/').map_or("", |(group, _)| group).to_owned();
        let meta = &object["metadata"];
        (group, text(&object["kind"]), text(&meta["namespace"]), text(&meta["name"]))
    };
    let wanted: HashSet<_> = wanted.iter().map(key).collect();
    let kept = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let always = ["linkerd-identity-issuer", "linkerd-identity-trust-roots", NAMESPACE_ROOTS, JOURNAL];
        always.contains(&name) || (object["kind"] == "Secret" && SECRETS.contains(&name))
    };
    there
        .iter()
        .filter(|object| !wanted.contains(&key(object)) && !kept(object))
        .map(cluster::named)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use weft_control::install::values::Values;

    #[test]
    fn only_what_is_not_wanted_is_left_over() {
        let wanted = control_plane(&Values::defaults(false), "linkerd");
        let object = |api: &str, kind: &str, name: &str| json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "linkerd"}});
        let mut there = wanted.clone();
        there.extend([
            object("apps/v1", "Deployment", "linkerd-destination"),
            object("v1", "Secret", "linkerd-identity-issuer"),
            object("v1", "Secret", "linkerd-proxy-injector-k8s-tls"),
            object("batch/v1", "CronJob", "linkerd-heartbeat"),
            object("v1", "ConfigMap", "weft-journal"),
        ]);
        let names: Vec<_> =
            left_over(&there, &wanted).iter().map(|o| o["metadata"]["name"].clone()).collect();
        assert_eq!(names, ["linkerd-destination", "linkerd-heartbeat"]);
    }
}
