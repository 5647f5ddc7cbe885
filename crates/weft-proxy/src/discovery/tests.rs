//! The agent against a scripted controller, over loopback.

mod founding;
mod listed;

use super::{
    Defaults, Destination, Discovery, EndpointsState, Lookup, Shared,
    agent::{self, Idle},
    context::{Confirmer, Context},
    judge::each_endpoint,
};
use crate::{
    config::ControlAddr,
    control::{Dialer, Service, lookup::Limits},
    metrics::Metrics,
    record::Recorder,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;
use tonic::Code as Grpc;
use weft_fault::{Code, Fault};
use weft_model::{
    identity::{PeerIdentity, Unknown},
    inbound::{HttpPolicy, Protocol, ServerPolicy},
    meta::Meta,
    outbound::{Endpoint, Endpoints},
    profile::Profile,
};
use weft_testkit::{
    controller::{Controller, Step},
    pki::{Pki, identity},
    raw::PATIENCE,
};
use weft_wire::mesh::{ConfirmResponse, State};

struct Bench {
    controller: Controller,
    discovery: Discovery,
    cx: Arc<Context>,
}

fn server_policy(name: &str) -> Arc<ServerPolicy> {
    Arc::new(ServerPolicy {
        meta: Arc::new(Meta::default_named(name)),
        protocol: Protocol::Detect { timeout: Duration::from_secs(10), http: HttpPolicy::default() },
        authorizations: Vec::new(),
        audit: false,
    })
}

async fn bench() -> Bench {
    bench_with(None).await
}

async fn bench_with(max_age: Option<Duration>) -> Bench {
    crate::log::to_test_output();
    let pki = Arc::new(Pki::new());
    let controller = Controller::start(pki.clone()).await;
    let addr = ControlAddr { host: "127.0.0.1".into(), port: controller.addr.port(), name: None };
    let service = |name| Service::start(Dialer::new(name, addr.clone(), pki.anchors()));
    let metrics = Metrics::new(Duration::from_secs(600));
    let (recorder, _journal) = Recorder::new(metrics, "ns/pod".into(), &identity("web", "shop"));
    let destination = service("destination");
    let cx = Arc::new(Context {
        confirmer: Confirmer::new(destination.clone(), "token".into()),
        destination,
        policy: service("policy"),
        workload: "workload".into(),
        token: "token".into(),
        profile_networks: vec!["10.0.0.0/8".parse().unwrap()],
        cluster_networks: vec!["10.0.0.0/8".parse().unwrap()],
        limits: Limits::default(),
        max_age,
        memory: Default::default(),
        recorder,
    });
    let (shared, questions) = Shared::new(Defaults {
        policy: server_policy("default"),
        with_identity: server_policy("with-identity"),
        identity_ports: BTreeSet::from([4306]),
        opaque_ports: BTreeSet::from([3306, 4306]),
    });
    let discovery = Discovery::new(shared.clone());
    let idle = Idle {
        outbound: Duration::from_secs(5),
        inbound: Duration::from_secs(90),
        permanent: [80].into_iter().collect(),
    };
    tokio::spawn(agent::run(cx.clone(), shared, questions, idle));
    Bench { controller, discovery, cx }
}

fn pod(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 8080))
}

fn meshed(addr: SocketAddr) -> Endpoint {
    let id = identity("store", "shop");
    let peer = PeerIdentity::Meshed { server_name: id.clone(), id };
    Endpoint { labels: labels("store-0"), ..Endpoint::bare(addr, peer) }
}

fn bare(addr: SocketAddr) -> Endpoint {
    Endpoint { labels: labels("store-0"), ..Endpoint::bare(addr, PeerIdentity::Unknown(Unknown::Unmarked)) }
}

fn labels(pod: &str) -> Arc<BTreeMap<String, String>> {
    Arc::new(BTreeMap::from([("pod".to_string(), pod.to_string())]))
}

