//! `weft explain`: can one reach the other, and if not, why.

mod lines;

use crate::{
    commands::stat::Output,
    mesh::Target,
    select::{self, Name, Selected},
};
use anyhow::{Result, bail};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::util::intstr::IntOrString};
use kube::{Client, ResourceExt as _};
use std::{
    io::{IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
};
use weft_diagnose::{
    check::table,
    evidence::{Evidence, ServiceFacts},
    gather::{ControllerAddress, End, Question, gather},
    render, timeline,
    verdict::{Outcome, decide},
};
use weft_fault::Code;

/// Lines of the timeline, unless told otherwise.
const LINES: usize = 20;

/// Explain why one workload can or cannot reach another, or what a code or a check means.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft explain deploy/web svc/catalogue     the whole path, both ends, one verdict
  weft explain web store:5000 -n shop
  weft explain 10.77.0.4 10.77.0.9:8080
  weft explain POL-001                      what a code means and what to do
  kubectl logs web-1 -c linkerd-proxy | weft explain -
                                            from pasted log lines, weft's or Linkerd's, to the failure
  weft explain --logs export.json web.csv   the same of exported logs, also when the pods are gone

Exit codes: 0 it works or would work, 1 it does not, 2 the question could not be asked, 3 unknown.")]
pub(crate) struct Explain {
    #[command(flatten)]
    target: Target,
    /// Who calls, as [NAMESPACE/][KIND/]NAME or IP; or a fault code or a check's id alone; or - for log lines on standard input.
    #[arg(required_unless_present = "logs")]
    from: Option<String>,
    /// Who is called: [NAMESPACE/][KIND/]NAME[:PORT] or IP[:PORT].
    to: Option<String>,
    /// Explain what these logs tell of: text, JSON or CSV, as log systems export them.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "from")]
    logs: Vec<PathBuf>,
    /// Namespace of names without one; without it, wherever there is exactly one of that name.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Lines of the timeline, the newest.
    #[arg(long, default_value_t = LINES)]
    lines: usize,
    /// A table for people, or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Explain {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let Some(from) = self.from.as_deref().filter(|from| *from != "-") else {
            return self.explain_lines(&lines::text(&self.logs)?).await;
        };
        let Some(to) = &self.to else { return explain_code(from) };
        let client = self.target.client().await?;
        let evidence = evidence(&client, from, to, self.namespace.as_deref()).await?;
        let (verdict, lines) = (decide(&evidence), timeline::build(&evidence, self.lines));
        let mut out = anstream::stdout().lock();
        match self.output {
            Output::Table => {
                write!(out, "{}", render::text(&verdict, &lines, std::io::stdout().is_terminal()))?;
                for gap in &evidence.unanswered {
                    writeln!(out, "  (not asked: {gap})")?;
                }
            }
            Output::Json => {
                let whole = serde_json::json!({"verdict": verdict, "timeline": lines, "evidence": evidence});
                writeln!(out, "{}", serde_json::to_string_pretty(&whole)?)?;
            }
        }
        Ok(exit_code(verdict.outcome))
    }
}

fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Works | Outcome::WouldWork => ExitCode::SUCCESS,
        Outcome::Unknown => ExitCode::from(3),
        Outcome::Denied | Outcome::ApplicationDown | Outcome::NoEndpoints | Outcome::Failing => {
            ExitCode::from(1)
        }
    }
}

