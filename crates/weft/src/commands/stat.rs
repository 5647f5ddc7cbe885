//! `weft stat`: who talks to whom.

use crate::{mesh::Target, traffic};
use anyhow::Result;
use std::{io::Write as _, time::Duration};

/// How long one pod's proxy may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(crate) enum Output {
    #[default]
    Table,
    Json,
}

/// Show who talks to whom: requests per second, success, latencies, identities.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft stat                 all namespaces, measured over one second
  weft stat -n shop --window 10
  weft stat -o json | jq '.[] | select(.success < 1)'")]
pub(crate) struct Stat {
    #[command(flatten)]
    target: Target,
    /// Only calls from this namespace's pods; all namespaces without it.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Seconds to measure over.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=600))]
    window: u64,
    /// A table for people, or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Stat {
    pub(crate) async fn run(self) -> Result<()> {
        let client = self.target.client().await?;
        let namespace = self.namespace.as_deref();
        let before = traffic::scrape(&client, namespace, PATIENCE).await?;
        tokio::time::sleep(Duration::from_secs(self.window)).await;
        let now = traffic::scrape(&client, namespace, PATIENCE).await?;
        let edges = traffic::edges(&before, &now);
        if !now.refused.is_empty() {
            let refused = now.refused.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
            anstream::eprintln!(
                "weft: not read, since policies of their admin ports (4191) forbid it: {refused}"
            );
        }
        let silent: Vec<&str> = before.silent.union(&now.silent).map(String::as_str).collect();
        if !silent.is_empty() {
            anstream::eprintln!(
                "weft: not read, since their proxies (4191) did not answer within {} s: {}",
                PATIENCE.as_secs(),
                silent.join(" ")
            );
        }
        let mut out = anstream::stdout().lock();
        match self.output {
            Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&edges)?)?,
            Output::Table if edges.is_empty() => writeln!(out, "no traffic between meshed pods yet")?,
            Output::Table => write!(out, "{}", traffic::table(&edges))?,
        }
        Ok(())
    }
}
