//! The first process of a container: builds the root directory, starts the program, then reaps.

use super::{
    launch::{Launch, LaunchFailed, Program},
    root,
};
use crate::channel::Channel;
use std::{
    io,
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Command, ExitCode, Stdio},
};
use weft_fault::{Code, Fault, Phase};
use weft_net::{
    namespace::{Enter, enter},
    process::{hold_signals, let_signals_through, serve_as_init},
};

/// Runs as process 1 of a container. Standard input is the agent's socket.
pub(crate) fn run() -> ExitCode {
    let channel = match io::stdin().as_fd().try_clone_to_owned() {
        Ok(fd) => Channel::from_fd(fd),
        Err(e) => return told("its socket", &e),
    };
    let launch: Launch = match channel.receive() {
        Ok(Some((launch, _))) => launch,
        Ok(None) => return ExitCode::FAILURE,
        Err(e) => return told("its orders", &e),
    };
    match start(launch) {
        Ok(main) => {
            // The program runs: the agent sees the socket close.
            drop(channel);
            close_stdin();
            match serve_as_init(main) {
                Ok(code) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(255)),
                Err(e) => told("its children", &e),
            }
        }
        Err((step, error)) => {
            let failed = LaunchFailed { step: step.to_string(), error };
            if let Err(e) = channel.send(&failed, &[]) {
                return told("the agent", &e);
            }
            ExitCode::FAILURE
        }
    }
}

fn told(what: &str, error: &io::Error) -> ExitCode {
    eprintln!("weft: a container's first process lost {what}: {error}");
    ExitCode::FAILURE
}

/// The socket is standard input too, and the agent waits for its last copy to close.
fn close_stdin() {
    if let Ok(null) = std::fs::File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
    }
}

/// Builds the root and starts the program; its process number. Does not return if the program is weft itself.
fn start(launch: Launch) -> Result<u32, (&'static str, String)> {
    let at = |step: &'static str| move |e: io::Error| (step, e.to_string());
    root::build(&launch).map_err(at("build the container's root directory"))?;
    // Before anything starts: a signal that finds process 1 without a handler is lost.
    let replaces_this = matches!(launch.program, Program::Weft(_));
    if !replaces_this {
        hold_signals().map_err(at("hold back signals"))?;
    }
    let (program, args) = match &launch.program {
        Program::Command(words) => match words.split_first() {
            Some((program, args)) => (program.as_str(), args),
            None => return Err(("start the program", "the command is empty".to_string())),
        },
        // Still this process's program while the new one is being loaded.
        Program::Weft(args) => ("/proc/self/exe", args.as_slice()),
    };
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(launch.env.iter().map(|(k, v)| (k, v)));
    command.stdin(Stdio::null()).current_dir(&launch.working_dir);
    if replaces_this {
        command.arg0("weft");
    } else {
        let_signals_through(&mut command);
    }
    let credentials = launch.user.credentials();
    let as_user = Enter { credentials: Some(&credentials), ..Enter::default() };
    let started = enter(as_user, || if replaces_this { Err(command.exec()) } else { command.spawn() });
    match started {
        Ok(child) => Ok(child.id()),
        Err(fault) => Err(("start the program", describe(&fault, program, &launch))),
    }
}

fn describe(fault: &Fault, program: &str, launch: &Launch) -> String {
    let cause = std::error::Error::source(fault).map_or_else(|| fault.to_string(), ToString::to_string);
    if launch.working_dir.is_dir() {
        return format!("{program}: {cause}");
    }
    format!("{program}: working directory {}: {cause}", launch.working_dir.display())
}

/// The fault that a [`LaunchFailed`] becomes at the agent.
pub(crate) fn launch_fault(failed: &LaunchFailed) -> Fault {
    Fault::new(Code::StartFailed)
        .in_phase(Phase::Start)
        .fact("step", &failed.step)
        .fact("error", &failed.error)
}
