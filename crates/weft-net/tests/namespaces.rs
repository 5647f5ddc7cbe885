//! Namespaces, links, redirects and translation on this machine's kernel. They need root (or namespaces of one's own) and
//! say loudly when they cannot run.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    os::fd::AsFd,
    process::{Command, Stdio},
    time::Duration,
};
use weft_fault::Fault;
use weft_net::{
    namespace::{Credentials, Enter, Fresh, PodNamespaces, PodSockets, enter},
    netlink::{
        nft::{Base, Family, Hook, Meta, PRIORITY_AFTER_DSTNAT, PRIORITY_DSTNAT, Reject, Rule, Table},
        route::{LOOPBACK, PeerNamespace, Route, VethPair},
    },
    process::Pidfd,
    redirect::{Redirect, nft::apply},
};

const DEADLINE: Duration = Duration::from_secs(10);

/// Two pods on a node, linked by routes as `weft up` links them.
struct Lab {
    node: (PodNamespaces, PodSockets),
    pods: Vec<(PodNamespaces, PodSockets)>,
}

fn pod_ip(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 2 + u8::try_from(n).unwrap())
}

const NODE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const VIP: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 50);

/// `None`, said loudly, where namespaces are not allowed.
fn lab(pods: usize) -> Option<Lab> {
    match build(pods) {
        Ok(lab) => Some(lab),
        Err(fault) if format!("{fault:?}").contains("Operation not permitted") => {
            eprintln!("SKIPPED: no namespaces here: {fault:?}");
            None
        }
        Err(fault) => panic!("{fault:?}"),
    }
}

fn build(count: usize) -> Result<Lab, Fault> {
    let (node, mut sockets) = PodNamespaces::create("node", &[("ipv4/ip_forward", "1")])?;
    sockets.route.set_up(LOOPBACK)?;
    sockets.route.add_addresses(LOOPBACK, &[(NODE.into(), 32), (GATEWAY.into(), 32)])?;
    sockets.route.add_routes(&[Route {
        destination: Ipv4Addr::new(10, 78, 0, 0).into(),
        prefix: 16,
        interface: LOOPBACK,
        via: None,
        source: None,
    }])?;
    let mut pods = Vec::new();
    for n in 0..count {
        let (pod, mut pod_sockets) =
            PodNamespaces::create(&format!("pod-{n}"), &[("ipv4/ip_unprivileged_port_start", "0")])?;
        let last = u8::try_from(n).unwrap();
        let link = sockets.route.create_veth(&VethPair {
            name: &format!("pod{n}"),
            mac: [2, 0, 0, 0, 1, last],
            peer_name: "eth0",
            peer_mac: [2, 0, 0, 0, 2, last],
            peer_index: 2,
            peer_namespace: PeerNamespace::Fd(pod.net()),
        })?;
        let route = Route {
            destination: pod_ip(n).into(),
            prefix: 32,
            interface: link,
            via: None,
            source: Some(NODE.into()),
        };
        sockets.route.add_routes(&[route])?;
        pod_sockets.route.set_up(LOOPBACK)?;
        pod_sockets.route.set_up(2)?;
        pod_sockets.route.add_addresses(2, &[(pod_ip(n).into(), 32)])?;
        pod_sockets.route.add_routes(&[Route {
            destination: Ipv4Addr::UNSPECIFIED.into(),
            prefix: 0,
            interface: 2,
            via: Some(GATEWAY.into()),
            source: None,
        }])?;
        pods.push((pod, pod_sockets));
    }
    Ok(Lab { node: (node, sockets), pods })
}

fn inside<T: Send>(space: &PodNamespaces, work: impl FnOnce() -> std::io::Result<T> + Send) -> T {
    enter(Enter { pod: Some(space), ..Enter::default() }, work).unwrap()
}

fn listen(space: &PodNamespaces, address: &str) -> TcpListener {
    inside(space, || TcpListener::bind(address))
}

