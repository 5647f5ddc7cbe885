//! `weft diagnostics`: what the control plane and the proxies know, as they say it themselves.

mod discovery;
mod endpoints;
pub(crate) mod metrics;
mod policy;
mod profile;
mod rows;
mod views;

use crate::{mesh::Target, replicas::ControlPlane};
use anyhow::Result;
use kube::Client;
use std::process::ExitCode;

/// Ask the control plane and the proxies what they know.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft diagnostics endpoints store.shop:7000                  who stands behind a name, according to each controller
  weft diagnostics discovery -n shop po/web-6d5f              what one proxy holds of that
  weft diagnostics profile 10.77.0.5:8080                     what a proxy is told about an address
  weft diagnostics policy -n shop po/store-6d5f 7000          whom a port lets in
  weft diagnostics proxy-metrics -n shop deploy/web           the proxies' counters

All but `discovery` works against a stock Linkerd control plane and its proxies, too.")]
pub(crate) struct DiagnosticsCommand {
    #[command(subcommand)]
    sub: Sub,
}

#[derive(clap::Subcommand, Debug)]
enum Sub {
    Endpoints(endpoints::Endpoints),
    Discovery(discovery::Discovery),
    Profile(profile::Profile),
    Policy(policy::Policy),
    ProxyMetrics(metrics::ProxyMetrics),
    ControllerMetrics(metrics::ControllerMetrics),
}

impl DiagnosticsCommand {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        match self.sub {
            Sub::Endpoints(endpoints) => endpoints.run().await,
            Sub::Discovery(discovery) => discovery.run().await,
            Sub::Profile(profile) => profile.run().await,
            Sub::Policy(policy) => policy.run().await,
            Sub::ProxyMetrics(metrics) => metrics.run().await,
            Sub::ControllerMetrics(metrics) => metrics.run().await,
        }
    }
}

/// Which controller is asked, and in whose name.
#[derive(clap::Args, Debug)]
struct Asked {
    #[command(flatten)]
    target: Target,
    /// Ask this pod of the control plane only; without it, every one that runs.
    #[arg(long, value_name = "POD")]
    destination_pod: Option<String>,
}

impl Asked {
    async fn plane(&self) -> Result<(Client, ControlPlane)> {
        let client = self.target.client().await?;
        let plane =
            ControlPlane::find(&client, &self.target.linkerd_namespace, self.destination_pod.as_deref())
                .await?;
        Ok((client, plane))
    }
}

/// A name as proxies ask for it: `store.shop:80` stands for `store.shop.svc.cluster.local:80`.
fn authority(text: &str, cluster_domain: &str) -> String {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let short = host.matches('.').count() == 1 && !host.contains(':');
    let host = if short { format!("{host}.svc.{cluster_domain}") } else { host.to_owned() };
    match port {
        Some(port) => format!("{host}:{port}"),
        None => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_completed_and_others_left_alone() {
        for (text, asked) in [
            ("store.shop:80", "store.shop.svc.example:80"),
            ("store.shop", "store.shop.svc.example"),
            ("store.shop.svc.cluster.local:80", "store.shop.svc.cluster.local:80"),
            ("a-0.store.shop.svc.example", "a-0.store.shop.svc.example"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[fd00::1]:80", "[fd00::1]:80"),
        ] {
            assert_eq!(authority(text, "example"), asked);
        }
    }
}
