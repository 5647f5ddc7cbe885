//! Threads whose end is the process's end.
//!
//! A task of a connection may break: the connection is lost, and nothing else. The agent is another matter. Without one of its tasks
//! (discovery, certificates, the admin server) the process would look alive and serve less and less; one that is gone is
//! started again by whoever runs it.

use std::{panic, process, thread};
use weft_fault::Code;

/// `EX_SOFTWARE`.
pub(crate) const EXIT_BUG: i32 = 70;

/// From now on a panic on this thread ends the process, whichever task it is of.
pub(crate) fn this_thread() {
    let vital = thread::current().id();
    let told = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        told(panicked);
        // The log may be written by a thread that gets no time any more: the lines above went to standard error.
        tracing::error!(code = Code::Invariant.id(), "{panicked}");
        if thread::current().id() == vital {
            process::exit(EXIT_BUG);
        }
    }));
}

/// A task of another thread that must not end has ended.
pub(crate) fn ended(what: &str, why: &dyn std::fmt::Display) -> ! {
    eprintln!("{} {what} ended: {why}", Code::Invariant.id());
    process::exit(EXIT_BUG);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        env,
        process::{Command, Stdio},
    };

    const CHILD: &str = "WEFT_TEST_VITAL";

    /// The hook is the process's, so each case is a process of its own: this test, called again.
    #[test]
    fn a_panic_ends_the_process_on_the_agents_thread_only() {
        let Ok(which) = env::var(CHILD) else {
            let exit = |which: &str| {
                let mut child = Command::new(env::current_exe().unwrap());
                child.args(["vital::tests::a_panic_ends_the_process_on_the_agents_thread_only", "--exact"]);
                let status = child.env(CHILD, which).stdout(Stdio::null()).stderr(Stdio::null()).status();
                status.unwrap().code()
            };
            assert_eq!(exit("agent"), Some(EXIT_BUG));
            assert_eq!(exit("worker"), Some(0));
            return;
        };
        this_thread();
        match which.as_str() {
            "agent" => tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
                drop(tokio::spawn(async { panic!("a task of the agent") }).await);
            }),
            _ => drop(thread::spawn(|| panic!("a task of a connection")).join()),
        }
    }
}