fn profile(endpoint: Endpoint) -> Step<Profile> {
    Step::Say(Profile { endpoint: Some(Arc::new(endpoint)), ..Profile::default() })
}

/// The one identity that the answer's policy leads to.
fn peer(destination: &Destination) -> PeerIdentity {
    let mut found = Vec::new();
    each_endpoint(&destination.policy, &mut |endpoint| found.push(endpoint.identity.clone()));
    found.dedup();
    assert_eq!(found.len(), 1);
    found.remove(0)
}

fn patience() -> Instant {
    Instant::now() + PATIENCE
}

/// Waits for an answer that satisfies `wanted`.
async fn until<T: Clone>(receiver: &mut watch::Receiver<T>, wanted: impl FnMut(&T) -> bool) -> T {
    let waited = tokio::time::timeout(PATIENCE, receiver.wait_for(wanted)).await;
    waited.expect("in time").expect("the sender lives").clone()
}

#[tokio::test]
async fn a_pods_identity_is_learned_and_outlives_its_stream_and_worse_answers() {
    let bench = bench().await;
    bench.controller.profile("10.0.0.1:8080", profile(bare(pod(1))));
    let mut answer = bench.discovery.destination(pod(1), patience()).await.unwrap();
    assert_eq!(peer(&answer.borrow().clone()), PeerIdentity::Unknown(Unknown::Unmarked));
    assert!(answer.borrow().in_cluster && !answer.borrow().strict);

    // The identity arrives on the same stream.
    bench.controller.profile("10.0.0.1:8080", profile(meshed(pod(1))));
    let known = until(&mut answer, |answer| peer(answer).id().is_some()).await;
    assert_eq!(peer(&known).id(), Some(&identity("store", "shop")));
    bench.discovery.proved(Arc::new(meshed(pod(1))));

    // The stream ends for good: what it said stays.
    bench.controller.profile("10.0.0.1:8080", Step::End(Grpc::FailedPrecondition));
    // A later stream that knows less changes nothing for the same pod …
    bench.controller.profile("10.0.0.1:8080", profile(Endpoint { weight: 7, ..bare(pod(1)) }));
    bench.discovery.doubt(pod(1), Code::HandshakeEof);
    let later = bench.discovery.destination(pod(1), patience()).await.unwrap().borrow().clone();
    assert!(peer(&later).id().is_some());
    // … and everything for another pod at the same address.
    let other = Endpoint { labels: labels("db-0"), ..bare(pod(1)) };
    bench.controller.profile("10.0.0.1:8080", profile(other));
    until(&mut answer, |answer| peer(answer).id().is_none()).await;
}

#[tokio::test]
async fn a_claim_that_no_handshake_proved_is_not_remembered() {
    let bench = bench().await;
    bench.controller.profile(&pod(10).to_string(), profile(meshed(pod(10))));
    let mut answer = bench.discovery.destination(pod(10), patience()).await.unwrap();
    assert!(peer(&answer.borrow().clone()).id().is_some());
    bench.controller.profile(&pod(10).to_string(), profile(bare(pod(10))));
    until(&mut answer, |answer| peer(answer).id().is_none()).await;
}

#[tokio::test]
async fn a_weft_controllers_word_ends_the_memory_of_a_proof() {
    let bench = bench().await;
    let asked = pod(11).to_string();
    bench.controller.profile(&asked, profile(meshed(pod(11))));
    let mut answer = bench.discovery.destination(pod(11), patience()).await.unwrap();
    bench.discovery.proved(Arc::new(meshed(pod(11))));
    let unmeshed = ConfirmResponse { state: State::Unmeshed.into(), ..ConfirmResponse::default() };
    bench.controller.confirm(pod(11), unmeshed);
    bench.controller.profile(&asked, profile(bare(pod(11))));
    until(&mut answer, |answer| peer(answer) == PeerIdentity::Unmeshed).await;
}

