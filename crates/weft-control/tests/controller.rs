//! The whole controller against a Kubernetes API, with no more rights than its manifests give it.

use linkerd2_proxy_api::{
    destination::{self as dst, GetDestination, destination_client::DestinationClient, update},
    identity::{CertifyRequest, identity_client::IdentityClient},
    inbound::{self, PortSpec, inbound_server_policies_client::InboundServerPoliciesClient},
};
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic::transport::{Channel, Endpoint};
use weft_control::{
    bootstrap::{IdentityFiles, bootstrap_objects},
    config::{ControllerConfig, IdentityConfig, Ports},
    controller::Controller,
    install::{rbac, template::Fill, values::Values},
};
use weft_kube::api;
use weft_model::identity::Identity;
use weft_testkit::channel;
use weft_tls::{bundle::TrustBundle, certificate::Facts, keys::Key};
use weft_wire::{
    mesh::{ConfirmRequest, ReportRequest, State, client::MeshClient},
    record::{EntryKind, JournalEntry},
};

#[path = "support/cluster.rs"]
mod cluster;
#[path = "controller/disorder.rs"]
mod disorder;
#[path = "controller/slow.rs"]
mod slow;
#[path = "controller/writers.rs"]
mod writers;

use cluster::Cluster;

/// A bound on "never".
const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at an object.
const LOOK: Duration = Duration::from_millis(10);

struct Mesh {
    client: kube::Client,
    controller: Controller,
    config: ControllerConfig,
    identity: IdentityFiles,
    /// The namespace of the applications.
    shop: String,
    /// Last: it goes after whatever works on it.
    cluster: Cluster,
}

impl Mesh {
    async fn start() -> Mesh {
        let cluster = Cluster::whole().await;
        let addr = cluster.address();
        Mesh::on(cluster, addr).await
    }

    /// The controller asks the API at an address of its own, as the account of its manifests.
    async fn on(cluster: Cluster, controllers: SocketAddr) -> Mesh {
        let client = cluster.client.clone();
        // Pods, and wherever a cluster has its services.
        let networks = ["10.0.0.0/8", "172.16.0.0/12"].map(|range| range.parse().unwrap());
        let mut config = ControllerConfig::new("127.0.0.1".parse().unwrap(), networks.into());
        config.control_namespace = cluster.name("linkerd");
        config.plaintext = true;
        config.heartbeat = Duration::from_millis(200);
        config.ports = Ports { destination: 0, policy: 0, identity: 0, webhook: 0, admin: 0 };
        let control = config.control_namespace.clone();
        let identity = IdentityFiles::generate(&config).unwrap();
        let mut objects = bootstrap_objects(&config, &identity);
        let has_no_ports = |object: &Value| object["kind"] != "Service" && object["kind"] != "EndpointSlice";
        objects.retain(has_no_ports);
        for definition in objects.extract_if(.., |object| object["kind"] == "CustomResourceDefinition") {
            cluster.define(&definition).await;
        }
        let own_namespace = objects.remove(0);
        api::create(&client, "/api/v1/namespaces", &own_namespace).await.unwrap();
        cluster.furnish(&control).await;
        let fill = Fill { values: &Values::defaults(false), namespace: &control };
        objects.extend(rbac::objects().iter().map(|object| fill.fill(object)));
        for object in objects {
            match api::create(&client, &collection(&object), &object).await {
                // Accounts whose names are identities stand in both.
                Err(error) if error.code() == Some(409) => {}
                created => drop(created.unwrap()),
            }
        }
        let own = cluster.client(controllers, Some((&control, "weft-controller"))).await;
        let controller = Controller::bind(config.clone(), own).await.unwrap();
        let at = controller.addresses;
        config.ports = Ports {
            destination: at.destination.port(),
            policy: at.policy.port(),
            identity: at.identity.port(),
            webhook: at.webhook.port(),
            admin: at.admin.port(),
        };
        let mesh = Mesh { client, controller, identity, shop: cluster.name("shop"), config, cluster };
        mesh.announce().await;
        timeout(LIMIT, mesh.controller.ready()).await.unwrap();
        // The last one that is told.
        let validator = "validatingwebhookconfigurations/linkerd-policy-validator-webhook-config";
        let path = format!("/apis/admissionregistration.k8s.io/v1/{validator}");
        mesh.until(&path, |hooks| hooks["webhooks"][0]["clientConfig"]["caBundle"].is_string()).await;
        mesh
    }

