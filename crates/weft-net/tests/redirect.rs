//! The redirect on this machine's kernel, by every back end, proved by real connections of both IP versions. Needs root
//! (or namespaces of one's own), and says loudly when it cannot run.

use socket2::{Domain, SockRef, Socket, Type};
use std::{
    ffi::OsStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    time::Duration,
};
use weft_fault::Fault;
use weft_net::{
    namespace::{Credentials, Enter, PodNamespaces, PodSockets, enter},
    netlink::route::{LOOPBACK, PeerNamespace, VethPair},
    redirect::{
        Redirect,
        iptables::Programs,
        set_up::{Backend, in_place, set_up},
    },
};

const DEADLINE: Duration = Duration::from_secs(10);
const MARK: u32 = 2104;

/// Two pods with one cable: `outside` has two addresses of each version.
struct Lab {
    outside: PodNamespaces,
    pod: PodNamespaces,
}

/// The addresses of one IP version.
#[derive(Clone, Copy)]
struct Net {
    outside: IpAddr,
    skipped: IpAddr,
    pod: IpAddr,
}

fn nets() -> [Net; 2] {
    let v4 = |last| IpAddr::from(Ipv4Addr::new(10, 79, 0, last));
    let v6 = |last| IpAddr::from(Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, last));
    [Net { outside: v4(1), skipped: v4(2), pod: v4(3) }, Net { outside: v6(1), skipped: v6(2), pod: v6(3) }]
}

fn lab() -> Option<Lab> {
    match build() {
        Ok(lab) => Some(lab),
        Err(fault) if format!("{fault:?}").contains("Operation not permitted") => {
            eprintln!("SKIPPED: no namespaces here: {fault:?}");
            None
        }
        Err(fault) => panic!("{fault:?}"),
    }
}

fn build() -> Result<Lab, Fault> {
    // Addresses are in use at once: nobody else is on the cable.
    let sysctls = [("ipv6/conf/default/accept_dad", "0"), ("ipv6/conf/all/accept_dad", "0")];
    let (outside, mut a): (_, PodSockets) = PodNamespaces::create("outside", &sysctls)?;
    let (pod, mut b) = PodNamespaces::create("pod", &sysctls)?;
    let link = a.route.create_veth(&VethPair {
        name: "eth0",
        mac: [2, 0, 0, 0, 1, 1],
        peer_name: "eth0",
        peer_mac: [2, 0, 0, 0, 1, 2],
        peer_index: 2,
        peer_namespace: PeerNamespace::Fd(pod.net()),
    })?;
    for (sockets, link) in [(&mut a, link), (&mut b, 2)] {
        sockets.route.set_up(LOOPBACK)?;
        sockets.route.set_up(link)?;
    }
    for net in nets() {
        let bits = if net.pod.is_ipv4() { 24 } else { 64 };
        a.route.add_addresses(link, &[(net.outside, bits), (net.skipped, bits)])?;
        b.route.add_addresses(2, &[(net.pod, bits)])?;
    }
    Ok(Lab { outside, pod })
}

fn inside<T: Send>(space: &PodNamespaces, work: impl FnOnce() -> io::Result<T> + Send) -> T {
    enter(Enter { pod: Some(space), ..Enter::default() }, work).unwrap()
}

fn listen(space: &PodNamespaces, address: IpAddr, port: u16) -> TcpListener {
    inside(space, || TcpListener::bind((address, port)))
}

fn dial(space: &PodNamespaces, from: Option<IpAddr>, to: (IpAddr, u16)) -> io::Result<TcpStream> {
    inside(space, || Ok(connect(from, to.into())))
}

fn connect(from: Option<IpAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(from) = from {
        socket.bind(&SocketAddr::from((from, 0)).into())?;
    }
    socket.connect_timeout(&to.into(), DEADLINE)?;
    Ok(socket.into())
}

/// Where the next connection at a listener was going.
fn next(listener: &TcpListener) -> SocketAddr {
    let (stream, _) = listener.accept().unwrap();
    let socket = SockRef::from(&stream);
    let original = if stream.local_addr().unwrap().is_ipv4() {
        socket.original_dst_v4()
    } else {
        socket.original_dst_v6()
    };
    // iptables tracks connections it leaves alone, too: their destination is their own.
    original.map_or_else(|_| stream.local_addr().unwrap(), |a| a.as_socket().unwrap())
}

fn apply(lab: &Lab, redirect: &Redirect, backend: &Backend) {
    inside(&lab.pod, || {
        let done = set_up(redirect, std::slice::from_ref(backend)).map_err(io::Error::other)?;
        assert_eq!(&done.backend, backend);
        Ok(())
    });
}

/// A back end of programs, or `None`, said loudly.
fn programs(name: &str) -> Option<Backend> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = OsStr::new("/usr/sbin:/sbin");
    let found = Programs::find(name, &path).or_else(|| Programs::find(name, sbin));
    if found.is_none() {
        eprintln!("SKIPPED: there is no {name} here");
    }
    found.map(Backend::Programs)
}

