//! `weft install`: the manifests of a control plane.

use crate::{
    cluster::{self, Existing},
    mesh::Target,
    values::ValueFlags,
};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::{io::Write as _, process::ExitCode, time::SystemTime};
use weft_control::{
    bootstrap::IdentityFiles,
    install::{control_plane, crds, settings::controller_config, values::Values, yaml},
};
use weft_fault::{Code, Fault};
use weft_tls::{authority::Ca, bundle::TrustBundle};

/// How manifests are printed.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(crate) enum Form {
    #[default]
    Yaml,
    Json,
}

/// Print the manifests of a control plane, for `kubectl apply -f -`
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft install --crds | kubectl apply -f -       the kinds of objects first
  weft install | kubectl apply -f -              then the control plane
  weft install --ha --set proxy.logLevel=debug -f values.yaml | kubectl apply -f -
  weft install --ignore-cluster -o json          without asking a cluster
  weft install --replace | kubectl apply -f -    take over from a Linkerd control plane, with its identity and settings

Exit codes: 0 printed, 1 there is a control plane already, 2 something is wrong with flags, values or the cluster.
Docs: docs/kubernetes.md, docs/values.md")]
pub(crate) struct Install {
    #[command(flatten)]
    target: Target,
    /// Print the CustomResourceDefinitions instead.
    #[arg(long)]
    crds: bool,
    /// Ask no cluster: print whatever it holds.
    #[arg(long, conflicts_with = "replace")]
    ignore_cluster: bool,
    /// Take over from another control plane in the namespace: its issuer, trust anchors and settings are kept.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    values: ValueFlags,
    /// YAML or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

impl Install {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let client = if self.ignore_cluster { None } else { Some(self.target.cluster().await?) };
        let namespace = &self.target.linkerd_namespace;
        if self.crds {
            let mut wanted = self.values.overrides(Value::Null)?["installGatewayAPI"] == true;
            if let Some(client) = &client {
                wanted |= !has_gateway_api(client).await?;
            }
            return print(&crds(wanted), self.output);
        }
        let mut before = Value::Null;
        let mut identity = None;
        if let Some(client) = &client {
            match cluster::existing(client, namespace).await? {
                Existing::Nothing => {}
                Existing::Weft => return Ok(refuse(Fault::new(Code::AlreadyInstalled).about(namespace))),
                Existing::Other(deployments) if !self.replace => {
                    let fault = Fault::new(Code::OtherControlPlane).about(namespace);
                    return Ok(refuse(fault.fact("deployments", deployments.join(", "))));
                }
                Existing::Other(deployments) => {
                    before = foreign(&cluster::overrides(client, namespace).await?.unwrap_or_default());
                    identity = Some(cluster::identity(client, namespace).await?);
                    farewell(namespace, &deployments);
                }
            }
            let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/servers.policy.linkerd.io";
            if cluster::get(client, crd).await?.is_none() {
                note(
                    "the cluster has no CustomResourceDefinitions of the mesh yet: apply `weft install --crds` first",
                );
            }
        }
        let overrides = self.values.overrides(before)?;
        let mut values = checked(&overrides, self.values.ha)?;
        fill_identity(&mut values, namespace, identity)?;
        print(&control_plane(&values, namespace), self.output)
    }
}

/// Values, or every problem with them.
pub(crate) fn checked(overrides: &Value, ha: bool) -> Result<Values> {
    let values = Values::with(overrides, ha).map_err(|problems| {
        let mut faults: Vec<Fault> = problems.into_iter().map(Fault::from).collect();
        let last = faults.pop().unwrap_or_else(|| Fault::new(Code::BadValue));
        for fault in &faults {
            anstream::eprintln!("weft: {fault:?}");
        }
        last
    })?;
    for (path, why) in values.without_effect() {
        note(&format!("{path} has no effect: {why}"));
    }
    Ok(values)
}

/// Settings from a cluster, without those that this version does not know.
pub(crate) fn recognised(overrides: &Value) -> Value {
    let (values, problems) = Values::with_known(overrides);
    for problem in &problems {
        note(&format!("not taken over: {problem}"));
    }
    values.overrides()
}

