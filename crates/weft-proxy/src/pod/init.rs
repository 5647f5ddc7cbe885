//! linkerd-init: the redirect of a pod's traffic.

use super::{
    Ended,
    flags::{Flag, Flags, bad, flag},
};
use std::{fs, fs::File, os::fd::AsFd as _, path::PathBuf};
use weft_fault::{Code, Fault, Phase};
use weft_net::{
    namespace::{Enter, enter},
    redirect::{
        Redirect,
        set_up::{Backend, Done, Mode, backends, describe, set_up},
    },
};

const CLOSE_WAIT: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
/// The proxy beside it reads the same variable.
const MARK: &str = "LINKERD2_PROXY_WEFT_SOCKET_MARK";
const PORTS: &str = "ports and ranges such as 80,8000-8010";

pub(super) const FLAGS: &[Flag] = &[
    flag("incoming-proxy-port", "PORT", "the proxy's inbound port [4143]").short('p'),
    flag("outgoing-proxy-port", "PORT", "the proxy's outbound port [4140]").short('o'),
    flag("proxy-uid", "UID", "user whose connections are the proxy's own [2102]").short('u'),
    flag(
        "proxy-mark",
        "NUMBER",
        "mark of connections that are the proxy's own [$LINKERD2_PROXY_WEFT_SOCKET_MARK]",
    ),
    flag("proxy-gid", "GID", "group whose connections are the proxy's own; none if negative").short('g'),
    flag("ports-to-redirect", "PORTS", "redirect only these incoming ports").short('r'),
    flag("inbound-ports-to-ignore", "PORTS", "incoming ports that reach the application directly"),
    flag("outbound-ports-to-ignore", "PORTS", "ports that the application reaches directly"),
    flag("subnets-to-ignore", "CIDRS", "networks whose connections reach the application directly"),
    flag(
        "timeout-close-wait-secs",
        "SECONDS",
        "kernel's timeout of CLOSE_WAIT; needs a privileged container",
    ),
    flag("simulate", "", "print the rules instead of setting them"),
    flag("netns", "FILE", "network namespace to work in; the process's own without it"),
    flag("ipv6", "", "--ipv6=false leaves IPv6 alone"),
    flag("use-wait-flag", "", "without effect: the lock of iptables is always waited for, for 10s")
        .short('w'),
    flag(
        "iptables-mode",
        "MODE",
        "what is tried first: nft (netlink, then programs), plain or legacy (programs, then netlink) [nft]",
    ),
    flag(
        "firewall-bin-path",
        "FILE",
        "the iptables program to use, and no other way; ip6tables lies beside it",
    ),
    flag("firewall-save-bin-path", "FILE", "without effect: the program itself tells which rules are there"),
    flag("log-level", "LEVEL", "without effect: there is one line"),
    flag("log-format", "FORMAT", "without effect, likewise"),
];

pub(super) fn run(flags: &Flags) -> Result<(), Ended> {
    let redirect = wanted(flags, std::env::var(MARK).ok())?;
    let usage = |fault| Ended { code: super::EXIT_USAGE, fault };
    let timeout: u32 =
        flags.value("timeout-close-wait-secs", "a number of seconds").map_err(usage)?.unwrap_or(0);
    let mode: Mode = flags.value("iptables-mode", "nft, plain or legacy").map_err(usage)?.unwrap_or_default();
    let program = flags.text("firewall-bin-path").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let ways = backends(mode, program, &path).map_err(usage)?;
    if flags.is_set("simulate") {
        if let Some(first) = ways.first() {
            print!("# by {first}\n{}", describe(&redirect, first));
        }
        return Ok(());
    }
    let done = match flags.text("netns") {
        None => here(&redirect, &ways, timeout)?,
        Some(file) => {
            let net = File::open(file).map_err(|e| {
                usage(bad("netns", file, "the file of a network namespace").in_phase(Phase::Start).because(e))
            })?;
            enter(Enter { net: Some(net.as_fd()), ..Enter::default() }, || {
                Ok(here(&redirect, &ways, timeout))
            })??
        }
    };
    for fault in &done.passed_over {
        eprintln!("passed over: {fault:?}");
    }
    println!(
        "redirecting incoming TCP to port {} and outgoing TCP to port {}, except of uid {}{}, by {}",
        redirect.incoming_proxy_port,
        redirect.outgoing_proxy_port,
        redirect.proxy_uid.unwrap_or_default(),
        redirect.proxy_mark.map(|mark| format!(" and with mark {mark}")).unwrap_or_default(),
        done.backend
    );
    Ok(())
}