#[test]
fn netlink_redirects_as_linkerd_init_does() {
    every_rule(&Backend::Netlink);
}

#[test]
fn iptables_on_nf_tables_redirects_as_linkerd_init_does() {
    if let Some(backend) = programs("iptables-nft") {
        every_rule(&backend);
    }
}

#[test]
fn iptables_legacy_redirects_as_linkerd_init_does() {
    let Some(backend) = programs("iptables-legacy") else { return };
    let Some(lab) = lab() else { return };
    let Backend::Programs(Programs { ipv4, ipv6 }) = &backend else {
        unreachable!("programs were asked for")
    };
    let usable = |program: &Path| {
        inside(&lab.pod, || std::process::Command::new(program).args(["-t", "nat", "-S"]).output())
            .status
            .success()
    };
    if usable(ipv4) && usable(ipv6) {
        every_rule(&backend);
    } else {
        eprintln!("SKIPPED: this kernel has no iptables of the old kind");
    }
}

fn every_rule(backend: &Backend) {
    let Some(lab) = lab() else { return };
    // More ports than one match of iptables holds.
    let mut skipped: Vec<_> = (1..=20).map(|p| p.to_string().parse().unwrap()).collect();
    skipped.push("4190-4191".parse().unwrap());
    let subnets = nets().map(|n| format!("{}/{}", n.skipped, if n.skipped.is_ipv4() { 32 } else { 128 }));
    let redirect = Redirect {
        proxy_gid: Some(2103),
        proxy_mark: Some(MARK),
        inbound_ports_to_ignore: skipped,
        outbound_ports_to_ignore: vec!["5432".parse().unwrap(), "6000-6010".parse().unwrap()],
        subnets_to_ignore: subnets.iter().map(|s| s.parse().unwrap()).collect(),
        ..Redirect::default()
    };
    let there = || inside(&lab.pod, || Ok(in_place(&redirect, std::slice::from_ref(backend))));
    assert!(!there());
    // Twice: applying again replaces.
    apply(&lab, &redirect, backend);
    apply(&lab, &redirect, backend);
    assert!(there());
    for net in nets() {
        inbound_rules(&lab, net);
        outbound_rules(&lab, net);
    }

    // Other options, and what was set before is gone.
    let only = Redirect {
        incoming_proxy_port: 5143,
        outgoing_proxy_port: 5140,
        ports_to_redirect: vec!["8080".parse().unwrap(), "9000-9001".parse().unwrap()],
        ..Redirect::default()
    };
    apply(&lab, &only, backend);
    for net in nets() {
        let inbound = listen(&lab.pod, net.pod, 5143);
        let outbound = listen(&lab.pod, loopback(net), 5140);
        let app = listen(&lab.pod, net.pod, 8081);
        for port in [8080, 9001] {
            let _dialled = dial(&lab.outside, Some(net.skipped), (net.pod, port)).unwrap();
            assert_eq!(next(&inbound), SocketAddr::from((net.pod, port)));
        }
        let _direct = dial(&lab.outside, None, (net.pod, 8081)).unwrap();
        app.accept().unwrap();
        let _out = dial(&lab.pod, None, (net.outside, 5432)).unwrap();
        assert_eq!(next(&outbound), SocketAddr::from((net.outside, 5432)));
    }
}

fn loopback(net: Net) -> IpAddr {
    if net.pod.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() }
}

fn inbound_rules(lab: &Lab, net: Net) {
    let inbound = listen(&lab.pod, net.pod, 4143);
    let admin = listen(&lab.pod, net.pod, 4191);
    let app = listen(&lab.pod, net.pod, 8080);
    // Everything comes to the proxy, whether something listens there or not.
    for port in [8080, 8081] {
        let _dialled = dial(&lab.outside, Some(net.outside), (net.pod, port)).unwrap();
        assert_eq!(next(&inbound), SocketAddr::from((net.pod, port)));
    }
    // Ports of the list and networks of the list reach the application.
    let _admin = dial(&lab.outside, Some(net.outside), (net.pod, 4191)).unwrap();
    admin.accept().unwrap();
    let refused = dial(&lab.outside, Some(net.outside), (net.pod, 20)).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    let _skipped = dial(&lab.outside, Some(net.skipped), (net.pod, 8080)).unwrap();
    assert_eq!(app.accept().unwrap().1.ip(), net.skipped);
}

