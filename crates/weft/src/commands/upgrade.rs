//! `weft upgrade`: the manifests again, with what was asked for before.

use crate::{
    cluster::{self, Existing},
    commands::install::{Form, checked, fill_identity, note, print, recognised, refuse, verify},
    manifest,
    mesh::Target,
    values::ValueFlags,
};
use anyhow::Result;
use serde_json::Value;
use std::{path::PathBuf, process::ExitCode};
use weft_control::{
    bootstrap::IdentityFiles,
    install::{control_plane, crds, objects::OVERRIDES_SECRET, values::Values},
};
use weft_fault::{Code, Fault};

/// How many pods are named.
const NAMED: usize = 10;

/// Print the manifests of the installed control plane in this version, for `kubectl apply -f -`
#[derive(clap::Args, Debug)]
#[command(after_help = "Settings, issuer and trust anchors are those of the cluster, with what flags change.

Examples:
  weft upgrade --crds | kubectl apply -f -
  weft upgrade | kubectl apply -f -
  weft upgrade --set controllerReplicas=3 | kubectl apply -f -
  weft upgrade --identity-issuer-certificate-file crt.pem --identity-issuer-key-file key.pem | kubectl apply -f -
  weft upgrade --from-manifests backup.yaml | kubectl apply -f -
  weft prune | kubectl delete -f -               what this version has no use for any more

Exit codes: 0 printed, 1 nothing is installed or the issuer would not be trusted, 2 something is wrong.")]
pub(crate) struct Upgrade {
    #[command(flatten)]
    target: Target,
    /// Print the CustomResourceDefinitions instead.
    #[arg(long)]
    crds: bool,
    /// Go on although pods would not trust the issuer.
    #[arg(long)]
    force: bool,
    /// Take settings and identity from this output of `weft install`, and ask no cluster.
    #[arg(long, value_name = "FILE")]
    from_manifests: Option<PathBuf>,
    #[command(flatten)]
    values: ValueFlags,
    /// YAML or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

impl Upgrade {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let namespace = &self.target.linkerd_namespace;
        if self.crds {
            let gateway = self.values.overrides(Value::Null)?["installGatewayAPI"] == true;
            return print(&crds(gateway), self.output);
        }
        let (before, identity, client) = match &self.from_manifests {
            Some(file) => {
                let (before, identity) = from_manifests(file).await?;
                (before, identity, None)
            }
            None => {
                let client = self.target.cluster().await?;
                if cluster::existing(&client, namespace).await? != Existing::Weft {
                    return Ok(refuse(Fault::new(Code::NotInstalled).about(namespace)));
                }
                let Some(before) = cluster::overrides(&client, namespace).await? else {
                    let fault =
                        Fault::new(Code::NotInstalled).about(namespace).fact("missing", OVERRIDES_SECRET);
                    return Ok(refuse(fault.fact("if-installed-by-helm", "use helm upgrade")));
                };
                let identity = cluster::identity(&client, namespace).await?;
                (before, identity, Some(client))
            }
        };
        let overrides = self.values.overrides(recognised(&before))?;
        let mut values = checked(&overrides, self.values.ha)?;
        if let Err(error) = fill_identity(&mut values, namespace, Some(identity)) {
            if !self.force {
                return Err(error);
            }
            note(&format!("{error:#}"));
        }
        if let Some(client) = client.filter(|_| self.values.new_issuer(&overrides)) {
            let strangers = distrusting(&cluster::meshed_pods(&client, namespace).await?, &values);
            if !strangers.is_empty() {
                let named = strangers.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
                let fault = Fault::new(Code::IssuerUnusable)
                    .fact(
                        "problem",
                        "pods do not trust it, and would refuse everybody with a new certificate",
                    )
                    .fact("pods", strangers.len())
                    .fact("such-as", named);
                match self.force {
                    false => return Ok(refuse(fault)),
                    true => note(&format!("{fault:?}")),
                }
            }
        }
        print(&control_plane(&values, namespace), self.output)
    }
}

/// Pods whose trust anchors do not vouch for the values' issuer.
fn distrusting(pods: &[Value], values: &Values) -> Vec<String> {
    let (certificate, key) =
        (values.text("identity.issuer.tls.crtPEM"), values.text("identity.issuer.tls.keyPEM"));
    pods.iter()
        .filter(|pod| anchors(pod).is_some_and(|anchors| verify(&certificate, &key, anchors).is_err()))
        .map(|pod| {
            let meta = &pod["metadata"];
            format!(
                "{}/{}",
                meta["namespace"].as_str().unwrap_or_default(),
                meta["name"].as_str().unwrap_or_default()
            )
        })
        .collect()
}

/// The trust anchors that a pod was injected with.
fn anchors(pod: &Value) -> Option<&str> {
    let containers = ["initContainers", "containers"]
        .into_iter()
        .filter_map(|list| pod["spec"][list].as_array())
        .flatten();
    let mut env = containers.filter_map(|container| container["env"].as_array()).flatten();
    env.find(|variable| variable["name"] == "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS")?["value"].as_str()
}

/// What a file of manifests says about settings and identity.
async fn from_manifests(file: &PathBuf) -> Result<(Value, IdentityFiles)> {
    let documents = manifest::read_all(std::slice::from_ref(file)).await?;
    let objects: Vec<Value> = documents.into_iter().map(|document| document.object).collect();
    let overrides = objects
        .iter()
        .find(|object| object["kind"] == "Secret" && object["metadata"]["name"] == OVERRIDES_SECRET)
        .map(cluster::overrides_of)
        .transpose()?
        .unwrap_or_default();
    Ok((overrides, cluster::identity_of(&objects)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use weft_control::config::ControllerConfig;

    #[test]
    fn pods_with_other_anchors_are_named() {
        let config = ControllerConfig::new([127, 0, 0, 1].into(), vec![]);
        let (ours, theirs) =
            (IdentityFiles::generate(&config).unwrap(), IdentityFiles::generate(&config).unwrap());
        let mut values = Values::defaults(false);
        values.set("identity.issuer.tls.crtPEM", json!(ours.issuer_certificate));
        values.set("identity.issuer.tls.keyPEM", json!(ours.issuer_key));
        let pod = |name: &str, anchors: &str| {
            json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"initContainers": [
                {"env": [{"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors}]}]}})
        };
        let both = format!("{}{}", theirs.trust_roots, ours.trust_roots);
        let pods = [pod("a", &ours.trust_roots), pod("b", &theirs.trust_roots), pod("c", &both), json!({})];
        assert_eq!(distrusting(&pods, &values), ["shop/b"]);
    }
}
