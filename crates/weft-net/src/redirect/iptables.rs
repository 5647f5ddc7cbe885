//! The plan as calls of the iptables programs, for kernels and machines where netlink to nf_tables does not do.

use super::{Act, Line, Plan, Redirect, When, list, plan};
use std::{
    ffi::OsStr,
    fmt, io,
    path::{Path, PathBuf},
    process::Command,
};

const IN: &str = "PROXY_INIT_REDIRECT";
const OUT: &str = "PROXY_INIT_OUTPUT";
/// How long iptables may wait for its lock, which other programs of the node take too.
const LOCK_SECONDS: &str = "10";

/// The programs for the two IP versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    pub ipv4: PathBuf,
    pub ipv6: PathBuf,
}

impl Programs {
    /// `…/iptables-x`, and `…/ip6tables-x` beside it. `None` if the name is not of that form.
    pub fn beside(ipv4: &Path) -> Option<Self> {
        let name = ipv4.file_name()?.to_str()?;
        let six = name.replacen("iptables", "ip6tables", 1);
        (six != name).then(|| Programs { ipv4: ipv4.to_owned(), ipv6: ipv4.with_file_name(six) })
    }

    /// Looks for the program in the directories of `path` (a `PATH`).
    pub fn find(name: &str, path: &OsStr) -> Option<Self> {
        let found = std::env::split_paths(path).map(|dir| dir.join(name)).find(|file| file.is_file())?;
        Programs::beside(&found)
    }
}

impl fmt::Display for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ipv4.display().fmt(f)
    }
}

/// One call, without the program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    arguments: Vec<String>,
    /// Done only if this call fails: a chain or jump that is there is used again.
    unless: Option<Vec<String>>,
}

/// A call that failed.
#[derive(Debug)]
pub struct CallFailed {
    call: String,
    said: String,
    cause: Option<io::Error>,
}

impl CallFailed {
    /// Whether the program says that it lacks the permission.
    pub(super) fn forbidden(&self) -> bool {
        self.said.contains("ermission denied") || self.said.contains("not permitted")
    }
}

