//! The weft command: one file per subcommand, thin.

mod apply;
mod borrowed;
mod cluster;
mod columns;
mod commands;
mod controller;
mod files;
mod live;
mod log;
mod manifest;
mod mesh;
mod message;
mod reach;
mod ready;
mod replicas;
mod screen;
mod select;
mod time;
mod traffic;
mod values;

use anyhow::Result;
use clap::CommandFactory as _;
use clap::{Parser, Subcommand};
use commands::{
    authz::Authz,
    bug_report::BugReport,
    check::CheckCommand,
    completion::Completion,
    controller::Controller,
    diagnostics::DiagnosticsCommand,
    down::Down,
    exec::Exec,
    explain::Explain,
    external,
    external_workload::ExternalWorkloadCommand,
    identity::IdentityCommand,
    inject::{Inject, Uninject},
    install::Install,
    install_cni::InstallCni,
    log_level::LogLevel,
    logs::Logs,
    pod_program::PodProgram,
    profile::Profile,
    prune::Prune,
    stat::Stat,
    uninstall::Uninstall,
    up::Up,
    upgrade::Upgrade,
    version::Version,
};
use owo_colors::OwoColorize as _;
use std::{ffi::OsString, future::Future, io, process::ExitCode};
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
    Check(CheckCommand),
    #[command(visible_alias = "dg")]
    Diagnostics(DiagnosticsCommand),
    Authz(Authz),
    LogLevel(LogLevel),
    BugReport(BugReport),
    Profile(Profile),
    Identity(IdentityCommand),
    ExternalWorkload(ExternalWorkloadCommand),
    Install(Install),
    InstallCni(InstallCni),
    Upgrade(Upgrade),
    Uninstall(Uninstall),
    Prune(Prune),
    Inject(Inject),
    Uninject(Uninject),
    Version(Version),
    Completion(Completion),
    Controller(Controller),
    /// Run the proxy, configured by LINKERD2_PROXY_* variables
    #[command(
        after_help = "Runs beside the application in an injected pod; `weft-proxy` is the same program alone.

Example:
  LINKERD2_PROXY_LOG=debug weft proxy          the other variables are in docs/config.md"
    )]
    Proxy,
    /// Redirect this network namespace's TCP traffic into the proxy (needs NET_ADMIN)
    #[command(
        after_help = "The first init container of an injected pod. Running it again replaces the rules.

Example:
  weft proxy-init --inbound-ports-to-ignore 4190,4191 --outbound-ports-to-ignore 443,8000-8099"
    )]
    ProxyInit(PodProgram),
    /// Prove that outgoing connections are redirected, where a CNI plugin does that
    #[command(after_help = "Example:
  weft network-validator --timeout 10s         ends with status 95 if they are not")]
    NetworkValidator(PodProgram),
    /// Wait until the proxy beside it is ready
    #[command(after_help = "Example:
  weft await --port 4191 --timeout 2m")]
    Await(PodProgram),
    /// The programs of examples/shop, to try a mesh with
    #[command(subcommand)]
    Sample(weft_sample::SampleCommand),
    #[command(external_subcommand)]
    External(Vec<OsString>),
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
        Command::Check(check) => on_runtime(check.run()),
        Command::Authz(authz) => on_runtime(authz.run()),
        Command::BugReport(report) => on_runtime(async { report.run(&commands()).await }),
        Command::Profile(profile) => profile.run(),
        Command::LogLevel(level) => on_runtime(level.run()),
        Command::Diagnostics(diagnostics) => on_runtime(diagnostics.run()),
        Command::Identity(identity) => on_runtime(identity.run()),
        Command::ExternalWorkload(external) => on_runtime(external.run()),
        Command::Install(install) => on_runtime(install.run()),
        Command::InstallCni(install) => install.run(),
        Command::Upgrade(upgrade) => on_runtime(upgrade.run()),
        Command::Uninstall(uninstall) => on_runtime(uninstall.run()),
        Command::Prune(prune) => on_runtime(prune.run()),
        Command::Inject(inject) => on_runtime(inject.run()),
        Command::Uninject(uninject) => on_runtime(uninject.run()),
        Command::Version(version) => on_runtime(async { version.run().await.map(|()| ExitCode::SUCCESS) }),
        Command::Completion(completion) => completion.run().map(|()| ExitCode::SUCCESS),
        Command::Controller(controller) => on_runtime(controller.run()),
        Command::External(args) => external::run(&args, &commands()),
        Command::ProxyInit(program) => program.run("proxy-init"),
        Command::NetworkValidator(program) => program.run("network-validator"),
        Command::Await(program) => program.run("await"),
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

/// The names of all commands.
fn commands() -> Vec<String> {
    Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_an_example_and_every_flag_says_what_it_does() {
        let cli = Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands().filter(|c| c.get_name() != "sample") {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name}");
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Example"), "{name} shows no example");
            for flag in command.get_arguments() {
                assert!(flag.get_help().is_some(), "{name}: {}", flag.get_id());
            }
        }
    }
}
