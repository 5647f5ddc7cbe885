//! `weft version`: of this program, of the control plane, of proxies.

use crate::{cluster, mesh::Target};
use anyhow::Result;
use serde_json::Value;
use std::{collections::BTreeMap, io::Write as _};
use weft_control::install::objects::CONTROLLER;

const OWN: &str = env!("CARGO_PKG_VERSION");

/// Show the versions of this program, the control plane, and proxies
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft version
  weft version --client --short      only this program's, without words
  weft version --proxy -n shop       how many proxies of each version run there")]
pub(crate) struct Version {
    #[command(flatten)]
    target: Target,
    /// Only this program's.
    #[arg(long)]
    client: bool,
    /// Without words.
    #[arg(long)]
    short: bool,
    /// Proxies as well.
    #[arg(long)]
    proxy: bool,
    /// Namespace of the proxies; all without it.
    #[arg(short, long, requires = "proxy")]
    namespace: Option<String>,
}

impl Version {
    pub(crate) async fn run(self) -> Result<()> {
        self.line("Client version", OWN)?;
        if self.client {
            return Ok(());
        }
        let namespace = &self.target.linkerd_namespace;
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{CONTROLLER}");
        let asked = async {
            let client = self.target.cluster().await?;
            let server = cluster::get(&client, &path).await?;
            anyhow::Ok((client, server))
        };
        let (client, server) = match asked.await {
            Ok(found) => found,
            // The own version was the question that could be answered.
            Err(error) => {
                self.line("Server version", "unavailable")?;
                anstream::eprintln!("weft: {error:#}");
                return Ok(());
            }
        };
        self.line("Server version", server.as_ref().and_then(tag).unwrap_or("unavailable"))?;
        if self.proxy {
            let pods = cluster::meshed_pods(&client, namespace).await?;
            let wanted =
                |pod: &&Value| self.namespace.as_deref().is_none_or(|n| pod["metadata"]["namespace"] == n);
            for (version, pods) in versions(pods.iter().filter(wanted)) {
                match self.short {
                    true => self.line("", &version)?,
                    false => self.line("Proxy version", &format!("{version} ({pods} pods)"))?,
                }
            }
        }
        Ok(())
    }

    fn line(&self, what: &str, version: &str) -> Result<()> {
        let mut out = anstream::stdout().lock();
        match self.short {
            true => writeln!(out, "{version}")?,
            false => writeln!(out, "{what}: {version}")?,
        }
        Ok(())
    }
}

/// The tag of a Deployment's first image.
fn tag(deployment: &Value) -> Option<&str> {
    let image = deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str()?;
    image.rsplit_once(':').map(|(_, tag)| tag)
}

/// How many pods have a proxy of each version.
fn versions<'p>(pods: impl Iterator<Item = &'p Value>) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let version =
            pod["metadata"]["annotations"]["linkerd.io/proxy-version"].as_str().unwrap_or("unknown");
        *all.entry(version.to_owned()).or_default() += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn versions_are_counted() {
        let pod = |version: &str| json!({"metadata": {"annotations": {"linkerd.io/proxy-version": version}}});
        let pods = [pod("1"), pod("2"), pod("1"), json!({})];
        let counted: Vec<_> = versions(pods.iter()).into_iter().collect();
        assert_eq!(counted, [("1".to_owned(), 2), ("2".to_owned(), 1), ("unknown".to_owned(), 1)]);
        let deployment = json!({"spec": {"template": {"spec": {"containers": [{"image": "r:5000/a:v3"}]}}}});
        assert_eq!(tag(&deployment), Some("v3"));
    }
}