/// Settings of another control plane: its images and versions are its own.
fn foreign(overrides: &Value) -> Value {
    let mut kept = recognised(overrides);
    if let Some(map) = kept.as_object_mut() {
        for name in
            ["linkerdVersion", "controllerImage", "controllerImageVersion", "cliVersion", "debugContainer"]
        {
            map.remove(name);
        }
        for name in ["proxy", "proxyInit"] {
            if let Some(inner) = map.get_mut(name).and_then(Value::as_object_mut) {
                inner.remove("image");
            }
        }
    }
    kept
}

/// Puts the issuer and the trust anchors into the values: those given, those of `existing`, or new ones. What is then
/// there must fit together.
pub(crate) fn fill_identity(
    values: &mut Values,
    namespace: &str,
    existing: Option<IdentityFiles>,
) -> Result<()> {
    let external_issuer = values.text("identity.issuer.scheme") != "linkerd.io/tls";
    let external_roots = values.flag("identity.externalCA");
    let given = |path: &str| values.some(path);
    let issuer = (given("identity.issuer.tls.crtPEM"), given("identity.issuer.tls.keyPEM"));
    let roots = given("identityTrustAnchorsPEM");
    if let Some(existing) = existing {
        if !external_issuer && issuer.0.is_none() {
            values.set("identity.issuer.tls.crtPEM", json!(existing.issuer_certificate));
            values.set("identity.issuer.tls.keyPEM", json!(existing.issuer_key));
        }
        if !external_roots && roots.is_none() {
            values.set("identityTrustAnchorsPEM", json!(existing.trust_roots));
        }
    } else if !external_issuer && !external_roots && issuer.0.is_none() && roots.is_none() {
        let made = IdentityFiles::generate(&controller_config(values, namespace))?;
        note("a trust anchor and an issuer were made for a year; the anchor's key was not kept");
        values.set("identity.issuer.tls.crtPEM", json!(made.issuer_certificate));
        values.set("identity.issuer.tls.keyPEM", json!(made.issuer_key));
        values.set("identityTrustAnchorsPEM", json!(made.trust_roots));
    }
    if external_issuer || external_roots {
        return Ok(());
    }
    let missing =
        |what: &str| Fault::new(Code::IssuerUnusable).about(what).fact("problem", "it is not given");
    let pem = |path: &str, what: &str| values.some(path).ok_or_else(|| missing(what));
    let certificate = pem("identity.issuer.tls.crtPEM", "the issuer's certificate")?;
    let key = pem("identity.issuer.tls.keyPEM", "the issuer's key")?;
    let roots = pem("identityTrustAnchorsPEM", "the trust anchors")?;
    verify(&certificate, &key, &roots).context("the issuer and the trust anchors do not fit together")
}

/// Proves that whoever trusts `roots` accepts what the issuer signs.
pub(crate) fn verify(certificate: &str, key: &str, roots: &str) -> Result<()> {
    let roots =
        TrustBundle::parse(roots).map_err(|e| Fault::new(Code::IssuerUnusable).because(e.to_string()))?;
    Ok(Ca::from_pem(certificate, key)?.check(&roots, SystemTime::now())?)
}

async fn has_gateway_api(client: &kube::Client) -> Result<bool> {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/httproutes.gateway.networking.k8s.io";
    let Some(found) = cluster::get(client, path).await? else { return Ok(false) };
    // Those that weft printed before are printed again, or an upgrade would leave them as they are.
    let approved =
        found["metadata"]["annotations"]["api-approved.kubernetes.io"].as_str().unwrap_or_default();
    Ok(!approved.contains("weft"))
}

pub(crate) fn print(objects: &[Value], form: Form) -> Result<ExitCode> {
    let text = match form {
        Form::Yaml => yaml::documents(objects),
        Form::Json => {
            serde_json::to_string_pretty(&json!({"apiVersion": "v1", "kind": "List", "items": objects}))?
                + "\n"
        }
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Tells a fault that is an answer, not an accident.
pub(crate) fn refuse(fault: Fault) -> ExitCode {
    crate::report(&fault.into());
    ExitCode::from(1)
}

/// Something to know, beside what is printed.
pub(crate) fn note(text: &str) {
    anstream::eprintln!("weft: {text}");
}

fn farewell(namespace: &str, deployments: &[String]) {
    note("the issuer, the trust anchors and the settings of the control plane that is there are kept");
    if !deployments.is_empty() {
        let names = deployments.join(" ");
        note(&format!(
            "when weft's controller is ready, remove what it replaces: kubectl -n {namespace} delete deploy {names}; `weft prune` prints the rest"
        ));
    }
}
