//! What is known is listed, and what is held to be wrong is asked for anew.

use super::*;
use weft_testkit::controller::Step::End;
use weft_wire::cached::{Cached, State as Stands, What};

async fn listed(bench: &Bench, subject: &str) -> Vec<Cached> {
    bench.discovery.list(Some(subject), 10).await.1
}

fn is(name: &str, addr: SocketAddr) -> Endpoint {
    let id = identity(name, "shop");
    Endpoint::bare(addr, PeerIdentity::Meshed { server_name: id.clone(), id })
}

/// The controller changed its mind, and the update was lost: a positive answer is not asked about by itself.
#[tokio::test]
async fn a_stale_answer_is_shown_with_its_age_and_had_anew() {
    let bench = bench().await;
    let (addr, text) = (pod(7), pod(7).to_string());
    bench.controller.profile(&text, profile(is("old", addr)));
    let mut held = bench.discovery.destination(addr, patience()).await.unwrap();
    bench.discovery.proved(Arc::new(is("old", addr)));
    bench.controller.profile_for_new_streams(&text, profile(is("new", addr)));

    let stale = listed(&bench, &text).await;
    let [stale] = &stale[..] else { panic!("{stale:?}") };
    assert_eq!((stale.what, stale.state, stale.in_use), (What::Destination, Stands::Answered, true));
    assert_eq!(stale.endpoints[0].identity.as_deref(), Some(identity("old", "shop").as_str()));
    assert!(stale.age_ms.is_some() && stale.generation == Some(1), "{stale:?}");

    assert_eq!(bench.discovery.refresh(&text).await, [text.as_str()]);
    let new = identity("new", "shop");
    until(&mut held, |answer| peer(answer).id() == Some(&new)).await;
    let fresh = &listed(&bench, &text).await[0];
    assert_eq!((fresh.generation, fresh.endpoints[0].identity.as_deref()), (Some(2), Some(new.as_str())));

    // Nobody holds it any more.
    drop(held);
    assert!(!listed(&bench, &text).await[0].in_use);
}

#[tokio::test]
async fn names_ports_and_refusals_are_listed_too() {
    let bench = bench().await;
    let name = "store.shop.svc.cluster.local:80";
    let mut endpoints = bench.discovery.endpoints(name);
    bench.controller.endpoints(name, End(Grpc::InvalidArgument));
    until(&mut endpoints, |state| matches!(state.lookup, Lookup::Refused(_))).await;
    let all = listed(&bench, "store.shop").await;
    let [refused] = &all[..] else { panic!("{all:?}") };
    assert_eq!((refused.what, refused.state, refused.in_use), (What::Endpoints, Stands::Refused, true));
    assert_eq!(refused.reason.as_ref().unwrap().code, Code::ControllerRejects.id());

    // Watched from the start, and not answered.
    let ports = listed(&bench, "80").await;
    assert_eq!((ports[0].what, ports[0].state), (What::Policy, Stands::Default));
    assert_eq!(ports[0].source.as_deref(), Some("default/default"));

    // No more than is wanted, and how many there are; and nothing is asked about what nobody knows.
    let (total, first) = bench.discovery.list(None, 1).await;
    assert_eq!((total, first.len()), (2, 1));
    assert!(bench.discovery.refresh("10.9.9.9:1").await.is_empty());
    assert_eq!(bench.discovery.refresh(name).await, [name]);
}
