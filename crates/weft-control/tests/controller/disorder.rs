//! The API goes away, or the controller does: nobody is told anything wrong, and it ends by itself.

use super::*;
use tokio::{net::TcpListener, sync::watch};

/// Stands between the controller and the API.
struct Relay {
    addr: SocketAddr,
    way: watch::Sender<Way>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Open,
    /// Connections stay and carry nothing, as behind a firewall that forgot them; new ones, too.
    Silent,
    /// Connections are cut.
    Cut,
}

impl Relay {
    async fn start(to: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (way, receiver) = watch::channel(Way::Open);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, to, receiver.clone()));
            }
        });
        Relay { addr, way }
    }
}

async fn carry(mut client: TcpStream, to: SocketAddr, mut way: watch::Receiver<Way>) {
    let first = *way.borrow_and_update();
    if first == Way::Open {
        let Ok(mut server) = TcpStream::connect(to).await else { return };
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
            changed = way.changed() => if changed.is_err() || *way.borrow() != Way::Silent { return },
        }
        // What was silent once is never heard of again.
        while way.changed().await.is_ok() && *way.borrow() != Way::Cut {}
        return;
    }
    if first == Way::Silent {
        while way.changed().await.is_ok() && *way.borrow() != Way::Cut {}
    }
}

fn get_store(mesh: &Mesh) -> GetDestination {
    GetDestination { path: format!("{}:80", mesh.dns("store")), ..Default::default() }
}

async fn store(mesh: &Mesh) {
    mesh.shop().await;
    mesh.create(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "store", "namespace": mesh.shop},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": "http"}]}}),
    )
    .await;
    mesh.pod("store-1", "10.77.0.2").await;
    mesh.slice("store-x", &[("store-1", "10.77.0.2")]).await;
}

/// What a new stream is told once there are endpoints.
async fn endpoints(
    mesh: &Mesh,
    client: &mut DestinationClient<Channel>,
) -> (tonic::Streaming<dst::Update>, usize) {
    let mut updates = client.get(get_store(mesh)).await.unwrap().into_inner();
    loop {
        if let update::Update::Add(set) = next(&mut updates).await.update.unwrap() {
            return (updates, set.addrs.len());
        }
    }
}

/// B55: the API cannot be reached for a while, silently or not; what happens meanwhile is caught up on.
#[tokio::test]
async fn streams_keep_what_they_know_while_the_api_is_gone() {
    for way in [Way::Silent, Way::Cut] {
        let cluster = Cluster::whole().await;
        let relay = Relay::start(cluster.address()).await;
        let mesh = Mesh::on(cluster, relay.addr).await;
        store(&mesh).await;
        let mut client = DestinationClient::new(mesh.channel(mesh.controller.addresses.destination).await);
        let (mut updates, _) = endpoints(&mesh, &mut client).await;

        relay.way.send_replace(way);
        timeout(LIMIT, async {
            while mesh.controller.feed.pulse.silence() < Duration::from_millis(1500) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        mesh.pod("store-2", "10.77.0.3").await;
        mesh.slice("store-y", &[("store-2", "10.77.0.3")]).await;
        // Who comes now is told what was known.
        let (_, known) = endpoints(&mesh, &mut client).await;
        assert_eq!(known, 1, "{way:?}");

        // The first that is said afterwards is the news: nothing was taken back in between.
        relay.way.send_replace(Way::Open);
        match next(&mut updates).await.update.unwrap() {
            update::Update::Add(set) => {
                let new: SocketAddr =
                    weft_wire::destination::socket_from_api(set.addrs[0].addr.unwrap()).unwrap();
                assert_eq!((set.addrs.len(), new), (1, "10.77.0.3:8080".parse().unwrap()));
            }
            other => panic!("{way:?}: {other:?}"),
        }
        mesh.controller.stop().await;
    }
}

/// Killed without a word; the next one answers from the whole index or not at all.
#[tokio::test]
async fn a_controller_that_was_killed_is_followed_by_one_that_knows_everything() {
    let mesh = Mesh::start().await;
    store(&mesh).await;
    let mut client = DestinationClient::new(mesh.channel(mesh.controller.addresses.destination).await);
    endpoints(&mesh, &mut client).await;
    let (account, wanted) = (mesh.second().await, get_store(&mesh));
    let Mesh { controller, mut config, cluster: _cluster, .. } = mesh;
    drop(controller);

    config.ports = Ports { destination: 0, policy: 0, identity: 0, webhook: 0, admin: 0 };
    let next_one = Controller::bind(config, account).await.unwrap();
    // At once, before it is ready: the answer waits, and is right.
    let channel = Endpoint::from_shared(format!("http://{}", next_one.addresses.destination)).unwrap();
    let mut client = DestinationClient::new(channel.connect_lazy());
    let mut updates = timeout(LIMIT, client.get(wanted)).await.unwrap().unwrap().into_inner();
    match next(&mut updates).await.update.unwrap() {
        update::Update::Add(set) => assert_eq!(set.addrs.len(), 1),
        other => panic!("{other:?}"),
    }
    next_one.stop().await;
}
