//! The controller as its Deployment runs it: the program, with the account of the manifests and no other right.

use crate::{
    controller::own_address,
    harness::{Cluster, shown},
};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

/// The Services whose port is the webhooks'.
const WEBHOOKS: [&str; 3] = ["linkerd-proxy-injector", "linkerd-sp-validator", "linkerd-policy-validator"];
/// As in the manifests.
const WEBHOOK_PORT: u16 = 8443;
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/linkerd-proxy-injector-webhook-config";

/// A controller that runs; killed when dropped.
struct Running {
    process: Child,
    log: tempfile::NamedTempFile,
}

impl Running {
    fn log(&self) -> String {
        fs::read_to_string(self.log.path()).expect("the log")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- the controller's log\n{}", self.log());
        }
    }
}

impl Cluster {
    /// Starts the program in the place of the Deployment's pod, and leads the webhooks' Services to it.
    fn controller(&self) -> Running {
        let bind = own_address();
        let account = (self.control.as_str(), "weft-controller");
        let kubeconfig =
            self.runtime.block_on(self.api.kubeconfig_for(self.api.address(), Some(account), "default"));
        let log = tempfile::NamedTempFile::new().expect("a file");
        let process = Command::new(env!("CARGO_BIN_EXE_weft"))
            .args(["controller", "-L", &self.control, "--bind", &bind.to_string(), "--kubeconfig"])
            .arg(kubeconfig.path())
            .stdin(Stdio::null())
            .stderr(File::create(log.path()).expect("the log"))
            .spawn()
            .expect("weft starts");
        let running = Running { process, log };
        let to = SocketAddr::from((bind, WEBHOOK_PORT));
        let at = self.runtime.block_on(self.api.reachable(to));
        for service in WEBHOOKS {
            let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": format!("{service}-test"), "namespace": self.control, "labels": {
                    "kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": "weft-tests"}},
                "addressType": "IPv4", "ports": [{"name": "webhook", "port": at.port()}],
                "endpoints": [{"addresses": [at.ip().to_string()], "conditions": {"ready": true}}]});
            self.apply(&slice.to_string());
        }
        // The kubeconfig was read before the first answer of the API.
        self.until(HOOKS, |hooks| {
            let all = hooks["webhooks"].as_array().expect("webhooks");
            all.iter().all(|hook| hook["clientConfig"]["caBundle"].is_string())
        });
        running
    }

    fn path(&self, version: &str, rest: &str) -> String {
        format!("{version}/namespaces/{}/{rest}", self.apps)
    }
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "web", "image": "web", "ports": [{"name": "http", "containerPort": 80}]}]}})
}

#[test]
fn the_rights_of_the_manifests_are_enough() {
    let cluster = Cluster::start();
    if !cluster.apply(&cluster.ok(&["install", "--crds"])) {
        return;
    }
    cluster.apply(&cluster.ok(&["install", "--set", "webhookFailurePolicy=Fail"]));
    let running = cluster.controller();

    // 1. A namespace that opts in is marked, and its pods are injected on their way.
    let opts_in = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": cluster.apps, "annotations": {"linkerd.io/inject": "enabled"}}});
    cluster.apply(&opts_in.to_string());
    cluster.until(&format!("/api/v1/namespaces/{}", cluster.apps), |namespace| {
        namespace["metadata"]["labels"]["weft.dev/inject"] == "enabled"
    });
    cluster.apply(&pod("web").to_string());
    let injected = cluster.get(&["pod", "web"]);
    let containers = injected["spec"]["initContainers"].as_array().expect("what was injected");
    assert_eq!(containers[1]["name"], "linkerd-proxy", "{injected:#}");
    // With what it needs to trust.
    cluster.until(&cluster.path("/api/v1", "configmaps/weft-identity-trust-roots"), |roots| {
        roots["data"].is_object()
    });

    // 2. Policies are refused, or say that they are in force.
    let server = |name: &str, policy: &str| {
        json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": name},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": "http", "accessPolicy": policy}})
        .to_string()
    };
    let refused = cluster.kubectl(&["apply", "-f", "-"], &server("bad", "nobody")).expect("kubectl");
    assert!(shown(&refused).contains("spec.accessPolicy"), "{}", shown(&refused));
    cluster.apply(&server("web", "deny"));
    cluster.until(&cluster.path("/apis/policy.linkerd.io/v1beta3", "servers/web"), |server| {
        server["status"]["conditions"][0]["status"] == "True"
    });

    // 3. An ExternalWorkload gets its slice.
    let workload = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "vm"},
            "spec": {"selector": {"app": "vm"}, "ports": [{"port": 80}]}},
        {"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
            "metadata": {"name": "vm", "labels": {"app": "vm"}},
            "spec": {"meshTLS": {"identity": "spiffe://a/b", "serverName": "a.b"}, "workloadIPs": [{"ip": "192.0.2.1"}]}},
    ]});
    cluster.apply(&workload.to_string());
    cluster.until(&cluster.path("/apis/discovery.k8s.io/v1", "endpointslices"), |slices| {
        let all = slices["items"].as_array().expect("a list");
        all.iter().any(|slice| slice["endpoints"][0]["targetRef"]["name"] == "vm")
    });

    // 4. An upgrade beside it takes nothing away that the controller made, and nothing of it is superfluous.
    cluster.apply(&cluster.ok(&["upgrade"]));
    assert_eq!(cluster.ok(&["prune"]), "");
    cluster.until(HOOKS, |hooks| hooks["webhooks"][0]["clientConfig"]["caBundle"].is_string());

    // 5. In all of that, the API refused it nothing.
    let log = running.log();
    for refusal in ["forbidden", "answered 403"] {
        assert!(!log.contains(refusal), "{log}");
    }

    // 6. Nothing is left but namespaces and definitions.
    let removed = cluster.ok(&["uninstall", "--force"]);
    drop(running);
    let deleted = cluster.kubectl(&["delete", "--wait=false", "-f", "-"], &removed).expect("kubectl");
    assert!(deleted.status.success(), "{}", shown(&deleted));
    let nothing = cluster.weft(&["uninstall", "--force"], "");
    assert_eq!(nothing.status.code(), Some(1), "{}", shown(&nothing));
}