fn dial(space: &PodNamespaces, to: (Ipv4Addr, u16)) -> std::io::Result<TcpStream> {
    inside(space, || Ok(TcpStream::connect_timeout(&SocketAddr::from(to), DEADLINE)))
}

#[test]
fn pods_talk_over_routed_links() {
    let Some(lab) = lab(2) else { return };
    let server = listen(&lab.pods[1].0, "0.0.0.0:80");
    let mut client = dial(&lab.pods[0].0, (pod_ip(1), 80)).unwrap();
    let (mut served, from) = server.accept().unwrap();
    assert_eq!(from.ip(), IpAddr::V4(pod_ip(0)));
    client.write_all(b"hello").unwrap();
    let mut got = [0; 5];
    served.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    // The node's own calls come from the node's address.
    let _probe = dial(&lab.node.0, (pod_ip(1), 80)).unwrap();
    assert_eq!(server.accept().unwrap().1.ip(), IpAddr::V4(NODE));
}

#[test]
fn redirects_go_to_the_proxy_and_keep_the_original_destination() {
    let Some(lab) = lab(2) else { return };
    let redirect = Redirect {
        inbound_ports_to_ignore: vec!["4190-4191".parse().unwrap()],
        outbound_ports_to_ignore: vec!["5432".parse().unwrap()],
        ..Redirect::default()
    };
    // Twice: applying again replaces.
    for _ in 0..2 {
        enter(Enter { pod: Some(&lab.pods[1].0), ..Enter::default() }, || {
            apply(&redirect).map_err(|e| e.error)
        })
        .unwrap();
    }
    let server = &lab.pods[1].0;
    let inbound = listen(server, "0.0.0.0:4143");
    let outbound = listen(server, "127.0.0.1:4140");
    let admin = listen(server, "0.0.0.0:4191");
    let database = listen(&lab.pods[0].0, "0.0.0.0:5432");

    // Into the pod, to a port on which nothing listens.
    let _in = dial(&lab.pods[0].0, (pod_ip(1), 8080)).unwrap();
    let (redirected, _) = inbound.accept().unwrap();
    assert_eq!(original_destination(&redirected), SocketAddr::from((pod_ip(1), 8080)));
    let _admin = dial(&lab.pods[0].0, (pod_ip(1), 4191)).unwrap();
    admin.accept().unwrap();

    // Out of the pod, to an address that does not exist.
    let _out = dial(server, (VIP, 80)).unwrap();
    let (redirected, from) = outbound.accept().unwrap();
    assert_eq!(original_destination(&redirected), SocketAddr::from((VIP, 80)));
    assert!(from.ip() == IpAddr::V4(pod_ip(1)) || from.ip().is_loopback());
    let _ignored = dial(server, (pod_ip(0), 5432)).unwrap();
    database.accept().unwrap();

    // The proxy's own sockets are left alone.
    let proxy = Credentials::container(2102, 2102);
    let own = Enter { pod: Some(server), credentials: Some(&proxy), ..Enter::default() };
    let to = SocketAddr::from((pod_ip(0), 5433));
    let refused = enter(own, || Ok(TcpStream::connect_timeout(&to, DEADLINE).map(drop))).unwrap();
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

fn original_destination(stream: &TcpStream) -> SocketAddr {
    socket2::SockRef::from(stream).original_dst_v4().unwrap().as_socket().unwrap()
}

#[test]
fn services_are_translated_balanced_and_refused_without_endpoints() {
    let Some(mut lab) = lab(3) else { return };
    let endpoints = [SocketAddrV4::new(pod_ip(1), 80), SocketAddrV4::new(pod_ip(2), 80)];
    let table = service_table(&endpoints);
    lab.node.1.nft.apply(&table).unwrap();
    let servers = [listen(&lab.pods[1].0, "0.0.0.0:80"), listen(&lab.pods[2].0, "0.0.0.0:80")];
    for server in &servers {
        server.set_nonblocking(true).unwrap();
    }
    let clients: Vec<_> = (0..64).map(|_| dial(&lab.pods[0].0, (VIP, 80)).unwrap()).collect();
    let accepted = servers.each_ref().map(|s| std::iter::from_fn(|| s.accept().ok()).count());
    assert_eq!(accepted.iter().sum::<usize>(), clients.len());
    assert!(accepted.iter().all(|n| *n > 0), "{accepted:?}");
    // A pod may be its own endpoint, and the node may call a service.
    drop(clients);
    lab.node.1.nft.apply(&service_table(&endpoints[..1])).unwrap();
    dial(&lab.pods[1].0, (VIP, 80)).unwrap();
    dial(&lab.node.0, (VIP, 80)).unwrap();
    // Nothing behind it: refused at once.
    lab.node.1.nft.apply(&service_table(&[])).unwrap();
    let refused = dial(&lab.pods[0].0, (VIP, 80)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

fn service_table(endpoints: &[SocketAddrV4]) -> Table {
    let mut t = Table::replace(Family::Ipv4, "test");
    t.chain("svc");
    if let Ok(n) = u32::try_from(endpoints.len())
        && n > 0
    {
        let (map, id) = t.numbered_addresses(endpoints);
        t.rule("svc", Rule::new().random(1, n).lookup(map, Some(id), 1, 8).destination_nat(8, 9));
    }
    t.service_map("vips", &[((VIP, 6, 80), "svc".into())]);
    for (name, hook) in [("pre", Hook::Prerouting), ("out", Hook::Output)] {
        t.base_chain(name, "nat", hook, PRIORITY_DSTNAT);
        let key = Rule::new().payload(Base::Network, 16, 4, 8).meta(Meta::L4Protocol, 9).payload(
            Base::Transport,
            2,
            2,
            10,
        );
        t.rule(name, key.lookup("vips", None, 8, 0));
    }
    t.base_chain("reject", "filter", Hook::Prerouting, PRIORITY_AFTER_DSTNAT);
    let to_service = Rule::new().destination_network(Ipv4Addr::new(10, 78, 0, 0).into(), 16);
    t.rule("reject", to_service.tcp().reject(Reject::TcpReset));
    t.base_chain("post", "nat", Hook::Postrouting, 100);
    let hairpin = Rule::new()
        .was_destination_nat()
        .source_network(pod_ip(1).into(), 32)
        .destination_network(pod_ip(1).into(), 32);
    t.rule("post", hairpin.masquerade());
    t
}

#[test]
fn a_child_is_process_one_of_a_container_and_dies_with_it() {
    let Some(lab) = lab(1) else { return };
    let enter_container =
        Enter { pod: Some(&lab.pods[0].0), fresh: Some(Fresh::Container), ..Enter::default() };
    let mut child = enter(enter_container, || {
        Command::new("/bin/sh")
            .args(["-c", "hostname; echo $$; echo ready; read x"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    })
    .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!((next(), next(), next()), ("pod-0".into(), "1".into(), "ready".into()));
    let pidfd = Pidfd::open(child.id()).unwrap();

    // Exec: into the namespaces of the running process, without its privileges.
    let nobody = Credentials::container(65534, 65534);
    let join = Enter { process: Some(pidfd.as_fd()), credentials: Some(&nobody), ..Enter::default() };
    let out = enter(join, || {
        Command::new("/bin/sh").args(["-c", "hostname; id -u; grep CapEff /proc/thread-self/status"]).output()
    });
    let out = String::from_utf8(out.unwrap().stdout).unwrap();
    assert!(out.starts_with("pod-0\n65534\n"), "{out}");

    pidfd.signal(rustix::process::Signal::KILL).unwrap();
    assert!(!child.wait().unwrap().success());
    pidfd.signal(rustix::process::Signal::TERM).unwrap();
}
