//! The plugin as a container runtime calls it: the program, its environment, its standard streams, a real network
//! namespace, and a scripted API server.

use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    process::{Command, Stdio},
    time::Duration,
};
use weft_net::{
    namespace::{Enter, PodNamespaces, enter},
    netlink::route::{LOOPBACK, PeerNamespace, VethPair},
    redirect::{
        Redirect,
        set_up::{Backend, in_place},
    },
};

const DEADLINE: Duration = Duration::from_secs(10);
const POD: &str = "/api/v1/namespaces/shop/pods/web";
const NAMESPACE: &str = "/api/v1/namespaces/shop";

/// Answers each path with its object, and everything else with 404, until the test ends.
fn api(objects: &[(&str, Value)]) -> SocketAddr {
    let objects: BTreeMap<String, Value> =
        objects.iter().map(|(p, o)| ((*p).to_owned(), o.clone())).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let Some(first) = lines.next() else { continue };
            while lines.next().is_some_and(|line| !line.is_empty()) {}
            let path = first.split(' ').nth(1).unwrap_or_default();
            let (status, body) = match objects.get(path) {
                Some(object) => ("200 OK", object.to_string()),
                None => ("404 Not Found", json!({"message": format!("no {path}")}).to_string()),
            };
            let length = body.len();
            // A client that left early is its own affair.
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
        }
    });
    address
}

struct Call {
    dir: tempfile::TempDir,
    netns: String,
    arguments: &'static str,
}

struct Answer {
    success: bool,
    stdout: String,
    stderr: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {} {}", self.stdout, self.stderr))
    }
}

impl Call {
    fn new(server: SocketAddr, netns: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "local",
            "clusters": [{"name": "local", "cluster": {"server": format!("http://{server}")}}],
            "users": [{"name": "cni", "user": {"token": "t"}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "cni"}}],
        });
        std::fs::write(dir.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";
        Call { dir, netns: netns.to_owned(), arguments }
    }

    fn conf(&self) -> Value {
        json!({
            "cniVersion": "1.0.0", "name": "pods", "type": "linkerd-cni",
            "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.80.0.1/24"}], "dns": {}},
            "kubernetes": {"kubeconfig": self.dir.path().join("kubeconfig")},
            "linkerd": {"outgoing-proxy-port": 4140, "proxy-uid": 2102},
        })
    }

    fn run(&self, command: &str, conf: &Value) -> Answer {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weft-cni"))
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", "c1")
            .env("CNI_IFNAME", "eth0")
            .env("CNI_NETNS", &self.netns)
            .env("CNI_ARGS", self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Commands that read nothing may close their input.
        let _ = child.stdin.take().unwrap().write_all(conf.to_string().as_bytes());
        let out = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Answer { success: out.status.success(), stdout: text(out.stdout), stderr: text(out.stderr) }
    }
}

fn meshed(annotations: Value) -> Value {
    json!({"metadata": {"annotations": annotations}, "spec": {
        "initContainers": [{"name": "linkerd-network-validator"}, {"name": "linkerd-proxy"}],
        "containers": [{"name": "web"}],
    }})
}

/// A pod's network and the file by which a runtime names it; `None`, said loudly, where that is not allowed.
fn network() -> Option<(PodNamespaces, String)> {
    let (pod, mut sockets) = match PodNamespaces::create("web", &[]) {
        Ok(made) => made,
        Err(fault) if format!("{fault:?}").contains("Operation not permitted") => {
            eprintln!("SKIPPED: no namespaces here: {fault:?}");
            return None;
        }
        Err(fault) => panic!("{fault:?}"),
    };
    let pair = VethPair {
        name: "eth0",
        mac: [2, 0, 0, 0, 0, 1],
        peer_name: "peer",
        peer_mac: [2, 0, 0, 0, 0, 2],
        peer_index: 0,
        peer_namespace: PeerNamespace::Same,
    };
    let link = sockets.route.create_veth(&pair).unwrap();
    sockets.route.set_up(LOOPBACK).unwrap();
    sockets.route.add_addresses(link, &[(IpAddr::from(Ipv4Addr::new(10, 80, 0, 1)), 24)]).unwrap();
    let file = format!("/proc/{}/fd/{}", std::process::id(), pod.net().as_raw_fd());
    Some((pod, file))
}

fn redirected(pod: &PodNamespaces) -> bool {
    let there = || Ok(in_place(&Redirect::default(), &[Backend::Netlink]));
    enter(Enter { pod: Some(pod), ..Enter::default() }, there).unwrap()
}