#[tokio::test]
async fn identity_less_answers_are_asked_about_again_without_being_told() {
    let bench = bench().await;
    // "Stuck": the stream of the first question never says more. A new question would.
    bench.controller.profile("10.0.0.2:8080", profile(bare(pod(2))));
    let mut answer = bench.discovery.destination(pod(2), patience()).await.unwrap();
    bench.controller.profile_for_new_streams("10.0.0.2:8080", profile(meshed(pod(2))));
    until(&mut answer, |answer| peer(answer).id().is_some()).await;
}

#[tokio::test]
async fn an_address_outside_of_the_cluster_is_plainly_unmeshed() {
    let bench = bench().await;
    let addr = SocketAddr::from(([192, 0, 2, 1], 443));
    let answer = bench.discovery.destination(addr, patience()).await.unwrap().borrow().clone();
    assert_eq!(peer(&answer), PeerIdentity::Unmeshed);
    assert!(!answer.in_cluster);
    assert_eq!(bench.controller.asked("GetProfile", "192.0.2.1:443"), 0);
}

#[tokio::test]
async fn a_weft_controllers_word_settles_it() {
    let bench = bench().await;
    for n in [3, 4, 5] {
        bench.controller.profile(&pod(n).to_string(), profile(bare(pod(n))));
    }
    let says = |state: State, endpoint: Option<Endpoint>| ConfirmResponse {
        state: state.into(),
        endpoint: endpoint.as_ref().map(weft_wire::destination::endpoint_to_api),
        pod: "shop/store-0".into(),
        reason: String::new(),
    };
    bench.controller.confirm(pod(3), says(State::Unmeshed, None));
    bench.controller.confirm(pod(4), says(State::Meshed, Some(meshed(pod(4)))));
    let now = async |n| bench.discovery.destination(pod(n), patience()).await.unwrap().borrow().clone();
    let (unmeshed, confirmed, unknown) = (now(3).await, now(4).await, now(5).await);
    assert_eq!(peer(&unmeshed), PeerIdentity::Unmeshed);
    assert!(peer(&confirmed).id().is_some());
    // The controller knows better than to guess, and so does the proxy.
    assert_eq!(peer(&unknown), PeerIdentity::Unknown(Unknown::Unmarked));
    assert!(unknown.strict);
}

#[tokio::test]
async fn a_lookup_that_fails_is_reported_by_the_deadline_and_mended_afterwards() {
    let bench = bench().await;
    let asked = pod(6).to_string();
    bench.controller.policy(&asked, Step::End(Grpc::Unavailable));
    let soon = Instant::now() + Duration::from_millis(600);
    let fault = bench.discovery.destination(pod(6), soon).await.unwrap_err();
    assert_eq!(fault.code(), Code::DiscoveryFailing);
    let causes = fault.record().causes.join("\n");
    assert!(causes.contains("CTL-009") && causes.contains("Unavailable"), "{causes}");
    bench.controller.profile(&asked, profile(meshed(pod(6))));
    bench.controller.policy(&asked, Step::End(Grpc::NotFound));
    let answer = bench.discovery.destination(pod(6), patience()).await.unwrap().borrow().clone();
    assert!(peer(&answer).id().is_some());
}

#[tokio::test]
async fn new_connections_wait_after_a_peer_refused_plaintext() {
    let bench = bench().await;
    let asked = pod(7).to_string();
    bench.controller.profile(&asked, profile(bare(pod(7))));
    let mut held = bench.discovery.destination(pod(7), patience()).await.unwrap();
    bench.discovery.doubt(pod(7), Code::PlaintextRefused);
    // The doubt goes through the same queue as this question, so it has been seen when this one is answered.
    drop(bench.discovery.destination(pod(77), patience()).await.unwrap());
    bench.controller.profile(&asked, profile(meshed(pod(7))));
    let fresh = bench.discovery.destination(pod(7), patience()).await.unwrap();
    until(&mut held, |answer| peer(answer).id().is_some()).await;
    assert!(peer(&fresh.borrow().clone()).id().is_some() || fresh.borrow().generation == 1);
}

