//! `weft external-workload`: what a machine outside the cluster needs to join the mesh.

use crate::{
    cluster,
    commands::install::{checked, recognised},
    mesh::Target,
};
use anyhow::{Context as _, Result, bail};
use kube::Client;
use serde_json::{Value, json};
use std::{fmt::Write as _, io::Write as _, process::ExitCode};
use weft_control::{
    admission::{
        decide::annotations,
        machine::{Machine, Proof, TOKEN_FILE, proof, set_up},
    },
    config::ControllerConfig,
    install::{
        settings::controller_config,
        values::{Values, duration},
    },
};
use weft_fault::{Code, Fault};
use weft_kube::{
    api::{self, ApiError},
    kind::Kind as _,
    policy::external_workload::ExternalWorkload,
};

/// What API servers give at least; they may give less than was asked for, and say so.
const SHORTEST: u64 = 600;

/// Bring a machine outside the cluster into the mesh: its proxy's settings, and the token that proves who it is
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft external-workload env vm -n shop > weft.env        settings of `weft proxy` on the machine
  weft external-workload token vm -n shop > token         proves its ServiceAccount, for a day
  weft external-workload env vm -n shop --host mesh.example.com

docs/vm.md walks through it.

Exit codes: 0 printed, 2 it could not be.")]
pub(crate) struct ExternalWorkloadCommand {
    #[command(subcommand)]
    sub: Sub,
}

#[derive(clap::Subcommand, Debug)]
enum Sub {
    Env(Env),
    Token(Token),
}

/// The ExternalWorkload that stands for the machine.
#[derive(clap::Args, Debug)]
struct Which {
    #[command(flatten)]
    target: Target,
    /// Name of the ExternalWorkload.
    name: String,
    /// Its namespace.
    #[arg(short, long, default_value = "default", value_name = "NAME")]
    namespace: String,
}

/// Print the environment of the machine's proxy
///
/// A file of NAME='value' lines: a shell and systemd's EnvironmentFile= read it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft external-workload env vm -n shop > weft.env
  weft external-workload env vm -n shop --spire-socket unix:///run/spire/agent.sock")]
struct Env {
    #[command(flatten)]
    which: Which,
    /// Folder on the machine that holds the token and, once the roots are rotated, ca-bundle.crt.
    #[arg(long, default_value = "/etc/weft", value_name = "DIR")]
    dir: String,
    /// Where the machine reaches the control plane, on its usual ports; its names in the cluster without it.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// The SPIRE agent on the machine proves its identity; the default for a spiffe:// identity.
    #[arg(long, value_name = "SOCKET")]
    spire_socket: Option<String>,
}

/// Print a token that proves the machine's ServiceAccount
///
/// It is bound to a Secret that goes with the ExternalWorkload: when that is deleted, the token is void.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft external-workload token vm -n shop > token
  weft external-workload token vm -n shop --duration 1h | ssh vm 'cat > /etc/weft/token'")]
struct Token {
    #[command(flatten)]
    which: Which,
    /// How long it is valid; a certificate is asked for again before it ends.
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    duration: String,
}