/// Works in the calling thread's network namespace, which `/proc/sys/net` shows, too.
fn here(redirect: &Redirect, ways: &[Backend], timeout: u32) -> Result<Done, Fault> {
    let done = set_up(redirect, ways)?;
    if timeout > 0 {
        fs::write(CLOSE_WAIT, timeout.to_string()).map_err(|e| {
            Fault::new(Code::HostUnable)
                .in_phase(Phase::Start)
                .fact("step", format!("write {CLOSE_WAIT}"))
                .fact(
                    "setting",
                    "run linkerd-init privileged and as root, or leave out --timeout-close-wait-secs",
                )
                .because(e)
        })?;
    }
    Ok(done)
}

fn wanted(flags: &Flags, mark: Option<String>) -> Result<Redirect, Ended> {
    let default = Redirect::default();
    let usage = |fault| Ended { code: super::EXIT_USAGE, fault };
    let port = |name, default| -> Result<u16, Ended> {
        let port = flags.value(name, "a port").map_err(usage)?.unwrap_or(default);
        if port == 0 { Err(usage(bad(name, "0", "a port"))) } else { Ok(port) }
    };
    let gid = match flags.text("proxy-gid") {
        Some(text) if text.trim().starts_with('-') => None,
        _ => flags.value("proxy-gid", "a group's number").map_err(usage)?,
    };
    Ok(Redirect {
        incoming_proxy_port: port("incoming-proxy-port", default.incoming_proxy_port)?,
        outgoing_proxy_port: port("outgoing-proxy-port", default.outgoing_proxy_port)?,
        proxy_uid: flags.value("proxy-uid", "a user's number").map_err(usage)?.or(default.proxy_uid),
        proxy_gid: gid,
        proxy_mark: mark_of(flags, mark).map_err(usage)?,
        ports_to_redirect: flags.list("ports-to-redirect", PORTS).map_err(usage)?,
        inbound_ports_to_ignore: flags.list("inbound-ports-to-ignore", PORTS).map_err(usage)?,
        outbound_ports_to_ignore: flags.list("outbound-ports-to-ignore", PORTS).map_err(usage)?,
        subnets_to_ignore: flags.list("subnets-to-ignore", "networks such as 10.0.0.0/8").map_err(usage)?,
        ipv6: flags.value("ipv6", "true or false").map_err(usage)?.unwrap_or(default.ipv6),
    })
}

