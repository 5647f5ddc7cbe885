//! `weft check`: is the mesh healthy, and if not, what is wrong?

mod extensions;

use crate::mesh::Target;
use anyhow::Result;
use kube::Client;
use std::{
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};
use weft_diagnose::check::{
    facts::{Asked, Facts},
    gather::{Progress, gather},
    report::{self, Form},
    run::{Results, run},
    table::Scope,
};

/// Between two attempts.
const AGAIN: Duration = Duration::from_secs(5);
/// Somebody who waits longer than this is told how far it is.
const TELL: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// Every check.
    #[default]
    Table,
    /// Only what is not good.
    Short,
    /// For programs, as Linkerd's.
    Json,
}

/// Check whether the mesh is healthy: control plane, proxies, certificates, policies, clocks.
///
/// Linkerd's checks under their names, and what proxies and the controller know besides. It changes nothing, and works on a mesh of
/// `weft up`, on a cluster with weft, and on one with Linkerd. docs/checks.md has each check with cause and remedy.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft check                          the control plane, and what every proxy says
  weft check --proxy -n shop          the data plane of one namespace besides
  weft check --pre                    may it be installed here?
  weft check -o short --wait 0s       only what is not good, as it is now
  weft explain weft-leaf-valid        what a check means, and what to do

Exit codes: 0 nothing is wrong (there may be warnings), 1 something is wrong or cannot be known.")]
pub(crate) struct CheckCommand {
    #[command(flatten)]
    target: Target,
    /// Before an installation: may it be done here?
    #[arg(long, conflicts_with_all = ["crds", "proxy"])]
    pre: bool,
    /// Only whether the definitions are there.
    #[arg(long, conflicts_with = "proxy")]
    crds: bool,
    /// The data plane besides.
    #[arg(long)]
    proxy: bool,
    /// Only proxies and policies of this namespace; all without it.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Check the CNI plugin, whatever the settings say.
    #[arg(long)]
    linkerd_cni_enabled: bool,
    /// Namespace of the CNI plugin.
    #[arg(long, default_value = "linkerd-cni", value_name = "NAME")]
    cni_namespace: String,
    /// The version that everything should have; what is newest is not looked up.
    #[arg(long, value_name = "VERSION")]
    expected_version: Option<String>,
    /// How long to ask again for what is wrong and may become good by itself.
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    wait: Duration,
    /// A table, only what is not good, or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// `0s`, `30s`, `5m`.
fn duration(text: &str) -> Result<Duration, String> {
    let span: jiff::SignedDuration =
        text.parse().map_err(|e| format!("{e}; expected a duration such as 30s or 5m"))?;
    Duration::try_from(span).map_err(|_| "a duration is not negative".to_owned())
}

impl CheckCommand {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let client = self.target.client().await.map_err(|error| format!("{error:#}"));
        let on_path = extensions::on_path();
        let until = Instant::now() + self.wait;
        let mut attempts = 0;
        let (facts, mut results) = loop {
            let facts = self.facts(&client, &on_path).await;
            let results = run(self.scope(), &facts);
            attempts += 1;
            // What is only a warning is given one more chance; what is wrong, as long as the user waits.
            let worth_it = results.may_change && (!results.success() || attempts == 1);
            if !worth_it || Instant::now() + AGAIN > until {
                break (facts, results);
            }
            anstream::eprintln!("weft: not all is good yet; asked again in {} s", AGAIN.as_secs());
            tokio::time::sleep(AGAIN).await;
        };
        if !results.stopped && !self.pre && !self.crds {
            results.sections.extend(self.of_extensions(&on_path, &facts).await);
        }
        self.show(&results)?;
        Ok(if results.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn scope(&self) -> Scope {
        match (self.pre, self.crds, self.proxy) {
            (true, ..) => Scope::Pre,
            (_, true, _) => Scope::Definitions,
            (.., true) => Scope::Proxies,
            (false, false, false) => Scope::ControlPlane,
        }
    }

    /// Asks everybody, and says on standard error how far it is if that takes long.
    async fn facts(&self, client: &Result<Client, String>, on_path: &extensions::OnPath) -> Facts {
        let asked = Asked {
            control_namespace: self.target.linkerd_namespace.clone(),
            cni_namespace: self.cni_namespace.clone(),
            namespace: self.namespace.clone(),
            cni_enabled: self.linkerd_cni_enabled,
            own_version: env!("CARGO_PKG_VERSION").to_owned(),
            expected_version: self.expected_version.clone(),
            commands: on_path.names(),
        };
        let progress = Progress::default();
        let tell = async {
            loop {
                tokio::time::sleep(TELL).await;
                let (asked, answered) = progress.so_far();
                anstream::eprintln!("weft: {answered} of {asked} questions are answered");
            }
        };
        tokio::select! {
            facts = gather(client.clone(), asked, self.scope(), &progress) => facts,
            () = tell => unreachable!("it tells until it is dropped"),
        }
    }

    async fn of_extensions(
        &self,
        on_path: &extensions::OnPath,
        facts: &Facts,
    ) -> Vec<weft_diagnose::check::run::Section> {
        let mut flags: Vec<String> = vec!["--output=json".into(), format!("--wait={}s", self.wait.as_secs())];
        if let Some(path) = self.target.kubeconfig_path() {
            flags.push(format!("--kubeconfig={}", path.display()));
        }
        flags.extend(self.target.context.as_ref().map(|context| format!("--context={context}")));
        flags.push(format!("--linkerd-namespace={}", self.target.linkerd_namespace));
        flags.extend(self.proxy.then(|| "--proxy".to_owned()));
        flags.extend(self.namespace.as_ref().map(|namespace| format!("--namespace={namespace}")));
        on_path.check(&facts.extensions(), &flags, self.wait).await
    }

    fn show(&self, results: &Results) -> Result<()> {
        // Colours are taken out where nobody sees them.
        let mut out = anstream::stdout().lock();
        match self.output {
            Output::Table => write!(out, "{}", report::text(results, Form::Table, true))?,
            Output::Short => write!(out, "{}", report::text(results, Form::Short, true))?,
            Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report::json(results))?)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert!(duration("-1s").is_err() && duration("soon").is_err());
    }
}