impl fmt::Display for CallFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` failed", self.call)?;
        if !self.said.is_empty() {
            write!(f, ": {}", self.said)?;
        }
        Ok(())
    }
}

impl std::error::Error for CallFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|e| e as _)
    }
}

/// Applies the redirect in the calling thread's network namespace.
pub fn apply(redirect: &Redirect, programs: &Programs) -> Result<(), CallFailed> {
    for (program, ipv6) in families(redirect, programs) {
        for call in calls(redirect, ipv6) {
            if let Some(unless) = &call.unless
                && run(program, unless).is_ok()
            {
                continue;
            }
            run(program, &call.arguments)?;
        }
    }
    Ok(())
}

/// Removes what [`apply`], or linkerd-init, set by these programs before; what is not there need not go.
pub(super) fn remove(programs: &Programs) {
    for program in [&programs.ipv4, &programs.ipv6] {
        for (hook, chain, name) in JUMPS {
            let jump = jump(hook, chain, name);
            // Several runs of linkerd-init left several jumps; the bound is for a program that never fails.
            let mut times = 0..MOST_JUMPS;
            while times.next().is_some() && run(program, &words(&format!("-D {jump}"))).is_ok() {}
            for step in ["-F", "-X"] {
                // Without the chain both fail, and there is nothing to do.
                let _ = run(program, &words(&format!("{step} {chain}")));
            }
        }
    }
}

/// Where the chains are led to from.
const JUMPS: [(&str, &str, &str); 2] = [("PREROUTING", IN, "prerouting"), ("OUTPUT", OUT, "output")];
const MOST_JUMPS: usize = 16;

fn jump(hook: &str, chain: &str, name: &str) -> String {
    format!("{hook} -m comment --comment proxy-init/install-proxy-init-{name} -j {chain}")
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Whether [`apply`] was here: the jumps are the last that it sets.
pub(super) fn in_place(redirect: &Redirect, programs: &Programs) -> bool {
    families(redirect, programs).into_iter().all(|(program, ipv6)| {
        let last = calls(redirect, ipv6).pop().and_then(|call| call.unless);
        last.is_some_and(|probe| run(program, &probe).is_ok())
    })
}

/// The calls, for people.
pub(super) fn describe(redirect: &Redirect, programs: &Programs) -> String {
    let mut text = String::new();
    for (program, ipv6) in families(redirect, programs) {
        for call in calls(redirect, ipv6) {
            if let Some(unless) = &call.unless {
                text.push_str(&format!("{} || ", written(program, unless)));
            }
            text.push_str(&written(program, &call.arguments));
            text.push('\n');
        }
    }
    text
}

fn families<'a>(redirect: &Redirect, programs: &'a Programs) -> Vec<(&'a Path, bool)> {
    let mut families = vec![(programs.ipv4.as_path(), false)];
    if redirect.ipv6 {
        families.push((&programs.ipv6, true));
    }
    families
}

/// The chains are filled before anything leads to them, so that no packet meets half of the rules the first time.
fn calls(redirect: &Redirect, ipv6: bool) -> Vec<Call> {
    let Plan { inbound, outbound } = plan(redirect);
    let mut calls = Vec::new();
    for (chain, lines) in [(IN, &inbound), (OUT, &outbound)] {
        // `-L` would look up every rule's names.
        calls.push(Call {
            arguments: words(&format!("-N {chain}")),
            unless: Some(words(&format!("-S {chain}"))),
        });
        calls.push(Call { arguments: words(&format!("-F {chain}")), unless: None });
        for line in lines {
            if let Some(mut arguments) = rule(line, ipv6) {
                let mut all = words(&format!("-A {chain}"));
                all.append(&mut arguments);
                calls.push(Call { arguments: all, unless: None });
            }
        }
    }
    for (hook, chain, name) in JUMPS {
        let jump = jump(hook, chain, name);
        calls.push(Call {
            arguments: words(&format!("-A {jump}")),
            unless: Some(words(&format!("-C {jump}"))),
        });
    }
    calls
}

/// A line in iptables' words; `None` if it is about the other IP version.
fn rule(line: &Line, ipv6: bool) -> Option<Vec<String>> {
    let matching = match &line.when {
        When::Ports(ports) => format!("-p tcp -m multiport --dports {}", list(ports, ':')),
        When::Tcp => "-p tcp".to_owned(),
        When::From(subnet) if subnet.network.is_ipv6() != ipv6 => return None,
        When::From(subnet) => format!("-s {subnet}"),
        When::Mark(mark) => format!("-m mark --mark {mark:#x}"),
        When::Uid(uid) => format!("-m owner --uid-owner {uid}"),
        When::Gid(gid) => format!("-m owner --gid-owner {gid}"),
        When::Loopback => "-o lo".to_owned(),
    };
    let act = match line.act {
        Act::Return => "-j RETURN".to_owned(),
        Act::To(port) => format!("-j REDIRECT --to-ports {port}"),
    };
    let text = format!("{matching} -m comment --comment {} {act}", line.comment);
    Some(text.split(' ').map(str::to_owned).collect())
}

const ALWAYS: [&str; 4] = ["-w", LOCK_SECONDS, "-t", "nat"];

fn written(program: &Path, arguments: &[String]) -> String {
    format!("{} {} {}", program.display(), ALWAYS.join(" "), arguments.join(" "))
}

fn run(program: &Path, arguments: &[String]) -> Result<(), CallFailed> {
    let failed = |said: String, cause| CallFailed { call: written(program, arguments), said, cause };
    let output = Command::new(program).args(ALWAYS).args(arguments).output();
    let output = output.map_err(|e| failed(String::new(), Some(e)))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().replace('\n', " "), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_the_other_version_lies_beside() {
        let found = Programs::beside(Path::new("/usr/sbin/iptables-nft")).unwrap();
        assert_eq!(found.ipv6, Path::new("/usr/sbin/ip6tables-nft"));
        assert!(Programs::beside(Path::new("/usr/sbin/nft")).is_none());
    }

    #[test]
    fn each_line_in_iptables_words() {
        let redirect = Redirect {
            inbound_ports_to_ignore: vec!["4190".parse().unwrap(), "8000-8010".parse().unwrap()],
            subnets_to_ignore: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            ipv6: false,
            ..Redirect::default()
        };
        let programs = Programs::beside(Path::new("iptables")).unwrap();
        let text = describe(&redirect, &programs);
        let expected = "\
iptables -w 10 -t nat -S PROXY_INIT_REDIRECT || iptables -w 10 -t nat -N PROXY_INIT_REDIRECT
iptables -w 10 -t nat -F PROXY_INIT_REDIRECT
iptables -w 10 -t nat -A PROXY_INIT_REDIRECT -p tcp -m multiport --dports 4190,8000:8010 -m comment --comment proxy-init/ignore-port-4190,8000-8010 -j RETURN
iptables -w 10 -t nat -A PROXY_INIT_REDIRECT -s 10.0.0.0/8 -m comment --comment proxy-init/ignore-subnet-10.0.0.0/8 -j RETURN
iptables -w 10 -t nat -A PROXY_INIT_REDIRECT -p tcp -m comment --comment proxy-init/redirect-all-incoming-to-proxy-port -j REDIRECT --to-ports 4143
";
        assert!(text.starts_with(expected), "{text}");
        assert!(!text.contains("fd00") && !text.contains("ip6tables"), "{text}");
    }
}