    /// The Services of the control plane lead to the controller of this test.
    async fn announce(&self) {
        let mut at = self.config.clone();
        let webhook = self.cluster.reachable(self.controller.addresses.webhook).await;
        (at.bind, at.ports.webhook) = (webhook.ip(), webhook.port());
        for object in bootstrap_objects(&at, &self.identity) {
            if object["kind"] == "Service" || object["kind"] == "EndpointSlice" {
                self.create(object).await;
            }
        }
    }

    /// A client for another replica.
    async fn second(&self) -> kube::Client {
        let account = (self.config.control_namespace.as_str(), "weft-controller");
        self.cluster.client(self.cluster.address(), Some(account)).await
    }

    /// A path below the namespace of the control plane.
    fn control(&self, path: &str) -> String {
        format!("/api/v1/namespaces/{}/{path}", self.config.control_namespace)
    }

    /// Likewise for the applications; `version` without a slash is of the core group.
    fn path(&self, version: &str, rest: &str) -> String {
        let root = if version.contains('/') { "/apis" } else { "/api" };
        format!("{root}/{version}/namespaces/{}/{rest}", self.shop)
    }

    /// The identity of an account in the namespace of the applications.
    fn identity(&self, account: &str) -> String {
        let control = &self.config.control_namespace;
        format!("{account}.{}.serviceaccount.identity.{control}.cluster.local", self.shop)
    }

    /// A service's name, as clients ask for it.
    fn dns(&self, service: &str) -> String {
        format!("{service}.{}.svc.cluster.local", self.shop)
    }

    async fn create(&self, object: Value) -> Value {
        let path = collection(&object);
        match api::create(&self.client, &path, &object).await {
            Ok(created) => created,
            Err(error) => panic!("{path}: {error}\n{object:#}"),
        }
    }

    async fn patch(&self, path: &str, patch: Value) {
        api::merge(&self.client, path, &patch).await.unwrap();
    }

    /// Creates an object that has to be refused, and says why it was.
    async fn refused(&self, object: Value) -> String {
        match api::create(&self.client, &collection(&object), &object).await {
            Ok(created) => panic!("{created:#}"),
            Err(error) => error.to_string(),
        }
    }