impl ExternalWorkloadCommand {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        match self.sub {
            Sub::Env(env) => env.run().await?,
            Sub::Token(token) => token.run().await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What the cluster says about the machine.
struct Found {
    client: Client,
    object: Value,
    external: ExternalWorkload,
    config: ControllerConfig,
}

impl Which {
    async fn find(&self) -> Result<Found> {
        let client = self.target.client().await?;
        let control = &self.target.linkerd_namespace;
        let overrides = recognised(&cluster::settings(&client, control).await?);
        let values: Values = checked(&overrides, false)?;
        let config = controller_config(&values, control);
        let collection = ExternalWorkload::path(Some(&self.namespace));
        let Some(object) = cluster::get(&client, &format!("{collection}/{}", self.name)).await? else {
            bail!("there is no ExternalWorkload {} in namespace {}", self.name, self.namespace);
        };
        let external = serde_json::from_value(object.clone())
            .with_context(|| format!("reading ExternalWorkload {}/{}", self.namespace, self.name))?;
        Ok(Found { client, object, external, config })
    }
}

impl Env {
    async fn run(&self) -> Result<()> {
        let Found { client, external, config, .. } = self.which.find().await?;
        let control = &self.which.target.linkerd_namespace;
        let roots = cluster::identity(&client, control).await?.trust_roots;
        if roots.is_empty() {
            return Err(Fault::new(Code::NotInstalled).about(control).into());
        }
        let namespace =
            cluster::get(&client, &format!("/api/v1/namespaces/{}", self.which.namespace)).await?;
        let machine = Machine {
            external: &external,
            namespace: &namespace.as_ref().map(annotations).unwrap_or_default(),
            roots: &roots,
            folder: &self.dir,
            host: self.host.as_deref(),
            spire: self.spire_socket.as_deref(),
        };
        let set_up = set_up(&config, &machine)?;
        for warning in &set_up.warnings {
            anstream::eprintln!("weft: {warning}");
        }
        let mut text = format!(
            "# The proxy of ExternalWorkload {}/{}.\n# First, as root: weft {}\n",
            self.which.namespace,
            self.which.name,
            set_up.redirect.join(" ")
        );
        for (name, value) in &set_up.variables {
            writeln!(text, "{name}={}", quoted(value))?;
        }
        anstream::stdout().lock().write_all(text.as_bytes())?;
        Ok(())
    }
}

/// As shells and systemd read it, whatever is in it: lines, too.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

impl Token {
    async fn run(&self) -> Result<()> {
        let seconds = duration(&self.duration)
            .map(|d| d.as_secs())
            .filter(|seconds| *seconds >= SHORTEST)
            .ok_or_else(|| {
                let fault = Fault::new(Code::BadFlag).about("--duration").fact("value", &self.duration);
                fault.fact("expected", "10m or more, such as 24h")
            })?;
        let Found { client, object, external, config } = self.which.find().await?;
        let Proof::ServiceAccount(account) = proof(&external, &config)? else {
            bail!(
                "a token cannot prove {}: that is for a SPIRE agent on the machine",
                external.spec.mesh_tls.identity
            );
        };
        let namespace = &self.which.namespace;
        let secret = self.bound_to(&client, &object).await?;
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
            "audiences": [config.identity.audience], "expirationSeconds": seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": secret["metadata"]["name"],
                "uid": secret["metadata"]["uid"]}}});
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer = match api::create(&client, &path, &request).await {
            Err(ApiError::Status { code: 404, .. }) => bail!(
                "there is no ServiceAccount {account} in namespace {namespace}, to which {} belongs",
                external.spec.mesh_tls.identity
            ),
            answer => answer.with_context(|| format!("asking for a token of {namespace}/{account}"))?,
        };
        let token = answer["status"]["token"].as_str().context("the API's answer holds no token")?;
        if let Some(until) = answer["status"]["expirationTimestamp"].as_str() {
            anstream::eprintln!("valid until {until}; it belongs into {TOKEN_FILE}, mode 0600");
        }
        writeln!(anstream::stdout().lock(), "{token}")?;
        Ok(())
    }

    /// The Secret without which the token is void: it belongs to the ExternalWorkload as it is now.
    async fn bound_to(&self, client: &Client, external: &Value) -> Result<Value> {
        let meta = &external["metadata"];
        let name = format!("{}-weft-token", self.which.name);
        let collection = format!("/api/v1/namespaces/{}/secrets", self.which.namespace);
        let path = format!("{collection}/{name}");
        if let Some(secret) = cluster::get(client, &path).await? {
            if secret["metadata"]["ownerReferences"][0]["uid"] == meta["uid"] {
                return Ok(secret);
            }
            // Of an earlier ExternalWorkload of this name, whose tokens must not outlive it.
            api::delete(client, &path).await.with_context(|| format!("deleting {path}"))?;
        }
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "weft.dev/external-workload",
            "metadata": {"name": name, "namespace": self.which.namespace,
                "annotations": {"weft.dev/about": "Tokens of this machine's proxy are void without this Secret."},
                "ownerReferences": [{"apiVersion": external["apiVersion"], "kind": external["kind"],
                    "name": meta["name"], "uid": meta["uid"]}]}});
        api::create(client, &collection, &secret).await.with_context(|| format!("creating {path}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_a_shell() {
        for value in ["plain", "{\"ns\":\"a b\"}", "two\nlines", "it's", "$(x) `y` \\"] {
            let script = format!("X={}\nprintf %s \"$X\"", quoted(value));
            let out = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
            assert_eq!(String::from_utf8_lossy(&out.stdout), value);
        }
    }
}