#[tokio::test]
async fn the_endpoints_of_a_name_follow_the_controller_and_survive_its_absence() {
    let bench = bench().await;
    let name = "store.shop.svc.cluster.local:80";
    let mut state = bench.discovery.endpoints(name);
    let none = until(&mut state, |state| matches!(state.lookup, Lookup::Answered(_))).await;
    assert_eq!(none.lookup, Lookup::Answered(Endpoints::NoSuchService));
    let known = Endpoints::Known(Arc::new(vec![Arc::new(meshed(pod(1))), Arc::new(meshed(pod(2)))]));
    bench.controller.endpoints(name, Step::Say(known.clone()));
    let answered = |known: &Endpoints| Lookup::Answered(known.clone());
    until(&mut state, |state| state.lookup == answered(&known)).await;
    // The stream ends, and the next one says something else: it replaces, it is not added.
    bench.controller.endpoints(name, Step::End(Grpc::Unavailable));
    let fewer = Endpoints::Known(Arc::new(vec![Arc::new(meshed(pod(3)))]));
    bench.controller.endpoints(name, Step::Say(fewer.clone()));
    let last = until(&mut state, |state| state.lookup == answered(&fewer)).await;
    assert!(last.generation > none.generation);
    let empty = Endpoints::Known(Arc::default());
    bench.controller.endpoints(name, Step::Say(empty.clone()));
    until(&mut state, |state| state.lookup == answered(&empty)).await;
}

#[tokio::test]
async fn a_controllers_errors_are_told_apart() {
    let bench = bench().await;
    for (status, code, means) in [
        (Grpc::InvalidArgument, Code::ControllerRejects, Code::DiscoveryRefused),
        (Grpc::FailedPrecondition, Code::ControllerUnready, Code::DiscoveryUnready),
        (Grpc::Unavailable, Code::ControllerUnavailable, Code::DiscoveryFailing),
        (Grpc::Internal, Code::ControllerRefused, Code::DiscoveryFailing),
        (Grpc::Ok, Code::ControllerHungUp, Code::DiscoveryFailing),
    ] {
        let name = format!("{}.shop.svc.cluster.local:80", code.id());
        bench.controller.endpoints(&name, Step::End(status));
        let mut state = bench.discovery.endpoints(&name);
        let ended = |state: &Arc<EndpointsState>| !matches!(&state.lookup, Lookup::Pending(None));
        let (said, called) = match &until(&mut state, ended).await.lookup {
            Lookup::Refused(why) => (why.code.clone(), super::refused(why)),
            Lookup::Pending(why) => {
                (why.as_ref().expect("waited for").code.clone(), super::unanswered(why.as_deref()))
            }
            Lookup::Answered(_) => unreachable!("nothing was said"),
        };
        assert_eq!((said.as_str(), called), (code.id(), means), "{status:?}");
    }
    let silent = Fault::new(Code::ControllerSilent).record();
    assert_eq!(super::unanswered(Some(&silent)), Code::Unresolved);
    // A policy that is refused keeps an address waiting, and is no silence either.
    let refused = Fault::new(Code::ControllerUnready).record();
    assert_eq!(super::unanswered(Some(&refused)), Code::DiscoveryUnready);
}

#[tokio::test]
async fn a_refused_name_says_so_and_is_asked_again() {
    let bench = bench().await;
    let name = "gone.shop.svc.cluster.local:80";
    bench.controller.endpoints(name, Step::End(Grpc::InvalidArgument));
    let mut state = bench.discovery.endpoints(name);
    let refused = |state: &Arc<EndpointsState>| matches!(&state.lookup, Lookup::Refused(_));
    let told = until(&mut state, refused).await;
    let Lookup::Refused(fault) = &told.lookup else { unreachable!("waited for") };
    assert_eq!(fault.code, Code::ControllerRejects.id());
    let known = Endpoints::Known(Arc::new(vec![Arc::new(meshed(pod(1)))]));
    bench.controller.endpoints(name, Step::Say(known.clone()));
    until(&mut state, |state| state.lookup == Lookup::Answered(known.clone())).await;
}

