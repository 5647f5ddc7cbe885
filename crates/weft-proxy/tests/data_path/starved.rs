//! A proxy that hardly runs, since others have the CPU: what was done by the time it looks counts as done.

use crate::harness::{app, detect, proxy, server};
use std::time::Duration;
use weft_model::inbound::Authn;
use weft_testkit::{pki::Pki, raw};

#[tokio::test(flavor = "local")]
async fn a_starved_proxy_reaches_its_application() {
    let (pki, app) = (Pki::new(), app().await);
    let limit = [("INBOUND_CONNECT_TIMEOUT", "100ms"), ("INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT", "60s")];
    let proxy = proxy(&pki, "store", app.addr, "192.0.2.1:80".parse().unwrap(), &limit);
    proxy.told.inbound(app.addr.port(), server(detect(), Authn::Unauthenticated));
    // A little longer than the limit each time, and as long as something that is stopped.
    for (block, turns) in [(130, 20), (700, 8)] {
        let hog = tokio::task::spawn_local(async move {
            for _ in 0..turns {
                tokio::time::sleep(Duration::from_millis(1)).await;
                std::thread::sleep(Duration::from_millis(block));
            }
        });
        let request = "GET / HTTP/1.1\r\nHost: store\r\nConnection: close\r\n\r\n";
        let (head, _) = raw::http(proxy.inbound, request).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "after {block} ms each: {head}");
        hog.await.unwrap();
    }
}
