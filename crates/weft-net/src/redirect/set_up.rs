//! Choosing a back end: netlink where the kernel has nf_tables, else what programs there are.

use super::{
    Redirect,
    iptables::{self, Programs},
    nft,
};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketType},
};
use std::{ffi::OsStr, fmt, fs, path::PathBuf, str::FromStr};
use weft_fault::{Code, Fault, Phase};

/// Which variant of iptables to try first; the others follow. linkerd-init's `--iptables-mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// nf_tables: over netlink, then by `iptables-nft`.
    #[default]
    Nft,
    /// Whatever `iptables` is.
    Plain,
    /// `iptables-legacy`, for kernels without nf_tables.
    Legacy,
}

/// Text that is no [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMode(String);

impl fmt::Display for BadMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is none of nft, plain and legacy", self.0)
    }
}

impl std::error::Error for BadMode {}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Nft => "nft",
            Mode::Plain => "plain",
            Mode::Legacy => "legacy",
        })
    }
}

impl FromStr for Mode {
    type Err = BadMode;
    fn from_str(text: &str) -> Result<Self, BadMode> {
        match text {
            "nft" => Ok(Mode::Nft),
            "plain" => Ok(Mode::Plain),
            "legacy" => Ok(Mode::Legacy),
            _ => Err(BadMode(text.to_owned())),
        }
    }
}

/// One way to set the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    Netlink,
    Programs(Programs),
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Netlink => f.write_str("nf_tables over netlink"),
            Backend::Programs(programs) => programs.fmt(f),
        }
    }
}

/// The back ends to try, in order. A program that is named is the only one.
pub fn backends(mode: Mode, program: Option<PathBuf>, path: &OsStr) -> Result<Vec<Backend>, Fault> {
    if let Some(program) = program {
        let bad = || Fault::new(Code::BadFlag).in_phase(Phase::Start).about("--firewall-bin-path");
        let programs = Programs::beside(&program).ok_or_else(|| {
            bad().fact("value", program.display()).fact("expected", "a path that ends in `iptables…`")
        })?;
        return Ok(vec![Backend::Programs(programs)]);
    }
    let order: [Option<&str>; 4] = match mode {
        Mode::Nft => [None, Some("iptables-nft"), Some("iptables"), Some("iptables-legacy")],
        Mode::Plain => [Some("iptables"), None, Some("iptables-nft"), Some("iptables-legacy")],
        Mode::Legacy => [Some("iptables-legacy"), Some("iptables"), None, Some("iptables-nft")],
    };
    let backend = |name: Option<&str>| match name {
        None => Some(Backend::Netlink),
        Some(name) => Programs::find(name, path).map(Backend::Programs),
    };
    Ok(order.into_iter().filter_map(backend).collect())
}

/// What was done.
#[derive(Debug)]
pub struct Done {
    pub backend: Backend,
    /// What was tried before, and why it did not do.
    pub passed_over: Vec<Fault>,
}

/// Sets the rules in the calling thread's network namespace, by the first back end that can.
pub fn set_up(redirect: &Redirect, backends: &[Backend]) -> Result<Done, Fault> {
    let redirect = &possible(redirect, has_ipv6());
    let mut passed_over: Vec<Fault> = Vec::new();
    for backend in backends {
        match by(redirect, backend, backends) {
            Ok(()) => return Ok(Done { backend: backend.clone(), passed_over }),
            // Another back end would need the same permission.
            Err(fault) if fault.code() == Code::RedirectForbidden => return Err(fault),
            Err(fault) => passed_over.push(fault),
        }
    }
    let tried = backends.iter().map(Backend::to_string).collect::<Vec<_>>().join(", ");
    // Each failure is evidence; the first choice's is also the cause.
    let mut fault = Fault::new(Code::RedirectUnsupported).in_phase(Phase::Start).fact("tried", tried);
    for other in passed_over.iter().skip(1) {
        fault = fault.fact("also", format!("{other:?}"));
    }
    Err(match passed_over.into_iter().next() {
        Some(first) => fault.because(first),
        None => fault,
    })
}

