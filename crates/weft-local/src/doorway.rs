//! The process between `weft up` and the supervisor where there is no root.
//!
//! A user namespace can only be entered by a process without other threads, and `weft up` has some; a process namespace only by
//! being born into it. So one process enters the first, and the supervisor is its child. It holds nothing and does nothing but
//! wait: when either of its neighbours ends, the other does.

use crate::{
    channel::{Channel, FromSupervisor, Refusal},
    entry,
};
use std::{
    io,
    os::fd::AsFd as _,
    process::{Command, ExitStatus},
};
use weft_fault::{Code, Fault, Phase};
use weft_net::{process::ends_with_this_thread, user_namespace::become_root_of_own};

/// Runs as that process, on its only thread. Standard input is the supervisor's life line.
pub(crate) fn run() -> Result<(), Fault> {
    let failed = |step| move |e: io::Error| failed(step, e);
    if let Err(refused) = become_root_of_own() {
        let line = io::stdin().as_fd().try_clone_to_owned().map_err(failed("take the life line"))?;
        let said = FromSupervisor::Refused(Refusal::new(refused.step, &refused.error));
        Channel::from_fd(line).send(&said, &[]).map_err(failed("write to the life line"))?;
        return Err(failed(refused.step)(refused.error));
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg(entry::SUPERVISOR);
    // This thread is the process: when it is killed, so is the mesh.
    let mut supervisor =
        ends_with_this_thread(&mut command).spawn().map_err(failed("start the supervisor"))?;
    // The life line is the supervisor's alone.
    std::fs::File::open("/dev/null")
        .and_then(|null| Ok(rustix::stdio::dup2_stdin(&null)?))
        .map_err(failed("close the life line"))?;
    let ended: ExitStatus = supervisor.wait().map_err(failed("wait for the supervisor"))?;
    if ended.success() {
        Ok(())
    } else {
        Err(Fault::new(Code::StartFailed)
            .in_phase(Phase::Start)
            .about("the supervisor")
            .fact("status", ended))
    }
}

fn failed(step: &'static str, error: io::Error) -> Fault {
    Fault::new(Code::StartFailed).in_phase(Phase::Start).fact("step", step).because(error)
}
