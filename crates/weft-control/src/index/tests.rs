//! Single facts about the index, and the objects that other tests begin with.

use super::{
    store::{Change, Store, change},
    *,
};
use crate::{
    config::ControllerConfig,
    view::{
        beside::WorkloadName,
        endpoints::{EndpointsOf, EndpointsView},
        inbound::InboundOf,
    },
};
use serde_json::{Value, json};
use weft_kube::kind::Kind;
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

/// A list that comes again replaces the set at once: no moment of it is empty.
#[test]
fn a_relist_is_no_news() {
    let store = Store::new(config());
    let slices =
        || change::<EndpointSlice>(Event::Replaced(vec![Ok(object(slice("s", "a", &[("a", "10.77.0.2")])))]));
    let pods = || change::<Pod>(Event::Replaced(vec![Ok(object(pod("a", "10.77.0.2", true)))]));
    store.apply([put::<Service>(service("a", "10.78.0.2")), slices(), pods()]);
    let mut view = store.subscribe(store_endpoints());
    assert_eq!(identities(&view.borrow_and_update()).len(), 1);
    for relist in [slices(), pods()] {
        store.apply([relist]);
        assert!(!view.has_changed().unwrap());
    }
}

/// F2: which label of which namespace went, and who took it.
#[test]
fn the_journal_names_labels_and_who_changed_them() {
    let store = Store::new(config());
    let shop = |labels: Value, version: &str| {
        put::<Namespace>(json!({"metadata": {"name": "shop", "uid": "u1", "resourceVersion": version,
            "labels": labels, "managedFields": [{"manager": "terraform"}]}}))
    };
    store.apply([change::<Namespace>(Event::Replaced(vec![Ok(object(
        json!({"metadata": {"name": "other"}}),
    ))]))]);
    store.apply([shop(json!({"mesh": "yes", "team": "a"}), "5")]);
    store.apply([shop(json!({"team": "b"}), "6")]);
    let said: Vec<String> = store.journal.find("Namespace shop", 0).into_iter().map(|e| e.text).collect();
    assert!(said[0].starts_with("created by terraform"), "{said:?}");
    for part in ["by terraform", "label mesh removed (was \"yes\")", "label team: \"a\" to \"b\"", "5 to 6"] {
        assert!(said[1].contains(part), "{said:?}");
    }
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
    let view =
        store.subscribe(InboundOf { workload: WorkloadName::Pod(ObjectName::new("shop", "a")), port: 8080 });
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

/// Memory: a cluster has hundreds of thousands of pods, and only as many kinds of them as it has ReplicaSets.
#[test]
fn pods_keep_what_they_have_alike_once() {
    let mut index = Index::default();
    let _ = index.apply::<Pod>(Event::Applied(Arc::new(object(pod("a-1", "10.77.0.2", true)))));
    let _ = index.apply::<Pod>(Event::Applied(Arc::new(object(pod("a-2", "10.77.0.3", true)))));
    let _ = index.apply::<Pod>(Event::Applied(Arc::new(object(pod("b-1", "10.77.0.4", false)))));
    let alike = |index: &Index, one: &str, other: &str| {
        let get = |name| index.pods.get(&ObjectName::new("shop", name)).unwrap().clone();
        let (one, other) = (get(one), get(other));
        let labels = one.metadata.labels.is_one_with(&other.metadata.labels);
        (labels, one.spec.containers.is_one_with(&other.spec.containers))
    };
    assert_eq!(alike(&index, "a-1", "a-2"), (true, true));
    assert_eq!(alike(&index, "a-2", "b-1"), (false, true), "their labels differ");
    // A new version of one is an object of its own at first.
    let _ = index.apply::<Pod>(Event::Applied(Arc::new(object(pod("a-1", "10.77.0.9", true)))));
    assert_eq!(alike(&index, "a-1", "a-2"), (true, true));
}
