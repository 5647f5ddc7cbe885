//! Every CustomResourceDefinition of ours through `kubectl`, as people use it.

use serde_json::{Value, json};
use std::{io::Write, path::Path, process::Stdio, time::Duration};
use tokio::{process::Command, time::timeout};
use weft_control::bootstrap::crds;

#[path = "support/cluster.rs"]
mod cluster;
use cluster::Cluster;

const LIMIT: Duration = Duration::from_secs(60);

struct Kubectl {
    cluster: Cluster,
    namespace: String,
    cache: tempfile::TempDir,
}

impl Kubectl {
    /// Runs it with these arguments and this input: whether it succeeded, and all that it printed.
    async fn run(&self, arguments: &str, input: &str) -> (bool, String) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(input.as_bytes()).unwrap();
        let run = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .args(["--namespace", &self.namespace])
            .arg("--cache-dir")
            .arg(self.cache.path())
            .args(arguments.split(' '))
            .stdin(std::fs::File::open(file.path()).unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .output();
        let output = timeout(LIMIT, run).await.expect("kubectl in time").unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// Merges into the object `x`.
    async fn patch(&self, resource: &str, patch: &str) -> (bool, String) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(patch.as_bytes()).unwrap();
        self.run(&format!("patch {resource} x --type merge --patch-file {}", file.path().display()), "").await
    }

    async fn does(&self, arguments: &str, input: &str) -> String {
        let (done, text) = self.run(arguments, input).await;
        assert!(done, "kubectl {arguments}: {text}\n{input}");
        text
    }
}

async fn kubectl() -> Option<Kubectl> {
    if !std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| is_there(&dir))) {
        eprintln!("SKIPPED: there is no kubectl in PATH");
        return None;
    }
    let cluster = Cluster::start().await;
    for definition in crds::linkerd().into_iter().chain(crds::gateway()) {
        cluster.define(&definition).await;
    }
    // What another test's webhooks say is no matter of this one.
    let labels = json!({"labels": {"config.linkerd.io/admission-webhooks": "disabled"}});
    let namespace = cluster.namespace("kubectl", labels).await;
    Some(Kubectl { cluster, namespace, cache: tempfile::tempdir().unwrap() })
}

fn is_there(dir: &Path) -> bool {
    dir.join("kubectl").is_file()
}

/// Version, kind, a good spec, and what makes a bad one of it: a field and its value.
const KINDS: [(&str, &str, &str, &str); 15] = [
    ("policy.linkerd.io/v1beta3", "Server", "{podSelector: {}, port: http}", "proxyProtocol: QUIC"),
    (
        "policy.linkerd.io/v1beta1",
        "ServerAuthorization",
        "{server: {name: x}, client: {unauthenticated: true}}",
        "server: {name: x, selector: {}}",
    ),
    (
        "policy.linkerd.io/v1alpha1",
        "AuthorizationPolicy",
        "{targetRef: {group: policy.linkerd.io, kind: Server, name: x}, requiredAuthenticationRefs: []}",
        "targetRef: {kind: Pod, name: x}",
    ),
    ("policy.linkerd.io/v1alpha1", "MeshTLSAuthentication", "{identities: ['*']}", "identities: []"),
    (
        "policy.linkerd.io/v1alpha1",
        "NetworkAuthentication",
        "{networks: [{cidr: 10.0.0.0/8}]}",
        "networks: []",
    ),
    (
        "policy.linkerd.io/v1beta3",
        "HTTPRoute",
        "{parentRefs: [{group: core, kind: Service, name: x}], rules: [{timeouts: {request: 1s}}]}",
        "rules: [{timeouts: {request: soon}}]",
    ),
    (
        "policy.linkerd.io/v1alpha1",
        "HTTPLocalRateLimitPolicy",
        "{targetRef: {group: policy.linkerd.io, kind: Server, name: x}, total: {requestsPerSecond: 7}}",
        "total: {requestsPerSecond: 0}",
    ),
    ("policy.linkerd.io/v1alpha1", "EgressNetwork", "{trafficPolicy: Deny}", "trafficPolicy: Maybe"),
    (
        "linkerd.io/v1alpha2",
        "ServiceProfile",
        "{routes: [{name: r, condition: {all: [{any: [{not: {method: GET}}]}]}}]}",
        "routes: [{name: ''}]",
    ),
    (
        "workload.linkerd.io/v1beta1",
        "ExternalWorkload",
        "{meshTLS: {identity: a.b, serverName: a.b}, workloadIPs: [{ip: 192.0.2.1}]}",
        "workloadIPs: [{ip: a}, {ip: b}, {ip: c}]",
    ),
    (
        "multicluster.linkerd.io/v1alpha3",
        "Link",
        "{targetClusterName: east, clusterCredentialsSecret: s}",
        "targetClusterName: ''",
    ),
    (
        "gateway.networking.k8s.io/v1",
        "GRPCRoute",
        "{rules: [{matches: [{method: {service: a.B}}]}]}",
        "rules: [{matches: [{method: {type: Fuzzy}}]}]",
    ),
    (
        "gateway.networking.k8s.io/v1alpha2",
        "TLSRoute",
        "{rules: [{backendRefs: [{name: a, port: 1}]}]}",
        "rules: []",
    ),
    (
        "gateway.networking.k8s.io/v1alpha2",
        "TCPRoute",
        "{rules: [{backendRefs: [{name: a, port: 1}]}]}",
        "rules: []",
    ),
    (
        "gateway.networking.k8s.io/v1beta1",
        "ReferenceGrant",
        "{from: [{group: g, kind: k, namespace: web}], to: [{group: '', kind: Service}]}",
        "to: []",
    ),
];

