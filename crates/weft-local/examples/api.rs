//! An API server by itself, for trying it with kubectl and for comparing it with transcripts of a real one:
//! `cargo run -p weft-local --example api -- [--bare] KUBECONFIG [PORT]`.

use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;

use weft_local::api::auth::{MASTERS, User};
use weft_local::api::{ApiServer, Config};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let bare = arguments.first().is_some_and(|first| first == "--bare");
    if bare {
        arguments.remove(0);
    }
    let path = arguments.first().ok_or("usage: api [--bare] KUBECONFIG [PORT]")?;
    let port = arguments.get(1).map_or(Ok(0), |port| port.parse())?;
    let mut config = Config::default();
    if bare {
        // What the transcripts were recorded on: no node, no controllers, two static tokens.
        config.node = None;
        config.controllers = false;
        config.service_range = "10.96.0.0/16".parse()?;
        let groups = vec![MASTERS.to_owned(), "system:authenticated".to_owned()];
        let admin = User { name: "admin".into(), groups, ..User::default() };
        let viewer =
            User { name: "viewer".into(), groups: vec!["system:authenticated".into()], ..User::default() };
        config.tokens = vec![("admin-token".into(), admin), ("viewer-token".into(), viewer)];
    }
    let controllers = config.controllers;
    let server = ApiServer::new(config)?;
    if controllers {
        tokio::spawn(weft_local::controllers::run(server.api().clone()));
    }
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let address = listener.local_addr()?;
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(server.kubeconfig(address).as_bytes())?;
    println!("serving {address}");
    server.serve(listener).await;
    Ok(())
}
