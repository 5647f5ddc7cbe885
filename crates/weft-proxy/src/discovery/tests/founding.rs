//! The ways in which a proxy learned an endpoint without its identity and never let go of that, one by one: what a stock
//! proxy makes of each was measured, and is in `bench/founding.md`.

use super::*;
use futures_util::future::join_all;
use weft_testkit::controller::Step::{End, Say, Silence};

/// What goes wrong at first with the answers about one pod, and then comes right.
struct Situation {
    name: &'static str,
    begins: fn(&Controller, SocketAddr),
    mends: fn(&Controller, SocketAddr),
}

fn told(controller: &Controller, addr: SocketAddr, endpoint: Endpoint) {
    controller.profile(&addr.to_string(), profile(endpoint));
}

/// Only a question that is asked anew hears this.
fn told_to_new(controller: &Controller, addr: SocketAddr) {
    controller.profile_for_new_streams(&addr.to_string(), profile(meshed(addr)));
}

const SITUATIONS: &[Situation] = &[
    Situation {
        name: "(i) no identity at first, an update on the same stream",
        begins: |controller, addr| told(controller, addr, bare(addr)),
        mends: |controller, addr| told(controller, addr, meshed(addr)),
    },
    Situation {
        name: "(ii) no identity, and nothing more on that stream",
        begins: |controller, addr| told(controller, addr, bare(addr)),
        mends: told_to_new,
    },
    Situation {
        name: "(iii) the profile is refused, the policy not found",
        begins: |controller, addr| controller.profile(&addr.to_string(), End(Grpc::FailedPrecondition)),
        mends: told_to_new,
    },
    Situation {
        name: "(iv) the profile is unavailable",
        begins: |controller, addr| controller.profile(&addr.to_string(), End(Grpc::Unavailable)),
        mends: told_to_new,
    },
    Situation {
        name: "(v) an update, and the stream is refused at once and from then on",
        begins: |controller, addr| told(controller, addr, bare(addr)),
        mends: |controller, addr| {
            told(controller, addr, meshed(addr));
            let refused = End(Grpc::FailedPrecondition);
            controller.profile_for_new_streams(&addr.to_string(), refused);
        },
    },
    Situation {
        name: "(vi) no identity, and the stream ends in peace",
        begins: |controller, addr| told(controller, addr, bare(addr)),
        mends: |controller, addr| {
            controller.profile(&addr.to_string(), End(Grpc::Ok));
            told_to_new(controller, addr);
        },
    },
    Situation {
        name: "(vii) the first question is never answered",
        begins: |controller, addr| controller.profile(&addr.to_string(), Silence),
        mends: told_to_new,
    },
    Situation {
        name: "(viii) a policy that hides what the profile knows",
        begins: |controller, addr| {
            told(controller, addr, meshed(addr));
            let hiding = crate::discovery::judge::forward("egress-fallback", Arc::new(bare(addr)));
            controller.policy(&addr.to_string(), Say(hiding));
        },
        mends: |controller, addr| controller.policy(&addr.to_string(), End(Grpc::NotFound)),
    },
    Situation {
        name: "(ix) the policy is unavailable",
        begins: |controller, addr| {
            told(controller, addr, meshed(addr));
            controller.policy(&addr.to_string(), End(Grpc::Unavailable));
        },
        mends: |controller, addr| controller.policy(&addr.to_string(), End(Grpc::NotFound)),
    },
    Situation {
        name: "(x) the policy is refused",
        begins: |controller, addr| {
            told(controller, addr, meshed(addr));
            controller.policy(&addr.to_string(), End(Grpc::FailedPrecondition));
        },
        mends: |controller, addr| controller.policy(&addr.to_string(), End(Grpc::NotFound)),
    },
];

/// Each heals by itself, for connections that have the first answer and for new ones, whoever goes on using it.
#[tokio::test]
async fn every_way_to_lose_an_identity_heals_while_the_answer_is_in_use() {
    let bench = bench().await;
    let heals = SITUATIONS.iter().zip(100..).map(|(situation, last)| {
        let (controller, discovery) = (&bench.controller, &bench.discovery);
        async move {
            let addr = pod(last);
            (situation.begins)(controller, addr);
            // What comes before it mends, if anything does: a wait that ends, or an answer to go on with.
            let soon = Instant::now() + Duration::from_millis(500);
            let held = discovery.destination(addr, soon).await;
            (situation.mends)(controller, addr);
            let mut fresh = match discovery.destination(addr, patience()).await {
                Ok(fresh) => fresh,
                Err(fault) => panic!("{}: {fault:?}", situation.name),
            };
            until(&mut fresh, |answer| peer(answer).id().is_some()).await;
            if let Ok(mut held) = held {
                until(&mut held, |answer| peer(answer).id().is_some()).await;
            }
            // What is known now is not lost again, by whatever end of whatever stream.
            discovery.proved(Arc::new(meshed(addr)));
            for end in [Grpc::FailedPrecondition, Grpc::Unavailable, Grpc::Ok] {
                controller.profile(&addr.to_string(), End(end));
            }
            told(controller, addr, bare(addr));
            discovery.doubt(addr, Code::HandshakeEof);
            let asked = controller.asked("GetProfile", &addr.to_string());
            let again = async {
                while controller.asked("GetProfile", &addr.to_string()) == asked {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(PATIENCE, again).await.expect(situation.name);
            assert!(peer(&fresh.borrow().clone()).id().is_some(), "{}", situation.name);
        }
    });
    join_all(heals).await;
}
