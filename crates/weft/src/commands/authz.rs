//! `weft authz`: which authorizations are in force for a workload, whom each lets in, and where they contradict each other.

mod conflicts;
mod rows;

use crate::{
    cluster,
    commands::stat::Output,
    mesh::Target,
    reach,
    replicas::ControlPlane,
    select::{self, Name, Selected},
};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use owo_colors::OwoColorize as _;
use rows::PortPolicy;
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::ExitCode,
};
use weft_kube::policy::server::Server;

/// Show the authorizations in force for a workload's ports, and whom they let in.
///
/// The controller is asked what it tells the workload's proxies, so that what is shown is what they decide by. A port is asked about if a
/// container declares it or a Server names it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft authz -n shop deploy/store
  weft authz -n shop po/store-6d5f -o json

Exit codes: 0 shown, 1 something contradicts itself or is not in force (it is listed), 2 the question could not be asked.")]
pub(crate) struct Authz {
    #[command(flatten)]
    target: Target,
    /// Pod, deployment, job or service: [NAMESPACE/][KIND/]NAME.
    resource: String,
    /// Namespace to look in; without it, wherever there is exactly one of that name.
    #[arg(short, long)]
    namespace: Option<String>,
    /// A table for people, or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Authz {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let client = self.target.client().await?;
        let name = Name::parse(&self.resource)?;
        let selected = select::find(&client, &name, self.namespace.as_deref()).await?;
        let kinds = kinds(&selected)?;
        let plane = ControlPlane::find(&client, &self.target.linkerd_namespace, None).await?;
        let replica = plane.replicas.first().context("no replica")?;
        let servers = servers(&client, &selected.namespace).await?;
        let mut policies = Vec::new();
        for pod in &kinds {
            let workload = json!({"ns": selected.namespace, "pod": pod.name_any()}).to_string();
            for (port, names) in ports(pod, &servers) {
                let message = replica.inbound(&plane, &workload, port).await?;
                let policy = weft_wire::inbound::from_api(message).map_err(weft_fault::Fault::from)?;
                let found = PortPolicy { port, policy, servers: names };
                if !policies.contains(&found) {
                    policies.push(found);
                }
            }
        }
        policies.sort_by_key(|found| found.port);
        let objects = policy_objects(&client, &selected.namespace).await?;
        let mut problems: BTreeSet<String> = policies.iter().flat_map(conflicts::of).collect();
        problems.extend(conflicts::not_in_force(&policies, &objects, &selected.namespace));
        let mut out = anstream::stdout().lock();
        match self.output {
            Output::Json => {
                let rows: Vec<_> = policies.iter().flat_map(rows::of).map(|row| row.json()).collect();
                let whole = json!({"authorizations": rows, "problems": problems});
                writeln!(out, "{}", serde_json::to_string_pretty(&whole)?)?;
            }
            Output::Table if policies.is_empty() => {
                writeln!(out, "{} has no port that is known", selected.title)?
            }
            Output::Table => write!(out, "{}", rows::table(&policies))?,
        }
        if matches!(self.output, Output::Table) {
            for problem in &problems {
                writeln!(out, "{} {problem}", "‼".yellow())?;
            }
        }
        Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// One pod of each kind among those of the workload: replicas that are alike are asked about once.
fn kinds(selected: &Selected) -> Result<Vec<Pod>> {
    let mut kinds = BTreeMap::new();
    for pod in selected.pods.iter().filter(|pod| reach::is_running(pod) && reach::is_meshed(pod)) {
        let ports: Vec<u16> = declared(pod).into_keys().collect();
        kinds.entry(format!("{:?} {ports:?}", pod.labels())).or_insert_with(|| pod.clone());
    }
    if kinds.is_empty() {
        bail!("{} has no running pod with a proxy: nothing is enforced there", selected.title);
    }
    Ok(kinds.into_values().collect())
}

/// Ports that containers declare, with their names.
fn declared(pod: &Pod) -> BTreeMap<u16, Option<String>> {
    let containers = pod.spec.iter().flat_map(|spec| {
        let native = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.is_some());
        spec.containers.iter().chain(native)
    });
    let ports = containers.filter(|c| c.name != reach::PROXY).flat_map(|c| c.ports.iter().flatten());
    ports.filter_map(|port| Some((u16::try_from(port.container_port).ok()?, port.name.clone()))).collect()
}

