//! Whatever happens in whatever order, every subscriber holds what a fresh computation over the objects gives.
//!
//! `WEFT_PROPERTY_CASES=10000 cargo test -p weft-control --lib every_subscriber` runs the full number of sequences.

use super::{
    reader::Reader,
    registry::Subject,
    store::{Change, Store, Stored, change},
    tests::{config, node, object, pod, service, slice},
    *,
};
use crate::{
    config::ControllerConfig,
    view::{
        beside::WorkloadName,
        endpoints::EndpointsOf,
        inbound::InboundOf,
        outbound::{OutboundOf, OutboundTarget},
        profile::{ProfileOf, ProfileTarget},
    },
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::watch;

const NAMES: [&str; 3] = ["a", "b", "c"];
const IPS: [&str; 3] = ["10.77.0.2", "10.77.0.3", "10.77.0.4"];
const CLUSTER_IPS: [&str; 3] = ["10.78.0.2", "10.78.0.3", "None"];
const NODES: [&str; 2] = ["weft", "n2"];
const NODE_IPS: [&str; 2] = ["10.77.0.1", "10.77.1.1"];

/// A write to the API, over few names and addresses so that things collide.
#[derive(Clone, Debug)]
enum Write {
    Pod(PodWrite),
    PodGone(usize),
    Service {
        name: usize,
        ip: usize,
        local: bool,
        opaque: bool,
    },
    ServiceGone(usize),
    Slice {
        name: usize,
        service: usize,
        entries: Vec<(usize, usize)>,
        v6: bool,
    },
    SliceGone(usize),
    Server {
        name: usize,
        app: bool,
        opaque: bool,
        outside: bool,
    },
    ServerGone(usize),
    /// Its kind is removed from the API.
    ServersAbsent,
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
    Profile {
        own: bool,
        service: usize,
        opaque: bool,
    },
    ProfileGone {
        own: bool,
        service: usize,
    },
    External {
        name: usize,
        ip: usize,
        opaque: bool,
    },
    ExternalGone(usize),
    Node {
        name: usize,
        zone: usize,
    },
    NodeGone(usize),
    Namespace {
        opaque: bool,
    },
}

#[derive(Clone, Debug)]
struct PodWrite {
    name: usize,
    ip: usize,
    node: usize,
    age: usize,
    meshed: bool,
    other: bool,
    phase: usize,
    annotated: usize,
    host_port: bool,
    leaving: bool,
}

/// What the watches do. Each kind's events come in order; nothing orders those of two kinds.
#[derive(Clone, Debug)]
enum Step {
    Write(Write),
    /// Up to so many events of one kind arrive, each perhaps twice.
    Deliver {
        kind: usize,
        count: usize,
        twice: bool,
    },
    /// The watch breaks and what was under way is lost: it lists again when it is back.
    Lose(usize),
    /// The watch lists again, though it missed nothing.
    Relist(usize),
}

fn write() -> impl Strategy<Value = Write> {
    let n = || 0..3_usize;
    let two = || 0..2_usize;
    let any = || proptest::bool::ANY;
    let pod = (n(), n(), two(), two(), any(), any(), n(), n(), any(), proptest::bool::weighted(0.2));
    prop_oneof![
        6 => pod.prop_map(
            |(name, ip, node, age, meshed, other, phase, annotated, host_port, leaving)| Write::Pod(PodWrite {
                name, ip, node, age, meshed, other, phase, annotated, host_port, leaving,
            })
        ),
        2 => n().prop_map(Write::PodGone),
        2 => (n(), n(), any(), any())
            .prop_map(|(name, ip, local, opaque)| Write::Service { name, ip, local, opaque }),
        1 => n().prop_map(Write::ServiceGone),
        4 => (n(), n(), proptest::collection::vec((0..5_usize, n()), 0..3), any())
            .prop_map(|(name, service, entries, v6)| Write::Slice { name, service, entries, v6 }),
        1 => n().prop_map(Write::SliceGone),
        2 => (n(), any(), any(), any())
            .prop_map(|(name, app, opaque, outside)| Write::Server { name, app, opaque, outside }),
        1 => n().prop_map(Write::ServerGone),
        1 => Just(Write::ServersAbsent),
        2 => (n(), n(), n())
            .prop_map(|(name, server, refers)| Write::Authorization { name, server, refers }),
        1 => n().prop_map(Write::AuthorizationGone),
        1 => (n(), any()).prop_map(|(name, star)| Write::MeshTls { name, star }),
        1 => n().prop_map(Write::MeshTlsGone),
        2 => (n(), n(), n(), any())
            .prop_map(|(name, parent, backend, bad)| Write::Route { name, parent, backend, bad }),
        1 => n().prop_map(Write::RouteGone),
        2 => (any(), n(), any()).prop_map(|(own, service, opaque)| Write::Profile { own, service, opaque }),
        1 => (any(), n()).prop_map(|(own, service)| Write::ProfileGone { own, service }),
        2 => (two(), n(), any()).prop_map(|(name, ip, opaque)| Write::External { name, ip, opaque }),
        1 => two().prop_map(Write::ExternalGone),
        1 => (two(), two()).prop_map(|(name, zone)| Write::Node { name, zone }),
        1 => two().prop_map(Write::NodeGone),
        1 => any().prop_map(|opaque| Write::Namespace { opaque }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let kind = || 0..KINDS;
    prop_oneof![
        5 => write().prop_map(Step::Write),
        6 => (kind(), 1..4_usize, proptest::bool::weighted(0.2))
            .prop_map(|(kind, count, twice)| Step::Deliver { kind, count, twice }),
        1 => kind().prop_map(Step::Lose),
        1 => kind().prop_map(Step::Relist),
    ]
}

// --- the API and its watches

/// One kind: its objects, what its watch has not delivered yet, and what the controller has heard.
#[derive(Debug)]
struct Feed<K> {
    objects: BTreeMap<ObjectName, Arc<K>>,
    pending: VecDeque<(ObjectName, Option<Arc<K>>)>,
    heard: BTreeMap<ObjectName, Arc<K>>,
    broken: bool,
}

impl<K> Default for Feed<K> {
    fn default() -> Self {
        Feed { objects: BTreeMap::new(), pending: VecDeque::new(), heard: BTreeMap::new(), broken: false }
    }
}

trait Side {
    fn deliver(&mut self, count: usize, twice: bool) -> Vec<Change>;
    fn lose(&mut self);
    fn relist(&mut self) -> Vec<Change>;
    fn heard(&self, index: &mut Index);
    fn settled(&self) -> bool;
}

impl<K: Indexed + Clone> Feed<K> {
    fn put(&mut self, value: Value) {
        let object = Arc::new(object::<K>(value));
        let name = object.meta().key();
        self.objects.insert(name.clone(), object.clone());
        self.pending.push_back((name, Some(object)));
    }

    fn gone(&mut self, namespace: &str, name: &str) {
        let name = ObjectName::new(namespace, name);
        if self.objects.remove(&name).is_some() {
            self.pending.push_back((name, None));
        }
    }

    fn absent(&mut self) -> Change {
        self.objects.clear();
        self.pending.clear();
        self.heard.clear();
        self.broken = false;
        change::<K>(Event::Absent)
    }
}

impl<K: Indexed + Clone> Side for Feed<K> {
    fn deliver(&mut self, count: usize, twice: bool) -> Vec<Change> {
        if self.broken {
            return self.relist();
        }
        let mut changes = Vec::new();
        for (name, object) in self.pending.drain(..count.min(self.pending.len())) {
            match &object {
                Some(object) => self.heard.insert(name.clone(), object.clone()),
                None => self.heard.remove(&name),
            };
            for _ in 0..1 + usize::from(twice) {
                changes.push(match &object {
                    Some(object) => change::<K>(Event::Applied(object.clone())),
                    None => change::<K>(Event::Deleted(name.clone())),
                });
            }
        }
        changes
    }

    fn lose(&mut self) {
        self.broken = true;
        self.pending.clear();
    }

    fn relist(&mut self) -> Vec<Change> {
        self.broken = false;
        self.pending.clear();
        self.heard = self.objects.clone();
        let all = self.objects.values().map(|object| Ok(K::clone(object))).collect();
        vec![change::<K>(Event::Replaced(all))]
    }

    fn heard(&self, index: &mut Index) {
        for object in self.heard.values() {
            index.apply::<K>(Event::Applied(object.clone()));
        }
    }

    fn settled(&self) -> bool {
        self.pending.is_empty() && !self.broken
    }
}

#[derive(Debug, Default)]
struct Api {
    pods: Feed<Pod>,
    services: Feed<Service>,
    slices: Feed<EndpointSlice>,
    servers: Feed<Server>,
    authorizations: Feed<AuthorizationPolicy>,
    mesh_tls: Feed<MeshTlsAuthentication>,
    routes: Feed<PolicyHttpRoute>,
    profiles: Feed<ServiceProfile>,
    externals: Feed<ExternalWorkload>,
    nodes: Feed<Node>,
    namespaces: Feed<Namespace>,
}

const KINDS: usize = 11;

impl Api {
    fn sides(&mut self) -> [&mut dyn Side; KINDS] {
        [
            &mut self.pods,
            &mut self.services,
            &mut self.slices,
            &mut self.servers,
            &mut self.authorizations,
            &mut self.mesh_tls,
            &mut self.routes,
            &mut self.profiles,
            &mut self.externals,
            &mut self.nodes,
            &mut self.namespaces,
        ]
    }

    /// An index into which what was heard came kind by kind, once each.
    fn fresh(&mut self) -> Index {
        let mut index = Index::default();
        for side in self.sides() {
            side.heard(&mut index);
        }
        index
    }

    fn step(&mut self, step: &Step) -> Vec<Change> {
        match step {
            Step::Write(Write::ServersAbsent) => return vec![self.servers.absent()],
            Step::Write(write) => self.write(write),
            Step::Deliver { kind, count, twice } => return self.sides()[*kind].deliver(*count, *twice),
            Step::Lose(kind) => self.sides()[*kind].lose(),
            Step::Relist(kind) => return self.sides()[*kind].relist(),
        }
        Vec::new()
    }

    fn write(&mut self, write: &Write) {
        let in_shop = |name: usize| json!({"name": NAMES[name], "namespace": "shop"});
        let gone = |name: &usize| ("shop", NAMES[*name]);
        match write {
            Write::Pod(pod) => self.pods.put(pod.object()),
            Write::PodGone(name) => self.pods.gone("shop", gone(name).1),
            Write::Service { name, ip, local, opaque } => {
                let mut value = service(NAMES[*name], CLUSTER_IPS[*ip]);
                value["spec"]["internalTrafficPolicy"] = json!(if *local { "Local" } else { "Cluster" });
                if *opaque {
                    value["metadata"]["annotations"] = json!({"config.linkerd.io/opaque-ports": "80"});
                }
                self.services.put(value);
            }
            Write::ServiceGone(name) => self.services.gone("shop", gone(name).1),
            Write::Slice { name, service, entries, v6 } => {
                let mut value = slice(NAMES[*name], NAMES[*service], &[]);
                let address = |ip: usize| match v6 {
                    true => format!("fd77::{ip}"),
                    false => IPS[ip].to_owned(),
                };
                let entries = entries.iter().map(|(what, ip)| {
                    let target = match what {
                        0..3 => json!({"kind": "Pod", "namespace": "shop", "name": NAMES[*what]}),
                        3 => json!({"kind": "ExternalWorkload", "namespace": "shop", "name": "a"}),
                        _ => Value::Null,
                    };
                    json!({"addresses": [address(*ip)], "hostname": NAMES[*ip], "targetRef": target,
                        "nodeName": NODES[ip % 2], "hints": {"forZones": [{"name": format!("z{}", ip % 2)}]}})
                });
                value["endpoints"] = entries.collect();
                self.slices.put(value);
            }
            Write::SliceGone(name) => self.slices.gone("shop", gone(name).1),
            Write::Server { name, app, opaque, outside } => {
                let selector = json!({"matchLabels": {"app": if *app { "store" } else { "other" }}});
                let which = if *outside { "externalWorkloadSelector" } else { "podSelector" };
                self.servers
                    .put(json!({"metadata": in_shop(*name), "spec": {which: selector, "port": "http",
                    "proxyProtocol": if *opaque { "opaque" } else { "HTTP/1" }}}));
            }
            Write::ServerGone(name) => self.servers.gone("shop", gone(name).1),
            Write::ServersAbsent => {}
            Write::Authorization { name, server, refers } => {
                self.authorizations.put(json!({"metadata": in_shop(*name), "spec": {
                    "targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": NAMES[*server]},
                    "requiredAuthenticationRefs": [{"group": "policy.linkerd.io",
                        "kind": "MeshTLSAuthentication", "name": NAMES[*refers]}]}}));
            }
            Write::AuthorizationGone(name) => self.authorizations.gone("shop", gone(name).1),
            Write::MeshTls { name, star } => {
                let id = if *star { "*" } else { "x.shop.serviceaccount.identity.linkerd.cluster.local" };
                self.mesh_tls.put(json!({"metadata": in_shop(*name), "spec": {"identities": [id]}}));
            }
            Write::MeshTlsGone(name) => self.mesh_tls.gone("shop", gone(name).1),
            Write::Route { name, parent, backend, bad } => {
                let path = json!({"type": if *bad { "Surprise" } else { "Exact" }, "value": "/x"});
                self.routes.put(json!({"metadata": in_shop(*name), "spec": {
                    "parentRefs": [
                        {"group": "core", "kind": "Service", "name": NAMES[*parent]},
                        {"group": "policy.linkerd.io", "kind": "Server", "name": NAMES[*parent]}],
                    "rules": [{"matches": [{"path": path}],
                        "backendRefs": [{"name": NAMES[*backend], "port": 80}]}]}}));
            }
            Write::RouteGone(name) => self.routes.gone("shop", gone(name).1),
            Write::Profile { own, service, opaque } => {
                let (namespace, name) = profile_name(*own, *service);
                self.profiles.put(json!({"metadata": {"name": name, "namespace": namespace}, "spec": {
                    "routes": [{"name": namespace, "condition": {"pathRegex": "/x"}}],
                    "opaquePorts": if *opaque { json!(["80"]) } else { json!([]) }}}));
            }
            Write::ProfileGone { own, service } => {
                let (namespace, name) = profile_name(*own, *service);
                self.profiles.gone(namespace, &name);
            }
            Write::External { name, ip, opaque } => {
                let annotations =
                    if *opaque { json!({"config.linkerd.io/opaque-ports": "8080"}) } else { json!({}) };
                self.externals.put(json!({"metadata": {"name": NAMES[*name], "namespace": "shop",
                        "labels": {"app": "store"}, "annotations": annotations},
                    "spec": {"meshTLS": {"identity": "spiffe://x/vm", "serverName": "vm.example"},
                        "ports": [{"name": "http", "port": 8080}], "workloadIPs": [{"ip": IPS[*ip]}]}}));
            }
            Write::ExternalGone(name) => self.externals.gone("shop", gone(name).1),
            Write::Node { name, zone } => {
                let mut value = node();
                value["metadata"] = json!({"name": NODES[*name],
                    "labels": {"topology.kubernetes.io/zone": format!("z{zone}")}});
                value["status"]["addresses"][0]["address"] = json!(NODE_IPS[*name]);
                self.nodes.put(value);
            }
            Write::NodeGone(name) => self.nodes.gone("", NODES[*name]),
            Write::Namespace { opaque } => {
                let ports = if *opaque { "80,8080" } else { "" };
                self.namespaces.put(json!({"metadata": {"name": "shop",
                    "annotations": {"config.linkerd.io/opaque-ports": ports}}}));
            }
        }
    }
}

impl PodWrite {
    fn object(&self) -> Value {
        let mut value = pod(NAMES[self.name], IPS[self.ip], self.meshed);
        value["metadata"]["creationTimestamp"] = json!(format!("2026-01-0{}T00:00:00Z", 1 + self.age));
        if self.other {
            value["metadata"]["labels"]["app"] = json!("other");
            value["spec"]["serviceAccountName"] = json!("other");
        }
        match self.annotated {
            0 => {}
            1 => value["metadata"]["annotations"] = json!({"config.linkerd.io/opaque-ports": "http"}),
            _ => value["metadata"]["annotations"] = json!({"config.linkerd.io/skip-inbound-ports": "8080"}),
        }
        if self.leaving {
            value["metadata"]["deletionTimestamp"] = json!("2026-01-05T00:00:00Z");
        }
        if self.host_port {
            value["spec"]["containers"][0]["ports"][0]["hostPort"] = json!(9080);
        }
        value["spec"]["nodeName"] = json!(NODES[self.node]);
        value["status"]["phase"] = json!(["Pending", "Running", "Succeeded"][self.phase]);
        value["status"]["hostIP"] = json!(NODE_IPS[self.node]);
        value["status"]["podIPs"] = json!([{"ip": IPS[self.ip]}, {"ip": format!("fd77::{}", self.ip)}]);
        value
    }
}

fn profile_name(own: bool, service: usize) -> (&'static str, String) {
    (if own { "web" } else { "shop" }, format!("{}.shop.svc.cluster.local", NAMES[service]))
}

// --- the subscribers

struct Watched<S: Subject>(Vec<(S, watch::Receiver<S::View>)>);

impl<S: Stored + std::fmt::Debug> Watched<S>
where
    S::View: std::fmt::Debug,
{
    fn new(store: &Store, subjects: impl IntoIterator<Item = S>) -> Self {
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

struct Subscribers {
    endpoints: Watched<EndpointsOf>,
    profiles: Watched<ProfileOf>,
    inbound: Watched<InboundOf>,
    outbound: Watched<OutboundOf>,
}

impl Subscribers {
    fn new(store: &Store) -> Self {
        let name = |n: &str| ObjectName::new("shop", n);
        let addrs: Vec<std::net::SocketAddr> = [
            "10.77.0.2:8080",
            "10.77.0.3:8080",
            "10.77.0.4:8080",
            "10.77.0.2:4191",
            "[fd77::1]:8080",
            "10.78.0.2:80",
            "10.78.0.2:81",
            "10.78.0.3:80",
            "10.77.0.1:9080",
            "10.77.1.1:80",
            "192.0.2.1:80",
        ]
        .iter()
        .map(|addr| addr.parse().unwrap())
        .collect();
        let endpoints = NAMES.iter().flat_map(|n| {
            [(None, Some("weft")), (Some("b"), None)].map(|(hostname, client_node)| EndpointsOf {
                service: name(n),
                port: 80,
                hostname: hostname.map(str::to_owned),
                client_node: client_node.map(str::to_owned),
            })
        });
        let targets = addrs.iter().map(|addr| ProfileTarget::Addr(*addr));
        let targets = targets.chain([
            ProfileTarget::Service { service: name("a"), port: 80 },
            ProfileTarget::Member { service: name("b"), hostname: "b".to_owned(), port: 8080 },
        ]);
        let profiles = targets.map(|target| ProfileOf {
            target,
            client_node: Some("n2".to_owned()),
            client_namespace: "web".to_owned(),
        });
        let workloads =
            NAMES.iter().flat_map(|n| [WorkloadName::Pod(name(n)), WorkloadName::External(name(n))]);
        let inbound = workloads
            .flat_map(|workload| [8080, 9090].map(|port| InboundOf { workload: workload.clone(), port }));
        let outbound = addrs.iter().map(|addr| OutboundOf {
            target: OutboundTarget::Addr(*addr),
            client_namespace: "shop".to_owned(),
        });
        Subscribers {
            endpoints: Watched::new(store, endpoints),
            profiles: Watched::new(store, profiles),
            inbound: Watched::new(store, inbound),
            outbound: Watched::new(store, outbound),
        }
    }

    fn check(&self, index: &Index, config: &ControllerConfig) -> Result<(), TestCaseError> {
        self.endpoints.check(index, config)?;
        self.profiles.check(index, config)?;
        self.inbound.check(index, config)?;
        self.outbound.check(index, config)
    }
}

fn cases() -> u32 {
    std::env::var("WEFT_PROPERTY_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn every_subscriber_holds_what_the_objects_say(
        ipv6 in any::<bool>(),
        steps in proptest::collection::vec((step(), any::<bool>()), 1..80),
    ) {
        let store = Store::new(ControllerConfig { ipv6, zone_weights: ipv6, ..config() });
        let subscribers = Subscribers::new(&store);
        let mut api = Api::default();
        let mut batch = Vec::new();
        for (step, more) in &steps {
            batch.extend(api.step(step));
            // Some changes are applied together, as they come from the queue.
            if *more || batch.is_empty() {
                continue;
            }
            store.apply(batch.drain(..));
            subscribers.check(&api.fresh(), &store.config)?;
        }
        // In the end everything is heard of: a broken watch has listed again.
        batch.extend(api.sides().into_iter().flat_map(|side| side.deliver(usize::MAX, false)));
        prop_assert!(api.sides().iter().all(|side| side.settled()));
        store.apply(batch);
        subscribers.check(&api.fresh(), &store.config)?;
    }
}