#[tokio::test]
async fn a_ports_policy_is_the_default_until_the_controller_speaks() {
    let bench = bench().await;
    let mut policy = bench.discovery.inbound(80);
    assert_eq!(policy.borrow().meta.name(), "default");
    assert!(matches!(policy.borrow().protocol, Protocol::Detect { .. }));
    assert_eq!(bench.discovery.inbound(3306).borrow().protocol, Protocol::Opaque);
    // And so is who may call a port that requires an identity.
    let both = bench.discovery.inbound(4306).borrow().clone();
    assert_eq!((both.meta.name(), &both.protocol), ("with-identity", &Protocol::Opaque));
    bench.controller.server(80, Step::Say(ServerPolicy::clone(&server_policy("mine"))));
    until(&mut policy, |policy| policy.meta.name() == "mine").await;
    bench.controller.server(80, Step::End(Grpc::Unavailable));
    bench.controller.server(80, Step::Say(ServerPolicy::clone(&server_policy("newer"))));
    until(&mut policy, |policy| policy.meta.name() == "newer").await;
    // One that cannot be read may be a tightening: what was open does not stay so.
    let unreadable = Protocol::Unreadable("a protocol of the future".into());
    let future = ServerPolicy { protocol: unreadable, ..ServerPolicy::clone(&server_policy("future")) };
    bench.controller.server(80, Step::Say(future));
    until(&mut policy, |policy| matches!(policy.protocol, Protocol::Unreadable(_))).await;
    assert!(policy.borrow().authorizations.is_empty());
    bench.controller.server(80, Step::Say(ServerPolicy::clone(&server_policy("mended"))));
    until(&mut policy, |policy| policy.meta.name() == "mended").await;
}

#[tokio::test]
async fn one_question_is_asked_however_many_want_the_answer() {
    let bench = bench().await;
    bench.controller.profile(&pod(8).to_string(), profile(meshed(pod(8))));
    let all: Vec<_> = (0..50).map(|_| bench.discovery.destination(pod(8), patience())).collect();
    for answer in futures_util::future::join_all(all).await {
        assert!(peer(&answer.unwrap().borrow().clone()).id().is_some());
    }
    assert_eq!(bench.controller.asked("GetProfile", &pod(8).to_string()), 1);
}

#[tokio::test]
async fn the_memory_is_shared_between_addresses_and_names() {
    let bench = bench().await;
    bench.controller.profile(&pod(9).to_string(), profile(meshed(pod(9))));
    drop(bench.discovery.destination(pod(9), patience()).await.unwrap());
    bench.discovery.proved(Arc::new(meshed(pod(9))));
    let name = "store.shop.svc.cluster.local:8080";
    let bare = Endpoints::Known(Arc::new(vec![Arc::new(bare(pod(9)))]));
    bench.controller.endpoints(name, Step::Say(bare));
    let mut state = bench.discovery.endpoints(name);
    let known = until(&mut state, |state| matches!(state.lookup, Lookup::Answered(_))).await;
    let Lookup::Answered(Endpoints::Known(endpoints)) = &known.lookup else { panic!("{known:?}") };
    assert_eq!(endpoints[0].identity.id(), Some(&identity("store", "shop")));
    assert!(!bench.cx.confirmer.is_weft());
}

