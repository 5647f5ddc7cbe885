//! `weft logs`: what a pod's containers print.

use crate::{
    mesh::Target,
    select::{self, Name, Selected},
};
use anyhow::{Result, bail};
use futures_util::{AsyncBufReadExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::LogParams};
use std::io::Write as _;

/// Print what a pod's containers wrote.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft logs deploy/web              the first container of each of web's pods
  weft logs -f web -c linkerd-proxy the proxy's log, as it grows
  weft logs pod/web-5d9f -p         the run before the last restart")]
pub(crate) struct Logs {
    #[command(flatten)]
    target: Target,
    /// Pod, deployment, job or service: [NAMESPACE/][KIND/]NAME.
    name: String,
    /// Namespace to look in; without it, wherever there is exactly one of that name.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Container; without it, the first that is not the proxy.
    #[arg(short, long)]
    container: Option<String>,
    /// Go on printing as more is written.
    #[arg(short, long)]
    follow: bool,
    /// Print the log of the run before the last restart.
    #[arg(short, long)]
    previous: bool,
    /// Lines from the end.
    #[arg(long, value_name = "N")]
    tail: Option<i64>,
    /// Seconds back from now.
    #[arg(long, value_name = "SECONDS")]
    since: Option<i64>,
    /// Put each line's time before it.
    #[arg(long)]
    timestamps: bool,
}

impl Logs {
    pub(crate) async fn run(self) -> Result<()> {
        let client = self.target.client().await?;
        let selected = select::find(&client, &Name::parse(&self.name)?, self.namespace.as_deref()).await?;
        let Selected { title, pods, .. } = &selected;
        if pods.is_empty() {
            bail!("{title} has no pods");
        }
        let prefix = pods.len() > 1;
        let streams = pods.iter().map(|pod| self.print(&client, pod, prefix));
        futures_util::future::try_join_all(streams).await?;
        Ok(())
    }

    async fn print(&self, client: &Client, pod: &Pod, prefix: bool) -> Result<()> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let params = LogParams {
            container: Some(self.container.clone().unwrap_or_else(|| first_container(pod))),
            follow: self.follow,
            previous: self.previous,
            tail_lines: self.tail,
            since_seconds: self.since,
            timestamps: self.timestamps,
            ..LogParams::default()
        };
        let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let mut lines = api.log_stream(&name, &params).await?.lines();
        while let Some(line) = lines.try_next().await? {
            let mut out = anstream::stdout().lock();
            if prefix {
                write!(out, "[{name}] ")?;
            }
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

/// kubectl's choice: the annotation, else the first container that is not a proxy.
pub(crate) fn first_container(pod: &Pod) -> String {
    if let Some(name) = pod.annotations().get("kubectl.kubernetes.io/default-container") {
        return name.clone();
    }
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    let mut names = containers.map(|c| c.name.clone());
    names.find(|name| name != "linkerd-proxy").unwrap_or_else(|| "linkerd-proxy".into())
}
