//! `weft diagnostics policy`: what a pod's port accepts, or how traffic to a service goes, as the controller tells it.

use super::{Asked, profile::Output};
use crate::{
    message,
    select::{self, Kind, Name},
};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use linkerd2_proxy_api::outbound::{TrafficSpec, traffic_spec::Target as Traffic};
use serde_json::json;
use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
};

/// Show the policy of a pod's port, or of traffic to a service's.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft diagnostics policy -n shop po/store-6d5f 7000          whom the port lets in
  weft diagnostics policy -n shop svc/store 7000              routes, retries, backends of clients
  weft diagnostics policy -n shop svc/store 7000 --token shop:web-1 -o json

Exit codes: 0 every replica says the same, 1 they differ, 2 the question could not be asked.")]
pub(super) struct Policy {
    #[command(flatten)]
    asked: Asked,
    /// A pod or a service: [NAMESPACE/]po/NAME or svc/NAME.
    resource: String,
    /// The port.
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Namespace to look in; without it, wherever there is exactly one of that name.
    #[arg(short, long)]
    namespace: Option<String>,
    /// The workload that asks for a service's policy, NAMESPACE:POD: routes may hold for some namespaces only.
    #[arg(long, default_value = "default:diagnostics", value_name = "TOKEN")]
    token: String,
    /// YAML or JSON.
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Output,
}

impl Policy {
    pub(super) async fn run(self) -> Result<ExitCode> {
        let name = Name::parse(&self.resource)?;
        if name.ip.is_some() || !matches!(name.kind, Kind::Pod | Kind::Service) {
            bail!("{:?} is neither po/NAME nor svc/NAME", self.resource);
        }
        let (client, plane) = self.asked.plane().await?;
        let selected = select::find(&client, &name, self.namespace.as_deref()).await?;
        let mut answers = Vec::new();
        for replica in &plane.replicas {
            let answer = match &selected.service {
                Some(service) => {
                    let spec = spec(service, self.port, &self.token, &plane.cluster_domain);
                    message::json(&replica.outbound(&plane, spec).await?)
                }
                None => {
                    let pod = selected.pods.first().context("no such pod")?;
                    let workload = json!({"ns": selected.namespace, "pod": pod.name_any()}).to_string();
                    message::json(&replica.inbound(&plane, &workload, self.port).await?)
                }
            };
            answers.push((replica.title(), answer));
        }
        let same = self.output.print(&answers)?;
        Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Proxies ask by the address that was dialled; a Service without one is asked for by its name.
fn spec(service: &Service, port: u16, token: &str, cluster_domain: &str) -> TrafficSpec {
    let ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
    let target = match ip.and_then(|ip| ip.parse::<IpAddr>().ok()) {
        Some(ip) => Traffic::Addr(SocketAddr::new(ip, port).into()),
        None => {
            let (name, namespace) = (service.name_any(), service.namespace().unwrap_or_default());
            Traffic::Authority(format!("{name}.{namespace}.svc.{cluster_domain}:{port}"))
        }
    };
    TrafficSpec { source_workload: token.to_owned(), target: Some(target) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_asked_for_by_its_address_or_else_by_its_name() {
        let service = |ip: &str| -> Service {
            serde_json::from_value(json!({"metadata": {"name": "store", "namespace": "shop"},
                "spec": {"clusterIP": ip}}))
            .unwrap()
        };
        let asked = spec(&service("10.78.1.4"), 80, "default:diagnostics", "example");
        assert_eq!(asked.target, Some(Traffic::Addr(SocketAddr::from(([10, 78, 1, 4], 80)).into())));
        assert_eq!(asked.source_workload, "default:diagnostics");
        let asked = spec(&service("None"), 80, "", "example");
        assert_eq!(asked.target, Some(Traffic::Authority("store.shop.svc.example:80".into())));
    }
}
