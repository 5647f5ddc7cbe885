//! `weft controller` as its Deployment runs it: a process of its own, an API, and clients that verify it.

use crate::harness::{Cluster, create, shown};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use linkerd2_proxy_api::{
    destination::{GetDestination, destination_client::DestinationClient, update},
    identity::{CertifyRequest, identity_client::IdentityClient},
    inbound::{PortSpec, inbound_server_policies_client::InboundServerPoliciesClient},
};
use serde_json::{Value, json};
use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use weft_control::{
    bootstrap::{IdentityFiles, bootstrap_objects},
    config::ControllerConfig,
};
use weft_model::identity::Identity;
use weft_testkit::channel;
use weft_tls::{certificate::Facts, keys::Key};

const STORE: &str = "store.shop.serviceaccount.identity.linkerd.cluster.local";
/// A bound on "never".
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address of the loopback network that no other run of this test has: the controller's ports are fixed.
pub(crate) fn own_address() -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 91, high, low.clamp(1, 254))
}

/// The answer to one GET: its status.
fn status(addr: SocketAddr, path: &str) -> Option<u16> {
    let mut tcp = TcpStream::connect_timeout(&addr, Duration::from_secs(1)).ok()?;
    tcp.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(tcp, "GET {path} HTTP/1.1\r\nhost: controller\r\nconnection: close\r\n\r\n").ok()?;
    let mut head = [0; 12];
    tcp.read_exact(&mut head).ok()?;
    std::str::from_utf8(&head[9..]).ok()?.parse().ok()
}

#[test]
fn a_controller_by_itself_serves_and_ends_when_asked() {
    let cluster = Cluster::in_memory();
    let bind = own_address();
    let config = ControllerConfig::new(IpAddr::from(bind), vec!["10.0.0.0/8".parse().expect("a network")]);
    let identity = IdentityFiles::generate(&config).expect("an identity");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = runtime.block_on(async {
        let client = weft_kube::api::connect(Some(cluster.kubeconfig())).await.expect("a client");
        for object in bootstrap_objects(&config, &identity) {
            create(&client, &object).await;
        }
        client
    });

    let controller = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["controller", "--bind", &bind.to_string(), "--kubeconfig"])
        .arg(cluster.kubeconfig())
        .stdout(Stdio::null())
        .spawn();
    let mut controller = Running(controller.expect("the controller starts"));
    let at = |port: u16| SocketAddr::new(IpAddr::from(bind), port);
    let began = Instant::now();
    while status(at(config.ports.admin), "/ready") != Some(200) {
        assert!(began.elapsed() < PATIENCE, "it never became ready");
        assert!(controller.0.try_wait().expect("its state").is_none(), "it ended");
        sleep(Duration::from_millis(50));
    }

    runtime.block_on(serves(&client, &identity, at));

    let pid = rustix::process::Pid::from_child(&controller.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    let began = Instant::now();
    let ended = loop {
        if let Some(ended) = controller.0.try_wait().expect("its state") {
            break ended;
        }
        assert!(began.elapsed() < PATIENCE, "it never ended");
        sleep(Duration::from_millis(20));
    };
    assert_eq!(ended.code(), Some(0), "{ended}");
}

async fn serves(client: &kube::Client, identity: &IdentityFiles, at: impl Fn(u16) -> SocketAddr) {
    let in_shop = |mut object: Value| {
        object["metadata"]["namespace"] = json!("shop");
        object
    };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "shop", "annotations": {"linkerd.io/inject": "enabled"}}});
    create(client, &namespace).await;
    for object in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "store"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "store"},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "store-1", "labels": {"app": "store"}},
            "spec": {"serviceAccountName": "store", "containers": [{"name": "store", "image": "store"}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "store-x", "labels": {"kubernetes.io/service-name": "store"}},
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.77.0.2"], "conditions": {"ready": true},
                "targetRef": {"kind": "Pod", "namespace": "shop", "name": "store-1"}}]}),
    ] {
        create(client, &in_shop(object)).await;
    }
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client.clone(), "shop");
    let running =
        json!({"status": {"phase": "Running", "podIP": "10.77.0.2", "podIPs": [{"ip": "10.77.0.2"}]}});
    let pod = pods
        .patch_status("store-1", &PatchParams::default(), &Patch::Merge(&running))
        .await
        .expect("the pod's status");
    // The API called the controller's webhook.
    let containers = pod.spec.and_then(|spec| spec.init_containers).unwrap_or_default();
    assert!(containers.iter().any(|container| container.name == "linkerd-proxy"), "it is not injected");

    // A certificate for whoever holds the account's token.
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(client.clone(), "shop");
    let request =
        serde_json::from_value(json!({"spec": {"audiences": ["identity.l5d.io"]}})).expect("a request");
    let token =
        accounts.create_token_request("store", &PostParams::default(), &request).await.expect("a token");
    let name = Identity::parse(STORE).expect("an identity");
    let channel = channel::tls(
        at(8080),
        "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local",
        &identity.trust_roots,
    );
    let request = CertifyRequest {
        identity: STORE.to_owned(),
        token: token.status.expect("a token").token.into_bytes(),
        certificate_signing_request: Key::generate()
            .and_then(|key| key.certificate_request(&name))
            .expect("a request"),
    };
    let certified =
        IdentityClient::new(channel.await.expect("a channel")).certify(request).await.expect("a certificate");
    let facts = Facts::of(&certified.into_inner().leaf_certificate.into()).expect("a certificate");
    assert_eq!(facts.names, [STORE]);

    // What is behind the Service, and what its pod accepts.
    let server = "linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local";
    let channel = channel::tls(at(8086), server, &identity.trust_roots).await.expect("a channel");
    let get = GetDestination { path: "store.shop.svc.cluster.local:80".to_owned(), ..Default::default() };
    let mut updates = DestinationClient::new(channel).get(get).await.expect("a stream").into_inner();
    let known = async {
        loop {
            let message = updates.message().await.expect("a stream").expect("more");
            if let Some(update::Update::Add(set)) = message.update {
                return set.addrs[0].tls_identity.is_some();
            }
        }
    };
    assert!(tokio::time::timeout(PATIENCE, known).await.expect("an answer"), "the endpoint has no identity");
    let channel = channel::tls(at(8090), server, &identity.trust_roots).await.expect("a channel");
    let port = PortSpec { workload: "shop:store-1".to_owned(), port: 8080 };
    let policy = InboundServerPoliciesClient::new(channel).get_port(port).await.expect("a policy");
    assert_eq!(policy.into_inner().labels["name"], "all-unauthenticated");
}

#[test]
fn without_a_control_plane_it_says_what_is_missing() {
    let cluster = Cluster::in_memory();
    let output = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["controller", "--bind", &own_address().to_string(), "--kubeconfig"])
        .arg(cluster.kubeconfig())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output));
    assert!(shown(&output).contains("ConfigMap linkerd/linkerd-config"), "{}", shown(&output));
}