fn outbound_rules(lab: &Lab, net: Net) {
    let outbound = listen(&lab.pod, loopback(net), 4140);
    let remote = listen(&lab.outside, net.outside, 6005);
    // The skipped network is about who calls, not about who is called.
    for to in [(net.outside, 80), (net.skipped, 80)] {
        let _out = dial(&lab.pod, None, to).unwrap();
        assert_eq!(next(&outbound), SocketAddr::from(to));
    }
    // Ignored ports, single and in a range.
    let _ignored = dial(&lab.pod, None, (net.outside, 6005)).unwrap();
    remote.accept().unwrap();
    let refused = dial(&lab.pod, None, (net.outside, 5432)).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    // Within the pod.
    let refused = dial(&lab.pod, None, (loopback(net), 80)).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    // What carries the proxy's mark, and no other.
    for (mark, own) in [(MARK, true), (MARK + 1, false)] {
        let to = SocketAddr::from((net.outside, 82));
        let dialled = inside(&lab.pod, || {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            socket.set_mark(mark)?;
            Ok(socket.connect_timeout(&to.into(), DEADLINE))
        });
        assert_eq!(dialled.is_err(), own, "mark {mark}");
        if !own {
            assert_eq!(next(&outbound), to);
        }
    }
    // The proxy's user and group, and nobody else's.
    for (uid, gid, own) in [(2102, 1, true), (1, 2103, true), (1, 1, false)] {
        let credentials = Credentials::container(uid, gid);
        let who = Enter { pod: Some(&lab.pod), credentials: Some(&credentials), ..Enter::default() };
        let to = SocketAddr::from((net.outside, 81));
        let dialled = enter(who, || Ok(connect(None, to))).unwrap();
        assert_eq!(dialled.is_err(), own, "uid {uid} gid {gid}");
        if !own {
            assert_eq!(next(&outbound), to);
        }
    }
}

#[test]
fn a_program_replaces_what_netlink_set() {
    let Some(backend) = programs("iptables-nft") else { return };
    let Some(lab) = lab() else { return };
    apply(&lab, &Redirect { incoming_proxy_port: 5143, ..Redirect::default() }, &Backend::Netlink);
    apply(&lab, &Redirect::default(), &backend);
    for net in nets() {
        let inbound = listen(&lab.pod, net.pod, 4143);
        let _dialled = dial(&lab.outside, None, (net.pod, 80)).unwrap();
        assert_eq!(next(&inbound), SocketAddr::from((net.pod, 80)));
    }
}

/// The other way round: a pod, or a machine, that linkerd-init was at before.
#[test]
fn netlink_replaces_what_programs_set() {
    for name in ["iptables-nft", "iptables-legacy"] {
        let Some(backend) = programs(name) else { continue };
        let Some(lab) = lab() else { return };
        let before = Redirect { incoming_proxy_port: 5143, outgoing_proxy_port: 5140, ..Redirect::default() };
        let set = inside(&lab.pod, || Ok(set_up(&before, std::slice::from_ref(&backend))));
        if set.is_err() {
            eprintln!("SKIPPED: this kernel cannot do it by {name}");
            continue;
        }
        inside(&lab.pod, || {
            let all = [Backend::Netlink, backend.clone()];
            let done = set_up(&Redirect::default(), &all).map_err(io::Error::other)?;
            assert_eq!(done.backend, Backend::Netlink);
            Ok(())
        });
        for net in nets() {
            let inbound = listen(&lab.pod, net.pod, 4143);
            let _dialled = dial(&lab.outside, None, (net.pod, 80)).unwrap();
            assert_eq!(next(&inbound), SocketAddr::from((net.pod, 80)), "{name}");
        }
        let Backend::Programs(Programs { ipv4, ipv6 }) = &backend else {
            unreachable!("programs were asked for")
        };
        for program in [ipv4, ipv6] {
            let rules =
                inside(&lab.pod, || std::process::Command::new(program).args(["-t", "nat", "-S"]).output());
            let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
            assert!(!rules.contains("PROXY_INIT"), "{name}: {rules}");
        }
    }
}

#[test]
fn without_ipv6_only_ipv4_is_redirected() {
    let Some(lab) = lab() else { return };
    let [v4, v6] = nets();
    // First with, then without: the rules of both versions are gone, not only left alone.
    apply(&lab, &Redirect::default(), &Backend::Netlink);
    apply(&lab, &Redirect { ipv6: false, ..Redirect::default() }, &Backend::Netlink);
    let inbound = listen(&lab.pod, v4.pod, 4143);
    let app = listen(&lab.pod, v6.pod, 80);
    let _four = dial(&lab.outside, None, (v4.pod, 80)).unwrap();
    assert_eq!(next(&inbound), SocketAddr::from((v4.pod, 80)));
    let _six = dial(&lab.outside, None, (v6.pod, 80)).unwrap();
    app.accept().unwrap();
}

#[test]
fn without_the_capability_the_fault_says_which() {
    let Some(lab) = lab() else { return };
    let nobody = Credentials::container(65534, 65534);
    let who = Enter { pod: Some(&lab.pod), credentials: Some(&nobody), ..Enter::default() };
    let fault = enter(who, || Ok(set_up(&Redirect::default(), &[Backend::Netlink]))).unwrap().unwrap_err();
    assert_eq!(fault.code(), weft_fault::Code::RedirectForbidden);
    assert!(fault.code().remedy().contains("NET_ADMIN"));
}