/// What [`set_up`] would do with this back end, in the back end's own language.
pub fn describe(redirect: &Redirect, backend: &Backend) -> String {
    match backend {
        Backend::Netlink => nft::describe(redirect),
        Backend::Programs(programs) => iptables::describe(redirect, programs),
    }
}

/// Whether one of the back ends has set the rules in the calling thread's network namespace.
pub fn in_place(redirect: &Redirect, backends: &[Backend]) -> bool {
    let redirect = &possible(redirect, has_ipv6());
    backends.iter().any(|backend| match backend {
        Backend::Netlink => nft::in_place(redirect),
        Backend::Programs(programs) => iptables::in_place(redirect, programs),
    })
}

/// A kernel without IPv6 has no rules for it either, and nothing that they would be missing for.
fn possible(redirect: &Redirect, has_ipv6: bool) -> Redirect {
    Redirect { ipv6: redirect.ipv6 && has_ipv6, ..redirect.clone() }
}

/// Whether this kernel was built with IPv6, and not told to go without.
fn has_ipv6() -> bool {
    let opened = rustix::net::socket(AddressFamily::INET6, SocketType::STREAM, None);
    !matches!(opened, Err(Errno::AFNOSUPPORT))
}

/// Takes away what other ways set before, so that only the new rules decide. Nothing of it can be worth failing for: what
/// is left redirects to the proxy, too.
fn clean(backends: &[Backend]) {
    let _ = nft::remove_chains_of_iptables();
    // A program of the old kind makes its table by looking for it.
    let tables = fs::read_to_string("/proc/thread-self/net/ip_tables_names").unwrap_or_default();
    if !tables.lines().any(|table| table == "nat") {
        return;
    }
    for backend in backends {
        if let Backend::Programs(programs) = backend {
            iptables::remove(programs);
        }
    }
}

fn by(redirect: &Redirect, backend: &Backend, all: &[Backend]) -> Result<(), Fault> {
    let code = |forbidden| if forbidden { Code::RedirectForbidden } else { Code::RedirectUnsupported };
    let fault = |forbidden| Fault::new(code(forbidden)).in_phase(Phase::Start).about(backend);
    match backend {
        Backend::Netlink => {
            nft::apply(redirect).map_err(|e| {
                let forbidden = e.error.kind() == std::io::ErrorKind::PermissionDenied;
                fault(forbidden).because(e)
            })?;
            clean(all);
            Ok(())
        }
        Backend::Programs(programs) => {
            iptables::apply(redirect, programs).map_err(|e| fault(e.forbidden()).because(e))?;
            // Rules that an earlier run set over netlink would redirect by the old options. A kernel that cannot
            // be asked holds none.
            let _ = nft::remove();
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_decides_what_is_tried_first() {
        let names = |mode| {
            let found = backends(mode, None, OsStr::new("/nowhere")).unwrap();
            found.iter().map(Backend::to_string).collect::<Vec<_>>()
        };
        for mode in [Mode::Nft, Mode::Plain, Mode::Legacy] {
            // Without any program there is still netlink.
            assert_eq!(names(mode), ["nf_tables over netlink"]);
        }
        let only = backends(Mode::Nft, Some("/opt/iptables-nft".into()), OsStr::new("/nowhere")).unwrap();
        assert_eq!(only.len(), 1);
        assert_eq!(only[0].to_string(), "/opt/iptables-nft");
        let bad = backends(Mode::Nft, Some("/opt/nft".into()), OsStr::new("")).unwrap_err();
        assert_eq!(bad.code(), Code::BadFlag);
    }

    #[test]
    fn a_kernel_without_ipv6_gets_rules_for_ipv4() {
        let with = Redirect::default();
        assert!(possible(&with, true).ipv6 && !possible(&with, false).ipv6);
        let without = Redirect { ipv6: false, ..Redirect::default() };
        assert!(!possible(&without, true).ipv6);
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_the_remedy() {
        let backends = backends(Mode::Nft, Some("/nowhere/iptables".into()), OsStr::new("")).unwrap();
        let fault = set_up(&Redirect::default(), &backends).unwrap_err();
        assert_eq!(fault.code(), Code::RedirectUnsupported);
        assert!(format!("{fault:?}").contains("/nowhere/iptables"), "{fault:?}");
    }
}
