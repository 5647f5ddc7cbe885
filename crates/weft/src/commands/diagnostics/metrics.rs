//! `weft diagnostics proxy-metrics` and `controller-metrics`: pages of metrics as they are.

use crate::{
    mesh::Target,
    reach::{self, title},
    select::{self, Name},
};
use anyhow::{Context as _, Result, bail};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use owo_colors::OwoColorize as _;
use std::{io::Write as _, process::ExitCode, time::Duration};
use tokio::time::timeout;
use weft_diagnose::prom;

const AT_ONCE: usize = 4;

/// Print the metrics of proxies.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft diagnostics proxy-metrics -n shop deploy/web
  weft diagnostics proxy-metrics -n shop po/web-6d5f --obfuscate       to be shown to others

Exit codes: 0 all answered, 1 some did not, 2 the question could not be asked.")]
pub(super) struct ProxyMetrics {
    #[command(flatten)]
    target: Target,
    /// Pod, deployment, job or service: [NAMESPACE/][KIND/]NAME.
    name: String,
    /// Namespace to look in; without it, wherever there is exactly one of that name.
    #[arg(short, long)]
    namespace: Option<String>,
    #[command(flatten)]
    how: How,
}

/// Print the metrics of the control plane.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft diagnostics controller-metrics
  weft diagnostics controller-metrics --wait 5s | grep -c .

Exit codes: 0 all answered, 1 some did not, 2 the question could not be asked.")]
pub(super) struct ControllerMetrics {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    how: How,
}

#[derive(clap::Args, Debug)]
struct How {
    /// Replace names, addresses and identities by hashes: the same one by the same hash.
    #[arg(long)]
    obfuscate: bool,
    /// How long each may take.
    #[arg(short, long, default_value = "30s", value_parser = crate::time::duration, value_name = "DURATION")]
    wait: Duration,
}

/// One page: of which pod, of which container, on which port.
struct Page {
    pod: Pod,
    container: String,
    port: u16,
}

impl ProxyMetrics {
    pub(super) async fn run(self) -> Result<ExitCode> {
        let client = self.target.client().await?;
        let selected = select::find(&client, &Name::parse(&self.name)?, self.namespace.as_deref()).await?;
        let pods = selected.pods.into_iter().filter(|pod| reach::is_running(pod) && reach::is_meshed(pod));
        let pages: Vec<Page> =
            pods.map(|pod| Page { pod, container: reach::PROXY.to_owned(), port: reach::ADMIN }).collect();
        if pages.is_empty() {
            bail!("{} has no running pod with a proxy", selected.title);
        }
        self.how.print(&client, pages).await
    }
}

impl ControllerMetrics {
    pub(super) async fn run(self) -> Result<ExitCode> {
        let client = self.target.client().await?;
        let namespace = &self.target.linkerd_namespace;
        let pods = Api::<Pod>::namespaced(client.clone(), namespace)
            .list(&ListParams::default().labels("linkerd.io/control-plane-component"))
            .await
            .with_context(|| format!("looking for the control plane's pods in namespace {namespace}"))?;
        let running = pods.items.into_iter().filter(reach::is_running);
        let pages: Vec<Page> = running
            .flat_map(|pod| {
                let found = admin_ports(&pod);
                found.into_iter().map(move |(container, port)| Page { pod: pod.clone(), container, port })
            })
            .collect();
        if pages.is_empty() {
            bail!("no pod of a control plane runs in namespace {namespace}");
        }
        self.how.print(&client, pages).await
    }
}

/// Containers that tell about themselves, and on which port; proxies do that elsewhere.
pub(crate) fn admin_ports(pod: &Pod) -> Vec<(String, u16)> {
    let containers: Vec<&Container> =
        pod.spec.iter().flat_map(|s| &s.containers).filter(|c| c.name != reach::PROXY).collect();
    let of = |container: &&Container| {
        let mut ports = container.ports.iter().flatten();
        let admin = ports.find(|port| port.name.as_deref().is_some_and(|n| n.contains("admin")))?;
        Some((container.name.clone(), u16::try_from(admin.container_port).ok()?))
    };
    let found: Vec<(String, u16)> = containers.iter().filter_map(of).collect();
    match (found.is_empty(), containers.first()) {
        // The pod that stands for the controller of `weft up` names no ports.
        (true, Some(first)) => {
            vec![(first.name.clone(), weft_control::config::Ports::default().admin)]
        }
        _ => found,
    }
}

impl How {
    async fn print(&self, client: &Client, pages: Vec<Page>) -> Result<ExitCode> {
        let all = pages.len();
        let mut answers = stream::iter(pages)
            .map(|page| async move {
                let asked = async {
                    match page.port {
                        reach::ADMIN => reach::read_admin(client, &page.pod, "/metrics").await,
                        port => reach::read_port(client, &page.pod, port, "/metrics").await,
                    }
                };
                let late = || anyhow::anyhow!("no answer in {} s", self.wait.as_secs());
                let answer = timeout(self.wait, asked).await.unwrap_or_else(|_| Err(late()));
                (page, answer)
            })
            .buffered(AT_ONCE);
        let (mut at, mut silent) = (0, 0);
        while let Some((page, answer)) = answers.next().await {
            at += 1;
            let what = format!("POD {} ({at} of {all}), container {}", page.pod.name_any(), page.container);
            match answer {
                Ok(text) => {
                    let text = if self.obfuscate { prom::obfuscated(&text) } else { text };
                    let mut out = anstream::stdout().lock();
                    writeln!(out, "#\n# {what}\n#\n{}", text.trim_end())?;
                }
                Err(error) => {
                    silent += 1;
                    anstream::eprintln!("{} {}: {error:#}", "‼".yellow(), title(&page.pod));
                }
            }
        }
        Ok(if silent == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_control_planes_containers_have_a_page_each_and_its_proxies_none() {
        let pod = |containers| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": containers}}))
                .unwrap()
        };
        let stock = pod(json!([
            {"name": "linkerd-proxy", "ports": [{"name": "linkerd-admin", "containerPort": 4191}]},
            {"name": "destination", "ports": [{"name": "grpc", "containerPort": 8086}, {"name": "dest-admin", "containerPort": 9996}]},
            {"name": "policy", "ports": [{"name": "policy-admin", "containerPort": 9990}]},
        ]));
        assert_eq!(admin_ports(&stock), [("destination".to_owned(), 9996), ("policy".to_owned(), 9990)]);
        let stand_in = pod(json!([{"name": "controller"}]));
        assert_eq!(admin_ports(&stand_in), [("controller".to_owned(), 9990)]);
    }
}
