//! The hidden subcommands: weft starts its own program again as supervisor, as the mesh's controller and node agent, as a
//! container's first process, and as the outside of a detached mesh.

use crate::{controller, doorway, node, runtime, supervisor, up};
use std::process::ExitCode;
use weft_fault::Fault;

/// The supervisor of a mesh.
pub(crate) const SUPERVISOR: &str = "__supervisor";
/// The mesh's controller.
pub(crate) const CONTROLLER: &str = "__controller";
/// The node agent.
pub(crate) const AGENT: &str = "__agent";
/// The process between the outside and a supervisor without root.
pub(crate) const DOORWAY: &str = "__doorway";
/// The first process of a container.
pub(crate) const CONTAINER: &str = "__container";
/// The outside of a mesh that was started with `--detach`.
pub(crate) const OUTSIDE: &str = "__outside";

/// Whether this process was started to be one of these: ask before anything else in `main`, to set up logging (standard
/// error of supervisor, controller and agent is a log file).
pub fn is_hidden() -> bool {
    let hidden = [SUPERVISOR, CONTROLLER, AGENT, DOORWAY, CONTAINER, OUTSIDE];
    std::env::args().nth(1).is_some_and(|role| hidden.contains(&role.as_str()))
}

/// Runs the hidden subcommand that this process was started for, if any; `main` returns the code then.
///
/// Call it first thing in `main`, before threads and the async runtime. `controller` is what the process of that name runs.
pub fn hidden(controller: controller::Controller) -> Option<ExitCode> {
    let result = match std::env::args().nth(1)?.as_str() {
        CONTAINER => return Some(runtime::init::run()),
        SUPERVISOR => supervisor::run(),
        CONTROLLER => controller::run(controller),
        AGENT => node::agent::run(),
        DOORWAY => doorway::run(),
        OUTSIDE => up::run_outside(),
        _ => return None,
    };
    Some(finish(&result))
}

fn finish(result: &Result<(), Fault>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("weft: {fault:?}");
            ExitCode::FAILURE
        }
    }
}
