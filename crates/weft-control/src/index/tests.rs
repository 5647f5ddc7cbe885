//! Whatever happens in whatever order, every subscriber holds what a fresh computation over the objects gives.

use super::{
    reader::Reader,
    registry::Subject,
    store::{Change, Store, Stored, change},
    *,
};
use crate::{
    config::ControllerConfig,
    view::{
        endpoints::{EndpointsOf, EndpointsView},
        inbound::InboundOf,
        outbound::{OutboundOf, OutboundTarget},
        profile::{ProfileOf, ProfileTarget},
    },
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::sync::watch;
use weft_model::outbound::Endpoints;

pub(crate) fn config() -> ControllerConfig {
    ControllerConfig::new(
        "127.0.0.1".parse().unwrap(),
        vec!["10.77.0.0/16".parse().unwrap(), "10.78.0.0/16".parse().unwrap()],
    )
}

pub(crate) fn object<K: Kind>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn pod(name: &str, ip: &str, meshed: bool) -> Value {
    let labels = match meshed {
        true => json!({"app": "store", "linkerd.io/control-plane-ns": "linkerd"}),
        false => json!({"app": "store"}),
    };
    json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": labels,
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "weft", "serviceAccountName": "store",
            "initContainers": [{"name": "linkerd-proxy",
                "env": [{"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"}]}],
            "containers": [{"name": "store", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": ip},
    })
}

pub(crate) fn service(name: &str, ip: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": ip, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    })
}

pub(crate) fn slice(name: &str, service: &str, pods: &[(&str, &str)]) -> Value {
    let endpoints: Vec<Value> = pods
        .iter()
        .map(|(pod, ip)| {
            json!({"addresses": [ip], "conditions": {"ready": true},
                "targetRef": {"kind": "Pod", "namespace": "shop", "name": pod}})
        })
        .collect();
    json!({
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints,
    })
}

pub(crate) fn node() -> Value {
    json!({"metadata": {"name": "weft", "labels": {"topology.kubernetes.io/zone": "z1"}},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.77.0.1"}]}})
}

pub(crate) fn put<K: Indexed>(value: Value) -> Change {
    change::<K>(Event::Applied(Arc::new(object(value))))
}

pub(crate) fn gone<K: Indexed>(name: &str) -> Change {
    change::<K>(Event::Deleted(ObjectName::new("shop", name)))
}

// --- the property

/// Everything that can happen, over few names so that things collide.
#[derive(Clone, Debug)]
enum Step {
    Pod {
        name: usize,
        ip: usize,
        meshed: bool,
        phase: usize,
        opaque: bool,
    },
    PodGone(usize),
    Service {
        name: usize,
        ip: usize,
    },
    ServiceGone(usize),
    Slice {
        name: usize,
        service: usize,
        pods: Vec<usize>,
    },
    SliceGone(usize),
    Server {
        name: usize,
        app: bool,
        opaque: bool,
    },
    ServerGone(usize),
    Authorization {
        name: usize,
        server: usize,
        refers: usize,
    },
    AuthorizationGone(usize),
    MeshTls {
        name: usize,
        star: bool,
    },
    MeshTlsGone(usize),
    Route {
        name: usize,
        parent: usize,
        backend: usize,
        bad: bool,
    },
    RouteGone(usize),
    Node(bool),
    NamespaceOpaque(bool),
    /// All pods again as one list.
    RelistPods,
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const IPS: [&str; 3] = ["10.77.0.2", "10.77.0.3", "10.77.0.4"];
const CLUSTER_IPS: [&str; 2] = ["10.78.0.2", "10.78.0.3"];

fn step() -> impl Strategy<Value = Step> {
    let n = 0..3_usize;
    prop_oneof![
        4 => (n.clone(), n.clone(), any::<bool>(), 0..3_usize, any::<bool>())
            .prop_map(|(name, ip, meshed, phase, opaque)| Step::Pod { name, ip, meshed, phase, opaque }),
        1 => n.clone().prop_map(Step::PodGone),
        2 => (n.clone(), 0..2_usize).prop_map(|(name, ip)| Step::Service { name, ip }),
        1 => n.clone().prop_map(Step::ServiceGone),
        3 => (n.clone(), n.clone(), proptest::collection::vec(0..3_usize, 0..3))
            .prop_map(|(name, service, pods)| Step::Slice { name, service, pods }),
        1 => n.clone().prop_map(Step::SliceGone),
        2 => (n.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(name, app, opaque)| Step::Server { name, app, opaque }),
        1 => n.clone().prop_map(Step::ServerGone),
        2 => (n.clone(), n.clone(), n.clone())
            .prop_map(|(name, server, refers)| Step::Authorization { name, server, refers }),
        1 => n.clone().prop_map(Step::AuthorizationGone),
        2 => (n.clone(), any::<bool>()).prop_map(|(name, star)| Step::MeshTls { name, star }),
        1 => n.clone().prop_map(Step::MeshTlsGone),
        2 => (n.clone(), n.clone(), n.clone(), any::<bool>())
            .prop_map(|(name, parent, backend, bad)| Step::Route { name, parent, backend, bad }),
        1 => n.prop_map(Step::RouteGone),
        1 => any::<bool>().prop_map(Step::Node),
        1 => any::<bool>().prop_map(Step::NamespaceOpaque),
        1 => Just(Step::RelistPods),
    ]
}

/// The objects that there are now: what an API server would hold.
type World = BTreeMap<(&'static str, String), Value>;

fn apply(world: &mut World, step: &Step) -> Change {
    let mut keep = |kind: &'static str, value: Value| {
        world.insert((kind, value["metadata"]["name"].as_str().unwrap().to_owned()), value.clone());
        value
    };
    match step {
        Step::Pod { name, ip, meshed, phase, opaque } => {
            let mut value = pod(NAMES[*name], IPS[*ip], *meshed);
            value["status"]["phase"] = json!(["Pending", "Running", "Succeeded"][*phase]);
            if *opaque {
                value["metadata"]["annotations"] = json!({"config.linkerd.io/opaque-ports": "http"});
            }
            put::<Pod>(keep("Pod", value))
        }
        Step::Service { name, ip } => {
            put::<Service>(keep("Service", service(NAMES[*name], CLUSTER_IPS[*ip])))
        }
        Step::Slice { name, service, pods } => {
            let pods: Vec<_> = pods.iter().map(|p| (NAMES[*p], IPS[*p])).collect();
            put::<EndpointSlice>(keep("EndpointSlice", slice(NAMES[*name], NAMES[*service], &pods)))
        }
        Step::Server { name, app, opaque } => put::<Server>(keep(
            "Server",
            json!({"metadata": {"name": NAMES[*name], "namespace": "shop"}, "spec": {
                "podSelector": {"matchLabels": {"app": if *app { "store" } else { "other" }}}, "port": "http",
                "proxyProtocol": if *opaque { "opaque" } else { "HTTP/1" }}}),
        )),
        Step::Authorization { name, server, refers } => put::<AuthorizationPolicy>(keep(
            "AuthorizationPolicy",
            json!({"metadata": {"name": NAMES[*name], "namespace": "shop"}, "spec": {
                "targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": NAMES[*server]},
                "requiredAuthenticationRefs": [{"group": "policy.linkerd.io", "kind": "MeshTLSAuthentication",
                    "name": NAMES[*refers]}]}}),
        )),
        Step::MeshTls { name, star } => put::<MeshTlsAuthentication>(keep(
            "MeshTLSAuthentication",
            json!({"metadata": {"name": NAMES[*name], "namespace": "shop"},
                "spec": {"identities": [if *star { "*" } else { "x.shop.serviceaccount.identity.linkerd.cluster.local" }]}}),
        )),
        Step::Route { name, parent, backend, bad } => put::<PolicyHttpRoute>(keep(
            "HTTPRoute",
            json!({"metadata": {"name": NAMES[*name], "namespace": "shop"}, "spec": {
                "parentRefs": [
                    {"group": "core", "kind": "Service", "name": NAMES[*parent]},
                    {"group": "policy.linkerd.io", "kind": "Server", "name": NAMES[*parent]}],
                "rules": [{"matches": [{"path": {"type": if *bad { "Surprise" } else { "Exact" }, "value": "/x"}}],
                    "backendRefs": [{"name": NAMES[*backend], "port": 80}]}]}}),
        )),
        Step::Node(true) => put::<Node>(keep("Node", node())),
        Step::NamespaceOpaque(opaque) => put::<Namespace>(keep(
            "Namespace",
            json!({"metadata": {"name": "shop",
                "annotations": {"config.linkerd.io/opaque-ports": if *opaque { "80" } else { "" }}}}),
        )),
        Step::RelistPods => {
            let pods = world.iter().filter(|((kind, _), _)| *kind == "Pod");
            change::<Pod>(Event::Replaced(pods.map(|(_, v)| Ok(object(v.clone()))).collect()))
        }
        Step::PodGone(n) => forget::<Pod>(world, "Pod", *n),
        Step::ServiceGone(n) => forget::<Service>(world, "Service", *n),
        Step::SliceGone(n) => forget::<EndpointSlice>(world, "EndpointSlice", *n),
        Step::ServerGone(n) => forget::<Server>(world, "Server", *n),
        Step::AuthorizationGone(n) => forget::<AuthorizationPolicy>(world, "AuthorizationPolicy", *n),
        Step::MeshTlsGone(n) => forget::<MeshTlsAuthentication>(world, "MeshTLSAuthentication", *n),
        Step::RouteGone(n) => forget::<PolicyHttpRoute>(world, "HTTPRoute", *n),
        Step::Node(false) => {
            world.remove(&("Node", "weft".to_owned()));
            change::<Node>(Event::Deleted(ObjectName::new("", "weft")))
        }
    }
}

fn forget<K: Indexed>(world: &mut World, kind: &'static str, n: usize) -> Change {
    world.remove(&(kind, NAMES[n].to_owned()));
    gone::<K>(NAMES[n])
}

/// An index into which these objects came in the order of the map, once each.
fn fresh(world: &World) -> Index {
    let mut index = Index::default();
    for ((kind, _), value) in world {
        let value = value.clone();
        let change = match *kind {
            "Pod" => put::<Pod>(value),
            "Service" => put::<Service>(value),
            "EndpointSlice" => put::<EndpointSlice>(value),
            "Server" => put::<Server>(value),
            "AuthorizationPolicy" => put::<AuthorizationPolicy>(value),
            "MeshTLSAuthentication" => put::<MeshTlsAuthentication>(value),
            "HTTPRoute" => put::<PolicyHttpRoute>(value),
            "Node" => put::<Node>(value),
            "Namespace" => put::<Namespace>(value),
            other => unreachable!("{other}"),
        };
        change(&mut index);
    }
    index
}

struct Watched<S: Subject>(Vec<(S, watch::Receiver<S::View>)>);

impl<S: Stored + std::fmt::Debug> Watched<S>
where
    S::View: std::fmt::Debug,
{
    fn new(store: &Store, subjects: Vec<S>) -> Self {
        Watched(subjects.into_iter().map(|s| (s.clone(), store.subscribe(s))).collect())
    }
    fn check(&self, index: &Index, config: &ControllerConfig) -> Result<(), TestCaseError> {
        for (subject, view) in &self.0 {
            let expected = subject.compute(&Reader::new(index), config);
            prop_assert_eq!(&*view.borrow(), &expected, "{:?}", subject);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn every_subscriber_holds_what_the_objects_say(
        steps in proptest::collection::vec((step(), any::<bool>()), 1..60),
    ) {
        let store = Store::new(config());
        let name = |n: &str| ObjectName::new("shop", n);
        let endpoints = Watched::new(&store, NAMES.iter().map(|n| EndpointsOf {
            service: name(n), port: 80, hostname: None, client_node: Some("weft".to_owned()),
        }).collect());
        let addrs: Vec<_> = IPS.iter().map(|ip| format!("{ip}:8080"))
            .chain(CLUSTER_IPS.iter().flat_map(|ip| [format!("{ip}:80"), format!("{ip}:81")]))
            .chain(["192.0.2.1:80".to_owned(), "10.77.0.1:80".to_owned()])
            .map(|a| a.parse().unwrap()).collect();
        let profiles = Watched::new(&store, addrs.iter().map(|a| ProfileOf {
            target: ProfileTarget::Addr(*a), client_node: None, client_namespace: "shop".to_owned(),
        }).collect());
        let inbound = Watched::new(&store, NAMES.iter().flat_map(|n| [8080, 9090].map(|port| InboundOf {
            pod: name(n), port,
        })).collect());
        let outbound = Watched::new(&store, addrs.iter().map(|a| OutboundOf {
            target: OutboundTarget::Addr(*a), client_namespace: "shop".to_owned(),
        }).collect());

        let mut world = World::new();
        let mut batch = Vec::new();
        for (step, more) in &steps {
            batch.push(apply(&mut world, step));
            // Some changes are applied together, as they come from the queue.
            if *more {
                continue;
            }
            store.apply(batch.drain(..));
            let index = fresh(&world);
            endpoints.check(&index, &store.config)?;
            profiles.check(&index, &store.config)?;
            inbound.check(&index, &store.config)?;
            outbound.check(&index, &store.config)?;
        }
    }
}

// --- single facts

fn identities(view: &EndpointsView) -> Vec<Option<String>> {
    let EndpointsView::Endpoints(Endpoints::Known(all)) = view else { return Vec::new() };
    all.iter().map(|e| e.identity.id().map(ToString::to_string)).collect()
}

fn store_endpoints() -> EndpointsOf {
    EndpointsOf { service: ObjectName::new("shop", "a"), port: 80, hostname: None, client_node: None }
}

/// B06: a reader that does not read misses states and nothing else.
#[test]
fn a_slow_reader_sees_the_last_state() {
    let store = Store::new(config());
    let mut slow = store.subscribe(store_endpoints());
    store.apply([put::<Service>(service("a", "10.78.0.2"))]);
    for n in 2..200 {
        let ip = format!("10.77.0.{n}");
        store.apply([put::<Pod>(pod("a", &ip, true)), put::<EndpointSlice>(slice("s", "a", &[("a", &ip)]))]);
    }
    let EndpointsView::Endpoints(Endpoints::Known(all)) = slow.borrow_and_update().clone() else { panic!() };
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].addr, "10.77.0.199:8080".parse().unwrap());
    assert!(!slow.has_changed().unwrap());
}

/// B54: a write that changes nothing that matters reaches nobody.
#[test]
fn status_writes_are_not_news() {
    let store = Store::new(config());
    store.apply([
        put::<Service>(service("a", "10.78.0.2")),
        put::<Pod>(pod("a", "10.77.0.2", true)),
        put::<EndpointSlice>(slice("s", "a", &[("a", "10.77.0.2")])),
    ]);
    let mut view = store.subscribe(store_endpoints());
    assert_eq!(identities(&view.borrow_and_update()).len(), 1);
    let before = store.journal.find("", 0).len();
    let mut same = pod("a", "10.77.0.2", true);
    same["metadata"]["resourceVersion"] = json!("99");
    same["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    store.apply([put::<Pod>(same)]);
    assert!(!view.has_changed().unwrap());
    assert_eq!(store.journal.find("", 0).len(), before);
}

/// Subjects that nobody reads are forgotten.
#[test]
fn unread_subjects_go() {
    let store = Store::new(config());
    let view = store.subscribe(store_endpoints());
    assert_eq!(store.sizes().subscribers[0], ("endpoints", 1));
    drop(view);
    store.sweep();
    let core = format!("{:?}", store.sizes().subscribers);
    assert!(core.contains("(\"endpoints\", 0)"), "{core}");
}

/// B56: an object that cannot be read any more stops counting, and the journal says so.
#[test]
fn an_object_that_turns_unreadable_is_void() {
    let store = Store::new(config());
    let server = json!({"metadata": {"name": "s", "namespace": "shop"}, "spec": {
        "podSelector": {}, "port": 8080, "accessPolicy": "all-unauthenticated"}});
    store.apply([put::<Pod>(pod("a", "10.77.0.2", true)), put::<Server>(server)]);
    let view = store.subscribe(InboundOf { pod: ObjectName::new("shop", "a"), port: 8080 });
    assert_eq!(view.borrow().as_ref().unwrap().meta.name(), "s");
    let bad = weft_kube::kind::Undecodable {
        meta: object::<Namespace>(json!({"metadata": {"name": "s", "namespace": "shop"}})).metadata,
        reason: "port: expected a number".to_owned(),
    };
    store.apply([change::<Server>(Event::Undecodable(Box::new(bad)))]);
    assert_eq!(view.borrow().as_ref().unwrap().meta.name(), "all-unauthenticated");
    let texts: Vec<String> = store.journal.find("Server shop/s", 0).into_iter().map(|e| e.text).collect();
    assert!(texts.iter().any(|t| t.contains("expected a number")), "{texts:?}");
}

/// What was there at the start is not a change; what comes later is.
#[test]
fn the_journal_begins_empty() {
    let store = Store::new(config());
    store.apply([change::<Pod>(Event::Replaced(vec![Ok(object(pod("a", "10.77.0.2", true)))]))]);
    assert!(store.journal.find("", 0).is_empty());
    store.apply([change::<Pod>(Event::Replaced(vec![Ok(object(pod("b", "10.77.0.3", true)))]))]);
    let said: Vec<String> = store.journal.find("", 0).into_iter().map(|e| e.subject).collect();
    assert_eq!(said, ["Pod shop/b", "Pod shop/a"]);
}
