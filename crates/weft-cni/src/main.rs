//! The CNI plugin (installed as `linkerd-cni`) that sets a pod's redirect before its first container starts, so that
//! no pod needs NET_ADMIN; its installer and its repair controller.

mod chain;
mod config;
mod decide;
mod error;
mod install;
mod plugin;
mod repair;

use clap::{Parser, Subcommand};
use std::{future::Future, process::ExitCode};
use tokio::signal::unix::{SignalKind, signal};
use weft_fault::{Code, Fault, Phase};

/// The CNI plugin of the mesh.
///
/// Called by a container runtime (CNI_COMMAND is set) it is the plugin; the commands are for its DaemonSet.
#[derive(Parser, Debug)]
#[command(name = "weft-cni", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Install(install::Install),
    Repair(repair::Repair),
}

fn main() -> ExitCode {
    if let Some(command) = std::env::var_os("CNI_COMMAND") {
        return plugin::run(&command.to_string_lossy());
    }
    let ended = match Cli::parse().command {
        Command::Install(install) => on_runtime(install.run()),
        Command::Repair(repair) => on_runtime(repair.run()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("{fault:?}\n→ {}", fault.code().remedy());
            ExitCode::from(2)
        }
    }
}

fn on_runtime(work: impl Future<Output = Result<(), Fault>>) -> Result<(), Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| unable("start a runtime", e))?.block_on(work)
}

/// This machine, or what is mounted of it, refuses a step.
fn unable(step: impl std::fmt::Display, error: std::io::Error) -> Fault {
    Fault::new(Code::HostUnable).in_phase(Phase::Start).fact("step", step).because(error)
}

/// Ends when the process is told to end.
async fn told_to_end() -> Result<(), Fault> {
    let on = |kind| signal(kind).map_err(|e| unable("listen to signals", e));
    let (mut terminate, mut interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