#[tokio::test]
async fn an_answer_that_is_too_old_is_replaced_however_silent_its_stream_is() {
    let bench = bench_with(Some(Duration::from_secs(1))).await;
    let name = "store.shop.svc.cluster.local:80";
    let known = |n| Endpoints::Known(Arc::new(vec![Arc::new(meshed(pod(n)))]));
    bench.controller.profile(&pod(12).to_string(), profile(meshed(pod(12))));
    bench.controller.endpoints(name, Step::Say(known(1)));
    let mut held = bench.discovery.destination(pod(12), patience()).await.unwrap();
    let mut state = bench.discovery.endpoints(name);
    until(&mut state, |state| state.lookup == Lookup::Answered(known(1))).await;
    // The open streams never say this: only new questions are answered so.
    let changed = Endpoint { weight: 7, ..meshed(pod(12)) };
    bench.controller.profile_for_new_streams(&pod(12).to_string(), profile(changed));
    bench.controller.endpoints_for_new_streams(name, Step::Say(known(2)));
    let weighs = |answer: &Arc<Destination>| {
        let mut found = false;
        each_endpoint(&answer.policy, &mut |endpoint| found |= endpoint.weight == 7);
        found
    };
    until(&mut held, weighs).await;
    until(&mut state, |state| state.lookup == Lookup::Answered(known(2))).await;
    // The controller falls silent: what is known stays in force, and the question is asked again and again.
    bench.controller.endpoints_for_new_streams(name, Step::Silence);
    let before = bench.controller.asked("Get", name);
    let asked_again = async {
        while bench.controller.asked("Get", name) < before + 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asked_again).await.expect("asked again");
    assert_eq!(state.borrow().lookup, Lookup::Answered(known(2)));
}