fn explain_code(from: &str) -> Result<ExitCode> {
    if let Some(check) = table::find(from) {
        let mut out = anstream::stdout().lock();
        writeln!(out, "{} ({})\n\n  {}\n\n  remedy   {}", check.id, check.says, check.means, check.remedy)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(code) = Code::find(from) else {
        bail!(
            "{from:?} is no fault code and no check; to explain a path, name both ends: weft explain FROM TO"
        );
    };
    let mut out = anstream::stdout().lock();
    writeln!(out, "{} {}\n", code.id(), code.name())?;
    writeln!(out, "  {}\n", code.says())?;
    writeln!(out, "  blame    {}", code.blame().as_str())?;
    writeln!(out, "  retry    {}", code.retry().as_str())?;
    writeln!(out, "  status   HTTP {}, gRPC {}", code.http(), code.grpc())?;
    writeln!(out, "  remedy   {}", code.remedy())?;
    Ok(ExitCode::SUCCESS)
}

/// Where the controller answers questions.
fn controller() -> ControllerAddress {
    ControllerAddress { namespace: "linkerd".into(), service: "linkerd-dst".into(), port: 9990 }
}

/// The path from one to the other as text, and what came out.
async fn explained(
    client: &Client,
    from: &str,
    to: &str,
    lines: usize,
    colour: bool,
) -> Result<(String, Outcome)> {
    let evidence = evidence(client, from, to, None).await?;
    let verdict = decide(&evidence);
    Ok((render::text(&verdict, &timeline::build(&evidence, lines), colour), verdict.outcome))
}

/// The path from one to the other, as `weft explain` prints it without colours.
pub(crate) async fn as_text(client: &Client, from: &str, to: &str) -> Result<String> {
    Ok(explained(client, from, to, LINES, false).await?.0)
}

/// What is known of the path from one to the other.
async fn evidence(client: &Client, from: &str, to: &str, namespace: Option<&str>) -> Result<Evidence> {
    let (from_name, to_name) = (Name::parse(from)?, Name::parse(to)?);
    let from = select::find(client, &from_name, namespace).await?;
    let to = select::find(client, &to_name, namespace.or(Some(&from.namespace))).await;
    let to = match to {
        Ok(to) => to,
        // Not beside the caller: perhaps there is one elsewhere.
        Err(error) if namespace.is_none() => select::find(client, &to_name, None).await.map_err(|_| error)?,
        Err(error) => return Err(error),
    };
    let (port, service_port) = ports(&to, to_name.port)?;
    let service = to.service.as_ref().map(|service| ServiceFacts {
        namespace: service.namespace().unwrap_or_default(),
        name: service.name_any(),
        cluster_ip: service
            .spec
            .as_ref()
            .and_then(|s| s.cluster_ip.as_deref())
            .and_then(|ip| ip.parse().ok()),
        port: service_port,
    });
    let end = |s: Selected| End { title: s.title, namespace: s.namespace, pods: s.pods };
    let question = Question {
        from: end(from),
        to: end(to),
        service,
        port,
        controller: controller(),
        trust_domain: "cluster.local".into(),
    };
    Ok(gather(client, question).await)
}

/// The port on the pods, and the service's if one was asked for. A service's port may stand for another, or a name.
fn ports(to: &Selected, asked: Option<u16>) -> Result<(u16, Option<u16>)> {
    if let Some(spec) = to.service.as_ref().and_then(|s| s.spec.as_ref()) {
        let ports = spec.ports.as_deref().unwrap_or_default();
        let number = |n: i32| u16::try_from(n).unwrap_or(0);
        let port = match asked {
            Some(asked) => ports.iter().find(|p| number(p.port) == asked),
            None if ports.len() == 1 => ports.first(),
            None => None,
        };
        let all = || ports.iter().map(|p| p.port.to_string()).collect::<Vec<_>>().join(", ");
        let Some(port) = port else {
            bail!("{} has the ports {}: say which, as in {}:PORT", to.title, all(), to.title)
        };
        let on_pod = match &port.target_port {
            Some(IntOrString::Int(n)) => number(*n),
            Some(IntOrString::String(name)) => to.pods.iter().find_map(|p| named_port(p, name)).unwrap_or(0),
            None => number(port.port),
        };
        return Ok((on_pod, Some(number(port.port))));
    }
    if let Some(asked) = asked {
        return Ok((asked, None));
    }
    let declared: Vec<u16> = to.pods.first().map(container_ports).unwrap_or_default();
    match declared[..] {
        [port] => Ok((port, None)),
        [] => bail!("{} declares no port: say which, as in {}:PORT", to.title, to.title),
        _ => bail!("{} declares the ports {declared:?}: say which, as in {}:PORT", to.title, to.title),
    }
}

/// The ports of the application's containers; the proxy's own are not meant.
fn container_ports(pod: &Pod) -> Vec<u16> {
    let containers = pod.spec.iter().flat_map(|s| &s.containers).filter(|c| c.name != "linkerd-proxy");
    containers
        .flat_map(|c| c.ports.iter().flatten())
        .filter_map(|p| u16::try_from(p.container_port).ok())
        .collect()
}

fn named_port(pod: &Pod, name: &str) -> Option<u16> {
    let ports = pod.spec.iter().flat_map(|s| &s.containers).flat_map(|c| c.ports.iter().flatten());
    ports.filter(|p| p.name.as_deref() == Some(name)).find_map(|p| u16::try_from(p.container_port).ok())
}
