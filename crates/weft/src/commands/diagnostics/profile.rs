//! `weft diagnostics profile`: the profile of a name or an address, as the controller tells it to proxies.

use super::{Asked, authority};
use crate::message;
use anyhow::Result;
use serde_json::Value;
use std::{io::Write as _, process::ExitCode};
use weft_control::install::yaml;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Output {
    Yaml,
    #[default]
    Json,
}

impl Output {
    /// Prints one answer of each replica; only one if all are the same. Says whether they are.
    pub(super) fn print(self, answers: &[(String, Value)]) -> Result<bool> {
        let same = answers.windows(2).all(|pair| pair[0].1 == pair[1].1);
        let shown = match (same, answers) {
            (true, [(_, answer), ..]) => answer.clone(),
            _ => answers.iter().map(|(replica, answer)| (replica.clone(), answer.clone())).collect(),
        };
        let mut out = anstream::stdout().lock();
        match self {
            Output::Yaml => write!(out, "{}", yaml::to_string(&shown))?,
            Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&shown)?)?,
        }
        if !same {
            anstream::eprintln!(
                "weft: the replicas of the controller differ; each one's answer stands by its name"
            );
        }
        Ok(same)
    }
}

/// Show what proxies are told of a name or an address: routes, retries, whether it is opaque, and for a pod its identity.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft diagnostics profile store.shop:7000
  weft diagnostics profile 10.77.0.5:8080                 of a pod: its identity is in endpoint.tls_identity
  weft diagnostics profile 10.77.0.5:8080 -o yaml

Exit codes: 0 every replica says the same, 1 they differ, 2 the question could not be asked.")]
pub(super) struct Profile {
    #[command(flatten)]
    asked: Asked,
    /// A name and port, NAME.NAMESPACE[.svc.DOMAIN][:PORT], or an address, IP:PORT.
    #[arg(value_name = "AUTHORITY")]
    authority: String,
    /// Context token to ask with, as a proxy of a certain namespace and node would.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TOKEN")]
    token: String,
    /// JSON or YAML.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Profile {
    pub(super) async fn run(self) -> Result<ExitCode> {
        let (_, plane) = self.asked.plane().await?;
        let authority = authority(&self.authority, &plane.cluster_domain);
        let mut answers = Vec::new();
        for replica in &plane.replicas {
            let profile = replica.profile(&plane, &authority, &self.token).await?;
            answers.push((replica.title(), message::json(&profile)));
        }
        let same = self.output.print(&answers)?;
        Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn replicas_are_told_apart_only_where_they_differ() {
        let answer = |value: Value| ("linkerd/a".to_owned(), value);
        assert!(Output::Json.print(&[answer(json!(1)), answer(json!(1))]).unwrap());
        assert!(!Output::Yaml.print(&[answer(json!(1)), answer(json!(2))]).unwrap());
    }
}