#[tokio::test]
async fn a_name_leads_where_its_policy_or_else_its_profile_says() {
    let bench = bench().await;
    let path = "store.shop.svc.cluster.local:80";
    let named =
        Profile { fully_qualified_name: Some("store.shop.svc.cluster.local".into()), ..Profile::default() };
    bench.controller.profile(path, Step::Say(named));
    let by_name = |host: &'static str| bench.discovery.by_name(host, 80, patience());
    let mut answer = by_name("store.shop.svc.cluster.local").await.unwrap();
    assert_eq!(leads_to(&answer.borrow()), [format!("balance {path}")]);
    let forward = super::judge::forward("told", Arc::new(meshed(pod(40))));
    bench.controller.policy(path, Step::Say(forward));
    until(&mut answer, |answer| leads_to(answer) == ["forward 10.0.0.40:8080"]).await;

    // A pod behind a name, of which the policy knows nothing.
    bench.controller.profile("store-0.store.shop.svc.cluster.local:80", profile(meshed(pod(41))));
    let answer = by_name("store-0.store.shop.svc.cluster.local").await.unwrap();
    assert_eq!(leads_to(&answer.borrow()), ["forward 10.0.0.41:8080"]);

    // Nothing is guessed, and nobody waits for what is known not to be there.
    let empty = by_name("empty.shop.svc.cluster.local").await.unwrap_err();
    assert_eq!(empty.code(), Code::ServiceUnknown);
    bench.controller.profile("no.example:80", Step::End(Grpc::InvalidArgument));
    let refused = by_name("no.example").await.unwrap_err();
    assert_eq!(refused.code(), Code::DiscoveryRefused);
    // It may come to be.
    bench.controller.profile("no.example:80", profile(meshed(pod(42))));
    let appears = async {
        loop {
            match by_name("no.example").await {
                Ok(answer) => break answer,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let answer = tokio::time::timeout(PATIENCE, appears).await.unwrap();
    assert_eq!(leads_to(&answer.borrow()), ["forward 10.0.0.42:8080"]);
}

/// The backends of opaque bytes, which are everybody's in these policies.
fn leads_to(destination: &Destination) -> Vec<String> {
    use weft_model::outbound::{BackendKind, Distribution, OutboundProtocol};
    let OutboundProtocol::Detect { opaque, .. } = &destination.policy.protocol else { return Vec::new() };
    let Distribution::FirstAvailable(backends) = &opaque.routes[0].backends else { return Vec::new() };
    let kind = |kind: &BackendKind| match kind {
        BackendKind::Forward(endpoint) => format!("forward {}", endpoint.addr),
        BackendKind::Balance { path, .. } => format!("balance {path}"),
        BackendKind::Invalid(why) => format!("invalid {why}"),
    };
    backends.iter().map(|backend| kind(&backend.backend.kind)).collect()
}

#[tokio::test]
async fn filters_without_words_are_asked_of_a_weft_controller_and_fail_their_requests_elsewhere() {
    use weft_model::{
        extension::extensions,
        http::{Filter, Rewrite},
        outbound::{OutboundPolicy, OutboundProtocol},
    };
    let rewriting = |name: &str, addr| {
        let mut policy = super::judge::forward(name, Arc::new(meshed(addr)));
        if let OutboundProtocol::Detect { http1, .. } = &mut policy.protocol {
            let host = Some("v2.shop".to_string());
            http1.routes[0].rules[0].filters = vec![Filter::RewriteUrl(Rewrite { host, path: None })];
        }
        policy
    };
    let filter = |policy: &OutboundPolicy| match &policy.protocol {
        OutboundProtocol::Detect { http1, .. } => http1.routes[0].rules[0].filters[0].clone(),
        other => panic!("{other:?}"),
    };
    // A stock controller cannot say what it is: the filter stays one that fails its requests.
    let stock = bench().await;
    stock.controller.policy(&pod(20).to_string(), Step::Say(rewriting("r", pod(20))));
    let answer = stock.discovery.destination(pod(20), patience()).await.unwrap().borrow().clone();
    assert_eq!(filter(&answer.policy), Filter::Unknown);
    // A weft controller says it, before anybody can see the policy without it.
    let weft = bench().await;
    let policy = rewriting("r", pod(20));
    let told = extensions(&policy).iter().filter_map(weft_wire::extension::to_api).collect();
    weft.controller.extensions(told);
    weft.controller.policy(&pod(20).to_string(), Step::Say(policy.clone()));
    let answer = weft.discovery.destination(pod(20), patience()).await.unwrap().borrow().clone();
    assert_eq!(filter(&answer.policy), filter(&policy));
    assert_eq!(weft.controller.asked("Extensions", ""), 1);
}

#[tokio::test]
async fn a_profiles_routes_come_with_the_answer_and_their_budget_outlives_updates() {
    use weft_model::{
        http::PathMatch,
        profile::{Condition, ProfileRoute, ServiceProfile},
        retry::RetryBudget,
    };
    let bench = bench().await;
    let asked = pod(21).to_string();
    let told = |opaque| Profile {
        fully_qualified_name: Some("store.shop.svc.cluster.local".into()),
        opaque,
        service: ServiceProfile {
            routes: vec![ProfileRoute {
                condition: Condition::Path(PathMatch::Exact("/a".into())),
                classes: Vec::new(),
                labels: BTreeMap::new(),
                retryable: true,
                timeout: None,
            }],
            budget: Some(RetryBudget { ratio: 0.5, min_per_second: 1, ttl: Duration::from_secs(10) }),
            overrides: Vec::new(),
        },
        ..Profile::default()
    };
    bench.controller.profile(&asked, Step::Say(told(false)));
    let mut answer = bench.discovery.destination(pod(21), patience()).await.unwrap();
    let first = answer.borrow().service.clone().expect("routes");
    assert_eq!(first.name, "store.shop.svc.cluster.local:8080");
    bench.controller.profile(&asked, Step::Say(told(true)));
    let later = until(&mut answer, |answer| answer.profile.as_ref().is_some_and(|p| p.opaque)).await;
    let (before, after) = (first.budget.as_ref(), later.service.as_ref().and_then(|s| s.budget.as_ref()));
    assert!(Arc::ptr_eq(before.expect("a budget"), after.expect("a budget")));
    // Without routes the policy's are in force again.
    bench.controller.profile(&asked, profile(meshed(pod(21))));
    until(&mut answer, |answer| answer.service.is_none()).await;
}