    /// Waits until the object is as wanted.
    async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) {
        let mut last = Value::Null;
        let found = timeout(LIMIT, async {
            loop {
                last = api::get(&self.client, path).await.unwrap();
                if wanted(&last) {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        assert!(found.await.is_ok(), "{last:#}");
    }

    async fn channel(&self, addr: SocketAddr) -> Channel {
        Endpoint::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap()
    }

    async fn admin(&self, path: &str) -> (u16, String) {
        let mut tcp = TcpStream::connect(self.controller.addresses.admin).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
        tcp.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tcp.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    async fn shop(&self) {
        self.cluster.namespace("shop", json!({"annotations": {"linkerd.io/inject": "enabled"}})).await;
        self.create(json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "store", "namespace": self.shop}}))
            .await;
    }

    /// A pod that runs, as far as its object says.
    async fn pod(&self, name: &str, ip: &str) -> Value {
        let pod = self
            .create(json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": self.shop, "labels": {"app": "store"}},
                // Of a real cluster's nodes, none is to run it.
                "spec": {"serviceAccountName": "store", "schedulerName": "nobody", "containers": [{"name": "store", "image": "store",
                    "command": ["store"], "ports": [{"name": "http", "containerPort": 8080}]}]}}))
            .await;
        self.patch(
            &self.path("v1", &format!("pods/{name}/status")),
            json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}}),
        )
        .await;
        pod
    }

    async fn slice(&self, name: &str, pods: &[(&str, &str)]) {
        let endpoints: Vec<Value> = pods
            .iter()
            .map(|(pod, ip)| {
                json!({"addresses": [ip], "conditions": {"ready": true},
                    "targetRef": {"kind": "Pod", "namespace": self.shop, "name": pod}})
            })
            .collect();
        self.create(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": self.shop, "labels": {"kubernetes.io/service-name": "store"}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints}))
            .await;
    }

    async fn certify(&self, token: &str, identity: &str, roots: &str) -> Result<Vec<u8>, tonic::Status> {
        let name = Identity::parse(identity).unwrap();
        let csr = Key::generate().unwrap().certificate_request(&name).unwrap();
        let control = &self.config.control_namespace;
        let server = format!("linkerd-identity.{control}.serviceaccount.identity.{control}.cluster.local");
        let channel = channel::tls(self.controller.addresses.identity, &server, roots).await.unwrap();
        let request = CertifyRequest {
            identity: identity.to_owned(),
            token: token.as_bytes().to_vec(),
            certificate_signing_request: csr,
        };
        let answer = IdentityClient::new(channel).certify(request).await?.into_inner();
        assert!(answer.valid_until.is_some());
        assert_eq!(answer.intermediate_certificates.len(), 1);
        Ok(answer.leaf_certificate)
    }

    /// Waits until an event tells what happened to the issuer. Nobody has a Deployment here: events are about the Secret.
    async fn issuer_event(&self, reason: &str, kind: &str) {
        self.until(&self.control("events"), |list| {
            list["items"].as_array().unwrap().iter().any(|event| {
                event["reason"] == reason
                    && event["type"] == kind
                    && event["involvedObject"]["name"] == "linkerd-identity-issuer"
            })
        })
        .await;
    }

    async fn token(&self, audience: &str) -> String {
        let answer = api::create(
            &self.client,
            &self.path("v1", "serviceaccounts/store/token"),
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                "spec": {"audiences": [audience]}}),
        )
        .await
        .unwrap();
        answer["status"]["token"].as_str().unwrap().to_owned()
    }
}

fn collection(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap();
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    };
    let root = if version.contains('/') { "/apis" } else { "/api" };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/{version}/namespaces/{namespace}/{plural}"),
        None => format!("{root}/{version}/{plural}"),
    }
}

async fn next<T>(stream: &mut tonic::Streaming<T>) -> T {
    timeout(LIMIT, stream.message()).await.expect("a message in time").unwrap().expect("an open stream")
}

fn identity_of(addr: &dst::WeightedAddr) -> Option<String> {
    use dst::tls_identity::Strategy;
    match addr.tls_identity.as_ref()?.strategy.as_ref()? {
        Strategy::DnsLikeIdentity(dns) => Some(dns.name.clone()),
        Strategy::UriLikeIdentity(uri) => Some(uri.uri.clone()),
    }
}

