//! Several meshes on one machine: apart from each other, or with routes between their pods.

use super::{
    lab::{self, DEADLINE, api_of, apply, logs, ready},
    policies::reaches,
    tests::{link_exists, tool_command},
};
use kube::{Client, api::DeleteParams};
use serde_json::json;
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::{Duration, Instant},
};
use weft_local::{
    network::Asked,
    up::{Mesh, UpConfig},
};

/// One of the meshes, with a pod that serves.
struct Side {
    mesh: Mesh,
    client: Client,
    pod: String,
}

impl Side {
    async fn start(root: &Path, name: &str, config: UpConfig) -> Self {
        let config = UpConfig { name: name.into(), state_root: root.into(), ..config };
        let mesh = Mesh::start(&config).unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
        let client = lab::client(&mesh).await;
        let serve = tool_command(&["serve", "8080", name]);
        apply(
            &client,
            &format!(
                r#"
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web, labels: {{app: web}}}}
spec: {{containers: [{{name: c, image: none, command: {serve}, readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}}}]}}
"#
            ),
        )
        .await;
        let web = ready(&client, "web").await;
        let pod = format!("{}:8080", web["status"]["podIP"].as_str().unwrap());
        Self { mesh, client, pod }
    }

    async fn service(&self) -> String {
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {}});
        let web = api_of(&self.client, &object).get("web").await.unwrap();
        format!("{}:80", web.data["spec"]["clusterIP"].as_str().unwrap())
    }

    /// Waits until this mesh's pod does or does not reach another address.
    async fn until_reaches(&self, to: &str, expected: bool) {
        let deadline = Instant::now() + DEADLINE;
        while reaches(&self.client, "web", to).await != expected {
            assert!(Instant::now() < deadline, "{to} is never {expected}");
        }
    }
}

/// Whether a connection from this machine, with this source address, is let in.
fn let_in(from: Ipv4Addr, to: &str) -> bool {
    let to: SocketAddr = to.parse().unwrap();
    let runtime = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind((from, 0).into()).unwrap();
            tokio::time::timeout(Duration::from_secs(5), socket.connect(to)).await.is_ok_and(|c| c.is_ok())
        })
    });
    runtime.join().unwrap()
}

pub(crate) async fn meshes_are_apart_or_peers(root: &Path) {
    let names = ["a", "b"].map(|side| format!("{side}{}", std::process::id()));
    let [a_name, b_name] = &names;
    let a = Side::start(root, a_name, UpConfig { peers: vec![b_name.clone()], ..UpConfig::default() }).await;
    assert_eq!(a.mesh.info().peers, [(b_name.clone(), None)]);

    // A stranger: another API, another authority, other addresses; and no way in but from this machine itself.
    let pods = "172.29.0.0/16".parse().ok();
    let ranges = Asked { pods, services: "172.30.0.0/20".parse().ok() };
    let stranger_name = format!("s{}", std::process::id());
    let stranger = Side::start(root, &stranger_name, UpConfig { ranges, ..UpConfig::default() }).await;
    assert_eq!(Some(stranger.mesh.info().network.pods), pods);
    assert!(stranger.pod.starts_with("172.29."), "{}", stranger.pod);
    assert!(stranger.service().await.starts_with("172.30."));
    let authority = |side: &Side| {
        let kubeconfig = kube::config::Kubeconfig::read_from(&side.mesh.info().kubeconfig).unwrap();
        kubeconfig.clusters[0].cluster.clone().unwrap().certificate_authority_data.unwrap()
    };
    assert_ne!(authority(&a), authority(&stranger));
    assert!(!reaches(&stranger.client, "web", &a.pod).await);
    assert!(!reaches(&a.client, "web", &stranger.pod).await);
    assert!(!reaches(&stranger.client, "web", &a.service().await).await);
    // As if this machine forwarded what the stranger sends.
    assert!(let_in(a.mesh.info().network.host_ip(), &a.pod));
    assert!(!let_in(stranger.mesh.info().network.host_ip(), &a.pod));
    stranger.mesh.stop(Duration::from_secs(1)).unwrap();

    // A peer that comes later, and was told nothing.
    let b = Side::start(root, b_name, UpConfig::default()).await;
    a.until_reaches(&b.pod, true).await;
    b.until_reaches(&a.pod, true).await;
    // Addresses are not translated.
    let ip = |side: &Side| side.pod.trim_end_matches(":8080").to_owned();
    for (server, client) in [(&a, &b), (&b, &a)] {
        let get = tool_command(&["get", &server.pod]);
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: get}}\nspec: {{restartPolicy: Never, \
             containers: [{{name: c, image: none, command: {get}}}]}}\n"
        );
        apply(&client.client, &pod).await;
        let get = lab::phase(&client.client, "get", "Succeeded").await;
        let served = logs(&server.client, "web").await;
        let from = get["status"]["podIP"].as_str().unwrap();
        assert!(served.contains(&format!("request from {from}\n")), "{from}: {served}");
    }
    // Services are their own mesh's.
    assert!(!reaches(&a.client, "web", &b.service().await).await);

    // To policies, the other mesh's pods are addresses, whatever their labels.
    let policy = |from: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: web}}\n\
             spec: {{podSelector: {{}}, ingress: [{{from: [{from}]}}]}}\n"
        )
    };
    apply(&a.client, &policy("{podSelector: {matchLabels: {app: web}}}")).await;
    b.until_reaches(&a.pod, false).await;
    apply(&a.client, &policy(&format!("{{ipBlock: {{cidr: {}/32}}}}", ip(&b)))).await;
    b.until_reaches(&a.pod, true).await;
    let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {}});
    api_of(&a.client, &object).delete("web", &DeleteParams::default()).await.unwrap();

    // One ends, and leaves the other as it was; when it is back, they are peers again.
    let (link, gone) = (b.mesh.info().network.host_link(), b.pod.clone());
    b.mesh.stop(Duration::from_secs(1)).unwrap();
    assert!(!link_exists(&link) && !root.join(b_name).exists());
    assert!(!reaches(&a.client, "web", &gone).await);
    assert!(reaches(&a.client, "web", &a.pod).await);
    let b = Side::start(root, b_name, UpConfig { peers: vec![a_name.clone()], ..UpConfig::default() }).await;
    assert_eq!(b.mesh.info().peers, [(a_name.clone(), Some(a.mesh.info().network.pods))]);
    a.until_reaches(&b.pod, true).await;
    b.until_reaches(&a.pod, true).await;

    // The one that was there first ends.
    let link = a.mesh.info().network.host_link();
    a.mesh.stop(Duration::from_secs(1)).unwrap();
    assert!(!link_exists(&link) && !root.join(a_name).exists());
    assert!(reaches(&b.client, "web", &b.pod).await);
    b.mesh.stop(Duration::from_secs(1)).unwrap();
}
