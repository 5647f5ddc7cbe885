//! What else the images of a pod do: redirect its traffic, prove that it is redirected, wait for the proxy.
//!
//! The flags are those of Linkerd's programs, which manifests and the injector write.

mod flags;
mod init;
mod ready;
mod validate;

use flags::{Flag, Flags};
use std::process::ExitCode;
use weft_fault::Fault;

/// The arguments or the environment are unusable (EX_USAGE).
const EXIT_USAGE: u8 = 64;
/// The redirect is not there: what the repair controller of Linkerd's CNI plugin looks for.
const EXIT_NOT_REDIRECTED: u8 = 95;

/// A program, its flags, and what it does with them.
struct Program {
    names: &'static [&'static str],
    says: &'static str,
    flags: &'static [Flag],
    run: fn(&Flags) -> Result<(), Ended>,
}

/// Why a program did not do it.
struct Ended {
    code: u8,
    fault: Fault,
}

impl From<Fault> for Ended {
    fn from(fault: Fault) -> Ended {
        Ended { code: 1, fault }
    }
}

const PROGRAMS: [Program; 3] = [
    Program {
        names: &["proxy-init", "init"],
        says: "Redirects this network namespace's TCP traffic into the proxy; needs NET_ADMIN. Running it again replaces the rules.",
        flags: init::FLAGS,
        run: init::run,
    },
    Program {
        names: &["network-validator", "validate-network"],
        says: "Proves that outgoing connections are redirected; ends with status 95 if they are not.",
        flags: validate::FLAGS,
        run: validate::run,
    },
    Program {
        names: &["await"],
        says: "Waits until the proxy beside it is ready.",
        flags: ready::FLAGS,
        run: ready::run,
    },
];

/// Does what `args` say: the name of a program and its flags. `None`: no program has this name.
#[must_use]
pub fn run(args: &[String]) -> Option<ExitCode> {
    let (name, rest) = args.split_first()?;
    let program = PROGRAMS.iter().find(|program| program.names.contains(&name.as_str()))?;
    if rest.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("{}", flags::help(program));
        return Some(ExitCode::SUCCESS);
    }
    let flags = match Flags::parse(program.flags, rest) {
        Ok(flags) => flags,
        Err(fault) => {
            eprintln!("{fault:?}\n{}", flags::help(program));
            return Some(ExitCode::from(EXIT_USAGE));
        }
    };
    Some(match (program.run)(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Ended { code, fault }) => {
            eprintln!("{fault:?}\n→ {}", fault.code().remedy());
            ExitCode::from(code)
        }
    })
}

/// The names of all programs.
pub fn names() -> impl Iterator<Item = &'static str> {
    PROGRAMS.iter().flat_map(|program| program.names).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        format!("{:?}", run(&args))
    }

    #[test]
    fn programs_are_found_by_name_and_wrong_flags_are_usage() {
        assert_eq!(status(&["unknown"]), "None");
        assert_eq!(status(&[]), "None");
        let success = format!("{:?}", Some(ExitCode::SUCCESS));
        let usage = format!("{:?}", Some(ExitCode::from(EXIT_USAGE)));
        for name in names() {
            assert_eq!(status(&[name, "--help"]), success, "{name}");
            assert_eq!(status(&[name, "--no-such-flag"]), usage, "{name}");
        }
        assert_eq!(status(&["proxy-init", "--incoming-proxy-port", "x"]), usage);
    }
}