fn yaml(version: &str, kind: &str, spec: &str) -> String {
    format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n")
}

#[tokio::test]
async fn definitions_work_with_kubectl() {
    let Some(kubectl) = kubectl().await else { return };
    for (version, kind, good, bad) in KINDS {
        let group = version.split('/').next().unwrap();
        let resource = format!("{kind}.{group}");
        let created = kubectl.does("apply -f -", &yaml(version, kind, good)).await;
        assert!(created.contains("created"), "{created}");
        let again = kubectl.does("apply -f -", &yaml(version, kind, good)).await;
        // Defaults inside of lists make an object differ from itself; the Gateway API has them all the same.
        let same = again.contains("unchanged") || group == "gateway.networking.k8s.io";
        assert!(same, "{kind}: {again}");
        // The bad field replaces the good one, or stands beside the others.
        let field = bad.split(':').next().unwrap();
        // kubectl takes what begins with a brace for JSON.
        let patch = format!("spec: {{{bad}}}");
        let (done, why) = kubectl.patch(&resource, &patch).await;
        assert!(!done && (why.contains(field) || why.contains("oneOf")), "{kind} {bad}: {why}");
        // Fields of the Gateway API that we do not know are for those who do.
        if group != "gateway.networking.k8s.io" {
            let surprise = good.replacen('{', "{surprise: 1, ", 1);
            let (done, why) = kubectl.run("apply -f -", &yaml(version, kind, &surprise)).await;
            assert!(!done && why.contains("surprise"), "{kind}: {why}");
        }
        kubectl.does(&format!("delete {resource} x --wait=false"), "").await;
    }
}

#[tokio::test]
async fn kubectl_explains_and_lists() {
    let Some(kubectl) = kubectl().await else { return };
    for (field, expected) in [
        ("servers.spec.accessPolicy", "Who may call besides those whom authorizations allow"),
        ("srv.spec.proxyProtocol", "How the port's bytes are read"),
        ("serviceprofiles.spec.routes.isRetryable", "failures are tried again"),
        ("egressnetworks.spec.trafficPolicy", "traffic that no route takes"),
        ("grpcroutes.spec.rules.matches.method", "service and method"),
        ("httplocalratelimitpolicies.status.conditions.reason", "Why, in one word"),
    ] {
        let text = kubectl.does(&format!("explain {field}"), "").await;
        assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(expected), "{field}: {text}");
    }
    kubectl
        .does("apply -f -", &yaml("policy.linkerd.io/v1beta3", "Server", "{podSelector: {}, port: 8080}"))
        .await;
    let listed = kubectl.does("get srv", "").await;
    for expected in ["PORT", "PROTOCOL", "ACCESS POLICY", "8080", "unknown", "deny"] {
        assert!(listed.contains(expected), "{listed}");
    }
    // Old versions of a kind are the same objects.
    let old = kubectl.does("get servers.v1beta1.policy.linkerd.io x -o json", "").await;
    let old: Value = serde_json::from_str(&old).unwrap();
    assert_eq!(
        (&old["apiVersion"], &old["spec"]["accessPolicy"]),
        (&"policy.linkerd.io/v1beta1".into(), &"deny".into())
    );
}
