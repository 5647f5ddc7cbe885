//! `weft exec`: a command inside a running pod.

use crate::{
    commands::logs::first_container,
    mesh::Target,
    select::{self, Name},
};
use anyhow::{Context, Result, bail};
use futures_util::SinkExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{AttachParams, TerminalSize},
};
use rustix::termios::{self, OptionalActions, Termios};
use std::{io::IsTerminal as _, process::ExitCode};
use tokio::io::{AsyncWriteExt as _, copy};

/// Run a command inside a pod, in the namespaces of its container.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft exec deploy/web -- curl -si http://catalogue:8080/
  weft exec -it pod/web-5d9f -- sh

The exit code is the command's own.")]
pub(crate) struct Exec {
    #[command(flatten)]
    target: Target,
    /// Pod, deployment, job or service: [NAMESPACE/][KIND/]NAME; the first running pod of several.
    name: String,
    /// Namespace to look in; without it, wherever there is exactly one of that name.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Container; without it, the first that is not the proxy.
    #[arg(short, long)]
    container: Option<String>,
    /// Pass this terminal's input on.
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Give the command a terminal.
    #[arg(short, long)]
    tty: bool,
    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let client = self.target.client().await?;
        let selected = select::find(&client, &Name::parse(&self.name)?, self.namespace.as_deref()).await?;
        let running = |pod: &&Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
        let Some(pod) = selected.pods.iter().find(running).or(selected.pods.first()) else {
            bail!("{} has no pods", selected.title);
        };
        let tty = self.tty && std::io::stdin().is_terminal();
        let params = AttachParams::default()
            .container(self.container.clone().unwrap_or_else(|| first_container(pod)))
            .stdin(self.stdin)
            .stdout(true)
            .stderr(!tty)
            .tty(tty);
        let api: Api<Pod> = Api::namespaced(client, &selected.namespace);
        let mut process = api
            .exec(&pod.name_any(), &self.command, &params)
            .await
            .with_context(|| format!("starting {:?} in pod/{}", self.command[0], pod.name_any()))?;

        let _raw = if tty { Some(RawTerminal::enter()?) } else { None };
        if let Some(sizes) = process.terminal_size() {
            tokio::spawn(follow_size(sizes));
        }
        if let Some(mut input) = process.stdin() {
            // Ends with the process: the runtime does not wait for a read of the terminal.
            tokio::spawn(async move {
                let _ = copy(&mut tokio::io::stdin(), &mut input).await;
                let _ = input.shutdown().await;
            });
        }
        let (mut stdout, mut stderr) = (process.stdout(), process.stderr());
        let status = process.take_status();
        let out = async {
            if let Some(stdout) = &mut stdout {
                let mut to = tokio::io::stdout();
                copy(stdout, &mut to).await?;
                to.flush().await?;
            }
            anyhow::Ok(())
        };
        let err = async {
            if let Some(stderr) = &mut stderr {
                let mut to = tokio::io::stderr();
                copy(stderr, &mut to).await?;
                to.flush().await?;
            }
            anyhow::Ok(())
        };
        tokio::try_join!(out, err)?;
        let status = match status {
            Some(status) => status.await,
            None => None,
        };
        exit_code(status)
    }
}

/// The exit code stands in the status that closes the stream: Success, or a cause called `ExitCode`.
fn exit_code(status: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Status>) -> Result<ExitCode> {
    let Some(status) = status else { bail!("the connection ended before the command did") };
    if status.status.as_deref() == Some("Success") {
        return Ok(ExitCode::SUCCESS);
    }
    let causes = status.details.and_then(|d| d.causes).unwrap_or_default();
    let code =
        causes.iter().find(|c| c.reason.as_deref() == Some("ExitCode")).and_then(|c| c.message.as_deref());
    match code.and_then(|c| c.parse::<u8>().ok()) {
        Some(code) => Ok(ExitCode::from(code)),
        None => bail!("{}", status.message.unwrap_or_else(|| "the command could not be run".into())),
    }
}

/// The terminal passes each key on unread until this is dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> Result<Self> {
        let before = termios::tcgetattr(std::io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)?;
        Ok(RawTerminal(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

async fn follow_size(mut sizes: impl futures_util::Sink<TerminalSize> + Unpin) {
    let Ok(mut changes) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change())
    else {
        return;
    };
    loop {
        if let Ok(size) = termios::tcgetwinsize(std::io::stdin()) {
            let size = TerminalSize { height: size.ws_row, width: size.ws_col };
            if sizes.send(size).await.is_err() {
                return;
            }
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};

    #[test]
    fn the_exit_code_is_the_commands_own() {
        let failed = Status {
            status: Some("Failure".into()),
            details: Some(StatusDetails {
                causes: Some(vec![StatusCause {
                    reason: Some("ExitCode".into()),
                    message: Some("3".into()),
                    ..StatusCause::default()
                }]),
                ..StatusDetails::default()
            }),
            ..Status::default()
        };
        assert_eq!(format!("{:?}", exit_code(Some(failed)).unwrap()), format!("{:?}", ExitCode::from(3)));
        let fine = Status { status: Some("Success".into()), ..Status::default() };
        assert_eq!(format!("{:?}", exit_code(Some(fine)).unwrap()), format!("{:?}", ExitCode::SUCCESS));
        assert!(exit_code(None).is_err());
    }
}
