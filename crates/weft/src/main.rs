//! The weft command: one file per subcommand, thin.

mod apply;
mod commands;
mod controller;
mod log;
mod manifest;
mod mesh;
mod prom;
mod ready;
mod screen;
mod select;
mod traffic;

use anyhow::Result;
use clap::{Parser, Subcommand};
use commands::{
    down::Down, exec::Exec, explain::Explain, identity::IdentityCommand, logs::Logs, proxy_init::ProxyInit,
    stat::Stat, up::Up,
};
use owo_colors::OwoColorize as _;
use std::{future::Future, io, process::ExitCode};
use weft_fault::Fault;

/// A service mesh that explains its failures.
///
/// `weft up DIR` runs Kubernetes manifests as a meshed cluster on this machine; `weft explain FROM TO` says whether one
/// workload reaches another, and if not, why.
#[derive(Parser, Debug)]
#[command(name = "weft", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Up(Up),
    Down(Down),
    Logs(Logs),
    Exec(Exec),
    Stat(Stat),
    Explain(Explain),
    Identity(IdentityCommand),
    /// Run the proxy, configured by LINKERD2_PROXY_* variables
    #[command(
        after_help = "Runs beside the application in an injected pod; `weft-proxy` is the same program alone."
    )]
    Proxy,
    ProxyInit(ProxyInit),
    /// The programs of examples/shop, to try a mesh with
    #[command(subcommand)]
    Sample(weft_sample::SampleCommand),
}

fn main() -> ExitCode {
    // The supervisor and the containers' first processes are this program, started again: they come before anything that
    // could start a thread. Their standard error is a log.
    if weft_local::entry::is_hidden() {
        log::to_stderr("warn,weft=info");
    }
    if let Some(code) = weft_local::entry::hidden(Box::new(|seat| Box::pin(controller::serve(seat)))) {
        return code;
    }
    let ended = match Cli::parse().command {
        Command::Up(up) => up.run(),
        Command::Down(down) => down.run().map(|()| ExitCode::SUCCESS),
        Command::Proxy => Ok(weft_proxy::runtime::main()),
        Command::Logs(logs) => on_runtime(async { logs.run().await.map(|()| ExitCode::SUCCESS) }),
        Command::Exec(exec) => on_runtime(exec.run()),
        Command::Stat(stat) => on_runtime(async { stat.run().await.map(|()| ExitCode::SUCCESS) }),
        Command::Explain(explain) => on_runtime(explain.run()),
        Command::Identity(identity) => on_runtime(identity.run()),
        Command::ProxyInit(init) => init.run().map(|()| ExitCode::SUCCESS),
        Command::Sample(sample) => {
            on_runtime(async { Ok(weft_sample::run(sample).await.map(|()| ExitCode::SUCCESS)?) })
        }
    };
    ended.unwrap_or_else(|error| {
        // A pipe that closes early (`weft logs | head`) is an end like another.
        if error
            .chain()
            .any(|e| e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
        {
            return ExitCode::SUCCESS;
        }
        report(&error);
        // 2: the question could not be asked, as opposed to 1: the answer is no.
        ExitCode::from(2)
    })
}

/// Runs a command that talks to peers. Its threads end with it, even where one still reads the terminal.
fn on_runtime(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(work);
    runtime.shutdown_background();
    ended
}

/// What went wrong, what caused it and what to do, for people.
fn report(error: &anyhow::Error) {
    let mut chain = error.chain();
    // An answer of the API is a sentence; the library would print it within the type's insides.
    let sentence = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<kube::Error>().map_or_else(|| cause.to_string(), apply::api_message)
    };
    if let Some(error) = chain.next() {
        anstream::eprintln!("{} {}", "weft:".red().bold(), sentence(error));
        if matches!(error.downcast_ref(), Some(kube::Error::Api(_))) {
            return;
        }
    }
    for cause in chain {
        anstream::eprintln!("  because {}", sentence(cause));
        if matches!(cause.downcast_ref(), Some(kube::Error::Api(_))) {
            return;
        }
    }
    if let Some(fault) = error.chain().find_map(|e| e.downcast_ref::<Fault>()) {
        anstream::eprintln!("  → {}", fault.code().remedy());
    }
}
