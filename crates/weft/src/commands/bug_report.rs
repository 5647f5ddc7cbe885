//! `weft bug-report`: everything that helps somebody else to understand what is wrong, in one file, without secrets.

mod archive;
mod collect;
mod redact;

use crate::mesh::Target;
use anyhow::{Context as _, Result};
use archive::Archive;
use collect::Collector;
use redact::Redactor;
use std::{
    ffi::OsString,
    io::Write as _,
    path::PathBuf,
    process::{ExitCode, Stdio},
    time::Duration,
};
use tokio::{process::Command, time::Instant};

/// Collect what helps to understand a problem: objects, logs, metrics, what proxies hold; without secrets.
///
/// The archive holds the versions, the output of `weft check`, the control plane's objects, events, policies and meshed pods, the logs and metrics of the
/// control plane and of up to 30 proxies, the answers that these hold and their failed connections, and the controller's journal. Values of Secrets,
/// variables, arguments, other ConfigMaps and unknown annotations are left out, and what looks like a secret is removed from
/// every text. Look through it all the same before you send it away.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft bug-report
  weft bug-report -n shop -o report.tar.gz        proxies of one namespace only

Exit codes: 0 all was read, 1 the archive is there and says what could not be read, 2 there is no archive.")]
pub(crate) struct BugReport {
    #[command(flatten)]
    target: Target,
    /// The archive; without it, weft-bug-report-TIME.tar.gz in this folder.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only pods of this namespace, beside the control plane.
    #[arg(short, long)]
    namespace: Option<String>,
    /// How long it may take; what was not read by then is left out.
    #[arg(long, default_value = "3m", value_parser = crate::time::duration, value_name = "DURATION")]
    timeout: Duration,
}

impl BugReport {
    /// `commands`: those that this program has.
    pub(crate) async fn run(self, commands: &[String]) -> Result<ExitCode> {
        let deadline = Instant::now() + self.timeout;
        let client = self.target.client().await?;
        let folder = format!("weft-bug-report-{}", jiff::Zoned::now().strftime("%Y%m%d-%H%M%S"));
        let path = self.output.clone().unwrap_or_else(|| format!("{folder}.tar.gz").into());
        let mut redactor = Redactor::new().context("the patterns of secrets")?;
        for secret in self.target.secrets() {
            redactor.learn(&secret);
        }
        let archive = Archive::create(&path, folder)?;
        let mut collector =
            Collector::new(client, archive, redactor, deadline, &self.target.linkerd_namespace);
        // Objects first: they teach what must not stand in texts.
        collector.objects(self.namespace.as_deref()).await?;
        if commands.iter().any(|command| command == "check") {
            collector.output("check.json", self.check(deadline).await)?;
        }
        collector.control_plane().await?;
        collector.proxies().await?;
        for (name, text) in self.target.local_logs() {
            collector.text(&format!("local/{name}"), &text)?;
        }
        let missing = collector.finish()?;
        let mut out = anstream::stdout().lock();
        writeln!(out, "{}", path.display())?;
        for gap in &missing {
            anstream::eprintln!("not read: {gap}");
        }
        anstream::eprintln!(
            "Secrets were removed as far as they are known as such. Look through it before you send it away."
        );
        Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// What `weft check` says, by this program.
    async fn check(&self, deadline: Instant) -> Result<String> {
        let program = std::env::current_exe().context("this program")?;
        let mut command = Command::new(program);
        command.args(["check", "-o", "json", "--wait", "0s"]).args(self.target.arguments());
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output =
            tokio::time::timeout_at(deadline, command.output()).await.context("no answer in time")??;
        // What fails is what is wanted: only a silence is none.
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match text.trim().is_empty() {
            true => anyhow::bail!("{}", String::from_utf8_lossy(&output.stderr).trim()),
            false => Ok(text),
        }
    }
}

impl Target {
    /// The same target for another run of this program.
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["-L".into(), self.linkerd_namespace.clone().into()];
        let mut add = |flag: &str, value: OsString| arguments.extend([flag.into(), value]);
        add("--name", self.mesh.clone().into());
        if let Some(path) = &self.kubeconfig {
            add("--kubeconfig", path.clone().into());
        }
        if let Some(context) = &self.context {
            add("--context", context.clone().into());
        }
        if let Some(user) = &self.as_user {
            add("--as", user.clone().into());
        }
        for group in &self.as_groups {
            add("--as-group", group.clone().into());
        }
        arguments
    }
}