#[tokio::test]
async fn from_objects_to_answers() {
    let mesh = Mesh::start().await;
    let store = mesh.identity("store");
    mesh.shop().await;

    // 1. A new pod is injected on its way into the API.
    let pod = mesh.pod("store-1", "10.77.0.2").await;
    let names: Vec<_> = pod["spec"]["initContainers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["linkerd-init", "linkerd-proxy"]);

    let (status, metrics) = mesh.admin("/metrics").await;
    let counted = format!(
        "proxy_inject_admission_responses_total{{owner_kind=\"\",namespace=\"{}\",annotation_at=\"namespace\",skip=\"false\",skip_reason=\"\"}} 1",
        mesh.shop
    );
    assert!(status == 200 && metrics.contains(&counted), "{metrics}");

    // 2. Its Service's endpoints carry its identity.
    mesh.create(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "store", "namespace": mesh.shop},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": "http"}]}}),
    )
    .await;
    mesh.slice("store-x", &[("store-1", "10.77.0.2")]).await;
    let mut destination = DestinationClient::new(mesh.channel(mesh.controller.addresses.destination).await);
    let get = GetDestination {
        path: format!("{}:80", mesh.dns("store")),
        context_token: json!({"ns": mesh.shop, "nodeName": "weft", "pod": "web"}).to_string(),
        ..Default::default()
    };
    let mut updates = destination.get(get).await.unwrap().into_inner();
    loop {
        // Before the objects were heard of, there is no such name, or nobody behind it.
        match next(&mut updates).await.update.unwrap() {
            update::Update::NoEndpoints(_) => {}
            update::Update::Add(set) => {
                assert_eq!(set.addrs.len(), 1);
                assert_eq!(identity_of(&set.addrs[0]).as_deref(), Some(store.as_str()));
                break;
            }
            other => panic!("{other:?}"),
        }
    }

    // 3. The policy of its port follows the objects, with no status between.
    let mut policies = InboundServerPoliciesClient::new(mesh.channel(mesh.controller.addresses.policy).await);
    let spec = PortSpec { workload: format!("{}:store-1", mesh.shop), port: 8080 };
    let mut policy = policies.watch_port(spec).await.unwrap().into_inner();
    assert_eq!(next(&mut policy).await.labels["name"], "all-unauthenticated");
    mesh.create(json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
        "metadata": {"name": "store-http", "namespace": mesh.shop},
        "spec": {"podSelector": {"matchLabels": {"app": "store"}}, "port": "http"}}))
        .await;
    let server: inbound::Server = next(&mut policy).await;
    assert_eq!(server.labels["name"], "store-http");
    assert!(server.authorizations.is_empty());

    // 4. What Linkerd's API cannot say.
    let confirm = |addr: &str| {
        let addr: SocketAddr = addr.parse().unwrap();
        ConfirmRequest { addr: Some(addr.into()), context_token: String::new() }
    };
    let channel = mesh.channel(mesh.controller.addresses.destination).await;
    let mut weft = MeshClient::new(channel);
    let meshed = weft.confirm(confirm("10.77.0.2:8080")).await.unwrap().into_inner();
    assert_eq!(
        (meshed.state(), meshed.pod.as_str()),
        (State::Meshed, format!("{}/store-1", mesh.shop).as_str())
    );
    assert_eq!(identity_of(&meshed.endpoint.unwrap()).as_deref(), Some(store.as_str()));
    let unknown = weft.confirm(confirm("10.77.0.200:8080")).await.unwrap().into_inner();
    assert_eq!(unknown.state(), State::Unknown);
    let fault = JournalEntry {
        at_unix_ms: 1,
        source: "anything".to_owned(),
        subject: format!("{}:80", mesh.dns("store")),
        kind: EntryKind::Fault,
        text: "refused".to_owned(),
        fault: None,
    };
    weft.report(ReportRequest::new(format!("{}/web-1", mesh.shop), &[fault], 0)).await.unwrap();
    let (_, reported) = mesh.admin("/weft/journal?subject=web-1").await;
    assert!(reported.contains("without an identity"), "{reported}");

    // 5. Users see what became of their objects.
    mesh.create(json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "HTTPRoute",
        "metadata": {"name": "r", "namespace": mesh.shop}, "spec": {
            "parentRefs": [{"group": "core", "kind": "Service", "name": "store"}],
            "rules": [{"backendRefs": [{"name": "nobody", "port": 80}]}]}}))
        .await;
    mesh.until(&mesh.path("policy.linkerd.io/v1beta3", "httproutes/r"), |route| {
        let conditions = &route["status"]["parents"][0]["conditions"];
        conditions[0]["status"] == "True" && conditions[1]["reason"] == "BackendNotFound"
    })
    .await;
    mesh.until(&format!("/api/v1/namespaces/{}", mesh.shop), |ns| {
        ns["metadata"]["labels"]["weft.dev/inject"] == "enabled"
    })
    .await;

    // 6. The controller explains itself.
    let path = format!(
        "/weft/authorize?pod={}/store-1&port=8080&client-ip=10.77.0.9&client-id={store}&path=/",
        mesh.shop
    );
    let (status, body) = mesh.admin(&path).await;
    assert_eq!(status, 200, "{body}");
    let decision: weft_wire::record::Decision = serde_json::from_str(&body).unwrap();
    assert!(!decision.allowed);
    assert_eq!(decision.server, format!("server/{}/store-http", mesh.shop));
    assert_eq!(decision.code.as_deref(), Some("POL-001"));
    // What was there when a kind was first listed is no change; by now routes are watched.
    mesh.create(json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "HTTPRoute",
        "metadata": {"name": "later", "namespace": mesh.shop}, "spec": {
            "parentRefs": [{"group": "core", "kind": "Service", "name": "store"}], "rules": [{}]}}))
        .await;
    mesh.until(&mesh.path("policy.linkerd.io/v1beta3", "httproutes/later"), |route| {
        route["status"]["parents"][0]["conditions"][0]["status"] == "True"
    })
    .await;
    let (_, journal) = mesh.admin(&format!("/weft/journal?subject={}%2Flater", mesh.shop)).await;
    assert!(journal.contains("created"), "{journal}");
    let (_, endpoints) = mesh.admin(&format!("/weft/endpoints?dst={}", mesh.dns("store"))).await;
    assert!(endpoints.contains("\"state\":\"meshed\""), "{endpoints}");
    let (_, profile) = mesh.admin("/weft/profile?addr=10.77.0.2:8080").await;
    assert!(profile.contains(&store), "{profile}");
    assert_eq!(mesh.admin("/ready").await.0, 200);
    assert_eq!(mesh.admin("/live").await.0, 200);
    let (_, metrics) = mesh.admin("/metrics").await;
    assert!(metrics.contains("weft_view_subscribers{view=\"endpoints\"} 1"), "{metrics}");
    let mut series: Vec<&str> = metrics.lines().filter_map(|l| l.rsplit_once(' ').map(|(s, _)| s)).collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), all, "a series stands twice");
    assert_eq!(mesh.admin("/weft/authorize?pod=x").await.0, 400);
    assert_eq!(mesh.admin("/nothing").await.0, 404);

    // 7. The pod goes, and so does its endpoint, whatever the slice still says.
    let gone = http::Method::DELETE;
    let path = &mesh.path("v1", "pods/store-1?gracePeriodSeconds=0");
    api::json::<Value>(&mesh.client, gone, path, "application/json", &Value::Null).await.unwrap();
    match next(&mut updates).await.update.unwrap() {
        update::Update::NoEndpoints(none) => assert!(none.exists),
        other => panic!("{other:?}"),
    }
    mesh.controller.stop().await;
}

