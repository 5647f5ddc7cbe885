//! linkerd-init: the redirect of a pod's traffic.

use super::{
    Ended,
    flags::{Flag, Flags, bad, flag},
};
use std::fs;
use weft_fault::{Code, Fault, Phase};
use weft_net::redirect::{self, Redirect};

const CLOSE_WAIT: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
const PORTS: &str = "ports and ranges such as 80,8000-8010";

pub(super) const FLAGS: &[Flag] = &[
    flag("incoming-proxy-port", "PORT", "the proxy's inbound port [4143]").short('p'),
    flag("outgoing-proxy-port", "PORT", "the proxy's outbound port [4140]").short('o'),
    flag("proxy-uid", "UID", "user whose connections are the proxy's own [2102]").short('u'),
    flag("proxy-gid", "GID", "group whose connections are the proxy's own").short('g'),
    flag("ports-to-redirect", "PORTS", "redirect only these incoming ports").short('r'),
    flag("inbound-ports-to-ignore", "PORTS", "incoming ports that reach the application directly"),
    flag("outbound-ports-to-ignore", "PORTS", "ports that the application reaches directly"),
    flag("subnets-to-ignore", "CIDRS", "networks whose connections reach the application directly"),
    flag(
        "timeout-close-wait-secs",
        "SECONDS",
        "kernel's timeout of CLOSE_WAIT; needs a privileged container",
    ),
    flag("simulate", "", "only say what would be redirected"),
    flag("ipv6", "", "both families are always redirected; taken for Linkerd's sake"),
    flag("use-wait-flag", "", "without effect: there is no lock of iptables to wait for").short('w'),
    flag("iptables-mode", "MODE", "without effect: rules are set over netlink"),
    flag("firewall-bin-path", "PATH", "without effect, likewise"),
    flag("firewall-save-bin-path", "PATH", "without effect, likewise"),
    flag("log-level", "LEVEL", "without effect: there is one line"),
    flag("log-format", "FORMAT", "without effect, likewise"),
];

pub(super) fn run(flags: &Flags) -> Result<(), Ended> {
    let redirect = wanted(flags)?;
    let timeout: Option<u32> = flags.value("timeout-close-wait-secs", "a number of seconds")?;
    if flags.is_set("simulate") {
        println!("would set {redirect:?}");
        return Ok(());
    }
    if let Some(seconds) = timeout.filter(|seconds| *seconds > 0) {
        fs::write(CLOSE_WAIT, seconds.to_string()).map_err(|e| {
            Fault::new(Code::HostUnable)
                .in_phase(Phase::Start)
                .about(CLOSE_WAIT)
                .fact("needs", "privileged")
                .because(e)
        })?;
    }
    redirect::apply(&redirect).map_err(|e| {
        Fault::new(Code::HostUnable)
            .in_phase(Phase::Start)
            .about("the redirect")
            .fact("needs", "NET_ADMIN")
            .because(e)
    })?;
    println!(
        "redirecting incoming TCP to port {} and outgoing TCP to port {}, except of uid {}",
        redirect.incoming_proxy_port,
        redirect.outgoing_proxy_port,
        redirect.proxy_uid.unwrap_or_default()
    );
    Ok(())
}

fn wanted(flags: &Flags) -> Result<Redirect, Ended> {
    let default = Redirect::default();
    let usage = |fault| Ended { code: super::EXIT_USAGE, fault };
    let port = |name, default| -> Result<u16, Ended> {
        let port = flags.value(name, "a port").map_err(usage)?.unwrap_or(default);
        if port == 0 { Err(usage(bad(name, "0", "a port"))) } else { Ok(port) }
    };
    Ok(Redirect {
        incoming_proxy_port: port("incoming-proxy-port", default.incoming_proxy_port)?,
        outgoing_proxy_port: port("outgoing-proxy-port", default.outgoing_proxy_port)?,
        proxy_uid: flags.value("proxy-uid", "a user's number").map_err(usage)?.or(default.proxy_uid),
        proxy_gid: flags.value("proxy-gid", "a group's number").map_err(usage)?,
        proxy_mark: None,
        ports_to_redirect: flags.list("ports-to-redirect", PORTS).map_err(usage)?,
        inbound_ports_to_ignore: flags.list("inbound-ports-to-ignore", PORTS).map_err(usage)?,
        outbound_ports_to_ignore: flags.list("outbound-ports-to-ignore", PORTS).map_err(usage)?,
        subnets_to_ignore: flags.list("subnets-to-ignore", "networks such as 10.0.0.0/8").map_err(usage)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Redirect, Ended> {
        let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        wanted(&Flags::parse(FLAGS, &args)?)
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
        for wrong in ["-p 0", "-p 70000", "--inbound-ports-to-ignore 9-8", "--subnets-to-ignore 10.0.0.0"] {
            assert!(of(wrong).is_err_and(|ended| ended.code == super::super::EXIT_USAGE), "{wrong}");
        }
    }
}