fn mark_of(flags: &Flags, variable: Option<String>) -> Result<Option<u32>, Fault> {
    const WANTED: &str = "a number";
    if let Some(mark) = flags.value("proxy-mark", WANTED)? {
        return Ok(Some(mark));
    }
    let Some(text) = variable.filter(|text| !text.is_empty()) else { return Ok(None) };
    let bad = || Fault::new(Code::BadVariable).about(MARK).fact("value", &text).fact("expected", WANTED);
    text.trim().parse().map(Some).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &str) -> Result<Flags, Fault> {
        Flags::parse(FLAGS, &text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn of(text: &str) -> Result<Redirect, Ended> {
        wanted(&flags(text)?, None)
    }

    #[test]
    fn what_the_injector_writes_is_read() {
        let Ok(read) = of("--incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102 \
             --inbound-ports-to-ignore 4190,4191,4567-4568 --outbound-ports-to-ignore 443 \
             --subnets-to-ignore 10.0.0.0/8 --proxy-gid 7 --iptables-mode nft --use-wait-flag")
        else {
            panic!("it is not read")
        };
        assert_eq!(read.inbound_ports_to_ignore.len(), 3);
        assert_eq!((read.proxy_uid, read.proxy_gid), (Some(2102), Some(7)));
        assert_eq!(read.subnets_to_ignore.len(), 1);
        assert!(read.ipv6);
        assert_eq!(read.proxy_mark, None);
        for (text, variable, mark) in [("", "7", 7), ("--proxy-mark 8", "7", 8), ("--proxy-mark 8", "", 8)] {
            let read = flags(text).map_err(Ended::from).and_then(|f| wanted(&f, Some(variable.into())));
            assert!(read.is_ok_and(|read| read.proxy_mark == Some(mark)), "{text} {variable}");
        }
        let flags_only = flags("").unwrap_or_else(|fault| panic!("{fault:?}"));
        let wrong = wanted(&flags_only, Some("x".into())).err().map(|ended| ended.fault.code());
        assert_eq!(wrong, Some(Code::BadVariable));
        assert!(of("--ipv6=false --proxy-gid=-1").is_ok_and(|r| !r.ipv6 && r.proxy_gid.is_none()));
        for wrong in ["-p 0", "-p 70000", "--inbound-ports-to-ignore 9-8", "--subnets-to-ignore 10.0.0.0"] {
            assert!(of(wrong).is_err_and(|ended| ended.code == super::super::EXIT_USAGE), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_told_before_anything_is_done() {
        for (text, name) in [
            ("--iptables-mode best", "--iptables-mode"),
            ("--firewall-bin-path /sbin/nft", "--firewall-bin-path"),
            ("--netns /nowhere/netns", "--netns"),
        ] {
            let flags = flags(text).unwrap_or_else(|fault| panic!("{fault:?}"));
            let ended = run(&flags).err().unwrap_or_else(|| panic!("{text} is taken"));
            assert_eq!((ended.code, ended.fault.code()), (super::super::EXIT_USAGE, Code::BadFlag), "{text}");
            assert!(ended.fault.to_string().contains(name), "{}", ended.fault);
        }
        // A program that is not there is no mistake in the flag's form.
        let flags =
            flags("--firewall-bin-path /nowhere/iptables").unwrap_or_else(|fault| panic!("{fault:?}"));
        let ended = run(&flags).err().unwrap_or_else(|| panic!("it worked"));
        assert_eq!((ended.code, ended.fault.code()), (1, Code::RedirectUnsupported));
    }

    #[test]
    fn another_namespace_is_set_up_from_outside() {
        use std::os::fd::AsRawFd as _;
        use weft_net::{namespace::PodNamespaces, redirect::set_up::in_place};
        let pod = match PodNamespaces::create("pod", &[]) {
            Ok((pod, _sockets)) => pod,
            Err(fault) if format!("{fault:?}").contains("Operation not permitted") => {
                eprintln!("SKIPPED: no namespaces here: {fault:?}");
                return;
            }
            Err(fault) => panic!("{fault:?}"),
        };
        let there = || {
            let look = || Ok(in_place(&Redirect::default(), &[Backend::Netlink]));
            enter(Enter { pod: Some(&pod), ..Enter::default() }, look)
                .unwrap_or_else(|fault| panic!("{fault:?}"))
        };
        let file = format!("/proc/self/fd/{}", pod.net().as_raw_fd());
        let of = |text: &str| flags(text).unwrap_or_else(|fault| panic!("{fault:?}"));
        // What is simulated is not done.
        assert!(run(&of(&format!("--netns {file} --simulate"))).is_ok() && !there());
        assert!(run(&of(&format!("--netns {file}"))).is_ok() && there());
    }
}