#[tokio::test]
async fn certificates_are_for_those_who_prove_themselves() {
    let mesh = Mesh::start().await;
    let (store, other) = (mesh.identity("store"), mesh.identity("other"));
    mesh.shop().await;
    let token = mesh.token("identity.l5d.io").await;
    let roots = mesh.identity.trust_roots.clone();
    let leaf = mesh.certify(&token, &store, &roots).await.unwrap();
    let first = Facts::of(&leaf.into()).unwrap();
    assert_eq!(first.names, [store.as_str()]);
    // Valid for as long as the settings say, and for clocks that differ by as much as they allow, either way.
    let valid = first.not_after.duration_since(first.not_before).unwrap();
    let IdentityConfig { issuance_lifetime, clock_skew, .. } = mesh.config.identity;
    assert_eq!(valid, issuance_lifetime + clock_skew * 2);
    mesh.until(&mesh.path("v1", "events"), |list| {
        list["items"].as_array().unwrap().iter().any(|event| {
            let message = event["message"].as_str().unwrap_or_default();
            event["reason"] == "IssuedLeafCertificate"
                && event["type"] == "Normal"
                && event["involvedObject"]["name"] == "store"
                && event["involvedObject"]["uid"].as_str().is_some_and(|uid| !uid.is_empty())
                && message.starts_with(&format!("issued certificate for {store} until 20"))
                && message.ends_with(&first.sha256)
        })
    })
    .await;

    for (token, identity, code) in [
        (token.clone(), other.as_str(), tonic::Code::FailedPrecondition),
        (mesh.token("https://kubernetes.default.svc").await, store.as_str(), tonic::Code::FailedPrecondition),
        ("nonsense".to_owned(), store.as_str(), tonic::Code::FailedPrecondition),
        (String::new(), store.as_str(), tonic::Code::InvalidArgument),
    ] {
        let refused = mesh.certify(&token, identity, &roots).await.unwrap_err();
        assert_eq!(refused.code(), code, "{}", refused.message());
    }

    // B32: what cannot be used changes nothing; a good issuer signs as soon as it is there.
    let secret = &mesh.control("secrets/linkerd-identity-issuer");
    let mut authorities = mesh.controller.authorities.clone();
    mesh.patch(secret, json!({"data": {"crt.pem": "bm9uc2Vuc2U="}})).await;
    mesh.issuer_event("IssuerUpdateSkipped", "Warning").await;
    let other = IdentityFiles::generate(&mesh.config).unwrap();
    let objects = bootstrap_objects(&mesh.config, &other);
    let foreign = objects.iter().find(|o| o["kind"] == "Secret").unwrap()["data"].clone();
    mesh.patch(secret, json!({"data": foreign})).await;
    mesh.issuer_event("IssuerValidationFailed", "Warning").await;
    let leaf = mesh.certify(&token, &store, &roots).await.unwrap();
    assert_eq!(Facts::of(&leaf.into()).unwrap().issuer, first.issuer);
    let before = authorities.current().unwrap().ca.facts().sha256.clone();
    let both = format!("{roots}{}", other.trust_roots);
    let bundle = &mesh.control("configmaps/linkerd-identity-trust-roots");
    mesh.patch(bundle, json!({"data": {"ca-bundle.crt": both}})).await;
    timeout(LIMIT, async {
        while authorities.current().unwrap().ca.facts().sha256 == before {
            authorities.changed().await;
        }
    })
    .await
    .unwrap();
    let leaf = mesh.certify(&token, &store, &both).await.unwrap();
    let issuer = TrustBundle::parse(&other.issuer_certificate).unwrap();
    assert_eq!(Facts::of(&leaf.into()).unwrap().issuer, Facts::of(&issuer.anchors()[0]).unwrap().subject);
    mesh.issuer_event("IssuerUpdated", "Normal").await;
    mesh.controller.stop().await;
}

