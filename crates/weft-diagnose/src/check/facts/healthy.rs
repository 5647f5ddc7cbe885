//! Facts of a mesh in which everything is as it should be, for tests to break.

use super::*;
use crate::prom;
use serde_json::json;
use std::time::{Duration, SystemTime};
use weft_fault::{Code, Fault};
use weft_kube::shared::Shared;
use weft_tls::authority::Ca;
use weft_wire::record::{Direction, EntryKind};

pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

/// An object of the API.
pub(crate) fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

/// Labels or annotations with one more.
pub(crate) fn rename(
    of: &BTreeMap<String, String>,
    key: &str,
    value: &str,
) -> Shared<BTreeMap<String, String>> {
    let mut of = of.clone();
    of.insert(key.into(), value.into());
    of.into()
}

/// A meshed pod that has been ready for five minutes. Its app label is its name without the number.
pub(crate) fn pod(namespace: &str, name: &str, ip: &str) -> Pod {
    let app = name.rsplit_once('-').map_or(name, |(app, _)| app);
    Pod {
        object: object(json!({
            "metadata": {"namespace": namespace, "name": name,
                "labels": {"app": app, "linkerd.io/control-plane-ns": "linkerd"},
                "annotations": {"linkerd.io/proxy-version": "0.1.0"}},
            "spec": {"serviceAccountName": app, "containers": [
                {"name": "app", "ports": [{"name": "http", "containerPort": 8080}]}]},
            "status": {"phase": "Running", "podIP": ip, "hostIP": "10.77.0.1"},
        })),
        ready: true,
        ready_since_unix_ms: Some(now().saturating_sub(300_000)),
        waiting: None,
        unschedulable: None,
        proxy: Some(ProxyContainer { ready: true, image: "weft.dev/proxy:0.1.0".into(), anchors: None }),
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("some years are left")
}

/// A fault of a pod's proxy that the journal has.
pub(crate) fn fault(
    facts: &Facts,
    seconds_ago: u64,
    source: &str,
    code: Code,
    evidence: &[(&'static str, &str)],
) -> JournalEntry {
    let fault = evidence.iter().fold(Fault::new(code), |fault, (key, value)| fault.fact(key, value));
    JournalEntry {
        at_unix_ms: facts.now_unix_ms - seconds_ago * 1000,
        source: source.into(),
        subject: String::new(),
        kind: EntryKind::Fault,
        text: String::new(),
        fault: Some(fault.record()),
    }
}

pub(crate) fn record(direction: Direction, started_unix_ms: u64) -> ConnectionRecord {
    object(
        json!({"id": "c1", "direction": direction.as_str(), "client": "10.77.0.11:40000", "started_unix_ms": started_unix_ms,
        "events": [], "requests": 1, "read_bytes": 0, "written_bytes": 0}),
    )
}

/// Other trust anchors and another issuer.
pub(crate) fn with_identity(facts: &mut Facts, roots: &str, issuer: &Ca) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(facts.now_unix_ms);
    facts.plane.roots = Ok(Some(Roots::read(roots)));
    facts.plane.issuer = Ok(Some(Issuer::read(&issuer.certificate_pem(), &issuer.key_pem(), roots, now)));
}

fn proxy(anchor: &str) -> Proxy {
    let seconds = now() / 1000;
    let page = format!(
        "process_start_time_seconds {}\n\
         control_identity_cert_expiration_timestamp_seconds {}\n\
         control_identity_cert_refresh_timestamp_seconds {}\n\
         weft_identity_cert_anchor{{sha256=\"{anchor}\"}} 1\n\
         weft_identity_trust_anchor_expiration_timestamp_seconds{{sha256=\"{anchor}\"}} 4000000000\n\
         weft_cgroup_throttled_seconds_total 0\n",
        seconds - 300,
        seconds + 86_000,
        seconds - 300,
    );
    let clock = Some(Skew { ahead_ms: 0, within_ms: 600 });
    Proxy { samples: prom::parse(&page, |_| true), later: None, connections: Some(Vec::new()), clock }
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

/// A mesh of `weft up` with the pods `shop/web-1` and `shop/store-1`, the latter behind a Service.
pub(crate) fn healthy() -> Facts {
    let root = Ca::root("root", DAY * 365).expect("a root");
    let issuer = root.issuer("issuer", DAY * 365).expect("an issuer");
    let pods = vec![pod("shop", "web-1", "10.77.0.11"), pod("shop", "store-1", "10.77.0.12")];
    let proxies = pods.iter().map(|pod| (pod.name(), Ok(proxy(&root.facts().sha256)))).collect();
    let until = SystemTime::now() + DAY * 365;
    let hook = || Ok(Some(Hook { accepted: Ok(until) }));
    let clock = Skew { ahead_ms: 100, within_ms: 600 };
    let store_identity = "store.shop.serviceaccount.identity.linkerd.cluster.local";
    let mut facts = Facts {
        asked: Asked {
            control_namespace: "linkerd".into(),
            cni_namespace: "linkerd-cni".into(),
            namespace: None,
            cni_enabled: false,
            own_version: "0.1.0".into(),
            expected_version: None,
            commands: BTreeSet::new(),
        },
        now_unix_ms: now(),
        client: Ok(()),
        kubernetes: Ok("v1.33.0".into()),
        api_clock: Ok(clock),
        namespaces: Ok(vec![
            object(json!({"name": "linkerd", "annotations": {"linkerd.io/inject": "disabled"}})),
            object(json!({"name": "shop", "annotations": {"linkerd.io/inject": "enabled"}})),
        ]),
        nodes: Ok(vec![Node {
            name: "one".into(),
            ready: true,
            runtime: "containerd://2.0".into(),
            networks: vec!["10.77.0.0/24".into()],
        }]),
        definitions: Ok(super::super::names::DEFINITIONS
            .iter()
            .chain(&super::super::names::GATEWAY_DEFINITIONS)
            .map(|name| (*name).to_owned())
            .collect()),
        plane: ControlPlane {
            config: Ok(Some(Config {
                created_by: "weft/up 0.1.0".into(),
                values: json!({"clusterNetworks": "10.77.0.0/16,10.78.0.0/16", "proxy": {"opaquePorts": "25"}}),
                flaw: None,
            })),
            accounts: Ok(super::super::names::ACCOUNTS.iter().map(|name| (*name).to_owned()).collect()),
            cluster_roles: Ok(BTreeSet::new()),
            cluster_role_bindings: Ok(BTreeSet::new()),
            mutating: Ok(names(super::super::names::MUTATING)),
            validating: Ok(names(super::super::names::VALIDATING)),
            workloads: Ok(Vec::new()),
            roots: Ok(None),
            issuer: Ok(None),
            hooks: [hook(), hook(), hook()],
        },
        pods: Ok(pods),
        services: Ok(vec![object(json!({"metadata": {"name": "store", "namespace": "shop"},
            "spec": {"clusterIP": "10.78.0.10", "selector": {"app": "store"},
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}}))]),
        slices: Ok(vec![
            slice("shop", "store", "http", "10.77.0.12", 8080),
            slice("linkerd", "linkerd-dst-headless", "grpc", "10.77.0.1", 8086),
        ]),
        policies: Policies {
            servers: Ok(Vec::new()),
            server_authorizations: Ok(Vec::new()),
            authorization_policies: Ok(Vec::new()),
            mesh_tls: Ok(Vec::new()),
            networks: Ok(Vec::new()),
            routes: Ok(BTreeSet::new()),
            accounts: Ok(BTreeSet::from([ObjectName::new("shop", "web"), ObjectName::new("shop", "store")])),
            network_policies: Ok(Vec::new()),
            unreadable: Vec::new(),
            engines: Ok(Vec::new()),
        },
        proxies,
        controller: Some(Ok(Controller {
            waits: None,
            clock: Some(clock),
            samples: prom::parse("weft_api_silence_seconds 0.2\nissuer_cert_ttl_seconds 31536000\n", |_| {
                true
            }),
            journal: Ok(Vec::new()),
            endpoints: vec![ServiceView {
                service: ObjectName::new("shop", "store"),
                port: 80,
                endpoints: Ok(vec![("10.77.0.12:8080".into(), store_identity.into())]),
            }],
            not_asked: 0,
        })),
        cni: Cni { config_map: Ok(false), account: Ok(false), daemon_set: Ok(None) },
        rights: Ok(Vec::new()),
    };
    with_identity(&mut facts, &root.certificate_pem(), &issuer);
    facts
}

fn slice(namespace: &str, service: &str, port: &str, ip: &str, number: u16) -> EndpointSlice {
    object(
        json!({"metadata": {"namespace": namespace, "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "endpoints": [{"addresses": [ip], "conditions": {"ready": true}}],
        "ports": [{"name": port, "port": number}]}),
    )
}

/// The same mesh as `weft install` makes it: the controller is the first of the pods.
pub(crate) fn installed() -> Facts {
    let mut facts = healthy();
    let mut controller = pod("linkerd", "weft-controller-1", "10.77.0.10");
    controller.object.metadata.labels =
        BTreeMap::from([(super::super::names::COMPONENT.to_owned(), "controller".to_owned())]).into();
    controller.proxy = None;
    if let Ok(pods) = &mut facts.pods {
        pods.insert(0, controller);
    }
    let config = Config {
        created_by: "weft/cli 0.1.0".into(),
        values: json!({"clusterNetworks": "10.0.0.0/8", "linkerdVersion": "0.1.0"}),
        flaw: None,
    };
    let plane = &mut facts.plane;
    plane.config = Ok(Some(config));
    if let Ok(accounts) = &mut plane.accounts {
        accounts.insert(super::super::names::WEFT_CONTROLLER.into());
    }
    plane.cluster_roles = Ok(names(["weft-linkerd-controller"]));
    plane.cluster_role_bindings = Ok(names(["weft-linkerd-controller"]));
    plane.workloads =
        Ok(vec![Workload { kind: "Deployment", name: "weft-controller".into(), wanted: 1, ready: 1 }]);
    facts.slices = Ok(vec![
        slice("shop", "store", "http", "10.77.0.12", 8080),
        slice("linkerd", "linkerd-dst-headless", "grpc", "10.77.0.10", 8086),
    ]);
    facts
}