#[test]
fn a_meshed_pod_is_redirected_as_its_annotations_say() {
    let Some((pod, file)) = network() else { return };
    let server = api(&[
        (POD, meshed(json!({"config.linkerd.io/skip-outbound-ports": "3306"}))),
        (NAMESPACE, json!({"metadata": {"annotations": {"config.linkerd.io/outbound-port": "5140"}}})),
    ]);
    let call = Call::new(server, &file);
    let before = call.run("CHECK", &call.conf());
    assert!(!before.success && before.json()["code"] == 101, "{}", before.stdout);

    let added = call.run("ADD", &call.conf());
    assert!(added.success, "{} {}", added.stdout, added.stderr);
    assert_eq!(added.json(), call.conf()["prevResult"]);
    let checked = call.run("CHECK", &call.conf());
    assert!(checked.success && checked.stdout.is_empty(), "{}", checked.stdout);

    // A dial to an address where nobody is leads to the port of the namespace's annotation.
    let (proxy, _out) = enter(Enter { pod: Some(&pod), ..Enter::default() }, || {
        let proxy = TcpListener::bind("127.0.0.1:5140")?;
        let to = SocketAddr::from(([10, 80, 0, 9], 80));
        Ok((proxy, TcpStream::connect_timeout(&to, DEADLINE)?))
    })
    .unwrap();
    proxy.accept().unwrap();

    let deleted = call.run("DEL", &call.conf());
    assert!(deleted.success && deleted.stdout.is_empty());
}

#[test]
fn pods_without_a_proxy_or_with_linkerd_init_are_left_alone() {
    let Some((pod, file)) = network() else { return };
    let unmeshed = json!({"spec": {"containers": [{"name": "web"}]}});
    let own = json!({"spec": {"initContainers": [{"name": "linkerd-init"}], "containers": [{"name": "linkerd-proxy"}]}});
    for object in [unmeshed, own] {
        let call = Call::new(api(&[(POD, object)]), &file);
        let added = call.run("ADD", &call.conf());
        assert_eq!(added.json(), call.conf()["prevResult"], "{}", added.stderr);
        assert!(call.run("CHECK", &call.conf()).success);
        assert!(!redirected(&pod));
    }
}

#[test]
fn what_fails_is_told_in_the_specifications_words() {
    let server =
        api(&[(POD, meshed(json!({"config.linkerd.io/skip-inbound-ports": "9-8"}))), (NAMESPACE, json!({}))]);
    let call = Call::new(server, "/nowhere/netns");
    let failing = |command: &str, conf: &Value| {
        let answer = call.run(command, conf);
        assert!(!answer.success, "{command}: {}", answer.stdout);
        let error = answer.json();
        assert!(error["msg"].as_str().is_some_and(|m| !m.is_empty()));
        (error["code"].clone(), error["msg"].as_str().unwrap().to_owned())
    };
    let changed = |key: &str, value: Value| {
        let mut conf = call.conf();
        conf[key] = value;
        conf
    };
    assert_eq!(failing("ADD", &changed("cniVersion", json!("9.0.0"))).0, 1);
    assert_eq!(failing("JUMP", &call.conf()).0, 4);
    assert_eq!(failing("ADD", &changed("prevResult", Value::Null)).0, 7);
    let (code, message) = failing("ADD", &call.conf());
    assert!(code == 7 && message.contains("skip-inbound-ports of the pod"), "{message}");

    let gone = Call::new(api(&[]), "/nowhere/netns");
    let answer = gone.run("ADD", &gone.conf()).json();
    assert!(answer["code"] == 11 && answer["msg"].as_str().unwrap().contains("CTL-006"), "{answer}");
    assert!(answer["details"].as_str().is_some_and(|d| !d.is_empty()));
    let lost = Call::new(api(&[(POD, meshed(json!({}))), (NAMESPACE, json!({}))]), "/nowhere/netns");
    let answer = lost.run("ADD", &lost.conf()).json();
    assert!(answer["code"] == 5 && answer["msg"].as_str().unwrap().contains("/nowhere/netns"), "{answer}");
    // A pod can be removed whatever is broken.
    assert!(gone.run("DEL", &json!({})).success);
}

#[test]
fn versions_status_and_callers_other_than_kubernetes() {
    let mut call = Call::new(api(&[]), "/nowhere/netns");
    let version = call.run("VERSION", &json!({"cniVersion": "0.4.0"})).json();
    assert_eq!(version["cniVersion"], "0.4.0");
    assert!(version["supportedVersions"].as_array().unwrap().contains(&json!("1.1.0")));

    assert!(call.run("STATUS", &call.conf()).success);
    let mut conf = call.conf();
    conf["kubernetes"]["kubeconfig"] = json!("/nowhere/kubeconfig");
    let status = call.run("STATUS", &conf);
    assert!(!status.success && status.json()["code"] == 50, "{}", status.stdout);

    call.arguments = "";
    let mut older = call.conf();
    older["cniVersion"] = json!("0.3.1");
    let added = call.run("ADD", &older).json();
    assert_eq!((&added["cniVersion"], &added["ips"]), (&json!("0.3.1"), &older["prevResult"]["ips"]));
}