/// Schemas refuse what is wrong by itself, the webhook what is wrong together, and the rest has a status.
#[tokio::test]
async fn every_kind_of_policy_is_refused_or_has_a_status() {
    let mesh = Mesh::start().await;
    mesh.shop().await;
    let policies = |kind: &str, name: &str, spec: Value| {
        let version = match kind {
            "Server" | "HTTPRoute" => "policy.linkerd.io/v1beta3",
            "ServerAuthorization" => "policy.linkerd.io/v1beta1",
            "ServiceProfile" => "linkerd.io/v1alpha2",
            "GRPCRoute" => "gateway.networking.k8s.io/v1",
            "TLSRoute" | "TCPRoute" => "gateway.networking.k8s.io/v1alpha2",
            _ => "policy.linkerd.io/v1alpha1",
        };
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": mesh.shop},
            "spec": spec})
    };
    let server = |name: &str| json!({"podSelector": {"matchLabels": {"app": name}}, "port": 8080});

    // 1. By the schema.
    for (kind, spec, reason) in [
        ("Server", json!({"port": 80}), "oneOf"),
        ("Server", json!({"podSelector": {}, "port": 80, "proxyProtocol": "QUIC"}), "proxyProtocol"),
        ("EgressNetwork", json!({"trafficPolicy": "Maybe"}), "trafficPolicy"),
        ("MeshTLSAuthentication", json!({"identities": []}), "identities"),
        ("TCPRoute", json!({"rules": []}), "rules"),
    ] {
        let why = mesh.refused(policies(kind, "bad", spec)).await;
        assert!(why.contains(reason), "{why}");
    }

    // 2. By the webhook.
    for (kind, spec, reason) in [
        ("Server", json!({"podSelector": {}, "port": 80, "accessPolicy": "all"}), "spec.accessPolicy"),
        (
            "NetworkAuthentication",
            json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["11.0.0.0/8"]}]}),
            "except[0]",
        ),
        ("ServiceProfile", json!({"routes": [{"name": "r", "condition": {"pathRegex": "("}}]}), "pathRegex"),
    ] {
        let why = mesh.refused(policies(kind, &mesh.dns("store"), spec)).await;
        assert!(why.contains(reason), "{why}");
    }

    // 3. By status.
    let target = json!({"group": "policy.linkerd.io", "kind": "Server", "name": "store"});
    let service = json!({"group": "core", "kind": "Service", "name": "nobody"});
    for (kind, spec, reason) in [
        ("Server", server("store"), "Accepted"),
        ("MeshTLSAuthentication", json!({"identities": ["*"]}), "Accepted"),
        ("NetworkAuthentication", json!({"networks": [{"cidr": "10.0.0.0/8"}]}), "Accepted"),
        ("AuthorizationPolicy", json!({"targetRef": target, "requiredAuthenticationRefs": []}), "Accepted"),
        (
            "ServerAuthorization",
            json!({"server": {"name": "other"}, "client": {"unauthenticated": true}}),
            "NoMatchingTarget",
        ),
        (
            "HTTPLocalRateLimitPolicy",
            json!({"targetRef": target, "total": {"requestsPerSecond": 5}}),
            "Accepted",
        ),
        (
            "EgressNetwork",
            json!({"trafficPolicy": "Deny", "networks": [{"cidr": "10.77.0.0/16"}]}),
            "EgressReasonNetworkOverlap",
        ),
        ("GRPCRoute", json!({"parentRefs": [service], "rules": [{}]}), "NoMatchingParent"),
        (
            "TLSRoute",
            json!({"parentRefs": [service], "rules": [{"backendRefs": [{"name": "b", "port": 1}]}]}),
            "NoMatchingParent",
        ),
        (
            "TCPRoute",
            json!({"parentRefs": [service], "rules": [{"backendRefs": [{"name": "b", "port": 1}]}]}),
            "NoMatchingParent",
        ),
    ] {
        let object = policies(kind, "store", spec);
        let path = format!("{}/store", collection(&object));
        mesh.create(object).await;
        mesh.until(&path, |object| {
            let status = &object["status"];
            let conditions =
                status["conditions"].as_array().or(status["parents"][0]["conditions"].as_array());
            conditions.is_some_and(|all| {
                all[0]["type"] == "Accepted"
                    && all[0]["reason"] == reason
                    && all[0]["observedGeneration"] == 1
            })
        })
        .await;
    }

    // 4. A second Server for the same port is told, and so are people.
    mesh.pod("store-1", "10.77.0.2").await;
    let second = policies("Server", "zweiter", server("store"));
    let path = format!("{}/zweiter", collection(&second));
    mesh.create(second).await;
    mesh.until(&path, |server| server["status"]["conditions"][1]["type"] == "Conflicted").await;
    mesh.until(&mesh.path("v1", "events"), |events| {
        let all = events["items"].as_array().unwrap();
        all.iter().any(|e| e["reason"] == "ServerOverlap" && e["involvedObject"]["name"] == "zweiter")
    })
    .await;

    // 5. A profile of the client's namespace reaches its proxies.
    let service = mesh
        .create(
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "store", "namespace": mesh.shop},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}),
        )
        .await;
    mesh.create(policies(
        "ServiceProfile",
        &mesh.dns("store"),
        json!({"routes": [{"name": "all", "condition": {"pathRegex": "/.*"}}]}),
    ))
    .await;
    let mut destination = DestinationClient::new(mesh.channel(mesh.controller.addresses.destination).await);
    let get = GetDestination {
        path: format!("{}:80", service["spec"]["clusterIP"].as_str().unwrap()),
        context_token: json!({"ns": mesh.shop, "pod": "web"}).to_string(),
        ..Default::default()
    };
    let mut profiles = destination.get_profile(get).await.unwrap().into_inner();
    while next(&mut profiles).await.routes.is_empty() {}
    mesh.controller.stop().await;
}
#[path = "controller/admission.rs"]
mod admission;
