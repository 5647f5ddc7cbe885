//! Where a connection was going before it was redirected, and what becomes of it when that is not known, or not here.

use crate::harness::{Proxy, app, detect, proxy, server};
use std::net::SocketAddr;
use tokio::{io::AsyncWriteExt, net::TcpStream};
use weft_model::inbound::Authn;
use weft_net::socket::{self, Listener, Options};
use weft_testkit::{
    pki::Pki,
    raw::{self, within},
};

fn elsewhere() -> SocketAddr {
    "192.0.2.77:80".parse().unwrap()
}

/// Another listener of the same proxy, of whose connections nobody knows where they were going.
fn forgetful() -> (Listener, SocketAddr) {
    let socket = socket::listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let addr = socket.local_addr().unwrap();
    (Listener::new(socket, Options::default()).unwrap().pretending_nothing(), addr)
}

async fn refused(proxy: &Proxy, at: SocketAddr, code: &str) {
    let mut io = TcpStream::connect(at).await.unwrap();
    // Refused before it is read: the write may already fail.
    let _sent = io.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(within(raw::read_all(&mut io)).await.unwrap_or_default().is_empty());
    assert_eq!(proxy.failure().await.fault.unwrap().code, code);
}

#[tokio::test(flavor = "local")]
async fn a_redirected_connection_whose_destination_is_lost_is_not_guessed_at() {
    let (pki, app) = (Pki::new(), app().await);
    for inbound in [true, false] {
        let store = proxy(&pki, "store", app.addr, app.addr, &[]);
        let (listener, addr) = forgetful();
        // The address of this end has a policy, which lets everybody in: it must not be taken for the destination's.
        store.told.inbound(addr.port(), server(detect(), Authn::Unauthenticated));
        match inbound {
            true => tokio::task::spawn_local(weft_proxy::inbound::serve(store.mesh.clone(), listener)),
            false => tokio::task::spawn_local(weft_proxy::outbound::serve(store.mesh.clone(), listener)),
        };
        refused(&store, addr, "NET-005").await;
    }
    assert_eq!(app.count(), 0);
}

#[tokio::test(flavor = "local")]
async fn what_was_meant_for_another_pods_address_is_refused() {
    let pki = Pki::new();
    let store = proxy(&pki, "store", elsewhere(), elsewhere(), &[("INBOUND_IPS", "192.0.2.1")]);
    store.told.inbound(elsewhere().port(), server(detect(), Authn::Unauthenticated));
    refused(&store, store.inbound, "NET-008").await;
    let record = store.failure().await;
    assert!(record.fault.unwrap().facts.iter().any(|(_, value)| value == "192.0.2.77:80"));
}