/// The ports to ask about, each with the Servers that select it, the oldest first.
fn ports(pod: &Pod, servers: &[Server]) -> BTreeMap<u16, Vec<String>> {
    let declared = declared(pod);
    let mut ports: BTreeMap<u16, Vec<String>> = declared.keys().map(|port| (*port, Vec::new())).collect();
    for server in servers.iter().filter(|server| server.selects_pod(pod.labels())) {
        let number = rows::number(&server.spec.port, |name| {
            let mut named = declared.iter().filter(|(_, own)| own.as_deref() == Some(name));
            named.next().map(|(port, _)| *port)
        });
        if let Some(number) = number {
            ports.entry(number).or_default().push(server.metadata.name.to_string());
        }
    }
    ports
}

async fn servers(client: &Client, namespace: &str) -> Result<Vec<Server>> {
    let path = format!("/apis/policy.linkerd.io/v1beta3/namespaces/{namespace}/servers");
    let mut objects = cluster::list(client, &path, None).await?;
    objects.sort_by_key(|server| {
        let text = |at: &serde_json::Value| at.as_str().unwrap_or_default().to_owned();
        (text(&server["metadata"]["creationTimestamp"]), text(&server["metadata"]["name"]))
    });
    // One that this version cannot read decides about its ports all the same: the controller says how.
    Ok(objects.into_iter().filter_map(|server| serde_json::from_value(server).ok()).collect())
}

/// AuthorizationPolicies and ServerAuthorizations of a namespace, as they are.
async fn policy_objects(client: &Client, namespace: &str) -> Result<Vec<serde_json::Value>> {
    let mut objects = Vec::new();
    for (version, plural) in [("v1alpha1", "authorizationpolicies"), ("v1beta1", "serverauthorizations")] {
        let path = format!("/apis/policy.linkerd.io/{version}/namespaces/{namespace}/{plural}");
        objects.extend(cluster::list(client, &path, None).await?);
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, app: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"app": app, "linkerd.io/control-plane-ns": "linkerd"}},
            "spec": {"containers": [
                {"name": "app", "ports": [{"containerPort": 80, "name": "http"}]},
                {"name": "linkerd-proxy", "ports": [{"containerPort": 4143}]}]},
            "status": {"phase": "Running"}}))
        .unwrap()
    }

    #[test]
    fn replicas_that_are_alike_are_one_kind() {
        let pods = vec![pod("a", "web"), pod("b", "web"), pod("c", "db")];
        let selected = Selected { title: "svc/x".into(), namespace: "shop".into(), pods, service: None };
        assert_eq!(kinds(&selected).unwrap().len(), 2);
        assert!(kinds(&Selected { pods: Vec::new(), ..selected }).is_err());
    }

    #[test]
    fn ports_are_those_declared_and_those_that_servers_name() {
        let server = |name: &str, app: &str, port: serde_json::Value| -> Server {
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "shop"},
                "spec": {"podSelector": {"matchLabels": {"app": app}}, "port": port}}))
            .unwrap()
        };
        let servers = [
            server("named", "web", json!("http")),
            server("again", "web", json!(80)),
            server("undeclared", "web", json!(7000)),
            server("no-such-port", "web", json!("grpc")),
            server("other", "db", json!(80)),
        ];
        let found = ports(&pod("a", "web"), &servers);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [(80, vec!["named".to_owned(), "again".to_owned()]), (7000, vec!["undeclared".to_owned()]),]
        );
    }
}
