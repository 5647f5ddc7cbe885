//! A subscriber that stops reading is its own trouble only.

use super::*;
use std::collections::BTreeSet;
use tokio::sync::watch;

const SUBSCRIBERS: usize = 10;
const CHANGES: u32 = 500;
/// As little as a client may offer to read ahead, so that one which does not read is soon full.
const WINDOW: u32 = 8 * 1024;

type Addresses = BTreeSet<SocketAddr>;

/// Follows a stream to its end.
fn follow(mut updates: tonic::Streaming<dst::Update>) -> watch::Receiver<Addresses> {
    let (state, seen) = watch::channel(Addresses::new());
    tokio::spawn(async move {
        while let Ok(Some(update)) = updates.message().await {
            state.send_modify(|state| apply(state, update));
        }
    });
    seen
}

fn apply(state: &mut Addresses, update: dst::Update) {
    let socket = |addr| weft_wire::destination::socket_from_api(addr).unwrap();
    match update.update.unwrap() {
        update::Update::Add(set) => state.extend(set.addrs.iter().map(|a| socket(a.addr.unwrap()))),
        update::Update::Remove(set) => {
            for addr in set.addrs {
                state.remove(&socket(addr));
            }
        }
        update::Update::NoEndpoints(_) => state.clear(),
    }
}

/// B06: nobody waits for one that does not read; it is cut off with a status that invites it back.
#[tokio::test]
async fn a_subscriber_that_stops_reading_holds_up_nobody() {
    let mesh = Mesh::start().await;
    mesh.shop().await;
    mesh.create(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "store", "namespace": mesh.shop},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}),
    )
    .await;
    mesh.slice("store-x", &[("gone", "10.77.0.1")]).await;
    let wanted = GetDestination { path: format!("{}:80", mesh.dns("store")), ..GetDestination::default() };
    let mut streams = Vec::new();
    for _ in 0..SUBSCRIBERS {
        let endpoint = Endpoint::from_shared(format!("http://{}", mesh.controller.addresses.destination));
        let endpoint = endpoint.unwrap().initial_stream_window_size(WINDOW);
        let mut client = DestinationClient::new(endpoint.connect().await.unwrap());
        streams.push(client.get(wanted.clone()).await.unwrap().into_inner());
    }
    let mut stuck = streams.remove(0);
    let readers: Vec<_> = streams.into_iter().map(follow).collect();

    let slice = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices/store-x", mesh.shop);
    for n in 1..=CHANGES {
        // The last one is 10.77.0.42, and none before it is.
        let last = if n == CHANGES { 42 } else { 100 + n % 100 };
        let endpoints = json!([{"addresses": [format!("10.77.0.{last}")], "conditions": {"ready": true}}]);
        mesh.patch(&slice, json!({ "endpoints": endpoints })).await;
    }
    let at_last = Addresses::from(["10.77.0.42:8080".parse().unwrap()]);
    for mut reader in readers {
        let read = timeout(LIMIT, reader.wait_for(|state| *state == at_last)).await;
        assert!(read.is_ok_and(|state| state.is_ok()), "{:?}", *reader.borrow());
    }

    // Only a look from outside tells that it was cut off: whoever reads gets what was sent before that.
    let open = format!("weft_view_subscribers{{view=\"endpoints\"}} {}\n", SUBSCRIBERS - 1);
    let cut_off = timeout(LIMIT, async {
        while !mesh.admin("/metrics").await.1.contains(&open) {
            tokio::time::sleep(LOOK).await;
        }
    });
    assert!(cut_off.await.is_ok(), "{}", mesh.admin("/metrics").await.1);
    let ended = loop {
        match timeout(LIMIT, stuck.message()).await.unwrap() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), tonic::Code::Unavailable, "{ended}");

    let mut client = DestinationClient::new(mesh.channel(mesh.controller.addresses.destination).await);
    let mut again = client.get(wanted).await.unwrap().into_inner();
    let mut state = Addresses::new();
    apply(&mut state, next(&mut again).await);
    assert_eq!(state, at_last);
}
